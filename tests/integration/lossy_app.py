"""A worker with a bug between fetching and accepting: its second run of records is lost."""

from __future__ import annotations

from app.factory import create_app
from app.fetcher import Run
from tokenfeed.settings import load_settings

app = create_app(load_settings())
_accept = app.feed.accept
_runs: set[tuple[str, int, int]] = set()


def _lossy(run: Run) -> None:
    _runs.add((*run.tp, run.start))
    if len(_runs) != 2:
        _accept(run)


app.feed.accept = _lossy  # type: ignore[method-assign]
