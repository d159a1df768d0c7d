"""Feeds written by hand to real topics: windows, with their cuts and times, repeats and half-sent windows among them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from confluent_kafka import Producer

from tests.brokers import Broker
from tests.feeds import ByteTokenizer, make_cut, make_plan
from tests.service import Service
from tokenfeed import batches, ledger
from tokenfeed.batches import Batch, Envelope
from tokenfeed.content import window_content
from tokenfeed.documents import RawRecord
from tokenfeed.editions import FOLLOWS, Edition
from tokenfeed.ledger import Cut, CutReason, Done
from tokenfeed.loader import Cursor, Feed, FeedReader
from tokenfeed.plan import Plan
from tokenfeed.planning import at_edition
from tokenfeed.topics import create_topics

UNEVEN = [13, 0, 5, 1, 9]
SLOTS = 4
WINDOW = 4
HOUR = 3_600_000
Key = tuple[int, int] | None


def write_feed(broker: Broker, folder: Path, counts: list[int], *, sealed: bool = True, started_at: int = HOUR) -> Feed:
    """A feed whose streams have so many batches, in windows of WINDOW; window w of every stream is cut w hours later.

    Each batch holds three records of the raw topic, so that batch q of a stream holds raw offsets 3 q to 3 q + 2.
    """
    made = Service(broker.bootstrap, folder, {"raw_partitions": len(counts), "slots": SLOTS})
    plan = make_plan(streams=len(counts), slots=SLOTS)
    _write(made, Edition(1, plan), None, counts, "seal" if sealed else None, started_at)
    return _feed(made, plan)


def write_editions(broker: Broker, folder: Path, first: list[int], second: list[int]) -> Feed:
    """A feed that goes on under another plan, with two more slots, and is sealed there; so many batches in each."""
    made = Service(broker.bootstrap, folder, {"raw_partitions": len(first), "slots": SLOTS})
    plan = make_plan(streams=len(first), slots=SLOTS)
    following = Edition(2, replace(plan, slots=SLOTS + 2, seed=8))
    create_topics(at_edition(made.named.model_copy(update={"slots": SLOTS + 2}), following))
    _write(made, Edition(1, plan), None, first, "plan", HOUR)
    _write(made, following, plan, second, "seal", 100 * HOUR)
    return _feed(made, plan)


def _feed(made: Service, plan: Plan) -> Feed:
    sizes = {"sequence_length": plan.sequence_length, "batch_size": plan.batch_size}
    return replace(Feed.of(made.named), expected=sizes)


def _write(
    made: Service, edition: Edition, before: Plan | None, counts: list[int], ends: CutReason | None, started_at: int
) -> None:
    plan = edition.plan
    names = at_edition(made.named, edition)
    base = 1000 * (edition.number - 1)
    producer = Producer({**made.options, "linger.ms": 0, "batch.num.messages": 1})
    failed: list[object] = []
    cut_at = [-1] * len(counts)
    written = [0] * len(counts)

    def send(topic: str, partition: int, value: bytes | None, time: int, headers: Iterable[tuple[str, bytes]] = ()) -> None:
        producer.produce(
            topic,
            value,
            partition=partition,
            headers=list(headers),
            timestamp=time,
            on_delivery=lambda error, _: failed.extend([error] if error else []),
        )

    def note(stream: int, entry: Cut | Done, time: int) -> None:
        send(names.ledger_topic, stream, ledger.encode(entry), time)
        written[stream] += 1

    def emit(stream: int, some: list[Batch], time: int) -> None:
        for batch in some:
            slot = plan.slot(stream, batch.number)
            send(names.batches_topic, slot, batches.encode(batch), time, batches.envelope(batch).headers())

    follows = [(FOLLOWS, before.id.encode())] if before else []
    send(names.plan_topic, 0, plan.to_json(), started_at, follows)
    for window in range(max(counts) // WINDOW + 1):
        time = started_at + window * HOUR
        for stream, count in enumerate(counts):
            first = window * WINDOW
            until = min(count, first + WINDOW)
            if first > count:
                continue
            last = first + WINDOW > count
            start, end = base + first * 3, base + until * 3
            records = [RawRecord(0, offset, b"%015d" % offset) for offset in range(start, end)]
            cut = make_cut(
                plan,
                records,
                stream=stream,
                window=window,
                ranges=((start, end),),
                first=first,
                previous=cut_at[stream],
                reason=ends if last and ends else "documents",
            )
            cut_at[stream] = written[stream]
            note(stream, cut, time)
            note(stream, replace(cut, reason="seal", worker="came late", ranges=((start, end + 99),)), time + 5)
            some = window_content(plan, ByteTokenizer(), cut, records).batches
            assert len(some) == until - first
            emit(stream, some[2:], time)
            emit(stream, some[:1], time)
            emit(stream, some, time)
            counted = {"documents": len(records), "tokens": len(records) * 16, "rejected": 0}
            done = Done(plan=plan.id, stream=stream, window=window, next=until, **counted)
            note(stream, done, time)
            note(stream, done, time)
    for stream, count in enumerate(counts) if ends else ():
        for slot in range(plan.slots):
            send(names.batches_topic, slot, None, started_at, Envelope("seal", plan.id, stream, count).headers())
    assert producer.flush(10) == 0
    assert not failed


def read(reader: FeedReader, stop: int = 10**9) -> tuple[list[Key], Cursor]:
    """(stream, number) of the next batches of a reader, None for padding, and where it is then; closes it."""
    with reader:
        keys: list[Key] = []
        while len(keys) < stop and (delivered := next(reader, None)) is not None:
            keys.append(None if delivered.batch is None else (delivered.batch.stream, delivered.batch.number))
        return keys, reader.cursor


def interleaved(ranks: list[list[Key]]) -> list[Key]:
    """The batches of all ranks in the global order, which must have ended on the same step, without padding."""
    assert len({len(keys) for keys in ranks}) == 1, "every rank ends on the same step"
    return [key for step in zip(*ranks, strict=True) for key in step if key is not None]
