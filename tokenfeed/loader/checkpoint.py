"""The position of a whole run, for checkpoints that all ranks write together."""

from __future__ import annotations

from typing import Any, Protocol

import orjson
import torch.distributed

from tokenfeed.errors import CursorError
from tokenfeed.loader.cursor import Cursor, State, merge


class Resumable(Protocol):
    """A FeedDataset or a FeedLoader."""

    def state_dict(self) -> State:
        """The position of this rank."""

    def load_state_dict(self, state: State) -> None:
        """Go on there."""


class RunState:
    """The merged position of all ranks, the same on each, under which any number of ranks goes on.

    It has the shape that torch.distributed.checkpoint, Accelerate and Lightning expect of what they save: one key with a
    string, whatever the number of slots, so that it can be saved by one rank and loaded before the first batch.

    Args:
        loader: this rank's.
        group: the process group whose ranks save together; by default all.
    """

    def __init__(self, loader: Resumable, group: torch.distributed.ProcessGroup | None = None) -> None:
        self._loader = loader
        self._group = group

    def state_dict(self) -> dict[str, Any]:
        """Every rank of the group must call it, after the same step; without torch.distributed it is this process's.

        Raises:
            CursorError: ranks are not at the same step.
        """
        own = self._loader.state_dict()
        states = [own]
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            states = [{}] * torch.distributed.get_world_size(self._group)
            torch.distributed.all_gather_object(states, own, group=self._group)
        begun = [Cursor.from_state(state) for state in states if state]
        if begun and len(begun) < len(states):
            raise CursorError(f"{len(states) - len(begun)} of {len(states)} ranks have not begun: save after the same step")
        return {"cursor": orjson.dumps(merge(begun).to_state()).decode() if begun else ""}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on behind that position.

        Raises:
            CursorError: it is not a state of Tokenfeed.
        """
        self._loader.load_state_dict(orjson.loads(state["cursor"]) if state["cursor"] else {})
