"""Finding out which raw partitions are sealed."""

from __future__ import annotations

from confluent_kafka import Consumer, KafkaException

from tokenfeed.documents import CONTENT_TYPE_HEADER, SEAL
from tokenfeed.kafka import connection, end_offset, read_range, reader, unreachable
from tokenfeed.settings import Settings


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
    end = end_offset(consumer, topic, partition)
    last = list(read_range(consumer, topic, partition, end - 1)) if end else []
    return bool(last) and dict(last[-1].headers() or ()).get(CONTENT_TYPE_HEADER) == SEAL.encode()
