"""Finding out which raw partitions are sealed."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from confluent_kafka import Consumer, KafkaException, Message

from tokenfeed.documents import SEAL, content_type_of
from tokenfeed.kafka import connection, read_range, reader, unreachable, watermarks
from tokenfeed.settings import Settings

_TIMEOUT_SECONDS: Final = 30.0
_THREADS: Final = 16  # each waits some 0.2 s for one partition


def sealed_partitions(settings: Settings, topic: str) -> set[int]:
    """Partitions of a raw topic whose last record is a seal.

    Raises:
        BrokerUnreachable: no broker answers.
    """
    options = connection(settings)
    partitions = range(settings.stream_count)
    try:
        with ThreadPoolExecutor(_THREADS) as threads:
            found = list(threads.map(lambda partition: _is_sealed(options, topic, partition), partitions))
    except KafkaException as error:
        raise unreachable(options, error) from None
    return {partition for partition in partitions if found[partition]}


def _is_sealed(options: dict[str, Any], topic: str, partition: int) -> bool:
    consumer = reader(options)
    try:
        last = _last(consumer, topic, partition)
    finally:
        consumer.close()
    return last is not None and content_type_of(last.headers()) == SEAL


def _last(consumer: Consumer, topic: str, partition: int) -> Message | None:
    low, high = watermarks(consumer, topic, partition, _TIMEOUT_SECONDS)
    last: Message | None = None
    # The high watermark may fall short of the end (see tokenfeed.kafka), and everything below it may have expired.
    for message in read_range(consumer, topic, partition, max(low, high - 1), timeout=_TIMEOUT_SECONDS):
        last = message
    return last
