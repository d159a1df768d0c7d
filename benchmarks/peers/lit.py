"""litdata on local chunks of tokens. Arguments: prepare ROWS.npy FOLDER, or read FOLDER."""

from __future__ import annotations

import sys
from functools import partial

import numpy as np
import torch
from litdata import StreamingDataLoader, StreamingDataset, TokensLoader, optimize
from reading import timed

ROWS, LENGTH = 8, 2048


def rows_of(path: str, start: int) -> torch.Tensor:
    rows = np.load(path, mmap_mode="r")
    return torch.from_numpy(rows[start : start + 512].reshape(-1).copy())


def prepare(rows: str, folder: str) -> None:
    count = len(np.load(rows, mmap_mode="r")) // 512 * 512
    optimize(
        fn=partial(rows_of, rows),
        inputs=list(range(0, count, 512)),
        output_dir=folder,
        chunk_size=2048 * LENGTH,
        item_loader=TokensLoader(block_size=LENGTH),
        num_workers=1,
    )


def read(folder: str) -> None:
    dataset = StreamingDataset(folder, item_loader=TokensLoader(block_size=LENGTH), shuffle=True, drop_last=True)
    batches = StreamingDataLoader(dataset, batch_size=ROWS, num_workers=0)
    timed((batch.long() for batch in batches), len(dataset) * LENGTH)


if __name__ == "__main__":
    {"prepare": prepare, "read": read}[sys.argv[1]](*sys.argv[2:])
