"""The global order: which slot the n-th batch of a feed stands in.

The slots are swept 0..S-1 again and again, one batch from each; once seals have told how many batches each stream has,
slots without more are passed over. A reader that follows only some slots must not take the t-th batch of its slot for
number t * S + slot while another slot might have ended before: `locate` answers only what is certain, from evidence of
how many batches each stream has at least. All of it is arithmetic on counts, so that every rank gets the same answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tokenfeed.errors import WireError
from tokenfeed.packing import Ints


@dataclass(frozen=True, slots=True)
class Place:
    """Where a batch stands: the index-th valid batch of a slot."""

    slot: int
    index: int


class GlobalOrder:
    """What is known of a feed's order.

    Args:
        streams: streams of the plan (P).
        slots: slots of the plan (S).
        first: number of each stream's first batch in this order, which takes no notice of those before; by default 0.
    """

    def __init__(self, streams: int, slots: int, first: Sequence[int] | None = None) -> None:
        self._streams = streams
        self._slots = slots
        self._at_least = np.array(first if first is not None else [0] * streams, dtype=np.int64)
        self._left_out = int(self._at_least.sum())
        self._left_out_by_slot = counts_by_slot(self._at_least, slots)
        self._finals: dict[int, int] = {}
        self._seen = np.zeros(slots, dtype=np.int64)
        self._counts = np.zeros(slots, dtype=np.int64)
        self._even = 0  # batches before the first slot might run out: up to there, number n is the n // S-th of n % S
        self._stale = False

    def stream_has(self, stream: int, batches: int) -> None:
        """Evidence: the stream has at least so many batches.

        Raises:
            WireError: more than the stream ends with.
        """
        if batches > self._at_least[stream]:
            self._check_end(stream, self._finals.get(stream), batches)
            self._at_least[stream] = batches
            self._stale = True

    def slot_has(self, slot: int, batches: int) -> None:
        """Evidence: the slot has at least so many valid batches."""
        if batches > self._seen[slot]:
            self._seen[slot] = batches
            self._stale = True

    def stream_ends(self, stream: int, batches: int) -> None:
        """The stream has exactly so many batches.

        Raises:
            WireError: another slot's seal says otherwise, or the stream has more. Ranks that follow different slots would
                sweep different orders, and pass over batches that are there.
        """
        known = self._finals.get(stream, batches)
        if known != batches:
            raise WireError(f"stream {stream} has {known} batches by one seal, {batches} by another; audit the feed")
        self._check_end(stream, batches, int(self._at_least[stream]))
        self._finals[stream] = batches
        self.stream_has(stream, batches)

    @property
    def finals(self) -> dict[int, int]:
        """Stream -> how many batches it has, for the streams that are known to have ended."""
        return dict(self._finals)

    @property
    def total(self) -> int | None:
        """Batches of the whole feed; None while a stream is not sealed."""
        return sum(self._finals.values()) - self._left_out if len(self._finals) == self._streams else None

    @property
    def at_least(self) -> int:
        """Batches that the feed certainly has."""
        return max(int(self._at_least.sum()) - self._left_out, int(self._seen.sum()))

    def batches(self, slot: int) -> int | None:
        """How many batches a slot has in all; None while `total` is."""
        self._refresh()
        return None if self.total is None else int(self._counts[slot])

    def locate(self, number: int) -> Place | None:
        """Where batch `number` of the feed stands; None while that, or that it exists, is not certain.

        Once `total` is known, ask only for numbers below it.
        """
        self._refresh()
        index, slot = divmod(number, self._slots)
        if number < self._even:
            return Place(slot, index)
        if self.total is not None:
            return self._exactly(number)
        certain = (self._counts[: slot + 1] > index).all() and (self._counts[slot + 1 :] >= index).all()
        return Place(slot, index) if certain else None

    def number_of(self, place: Place) -> int | None:
        """The number of the batch at a place, the inverse of `locate`; None while that is not certain."""
        self._refresh()
        if self.total is None:
            number = place.index * self._slots + place.slot
            return number if self.locate(number) == place else None
        before = int(np.minimum(self._counts, place.index).sum())
        return before + int((self._counts[: place.slot] > place.index).sum())

    @staticmethod
    def _check_end(stream: int, final: int | None, at_least: int) -> None:
        if final is not None and at_least > final:
            raise WireError(f"stream {stream} ends with {final} batches, but has at least {at_least}; audit the feed")

    def _refresh(self) -> None:
        if self._stale:
            promised = counts_by_slot(self._at_least, self._slots) - self._left_out_by_slot
            self._count(promised if self.total is not None else np.maximum(promised, self._seen))
            self._stale = False

    def _count(self, counts: Ints) -> None:
        self._counts = counts
        self._even = self._slots * int(counts.min())

    def _exactly(self, number: int) -> Place:
        low, high = 0, int(self._counts.max(initial=0))
        while low < high:  # the sweep whose batches reach beyond `number`
            middle = (low + high) // 2
            if int(np.minimum(self._counts, middle + 1).sum()) > number:
                high = middle
            else:
                low = middle + 1
        rest = number - int(np.minimum(self._counts, low).sum())
        return Place(int(np.flatnonzero(self._counts > low)[rest]), low)


class SpanOrder(GlobalOrder):
    """The order of the batches [first, end) of each stream: known from the start, so that evidence adds nothing.

    Args:
        first, end: numbers, one a stream.
        slots: slots of the plan (S).
    """

    def __init__(self, first: Sequence[int], end: Sequence[int], slots: int) -> None:
        super().__init__(len(first), slots)
        self._count(counts_by_slot(np.array(end), slots) - counts_by_slot(np.array(first), slots))

    @property
    def total(self) -> int:
        """Batches of the span."""
        return int(self._counts.sum())

    def stream_has(self, stream: int, batches: int) -> None:
        """Changes nothing."""

    def slot_has(self, slot: int, batches: int) -> None:
        """Changes nothing."""

    def stream_ends(self, stream: int, batches: int) -> None:
        """Changes nothing."""


def counts_by_slot(batches: Ints, slots: int) -> Ints:
    """How many of streams' first `batches[p]` batches stand in each slot, int64 [slots]."""
    first = (np.arange(slots) - np.arange(len(batches))[:, None]) % slots
    counts: Ints = np.maximum(0, -(-(batches[:, None] - first) // slots)).sum(axis=0)
    return counts


def first_in_slot(first: Sequence[int], slot: int, slots: int) -> tuple[int, ...]:
    """The lowest number of each stream, from `first[p]` on, that stands in a slot."""
    return tuple(number + (slot - stream - number) % slots for stream, number in enumerate(first))
