"""Parts of a feed, by time and by raw offsets: whole windows, in one order, for any number of ranks, of a live feed too."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.brokers import Broker
from tests.written import HOUR, SLOTS, WINDOW, Key, interleaved, read, write_feed
from tokenfeed.errors import CursorError, FeedStalledError, TopicError
from tokenfeed.loader import Cursor, Feed, FeedReader, Span, between, merge, of_offsets
from tokenfeed.loader.torch import FeedDataset, FeedLoader

COUNTS = [13, 0, 5, 18]
BEGAN = int(time.time() * 1000) // HOUR * HOUR - 20 * HOUR
MakeFeed = Callable[[], Feed]


@pytest.fixture
def feed(broker: Broker, tmp_path: Path) -> Feed:
    return write_feed(broker, tmp_path, COUNTS, sealed=False, started_at=BEGAN)


@pytest.fixture
def small(embedded: Broker, tmp_path: Path) -> Feed:
    return write_feed(embedded, tmp_path, COUNTS, sealed=False, started_at=BEGAN)


def reader(feed: Feed, span: Span | None, rank: int = 0, world: int = 1, **options: Any) -> FeedReader:
    return FeedReader(feed, rank, world, **{"span": span, "slot_timeout": 20, "shuffle_batches": 3} | options)


def swept(first: list[int], end: list[int]) -> list[Key]:
    """The order of a span: each slot's batches by the window that they were sent with, stream by stream."""
    slots: list[list[Key]] = [[] for _ in range(SLOTS)]
    for window in range(max(end) // WINDOW + 1):
        for stream in range(len(end)):
            for number in range(max(first[stream], window * WINDOW), min(end[stream], window * WINDOW + WINDOW)):
                slots[(stream + number) % SLOTS].append((stream, number))
    return [slot[i] for i in range(max(map(len, slots))) for slot in slots if i < len(slot)]


def test_a_time_span_is_the_windows_cut_in_it(feed: Feed) -> None:
    start = datetime.fromtimestamp((BEGAN + HOUR) / 1000, UTC)
    span = between(feed, start, BEGAN + 3 * HOUR)
    assert (span.first, span.end) == ((4, 0, 4, 4), (12, 0, 5, 12))
    assert span.since == BEGAN + HOUR
    expected = swept([4, 0, 4, 4], [12, 0, 5, 12])
    assert read(reader(feed, span))[0] == expected
    assert interleaved([read(reader(feed, span, rank, 3))[0] for rank in range(3)]) == expected


def test_reading_a_span_begins_near_it(running: Callable[[str], Broker], tmp_path: Path) -> None:
    feed = write_feed(running("kafka"), tmp_path, COUNTS, sealed=False, started_at=BEGAN)
    span = between(feed, BEGAN + 3 * HOUR, BEGAN + 4 * HOUR)
    with reader(feed, span) as one:
        assert min(one._begin_at.values()) > 0
        assert len(list(one)) == 1 + 4


def test_an_offset_span_is_the_windows_that_hold_the_records(feed: Feed) -> None:
    plan = feed.edition().plan
    span = of_offsets(feed, {(plan.sources[0], 0): (11, 13), (plan.sources[0], 3): (12, 24)})
    assert (span.first, span.end) == ((0, 0, 0, 4), (8, 0, 0, 8))
    assert Counter(read(reader(feed, span))[0]) == Counter([(0, q) for q in range(8)] + [(3, q) for q in range(4, 8)])


@pytest.mark.parametrize("epoch", [0, 1])
@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 3), (4, 1)])
def test_a_run_over_a_span_goes_on_anywhere(small: Feed, before: int, after: int, epoch: int) -> None:
    span = between(small, BEGAN + HOUR, BEGAN + 4 * HOUR)
    whole = read(reader(small, span, epoch=epoch))[0]
    assert (whole == swept([4, 0, 4, 4], [13, 0, 5, 16])) == (epoch == 0)
    assert Counter(whole) == Counter(swept([4, 0, 4, 4], [13, 0, 5, 16]))
    for step in range(0, len(whole) // before + 1, 3):
        firsts = [read(reader(small, span, rank, before, epoch=epoch), step) for rank in range(before)]
        seen = interleaved([keys for keys, _ in firsts])
        state = merge(Cursor.from_state(cursor.to_state()) for _, cursor in firsts)
        assert state.span == span
        rest = [read(reader(small, None, rank, after, cursor=state))[0] for rank in range(after)]
        assert seen + interleaved(rest) == whole, step


def test_a_dataset_of_a_span(small: Feed) -> None:
    span = between(small, BEGAN + HOUR, BEGAN + 3 * HOUR)
    dataset = FeedDataset(small, span=span, slot_timeout=20)
    assert sum(1 for _ in FeedLoader(dataset, 2)) == 17
    assert Cursor.from_state(dataset.state_dict()).span == span


def test_a_state_keeps_its_span(small: Feed) -> None:
    span, other = between(small, BEGAN, BEGAN + HOUR), between(small, BEGAN, BEGAN + 2 * HOUR)
    state = read(reader(small, span), 2)[1]
    with pytest.raises(CursorError, match="another span"):
        reader(small, other, cursor=state)
    with pytest.raises(CursorError, match="not saved after the same step"):
        merge([state, read(reader(small, other), 2)[1]])


def test_what_is_not_there_is_said(small: Feed) -> None:
    raw = small.edition().plan.sources[0]
    with pytest.raises(TopicError, match="no batch between"):
        between(small, BEGAN - 2 * HOUR, BEGAN - HOUR)
    with pytest.raises(TopicError, match=rf"{raw}/3: the windows hold offsets 0 to 54, not 0 to 55"):
        of_offsets(small, {(raw, 3): (0, 55)})
    with pytest.raises(CursorError, match="in no time zone"):
        between(small, datetime(2026, 1, 1), BEGAN)
    with pytest.raises(CursorError, match="must have a length and have passed"):
        between(small, BEGAN, BEGAN + 100 * HOUR)
    with pytest.raises(CursorError, match="no such records"):
        of_offsets(small, {(raw, 9): (0, 5)})


def test_a_batch_that_is_gone_is_a_stall(small: Feed) -> None:
    span = Span(small.edition().plan.id, (0, 0, 0, 16), (0, 0, 0, 30), BEGAN)
    with reader(small, span, slot_timeout=1) as one, pytest.raises(FeedStalledError, match="slot 1 expects"):
        list(one)
