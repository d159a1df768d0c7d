"""A feed that has stopped is left alone by what Faust still asks of it."""

from __future__ import annotations

import asyncio

from faust.types import TP

from app.feed import Feed
from app.fetcher import RawFetcher
from tokenfeed.settings import Settings


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
