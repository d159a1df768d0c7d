"""Laying documents into rows of L tokens without losing or inventing one.

Two strategies:

- `best_fit`: documents longer than L are split into pieces of L and a rest; the pieces are packed by best-fit
  decreasing. Rows hold whole pieces, so no document is cut that would have fitted. At most 11/9 OPT + 4 rows
  (Johnson 1973); on text, fill is above 0.99. The method of Ding et al., "Fewer truncations improve language
  modeling" (arXiv 2404.10830). O(n log n).
- `concatenate`: documents end to end, cut every L tokens. Every row but the last is full; documents are cut anywhere. O(n).

Both are deterministic functions of the lengths in the order given. Lengths are in tokens.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from tokenfeed.plan import Packing

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Layout:
    """Pieces in row order.

    Attributes:
        document: which document each piece is of, int64 [D].
        first: the piece's first token within that document, int64 [D].
        length: tokens of the piece, 1 to L, int64 [D].
        row_splits: pieces of row r are row_splits[r]:row_splits[r + 1], int64 [R + 1].
    """

    document: Ints
    first: Ints
    length: Ints
    row_splits: Ints

    @property
    def rows(self) -> int:
        """Number of rows R."""
        return len(self.row_splits) - 1

    def reordered(self, order: Ints) -> Layout:
        """The same rows in another order: row i of the result is row order[i]."""
        counts = np.diff(self.row_splits)[order]
        pieces = ranges(self.row_splits[order], counts)
        return Layout(self.document[pieces], self.first[pieces], self.length[pieces], splits(counts))


def splits(counts: npt.NDArray[Any]) -> Ints:
    """Running sum with a leading zero: [a, b] -> [0, a, a + b]."""
    out = np.zeros(len(counts) + 1, dtype=np.int64)
    np.cumsum(counts, out=out[1:])
    return out


def ranges(starts: Ints, counts: npt.NDArray[Any]) -> Ints:
    """The numbers starts[i], starts[i] + 1, ... (counts[i] of them), for all i, end to end."""
    ends = splits(counts)
    return np.arange(ends[-1], dtype=np.int64) + np.repeat(starts - ends[:-1], counts)


def pack(lengths: Ints, sequence_length: int, packing: Packing, urgent: int = 0) -> Layout:
    """Lay documents of these lengths (each at least 1) into rows of `sequence_length` tokens.

    Guarantees that every token of every document stands in exactly one piece, that pieces of a row sum to at most
    `sequence_length`, and that no row is empty. The first `urgent` documents are laid first, whatever their lengths, so
    that they are not among those that fill the last rows.
    """
    return _STRATEGIES[packing](lengths, sequence_length, urgent)


def _best_fit(lengths: Ints, sequence_length: int, urgent: int) -> Layout:
    document, first, length = _split_long(lengths, sequence_length)
    by_length = np.argsort(np.where(document < urgent, -sequence_length - 1, -length), kind="stable")
    rows = _best_fit_decreasing(length[by_length].tolist(), sequence_length)
    order = by_length[[piece for row in rows for piece in row]] if rows else by_length
    counts = np.fromiter(map(len, rows), dtype=np.int64, count=len(rows))
    return Layout(document[order], first[order], length[order], splits(counts))


def _split_long(lengths: Ints, sequence_length: int) -> tuple[Ints, Ints, Ints]:
    """Cut each document into pieces of `sequence_length` and a rest: (document, first token, length)."""
    counts = -(-lengths // sequence_length)
    document = np.repeat(np.arange(len(lengths), dtype=np.int64), counts)
    first = ranges(np.zeros_like(counts), counts) * sequence_length
    length = np.minimum(lengths[document] - first, sequence_length)
    return document, first, length


def _best_fit_decreasing(lengths: list[int], capacity: int) -> list[list[int]]:
    """Put each item, in the order given, into the fullest row that still has room; open a row when none has.

    `free` is the sorted list of distinct free capacities in use, `by_free[c]` the rows that have exactly c left.
    """
    rows: list[list[int]] = []
    by_free: list[list[int]] = [[] for _ in range(capacity + 1)]
    free: list[int] = []
    for item, length in enumerate(lengths):
        at = bisect_left(free, length)
        if at == len(free):
            row, room = len(rows), capacity
            rows.append([])
        else:
            room = free[at]
            row = by_free[room].pop()
            if not by_free[room]:
                del free[at]
        rows[row].append(item)
        left = room - length
        if left:
            if not by_free[left]:
                insort(free, left)
            by_free[left].append(row)
    return rows


def _concatenate(lengths: Ints, sequence_length: int, urgent: int) -> Layout:
    del urgent  # the first ones always come first
    ends = splits(lengths)
    total = int(ends[-1])
    edges = np.arange(0, total, sequence_length, dtype=np.int64)
    starts = np.union1d(ends[:-1], edges)
    length = np.diff(np.append(starts, total))
    document = np.searchsorted(ends, starts, side="right") - 1
    row_splits = np.append(np.searchsorted(starts, edges), len(starts))
    return Layout(document, starts - ends[document], length, row_splits.astype(np.int64))


_STRATEGIES: Final = {"best_fit": _best_fit, "concatenate": _concatenate}
