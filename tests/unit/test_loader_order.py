"""The global order is one, for every rank, whatever it learns first."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenfeed.errors import WireError
from tokenfeed.loader.order import GlobalOrder, Place, SpanOrder, counts_by_slot, first_in_slot

shapes = st.tuples(st.integers(1, 5), st.integers(1, 6))
totals = st.lists(st.integers(0, 12), min_size=5, max_size=5)


def naive(finals: list[int], slots: int) -> list[Place]:
    """Sweep the slots again and again, passing over exhausted ones."""
    placed = [(p + q) % slots for p, final in enumerate(finals) for q in range(final)]
    counts = [placed.count(slot) for slot in range(slots)]
    order, index = [], 0
    while any(count > index for count in counts):
        order += [Place(slot, index) for slot in range(slots) if counts[slot] > index]
        index += 1
    return order


@given(shape=shapes, totals=totals)
def test_batches_are_counted_by_slot(shape: tuple[int, int], totals: list[int]) -> None:
    streams, slots = shape
    finals = totals[:streams]
    placed = [(p + q) % slots for p, final in enumerate(finals) for q in range(final)]
    expected = [placed.count(slot) for slot in range(slots)]
    assert counts_by_slot(np.array(finals), slots).tolist() == expected


@given(shape=shapes, totals=totals)
def test_a_sealed_feed_is_swept_to_its_last_batch(shape: tuple[int, int], totals: list[int]) -> None:
    streams, slots = shape
    finals = totals[:streams]
    order = GlobalOrder(streams, slots)
    for stream, final in enumerate(finals):
        order.stream_ends(stream, final)
    assert order.total == sum(finals)
    assert [order.locate(n) for n in range(sum(finals))] == naive(finals, slots)


@given(shape=shapes, totals=totals, seed=st.integers(0, 1000))
def test_nothing_is_placed_before_it_is_certain(shape: tuple[int, int], totals: list[int], seed: int) -> None:
    """Evidence arrives in any order; every answer ever given must be the final one."""
    streams, slots = shape
    finals = totals[:streams]
    right = naive(finals, slots)
    chosen = random.Random(seed)
    order = GlobalOrder(streams, slots)
    evidence = [(p, q + 1) for p, final in enumerate(finals) for q in range(final)]
    evidence += [(p, -1) for p in range(streams)]
    chosen.shuffle(evidence)
    for stream, batches in evidence:
        if batches < 0:
            order.stream_ends(stream, finals[stream])
        else:
            order.stream_has(stream, batches)
        assert order.at_least <= len(right)
        for number, place in enumerate(right):
            assert order.locate(number) in (None, place)


@given(shape=shapes, totals=totals)
def test_a_batch_is_placed_once_all_before_it_are_known(shape: tuple[int, int], totals: list[int]) -> None:
    streams, slots = shape
    order = GlobalOrder(streams, slots)
    for number, place in enumerate(naive(totals[:streams], slots)):
        if divmod(number, slots) != (place.index, place.slot):
            break  # from here on a slot has ended, which only seals can tell
        assert order.locate(number) is None
        order.slot_has(place.slot, place.index + 1)
        assert order.locate(number) == place


@given(shape=shapes, totals=totals, starts=totals)
def test_a_span_is_swept_to_its_last_batch(shape: tuple[int, int], totals: list[int], starts: list[int]) -> None:
    streams, slots = shape
    first = [min(pair) for pair in zip(starts[:streams], totals, strict=False)]
    order = SpanOrder(first, totals[:streams], slots)
    placed = [
        [(p + q) % slots for q in range(start, end)] for p, (start, end) in enumerate(zip(first, totals, strict=False))
    ]
    counts = [sum(numbers.count(slot) for numbers in placed) for slot in range(slots)]
    order.stream_has(0, 1000)
    order.slot_has(0, 1000)
    order.stream_ends(0, 1000)
    assert order.total == sum(counts)
    assert [order.batches(slot) for slot in range(slots)] == counts
    swept = [Place(slot, i) for i in range(max(counts)) for slot in range(slots) if counts[slot] > i]
    assert [order.locate(number) for number in range(sum(counts))] == swept


@given(slots=st.integers(1, 6), first=totals, slot=st.integers(0, 5))
def test_the_first_numbers_in_a_slot(slots: int, first: list[int], slot: int) -> None:
    slot %= slots
    expected = [next(q for q in range(start, start + slots) if (p + q) % slots == slot) for p, start in enumerate(first)]
    assert list(first_in_slot(first, slot, slots)) == expected


def test_seals_of_different_slots_must_agree() -> None:
    order = GlobalOrder(2, 3)
    order.stream_ends(1, 8)
    order.stream_ends(1, 8)
    with pytest.raises(WireError, match="stream 1 has 8 batches by one seal, 9 by another"):
        order.stream_ends(1, 9)


def test_no_batch_may_stand_behind_its_stream_s_end() -> None:
    order = GlobalOrder(2, 3)
    order.stream_ends(0, 8)
    with pytest.raises(WireError, match="stream 0 ends with 8 batches, but has at least 9"):
        order.stream_has(0, 9)
    order.stream_has(1, 6)
    with pytest.raises(WireError, match="stream 1 ends with 5 batches, but has at least 6"):
        order.stream_ends(1, 5)
