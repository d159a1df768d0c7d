"""From a batch to what a model takes."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from tokenfeed.batches import Batch, cells
from tokenfeed.packing import ranges, splits

IGNORE: Final = -100  # the label that PyTorch's cross entropy leaves out
NO_DOCUMENT: Final = -1

Sample = dict[str, npt.NDArray[np.int64]]


def sample(batch: Batch) -> Sample:
    """Arrays of a batch, each int64 [B, L].

    - `input_ids`: token ids; pad ids behind the last piece of a row.
    - `labels`: the same, -100 on padding. Models shift them by one.
    - `position_ids`: 0, 1, ... from the start of each piece, and of a row's padding.
    - `document_ids`: 0, 1, ... for the pieces of a row, -1 on padding: tokens attend to their own number only.
    """
    rows, length = batch.input_ids.shape
    lens, row_splits = batch.piece_lens, batch.row_splits
    held = cells(lens, row_splits, length)
    fills = np.diff(splits(lens)[row_splits])
    counts = np.diff(row_splits)
    labels = np.full(rows * length, IGNORE, dtype=np.int64)
    documents = np.full(rows * length, NO_DOCUMENT, dtype=np.int64)
    positions = np.arange(length, dtype=np.int64)[None, :] - fills[:, None]
    labels[held] = batch.input_ids.reshape(-1)[held]
    documents[held] = np.repeat(ranges(np.zeros(rows, dtype=np.int64), counts), lens)
    positions.reshape(-1)[held] = ranges(np.zeros(len(lens), dtype=np.int64), lens)
    return {
        "input_ids": batch.input_ids.astype(np.int64),
        "labels": labels.reshape(rows, length),
        "position_ids": positions,
        "document_ids": documents.reshape(rows, length),
    }


def padding(rows: int, length: int, pad_id: int) -> Sample:
    """A batch of nothing but padding, for a rank without a batch in the last step: no label counts."""
    shape = (rows, length)
    return {
        "input_ids": np.full(shape, pad_id, dtype=np.int64),
        "labels": np.full(shape, IGNORE, dtype=np.int64),
        "position_ids": np.broadcast_to(np.arange(length, dtype=np.int64), shape).copy(),
        "document_ids": np.full(shape, NO_DOCUMENT, dtype=np.int64),
    }
