"""The figures of a chaos report are what they say."""

from __future__ import annotations

from tests.chaos.harness import longest_pause


def test_the_longest_pause_counts_from_the_fault_to_the_end_of_production() -> None:
    assert longest_pause([[9.0, 12.0, 13.0, 19.5]], 10.0, 20.0) == 6.5
    assert longest_pause([[12.0, 13.0], [11.0, 19.0]], 10.0, 20.0) == 8.0
    assert longest_pause([[12.0, 16.0, 40.0]], 10.0, 20.0) == 4.0


def test_a_stream_that_acknowledged_nothing_paused_all_the_time() -> None:
    assert longest_pause([[11.0, 15.0, 19.0], []], 10.0, 20.0) == 10.0
