"""Reading raw records in runs, with librdkafka.

Faust's own consumer hands over one event a record, at 60 microseconds each. A run, all that one fetch brought of a
partition, is one event. librdkafka fetches ahead from its own threads, and never goes on elsewhere by itself when an
offset is gone. Group membership, and with it which partitions are read, stays with Faust.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from confluent_kafka import KafkaError, Message, TopicPartition
from faust.types import TP

from tokenfeed.documents import RawRecord, content_type_of, held_bytes
from tokenfeed.errors import LedgerError, TopicError
from tokenfeed.kafka import is_passing, reader, watermarks

T = TypeVar("T")

_RECORDS_A_FETCH: Final = 1000
# A fetch that waits for records holds back a change of partitions for this long.
_WAIT_SECONDS: Final = 0.1
# librdkafka's own second is longer than its queue lasts.
_QUEUE_BACKOFF_MS: Final = 5
# How long the broker holds back an empty answer.
_FETCH_WAIT_MS: Final = 50


@dataclass(frozen=True, slots=True)
class Run:
    """Consecutive records of one raw partition.

    Attributes:
        tp: the partition.
        generation: that of the assignment under which it was read.
        start: raw offset that the run before ended at; records between it and the first one do not exist.
        records: in order of their offsets, at least one.
        bytes: memory that they take.
    """

    tp: TP
    generation: int
    start: int
    records: Sequence[RawRecord]
    bytes: int

    @property
    def end(self) -> int:
        """Raw offset behind the last record."""
        return self.records[-1].offset + 1


class RawFetcher:
    """Fetches the raw partitions of one worker.

    Args:
        options: librdkafka's connection options.
        sources: raw topics in the plan's order.
        prefetch_bytes: bytes that librdkafka may hold ready.
    """

    def __init__(self, options: dict[str, Any], sources: Sequence[str], prefetch_bytes: int) -> None:
        self._sources = {topic: index for index, topic in enumerate(sources)}
        self._generation = 0
        self._next: dict[TP, int] = {}
        self._consumer = reader(
            options,
            **{
                "enable.partition.eof": False,
                "queued.max.messages.kbytes": max(1, prefetch_bytes // 1024),
                "fetch.queue.backoff.ms": _QUEUE_BACKOFF_MS,
                "fetch.wait.max.ms": _FETCH_WAIT_MS,
            },
        )
        # One thread owns the consumer.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="raw")

    async def assign(self, positions: Mapping[TP, int], generation: int) -> None:
        """Read these partitions, and no others, from these offsets on."""
        await self._run(lambda: self._assign(dict(positions), generation))

    def unassign(self) -> None:
        """Read nothing any more, soon."""
        self._thread.submit(self._assign, {}, self._generation)

    async def fetch(self) -> list[Run]:
        """The runs that have come, at most one a partition; none if no record comes for a moment.

        Raises:
            LedgerError: retention has removed records that were to be read next.
            TopicError: a partition cannot be read.
        """
        return await self._run(self._fetch)

    def close(self) -> None:
        """Release the consumer."""
        self._thread.submit(self._consumer.close)
        self._thread.shutdown(wait=False)

    async def _run(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, call)

    def _assign(self, positions: dict[TP, int], generation: int) -> None:
        self._generation = generation
        self._next = positions
        self._consumer.assign([TopicPartition(tp.topic, tp.partition, offset) for tp, offset in positions.items()])

    def _fetch(self) -> list[Run]:
        if not self._next:
            time.sleep(_WAIT_SECONDS)
            return []
        first = self._consumer.poll(_WAIT_SECONDS)
        if first is None:
            return []
        messages: dict[tuple[Any, Any], list[Message]] = defaultdict(list)
        for message in (first, *self._consumer.consume(_RECORDS_A_FETCH - 1, 0)):
            if message.error() is None:
                messages[message.topic(), message.partition()].append(message)
            else:
                self._check(message)
        return [self._made_run(TP(topic, partition), found) for (topic, partition), found in messages.items()]

    def _made_run(self, tp: TP, messages: list[Message]) -> Run:
        source = self._sources[tp.topic]
        records = [
            RawRecord(source, message.offset() or 0, message.value(), content_type_of(message.headers()))
            for message in messages
        ]
        run = Run(tp, self._generation, self._next[tp], records, held_bytes(records))
        self._next[tp] = run.end
        return run

    def _check(self, message: Message) -> None:
        error = message.error()
        if error is None or is_passing(error):
            return
        topic, partition = message.topic() or "", message.partition() or 0
        if error.code() not in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
            raise TopicError(f"{topic}/{partition}: {error.str()}")
        needed = self._next[TP(topic, partition)]
        first, end = watermarks(self._consumer, topic, partition)
        if first > needed:
            raise passed_by_retention(topic, partition, needed, first)
        raise made_anew(topic, partition, needed, end)


def passed_by_retention(topic: str, partition: int, needed: int, first: int) -> LedgerError:
    """The error for records that are gone before they were processed."""
    return LedgerError(
        f"{topic}/{partition}: offsets {needed} to {first - 1} were removed by retention before they were "
        "processed; raise TOKENFEED_RETENTION_HOURS, and start a new feed to go on without them"
    )


def made_anew(topic: str, partition: int, needed: int, end: int) -> LedgerError:
    """The error for a raw topic that ends before what was read of it."""
    return LedgerError(
        f"{topic}/{partition} ends at offset {end}, but it was read up to {needed}: the topic was made anew. "
        "Use new topics for a new feed, or restore it"
    )
