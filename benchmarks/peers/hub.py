"""Hugging Face datasets: JSON lines, streamed, tokenized and packed on the way into a DataLoader.

Arguments: FILE.jsonl ENGINE TOKENS (how many there are). ENGINE is tokenizers or gigatoken.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import torch
from common import Encoder
from datasets import load_dataset
from reading import timed
from torch.utils.data import DataLoader

ROWS, LENGTH = 8, 2048


def main(path: str, engine: str, expected: str) -> None:
    encoder = Encoder(engine)

    def packed(documents: dict[str, list[str]]) -> dict[str, Any]:
        tokens = np.frombuffer(encoder.encode(documents["text"]), dtype=np.int32)
        full = len(tokens) // LENGTH * LENGTH
        return {"input_ids": tokens[:full].reshape(-1, LENGTH)}

    stream = load_dataset("json", data_files=path, split="train", streaming=True)
    rows = stream.map(packed, batched=True, batch_size=1000, remove_columns=stream.column_names).with_format("numpy")

    def collate(samples: list[dict[str, Any]]) -> torch.Tensor:
        return torch.from_numpy(np.stack([sample["input_ids"] for sample in samples]).astype(np.int64))

    timed(DataLoader(rows, batch_size=ROWS, collate_fn=collate), int(expected))


main(*sys.argv[1:])
