"""DataLoader workers: the same samples as without them, and the state of the sample that was yielded last."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

from tests.brokers import Broker
from tests.written import UNEVEN, interleaved, read, write_feed
from tokenfeed.errors import CursorError
from tokenfeed.loader import Cursor, Feed, FeedReader, merge
from tokenfeed.loader.torch import FeedDataset, FeedLoader

TOTAL = sum(UNEVEN)


@pytest.fixture
def feed(embedded: Broker, tmp_path: Path) -> Feed:
    return write_feed(embedded, tmp_path, UNEVEN)


def dataset_of(feed: Feed, rank: int, world: int, state: dict[str, Any] | None = None, **options: Any) -> FeedDataset:
    dataset = FeedDataset(feed, rank, world, slot_timeout=20, **options)
    dataset.load_state_dict(state or {})
    return dataset


def first_ids(samples: Iterator[dict[str, torch.Tensor]], stop: int | None = None) -> list[int | None]:
    """A hash of each sample; None for padding."""
    return [
        hash(tuple(sample["input_ids"].reshape(-1).tolist())) if (sample["labels"] >= 0).any() else None
        for sample in islice(samples, stop)
    ]


@pytest.fixture
def everything(feed: Feed) -> list[int | None]:
    with FeedReader(feed) as reader:
        found = [hash(tuple(one.batch.input_ids.reshape(-1).tolist())) for one in reader if one.batch is not None]
    assert len(set(found)) == TOTAL
    return list(found)


@pytest.mark.parametrize("workers", [0, 1, 2])
@pytest.mark.parametrize("world", [1, 2, 3])
def test_workers_change_nothing(feed: Feed, everything: list[int | None], world: int, workers: int) -> None:
    given = [first_ids(iter(FeedLoader(dataset_of(feed, rank, world), workers))) for rank in range(world)]
    assert interleaved(given) == everything  # type: ignore[arg-type,comparison-overlap]
    dropped = [
        first_ids(iter(FeedLoader(dataset_of(feed, rank, world, last_step="drop"), workers))) for rank in range(world)
    ]
    assert {len(one) for one in dropped} == {TOTAL // world}
    assert interleaved(dropped) == everything[: TOTAL // world * world]  # type: ignore[arg-type,comparison-overlap]


@pytest.mark.parametrize(
    ("before", "after"), [((1, 2), (2, 1)), ((2, 2), (1, 0)), ((3, 1), (2, 2)), ((2, 0), (3, 2)), ((1, 1), (1, 2))]
)
def test_a_run_goes_on_with_other_ranks_and_workers(
    feed: Feed, everything: list[int | None], before: tuple[int, int], after: tuple[int, int]
) -> None:
    (world, workers), (world_after, workers_after) = before, after
    for step in (3, TOTAL // world):
        datasets = [dataset_of(feed, rank, world) for rank in range(world)]
        seen = interleaved([first_ids(iter(FeedLoader(one, workers)), step) for one in datasets])  # type: ignore[misc]
        states = [json.loads(json.dumps(dataset.state_dict())) for dataset in datasets]
        state = merge(map(Cursor.from_state, states)).to_state()
        rest = [
            first_ids(iter(FeedLoader(dataset_of(feed, rank, world_after, state), workers_after)))
            for rank in range(world_after)
        ]
        assert seen + interleaved(rest) == everything  # type: ignore[arg-type,comparison-overlap]


def test_the_state_does_not_run_ahead_of_what_was_yielded(feed: Feed) -> None:
    plain, ahead = dataset_of(feed, 0, 1), dataset_of(feed, 0, 1)
    samples = iter(FeedLoader(ahead, 2, prefetch_factor=4))
    for count, _ in enumerate(FeedLoader(plain), 1):
        next(samples)
        if count == 1:
            time.sleep(1)  # for the workers to prepare what they may
        state, expected = ahead.state_dict(), plain.state_dict()
        assert (state["next"], state["slots"]) == (count, expected["slots"])
    assert next(samples, None) is None
    assert ahead.state_dict()["finals"] == {str(stream): final for stream, final in enumerate(UNEVEN)}


def test_iterating_again_goes_on_where_the_last_iteration_stopped(feed: Feed, everything: list[int | None]) -> None:
    dataset = dataset_of(feed, 0, 1)
    seen = first_ids(iter(FeedLoader(dataset)), 5)  # leaves a reader in this process, which workers must not touch
    seen += first_ids(iter(FeedLoader(dataset, 2)), 4)
    seen += first_ids(iter(FeedLoader(dataset, 1)), 2)
    assert seen + first_ids(iter(FeedLoader(dataset))) == everything


def test_a_reader_of_this_process_goes_on_while_workers_read(feed: Feed, everything: list[int | None]) -> None:
    other = iter(FeedLoader(dataset_of(feed, 0, 1)))
    seen = first_ids(other, 3)
    assert first_ids(iter(FeedLoader(dataset_of(feed, 0, 1), 2))) == everything
    assert seen + first_ids(other) == everything


def test_workers_need_not_be_forked(feed: Feed, everything: list[int | None]) -> None:
    dataset = dataset_of(feed, 0, 1)
    seen = first_ids(iter(FeedLoader(dataset)), 3)
    assert seen + first_ids(iter(FeedLoader(dataset, 1, multiprocessing_context="spawn"))) == everything


def test_an_error_of_a_worker_reaches_the_trainer(feed: Feed) -> None:
    dataset = dataset_of(feed, 0, 1, Cursor("other").to_state())
    with pytest.raises(CursorError, match="plan other"):
        next(iter(FeedLoader(dataset, 1)))


def test_a_plain_dataloader_with_workers_is_refused(feed: Feed) -> None:
    with pytest.raises(CursorError, match=r"use FeedLoader\(dataset, num_workers=N\)"):
        next(iter(DataLoader(dataset_of(feed, 0, 1), batch_size=None, num_workers=1)))


@pytest.mark.parametrize(("world", "workers"), [(1, 1), (1, 3), (2, 2), (4, 2), (3, 2)])
def test_the_parts_of_a_rank_make_up_the_rank(feed: Feed, world: int, workers: int) -> None:
    cursor = read(FeedReader(feed, 0, 1), 3)[1]
    for rank in range(world):
        whole = read(FeedReader(feed, rank, world, cursor=cursor, step_batches=2 * world))[0]
        parts = [
            read(FeedReader(feed, rank, world, cursor=cursor, step_batches=2 * world, part=(worker, workers)))[0]
            for worker in range(workers)
        ]
        assert [parts[i % workers][i // workers] for i in range(len(whole))] == whole
        assert sum(map(len, parts)) == len(whole)


def test_a_part_that_is_none_is_refused(feed: Feed) -> None:
    with pytest.raises(CursorError, match="part 2 of 2"):
        FeedReader(feed, part=(2, 2))


def test_persistent_workers_begin_where_the_last_iteration_stopped(feed: Feed, everything: list[int | None]) -> None:
    dataset = dataset_of(feed, 0, 1)
    loader = FeedLoader(dataset, 2, persistent_workers=True)
    seen = first_ids(iter(loader), 5)
    pids = {worker.pid for worker in loader._iterator._workers}  # type: ignore[union-attr]
    seen += first_ids(iter(loader), 4)
    assert seen + first_ids(iter(loader)) == everything
    assert {worker.pid for worker in loader._iterator._workers} == pids  # type: ignore[union-attr]
    assert first_ids(iter(loader)) == []
    loader.set_epoch(1)
    plain = dataset_of(feed, 0, 1)
    plain.set_epoch(1)
    assert first_ids(iter(loader)) == first_ids(iter(FeedLoader(plain))) != everything


def test_the_state_of_other_workers_is_refused(feed: Feed) -> None:
    loader = StatefulDataLoader(dataset_of(feed, 0, 1), batch_size=None, num_workers=2)
    next(iter(loader))
    other = json.loads(json.dumps(loader.state_dict()).replace('"worker": [0, 2]', '"worker": [0, 3]'))
    again = StatefulDataLoader(dataset_of(feed, 0, 1), batch_size=None, num_workers=2)
    again.load_state_dict(other)
    with pytest.raises(CursorError, match="worker 0 of 3 was given to worker 0 of 2"):
        list(again)


@pytest.mark.parametrize("workers", [0, 2])
def test_the_state_waits_for_what_is_taken_ahead(feed: Feed, everything: list[int | None], workers: int) -> None:
    dataset = dataset_of(feed, 0, 1, read_ahead=1)
    samples = iter(FeedLoader(dataset, workers))
    first = first_ids(samples, 1)
    assert dataset.state_dict() == {}, "nothing has been trained on"
    for count in range(1, 5):
        first += first_ids(samples, 1)
        assert dataset.state_dict()["next"] == count
    samples.close()  # type: ignore[attr-defined]
    rest = first_ids(iter(FeedLoader(dataset, workers)))
    assert first[:4] + rest == everything, "what was taken and not trained on comes again"
    assert dataset.state_dict()["next"] == TOTAL


@pytest.mark.parametrize("workers", [0, 1])
def test_every_wait_is_counted_and_told(feed: Feed, workers: int) -> None:
    told: list[float] = []
    loader = FeedLoader(dataset_of(feed, 0, 1), workers, on_wait=told.append)
    assert len(list(loader)) == TOTAL
    assert loader.waits.samples == len(told) == TOTAL
    assert loader.waits.seconds == pytest.approx(sum(told))
    assert loader.waits.longest == max(told)
    assert all(wait > 0 for wait in told)
