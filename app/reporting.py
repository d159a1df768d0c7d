"""Telling others how far a worker is: commits for lag tools, and lines in its log."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Final, Protocol

from faust.types import TP

from tokenfeed.ledger import Done

log = logging.getLogger(__name__)

_COMMIT_SECONDS: Final = 1.0
_REPORT_SECONDS: Final = 10.0


class Committer(Protocol):
    """The part of Faust's consumer that commits."""

    async def _commit(self, offsets: Mapping[TP, int]) -> bool: ...


class Progress:
    """What has been done since the last commit and the last line.

    Args:
        sources: raw topics in the plan's order.
    """

    def __init__(self, sources: Sequence[str]) -> None:
        self._sources = sources
        self._safe: dict[TP, int] = {}
        self._done: list[Done] = []

    def window_done(self, stream: int, needed: tuple[int, ...], done: Done) -> None:
        """A window is done; no raw offset of `stream` below `needed`, one a source, will be asked for again."""
        self._safe.update({TP(source, stream): offset for source, offset in zip(self._sources, needed, strict=True)})
        self._done.append(done)

    def forget_offsets(self) -> None:
        """Commit nothing of what was done so far: the partitions may be another worker's by now."""
        self._safe.clear()

    async def commit(self, consumer: Committer) -> None:
        """Commit for lag tools, for ever; the ledger, not the group, is the truth about position."""
        while True:
            await asyncio.sleep(_COMMIT_SECONDS)
            safe, self._safe = self._safe, {}
            if safe:
                await consumer._commit(safe)

    async def report(self) -> None:
        """Log what has been done, for ever, while anything is."""
        while True:
            await asyncio.sleep(_REPORT_SECONDS)
            done, self._done = self._done, []
            if done:
                log.info(
                    "%d windows in %g s: %d documents, %d tokens, %d dead letters",
                    *(len(done), _REPORT_SECONDS),
                    *(sum(each.documents for each in done), sum(each.tokens for each in done)),
                    sum(each.rejected for each in done),
                )
