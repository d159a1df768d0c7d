"""The order of a further pass: a permutation inside the blocks of each slot, pinned for ever."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tokenfeed.loader.epochs import stands_at
from tokenfeed.loader.order import GlobalOrder, Place

SEED = 7
PINNED_1 = [(0, 3), (1, 1), (0, 2), (1, 3), (0, 1), (1, 2), (0, 0), (1, 0), (0, 4), (1, 5), (0, 6), (1, 4), (0, 5), (1, 6)]
PINNED_2 = [(0, 3), (1, 1), (0, 0), (1, 2), (0, 1), (1, 3), (0, 2), (1, 0), (0, 5), (1, 5), (0, 4), (1, 6), (0, 6), (1, 4)]


def order_of(epoch: int, block: int) -> list[tuple[int, int]]:
    """(slot, index) of every batch of a feed of streams of 11 and 3 batches over two slots."""
    order = GlobalOrder(2, 2)
    order.stream_ends(0, 11)
    order.stream_ends(1, 3)
    places = [place for number in range(14) if (place := order.locate(number)) is not None]
    return [(place.slot, stands_at(place, order.batches(place.slot) or 0, SEED, epoch, block)) for place in places]


def test_the_order_is_pinned() -> None:
    assert order_of(1, 4) == PINNED_1
    assert order_of(2, 4) == PINNED_2


@given(batches=st.integers(1, 40), block=st.integers(1, 12), epoch=st.integers(1, 3), slot=st.integers(0, 3))
def test_each_block_is_permuted_in_itself(batches: int, block: int, epoch: int, slot: int) -> None:
    found = [stands_at(Place(slot, index), batches, SEED, epoch, block) for index in range(batches)]
    for first in range(0, batches, block):
        assert sorted(found[first : first + block]) == list(range(first, min(batches, first + block)))
    if block == 1:
        assert found == list(range(batches))


def test_every_epoch_slot_and_block_has_an_order_of_its_own() -> None:
    found = {
        tuple(stands_at(Place(slot, first + i), 64, SEED, epoch, 32) - first for i in range(32))
        for slot in range(2)
        for epoch in (1, 2)
        for first in (0, 32)
    }
    assert len(found) == 8
