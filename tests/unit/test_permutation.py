"""The order is a fixed function of its parts, forever."""

from __future__ import annotations

import hashlib

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tokenfeed.permutation import permutation

GOLDEN_0 = [4, 0, 8, 2, 1, 6, 7, 3, 9, 5]
GOLDEN_1 = [4, 6, 0, 7, 1, 3, 5, 2, 8, 9]


def test_golden_orders_never_change() -> None:
    assert permutation(10, 0, 0, 0, "documents").tolist() == GOLDEN_0
    assert permutation(10, 7, 3, 12, "rows").tolist() == GOLDEN_1
    large = permutation(10_000, 7, 3, 12, "rows").astype("<i8").tobytes()
    assert hashlib.sha256(large).hexdigest()[:16] == "f18ad655121d2020"


@given(size=st.integers(0, 300), seed=st.integers(0, 2**40))
def test_every_element_appears_once(size: int, seed: int) -> None:
    assert sorted(permutation(size, seed).tolist()) == list(range(size))


def test_neighbouring_windows_have_unrelated_orders() -> None:
    orders = np.stack([permutation(1000, 1, 0, window, "documents") for window in range(20)])
    correlation = np.corrcoef(orders)
    assert np.abs(correlation[~np.eye(20, dtype=bool)]).max() < 0.2
