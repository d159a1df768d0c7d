"""A worker that breaks an invariant on purpose. SABOTAGE names what it does to each stream, from 0 on, comma-separated.

But for `LATE_START` and the seals, it is done to window 1; all other windows, and streams that are `HONEST`, are made as
they should be.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import app.factory
import app.feed
from app.emitter import Outgoing
from app.ledger import LedgerLog
from app.stream import Outbox
from tokenfeed import batches
from tokenfeed.content import WindowContent
from tokenfeed.documents import ORIGIN_HEADER, RawRecord
from tokenfeed.ledger import Cut, Done, Entry, Ledger, encode
from tokenfeed.settings import load_settings

HONEST = "honest"
STRUCK_WINDOW = 1
FOREIGN_PLAN = "0" * 16


def _records_but_the_last(records: list[RawRecord]) -> list[RawRecord]:
    return records[:-1]


def _last_record_twice(records: list[RawRecord]) -> list[RawRecord]:
    return [*records, records[-1]]


def _records_backwards(records: list[RawRecord]) -> list[RawRecord]:
    return records[::-1]


RECORDS: dict[str, Callable[[list[RawRecord]], list[RawRecord]]] = {
    "document_skipped": _records_but_the_last,
    "document_twice": _last_record_twice,
    "other_order_of_documents": _records_backwards,
}


def _other_token(batch: batches.Batch) -> batches.Batch:
    ids = batch.input_ids.copy()
    ids[0, 0] ^= 1
    return replace(batch, input_ids=ids)


def _token_dropped(batch: batches.Batch) -> batches.Batch:
    lens = batch.piece_lens.copy()
    lens[lens.argmax()] -= 1
    return replace(batch, piece_lens=lens)


BATCH: dict[str, Callable[[batches.Batch], batches.Batch]] = {
    "other_token": _other_token,
    "token_dropped": _token_dropped,
}


def _is_batch(message: Outgoing) -> bool:
    return dict(message.headers).get(batches.KIND) == b"batch"


def _is_seal(message: Outgoing) -> bool:
    return dict(message.headers).get(batches.KIND) == b"seal"


def _with_header(message: Outgoing, name: str, value: bytes) -> Outgoing:
    return replace(message, headers=[(key, value if key == name else old) for key, old in message.headers])


def _middle_unsent(messages: list[Outgoing]) -> list[Outgoing]:
    sent = [message for message in messages if _is_batch(message)]
    return [message for message in messages if message is not sent[len(sent) // 2]]


def _repeat_with_other_bytes(messages: list[Outgoing]) -> list[Outgoing]:
    (first, *_) = filter(_is_batch, messages)
    value = first.value or b""
    return [*messages, replace(first, value=value[:-1] + bytes([value[-1] ^ 1]))]


def _backwards(messages: list[Outgoing]) -> list[Outgoing]:
    return messages[::-1]


def _letters_unsent(messages: list[Outgoing]) -> list[Outgoing]:
    return [message for message in messages if ORIGIN_HEADER not in dict(message.headers)]


def _of_foreign_plan(messages: list[Outgoing]) -> list[Outgoing]:
    return [_with_header(message, batches.PLAN, FOREIGN_PLAN.encode()) for message in messages]


def _in_another_slot(messages: list[Outgoing]) -> list[Outgoing]:
    (first, *_) = filter(_is_batch, messages)
    return [replace(message, partition=1 - message.partition) if message is first else message for message in messages]


MESSAGES: dict[str, Callable[[list[Outgoing]], list[Outgoing]]] = {
    "batch_unsent": _middle_unsent,
    "repeat_with_other_bytes": _repeat_with_other_bytes,
    "batches_backwards": _backwards,
    "dead_letters_unsent": _letters_unsent,
    "foreign_plan": _of_foreign_plan,
    "another_slot": _in_another_slot,
}


def _seals_of_one_more(messages: list[Outgoing]) -> list[Outgoing]:
    return [
        _with_header(message, batches.NUMBER, b"%d" % (int(dict(message.headers)[batches.NUMBER]) + 1))
        if _is_seal(message)
        else message
        for message in messages
    ]


def _last_seal_unsent(messages: list[Outgoing]) -> list[Outgoing]:
    return messages[:-1] if _is_seal(messages[-1]) else messages


SEALS: dict[str, Callable[[list[Outgoing]], list[Outgoing]]] = {
    "wrong_seal": _seals_of_one_more,
    "seal_unsent": _last_seal_unsent,
}

OTHERS_CUT_IGNORED = "others_cut_ignored"
LATE_START = "late_start"


def _starting_later(cut: Cut) -> Cut:
    return replace(cut, ranges=tuple((start + 1, end) for start, end in cut.ranges))


def _as_the_last(cut: Cut) -> Cut:
    return replace(cut, reason="seal")


CUTS: dict[str, Callable[[Cut], Cut]] = {
    "cut_skips_offsets": _starting_later,
    LATE_START: _starting_later,
    "end_before_the_seal": _as_the_last,
    OTHERS_CUT_IGNORED: lambda cut: cut,
}


def _one_batch_too_many(done: Done) -> Done:
    return replace(done, next=done.next + 1)


DONES: dict[str, Callable[[Done], Done]] = {"done_of_one_more": _one_batch_too_many}

EVERY = [*RECORDS, *BATCH, *MESSAGES, *SEALS, *CUTS, *DONES]
CHOSEN = os.environ.get("SABOTAGE", HONEST).split(",")


def chosen(stream: int, window: int) -> str:
    """What is done to a window of a stream."""
    name = CHOSEN[stream] if stream < len(CHOSEN) else HONEST
    struck = name in SEALS or window == (0 if name == LATE_START else STRUCK_WINDOW)
    return name if struck else HONEST


_window_content = app.feed.window_content


def content(plan: Any, encoder: Any, cut: Cut, records: list[RawRecord]) -> WindowContent:
    """The content of a window, of other records or with other batches."""
    name = chosen(cut.stream, cut.window)
    made = _window_content(plan, encoder, cut, RECORDS[name](records) if name in RECORDS else records)
    if name in BATCH:
        made.batches[0] = BATCH[name](made.batches[0])
    return made


class SabotagedOutbox(Outbox):
    """Other messages than those of the content."""

    def messages(self, cut: Cut, content: WindowContent) -> Iterator[Outgoing]:
        """What is sent."""
        name = chosen(cut.stream, cut.window)
        made = list(super().messages(cut, content))
        yield from (MESSAGES | SEALS)[name](made) if name in MESSAGES or name in SEALS else made


class SabotagedLedger(LedgerLog):
    """Writes other entries, and believes them without reading back."""

    async def append(self, ledger: Ledger, entry: Entry) -> Ledger:
        """Append, as a worker without any check would."""
        name = chosen(entry.stream, entry.window)
        if isinstance(entry, Cut) and name == OTHERS_CUT_IGNORED:
            ((start, end),) = entry.ranges
            await self._write(replace(entry, ranges=((start, end - 1),), worker="another"))
        if isinstance(entry, Cut) and name in CUTS:
            entry = CUTS[name](entry)
            offset = await self._write(entry)
            return replace(ledger, read_to=offset + 1, cut=entry, cut_offset=offset, done=None)
        if isinstance(entry, Done) and name in CUTS | DONES:
            entry = DONES[name](entry) if name in DONES else entry
            return replace(ledger, read_to=await self._write(entry) + 1, done=entry)
        return await super().append(ledger, entry)

    async def _write(self, entry: Entry) -> int:
        (offset,) = await self._emitter.send([Outgoing(self._topic, entry.stream, encode(entry))])
        return offset


app.feed.window_content = content  # type: ignore[assignment]
app.feed.Outbox = SabotagedOutbox  # type: ignore[misc]
app.feed.LedgerLog = SabotagedLedger  # type: ignore[misc]
app = app.factory.create_app(load_settings())  # type: ignore[assignment]
