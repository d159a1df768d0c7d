"""mosaicml-streaming on local MDS shards. Arguments: prepare ROWS.npy FOLDER, or read FOLDER.

Tuned: a sample is a whole batch of 8 rows, a fixed-shape array, so that its cost a sample is paid once in 16k tokens.
"""

from __future__ import annotations

import sys

import numpy as np
from reading import timed
from streaming import MDSWriter, StreamingDataset
from torch.utils.data import DataLoader

ROWS, LENGTH = 8, 2048


def prepare(rows: str, folder: str) -> None:
    with MDSWriter(out=folder, columns={"tokens": f"ndarray:int32:{ROWS},{LENGTH}"}, size_limit=2**26) as writer:
        loaded = np.load(rows, mmap_mode="r")
        for start in range(0, len(loaded) // ROWS * ROWS, ROWS):
            writer.write({"tokens": np.ascontiguousarray(loaded[start : start + ROWS])})


def read(folder: str) -> None:
    dataset = StreamingDataset(local=folder, shuffle=True, batch_size=1)
    batches = DataLoader(dataset, batch_size=None)
    timed((sample["tokens"].long() for sample in batches), len(dataset) * ROWS * LENGTH)


{"prepare": prepare, "read": read}[sys.argv[1]](*sys.argv[2:])
