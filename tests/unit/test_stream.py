"""A stream's order of work: nothing is emitted before its cut stands, and what is emitted is what the standing cut says."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from app.emitter import Outgoing
from app.stream import Built, Outbox, Stream
from tests.feeds import ByteTokenizer, make_cut, make_plan
from tokenfeed.content import WindowContent, window_content
from tokenfeed.documents import SEAL, RawRecord
from tokenfeed.ledger import Cut, Done, Entry, Ledger
from tokenfeed.plan import Plan
from tokenfeed.settings import Settings

RECORDS = [RawRecord(0, offset, b"some text %d" % offset) for offset in range(8)]


class Worker:
    """A worker of one stream whose ledger and topic are lists. `rival` ends what another worker cuts first."""

    def __init__(self, plan: Plan, rival: int | None = None, rival_is_done: bool = False) -> None:
        self.plan, self.rival, self.rival_is_done = plan, rival, rival_is_done
        self.may_append = asyncio.Event()
        self.may_append.set()
        self.built: list[Cut] = []
        self.emitted: list[bytes | None] = []
        self.entries: list[Entry] = []

    async def append(self, ledger: Ledger, entry: Entry) -> Ledger:
        await self.may_append.wait()
        entries: list[Entry] = [entry]
        if isinstance(entry, Cut) and self.rival is not None:
            ((start, _),) = entry.ranges
            first = replace(entry, ranges=((start, self.rival),))  # by another worker of the same name
            entries = [first, *([self.content(first).done(first)] if self.rival_is_done else []), entry]
            self.rival = None
        self.entries += entries
        for one in entries:
            ledger = ledger.apply(ledger.read_to, one)
        return ledger

    def content(self, cut: Cut) -> WindowContent:
        ((start, end),) = cut.ranges
        return window_content(self.plan, ByteTokenizer(), cut, RECORDS[start:end])

    async def build(self, cut: Cut, records: list[RawRecord]) -> Built:
        self.built.append(cut)
        ((start, end),) = cut.ranges
        assert records == RECORDS[start:end]
        content = self.content(cut)
        return content, list(Outbox(self.plan, "batches", "dead", 10**6).messages(cut, content))

    async def emit(self, messages: list[Outgoing]) -> None:
        self.emitted += [message.value for message in messages]

    def window_done(self, stream: int, needed: tuple[int, ...], done: Done) -> None: ...

    def must_shed(self, stream: Stream) -> bool:
        return False

    def released(self) -> None: ...


def stream_of(worker: Worker) -> Stream:
    settings = Settings(window_documents=4, raw_partitions=2)
    return Stream(settings, worker.plan, Ledger(1, worker.plan.id), (0,), (False,), worker)


async def run_to_the_end(worker: Worker) -> None:
    stream = stream_of(worker)
    stream.accept([*RECORDS, RawRecord(0, len(RECORDS), b"", SEAL)])
    await asyncio.wait_for(stream.run(), 5)


def emitted_by(entries: list[Entry], worker: Worker) -> list[bytes | None]:
    """The messages of the windows that a ledger holds."""
    ledger, messages = Ledger(1, worker.plan.id), []
    for entry in entries:
        was_open, ledger = ledger.is_open, ledger.apply(ledger.read_to, entry)
        if was_open and not ledger.is_open and ledger.cut is not None:
            outbox = Outbox(worker.plan, "batches", "dead", 10**6)
            messages += [message.value for message in outbox.messages(ledger.cut, worker.content(ledger.cut))]
    return messages


def test_a_window_is_built_while_its_cut_is_on_the_way_but_not_emitted() -> None:
    async def check() -> None:
        worker = Worker(make_plan())
        worker.may_append.clear()
        running = asyncio.create_task(run_to_the_end(worker))
        await asyncio.sleep(0.01)
        assert [cut.ranges for cut in worker.built] == [((0, 4),)]
        assert worker.emitted == []
        worker.may_append.set()
        await running
        assert worker.emitted == emitted_by(worker.entries, worker)
        assert [cut.ranges for cut in worker.built] == [((0, 4),), ((4, 8),), ((8, 9),)]

    asyncio.run(check())


def test_a_window_that_waits_for_its_records_is_not_busy_so_that_others_make_room() -> None:
    async def check() -> None:
        worker = Worker(make_plan())
        cut = make_cut(worker.plan, RECORDS[:4])
        stream = Stream(
            Settings(window_documents=4, raw_partitions=2),
            worker.plan,
            Ledger(1, worker.plan.id).apply(0, cut),
            (0,),
            (False,),
            worker,
        )
        running = asyncio.create_task(stream.run())
        stream.accept(RECORDS[:2])
        await asyncio.sleep(0.01)
        assert stream.waits
        assert not stream.busy
        stream.accept([*RECORDS[2:], RawRecord(0, len(RECORDS), b"", SEAL)])
        await asyncio.wait_for(running, 5)
        assert not stream.waits
        assert not stream.busy
        assert worker.emitted

    asyncio.run(check())


@pytest.mark.parametrize("rival", [2, 3])
def test_what_was_built_for_a_cut_that_lost_is_not_emitted(rival: int) -> None:
    async def check() -> None:
        worker = Worker(make_plan(), rival=rival)
        await run_to_the_end(worker)
        assert [cut.ranges[0] for cut in worker.built[:3]] == [(0, 4), (0, rival), (rival, rival + 4)]
        assert worker.emitted == emitted_by(worker.entries, worker)

    asyncio.run(check())


def test_a_window_that_another_worker_has_done_is_not_emitted_again() -> None:
    async def check() -> None:
        worker = Worker(make_plan(), rival=4, rival_is_done=True)
        await run_to_the_end(worker)
        by_rival = emitted_by(worker.entries[:2], worker)
        assert by_rival + worker.emitted == emitted_by(worker.entries, worker)

    asyncio.run(check())
