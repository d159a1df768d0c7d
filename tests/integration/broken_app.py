"""A worker with a bug: building the third window raises."""

from __future__ import annotations

from typing import Any

from app.factory import create_app
from tokenfeed.settings import load_settings

app = create_app(load_settings())
_build = app.feed.build
_built = 0


async def _broken(*arguments: Any) -> Any:
    global _built
    _built += 1
    if _built == 3:
        raise RuntimeError("a fault of ours")
    return await _build(*arguments)


app.feed.build = _broken  # type: ignore[method-assign]
