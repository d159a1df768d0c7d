"""Further passes over a sealed feed: the same batches in another order, for any number of ranks, resumable anywhere."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.brokers import Broker
from tests.written import UNEVEN, Key, interleaved, read, write_feed
from tokenfeed.errors import CursorError, FeedStalledError
from tokenfeed.loader import Cursor, Feed, FeedReader, merge
from tokenfeed.loader.torch import FeedDataset, FeedLoader

TOTAL = sum(UNEVEN)
BLOCK = 3


@pytest.fixture
def feed(embedded: Broker, tmp_path: Path) -> Feed:
    return write_feed(embedded, tmp_path, UNEVEN)


def reader(feed: Feed, rank: int = 0, world: int = 1, epoch: int = 1, **options: Any) -> FeedReader:
    return FeedReader(feed, rank, world, **{"epoch": epoch, "shuffle_batches": BLOCK, "slot_timeout": 20} | options)


@pytest.fixture
def passes(feed: Feed) -> list[list[Key]]:
    """The orders of epochs 0, 1 and 2."""
    return [read(reader(feed, epoch=epoch))[0] for epoch in range(3)]


def test_epochs_are_permutations_of_each_other(feed: Feed, passes: list[list[Key]]) -> None:
    assert Counter(passes[0]) == Counter((p, q) for p, count in enumerate(UNEVEN) for q in range(count))
    assert Counter(passes[0]) == Counter(passes[1]) == Counter(passes[2])
    assert len(set(map(tuple, passes))) == 3
    assert read(reader(feed, shuffle_batches=1))[0] == passes[0]
    assert read(reader(feed, epoch=0))[0] == passes[0]


@pytest.mark.parametrize("world", [2, 3, 4, 5])
def test_an_epoch_does_not_depend_on_the_number_of_ranks(feed: Feed, passes: list[list[Key]], world: int) -> None:
    ranks = [read(reader(feed, rank, world, prefetch_bytes=1))[0] for rank in range(world)]
    assert interleaved(ranks) == passes[1]


@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 1), (4, 3)])
def test_an_epoch_goes_on_at_every_batch(embedded: Broker, tmp_path: Path, before: int, after: int) -> None:
    feed = write_feed(embedded, tmp_path, [11, 0, 4, 1])
    whole = read(reader(feed))[0]
    for step in range(16 // before + 1):
        firsts = [read(reader(feed, rank, before), step) for rank in range(before)]
        seen = interleaved([keys for keys, _ in firsts])
        state = merge(Cursor.from_state(cursor.to_state()) for _, cursor in firsts)
        rest = [read(reader(feed, rank, after, epoch=None, cursor=state))[0] for rank in range(after)]
        assert seen + interleaved(rest) == whole, step


def test_positions_follow_the_blocks(feed: Feed) -> None:
    """A run that goes on late in an epoch does not read the feed from its start."""
    with reader(feed) as one:
        for delivered in one:
            place = delivered.number // 4  # all four slots have six batches or more
            if place < 6:
                taken = [position.taken for position in one.cursor.slots.values()]
                assert all(count in (place - place % BLOCK, place - place % BLOCK + BLOCK) for count in taken)


def test_a_buffer_smaller_than_a_block_suffices(feed: Feed, passes: list[list[Key]]) -> None:
    whole = read(reader(feed, shuffle_batches=64))[0]
    assert Counter(whole) == Counter(passes[0])
    little = replace(feed, options={**feed.options, "queued.min.messages": 1, "fetch.message.max.bytes": 1500})
    assert read(reader(little, shuffle_batches=64, prefetch_bytes=1))[0] == whole
    assert read(reader(little, prefetch_bytes=1))[0] == passes[1]


def test_a_feed_that_has_not_ended_has_one_epoch(embedded: Broker, tmp_path: Path) -> None:
    feed = write_feed(embedded, tmp_path, [9, 5], sealed=False)
    assert len(read(reader(feed, epoch=0), 14)[0]) == 14
    with (
        reader(feed, slot_timeout=2) as one,
        pytest.raises(FeedStalledError, match=r"epoch 1 gives a sealed feed again, but stream 0, stream 1 has not ended"),
    ):
        next(one)


def test_a_state_says_which_order_it_is_of(feed: Feed) -> None:
    state = read(reader(feed), 5)[1]
    with pytest.raises(CursorError, match="shuffle_batches=3; 64 is another order"):
        FeedReader(feed, cursor=state)
    with pytest.raises(CursorError, match="of epoch 1: epoch 2 begins without a state"):
        reader(feed, epoch=2, cursor=state)
    with pytest.raises(CursorError, match="epoch -1"):
        reader(feed, epoch=-1)
    with pytest.raises(CursorError, match="epoch -1"):
        FeedDataset(feed).set_epoch(-1)


@pytest.mark.parametrize("workers", [0, 2])
def test_the_loop_over_epochs(feed: Feed, passes: list[list[Key]], workers: int) -> None:
    def ids(dataset: FeedDataset, epochs: range, stop: int | None = None) -> list[int]:
        found = []
        for epoch in epochs:
            dataset.set_epoch(epoch)
            for sample in FeedLoader(dataset, workers):
                found.append(hash(tuple(sample["input_ids"].reshape(-1).tolist())))
                if len(found) == stop:
                    return found
        return found

    whole = ids(FeedDataset(feed, shuffle_batches=BLOCK), range(2))
    assert len(set(whole)) == TOTAL
    assert whole[TOTAL:] == [whole[passes[0].index(key)] for key in passes[1]]
    dataset, again = FeedDataset(feed, shuffle_batches=BLOCK), FeedDataset(feed, shuffle_batches=BLOCK)
    seen = ids(dataset, range(2), stop=TOTAL + 10)
    again.load_state_dict(dataset.state_dict())
    dataset.close()
    assert again.epoch == 1
    assert seen + ids(again, range(again.epoch, 2)) == whole


def test_a_new_epoch_has_a_state_before_its_first_batch(feed: Feed) -> None:
    dataset, again = FeedDataset(feed), FeedDataset(feed)
    next(iter(dataset))
    dataset.set_epoch(3)
    again.load_state_dict(dataset.state_dict())
    dataset.close()
    assert (again.epoch, again.state_dict()["next"], again.state_dict()["slots"]) == (3, 0, {})
