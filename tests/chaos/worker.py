"""A worker that sends itself a signal at a named point of a window: CHAOS_POINT, CHAOS_WINDOW, CHAOS_SIGNAL.

before_cut      the window is full, its cut has not been sent
after_cut       its cut is acknowledged, the ledger has not been read back
mid_emission    the first half of its batches is acknowledged, the rest has not been sent
before_done     all of its batches are acknowledged, `done` has not been sent
after_done      `done` stands in the ledger, nothing has been committed
rebalance       partitions are assigned for the CHAOS_WINDOW-th time, their ledgers have been read
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from faust.types import TP

import app.factory
import app.feed
from app.emitter import Emitter, Outgoing
from app.feed import Feed
from app.ledger import LedgerLog
from tokenfeed import batches
from tokenfeed import ledger as entries
from tokenfeed.ledger import Cut, Entry, Ledger
from tokenfeed.settings import load_settings

POINT = os.environ["CHAOS_POINT"]
WINDOW = int(os.environ["CHAOS_WINDOW"])
SIGNAL = signal.Signals[os.environ["CHAOS_SIGNAL"]]

_assignments = 0
_struck = False


def strike(point: str, window: int) -> None:
    """Send the signal, once, if this is the point."""
    global _struck
    if (point, window) == (POINT, WINDOW) and not _struck:
        _struck = True
        print(f"struck at {point} of window {window}", file=sys.stderr, flush=True)
        os.kill(os.getpid(), SIGNAL)


class StruckLedger(LedgerLog):
    """Knows the points around the ledger's entries."""

    async def append(self, ledger: Ledger, entry: Entry) -> Ledger:
        """Append, with the points before and behind it."""
        strike("before_cut" if isinstance(entry, Cut) else "before_done", entry.window)
        appended = await super().append(ledger, entry)
        if not isinstance(entry, Cut):
            strike("after_done", entry.window)
        return appended


class StruckEmitter(Emitter):
    """Knows the points of sending."""

    async def send(self, messages: Iterable[Outgoing]) -> list[int]:
        """Send, with the points after a cut and between two halves of a window."""
        sending = list(messages)
        if len(sending) > 1 and POINT == "mid_emission":
            half = len(sending) // 2
            offsets = await super().send(sending[:half])
            strike("mid_emission", _window_of(sending[0]))
            return offsets + await super().send(sending[half:])
        offsets = await super().send(sending)
        if len(sending) == 1 and b'"type":"cut"' in (sending[0].value or b""):
            strike("after_cut", _window_of_cut(sending[0]))
        return offsets


def _window_of_cut(message: Outgoing) -> int:
    return entries.decode(message.value or b"").window


def _window_of(message: Outgoing) -> int:
    return batches.decode(message.value).window if message.value and message.value[8:9] == b"{" else -1


class StruckFeed(Feed):
    """Knows the point of an assignment."""

    async def open_streams(self, consumer: Any) -> dict[TP, int]:
        """Open, and then the point."""
        global _assignments
        positions: Mapping[TP, int] = await super().open_streams(consumer)
        _assignments += 1
        strike("rebalance", _assignments)
        return dict(positions)


app.feed.LedgerLog = StruckLedger  # type: ignore[misc]
app.feed.Emitter = StruckEmitter  # type: ignore[misc]
app.factory.Feed = StruckFeed  # type: ignore[misc]
app = app.factory.create_app(load_settings())  # type: ignore[assignment]
