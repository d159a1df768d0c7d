"""From a batch to what a model takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, Literal, TypedDict, get_args

import numpy as np
import numpy.typing as npt

from tokenfeed.batches import Batch
from tokenfeed.packing import Ints, splits

IGNORE: Final = -100  # the label that PyTorch's cross entropy leaves out
NO_DOCUMENT: Final = -1

Field = Literal["input_ids", "labels", "position_ids", "document_ids"]
Sample = dict[str, npt.NDArray[np.int64]]


class FlatSample(TypedDict):
    """See `flattened`."""

    input_ids: Ints
    labels: Ints
    position_ids: Ints
    cu_seq_lens_q: npt.NDArray[np.int32]
    cu_seq_lens_k: npt.NDArray[np.int32]
    max_length_q: int
    max_length_k: int


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


def flattened(batch: Batch) -> FlatSample:
    """The pieces of a batch end to end without padding, T tokens of D pieces, for padding-free attention.

    They are what transformers' DataCollatorWithFlattening makes of the pieces with `return_flash_attn_kwargs=True`:

    - `input_ids`, int64 [1, T].
    - `labels`, int64 [1, T]: the same, -100 for the first token of each piece, which nothing before it predicts.
    - `position_ids`, int64 [1, T]: 0, 1, ... from the start of each piece.
    - `cu_seq_lens_q`, `cu_seq_lens_k`, int32 [D + 1]: where pieces begin, and T.
    - `max_length_q`, `max_length_k`: tokens of the longest piece.
    """
    lens = batch.piece_lens.tolist()
    starts = splits(batch.piece_lens)
    rows = zip(batch.input_ids, np.diff(starts[batch.row_splits]).tolist(), strict=True)
    return _flat(np.concatenate([row[:filled] for row, filled in rows]).astype(np.int64), lens)


def _flat(ids: Ints, lens: list[int]) -> FlatSample:
    starts = splits(np.array(lens, dtype=np.int64))
    labels = ids.copy()
    labels[starts[:-1]] = IGNORE
    counting = np.arange(max(lens), dtype=np.int64)
    positions = np.concatenate([counting[:length] for length in lens])
    cumulative = starts.astype(np.int32)
    return {
        "input_ids": ids[None],
        "labels": labels[None],
        "position_ids": positions[None],
        "cu_seq_lens_q": cumulative,
        "cu_seq_lens_k": cumulative,
        "max_length_q": max(lens),
        "max_length_k": max(lens),
    }


def flattened_padding(length: int, pad_id: int) -> FlatSample:
    """One piece of nothing but padding, for a rank without a batch in the last step: no label counts."""
    found = _flat(np.full(length, pad_id, dtype=np.int64), [length])
    found["labels"][:] = IGNORE
    return found


@dataclass(frozen=True, slots=True)
class _Spans:
    """All cells of a batch as spans: the pieces of each row, and behind them its padding, which may be empty.

    Lists, because there are some tens of spans in a batch: numpy would take longer to begin than Python to finish.

    Attributes:
        lens: cells of each span.
        numbers: the piece's number within its row, -1 for padding.
        padded: cells of padding in each row.
        shape: (B, L).
    """

    lens: list[int]
    numbers: list[int]
    padded: list[int]
    shape: tuple[int, int]

    @classmethod
    def of(cls, batch: Batch) -> _Spans:
        rows, length = batch.input_ids.shape
        pieces = batch.piece_lens.tolist()
        lens: list[int] = []
        numbers: list[int] = []
        padded: list[int] = []
        for start, end in pairwise(batch.row_splits.tolist()):
            row = pieces[start:end]
            padded.append(length - sum(row))
            lens += [*row, padded[-1]]
            numbers += [*range(len(row)), NO_DOCUMENT]
        return cls(lens, numbers, padded, (rows, length))

    def labels(self, input_ids: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
        labels = input_ids.astype(np.int64)
        for row, padded in enumerate(self.padded):
            if padded:
                labels[row, -padded:] = IGNORE
        return labels

    def positions(self) -> npt.NDArray[np.int64]:
        counting = np.arange(self.shape[1], dtype=np.int64)
        return np.concatenate([counting[:length] for length in self.lens]).reshape(self.shape)

    def documents(self) -> npt.NDArray[np.int64]:
        return np.repeat(np.array(self.numbers, dtype=np.int64), self.lens).reshape(self.shape)


def padding(rows: int, length: int, pad_id: int) -> Sample:
    """A batch of nothing but padding, for a rank without a batch in the last step: no label counts."""
    shape = (rows, length)
    return {
        "input_ids": np.full(shape, pad_id, dtype=np.int64),
        "labels": np.full(shape, IGNORE, dtype=np.int64),
        "position_ids": np.broadcast_to(np.arange(length, dtype=np.int64), shape).copy(),
        "document_ids": np.full(shape, NO_DOCUMENT, dtype=np.int64),
    }
