"""Reading the ledger of a stream from Kafka."""

from __future__ import annotations

import time
from typing import Final

from confluent_kafka import Consumer

from tokenfeed.errors import BrokerUnreachable, LedgerError
from tokenfeed.kafka import end_offset, offset_of, read_range
from tokenfeed.ledger import Entry, Ledger, decode, fold_tail, needed_from

_READ_SECONDS: Final = 15.0
_TAIL_ENTRIES: Final = 64  # a window makes two; more are read only if zombies wrote that many


def read_ledger(consumer: Consumer, topic: str, stream: int, plan: str) -> Ledger:
    """What the ledger says of a stream, read from its tail up to its end as it is now.

    Raises:
        LedgerError: its entries contradict each other, or are of another plan.
        TopicError, BrokerUnreachable, WireError.
    """
    end = end_offset(consumer, topic, stream)
    begin = max(0, end - _TAIL_ENTRIES)
    while True:
        entries = read_entries(consumer, topic, stream, begin, end)
        start = needed_from(entries, begin)
        if start >= begin:
            return fold_tail(stream, plan, entries, start)
        begin = start


def read_entries(consumer: Consumer, topic: str, stream: int, start: int, end: int) -> list[tuple[int, Entry]]:
    """The entries [start, end), all of them: behind a change of leader a read may end before what was acknowledged.

    Raises:
        LedgerError, TopicError, BrokerUnreachable, WireError.
    """
    entries: list[tuple[int, Entry]] = []
    deadline = time.monotonic() + _READ_SECONDS
    while start < end:
        for message in read_range(consumer, topic, stream, start, end):
            start = offset_of(message) + 1
            entries.append((start - 1, _entry(stream, start - 1, message.value())))
        if start < end and time.monotonic() > deadline:
            raise BrokerUnreachable(f"{topic}/{stream}: offset {end - 1} is not to be read, only {start - 1}")
    return entries


def _entry(stream: int, offset: int, value: bytes | None) -> Entry:
    if value is None:
        raise LedgerError(
            f"ledger partition {stream} offset {offset}: empty; the ledger topic must not be written by others"
        )
    return decode(value)
