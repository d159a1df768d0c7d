"""From a batch to what a model takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args

import numpy as np
import numpy.typing as npt

from tokenfeed.batches import Batch
from tokenfeed.packing import Ints, ranges, splits

IGNORE: Final = -100  # the label that PyTorch's cross entropy leaves out
NO_DOCUMENT: Final = -1

Field = Literal["input_ids", "labels", "position_ids", "document_ids"]
Sample = dict[str, npt.NDArray[np.int64]]

FIELDS: Final[tuple[Field, ...]] = get_args(Field)


def sample(batch: Batch, fields: Sequence[Field] = FIELDS) -> Sample:
    """Arrays of a batch, each int64 [B, L].

    - `input_ids`: token ids; pad ids behind the last piece of a row.
    - `labels`: the same, -100 on padding. Models shift them by one.
    - `position_ids`: 0, 1, ... from the start of each piece, and of a row's padding.
    - `document_ids`: 0, 1, ... for the pieces of a row, -1 on padding: tokens attend to their own number only.
    """
    spans = _Spans.of(batch) if set(fields) != {"input_ids"} else None
    made: Sample = {}
    for field in fields:
        if field == "input_ids" or spans is None:
            made[field] = batch.input_ids.astype(np.int64)
        elif field == "labels":
            made[field] = spans.labels(batch.input_ids)
        elif field == "position_ids":
            made[field] = spans.positions()
        else:
            made[field] = spans.documents()
    return made


@dataclass(frozen=True, slots=True)
class _Spans:
    """All cells of a batch as spans: the pieces of each row, and behind them its padding, which may be empty.

    Attributes:
        lens: cells a span, int64 [D + B].
        ends: spans of row r end at ends[r], its padding being the last, int64 [B].
        shape: B, L.
    """

    lens: Ints
    ends: Ints
    shape: tuple[int, int]

    @classmethod
    def of(cls, batch: Batch) -> _Spans:
        rows, length = batch.input_ids.shape
        ends = batch.row_splits[1:].astype(np.int64)
        fills = np.diff(splits(batch.piece_lens)[batch.row_splits])
        return cls(np.insert(batch.piece_lens, ends, length - fills), ends + np.arange(1, rows + 1), (rows, length))

    def labels(self, input_ids: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
        labels = input_ids.astype(np.int64)
        for row, padded in enumerate(self.lens[self.ends - 1].tolist()):
            if padded:
                labels[row, -padded:] = IGNORE
        return labels

    def positions(self) -> npt.NDArray[np.int64]:
        starts = np.repeat(splits(self.lens)[:-1], self.lens)
        return np.subtract(np.arange(starts.size), starts, out=starts).reshape(self.shape)

    def documents(self) -> npt.NDArray[np.int64]:
        counts = np.diff(self.ends, prepend=0)
        numbers = ranges(np.zeros(len(counts), dtype=np.int64), counts)
        numbers[self.ends - 1] = NO_DOCUMENT
        return np.repeat(numbers, self.lens).reshape(self.shape)


def padding(rows: int, length: int, pad_id: int) -> Sample:
    """A batch of nothing but padding, for a rank without a batch in the last step: no label counts."""
    shape = (rows, length)
    return {
        "input_ids": np.full(shape, pad_id, dtype=np.int64),
        "labels": np.full(shape, IGNORE, dtype=np.int64),
        "position_ids": np.broadcast_to(np.arange(length, dtype=np.int64), shape).copy(),
        "document_ids": np.full(shape, NO_DOCUMENT, dtype=np.int64),
    }
