"""Where a stream ends is told by the valid cut alone, from wherever its ledger is read."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.feeds import make_cut, make_plan
from tokenfeed.ledger import Done, Entry
from tokenfeed.loader.ends import StreamEnd

PLAN = make_plan(streams=2)


def done(window: int, following: int) -> Done:
    return Done(plan=PLAN.id, stream=1, window=window, next=following, documents=1, tokens=1, rejected=0)


def learned(log: list[Entry], begin: int) -> int | None:
    """What is learned when reading starts at offset `begin`."""
    end = StreamEnd(1, PLAN.id)
    offset = begin
    passed = 0
    while offset < len(log):
        again = end.offer(offset, log[offset])
        if again is not None:
            stale = log[offset + 1 : offset + 3]  # had been fetched already
            assert [end.offer(offset + 1 + i, entry) for i, entry in enumerate(stale)] == [None] * len(stale)
            passed += 1
        offset = offset + 1 if again is None else again
    assert passed <= 1
    return end.batches


FIRST = make_cut(PLAN, [])
SECOND = replace(FIRST, window=1, first=4, previous=0)
LAST = replace(SECOND, reason="seal")
SEALED: list[Entry] = [FIRST, done(0, 4), LAST, LAST, done(1, 9), done(1, 9)]


@pytest.mark.parametrize("begin", [0, 1, 2, 3])
def test_a_sealed_stream_is_known_from_its_last_entries(begin: int) -> None:
    assert learned(SEALED, begin) == 9


def test_a_stream_of_one_window() -> None:
    assert learned([replace(FIRST, reason="seal"), done(0, 3)], 0) == 3


@pytest.mark.parametrize("begin", range(5))
def test_a_seal_that_came_too_late_ends_nothing(begin: int) -> None:
    third = replace(LAST, window=2, first=9, previous=2)
    log: list[Entry] = [FIRST, done(0, 4), SECOND, LAST, done(1, 9)]
    assert learned(log, begin) is None
    assert learned([*log, third, done(2, 12)], begin) == 12


def test_a_seal_counts_when_its_window_is_done() -> None:
    assert learned(SEALED[:4], 0) is None
