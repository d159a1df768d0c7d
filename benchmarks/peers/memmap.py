"""nanoGPT's way: rows of a memory-mapped file in random order, through a DataLoader. Arguments: ROWS.npy."""

from __future__ import annotations

import sys

import numpy as np
import torch
from reading import timed
from torch.utils.data import DataLoader, Dataset, RandomSampler

ROWS = 8


class Rows(Dataset):
    """Batches of 8 rows, so that a DataLoader has one item a batch to handle."""

    def __init__(self, path: str) -> None:
        self._rows = np.load(path, mmap_mode="r")

    def __len__(self) -> int:
        return len(self._rows) // ROWS

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.from_numpy(self._rows[index * ROWS : (index + 1) * ROWS].astype(np.int64))


dataset = Rows(sys.argv[1])
timed(DataLoader(dataset, batch_size=None, sampler=RandomSampler(dataset)), len(dataset) * ROWS * 2048)
