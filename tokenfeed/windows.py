"""Collecting the records of one stream until a window is full.

Where a window ends is decided record by record, in the order of arrival, so that with one raw topic a window cut by
documents or bytes ends at the same offset on every worker, however the records were fetched. Windows end on record
boundaries: a bundle is never split. Ending one for another reason (linger, memory, seal) is the caller's decision,
and any end is final only once the ledger says so. A seal is part of the last window only, so that a worker that takes
over always reads it again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from tokenfeed.documents import RawRecord, document_count
from tokenfeed.ledger import Range
from tokenfeed.plan import RecordFormat


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
        starts: raw offset, one a source, where the open window starts. Records below are ignored: they have been
            emitted already.
        record_format: the plan's, for counting the documents of a record.
    """

    def __init__(self, limits: WindowLimits, starts: Sequence[int], record_format: RecordFormat) -> None:
        self._limits = limits
        self._format = record_format
        self._starts = list(starts)
        self._next = list(starts)
        self._records: deque[tuple[RawRecord, float]] = deque()
        self._sealed = [False] * len(self._starts)
        self._counted = 0
        self._documents = 0
        self._bytes = 0
        self.buffered_bytes = 0

    def add(self, record: RawRecord, now: float) -> bool:
        """Take a record that arrived at `now` (monotonic seconds); False when it lies below the start or behind a seal.

        The records of one source must come in order of their offsets.
        """
        if record.offset < self._next[record.source] or self._sealed[record.source]:
            return False
        self._next[record.source] = record.offset + 1
        if record.is_seal:
            self._sealed[record.source] = True
            return True
        self._records.append((record, now))
        self.buffered_bytes += record.held_bytes
        self._count()
        return True

    @property
    def starts(self) -> tuple[int, ...]:
        """Raw offset, one a source, where the open window starts."""
        return tuple(self._starts)

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
        """Monotonic time at which the open window must be cut; None while it is empty."""
        return self._records[0][1] + self._limits.linger if self._records else None

    def ranges(self) -> tuple[Range, ...]:
        """What a cut made now would take: [start, end) a source."""
        if self.ends_stream():
            return tuple(zip(self._starts, self._next, strict=True))
        ends = list(self._starts)
        for index in range(self._counted):
            record = self._records[index][0]
            ends[record.source] = record.offset + 1
        return tuple(zip(self._starts, ends, strict=True))

    def ends_stream(self) -> bool:
        """Whether a cut made now would take the last record there will ever be.

        Not while the window is full: whether a seal came before or behind that cut must not matter.
        """
        return self.full() is None and all(self._sealed) and self._counted == len(self._records)

    def holds(self, ranges: Sequence[Range]) -> bool:
        """Whether every record of these ranges has arrived."""
        return all(arrived >= end for arrived, (_, end) in zip(self._next, ranges, strict=True))

    def take(self, ranges: Sequence[Range]) -> list[RawRecord]:
        """Remove and return the records of these ranges, by source and offset, and open the next window behind them."""
        taken = self._advance([end for _, end in ranges])
        return sorted(taken, key=lambda record: (record.source, record.offset))

    def advance(self, starts: Sequence[int]) -> None:
        """Forget the records below `starts`, one offset a source, and open the next window there."""
        self._advance(starts)

    def _advance(self, starts: Sequence[int]) -> list[RawRecord]:
        """`advance`, and what was forgotten; takes time for that only, not for what waits behind it."""
        taken: list[RawRecord] = []
        kept: list[tuple[RawRecord, float]] = []
        unfinished = {source for source, start in enumerate(starts) if start > self._starts[source]}
        while self._records and unfinished:
            record, at = self._records.popleft()
            if record.offset < starts[record.source]:
                taken.append(record)
            else:
                kept.append((record, at))
            if record.offset + 1 >= starts[record.source]:
                unfinished.discard(record.source)
        self._records.extendleft(reversed(kept))
        self._starts = list(starts)
        self._next = [max(pair) for pair in zip(self._next, starts, strict=True)]
        self._counted = self._documents = self._bytes = 0
        self.buffered_bytes -= sum(record.held_bytes for record in taken)
        self._count()
        return taken

    def _count(self) -> None:
        """Extend the open window over the records behind it until it is full."""
        while self._counted < len(self._records) and self.full() is None:
            record = self._records[self._counted][0]
            self._documents += document_count(record, self._format)
            self._bytes += record.size
            self._counted += 1
