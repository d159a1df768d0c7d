"""The demo says no when something is lost, doubled or altered."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from examples.demo.corpus import digest
from examples.demo.report import Report, audit

EXPECTED = Counter({digest([1, 2, 3, 9]): 1, digest([4, 9]): 2})
# stream, offset, index, first token, length
PIECES = [((0, 0, 0, 0, 3), [1, 2, 3]), ((0, 0, 0, 3, 1), [9]), ((1, 0, 0, 0, 2), [4, 9]), ((1, 1, 0, 0, 2), [4, 9])]


def report_of(pieces: list[tuple[tuple[int, ...], list[int]]], folder: Path) -> Report:
    origins = np.array([origin for origin, _ in pieces])
    ids = np.array([token for _, tokens in pieces for token in tokens], dtype=np.int32)
    np.savez(folder / "rank.npz", origins=origins, ids=ids, batches=1, losses=np.linspace(5, 4, 40))
    return audit([folder / "rank.npz"], EXPECTED, 8, 16)


def test_a_whole_feed_passes_in_whatever_order(tmp_path: Path) -> None:
    report = report_of(PIECES[::-1], tmp_path)
    assert report.ok
    assert (report.documents, report.tokens, report.lost, report.duplicated, report.fill) == (3, 8, 0, 0, 0.5)


@pytest.mark.parametrize(
    ("pieces", "lost", "duplicated"),
    [
        (PIECES[:-1], 1, 0),
        (PIECES[1:], 1, 1),  # half a document: the whole one is lost, and what came is none of the corpus
        ([*PIECES, PIECES[0]], 1, 2),
        ([*PIECES[:-1], ((1, 1, 0, 0, 2), [5, 9])], 1, 1),
    ],
)
def test_a_feed_that_is_not_whole_fails(
    pieces: list[tuple[tuple[int, ...], list[int]]], lost: int, duplicated: int, tmp_path: Path
) -> None:
    report = report_of(pieces, tmp_path)
    assert not report.ok
    assert (report.lost, report.duplicated) == (lost, duplicated)


def test_a_loss_that_does_not_fall_fails() -> None:
    values = {"documents": 1, "tokens": 1, "tokens_expected": 1, "batches": 1, "fill": 1.0, "steps": 2}
    assert Report(**values, loss_first=2.0, loss_last=1.0, lost=0, duplicated=0).ok
    assert not Report(**values, loss_first=1.0, loss_last=1.0, lost=0, duplicated=0).ok
