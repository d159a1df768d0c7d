"""A loader state is plain data, and says no to what is not its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tokenfeed.errors import CursorError
from tokenfeed.loader.cursor import Cursor, Position, merge
from tokenfeed.loader.span import Span

CURSOR = Cursor("p", 12, {0: Position(3, 17, (12, 11)), 2: Position(1, 4, (5, 4))}, {0: 20})
LATER = Cursor("p", 12, {0: Position(3, 17, (12, 11))}, {0: 20}, 2, 3)
PART = Cursor("p", 1, {}, {}, span=Span("p", (4, 0), (9, 2), 1000))


@pytest.mark.parametrize("cursor", [CURSOR, LATER, PART])
def test_a_state_survives_json(cursor: Cursor) -> None:
    assert Cursor.from_state(json.loads(json.dumps(cursor.to_state()))) == cursor


def test_a_state_saved_before_there_were_epochs_is_of_the_first() -> None:
    state = {"version": 1, "plan": "p", "next": 12, "slots": {"0": [3, 17, [12, 11]]}, "finals": {"0": 20}}
    assert Cursor.from_state(state) == Cursor("p", 12, {0: Position(3, 17, (12, 11))}, {0: 20}, 0, 1)
    assert CURSOR.to_state().keys() == state.keys(), "an older loader reads the states of the first"


@pytest.mark.parametrize("change", [{"block": 0}, {"block": 2}, {"epoch": None}])
def test_a_state_of_a_later_epoch_stands_at_blocks(change: dict[str, Any]) -> None:
    with pytest.raises(CursorError, match="not a loader state"):
        Cursor.from_state(LATER.to_state() | change)


@pytest.mark.parametrize(
    "change", [{"version": 2}, {"version": 9}, {"slots": [1]}, {"slots": {"0": [1]}}, {"next": "x"}, {"plan": ...}]
)
def test_foreign_states_are_refused(change: dict[str, Any]) -> None:
    state = CURSOR.to_state() | change
    if state["plan"] is ...:
        del state["plan"]
    with pytest.raises(CursorError):
        Cursor.from_state(state)


def test_merging_takes_the_farthest_position_of_each_slot() -> None:
    other = Cursor("p", 12, {0: Position(2, 9, (9, 8)), 1: Position(3, 30, (13, 12))}, {1: 5})
    merged = merge([CURSOR, other])
    assert merged == Cursor("p", 12, {0: CURSOR.slots[0], 1: other.slots[1], 2: CURSOR.slots[2]}, {0: 20, 1: 5})


def test_merging_nothing_is_refused() -> None:
    with pytest.raises(CursorError, match="no loader state"):
        merge([])


@pytest.mark.parametrize(
    "other", [Cursor("p", 14), Cursor("q", 12), Cursor("p", 12, epoch=1), Cursor("p", 12, span=PART.span)]
)
def test_states_of_different_steps_or_plans_do_not_merge(other: Cursor) -> None:
    with pytest.raises(CursorError, match="not saved after the same step"):
        merge([CURSOR, other])


def test_a_state_of_16_slots_and_16_streams_is_small_and_safe_to_load(tmp_path: Path) -> None:
    positions = {slot: Position(10**9, 10**10 + slot, tuple(10**9 + p for p in range(16))) for slot in range(16)}
    state = Cursor("0123456789abcdef", 10**11, positions, dict.fromkeys(range(16), 10**9)).to_state()
    assert len(json.dumps(state)) < 10_000
    assert json.loads(json.dumps(state)) == state
    torch.save(state, tmp_path / "state.pt")
    assert torch.load(tmp_path / "state.pt", weights_only=True) == state
    assert Cursor.from_state(state).to_state() == state
