"""Bytes that no later version may change: they would change feeds that exist. tests/unit/test_permutation.py has more."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pytest

from tests.feeds import ByteTokenizer, make_cut, make_plan
from tokenfeed import ledger
from tokenfeed.batches import encode, envelope
from tokenfeed.content import window_content
from tokenfeed.documents import RawRecord
from tokenfeed.ledger import Piece
from tokenfeed.packing import pack

RECORDS = [RawRecord(0, offset, b"text %d " % offset * (1 + offset % 9)) for offset in range(40)]
CARRY = (Piece(0, 3, 0, 5, 11, 1), Piece(0, 8, 0, 0, 7, 2))


def digest(*parts: bytes) -> str:
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"packing": "best_fit", "carry": 0}, "9bd85e385e8ab15c"),
        ({"packing": "best_fit", "carry": 3}, "08b901d6473cdbe4"),
        ({"packing": "concatenate", "carry": 3}, "45679bace0358635"),
        ({"packing": "best_fit", "carry": 3, "vocab_size": 70_000}, "4fef7915493ef458"),
    ],
)
def test_the_bytes_of_a_window(changes: dict[str, Any], expected: str) -> None:
    plan = make_plan(sequence_length=32, batch_size=4, **changes)
    cut = make_cut(plan, RECORDS, window=5, ranges=((10, 40),), first=17, carry=CARRY if plan.carry else ())
    held = [record for record in RECORDS if record.offset >= 10 or (plan.carry and record.offset in (3, 8))]
    content = window_content(plan, ByteTokenizer(), cut, held)
    headers = [value for batch in content.batches for _, value in envelope(batch).headers()]
    found = digest(*map(encode, content.batches), *headers, ledger.encode(cut), ledger.encode(content.done(cut)))
    assert found == expected


def test_layouts() -> None:
    lengths = np.array([3, 40, 12, 7, 7, 16, 1, 25, 9, 30], dtype=np.int64)
    for packing, expected in (("best_fit", "422268a9597584e9"), ("concatenate", "c95430b7eec5b64d")):
        layout = pack(lengths, 16, packing)  # type: ignore[arg-type]
        arrays = (layout.document, layout.first, layout.length, layout.row_splits)
        assert digest(*(array.astype("<i8").tobytes() for array in arrays)) == expected


def test_the_plan_id() -> None:
    assert make_plan().id == "914258f6f149a283"
