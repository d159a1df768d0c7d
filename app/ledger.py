"""The ledger on Kafka: reading its tail on assignment, appending to it, and knowing who was first."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from app.emitter import Emitter, Outgoing
from tokenfeed.errors import LedgerError
from tokenfeed.kafka import end_offset, reader, watermarks
from tokenfeed.ledger import Entry, Ledger, encode
from tokenfeed.ledgers import read_entries, read_ledger

T = TypeVar("T")


class LedgerLog:
    """Reads and appends ledger entries for the streams of one worker.

    Args:
        topic: the ledger topic.
        plan: plan id that every entry carries.
        options: librdkafka's connection options.
        emitter: sends the entries.
    """

    def __init__(self, topic: str, plan: str, options: dict[str, Any], emitter: Emitter) -> None:
        self._topic = topic
        self._plan = plan
        self._emitter = emitter
        self._consumer = reader(options)
        # One thread: the consumer has one assignment at a time.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="ledger")

    async def open(self, streams: Iterable[int]) -> dict[int, Ledger]:
        """What the ledger says of each stream, read up to its end as it is now."""
        return await self._run(lambda: {stream: self._open(stream) for stream in sorted(streams)})

    async def check_present(self, streams: int, batches_topic: str, slots: int) -> None:
        """Make sure that a feed which has batches has a ledger, and the other way round.

        Raises:
            LedgerError: without a ledger numbering would start again, and every document would be emitted twice; without
                the batches that the ledger speaks of, readers would wait for them for ever.
        """
        await self._run(lambda: self._check_present(streams, batches_topic, slots))

    def _check_present(self, streams: int, batches_topic: str, slots: int) -> None:
        # What is acknowledged in the ledger was in the batches before, and what is in the batches was cut before.
        emitted = any(_has_emitted(self._open(stream)) for stream in range(streams))
        batches = self._any(batches_topic, slots)
        if emitted and not batches:
            raise LedgerError(
                f"topic {batches_topic} has never held a batch though topic {self._topic} says so: it was made anew. "
                "Use new topics for a new feed"
            )
        if batches and not self._any(self._topic, streams):
            raise LedgerError(
                f"topic {self._topic} is empty though topic {batches_topic} holds batches: the ledger was lost. Restore "
                "it, or use new topics for a new feed"
            )

    async def bounds(self, topic: str, partition: int, known: int) -> tuple[int, int]:
        """First offset of a partition of any topic, and its end, or a lower bound of that of at least `known`."""
        return await self._run(lambda: self._bounds(topic, partition, known))

    def _bounds(self, topic: str, partition: int, known: int) -> tuple[int, int]:
        first, end = watermarks(self._consumer, topic, partition)
        return first, end if end >= known else end_offset(self._consumer, topic, partition)

    async def append(self, ledger: Ledger, entry: Entry) -> Ledger:
        """Append an entry; return the ledger read up to and including it, whoever else has written meanwhile.

        Raises:
            DeliveryError: the entry was not acknowledged.
        """
        (offset,) = await self._emitter.send([Outgoing(self._topic, ledger.stream, encode(entry))])
        if offset == ledger.read_to:
            return ledger.apply(offset, entry)
        return await self._run(lambda: self._catch_up(ledger, offset + 1))

    def _catch_up(self, ledger: Ledger, end: int) -> Ledger:
        return ledger.extend(read_entries(self._consumer, self._topic, ledger.stream, ledger.read_to, end))

    def close(self) -> None:
        """Release the consumer."""
        self._thread.submit(self._consumer.close)
        self._thread.shutdown(wait=False)

    async def _run(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, call)

    def _any(self, topic: str, partitions: int) -> bool:
        return any(end_offset(self._consumer, topic, partition) for partition in range(partitions))

    def _open(self, stream: int) -> Ledger:
        return read_ledger(self._consumer, self._topic, stream, self._plan)


def _has_emitted(ledger: Ledger) -> bool:
    return not ledger.is_open and ledger.next_number > 0
