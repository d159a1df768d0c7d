"""A worker whose agent has a bug: the run that holds the 40th record raises."""

from __future__ import annotations

from app.factory import create_app
from app.fetcher import Run
from tokenfeed.settings import load_settings

app = create_app(load_settings())
_accept = app.feed.accept
_accepted = 0


def _broken(run: Run) -> None:
    global _accepted
    _accepted += len(run.records)
    if _accepted >= 40:
        raise RuntimeError("a fault of ours")
    _accept(run)


app.feed.accept = _broken  # type: ignore[method-assign]
