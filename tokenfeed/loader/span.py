"""A part of a feed: whole windows, chosen by the time at which they were cut or by the raw records in them.

It may be open: all that comes from some windows on, as a run that begins later reads it.

The choice is made from the ledgers alone, so every rank makes the same one.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from itertools import accumulate

from tokenfeed.errors import CursorError, TopicError
from tokenfeed.history import windows
from tokenfeed.kafka import reader
from tokenfeed.ledger import Cut, Done
from tokenfeed.loader.feed import Feed
from tokenfeed.plan import Plan

Window = tuple[Cut, Done | None, int]


@dataclass(frozen=True, slots=True)
class Span:
    """The batches [first, end) of each stream.

    Attributes:
        plan: plan id.
        first, end: numbers, one a stream of the plan; `end` is None where there is none.
        since: time in Unix milliseconds at which the first window of it was cut.
    """

    plan: str
    first: tuple[int, ...]
    end: tuple[int, ...] | None
    since: int

    def holds(self, stream: int, number: int) -> bool:
        """Whether a batch is in it."""
        return self.first[stream] <= number and (self.end is None or number < self.end[stream])


def since(feed: Feed, moment: int | datetime) -> Span:
    """All batches from that window on which each stream was at, at a time: where a run may begin that is added later.

    Ranks that ask for the same moment get the same answer, if it lies some seconds back.

    Args:
        feed: the feed; of its editions the newest, or the expected one.
        moment: Unix milliseconds, or a datetime with a time zone; not in the future.

    Raises:
        CursorError: a time without a zone, or in the future.
    """
    at = _milliseconds(moment)
    if at > time.time() * 1000:
        raise CursorError(f"a run that begins at {moment}: that is in the future")
    plan, every = _windows(feed)
    first, begun = [0] * plan.streams, [at] * plan.streams
    for stream in range(plan.streams):
        for (cut, _, _), latest in zip(every[stream], _times(every[stream]), strict=True):
            if latest <= at:
                first[stream], begun[stream] = cut.first, latest
    return Span(plan.id, tuple(first), None, min(begun))


def between(feed: Feed, start: int | datetime, end: int | datetime) -> Span:
    """The windows that were cut in [start, end).

    A window whose worker's clock was behind counts as cut when the one before it was.

    Args:
        feed: the feed.
        start, end: Unix milliseconds, or datetimes with a time zone; not in the future.

    Raises:
        CursorError: a time without a zone, in the future, or an end before the start.
        TopicError: no window was cut then, or one of them is not done.
    """
    earliest, until = _milliseconds(start), _milliseconds(end)
    if not earliest < until <= time.time() * 1000:
        raise CursorError(f"a span from {start} to {end}: it must have a length and have passed")

    plan, every = _windows(feed)
    chosen = [
        [window for window, latest in zip(some, _times(some), strict=True) if earliest <= latest < until] for some in every
    ]
    return _span(plan, chosen, f"between {start} and {end}")


def of_offsets(feed: Feed, offsets: Mapping[tuple[str, int], tuple[int, int]]) -> Span:
    """The windows that hold the raw records [start, end) of each (topic, partition), whole, and those between them.

    Pieces that such a window has left to the next are in the next.

    Raises:
        CursorError: a topic or partition that the feed does not have, or an end before the start.
        TopicError: a record lies in no window that is done.
    """
    plan, every = _windows(feed)
    for (topic, partition), (start, end) in offsets.items():
        if topic not in plan.sources or not 0 <= partition < plan.streams or not 0 <= start < end:
            raise CursorError(f"{topic}/{partition} offsets {start} to {end}: the feed has no such records")
    chosen = []
    for stream in range(plan.streams):
        wanted = {plan.sources.index(t): ends for (t, partition), ends in offsets.items() if partition == stream}
        found = every[stream]
        for source, (start, end) in wanted.items():
            begin, reached = (found[0][0].ranges[source][0], found[-1][0].ranges[source][1]) if found else (0, 0)
            if not begin <= start < end <= reached:
                raise TopicError(
                    f"{plan.sources[source]}/{stream}: the windows hold offsets {begin} to {reached}, not {start} to {end}"
                )
        held = [i for i, (cut, _, _) in enumerate(found) if any(_meet(cut.ranges[s], r) for s, r in wanted.items())]
        chosen.append(found[held[0] : held[-1] + 1] if held else [])
    return _span(plan, chosen, "of these offsets")


def _times(some: list[Window]) -> list[int]:
    """When each window of a stream counts as cut: not before the one before it, whatever its worker's clock said."""
    return list(accumulate((at for _, _, at in some), max))


def _meet(one: tuple[int, int], other: tuple[int, int]) -> bool:
    return max(one[0], other[0]) < min(one[1], other[1])


def _windows(feed: Feed) -> tuple[Plan, list[list[Window]]]:
    """The plan in force, or that which is expected, and the windows of each of its streams."""
    edition = feed.edition()
    plan, topic = edition.plan, feed.of_edition(edition).ledger_topic
    consumer = reader(dict(feed.options))
    try:
        return plan, [list(windows(consumer, topic, stream, plan.id)) for stream in range(plan.streams)]
    finally:
        consumer.close()


def _span(plan: Plan, chosen: list[list[Window]], what: str) -> Span:
    first, end = [], []
    for stream, some in enumerate(chosen):
        for cut, done, _ in some:
            if done is None:
                raise TopicError(f"window {cut.window} of stream {stream} is in the span, but not done yet; wait for it")
        last = some[-1][1] if some else None
        first.append(some[0][0].first if some else 0)
        end.append(last.next if last is not None else 0)
    if first == end:
        raise TopicError(f"the feed has no batch {what}")
    return Span(plan.id, tuple(first), tuple(end), min(at for some in chosen for _, _, at in some))


def _milliseconds(moment: int | datetime) -> int:
    if isinstance(moment, int):
        return moment
    if moment.tzinfo is None:
        raise CursorError(f"{moment.isoformat()} is in no time zone: give one that is aware, or Unix milliseconds")
    return round(moment.timestamp() * 1000)
