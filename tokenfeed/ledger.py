"""The ledger: who cut which window where, decided by the order of a log.

Each stream has one ledger partition. A worker appends a `Cut` before it emits anything of a window, and a `Done` after
the last acknowledgement. Several workers may append a cut of the same window (a zombie, a restart): the first in log
order is the cut, the others are passed over by every reader. `Ledger` is that rule as a fold over the entries.

A cut names the ledger offset of the cut before it, so that the rule can be applied from the log's tail: the cut with the
highest number points at its predecessor, and the first entry behind that with the highest number is the valid one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, fields, replace
from operator import attrgetter
from typing import Any, Final, Literal

import orjson

from tokenfeed.errors import LedgerError, WireError

CutReason = Literal["documents", "bytes", "linger", "memory", "seal", "plan"]
Range = tuple[int, int]

# Windows that are cut for these reasons leave the rows of an incomplete batch to the next window; the others are cut
# because nothing may wait any longer.
CARRYING: Final[frozenset[CutReason]] = frozenset({"documents", "bytes"})
# With these a stream ends: its last record has come, or the feed goes on under another plan.
FINAL: Final[frozenset[CutReason]] = frozenset({"seal", "plan"})


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of a document that a window leaves to the next: `length` tokens from token `first` on.

    `times` counts the windows that have left it.
    """

    source: int
    offset: int
    index: int
    first: int
    length: int
    times: int


_PIECE: Final = attrgetter(*(each.name for each in fields(Piece)))


@dataclass(frozen=True, kw_only=True)
class Cut:
    """Where a window starts and ends.

    Attributes:
        plan: plan id.
        stream: the stream.
        window: number of the window, from 0.
        ranges: raw offsets [start, end), one pair a source of the plan.
        carry: pieces of earlier windows that stand in this one: the `carry` of the window before it.
        first: number of its first batch.
        previous: ledger offset of the cut before, -1 for window 0.
        reason: what closed the window.
        worker: who appended it, for people to read.
    """

    plan: str
    stream: int
    window: int
    ranges: tuple[Range, ...]
    first: int
    previous: int
    reason: CutReason
    worker: str
    carry: tuple[Piece, ...] = ()

    @property
    def is_final(self) -> bool:
        """Whether the stream ends with this window."""
        return self.reason in FINAL


@dataclass(frozen=True, kw_only=True)
class Done:
    """All batches of a window have been acknowledged.

    Attributes:
        next: number of the stream's next batch.
        documents, tokens, rejected, filtered: what became of the window's own documents, those carried on included.
        carry: pieces that stand in none of its batches and are left to the next window.
    """

    plan: str
    stream: int
    window: int
    next: int
    documents: int
    tokens: int
    rejected: int
    filtered: dict[str, int] = field(default_factory=dict)
    carry: tuple[Piece, ...] = ()


Entry = Cut | Done


def encode(entry: Entry) -> bytes:
    """One JSON object with a `type` of "cut" or "done"."""
    kind = "cut" if isinstance(entry, Cut) else "done"
    plain = {"type": kind, "carry": [_PIECE(piece) for piece in entry.carry]}
    return orjson.dumps(vars(entry) | plain, option=orjson.OPT_SORT_KEYS)


def decode(value: bytes) -> Entry:
    """Read what `encode` wrote.

    Raises:
        WireError: anything else.
    """
    try:
        data: dict[str, Any] = orjson.loads(value)
        kind = data.pop("type")
        data["carry"] = tuple(Piece(*map(int, piece)) for piece in data["carry"])
        if kind == "done":
            return Done(**data)
        if kind == "cut":
            return Cut(**{**data, "ranges": tuple((int(a), int(b)) for a, b in data["ranges"])})
    except (orjson.JSONDecodeError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise WireError(f"not a ledger entry: {type(error).__name__}") from None
    raise WireError("not a ledger entry: unknown type")


@dataclass(frozen=True)
class Ledger:
    """What the entries of one stream say, in log order up to `read_to`.

    Attributes:
        stream: the stream.
        plan: plan id that every entry must carry.
        read_to: ledger offset behind the last entry seen.
        cut: the last valid cut, None before the first.
        cut_offset: its ledger offset, -1 before the first.
        done: the entry that completes `cut`, None while it is open.
    """

    stream: int
    plan: str
    read_to: int = 0
    cut: Cut | None = None
    cut_offset: int = -1
    done: Done | None = None

    @property
    def is_open(self) -> bool:
        """Whether the last cut may not have been emitted in full, so that it must be emitted again."""
        return self.cut is not None and self.done is None

    @property
    def is_sealed(self) -> bool:
        """Whether the stream has ended and all of it has been emitted."""
        return self.cut is not None and self.cut.is_final and self.done is not None

    @property
    def next_window(self) -> int:
        """Number of the window that is cut next."""
        return 0 if self.cut is None else self.cut.window + 1

    def next_starts(self, sources: int) -> tuple[int, ...] | None:
        """Raw offset, one a source, where the next window starts; None before the first cut."""
        return None if self.cut is None else tuple(end for _, end in self.cut.ranges[:sources])

    @property
    def carry(self) -> tuple[Piece, ...]:
        """The pieces that the open window carries, or, if none is open, that the next one must carry."""
        if self.cut is None:
            return ()
        return self.cut.carry if self.done is None else self.done.carry

    @property
    def next_number(self) -> int:
        """Number of the next batch. Only known while no window is open."""
        if self.is_open:
            raise LedgerError(f"stream {self.stream}: window {self.next_window - 1} is still open")
        return 0 if self.done is None else self.done.next

    def apply(self, offset: int, entry: Entry) -> Ledger:
        """The ledger after one more entry. Entries that lost the race for their window change only `read_to`.

        Raises:
            LedgerError: an entry of another stream or plan, or one that no race explains.
        """
        if entry.stream != self.stream or entry.plan != self.plan:
            raise LedgerError(
                f"ledger partition {self.stream} offset {offset}: entry of stream {entry.stream}, plan {entry.plan}, "
                f"where stream {self.stream}, plan {self.plan} was expected; a feed has one plan"
            )
        seen = replace(self, read_to=offset + 1)
        if isinstance(entry, Done):
            completes = self.cut is not None and self.done is None and entry.window == self.cut.window
            return replace(seen, done=entry) if completes else seen
        if entry.window < self.next_window:
            return seen
        self._check_follows(offset, entry)
        return replace(seen, cut=entry, cut_offset=offset, done=None)

    def _check_follows(self, offset: int, entry: Cut) -> None:
        starts = tuple(start for start, _ in entry.ranges)
        expected = self.next_starts(len(starts))
        if (
            self.is_open
            or self.is_sealed
            or entry.window != self.next_window
            or entry.previous != self.cut_offset
            or entry.first != self.next_number
            or entry.carry != self.carry
            or (expected is not None and starts != expected)
        ):
            raise LedgerError(
                f"ledger partition {self.stream} offset {offset}: cut of window {entry.window} does not follow "
                f"window {self.next_window - 1}; entries are missing or were written by something else"
            )

    def extend(self, entries: Iterable[tuple[int, Entry]]) -> Ledger:
        """Apply (offset, entry) pairs in order."""
        ledger = self
        for offset, entry in entries:
            ledger = ledger.apply(offset, entry)
        return ledger


def needed_from(entries: list[tuple[int, Entry]], begin: int) -> int:
    """Offset from which the log must be read to know its last valid cut: the predecessor of the highest cut seen.

    Args:
        entries: (offset, entry) of the log from `begin` to its end.
        begin: first offset that was read.

    A result of at least `begin` says that enough was read, and is where `fold_tail` may start.
    """
    cuts = [entry for _, entry in entries if isinstance(entry, Cut)]
    return max(0, max(cuts, key=lambda cut: cut.window).previous) if cuts else begin // 2


def fold_tail(stream: int, plan: str, entries: list[tuple[int, Entry]], start: int) -> Ledger:
    """The ledger from a tail that begins with a valid cut (or with the log, at 0)."""
    tail = [(offset, entry) for offset, entry in entries if offset >= start]
    if not tail or start == 0:
        return Ledger(stream, plan).extend(tail)
    offset, cut = tail[0]
    if not isinstance(cut, Cut) or cut.plan != plan or cut.stream != stream:
        raise LedgerError(f"ledger partition {stream} offset {offset}: not the cut that a later cut says it is")
    return Ledger(stream, plan, read_to=offset + 1, cut=cut, cut_offset=offset).extend(tail[1:])
