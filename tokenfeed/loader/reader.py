"""Reading a feed as one rank of several.

The reader assigns and seeks, it never subscribes: there is no consumer group to be thrown out of, so a trainer that
pauses for a checkpoint or a compile loses nothing. One thread fetches into bounded buffers; `next` takes from them in the
global order.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, replace
from math import gcd
from types import TracebackType
from typing import Final, Literal, Self

from tokenfeed.batches import Batch, decode
from tokenfeed.editions import Edition
from tokenfeed.errors import CursorError, FeedGapError, FeedStalledError, PlanMismatch, TokenfeedError, TopicError
from tokenfeed.history import CLOCK_SKEW_MS, offsets_at
from tokenfeed.kafka import reader
from tokenfeed.loader.cursor import Cursor, Position
from tokenfeed.loader.epochs import stands_at
from tokenfeed.loader.feed import Feed
from tokenfeed.loader.fetcher import Fetcher
from tokenfeed.loader.order import GlobalOrder, Place, SpanOrder, first_in_slot
from tokenfeed.loader.span import Span
from tokenfeed.plan import Plan, differences

LastStep = Literal["pad", "drop"]
Fate = Place | Literal["over", "pad"]
Found = tuple[int, bytes, Position] | Literal["over", "pad"]

_COMMIT_SECONDS: Final = 1.0
_TOPIC_SECONDS: Final = 0.5


@dataclass(frozen=True, slots=True)
class Delivered:
    """Batch number `number` of the global order; `batch` is None where the last step is padded."""

    number: int
    batch: Batch | None


class FeedReader:
    """The batches of one rank, in order. An iterator; also a context manager.

    Rank r of W takes the batches n of the global order with (n - b) mod W == r, where b, the base, is the batch that the
    cursor stands at, 0 without one. Step k is the batches [b + k * M, b + (k + 1) * M).

    Args:
        feed: where the feed is and what is expected of it.
        rank, world: this rank and their number.
        step_batches: M, a multiple of `world`; by default `world`.
        cursor: where to go on; also one that was saved under another `world`.
        run: consumer group that the trained position is committed to, for lag tools.
        follow: go on where the feed goes on under another plan, which must have what `feed` expects, whatever its id; the
            numbers of batches begin at 0 again. Otherwise the end of a plan is an error.
        last_step: "pad" gives ranks without a batch in the last step a batch of None, "drop" leaves that step out.
        slot_timeout: seconds that a slot may stay empty.
        prefetch_bytes: bytes of batches held ready.
        epoch: pass over the feed's plan; by default that of the cursor, or 0. Epoch 0 is the feed as it comes. A later one
            gives all batches of a sealed feed again, in another order (see `tokenfeed.loader.epochs`).
        shuffle_batches: K of later epochs: batches of a slot that change places among each other. K batches of every slot
            that this reader reads are held, whatever `prefetch_bytes` is.
        span: the part of the feed to read, from `tokenfeed.loader.span`; by default that of the cursor, or all. It need not
            be sealed. Numbers, steps and epochs are those of the span.
        part: for DataLoader workers: (w, N) reads only the batches of this rank whose place among them, counted from
            `base` on, is w modulo N. Steps end where they end without it.
        base: the b above where that is not the cursor's: a part that goes on by itself keeps the one it began with.

    Attributes:
        plan: the plan of the batches that are read: at first that of the cursor or span, else the newest of the feed.
        part, base: as given; another plan begins with a base of 0 and with that part which is next.
        last: what was returned last, with the origins of its documents.
        batches, tokens, bytes: what was returned: batches, their tokens without padding, their size as messages.
        data_wait_seconds: time spent waiting for batches.

    Raises:
        PlanMismatch, TopicError, CursorError, BrokerUnreachable: at once, before anything is read.
    """

    def __init__(
        self,
        feed: Feed,
        rank: int = 0,
        world: int = 1,
        *,
        step_batches: int | None = None,
        cursor: Cursor | None = None,
        run: str | None = None,
        follow: bool = False,
        last_step: LastStep = "pad",
        slot_timeout: float = 60.0,
        prefetch_bytes: int = 64 * 2**20,
        epoch: int | None = None,
        shuffle_batches: int = 64,
        span: Span | None = None,
        part: tuple[int, int] = (0, 1),
        base: int | None = None,
    ) -> None:
        self._step = step_batches or world
        if not 0 <= rank < world or self._step % world:
            raise CursorError(
                f"rank {rank} of {world} with steps of {self._step} batches: ranks are 0 to {world - 1}, and step_batches "
                "must be a multiple of world"
            )
        if not 0 <= part[0] < part[1]:
            raise CursorError(f"part {part[0]} of {part[1]}: parts are numbered from 0")
        self._feed = feed
        self._world = world
        self._rank = rank
        self._follow = follow
        self._drop = last_step == "drop"
        self._timeout = slot_timeout
        self._prefetch_bytes = prefetch_bytes
        self._run = run
        self._committed_at = time.monotonic()
        self._pid = os.getpid()
        self.batches = self.tokens = self.bytes = 0
        self.data_wait_seconds = 0.0
        self.last: Delivered | None = None
        wanted = cursor.plan if cursor is not None else span.plan if span is not None else None
        edition = feed.edition(wanted)
        start = cursor or Cursor(edition.plan.id, span=span).at_epoch(epoch or 0, shuffle_batches)
        if epoch not in (None, start.epoch):
            raise CursorError(f"the loader state is of epoch {start.epoch}: epoch {epoch} begins without a state")
        if start.epoch and start.block != shuffle_batches:
            raise CursorError(
                f"the loader state is of an epoch with shuffle_batches={start.block}; {shuffle_batches} is another order"
            )
        if span not in (None, start.span):
            raise CursorError("the loader state is of another span, or of the whole feed: a span begins without a state")
        if start.span is not None and len(start.span.first) != edition.plan.streams:
            raise CursorError(f"a span of {len(start.span.first)} streams in a feed of {edition.plan.streams}")
        self._begin(edition, start, part, start.next if base is None else base)

    def _begin(self, edition: Edition, start: Cursor, part: tuple[int, int], base: int) -> None:
        """Read a part of an edition from a cursor on."""
        feed = self._feed.of_edition(edition)
        self.plan = edition.plan
        self._start = start
        self._begin_at = {} if start.span is None else _beginnings(feed, self.plan, start.span)
        self.part = part
        self.base = base
        first = base + self._rank + part[0] * self._world
        self._stride = part[1] * self._world
        self._next = first + max(0, -(-(start.next + self._rank - first) // self._stride)) * self._stride
        self._trained = start.next
        self._positions = dict(start.slots)
        self._order = _order_of(self.plan, start.span)
        for stream, batches in start.finals.items():
            self._order.stream_ends(stream, batches)
        slots = self.plan.slots
        shared = gcd(slots, self._stride)
        own = [slot for slot in range(slots) if slots % self._world or (slot - self._next) % shared == 0]
        self._fetcher = Fetcher(feed, self.plan, self._order, self._prefetch_bytes, self._run, start.block, start.span)
        self._fetcher.follow({slot: self._position(slot) for slot in own})
        if not self._ends_with_span:
            self._fetcher.follow_ledger()  # what is certain must not depend on what the buffers have room for

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Delivered:
        """The next batch of this rank; StopIteration behind the last step, which is the same for all ranks.

        Raises:
            PlanMismatch: the feed goes on under another plan, and the reader was not told to follow, or may not.
            FeedStalledError, FeedGapError, WireError, TopicError: see their docstrings.
        """
        if os.getpid() != self._pid:
            raise CursorError("a FeedReader cannot be used in a forked process: make one there")
        started = time.monotonic()
        try:
            delivered = self.last = self._deliver(self._next)
        except TokenfeedError as error:
            error.args = (f"rank {self._rank} of {self._world}: {error}",)
            raise
        self.data_wait_seconds += time.monotonic() - started
        self._trained = self._next - self._rank + self._world
        self._next += self._stride
        self._commit()
        return delivered

    @property
    def cursor(self) -> Cursor:
        """The position behind the last batch that was returned, not behind what is fetched ahead."""
        return replace(self._start, next=self._trained, slots=dict(self._positions), finals=self._order.finals)

    @property
    def repeats(self) -> int:
        """Messages of this plan passed over because their batch had been read already."""
        return self._fetcher.repeats

    @property
    def early(self) -> int:
        """Messages of this plan passed over because batches before them were still missing."""
        return self._fetcher.early

    def close(self) -> None:
        """Stop fetching; commit the trained position of the run."""
        self._commit(after=0)
        self._fetcher.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _deliver(self, number: int) -> Delivered:
        found: Found | None = self._fetcher.wait_for(lambda: self._attempt(number), self._timeout)
        if found is None:
            raise self._complaint(number)
        if found == "over":
            self._go_on()
            return self._deliver(self._next)
        if found == "pad":
            return Delivered(number, None)
        slot, value, self._positions[slot] = found
        batch = decode(value)
        self.batches += 1
        self.tokens += batch.tokens
        self.bytes += len(value)
        return Delivered(number, batch)

    def _go_on(self) -> None:
        """Turn to the edition that follows.

        Raises:
            StopIteration: there is none, or the end of a span.
        """
        following = None if self._ends_with_span else self._feed.after(self.plan.id)
        if following is None:
            raise StopIteration
        if not self._follow:
            raise PlanMismatch(
                f"plan {self.plan.id} has ended and the feed goes on under plan {following.plan.id}: "
                + "; ".join(differences(self.plan, following.plan))
                + ". Read on with follow=True, or start a new run under the new plan"
            )
        self._wait_for(following)
        self._commit(after=0)
        self._fetcher.close()
        start = Cursor(following.plan.id).at_epoch(self._start.epoch, self._start.block)
        worker, workers = self.part
        self._begin(following, start, ((worker - self._batches_of_a_rank) % workers, workers), base=0)

    @property
    def _ends_with_span(self) -> bool:
        return self._start.span is not None and self._start.span.end is not None

    @property
    def _batches_of_a_rank(self) -> int:
        """How many batches, those of padding included, each rank is given from the base to the end of the plan."""
        assert self._order.total is not None, "asked at the end"  # noqa: S101
        left = self._order.total - self.base
        steps = left // self._step if self._drop else -(-left // self._step)
        return steps * (self._step // self._world)

    def _wait_for(self, edition: Edition) -> None:
        """Wait for the topics of an edition, which are made only after the one before has ended for all streams."""
        deadline = time.monotonic() + self._timeout
        while True:
            try:
                return self._feed.check_next(edition)
            except TopicError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(_TOPIC_SECONDS)

    def _attempt(self, number: int) -> Found | None:
        """The batch, taken from its slot, and the position then; or that there is none; None until that is certain."""
        fate = self._decide(number)
        if fate is None:
            self._fetcher.skip_below(number // self.plan.slots)
        if not isinstance(fate, Place):
            return fate
        if not self._fetcher.follows(fate.slot):
            self._fetcher.follow({fate.slot: self._position(fate.slot)})
        self._fetcher.skip_to(fate)
        taken = self._fetcher.take(fate, self._stands_at(fate))
        return None if taken is None else (fate.slot, *taken)

    def _stands_at(self, place: Place) -> int:
        if not self._start.epoch:
            return place.index
        batches = self._order.batches(place.slot)
        assert batches is not None, "epochs wait for the total"  # noqa: S101
        return stands_at(place, batches, self.plan.seed, self._start.epoch, self._start.block)

    def _decide(self, number: int) -> Fate | None:
        """Where the batch stands, or that the feed ends before it; by totals alone, so that all ranks decide alike."""
        first = number - (number - self.base) % self._step
        needed = first + (self._step if self._drop else 1)
        total = self._order.total
        if total is not None:
            if total < needed:
                return "over"
            return "pad" if number >= total else self._order.locate(number)
        if self._start.epoch or (self._drop and self._order.at_least < needed):
            return None
        return self._order.locate(number)

    def _complaint(self, number: int) -> TokenfeedError:
        place = self._decide(number)
        slot = place.slot if isinstance(place, Place) else None
        if self._start.epoch and self._order.total is None:
            return FeedStalledError(
                f"epoch {self._start.epoch} gives a sealed feed again, but "
                f"{', '.join(f'stream {stream}' for stream in self._unsealed())} has not ended within {self._timeout:g} s; "
                "`tokenfeed ingest --seal` ends a feed"
            )
        gaps = self._fetcher.missing(slot) if slot is not None else []
        if gaps:
            stream, batch = gaps[0]
            return FeedGapError(
                f"slot {slot}: batch {batch} of stream {stream} never came, though the feed is sealed behind it; it was "
                "lost from the batches topic"
            )
        return FeedStalledError(
            f"batch {number} of the feed did not come within {self._timeout:g} s; {self._fetcher.waiting_for(slot)}. "
            "Do the workers run, and does data come in? slot_timeout sets the patience"
        )

    def _unsealed(self) -> list[int]:
        return [stream for stream in range(self.plan.streams) if stream not in self._order.finals]

    def _position(self, slot: int) -> Position:
        if slot in self._positions:
            return self._positions[slot]
        first = (0,) * self.plan.streams if self._start.span is None else self._start.span.first
        return Position(0, self._begin_at.get(slot, 0), first_in_slot(first, slot, self.plan.slots))

    def _commit(self, after: float = _COMMIT_SECONDS) -> None:
        now = time.monotonic()
        if self._run is not None and self._positions and now - self._committed_at >= after:
            self._committed_at = now
            self._fetcher.commit({slot: position.offset for slot, position in self._positions.items()})


def _order_of(plan: Plan, span: Span | None) -> GlobalOrder:
    if span is None or span.end is None:
        return GlobalOrder(plan.streams, plan.slots, None if span is None else span.first)
    return SpanOrder(span.first, span.end, plan.slots)


def _beginnings(feed: Feed, plan: Plan, span: Span) -> dict[int, int]:
    """Offset of each slot behind which all of a span stands."""
    consumer = reader(dict(feed.options))
    try:
        return offsets_at(consumer, feed.batches_topic, range(plan.slots), span.since - CLOCK_SKEW_MS)
    finally:
        consumer.close()
