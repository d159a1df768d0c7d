"""What one worker does for the feed: its streams, and what they share."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, Protocol

from faust.types import TP

from app.emitter import Emitter, Outgoing
from app.fetcher import RawFetcher, Run, made_anew, passed_by_retention
from app.ledger import LedgerLog
from app.plan import agree
from app.reporting import Committer, Progress
from app.stream import Outbox, Stream
from tokenfeed.changes import beginnings, read_ledgers
from tokenfeed.content import WindowContent, window_content
from tokenfeed.documents import RECORD_BYTES, RawRecord, held_bytes
from tokenfeed.editions import Beginning, Edition
from tokenfeed.errors import BrokerUnreachable, LedgerError, TopicError
from tokenfeed.kafka import connection
from tokenfeed.ledger import Cut, Done, Entry, Ledger
from tokenfeed.plan import Plan
from tokenfeed.planning import at_edition, edition_of, outdated, plan_of, read_editions, tokenizer_of
from tokenfeed.producing import producer_options
from tokenfeed.settings import Settings
from tokenfeed.tokenizing import Tokenizer
from tokenfeed.topics import check_not_made_anew, check_topics
from tokenfeed.torchless import hide_torch

log = logging.getLogger(__name__)

_OPENING_SHARE: Final = 0.8
_WATCH_SECONDS: Final = 30.0
_PLAN_SECONDS: Final = 5.0
_OBJECTS_A_COLLECTION: Final = 50_000
_SWITCH_SECONDS: Final = 0.0005  # Python's own 5 ms is how long the event loop waits for a thread that makes content
_STOPPED_SECONDS: Final = 0.1
_SMALL_BYTES: Final = 16 * 2**10
_PREFETCH_SHARE: Final = 8  # of the memory budget, for what is fetched ahead


class RawConsumer(Committer, Protocol):
    """The part of Faust's consumer that is used."""

    def assignment(self) -> set[TP]:
        """Partitions owned."""

    async def earliest_offsets(self, *partitions: TP) -> Mapping[TP, int]:
        """First offset that the broker still has."""


class Feed:
    """The streams of one worker, and the tokenizer, producer and ledger that they share.

    Args:
        settings: the worker's settings.
        crash: ends the process with exit code 1; called for a fault that no stream can get over.
    """

    def __init__(self, settings: Settings, crash: Callable[[BaseException], Awaitable[None]]) -> None:
        self._settings = settings
        self._crash = crash
        self._streams: dict[int, Stream] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._generation = 0
        self._stopped = False
        self._retired = False
        self._opening = asyncio.Lock()
        self._released = asyncio.Event()
        self._on_the_way_bytes = 0
        self._building = 0
        self._progress = Progress(settings.raw_topics)
        self._read_to: dict[TP, int] = {}
        self._threads = ThreadPoolExecutor(settings.executor_threads, thread_name_prefix="content")

    async def start(self) -> None:
        """Load the tokenizer, check the topics, agree on the plan.

        Raises:
            TokenfeedError: anything that must be put right before this worker can run.
        """
        gc.disable()  # what is loaded comes in hundreds of thousands of objects, and stays
        options = connection(self._settings)
        self._emitter = Emitter(await asyncio.to_thread(producer_options, self._settings))
        await asyncio.to_thread(self._check_topics)
        self._tokenizer = await asyncio.to_thread(_load_tokenizer, self._settings)
        self._plan = plan_of(self._settings, self._tokenizer)
        edition, found = await agree(self._plan, self._settings.plan_topic, options, self._emitter)
        names = at_edition(self._settings, edition)
        self._raw_ids = edition.raw_ids
        self._beginnings = await asyncio.to_thread(self._join, edition, found)
        self._fetcher = RawFetcher(options, self._plan.sources, self._settings.memory_budget_bytes // _PREFETCH_SHARE)
        self._outbox = Outbox(self._plan, names.batches_topic, names.dead_topic, names.max_message_bytes)
        self._ledger = LedgerLog(names.ledger_topic, self._plan.id, options, self._emitter)
        await self._ledger.check_present(self._plan.streams, names.batches_topic, self._plan.slots)
        log.info("plan %s, tokenizer engine %s", self._plan.id, self._tokenizer.engine)
        # A full collection would walk all that stands by now, and block the event loop for 150 ms. Records and documents
        # come in thousands and hold no cycles.
        gc.collect()
        gc.freeze()
        gc.set_threshold(_OBJECTS_A_COLLECTION)
        gc.enable()
        sys.setswitchinterval(_SWITCH_SECONDS)

    def _check_topics(self) -> None:
        """Before anything is written: a plan that does not fit the topics would stand in the plan topic for ever."""
        check_topics(self._settings, {*self._settings.raw_topics, self._settings.plan_topic})
        if not read_editions(connection(self._settings), self._settings.plan_topic):
            check_topics(self._settings)

    def _join(self, edition: Edition, found: list[Edition]) -> list[Beginning]:
        """Make sure that the edition can be worked on; return where its streams begin."""
        self._retired = edition != found[-1]
        if self._retired and all(ledger.is_sealed for ledger in read_ledgers(self._settings, edition)):
            raise outdated(edition.plan, found[edition.number].plan)
        check_not_made_anew(connection(self._settings), edition.raw_ids)
        begins = beginnings(self._settings, edition, found)
        check_topics(at_edition(self._settings, edition))
        return begins

    def stop(self) -> None:
        """Drop the open windows and stop sending. Whatever is lost here is derived again from the ledger."""
        self._stopped = True
        self.close_streams()
        self._threads.shutdown(wait=False, cancel_futures=True)
        if hasattr(self, "_fetcher"):
            self._fetcher.close()
        if hasattr(self, "_ledger"):
            self._ledger.close()
        if hasattr(self, "_emitter"):
            self._emitter.close()

    # Assignment

    async def open_streams(self, consumer: RawConsumer) -> dict[TP, int]:
        """Open the streams of all assigned partitions; return the raw offset that each partition must be read from.

        Raises:
            LedgerError, TopicError: the ledger and the raw topic contradict each other.
        """
        if self._stopped:
            return {}  # Faust seeks once more while it stops
        assigned: set[int] = set()
        try:
            # Faust gives a seek the request timeout, and a worker whose seek took longer idles for ever without a word.
            async with asyncio.timeout(_OPENING_SHARE * self._settings.request_timeout_seconds), self._opening:
                assigned = {tp.partition for tp in consumer.assignment() if tp.topic in self._plan.sources}
                self._check_count(assigned)
                self._on_the_way_bytes = 0
                await self._open(consumer, assigned - self._streams.keys())
        except TimeoutError:
            error = BrokerUnreachable(
                f"the ledgers of {len(assigned)} streams could not be read in time; raise "
                f"TOKENFEED_REQUEST_TIMEOUT_SECONDS={self._settings.request_timeout_seconds:g}, or add workers"
            )
            await self._crash(error)
            raise error from None
        except Exception as error:
            await self._crash(error)
            raise
        return {
            TP(source, stream): offset
            for stream in assigned & self._streams.keys()
            for source, offset in zip(self._plan.sources, self._streams[stream].expected, strict=True)
        }

    def _check_count(self, assigned: set[int]) -> None:
        if extra := {partition for partition in assigned if partition >= self._plan.streams}:
            raise TopicError(
                f"{', '.join(self._plan.sources)}: there is a partition {min(extra)} now, but the feed's plan has "
                f"{self._plan.streams} streams; a topic's count cannot change under a feed. Use new topics for a new one"
            )

    async def _open(self, consumer: RawConsumer, streams: set[int]) -> None:
        if not streams:
            return
        generation = self._generation
        ledgers = await self._ledger.open(streams)
        partitions = [TP(source, stream) for stream in streams for source in self._plan.sources]
        earliest = await consumer.earliest_offsets(*partitions)
        if self._generation != generation:
            return  # revoked meanwhile: what was read may be out of date by the time they come back
        opened: dict[int, Stream] = {}
        for stream, ledger in ledgers.items():
            opened[stream] = self._stream(stream, ledger, earliest)
        await self._check_raw(opened)
        if self._generation != generation:
            return
        if not self._streams:
            self._spawn(self._progress.commit(consumer))
            self._spawn(self._progress.report())
            self._spawn(self._watch_raw())
            self._spawn(self._watch_plan())
        self._streams |= opened
        for each in opened.values():
            self._spawn(each.run())

    def _stream(self, number: int, ledger: Ledger, earliest: Mapping[TP, int]) -> Stream:
        beginning = self._beginnings[number]
        begin = tuple(
            earliest[TP(source, number)] if offset is None else offset
            for source, offset in zip(self._plan.sources, beginning.offsets, strict=True)
        )
        stream = Stream(self._settings, self._plan, ledger, begin, beginning.sealed, self)
        if self._retired:
            stream.retire()
        return stream

    async def _check_raw(self, streams: Mapping[int, Stream]) -> None:
        """Make sure that the raw topics still have what the streams need next, and are those that were read so far.

        Raises:
            LedgerError: retention has removed records that were not processed, or a topic was made anew.
        """
        for number, stream in streams.items():
            for source, topic in enumerate(self._plan.sources):
                read_to = stream.expected[source]
                first, end = await self._ledger.bounds(topic, number, read_to)
                if end < read_to:
                    raise made_anew(topic, number, read_to, end)
                if first > stream.expected[source]:
                    raise passed_by_retention(topic, number, stream.expected[source], first)

    def close_streams(self) -> None:
        """Drop every stream with its open window."""
        self._generation += 1
        if hasattr(self, "_fetcher") and not self._stopped:
            self._fetcher.unassign()
        for task in self._tasks:
            task.cancel()
        self._tasks.clear()
        self._streams.clear()
        self._progress.forget_offsets()

    # Records

    async def seek(self, positions: Mapping[TP, int]) -> None:
        """Fetch from these offsets on."""
        self._read_to = dict(positions)
        if not self._stopped:
            await self._fetcher.assign(positions, self._generation)

    async def fetch(self) -> list[Run]:
        """Runs of raw records for `accept`, in this order.

        Raises:
            LedgerError, TopicError: see `RawFetcher.fetch`. The worker ends.
        """
        if self._stopped:  # Faust asks until it has stopped its consumer
            await asyncio.sleep(_STOPPED_SECONDS)
            return []
        try:
            runs = await self._fetcher.fetch()
        except Exception as error:
            await self._crash(error)
            raise
        self._on_the_way_bytes += sum(run.bytes for run in runs)
        return runs

    def accept(self, run: Run) -> None:
        """Hand a run to its stream; those fetched before the last change of partitions are ignored.

        Raises:
            LedgerError: the run before it never came here. Offsets may have gaps, what was fetched may not.
        """
        self._on_the_way_bytes = max(0, self._on_the_way_bytes - run.bytes)
        if run.generation != self._generation:
            return
        read_to = self._read_to[run.tp]
        if run.start > read_to:
            raise LedgerError(
                f"{run.tp.topic}/{run.tp.partition}: offsets {read_to} to {run.start - 1} were fetched, but "
                "lost inside this worker; a restart reads them again"
            )
        self._read_to[run.tp] = max(read_to, run.end)
        self._streams[run.tp.partition].accept(run.records)

    def has_room(self) -> bool:
        """Whether more may be fetched within the memory budget; a window that is cut already may be larger than that."""
        held = sum(stream.held_bytes for stream in self._streams.values() if not stream.waits)
        room = self._settings.memory_budget_bytes - self._settings.memory_budget_bytes // _PREFETCH_SHARE
        return self._on_the_way_bytes + held < room

    async def wait_for_room(self, seconds: float) -> None:
        """Wait until bytes are released, at most `seconds`; make a stream give some back if none is about to."""
        self._released.clear()
        for stream in self._streams.values():
            if self.must_shed(stream):
                stream.wake()
        try:
            await asyncio.wait_for(self._released.wait(), seconds)
        except TimeoutError:
            return

    # What streams need

    async def append(self, ledger: Ledger, entry: Entry) -> Ledger:
        """Append to the ledger and read back."""
        return await self._ledger.append(ledger, entry)

    async def build(self, cut: Cut, records: list[RawRecord]) -> tuple[WindowContent, list[Outgoing]]:
        """The content of a window and the messages that carry it, off the event loop unless it is next to nothing."""
        few = len(records) * RECORD_BYTES <= _SMALL_BYTES
        if few and held_bytes(records) <= _SMALL_BYTES and not self._building and self._tokenizer.ready:
            return self._build(cut, records)  # done in the time that a thread takes to begin and to be waited for
        self._building += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, self._build, cut, records)
        finally:
            self._building -= 1

    def _build(self, cut: Cut, records: list[RawRecord]) -> tuple[WindowContent, list[Outgoing]]:
        content = window_content(self._plan, self._tokenizer, cut, records)
        return content, list(self._outbox.messages(cut, content))

    async def emit(self, messages: list[Outgoing]) -> None:
        """Send and await every acknowledgement."""
        await self._emitter.send(messages)

    def window_done(self, stream: int, needed: tuple[int, ...], done: Done) -> None:
        """Note the safe offsets for the next commit, and the figures for the next report."""
        self._progress.window_done(stream, needed, done)

    def must_shed(self, stream: Stream) -> bool:
        """Whether the budget is used up by open windows alone and this stream holds the most of it."""
        streams = self._streams.values()
        if self.has_room() or any(other.busy for other in streams):
            return False
        return stream.waiting_bytes == max(other.waiting_bytes for other in streams if not other.waits)

    def released(self) -> None:
        """Bytes have been given back."""
        self._released.set()

    # Tasks

    def _spawn(self, work: Any) -> None:
        task: asyncio.Task[None] = asyncio.create_task(self._guard(work))
        self._tasks.add(task)

    async def _guard(self, work: Awaitable[None]) -> None:
        """A fault in a task ends the process; what it had not recorded as done is emitted again after a restart."""
        try:
            await work
        except Exception as error:
            log.exception("a stream failed")
            await self._crash(error)

    async def _watch_raw(self) -> None:
        """Check the raw topics now and then: an idle stream would not notice."""
        while True:
            await asyncio.sleep(_WATCH_SECONDS)
            try:
                await asyncio.to_thread(check_not_made_anew, connection(self._settings), self._raw_ids)
                await self._check_raw(dict(self._streams))
            except BrokerUnreachable as error:
                log.warning("%s", error)

    async def _watch_plan(self) -> None:
        """End the streams once the feed is to go on under another plan, and this process once all streams have ended.

        Were it to stay, it would hold partitions that workers of the next plan need.
        """
        seen = 0
        while True:
            await asyncio.sleep(_PLAN_SECONDS)
            try:
                _, end = await self._ledger.bounds(self._settings.plan_topic, 0, seen)
                if end == seen and not self._retired:
                    continue
                seen = end
                following, ended = await asyncio.to_thread(self._successor)
            except BrokerUnreachable as error:
                log.warning("%s", error)
                continue
            if following is None:
                continue
            if not self._retired:
                log.warning("the feed goes on under plan %s: the streams end under %s", following.id, self._plan.id)
            self._retired = True
            for stream in self._streams.values():
                stream.retire()
            if ended:
                log.warning("%s", outdated(self._plan, following))
                signal.raise_signal(signal.SIGTERM)  # all is done here: to end in order is to end as when told to
                return

    def _successor(self) -> tuple[Plan | None, bool]:
        """The plan that follows ours, and whether all streams have ended under ours."""
        found = read_editions(connection(self._settings), self._settings.plan_topic)
        edition = edition_of(self._plan, found, self._settings.plan_topic)
        if edition == found[-1]:
            return None, False
        return found[edition.number].plan, all(ledger.is_sealed for ledger in read_ledgers(self._settings, edition))


def _load_tokenizer(settings: Settings) -> Tokenizer:
    hide_torch()
    return tokenizer_of(settings)
