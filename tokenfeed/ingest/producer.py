"""Sending raw records and knowing that every one of them arrived."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Final

from confluent_kafka import KafkaError, Message, Producer

from tokenfeed.documents import CONTENT_TYPE_HEADER, SEAL
from tokenfeed.errors import DeliveryError, TopicError
from tokenfeed.ingest.records import Record
from tokenfeed.kafka import connection, end_offset, read_range, reader
from tokenfeed.producing import producer_options
from tokenfeed.settings import Settings

_QUEUE_WAIT_SECONDS: Final = 0.1


@dataclass(slots=True)
class IngestReport:
    """What an ingest has done."""

    documents: int = 0
    records: int = 0
    bytes: int = 0
    oversized: int = 0
    sealed: int = 0


class Ingestor:
    """Sends records to one raw topic: record i goes to partition i mod P.

    Args:
        settings: connection, topics and limits.
        topic: which raw topic.
        rate: documents a second at most, None for no limit.

    Raises:
        TopicError: the topic is missing, or a partition of it has been sealed.
    """

    def __init__(self, settings: Settings, topic: str, rate: float | None = None) -> None:
        self._settings = settings
        self._topic = topic
        self._rate = rate
        self._started = time.monotonic()
        self._failed: KafkaError | None = None
        self.report = IngestReport()
        self._refuse_sealed()
        self._producer = Producer(producer_options(settings))

    def send(self, record: Record) -> None:
        """Hand over one record; waits while the queue is full or the rate is reached.

        Raises:
            DeliveryError: an earlier record was not acknowledged.
        """
        self._pace()
        headers = [(CONTENT_TYPE_HEADER, record.content_type.encode())]
        self._produce(self.report.records % self._settings.stream_count, record.value, headers, record.key)
        self.report.records += 1
        self.report.documents += record.documents
        self.report.bytes += len(record.value)

    def seal(self) -> None:
        """End every partition: behind all records sent before, and only once they are acknowledged."""
        self.flush()
        for partition in range(self._settings.stream_count):
            self._produce(partition, None, [(CONTENT_TYPE_HEADER, SEAL.encode())], None)
        self.flush()
        self.report.sealed = self._settings.stream_count

    def flush(self) -> None:
        """Wait for every acknowledgement.

        Raises:
            DeliveryError: a record was not acknowledged within the delivery timeout.
        """
        self._producer.flush()
        self._check()

    def _produce(self, partition: int, value: bytes | None, headers: list[tuple[str, bytes]], key: bytes | None) -> None:
        while True:
            self._check()
            try:
                self._producer.produce(
                    self._topic,
                    value,
                    key=key,
                    partition=partition,
                    headers=list(headers),
                    on_delivery=self._delivered,
                )
            except BufferError:
                self._producer.poll(_QUEUE_WAIT_SECONDS)
            else:
                self._producer.poll(0)
                return

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self._failed = error

    def _check(self) -> None:
        if self._failed is not None:
            raise DeliveryError(
                f"topic {self._topic}: a record was not acknowledged: {self._failed.str()}; what was sent before may be in "
                "the topic, so a second run would double it"
            )

    def _pace(self) -> None:
        if self._rate is not None:
            ahead = self.report.documents / self._rate - (time.monotonic() - self._started)
            if ahead > 0:
                time.sleep(ahead)

    def _refuse_sealed(self) -> None:
        consumer = reader(connection(self._settings))
        try:
            for partition in range(self._settings.stream_count):
                end = end_offset(consumer, self._topic, partition)
                last = list(read_range(consumer, self._topic, partition, end - 1)) if end else []
                if last and dict(last[-1].headers() or ()).get(CONTENT_TYPE_HEADER) == SEAL.encode():
                    raise TopicError(
                        f"{self._topic}/{partition} is sealed at offset {end - 1}: nothing behind a seal is ever read. "
                        "Make new topics for a new feed"
                    )
        finally:
            consumer.close()
