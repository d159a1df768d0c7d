"""One stream in an audit."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping

from tokenfeed import ledger as entries
from tokenfeed.audit.logs import DeadLetters, Digests, Logs, RawRecords, digest_of
from tokenfeed.audit.report import StreamReport
from tokenfeed.audit.window import Contents, Origin, settle
from tokenfeed.batches import decode, encode
from tokenfeed.content import Encoder, sort_out, window_content
from tokenfeed.documents import Document, RawRecord, Rejection, document_count
from tokenfeed.editions import Beginning
from tokenfeed.errors import LedgerError, WireError
from tokenfeed.ledger import Cut, Done, Ledger
from tokenfeed.plan import Plan


class StreamAudit:
    """One stream's windows, from the ledger, and how far each has been seen in the slots."""

    def __init__(
        self,
        plan: Plan,
        logs: Logs,
        stream: int,
        begin: Beginning,
        encoder: Encoder | None,
        until: Mapping[tuple[int, int], int],
    ) -> None:
        self.report = StreamReport(stream)
        self._plan = plan
        self._begin = begin
        self._encoder = encoder
        self._ledger = Ledger(stream, plan.id)
        self._entries = logs.ledger[stream].entries
        self._raw = [RawRecords(source, logs.raw[source][stream]) for source in range(len(plan.sources))]
        self._letters = DeadLetters(plan, stream, logs.dead[stream])
        self._behind = 0
        self._until = {source: offset for (source, owner), offset in until.items() if owner == stream}
        self._windows: list[_Window] = []  # not settled yet
        self._digests = Digests()
        self._final: int | None = None
        self._unsealed_slots = set(range(plan.slots))
        self._held: dict[tuple[int, int], RawRecord] = {}

    # What the slots show

    def valid(self, number: int, value: bytes) -> None:
        """The batch is in the valid sequence."""
        window = self._window_of(number)
        digest = self._compare(number, value)
        if window is None:
            self._behind += 1  # not acknowledged yet when the audit began
            return
        self._take(window, number, digest, value)
        self._settle_what_is_complete()

    def passed_over(self, number: int, value: bytes, *, early: bool) -> None:
        """Readers pass over this message."""
        digest = self._compare(number, value)
        if not early:
            self.report.re_emitted += 1
            return
        self.report.early += 1
        if (window := self._window_of(number)) is not None:
            window.early[number] = digest, value

    def missing(self, number: int) -> None:
        """The batch will never be in the valid sequence: it is not there, or stands behind one that is not."""
        if (window := self._window_of(number)) is not None:
            self._give_up(window, number)
            self._settle_what_is_complete()

    def starts_behind(self, number: int) -> None:
        """Retention has removed the batches of this slot before `number`."""
        number -= self._plan.slots
        while number >= 0 and (window := self._window_of(number)) is not None:
            window.unverified = True
            window.missing += 1
            number -= self._plan.slots
        self._settle_what_is_complete()

    def sealed(self, slot: int, number: int) -> None:
        """A seal in this slot says how many batches the stream has."""
        self._unsealed_slots.discard(slot)
        if self._final is not None and self._final != number:
            self._accuse(f"two seals: {self._final} and {number} batches")
        self._final = number

    def first_of_window(self, number: int) -> int | None:
        """Number of the first batch of the window that holds `number`; None if the ledger does not know it."""
        window = self._window_of(number)
        return None if window is None else window.cut.first

    # Windows

    def _window_of(self, number: int) -> _Window | None:
        """The window that a batch number lies in; None below the first unsettled one and behind the last acknowledged."""
        while not self._windows or self._windows[-1].next is None or self._windows[-1].next <= number:
            if not self._read_ledger():
                break
        at = bisect_right(self._windows, number, key=lambda window: window.cut.first) - 1
        if at < 0 or not self._windows[at].may_hold(number):
            return None
        return self._windows[at]

    def _read_ledger(self) -> bool:
        """Read one more entry; False at the end."""
        entry = next(self._entries, None)
        if entry is None:
            return False
        before = self._ledger
        try:
            self._ledger = before.apply(entry.offset, entries.decode(entry.value or b""))
        except (LedgerError, WireError) as error:
            self._accuse(str(error))
            self._entries = iter(())  # nothing behind it means anything
            return False
        if before.cut is None and self._ledger.cut is not None:
            self._check_begin(self._ledger.cut)
        if self._ledger.cut is not None and self._ledger.cut != before.cut:
            self._windows.append(_Window(self._ledger.cut))
        if self._ledger.done is not None and before.done is not self._ledger.done:
            self._windows[-1].done = self._ledger.done
        return True

    def _check_begin(self, cut: Cut) -> None:
        starts = tuple(start for start, _ in cut.ranges)
        if any(begin not in (None, start) for begin, start in zip(self._begin.offsets, starts, strict=True)):
            self._accuse(f"begins at raw offsets {starts}, the edition before ended at {self._begin.offsets}")
        for raw, begin in zip(self._raw, self._begin.offsets, strict=True):
            raw.skip(begin or 0)

    def _settle_what_is_complete(self) -> None:
        settled = 0
        while settled < len(self._windows) and self._windows[settled].complete and self._within(self._windows[settled].cut):
            self._settle(self._windows[settled])
            settled += 1
        del self._windows[:settled]

    def _within(self, cut: Cut) -> bool:
        return all(cut.ranges[source][1] <= offset for source, offset in self._until.items())

    def _settle(self, window: _Window) -> None:
        cut, done = window.cut, window.done
        assert done is not None  # noqa: S101
        own: list[RawRecord] = []
        for raw, sealed, (start, end) in zip(self._raw, self._begin.sealed, cut.ranges, strict=True):
            self._lose(raw.rest(start))
            records, whole = raw.take(start, end)
            own += records
            window.unverified |= not whole
            if (records or whole) and not sealed:
                self._check_seal(cut, end, records)
        letters = self._letters.take(cut)
        if window.unverified:
            self.report.unverified_windows += 1
            self.report.windows += 1
            self._held.clear()
        else:
            self.report.book(settle(self._plan, cut, done, own, window.contents, letters))
            self._remake(window, cut, done, own)
        self.report.batches += len(window.contents)
        self.report.tokens += sum(int(held.lengths.sum()) for held in window.contents)

    def _lose(self, records: Iterable[RawRecord]) -> None:
        """Records that lie before the first window, though they were there: whatever retention had removed is gone."""
        for record in records:
            documents, rejections, _ = sort_out(self._plan, [record])
            lost: list[Document | Rejection] = [*documents, *rejections]
            self.report.lose([Origin(one.source, one.offset, one.index) for one in lost])

    def _check_seal(self, cut: Cut, end: int, records: list[RawRecord]) -> None:
        """A seal stands at the end of the last window's ranges, and nowhere else."""
        seals = [record.offset for record in records if record.is_seal]
        ends = cut.reason == "seal"
        if seals != ([end - 1] if ends else []):
            what = "ends the stream before its seal" if ends else f"goes on behind the seal at offset {seals[0]}"
            self._accuse(f"window {cut.window} {what}")

    def _remake(self, window: _Window, cut: Cut, done: Done, own: list[RawRecord]) -> None:
        """Make the content anew from the raw records and compare it with what was emitted."""
        if self._encoder is None:
            return
        records = [*self._held.values(), *own]
        kept = {(piece.source, piece.offset) for piece in cut.carry}
        if not kept <= self._held.keys():
            return  # carried from a window whose raw records are gone
        content = window_content(
            self._plan, self._encoder, cut, sorted(records, key=lambda record: (record.source, record.offset))
        )
        wrong = sum(window.digests.get(batch.number) not in (None, digest_of(encode(batch))) for batch in content.batches)
        self.report.altered += wrong + (content.done(cut) != done)
        kept = {(piece.source, piece.offset) for piece in done.carry}
        self._held = {at: record for record in records if (at := (record.source, record.offset)) in kept}

    def _take(self, window: _Window, number: int, digest: bytes, value: bytes) -> None:
        window.early.pop(number, None)
        window.digests[number] = digest
        try:
            batch = decode(value)
        except WireError:
            self.report.altered += 1
            return
        labels = (batch.plan, batch.stream, batch.number, batch.window)
        self.report.altered += labels != (self._plan.id, self.report.stream, number, window.cut.window)
        if self._within(window.cut):
            window.contents.append(Contents(batch.origins.copy(), batch.piece_lens.astype("int64")))

    def _give_up(self, window: _Window, number: int) -> None:
        """Readers never get to it. A gap, but for what is there and only stands behind a gap."""
        behind_a_gap = number - self._plan.slots in window.given_up
        window.given_up.add(number)
        early = window.early.get(number)
        if early is None or not behind_a_gap:
            self.report.gaps.append(number)
        if early is None:
            window.missing += 1
        else:
            self._take(window, number, *early)

    def _compare(self, number: int, value: bytes) -> bytes:
        """Compare with the same batch seen before; return the digest."""
        digest = digest_of(value)
        self.report.altered += not self._digests.agree(number, digest)
        return digest

    @property
    def _acknowledged(self) -> int:
        """Batches of the windows that were acknowledged in full."""
        ledger = self._ledger
        return ledger.cut.first if ledger.cut is not None and ledger.is_open else ledger.next_number

    def _accuse(self, fault: str) -> None:
        self.report.fault = self.report.fault or fault

    def finish(self) -> None:
        """The slots have ended: what is not there by now is missing, if its window was acknowledged in full."""
        while self._read_ledger():
            pass
        self.report.sealed = self._ledger.is_sealed
        for window in self._windows:
            if window.done is None or not self._within(window.cut):
                break
            known = {*self.report.gaps, *window.digests}
            for number in () if window.unverified else range(window.cut.first, window.done.next):
                if number not in known:
                    self._give_up(window, number)
            self._settle(window)
        if self.report.sealed and self._behind:
            self._accuse(f"{self._behind} batches behind the stream's end")
        if self.report.sealed and self._unsealed_slots:
            self._accuse(f"no seal in slots {', '.join(map(str, sorted(self._unsealed_slots)))}")
        elif self.report.sealed and self._final != self._ledger.next_number:
            self._accuse(f"the ledger ends with {self._ledger.next_number} batches, the seals say {self._final}")
        elif self._final is not None and self._final < self._acknowledged:
            self._accuse(f"the ledger has {self._acknowledged} batches and no end, the seals say {self._final}")
        if not (self.report.sealed and self._ledger.cut is not None and self._ledger.cut.reason == "plan"):
            self.report.pending += sum(document_count(r, self._plan.record_format) for raw in self._raw for r in raw.rest())
        self.report.gaps.sort()
        self._digests.close()


class _Window:
    """A window between its cut and its settlement."""

    def __init__(self, cut: Cut) -> None:
        self.cut = cut
        self.done: Done | None = None
        self.contents: list[Contents] = []
        self.digests: dict[int, bytes] = {}
        self.early: dict[int, tuple[bytes, bytes]] = {}
        self.given_up: set[int] = set()
        self.missing = 0
        self.unverified = False

    @property
    def next(self) -> int | None:
        """Number behind its last batch, once that is known."""
        return None if self.done is None else self.done.next

    def may_hold(self, number: int) -> bool:
        """Whether the number lies in it; not before its end is known."""
        return self.next is not None and self.cut.first <= number < self.next

    @property
    def complete(self) -> bool:
        """Whether every batch of it has been seen, or is known to be missing."""
        return self.next is not None and len(self.digests) + self.missing >= self.next - self.cut.first
