"""Small feeds made on the spot, and a tokenizer that needs no files: one token a byte."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tokenfeed.documents import RawRecord
from tokenfeed.ledger import Cut
from tokenfeed.packing import splits
from tokenfeed.plan import Plan

END = 256


@dataclass(frozen=True)
class Tokens:
    """Flat ids and offsets."""

    ids: np.ndarray[Any, np.dtype[np.uint32]]
    offsets: np.ndarray[Any, np.dtype[np.int64]]


class ByteTokenizer:
    """UTF-8 bytes as ids, END behind every document that has any."""

    def encode(self, text: str) -> list[int]:
        return [*text.encode(), END] if text.strip() else []

    def encode_batch(self, texts: Sequence[str], /) -> Tokens:
        encoded = [self.encode(text) for text in texts]
        lengths = np.array([len(ids) for ids in encoded], dtype=np.int64)
        return Tokens(np.array([i for ids in encoded for i in ids], dtype=np.uint32), splits(lengths))


def make_plan(**changes: Any) -> Plan:
    """A plan of the byte tokenizer with small rows."""
    values: dict[str, Any] = {
        "seed": 7,
        "sequence_length": 16,
        "batch_size": 3,
        "slots": 4,
        "streams": 2,
        "sources": ("raw",),
        "tokenizer": "bytes",
        "vocab_size": 257,
        "bos": "none",
        "eos": "append",
        "bos_id": -1,
        "eos_id": END,
        "pad_id": END,
        "packing": "best_fit",
        "carry": 0,
        "record_format": "auto",
        "text_field": "text",
        "id_field": "id",
    }
    return Plan(**values | changes)


def make_cut(plan: Plan, records: Sequence[RawRecord], **changes: Any) -> Cut:
    """A cut that takes these records."""
    ends = [0] * len(plan.sources)
    for record in records:
        ends[record.source] = record.offset + 1
    values: dict[str, Any] = {
        "plan": plan.id,
        "stream": 1,
        "window": 0,
        "ranges": tuple((0, end) for end in ends),
        "first": 0,
        "previous": -1,
        "reason": "documents",
        "worker": "test",
    }
    return Cut(**values | changes)
