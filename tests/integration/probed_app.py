"""A worker that measures, from its first window on, how long its event loop was ever blocked."""

from __future__ import annotations

import asyncio
import sys
import time
from typing import Any

from app.factory import create_app
from tokenfeed.settings import load_settings

app = create_app(load_settings())
_open = app.feed.open_streams
_SLEEP = 0.001


async def _probe() -> None:
    longest = 0.0
    try:
        while True:
            before = time.perf_counter()
            await asyncio.sleep(_SLEEP)
            longest = max(longest, time.perf_counter() - before - _SLEEP)
    finally:
        print(f"longest block {longest:.4f} s", file=sys.stderr, flush=True)


async def _opened(consumer: Any) -> Any:
    positions = await _open(consumer)
    app.feed._spawn(_probe())
    return positions


app.feed.open_streams = _opened  # type: ignore[method-assign]
