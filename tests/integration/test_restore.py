"""A run goes on from the state of any step under any number of ranks, and has the same batches as one without a pause."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from tests.integration import test_loader
from tests.integration.test_loader import UNEVEN, Keys, MakeFeed, interleaved, key, read, trimmed
from tokenfeed.loader import Cursor, Feed, FeedReader, merge

WORLDS = [1, 2, 3, 4, 6, 8]
made_feed = test_loader.made_feed


def steps(feed: Feed, world: int) -> tuple[list[Keys], list[str]]:
    """The batches of each step of a run to the end, and the state that all ranks merged save after it, as JSON."""
    batches: list[Keys] = []
    states: list[str] = []
    with ExitStack() as stack:
        ranks = [stack.enter_context(FeedReader(feed, rank, world, slot_timeout=20)) for rank in range(world)]
        while True:
            states.append(json.dumps(merge(rank.cursor for rank in ranks).to_state()))
            delivered = [next(rank, None) for rank in ranks]
            if None in delivered:
                assert set(delivered) == {None}, "every rank ends on the same step"
                return batches, states
            batches.append([key(one.batch) for one in delivered if one is not None])


def whole(feed: Feed, world: int, state: str) -> Keys:
    """What all ranks together are given from a state on."""
    cursor = Cursor.from_state(json.loads(state))
    return trimmed(interleaved([read(feed, rank, world, cursor)[0] for rank in range(world)]))


@pytest.mark.parametrize(
    "every_pair", [pytest.param(False, id="one"), pytest.param(True, id="all", marks=pytest.mark.chaos)]
)
@pytest.mark.parametrize("before", WORLDS)
@pytest.mark.timeout(600)
def test_a_run_goes_on_from_every_step_under_another_number_of_ranks(
    made_feed: MakeFeed, before: int, every_pair: bool
) -> None:
    feed = made_feed(UNEVEN)
    batches, states = steps(feed, before)
    everything = trimmed([one for step in batches for one in step])
    assert everything == read(feed, 0, 1)[0]
    others = [world for world in WORLDS if world != before]
    assert len(states) >= len(others), "each of the others is used"
    cases = [
        (step, after) for step in range(len(states)) for after in (others if every_pair else [others[step % len(others)]])
    ]
    with ThreadPoolExecutor(8) as pool:  # readers mostly wait
        rests = pool.map(lambda case: whole(feed, case[1], states[case[0]]), cases)
    for (step, after), rest in zip(cases, rests, strict=True):
        seen = trimmed([one for taken in batches[:step] for one in taken])
        assert seen + rest == everything, f"{before} ranks, {step} steps, then {after} ranks"
