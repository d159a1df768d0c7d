"""What a window becomes: the pure function `raw records + plan + cut -> batches`.

Workers emit what this returns, tests compare the topic with it, an audit replays it. Nothing else decides content:
equal arguments give equal bytes on every machine.

A window's items are the pieces that it carries, in the cut's order, then its documents by source and offset. They are
permuted by (seed, stream, window, "documents"), those that have been left `plan.carry` times are moved to the front, and
they are packed; the rows are permuted by (seed, stream, window, "rows"). What does not fill a batch of B rows is left to
the next window, the emptiest rows first, if the cut's reason and the plan's limit allow it; else empty rows fill up the
last batch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from tokenfeed.batches import Batch
from tokenfeed.documents import Document, Filtered, RawRecord, Rejection, decode, decode_some
from tokenfeed.errors import LedgerError
from tokenfeed.ledger import CARRYING, Cut, Done, Piece
from tokenfeed.packing import Ints, Layout, pack, ranges, splits
from tokenfeed.permutation import permutation
from tokenfeed.plan import Plan

# They stand in two ledger entries, which must stay small; a batch of rows has some hundred pieces.
_MOST_CARRIED: Final = 1024
_FULL: Final = 0.95  # best fit leaves one row of a window below this, and the others above


class Encoded(Protocol):
    """Token ids of many documents, end to end."""

    @property
    def ids(self) -> npt.NDArray[np.uint32]:
        """All ids, uint32 [T]."""

    @property
    def offsets(self) -> Ints:
        """Ids of document i are ids[offsets[i]:offsets[i + 1]], int64 [N + 1]."""


class Encoder(Protocol):
    """The part of a tokenizer that content needs."""

    def encode_batch(self, texts: Sequence[str], /) -> Encoded:
        """Token ids of each text with the BOS and EOS that the rules add; none for a text without tokens."""


@dataclass(frozen=True, slots=True)
class WindowContent:
    """What becomes of a window: batches in order, dead letters, what is left out, what is left to the next window.

    `documents` and `tokens` count the window's own, not those that it carries.
    """

    batches: list[Batch]
    rejections: list[Rejection]
    filtered: list[Filtered]
    documents: int
    tokens: int
    carry: tuple[Piece, ...]

    def done(self, cut: Cut) -> Done:
        """The ledger entry that completes `cut`."""
        return Done(
            plan=cut.plan,
            stream=cut.stream,
            window=cut.window,
            next=cut.first + len(self.batches),
            documents=self.documents,
            tokens=self.tokens,
            rejected=len(self.rejections),
            filtered=dict(Counter(filtered.reason for filtered in self.filtered)),
            carry=self.carry,
        )


def window_content(plan: Plan, encoder: Encoder, cut: Cut, records: Sequence[RawRecord]) -> WindowContent:
    """Tokenize, shuffle, pack and batch the records of one cut.

    Args:
        plan: the feed's plan.
        encoder: a tokenizer with the plan's fingerprint and BOS and EOS rules.
        cut: the valid cut of the window.
        records: exactly the raw records that lie in the cut's ranges, and those of the pieces that it carries, by source
            and offset.

    Raises:
        LedgerError: a carried piece is not in the records, or not as long as the cut says.
    """
    own = [record for record in records if record.offset >= cut.ranges[record.source][0]]
    documents, rejections, filtered = sort_out(plan, own)
    before = _carried_documents(plan, cut, records)
    encoded = encoder.encode_batch([document.text for document in (*before.values(), *documents)])
    lengths = np.diff(encoded.offsets)
    own_lengths = lengths[len(before) :]
    items = _Items.of(cut, list(before), lengths, documents)
    filtered += [
        Filtered(document.source, document.offset, document.index, "empty")
        for document in (documents[index] for index in np.flatnonzero(own_lengths == 0).tolist())
    ]
    order = permutation(len(items.length), plan.seed, cut.stream, cut.window, "documents")
    late = items.times[order] >= max(1, plan.carry)  # left as often as may be: they must not be in the emptiest rows again
    order = order[np.argsort(~late, kind="stable")]
    layout = pack(items.length[order], plan.sequence_length, plan.packing, urgent=int(np.count_nonzero(late)))
    layout = layout.reordered(permutation(layout.rows, plan.seed, cut.stream, cut.window, "rows"))
    pieces = _Pieces.of(layout, order, items)
    left = _left_rows(plan, cut, layout, pieces.times)
    emitted = np.delete(np.arange(layout.rows), left)
    batches = list(_batches(plan, cut, pieces.rows(emitted), encoded.ids))
    return WindowContent(
        batches,
        rejections,
        filtered,
        documents=int(np.count_nonzero(own_lengths)),
        tokens=int(own_lengths.sum()),
        carry=pieces.rows(left).carry(),
    )


def _carried_documents(plan: Plan, cut: Cut, records: Sequence[RawRecord]) -> dict[tuple[int, int, int], Document]:
    """The documents that the carried pieces are of, in the order in which the cut names them first."""
    wanted = dict.fromkeys((piece.source, piece.offset, piece.index) for piece in cut.carry)
    indexes: dict[tuple[int, int], set[int]] = {}
    for source, offset, index in wanted:
        indexes.setdefault((source, offset), set()).add(index)
    found = {
        (document.source, document.offset, document.index): document
        for record in (records if wanted else ())
        if record[:2] in indexes
        for document in decode_some(record, indexes[record[:2]], plan.record_format, plan.text_field, plan.id_field)
        if type(document) is Document
    }
    if missing := wanted.keys() - found.keys():
        raise LedgerError(f"stream {cut.stream} window {cut.window} carries {min(missing)}, which is no document at hand")
    return {origin: found[origin] for origin in wanted}


@dataclass(frozen=True, slots=True)
class _Items:
    """What is packed: spans of encoded documents. int64 [N] each, origins [N, 4]; `start` counts in the encoded ids."""

    origins: Ints
    start: Ints
    length: Ints
    times: Ints

    @classmethod
    def of(cls, cut: Cut, before: list[tuple[int, int, int]], lengths: Ints, documents: list[Document]) -> _Items:
        """The pieces of `cut.carry`, which are of the documents `before`, then those of `documents` that have tokens."""
        ends = splits(lengths)
        place = {origin: index for index, origin in enumerate(before)}
        at = np.array([place[piece.source, piece.offset, piece.index] for piece in cut.carry], dtype=np.int64)
        first = np.array([piece.first for piece in cut.carry], dtype=np.int64)
        length = np.array([piece.length for piece in cut.carry], dtype=np.int64)
        if (first + length > lengths[at]).any():
            raise LedgerError(f"stream {cut.stream} window {cut.window} carries a piece that ends behind its document")
        kept = len(before) + np.flatnonzero(lengths[len(before) :])
        carried = [(piece.offset, piece.index, piece.first, piece.source) for piece in cut.carry]
        return cls(
            np.concatenate((np.array(carried, dtype=np.int64).reshape(-1, 4), _origins(documents)[kept - len(before)])),
            np.concatenate((ends[at] + first, ends[kept])),
            np.concatenate((length, lengths[kept])),
            np.concatenate((np.array([piece.times for piece in cut.carry], dtype=np.int64), np.zeros_like(kept))),
        )


def _origins(documents: list[Document]) -> Ints:
    """Where whole documents stand: offset, index in record, first token, source; int64 [N, 4]."""
    origins = np.zeros((len(documents), 4), dtype=np.int64)
    origins[:, 0] = [document.offset for document in documents]
    origins[:, 1] = [document.index for document in documents]
    origins[:, 3] = [document.source for document in documents]
    return origins


@dataclass(frozen=True, slots=True)
class _Pieces:
    """Pieces in row order, int64 [D] each, origins [D, 4], row_splits [R + 1]; `start` counts in the encoded ids."""

    origins: Ints
    start: Ints
    length: Ints
    times: Ints
    row_splits: Ints

    @classmethod
    def of(cls, layout: Layout, order: Ints, items: _Items) -> _Pieces:
        item = order[layout.document]
        origins = items.origins[item]
        origins[:, 2] += layout.first
        return cls(origins, items.start[item] + layout.first, layout.length, items.times[item], layout.row_splits)

    def rows(self, rows: Ints) -> _Pieces:
        """Those of some rows."""
        counts = np.diff(self.row_splits)[rows]
        kept = ranges(self.row_splits[rows], counts)
        return _Pieces(self.origins[kept], self.start[kept], self.length[kept], self.times[kept], splits(counts))

    def carry(self) -> tuple[Piece, ...]:
        """As the next cut names them."""
        pieces = zip(self.origins.tolist(), self.length.tolist(), self.times.tolist(), strict=True)
        return tuple(
            Piece(source, offset, index, first, length, times + 1)
            for (offset, index, first, source), length, times in pieces
        )


def _left_rows(plan: Plan, cut: Cut, layout: Layout, times: Ints) -> Ints:
    """The rows that are left to the next window: as many as do not fill a batch, those with the fewest tokens first.

    A whole batch of them where all rows fill batches, but one is emptier than it need be. None of a window that must not
    wait, and none if pieces would be left too often, or too many at once.
    """
    none = np.zeros(0, dtype=np.int64)
    if not layout.rows or not plan.carry or cut.reason not in CARRYING:
        return none
    fill = np.add.reduceat(layout.length, layout.row_splits[:-1])
    surplus = layout.rows % plan.batch_size
    if not surplus and fill.min() < _FULL * plan.sequence_length:
        surplus = plan.batch_size
    if not surplus:
        return none
    often = np.maximum.reduceat(times, layout.row_splits[:-1]) >= plan.carry
    free = np.flatnonzero(~often)
    rows = np.sort(free[np.argsort(fill[free], kind="stable")[:surplus]])
    pieces = int(np.diff(layout.row_splits)[rows].sum())
    return rows if len(rows) == surplus and pieces <= _MOST_CARRIED else none


def sort_out(plan: Plan, records: Sequence[RawRecord]) -> tuple[list[Document], list[Rejection], list[Filtered]]:
    """What the records hold: documents, what belongs in the dead letters, and what is left out and counted."""
    documents: list[Document] = []
    rejections: list[Rejection] = []
    filtered: list[Filtered] = []
    for outcome in decode(records, plan.record_format, plan.text_field, plan.id_field):
        if type(outcome) is Document:
            documents.append(outcome)
        elif type(outcome) is Rejection:
            rejections.append(outcome)
        elif type(outcome) is Filtered:
            filtered.append(outcome)
    return documents, rejections, filtered


def _batches(plan: Plan, cut: Cut, pieces: _Pieces, ids: npt.NDArray[np.uint32]) -> Iterator[Batch]:
    """Cut rows into batches, the last one filled up with empty rows."""
    size = plan.batch_size
    row_splits = pieces.row_splits
    row_splits = np.append(row_splits, np.repeat(row_splits[-1:], -(len(row_splits) - 1) % size))
    rows = _rows(plan, replace(pieces, row_splits=row_splits), ids)
    lens = pieces.length.astype(np.int32)
    for index, row in enumerate(range(0, len(rows), size)):
        held = row_splits[row : row + size + 1]
        first, last = int(held[0]), int(held[-1])
        yield Batch(
            plan=cut.plan,
            stream=cut.stream,
            number=cut.first + index,
            window=cut.window,
            input_ids=rows[row : row + size],
            piece_lens=lens[first:last],
            row_splits=(held - first).astype(np.int32),
            origins=pieces.origins[first:last],
        )


def _rows(plan: Plan, pieces: _Pieces, ids: npt.NDArray[np.uint32]) -> npt.NDArray[Any]:
    """The pieces' tokens in rows filled up with padding, [R, L], not writable: a slice a piece, and one copy of all."""
    # Ids of 32 bits are copied as they stand; they are all below 2^31.
    dtype = np.dtype(plan.token_dtype)
    tokens = (ids if dtype.itemsize == ids.itemsize else ids.astype(dtype)).data
    padding = np.full(plan.sequence_length, plan.pad_id, dtype=dtype).data
    ends = (pieces.start + pieces.length).tolist()
    parts = [tokens[start:end] for start, end in zip(pieces.start.tolist(), ends, strict=True)]
    fills = np.diff(splits(pieces.length)[pieces.row_splits]).tolist()
    ordered: list[memoryview] = []
    for fill, (first, last) in zip(fills, pairwise(pieces.row_splits.tolist()), strict=True):
        ordered += parts[first:last]
        ordered.append(padding[fill:])
    return np.frombuffer(b"".join(ordered), dtype=dtype).reshape(len(fills), plan.sequence_length)
