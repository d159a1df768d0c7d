"""What a window becomes: the pure function `raw records + plan + cut -> batches`.

Workers emit what this returns, tests compare the topic with it, an audit replays it. Nothing else decides content:
equal arguments give equal bytes on every machine.

The order of a window: documents by source and offset, permuted by (seed, stream, window, "documents"), packed, rows
permuted by (seed, stream, window, "rows"), B rows a batch, the last batch filled up with empty rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from tokenfeed.batches import Batch, cells
from tokenfeed.documents import Document, Filtered, RawRecord, Rejection, decode_all
from tokenfeed.ledger import Cut, Done
from tokenfeed.packing import Ints, Layout, pack, ranges
from tokenfeed.permutation import permutation
from tokenfeed.plan import Plan


class Encoded(Protocol):
    """Token ids of many documents, end to end."""

    @property
    def ids(self) -> npt.NDArray[Any]:
        """All ids, [T]."""

    @property
    def offsets(self) -> Ints:
        """Ids of document i are ids[offsets[i]:offsets[i + 1]], int64 [N + 1]."""


class Encoder(Protocol):
    """The part of a tokenizer that content needs."""

    def encode_batch(self, texts: Sequence[str], /) -> Encoded:
        """Token ids of each text with the BOS and EOS that the rules add; none for a text without tokens."""


@dataclass(frozen=True, slots=True)
class WindowContent:
    """What becomes of a window's documents: batches in order, dead letters, and counts of the rest."""

    batches: list[Batch]
    rejections: list[Rejection]
    filtered: list[Filtered]
    documents: int
    tokens: int

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
        )


def window_content(plan: Plan, encoder: Encoder, cut: Cut, records: Sequence[RawRecord]) -> WindowContent:
    """Tokenize, shuffle, pack and batch the records of one cut.

    Args:
        plan: the feed's plan.
        encoder: a tokenizer with the plan's fingerprint and BOS and EOS rules.
        cut: the valid cut of the window.
        records: exactly the raw records that lie in the cut's ranges, by source and offset.
    """
    documents, rejections, filtered = _sort_out(plan, records)
    encoded = encoder.encode_batch([document.text for document in documents])
    lengths = np.diff(encoded.offsets)
    kept = np.flatnonzero(lengths)
    filtered += [
        Filtered(document.source, document.offset, document.index, "empty")
        for document in (documents[index] for index in np.flatnonzero(lengths == 0))
    ]
    order = kept[permutation(len(kept), plan.seed, cut.stream, cut.window, "documents")]
    layout = pack(lengths[order], plan.sequence_length, plan.packing)
    layout = layout.reordered(permutation(layout.rows, plan.seed, cut.stream, cut.window, "rows"))
    origins = np.array([(d.offset, d.index, 0, d.source) for d in documents], dtype=np.int64).reshape(-1, 4)
    batches = list(_batches(plan, cut, layout, origins[order], encoded.ids, encoded.offsets[:-1][order]))
    return WindowContent(batches, rejections, filtered, len(kept), int(lengths.sum()))


def _sort_out(plan: Plan, records: Sequence[RawRecord]) -> tuple[list[Document], list[Rejection], list[Filtered]]:
    documents: list[Document] = []
    rejections: list[Rejection] = []
    filtered: list[Filtered] = []
    for outcome in decode_all(records, plan.record_format, plan.text_field, plan.id_field):
        match outcome:
            case Document():
                documents.append(outcome)
            case Rejection():
                rejections.append(outcome)
            case Filtered():
                filtered.append(outcome)
    return documents, rejections, filtered


def _batches(plan: Plan, cut: Cut, layout: Layout, origins: Ints, ids: npt.NDArray[Any], starts: Ints) -> Iterator[Batch]:
    """Cut the rows of a layout into batches. `origins` and `starts` are in the layout's document numbering."""
    rows, length = plan.batch_size, plan.sequence_length
    pieces = origins[layout.document]
    pieces[:, 2] = layout.first
    sources = starts[layout.document] + layout.first
    for index, row in enumerate(range(0, layout.rows, rows)):
        row_splits = layout.row_splits[row : row + rows + 1]
        row_splits = np.append(row_splits, np.repeat(row_splits[-1:], rows + 1 - len(row_splits)))
        held = slice(int(row_splits[0]), int(row_splits[-1]))
        row_splits = row_splits - row_splits[0]
        lens = layout.length[held]
        input_ids = np.full(rows * length, plan.pad_id, dtype=plan.token_dtype)
        input_ids[cells(lens, row_splits, length)] = ids[ranges(sources[held], lens)]
        yield Batch(
            plan=cut.plan,
            stream=cut.stream,
            number=cut.first + index,
            window=cut.window,
            input_ids=input_ids.reshape(rows, length),
            piece_lens=lens.astype(np.int32),
            row_splits=row_splits.astype(np.int32),
            origins=np.ascontiguousarray(pieces[held]),
        )
