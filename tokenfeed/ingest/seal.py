"""Finding out which raw partitions are sealed."""

from __future__ import annotations

from typing import Final

from confluent_kafka import Consumer, KafkaException, Message, TopicPartition

from tokenfeed.documents import CONTENT_TYPE_HEADER, SEAL
from tokenfeed.kafka import connection, read_range, reader, unreachable
from tokenfeed.settings import Settings

_TIMEOUT_SECONDS: Final = 30.0


def sealed_partitions(settings: Settings, topic: str) -> set[int]:
    """Partitions of a raw topic whose last record is a seal.

    Raises:
        BrokerUnreachable: no broker answers.
    """
    options = connection(settings)
    consumer = reader(options)
    try:
        return {number for number in range(settings.stream_count) if _is_sealed(consumer, topic, number)}
    except KafkaException as error:
        raise unreachable(options, error) from None
    finally:
        consumer.close()


def _is_sealed(consumer: Consumer, topic: str, partition: int) -> bool:
    low, high = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=_TIMEOUT_SECONDS)
    last: Message | None = None
    # The high watermark may fall short of the end (see tokenfeed.kafka), and everything below it may have expired.
    for message in read_range(consumer, topic, partition, max(low, high - 1), timeout=_TIMEOUT_SECONDS):
        last = message
    return last is not None and dict(last.headers() or ()).get(CONTENT_TYPE_HEADER) == SEAL.encode()
