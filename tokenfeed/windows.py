"""Collecting the records of one stream until a window is full.

Where a window ends is decided record by record, in the order of arrival, so that with one raw topic a window cut by
documents or bytes ends at the same offset on every worker, however the records were fetched. Windows end on record
boundaries: a bundle is never split. Ending one for another reason (linger, memory, seal) is the caller's decision,
and any end is final only once the ledger says so. Records that carried pieces are of are held until those pieces have
been emitted. A seal is part of the last window only, so that a worker that takes
over always reads it again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, islice, repeat
from operator import itemgetter
from typing import Literal

from tokenfeed.documents import RECORD_BYTES, SEAL, RawRecord, document_count, held_bytes
from tokenfeed.ledger import Piece, Range
from tokenfeed.plan import RecordFormat

# A record, the documents that it counts for, the bytes of its value, and when it arrived.
_Waiting = tuple[RawRecord, int, int, float]


@dataclass(frozen=True, kw_only=True)
class WindowLimits:
    """When a window is full.

    Attributes:
        documents: it holds at least this many documents.
        bytes: its raw values have at least this many bytes.
        linger: its oldest record has waited this many seconds.
    """

    documents: int
    bytes: int
    linger: float


class StreamBuffer:
    """Records of one stream from the end of the last window on: the open window, and what came behind it.

    Args:
        limits: when the open window is full.
        starts: raw offset, one a source, where the open window starts. Records below are ignored, because they have been
            emitted already, but for those of carried pieces.
        record_format: the plan's, for counting the documents of a record.
        carry: the pieces that the open window carries.
        sealed: which sources have ended before `starts`; by default none.
    """

    def __init__(
        self,
        limits: WindowLimits,
        starts: Sequence[int],
        record_format: RecordFormat,
        carry: Iterable[Piece] = (),
        sealed: Sequence[bool] | None = None,
    ) -> None:
        self._limits = limits
        self._format = record_format
        self._starts = list(starts)
        self._carry = {(piece.source, piece.offset) for piece in carry}
        self._carried: dict[tuple[int, int], RawRecord] = {}
        self._carried_at: float | None = None
        self._next = list(self.needed)
        self._records: deque[_Waiting] = deque()
        self._sealed = list(sealed or [False] * len(self._starts))
        self._counted = 0
        self._documents = 0
        self._bytes = 0
        self.buffered_bytes = 0

    def add(self, record: RawRecord, now: float) -> bool:
        """Take a record that arrived at `now` (monotonic seconds); False when it is not needed, or lies behind a seal.

        The records of one source must come in order of their offsets.
        """
        if record.offset < self._next[record.source] or self._sealed[record.source]:
            return False
        self._next[record.source] = record.offset + 1
        if record.offset < self._starts[record.source]:
            return self._hold(record, now)
        if record.is_seal:
            self._sealed[record.source] = True
            return True
        self._append([record], now)
        return True

    def extend(self, records: Sequence[RawRecord], now: float) -> bool:
        """`add` many records of one source; whether any was taken."""
        first = records[0]
        plain = first.offset >= max(self._next[first.source], self._starts[first.source]) and not self._sealed[first.source]
        if not plain or SEAL in [record.content_type for record in records]:
            return sum(self.add(record, now) for record in records) > 0
        self._next[first.source] = records[-1].offset + 1
        self._append(records, now)
        return True

    def _append(self, records: Sequence[RawRecord], now: float) -> None:
        documents = [document_count(record, self._format) for record in records]
        sizes = [len(record.value or b"") for record in records]
        self._records.extend(zip(records, documents, sizes, repeat(now)))
        self.buffered_bytes += sum(sizes) + RECORD_BYTES * len(records)
        self._count()

    def _hold(self, record: RawRecord, now: float) -> bool:
        origin = record.source, record.offset
        if origin not in self._carry:
            return False
        self._carried[origin] = record
        self._carried_at = self._carried_at or now
        self.buffered_bytes += held_bytes([record])
        return True

    @property
    def starts(self) -> tuple[int, ...]:
        """Raw offset, one a source, where the open window starts."""
        return tuple(self._starts)

    @property
    def needed(self) -> tuple[int, ...]:
        """Raw offset, one a source, below which no record will be asked for again."""
        return tuple(
            min([start, *(offset for owner, offset in self._carry if owner == source)])
            for source, start in enumerate(self._starts)
        )

    @property
    def expected(self) -> tuple[int, ...]:
        """Raw offset, one a source, of the next record to come."""
        return tuple(self._next)

    def full(self) -> Literal["documents", "bytes"] | None:
        """Which limit the open window has reached, None while it has room."""
        if self._documents >= self._limits.documents:
            return "documents"
        return "bytes" if self._bytes >= self._limits.bytes else None

    def linger_deadline(self) -> float | None:
        """Monotonic time at which the open window must be cut; None while it is empty and carries nothing."""
        waiting = [at for at in (self._records[0][3] if self._records else None, self._carried_at) if at is not None]
        return min(waiting) + self._limits.linger if waiting else None

    def ranges(self) -> tuple[Range, ...]:
        """What a cut made now would take: [start, end) a source."""
        if self.ends_stream():
            return tuple(zip(self._starts, self._next, strict=True))
        ends: dict[int, int] = {}
        for index in range(self._counted - 1, -1, -1):
            record = self._records[index][0]
            ends.setdefault(record.source, record.offset + 1)
            if len(ends) == len(self._starts):
                break
        return tuple((start, ends.get(source, start)) for source, start in enumerate(self._starts))

    def ends_stream(self) -> bool:
        """Whether a cut made now would take the last record there will ever be.

        Not while the window is full: whether a seal came before or behind that cut must not matter.
        """
        return self.full() is None and all(self._sealed) and self._counted == len(self._records)

    def holds(self, ranges: Sequence[Range]) -> bool:
        """Whether every record of these ranges, and of the carried pieces, has arrived."""
        return all(arrived >= end for arrived, (_, end) in zip(self._next, ranges, strict=True))

    def open_records(self) -> list[RawRecord]:
        """The records of a cut made now and of the carried pieces that have arrived, by source and offset."""
        counted = [entry[0] for entry in islice(self._records, self._counted)]
        return sorted([*self._carried.values(), *counted], key=itemgetter(0, 1))

    def take(self, ranges: Sequence[Range]) -> list[RawRecord]:
        """Remove and return the records of these ranges and of the carried pieces, by source and offset.

        The next window is opened behind them, and carries nothing until `advance` says so.
        """
        taken = [*self._carried.values(), *self._advance([end for _, end in ranges])]
        self._drop_carried()
        return sorted(taken, key=itemgetter(0, 1))

    def advance(self, starts: Sequence[int], carry: Iterable[Piece], records: Iterable[RawRecord], now: float) -> None:
        """Open the next window at `starts`, one offset a source, carrying these pieces.

        The records that they are of are among those held so far, among `records`, or still to come.
        """
        held = list(self._carried.values())
        forgotten = self._advance(starts)
        self._drop_carried()
        self._carry = {(piece.source, piece.offset) for piece in carry}
        for record in chain(held, records, forgotten) if self._carry else ():
            if record[:2] in self._carry:
                self._hold(record, now)

    def _drop_carried(self) -> None:
        self.buffered_bytes -= held_bytes(self._carried.values())
        self._carry, self._carried, self._carried_at = set(), {}, None

    def _advance(self, starts: Sequence[int]) -> list[RawRecord]:
        """`advance`, and what was forgotten; takes time for that only, not for what waits behind it."""
        taken: list[RawRecord] = []
        kept: list[_Waiting] = []
        unfinished = {source for source, start in enumerate(starts) if start > self._starts[source]}
        if not unfinished:
            return taken
        while self._records and unfinished:
            entry = self._records.popleft()
            source, offset, *_ = record = entry[0]
            if offset < starts[source]:
                taken.append(record)
                self.buffered_bytes -= entry[2] + RECORD_BYTES
            else:
                kept.append(entry)
            if offset + 1 >= starts[source]:
                unfinished.discard(source)
        self._records.extendleft(reversed(kept))
        self._starts = list(starts)
        self._counted = self._documents = self._bytes = 0
        self._count()
        return taken

    def _count(self) -> None:
        """Extend the open window over the records behind it until it is full."""
        counted, documents, size = self._counted, self._documents, self._bytes
        while counted < len(self._records) and documents < self._limits.documents and size < self._limits.bytes:
            _, of_record, its_size, _ = self._records[counted]
            documents += of_record
            size += its_size
            counted += 1
        self._counted, self._documents, self._bytes = counted, documents, size
