"""Sending raw records and knowing that every one of them arrived."""

from __future__ import annotations

import time
from typing import Final

from confluent_kafka import KafkaError, Message, Producer

from tokenfeed.documents import CONTENT_TYPE_HEADER, SEAL
from tokenfeed.errors import DeliveryError, TopicError
from tokenfeed.ingest.records import Record
from tokenfeed.ingest.seal import sealed_partitions
from tokenfeed.producing import producer_options
from tokenfeed.settings import Settings
from tokenfeed.topics import check_topics

_QUEUE_WAIT_SECONDS: Final = 0.1
_LINGER_MS: Final = 5.0


class Ingestor:
    """Sends records to one raw topic: record i goes to partition i mod P.

    Args:
        settings: connection, topics and limits.
        topic: which raw topic.
        rate: documents a second at most, None for no limit.

    Raises:
        TopicError: the topic is missing, or has another partition count than the settings.
        BrokerUnreachable: no broker answers.
    """

    def __init__(self, settings: Settings, topic: str, rate: float | None = None) -> None:
        check_topics(settings, {topic})
        self._topic = topic
        self._partitions = settings.stream_count
        self._sealed = sealed_partitions(settings, topic)
        self._rate = rate
        self._started = time.monotonic()
        self._failed: KafkaError | None = None
        self._producer = Producer(producer_options(settings, _LINGER_MS))
        self.records = self.documents = self.bytes = 0

    def send(self, record: Record) -> None:
        """Hand over one record; waits while the queue is full or the rate is reached.

        Raises:
            TopicError: a partition has been sealed: the feed takes no more documents.
            DeliveryError: an earlier record was not acknowledged.
        """
        if self._sealed:
            raise TopicError(
                f"the feed is sealed: the last record of {self._topic}/{min(self._sealed)} is a seal, and nothing behind "
                "one is ever read. Make new topics for a new feed"
            )
        self._pace()
        self._produce(self.records % self._partitions, record.value, record.content_type, record.key)
        self.records += 1
        self.documents += record.documents
        self.bytes += len(record.value)

    def seal(self) -> int:
        """End every partition that is not sealed yet; return how many that were.

        Seals stand behind all records sent before, and are sent only once these are acknowledged. Sealing that failed
        half-way can be repeated.

        Raises:
            DeliveryError: a record or a seal was not acknowledged.
        """
        self.flush()
        unsealed = [number for number in range(self._partitions) if number not in self._sealed]
        for partition in unsealed:
            self._produce(partition, None, SEAL, None)
        self.flush()
        return len(unsealed)

    def flush(self) -> None:
        """Wait for every acknowledgement.

        Raises:
            DeliveryError: a record was not acknowledged within the delivery timeout.
        """
        self._producer.flush()
        self._check()

    def _produce(self, partition: int, value: bytes | None, content_type: str, key: bytes | None) -> None:
        while True:
            self._check()
            try:
                self._producer.produce(
                    self._topic,
                    value,
                    key=key,
                    partition=partition,
                    headers=[(CONTENT_TYPE_HEADER, content_type.encode())],
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
        while self._rate is not None:
            ahead = self.documents / self._rate - (time.monotonic() - self._started)
            if ahead <= 0:
                return
            self._producer.poll(ahead)
