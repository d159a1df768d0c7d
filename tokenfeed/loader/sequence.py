"""The valid sequence of a slot: which messages of its log count, and which are passed over.

Reading a slot in log order, a batch of stream p is valid if and only if its number is the next one expected of p in this
slot; the numbers of p in one slot rise by the number of slots. A lower one is a repeat, a higher one came early, because
its emitter failed half-way and the window will come again in order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from tokenfeed.batches import Envelope
from tokenfeed.errors import PlanMismatch, WireError
from tokenfeed.loader.span import Span
from tokenfeed.plan import Plan

Verdict = Literal["valid", "repeat", "early", "seal", "before", "behind"]


class SlotSequence:
    """Judges the messages of one slot.

    Args:
        plan: the feed's plan.
        slot: the slot.
        expected: next number of each stream; None at the start of the log.
        taken: valid batches before that.
        finals: stream -> its number of batches, for streams known to have ended.
        span: the batches that are wanted; others are passed over. `expected` must be given with it.
    """

    def __init__(
        self,
        plan: Plan,
        slot: int,
        expected: Sequence[int] | None = None,
        taken: int = 0,
        finals: Mapping[int, int] | None = None,
        span: Span | None = None,
    ) -> None:
        self._plan_id = plan.id
        self._slots = plan.slots
        self.slot = slot
        self.taken = taken
        self.expected = list(expected) if expected else [(slot - p) % plan.slots for p in range(plan.streams)]
        self.finals: dict[int, int] = dict(finals or {})
        self._sealed_here: set[int] = set()
        self._span = span

    def offer(self, envelope: Envelope, offset: int) -> Verdict:
        """Judge the next message of the log.

        Raises:
            PlanMismatch: it belongs to another plan.
            WireError: a stream that the plan does not have, or two seals that contradict each other.
        """
        if envelope.plan != self._plan_id:
            raise PlanMismatch(
                f"slot {self.slot} offset {offset}: batch of plan {envelope.plan} in a feed of plan {self._plan_id}"
            )
        if not 0 <= envelope.stream < len(self.expected):
            raise WireError(f"slot {self.slot} offset {offset}: no stream {envelope.stream} in the plan")
        if envelope.kind == "seal":
            if self.finals.setdefault(envelope.stream, envelope.number) != envelope.number:
                raise WireError(f"slot {self.slot} offset {offset}: a second, different seal of stream {envelope.stream}")
            self._sealed_here.add(envelope.stream)
            return "seal"
        if self._span is not None and not self._span.holds(envelope.stream, envelope.number):
            return "before" if envelope.number < self._span.first[envelope.stream] else "behind"
        expected = self.expected[envelope.stream]
        if envelope.number != expected:
            return "repeat" if envelope.number < expected else "early"
        self.expected[envelope.stream] = expected + self._slots
        self.taken += 1
        return "valid"

    def missing(self) -> list[tuple[int, int]]:
        """(stream, number) of batches that should stand before a seal of this slot, and do not.

        Only seals that were read in this slot count: an end that is known from elsewhere does not tell how far this
        slot's log has been fetched.
        """
        ends = self.finals if self._span is None or self._span.end is None else dict(enumerate(self._span.end))
        return [(p, self.expected[p]) for p in sorted(self._sealed_here) if self.expected[p] < ends[p]]
