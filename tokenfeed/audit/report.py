"""What an audit finds out."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from tokenfeed.audit.window import Account, Origin

_MOST_NAMED: Final = 100  # documents that are named one by one


@dataclass(slots=True)
class StreamReport:
    """What was found out about one stream. Everything counts documents unless it says otherwise.

    Attributes:
        documents: accepted below the frontier: each is in batches, filtered or dead, or it is lost.
        batched, filtered, dead: where they are.
        pending: behind the frontier: in no window, or in one whose batches were not all acknowledged. By count of
            lines where records are bundles.
        lost, doubled: nowhere or not in full; in two places.
        lost_named, doubled_named: the first of them, as source index, offset, index in record.
        windows, unverified_windows: those settled; those whose raw records retention has removed.
        batches, tokens: in the valid sequence.
        re_emitted, early: messages that readers pass over.
        altered: batches of which two messages differ, or that are not what their window must give.
        gaps: numbers of batches that are missing from the valid sequence, also those that stand in the wrong order.
        token_faults: windows whose tokens do not add up.
        sealed: whether the stream has ended and all of it has been emitted.
        fault: what is wrong with its ledger, if anything is.
    """

    stream: int
    documents: int = 0
    batched: int = 0
    filtered: Counter[str] = field(default_factory=Counter)
    dead: int = 0
    pending: int = 0
    lost: int = 0
    doubled: int = 0
    lost_named: list[Origin] = field(default_factory=list)
    doubled_named: list[Origin] = field(default_factory=list)
    windows: int = 0
    unverified_windows: int = 0
    batches: int = 0
    tokens: int = 0
    re_emitted: int = 0
    early: int = 0
    altered: int = 0
    gaps: list[int] = field(default_factory=list)
    token_faults: list[int] = field(default_factory=list)
    sealed: bool = False
    fault: str | None = None

    @property
    def ok(self) -> bool:
        """Whether nothing is lost, doubled, altered, missing or contradictory."""
        return not (self.lost or self.doubled or self.altered or self.gaps or self.token_faults or self.fault)

    def book(self, account: Account) -> None:
        """Add a window's account."""
        self.windows += 1
        self.documents += account.documents
        self.batched += account.batched
        self.filtered += account.filtered
        self.dead += account.dead
        self.lost += len(account.lost)
        self.doubled += len(account.doubled)
        self.lost_named += account.lost[: _MOST_NAMED - len(self.lost_named)]
        self.doubled_named += account.doubled[: _MOST_NAMED - len(self.doubled_named)]
        self.token_faults += account.token_faults

    def lose(self, origins: list[Origin]) -> None:
        """Add documents that are in no window."""
        self.documents += len(origins)
        self.lost += len(origins)
        self.lost_named += origins[: _MOST_NAMED - len(self.lost_named)]


@dataclass(frozen=True, slots=True)
class Report:
    """What an audit found.

    Attributes:
        slots: valid batches of each slot.
        foreign: messages that are not of this feed.
        remade: whether the content of every window was made anew and compared.
    """

    plan: str
    streams: list[StreamReport]
    slots: list[int]
    foreign: list[str]
    remade: bool

    @property
    def ok(self) -> bool:
        """Whether every accepted document below the frontier stands in exactly one place."""
        return not self.foreign and all(stream.ok for stream in self.streams)

    @property
    def spread(self) -> int:
        """Batches by which the fullest slot is ahead of the emptiest."""
        return max(self.slots) - min(self.slots)
