"""Reading on where a feed goes on under another plan: the same stream for all ranks and workers, resumable anywhere."""

from __future__ import annotations

import json
from itertools import islice
from typing import Any

import pytest

from tests.brokers import Broker
from tests.written import write_editions
from tokenfeed.errors import PlanMismatch
from tokenfeed.loader import Cursor, Feed, FeedReader, merge
from tokenfeed.loader.reader import LastStep
from tokenfeed.loader.torch import FeedDataset, FeedLoader
from tokenfeed.planning import read_editions
from tokenfeed.settings import Settings

FIRST, SECOND = [13, 0, 6], [3, 9, 1]


@pytest.fixture(scope="module")
def feed(module_broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Feed:
    return write_editions(module_broker, tmp_path_factory.mktemp("editions"), FIRST, SECOND)


@pytest.fixture(scope="module")
def module_broker(running: Any) -> Broker:
    broker: Broker = running("embedded")
    return broker


def oldest(feed: Feed) -> Cursor:
    return Cursor(read_editions(dict(feed.options), feed.plan_topic)[0].plan.id)


def samples(feed: Feed, rank: int, world: int, workers: int, state: Any, stop: int | None = None, **options: Any) -> Any:
    """Hashes of a rank's samples, None for padding, and its state then."""
    dataset = FeedDataset(feed, rank, world, follow=True, slot_timeout=20, **options)
    dataset.load_state_dict(state)
    given = [
        hash(tuple(one["input_ids"].reshape(-1).tolist())) if (one["labels"] >= 0).any() else None
        for one in islice(FeedLoader(dataset, workers), stop)
    ]
    return given, json.loads(json.dumps(dataset.state_dict()))


def expected(feed: Feed, world: int, last_step: LastStep) -> list[int | None]:
    """All samples in order: each plan's, up to whole steps."""
    every: list[int | None] = []
    for edition, counts in zip(read_editions(dict(feed.options), feed.plan_topic), (FIRST, SECOND), strict=True):
        with FeedReader(feed, cursor=Cursor(edition.plan.id), follow=True, slot_timeout=20) as reader:
            of_plan = [next(reader).batch for _ in range(sum(counts))]
        hashes = [hash(tuple(batch.input_ids.reshape(-1).tolist())) for batch in of_plan if batch is not None]
        assert len(set(hashes)) == sum(counts)
        rest = len(hashes) % world
        every += hashes[: len(hashes) - rest] if last_step == "drop" else [*hashes, *[None] * (-len(hashes) % world)]
    return every


@pytest.mark.parametrize("last_step", ["pad", "drop"])
@pytest.mark.parametrize(("world", "workers"), [(1, 0), (1, 2), (3, 1), (2, 2), (3, 0), (4, 2)])
def test_all_ranks_and_workers_read_one_stream_over_a_change(
    feed: Feed, world: int, workers: int, last_step: LastStep
) -> None:
    start = oldest(feed).to_state()
    ranks = [samples(feed, rank, world, workers, start, last_step=last_step)[0] for rank in range(world)]
    assert len({len(given) for given in ranks}) == 1
    together = [one for step in zip(*ranks, strict=True) for one in step]
    assert together == expected(feed, world, last_step)


@pytest.mark.parametrize(("world", "workers"), [(1, 2), (2, 1)])
def test_a_run_resumes_before_at_and_behind_a_change(feed: Feed, world: int, workers: int) -> None:
    start = oldest(feed).to_state()
    whole = expected(feed, world, "pad")
    for steps in (sum(FIRST) // world - 1, sum(FIRST) // world, sum(FIRST) // world + 1):
        ranks = [samples(feed, rank, world, workers, start, steps) for rank in range(world)]
        seen = [one for step in zip(*(given for given, _ in ranks), strict=True) for one in step]
        merged = merge(Cursor.from_state(state) for _, state in ranks).to_state()
        rest = [samples(feed, rank, world, 2 - workers, merged)[0] for rank in range(world)]
        assert seen + [one for step in zip(*rest, strict=True) for one in step] == whole


def test_a_reader_that_does_not_follow_ends_with_what_differs(feed: Feed) -> None:
    with FeedReader(feed, cursor=oldest(feed), slot_timeout=20) as reader:
        for _ in range(sum(FIRST)):
            next(reader)
        with pytest.raises(PlanMismatch, match="slots: 4 here, 6 there"):
            next(reader)


def test_none_expects_nothing_of_a_field() -> None:
    settings = Settings(sequence_length=512, batch_size=2)
    assert Feed.of(settings).expected == {"sequence_length": 512, "batch_size": 2}
    assert Feed.of(settings, sequence_length=None, vocab_size=9).expected == {"batch_size": 2, "vocab_size": 9}
