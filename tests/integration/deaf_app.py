"""A worker whose agent has a bug: the 40th record raises."""

from __future__ import annotations

from typing import Any

from app.factory import create_app
from tokenfeed.settings import load_settings

app = create_app(load_settings())
_accept = app.feed.accept
_accepted = 0


async def _broken(message: Any) -> None:
    global _accepted
    _accepted += 1
    if _accepted == 40:
        raise RuntimeError("a fault of ours")
    await _accept(message)


app.feed.accept = _broken  # type: ignore[method-assign]
