"""What every way of reading must do, whatever is between the feed and the trainer."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import pytest

from tests.brokers import Broker
from tests.contract.adapters import ADAPTERS, SPAWNING, Adapter, Ids
from tests.written import UNEVEN, write_feed
from tokenfeed.errors import CursorError, PlanMismatch
from tokenfeed.loader import Cursor, Feed, FeedReader, merge

TOTAL = sum(UNEVEN)
pytestmark = pytest.mark.contract


@pytest.fixture(scope="module")
def feed(running: Any, tmp_path_factory: pytest.TempPathFactory) -> Feed:
    broker: Broker = running("embedded")
    folder: Path = tmp_path_factory.mktemp("contract")
    return write_feed(broker, folder, UNEVEN)


@pytest.fixture(scope="module")
def everything(feed: Feed) -> list[Ids]:
    with FeedReader(feed) as reader:
        found = [tuple(one.batch.input_ids.reshape(-1).tolist()) for one in reader if one.batch is not None]
    assert len(set(found)) == TOTAL
    return list(found)


@pytest.fixture(params=ADAPTERS)
def adapter(request: pytest.FixtureRequest) -> Adapter:
    return ADAPTERS[request.param]


def interleaved(ranks: list[list[Ids]]) -> list[Ids]:
    """The batches of all ranks in the global order, padding left out; they must be as many on each."""
    assert len({len(one) for one in ranks}) == 1, "every rank ends on the same step"
    return [one for step in zip(*ranks, strict=True) for one in step if one is not None]


class TestOrder:
    @pytest.mark.parametrize("world", [1, 3])
    def test_all_ranks_together_get_every_batch_in_one_order(
        self, feed: Feed, everything: list[Ids], adapter: Adapter, world: int
    ) -> None:
        assert interleaved([adapter.read(feed, rank, world)[0] for rank in range(world)]) == everything

    def test_the_last_step_is_dropped_whole(self, feed: Feed, everything: list[Ids], adapter: Adapter) -> None:
        ranks = [adapter.read(feed, rank, 3, last_step="drop")[0] for rank in range(3)]
        assert interleaved(ranks) == everything[: TOTAL // 3 * 3]


class TestResuming:
    @pytest.mark.parametrize("worlds", [(2, 3), (3, 2)])
    def test_a_run_that_is_cut_off_goes_on_where_its_state_says(
        self, feed: Feed, everything: list[Ids], adapter: Adapter, worlds: tuple[int, int]
    ) -> None:
        before, after = worlds
        for step in (1, TOTAL // before):
            firsts = [adapter.read(feed, rank, before, stop=step) for rank in range(before)]
            states = [json.loads(json.dumps(state)) for _, state in firsts]
            if adapter.elastic:
                merged = merge(map(Cursor.from_state, states)).to_state()
                rest = [adapter.read(feed, rank, after, merged)[0] for rank in range(after)]
            else:
                rest = [adapter.read(feed, rank, before, states[rank])[0] for rank in range(before)]
            assert interleaved([seen for seen, _ in firsts]) + interleaved(rest) == everything

    def test_a_run_may_be_cut_off_at_every_step(self, feed: Feed, everything: list[Ids], adapter: Adapter) -> None:
        seen: list[Ids] = []
        state: dict[str, Any] | None = None
        for count in islice(cycle((1, 5)), TOTAL):
            some, state = adapter.read(feed, 0, 1, state, stop=count)
            seen += some
            if len(seen) == TOTAL:
                break
        assert seen == everything
        if adapter.elastic:  # StatefulDataLoader takes a state of the end for the beginning of another epoch
            assert adapter.read(feed, 0, 1, state)[0] == []

    @pytest.mark.parametrize("name", SPAWNING)
    def test_workers_need_not_be_forked(self, feed: Feed, everything: list[Ids], name: str) -> None:
        adapter = SPAWNING[name]
        seen, state = adapter.read(feed, 0, 1, stop=7)
        assert seen + adapter.read(feed, 0, 1, state)[0] == everything


class TestRefusal:
    def test_another_feed_than_the_expected_one_is_refused(self, feed: Feed, adapter: Adapter) -> None:
        other = replace(feed, expected={"tokenizer": "another", "sequence_length": 17})
        with pytest.raises(PlanMismatch, match=r"tokenizer: 'another' expected, 'bytes' in the feed; sequence_length: 17"):
            adapter.read(other, 0, 1)

    def test_the_state_of_another_plan_is_refused(self, feed: Feed, adapter: Adapter) -> None:
        _, state = adapter.read(feed, 0, 1, stop=2)
        other = json.loads(json.dumps(state).replace(feed.edition().plan.id, "0123456789abcdef"))
        with pytest.raises(CursorError, match="plan 0123456789abcdef"):
            adapter.read(feed, 0, 1, other)
