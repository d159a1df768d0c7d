"""What topics say about the past: the windows of a stream with their times, and where a time stands in a log."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from confluent_kafka import Consumer, KafkaException, TopicPartition

from tokenfeed import ledger as entries
from tokenfeed.kafka import EARLIEST, offset_of, read_range, watermarks
from tokenfeed.ledger import Cut, Done, Ledger

CLOCK_SKEW_MS: Final = 600_000  # by how much the clocks of workers may differ


def windows(consumer: Consumer, topic: str, stream: int, plan: str) -> Iterator[tuple[Cut, Done | None, int]]:
    """Valid windows in order, each with the time, in ms, at which it was cut; reads the stream's ledger to its end.

    Raises:
        LedgerError, WireError, TopicError, BrokerUnreachable: the ledger cannot be read, or is not of this plan.
    """
    state = Ledger(stream, plan)
    at = 0
    for message in list(read_range(consumer, topic, stream, EARLIEST)):
        before, state = state, state.apply(offset_of(message), entries.decode(message.value() or b""))
        if state.cut is not None and state.cut != before.cut:
            at = message.timestamp()[1]
        if state.cut is not None and state.done is not None and before.done is None:
            yield state.cut, state.done, at
    if state.cut is not None and state.done is None:
        yield state.cut, None, at


def offsets_at(consumer: Consumer, topic: str, partitions: Iterable[int], milliseconds: int) -> dict[int, int]:
    """Offset of each partition's first message of that time; of its first message where the broker cannot tell."""
    parts = [TopicPartition(topic, partition, max(0, milliseconds)) for partition in partitions]
    try:
        found = consumer.offsets_for_times(parts, timeout=10)
    except KafkaException:
        found = []
    known = {part.partition: part.offset for part in found if part.error is None and part.offset >= 0}
    rest = [part.partition for part in parts if part.partition not in known]
    return known | {partition: watermarks(consumer, topic, partition)[0] for partition in rest}
