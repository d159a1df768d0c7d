"""What the streams of a worker share: the event loop, which small windows may use, the memory budget, and their end."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace
from typing import Any

import pytest
from faust.types import TP

from app.feed import Feed
from app.fetcher import RawFetcher
from tokenfeed.documents import RawRecord
from tokenfeed.settings import Settings

SMALL = [RawRecord(0, 0, b"x" * 100)]
LARGE = [RawRecord(0, 0, b"x" * 100_000)]
MANY = [RawRecord(0, offset, b"") for offset in range(1000)]


async def no_crash(error: BaseException) -> None:
    raise AssertionError from error


def threads_of(records: list[list[RawRecord]], *, ready: bool) -> list[bool]:
    """Whether each of some builds that begin together runs on the event loop's thread."""
    feed: Any = Feed(Settings(), no_crash)
    feed._tokenizer = SimpleNamespace(ready=ready)
    feed._build = lambda cut, records: threading.current_thread() is threading.main_thread()

    async def build() -> list[bool]:
        return await asyncio.gather(*(feed.build(None, some) for some in records))

    found = asyncio.run(build())
    feed.stop()
    return found


@pytest.mark.parametrize(
    ("records", "ready", "on_loop"),
    [
        ([SMALL], True, [True]),
        ([SMALL, SMALL], True, [True, True]),
        ([SMALL], False, [False]),
        ([LARGE], True, [False]),
        ([MANY], True, [False]),
        ([LARGE, SMALL], True, [False, False]),
    ],
)
def test_only_small_windows_are_built_on_the_event_loop(
    records: list[list[RawRecord]], ready: bool, on_loop: list[bool]
) -> None:
    assert threads_of(records, ready=ready) == on_loop


def held(mebibytes: int, *, waits: bool = False) -> SimpleNamespace:
    """A stream that holds this much in its open window."""
    size = mebibytes * 2**20
    return SimpleNamespace(held_bytes=size, waiting_bytes=size, busy=False, waits=waits)


@pytest.mark.parametrize(
    ("streams", "room", "sheds"),
    [
        ([held(50), held(40)], True, []),
        ([held(70), held(60)], False, [0]),
        ([held(90, waits=True), held(61), held(62)], False, [2]),  # the one that waits cannot shed
        ([held(300, waits=True), held(10)], True, []),  # nor go on without its records, however many they are
    ],
)
def test_the_fullest_stream_that_can_makes_room(streams: list[SimpleNamespace], room: bool, sheds: list[int]) -> None:
    feed: Any = Feed(Settings(memory_budget_bytes=128 * 2**20), no_crash)
    feed._streams = dict(enumerate(streams))
    assert feed.has_room() == room
    assert [number for number, stream in enumerate(streams) if feed.must_shed(stream)] == sheds


def test_a_stopped_feed_neither_fetches_nor_fails() -> None:
    crashes: list[BaseException] = []

    async def crash(error: BaseException) -> None:
        crashes.append(error)

    async def stopped() -> None:
        feed = Feed(Settings(), crash)
        feed._fetcher = RawFetcher({"bootstrap.servers": "127.0.0.1:1", "log_level": 0}, ("raw",), 2**20)
        feed.stop()
        feed.close_streams()
        await feed.seek({TP("raw", 0): 0})
        assert await feed.fetch() == []

    asyncio.run(stopped())
    assert crashes == []
