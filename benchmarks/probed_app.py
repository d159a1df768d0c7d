"""A worker that measures, from its first window on, how late its event loop wakes a sleeper."""

from __future__ import annotations

import asyncio
import sys
import time
from typing import Any, Final

import numpy as np

from app.factory import create_app
from tokenfeed.settings import load_settings

SLEEP_SECONDS: Final = 0.001

app = create_app(load_settings())
_open = app.feed.open_streams


async def _probe() -> None:
    late: list[float] = []
    try:
        while True:
            before = time.perf_counter()
            await asyncio.sleep(SLEEP_SECONDS)
            late.append((time.perf_counter() - before - SLEEP_SECONDS) * 1000)
    finally:
        p50, p99 = np.percentile(late, [50, 99])
        print(f"p50 {p50:.2f} ms p99 {p99:.2f} ms longest {max(late):.2f} ms", file=sys.stderr, flush=True)


async def _opened(consumer: Any) -> Any:
    positions = await _open(consumer)
    app.feed._spawn(_probe())
    return positions


app.feed.open_streams = _opened  # type: ignore[method-assign]
