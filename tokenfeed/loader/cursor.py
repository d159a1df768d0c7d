"""The loader's position: small, JSON-safe, valid for any number of ranks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from tokenfeed.errors import CursorError
from tokenfeed.loader.span import Span

_VERSION: Final = 1  # of the states of epoch 0 of a whole feed
_PASS_VERSION: Final = 2  # of the others, which readers of version 1 would take for such
State = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Position:
    """How far a slot has been read: `taken` valid batches, next offset, next number expected of each stream."""

    taken: int
    offset: int
    expected: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Cursor:
    """Where a run is.

    Attributes:
        plan: plan id.
        next: number, in the global order, of the first batch that has not been trained on. The same on all ranks when
            they save after the same step.
        slots: position of each slot that was read; a slot that is missing is read from its first batch.
        finals: stream -> how many batches it has, for the streams that are known to have ended. Their seals may lie
            before the slots' positions.
        epoch: pass over the feed.
        block: batches of a slot that change places among each other in this epoch (K); 1 in epoch 0. Positions stand at
            the starts of such blocks: a slot's current block is read again, and what `next` has passed is left out.
        span: the part of the feed that is read, None for all of it. `next` and `taken` count inside it.
    """

    plan: str
    next: int = 0
    slots: Mapping[int, Position] = field(default_factory=dict)
    finals: Mapping[int, int] = field(default_factory=dict)
    epoch: int = 0
    block: int = 1
    span: Span | None = None

    def at_epoch(self, epoch: int, shuffle_batches: int) -> Cursor:
        """The first batch of a pass over the same feed.

        Raises:
            CursorError: there is no such epoch or block.
        """
        if epoch < 0 or shuffle_batches < 1:
            raise CursorError(f"epoch {epoch} with shuffle_batches={shuffle_batches}: from 0 and from 1 on")
        return replace(self, next=0, slots={}, epoch=epoch, block=shuffle_batches if epoch else 1)

    def to_state(self) -> State:
        """Ints, strings, lists and dicts with string keys only: safe for JSON and `torch.load(weights_only=True)`."""
        slots = {
            str(slot): [position.taken, position.offset, list(position.expected)]
            for slot, position in sorted(self.slots.items())
        }
        finals = {str(stream): batches for stream, batches in sorted(self.finals.items())}
        state = {"version": _VERSION, "plan": self.plan, "next": self.next, "slots": slots, "finals": finals}
        if self.epoch or self.span is not None:
            span = self.span and [list(self.span.first), self.span.end and list(self.span.end), self.span.since]
            state |= {"version": _PASS_VERSION, "epoch": self.epoch, "block": self.block, "span": span}
        return state

    @classmethod
    def from_state(cls, state: State) -> Cursor:
        """Read what `to_state` made.

        Raises:
            CursorError: anything else.
        """
        try:
            version = state["version"]
            if version not in (_VERSION, _PASS_VERSION):
                raise CursorError(f"loader state of version {version}, this Tokenfeed reads up to {_PASS_VERSION}")
            slots = {
                int(slot): Position(int(taken), int(offset), tuple(map(int, expected)))
                for slot, (taken, offset, expected) in state["slots"].items()
            }
            finals = {int(stream): int(batches) for stream, batches in state["finals"].items()}
            epoch, block = (int(state["epoch"]), int(state["block"])) if version == _PASS_VERSION else (0, 1)
            if any(position.taken % block for position in slots.values()):
                raise CursorError(f"not a loader state of Tokenfeed: a position inside a block of {block}")
            plan = str(state["plan"])
            span = _span(plan, state["span"]) if version == _PASS_VERSION else None
            return cls(plan, int(state["next"]), slots, finals, epoch, block, span)
        except (KeyError, TypeError, ValueError, AttributeError, ZeroDivisionError) as error:
            raise CursorError(f"not a loader state of Tokenfeed: {type(error).__name__}") from None

    def moved(self, before: Cursor | None) -> Cursor:
        """This cursor with only those slots whose positions are not the ones of `before`."""
        known = {} if before is None or before.plan != self.plan else before.slots
        return replace(self, slots={slot: position for slot, position in self.slots.items() if position != known.get(slot)})

    def joined(self, other: Cursor) -> Cursor:
        """This cursor with each slot's farthest position of the two, and the ends that either knows."""
        slots = dict(self.slots)
        for slot, position in other.slots.items():
            if slot not in slots or position.taken > slots[slot].taken:
                slots[slot] = position
        return replace(self, slots=slots, finals={**self.finals, **other.finals})


def _span(plan: str, state: list[Any] | None) -> Span | None:
    if state is None:
        return None
    first, end, since = state
    return Span(plan, tuple(map(int, first)), None if end is None else tuple(map(int, end)), int(since))


def merge(cursors: Iterable[Cursor]) -> Cursor:
    """One cursor of the cursors that all ranks saved after the same step: each slot's farthest position.

    Resume from this one where W or the ranks' slots change: a rank reads a slot that its state does not name from the
    slot's first batch, which takes time, and fails once retention has removed it.

    Raises:
        CursorError: they belong to different plans, epochs, spans or steps, or there are none.
    """
    every = list(cursors)
    if not every:
        raise CursorError("no loader state to merge: give those of all ranks")
    merged, *others = every
    for other in others:
        if replace(other, slots={}, finals={}) != replace(merged, slots={}, finals={}):
            raise CursorError(
                f"loader states of plan {merged.plan}, epoch {merged.epoch}, batch {merged.next} and plan {other.plan}, "
                f"epoch {other.epoch}, batch {other.next} were not saved after the same step"
            )
        merged = merged.joined(other)
    return merged
