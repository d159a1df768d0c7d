"""A loader state is plain data, and says no to what is not its own."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tokenfeed.errors import CursorError
from tokenfeed.loader.cursor import Cursor, Position, merge

CURSOR = Cursor("p", 12, {0: Position(3, 17, (12, 11)), 2: Position(1, 4, (5, 4))}, {0: 20})


def test_a_state_survives_json() -> None:
    assert Cursor.from_state(json.loads(json.dumps(CURSOR.to_state()))) == CURSOR


@pytest.mark.parametrize("change", [{"version": 2}, {"slots": [1]}, {"slots": {"0": [1]}}, {"next": "x"}, {"plan": ...}])
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


@pytest.mark.parametrize("other", [Cursor("p", 14), Cursor("q", 12)])
def test_states_of_different_steps_or_plans_do_not_merge(other: Cursor) -> None:
    with pytest.raises(CursorError, match="not saved after the same step"):
        merge([CURSOR, other])
