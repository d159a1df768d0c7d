"""One stream of one worker: collect a window, cut it, emit it, record that it is done; again and again.

The invariant: nothing of a window is emitted before its cut stands in the ledger, and what is emitted is a pure
function of the cut that stands there first. So it does not matter how many workers believe that they own the stream.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from app.emitter import Outgoing
from tokenfeed import batches
from tokenfeed.content import WindowContent
from tokenfeed.documents import ERROR_HEADER, ORIGIN_HEADER, REASON_HEADER, TRUNCATED_HEADER, RawRecord
from tokenfeed.errors import LedgerError
from tokenfeed.ledger import Cut, CutReason, Done, Entry, Ledger
from tokenfeed.plan import Plan
from tokenfeed.settings import Settings
from tokenfeed.windows import StreamBuffer, WindowLimits

log = logging.getLogger(__name__)

Built = tuple[WindowContent, list[Outgoing]]

_LETTER_OVERHEAD: Final = 4096  # headers, key and framing of a dead letter; its value is cut to leave room for them


class Services(Protocol):
    """What a stream needs of its worker."""

    async def append(self, ledger: Ledger, entry: Entry) -> Ledger:
        """Append to the ledger and read back."""

    async def build(self, cut: Cut, records: list[RawRecord]) -> Built:
        """The content of a window and the messages that carry it."""

    async def emit(self, messages: list[Outgoing]) -> None:
        """Send and await every acknowledgement."""

    def window_done(self, stream: int, needed: tuple[int, ...], done: Done) -> None:
        """All of a window is acknowledged; no raw offset below `needed` will be asked for again."""

    def must_shed(self, stream: Stream) -> bool:
        """Whether the memory budget is used up and this stream should cut its open window now."""

    def released(self) -> None:
        """Bytes have been given back."""


@dataclass(frozen=True, slots=True)
class Outbox:
    """Topics and plan that turn a window's content into messages."""

    plan: Plan
    batches_topic: str
    dead_topic: str
    max_message_bytes: int

    def messages(self, cut: Cut, content: WindowContent) -> Iterator[Outgoing]:
        """Dead letters, then batches in order, then, if the stream ends here, its seal for every slot."""
        for letter in content.rejections:
            origin = f"{self.plan.sources[letter.source]}/{cut.stream}/{letter.offset}/{letter.index}"
            headers = [
                (ORIGIN_HEADER, origin.encode()),
                (REASON_HEADER, letter.reason.encode()),
                (ERROR_HEADER, letter.message.encode()),
                (batches.PLAN, cut.plan.encode()),
            ]
            value = letter.value[: max(0, self.max_message_bytes - _LETTER_OVERHEAD)]
            if len(value) < len(letter.value):
                headers.append((TRUNCATED_HEADER, b"%d" % len(letter.value)))
            yield Outgoing(self.dead_topic, cut.stream, value, headers, origin.encode())
        for batch in content.batches:
            slot = self.plan.slot(batch.stream, batch.number)
            yield Outgoing(self.batches_topic, slot, batches.encode(batch), batches.envelope(batch).headers())
        if cut.is_final:
            seal = batches.Envelope("seal", cut.plan, cut.stream, cut.first + len(content.batches))
            for slot in range(self.plan.slots):
                yield Outgoing(self.batches_topic, slot, None, seal.headers())


class Stream:
    """The worker's side of one stream, from assignment to revocation.

    Args:
        ledger: what the ledger says, read to its end.
        begin: raw offset of each source where the stream starts that has no cut yet.
        sealed: which sources have ended before.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        settings: Settings,
        plan: Plan,
        ledger: Ledger,
        begin: tuple[int, ...],
        sealed: tuple[bool, ...],
        services: Services,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        limits = WindowLimits(
            documents=settings.window_documents,
            bytes=settings.window_bytes,
            linger=settings.window_linger_seconds,
        )
        self.ledger = ledger
        self.busy = False  # about to give bytes back: from the proposal of a cut until its window is done
        self.waits = False  # for records of a cut that stands: it can neither make room nor go on without more of them
        self.busy_bytes = 0
        self._worker = settings.app_id
        self._services = services
        self._clock = clock
        self._buffer = StreamBuffer(limits, _starts(ledger, begin), plan.record_format, ledger.carry, sealed)
        self._arrived = asyncio.Event()
        self._retired = False

    @property
    def held_bytes(self) -> int:
        """Raw bytes held: those waiting and those of the window being emitted."""
        return self._buffer.buffered_bytes + self.busy_bytes

    @property
    def waiting_bytes(self) -> int:
        """Raw bytes of records not taken into a window yet."""
        return self._buffer.buffered_bytes

    @property
    def expected(self) -> tuple[int, ...]:
        """Raw offset, one a source, of the next record to read."""
        return self._buffer.expected

    def accept(self, records: Sequence[RawRecord]) -> None:
        """Take records of one source in order of their offsets; those emitted already or behind a seal are ignored."""
        if not self.ledger.is_sealed and self._buffer.extend(records, self._clock()):
            self._arrived.set()

    def wake(self) -> None:
        """Look again whether the window should be cut."""
        self._arrived.set()

    def retire(self) -> None:
        """End the stream with the window that is open: the feed goes on under another plan."""
        self._retired = True
        self.wake()

    async def run(self) -> None:
        """Emit windows until the stream has ended. Cancel it to drop the open window."""
        while not self.ledger.is_sealed:
            if self.ledger.is_open and self.ledger.cut is not None:
                await self._emit(self.ledger.cut)
            else:
                await self._next_window()
        log.info("stream %d has ended after %d batches", self.ledger.stream, self.ledger.next_number)

    async def _next_window(self) -> None:
        """Append a cut of the open window, and emit the window if it is that cut which holds.

        Its content is made meanwhile, for the case that it does.
        """
        reason = await self._due()
        self.busy = True
        proposal = Cut(
            plan=self.ledger.plan,
            stream=self.ledger.stream,
            window=self.ledger.next_window,
            ranges=self._buffer.ranges(),
            first=self.ledger.next_number,
            previous=self.ledger.cut_offset,
            reason=reason,
            worker=self._worker,
            carry=self.ledger.carry,
        )
        built = None
        if self._buffer.holds(proposal.ranges):
            building = self._services.build(proposal, self._buffer.open_records())
            _, built = await asyncio.gather(self._append(proposal), building)
        else:
            await self._append(proposal)
        if self.ledger.is_open and self.ledger.cut == proposal:
            await self._emit(proposal, built)
            return
        self.busy = False
        if self.ledger.cut != proposal:
            log.warning("stream %d window %d: another worker's cut stands first", self.ledger.stream, proposal.window)

    async def _append(self, entry: Entry, records: Sequence[RawRecord] = ()) -> None:
        """Append to the ledger and follow it, also where other workers have brought the stream further.

        `records` are those that were taken last: pieces of theirs may be carried on.
        """
        self.ledger = await self._services.append(self.ledger, entry)
        starts = _starts(self.ledger, self._buffer.starts)
        if any(new < old for new, old in zip(starts, self._buffer.starts, strict=True)):
            raise LedgerError(
                f"stream {self.ledger.stream}: window {self.ledger.next_window - 1} was cut from offsets {starts} on, but "
                f"this worker has read from {self._buffer.starts} on; the records before may be gone by now"
            )
        self._buffer.advance(starts, self.ledger.carry, records, self._clock())

    async def _due(self) -> CutReason:
        """Wait until the open window should be cut, and say why."""
        while True:
            self._arrived.clear()
            if self._buffer.ends_stream():
                return "seal"
            if self._retired:
                return "plan"
            if reason := self._buffer.full():
                return reason
            deadline = self._buffer.linger_deadline()
            left = None if deadline is None else deadline - self._clock()
            if left is not None and left <= 0:
                return "linger"
            if left is not None and self._services.must_shed(self):
                return "memory"
            await self._wait(left)

    async def _wait(self, seconds: float | None) -> None:
        try:
            await asyncio.wait_for(self._arrived.wait(), seconds)
        except TimeoutError:
            return

    async def _emit(self, cut: Cut, built: Built | None = None) -> None:
        while not self._buffer.holds(cut.ranges):
            self.busy, self.waits = False, True
            self._arrived.clear()
            await self._arrived.wait()
        self.busy, self.waits = True, False
        waiting = self._buffer.buffered_bytes
        records = self._buffer.take(cut.ranges)
        self.busy_bytes = waiting - self._buffer.buffered_bytes
        content, messages = built or await self._services.build(cut, records)
        await self._services.emit(messages)
        done = content.done(cut)
        await self._append(done, records)
        self.busy_bytes = 0
        self.busy = False
        self._services.window_done(cut.stream, self._buffer.needed, done)
        self._services.released()


def _starts(ledger: Ledger, begin: tuple[int, ...]) -> tuple[int, ...]:
    if ledger.cut is None:
        return begin
    if ledger.is_open:
        return tuple(start for start, _ in ledger.cut.ranges)
    return tuple(end for _, end in ledger.cut.ranges)
