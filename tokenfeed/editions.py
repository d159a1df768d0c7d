"""The editions of a feed: what different plans made of it, one after another.

A feed goes on under another plan where each of its streams was told to end under the plan before. The plan topic says in
which order: its first record is the first plan, and a record that names the plan in force as the one it follows begins
the next edition. Of several such records the first in log order holds, like everywhere in a feed. Every edition has
batches, ledger and dead letters in topics of its own, so that nothing of two plans can stand in one log.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from tokenfeed.plan import Plan

FOLLOWS: Final = "tokenfeed-follows"
"""Header of a plan record: id of the plan before."""

RAW_IDS: Final = "tokenfeed-raw-ids"
"""Header of a plan record: JSON of the ids that the cluster gave the raw topics when they were made."""


@dataclass(frozen=True, slots=True)
class PlanRecord:
    """A record of the plan topic, with what its headers say."""

    plan: Plan
    follows: str | None = None
    raw_ids: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Edition:
    """A plan, its place among the feed's plans, counted from 1, and the ids of its raw topics, where they are known."""

    number: int
    plan: Plan
    raw_ids: Mapping[str, str] = field(default_factory=dict, compare=False)

    def topic(self, name: str) -> str:
        """The edition's own topic of a kind; the first edition's are those that the settings name."""
        return name if self.number == 1 else f"{name}-{self.number}"


@dataclass(frozen=True, slots=True)
class Beginning:
    """Where a stream of an edition starts, one value a source of its plan.

    Attributes:
        offsets: raw offset behind what earlier editions took; None where none has read the source.
        sealed: whether the source ended in an earlier edition.
    """

    offsets: tuple[int | None, ...]
    sealed: tuple[bool, ...]

    @classmethod
    def anywhere(cls, sources: int) -> Beginning:
        """Of a stream that no earlier edition has read."""
        return cls((None,) * sources, (False,) * sources)


def editions(records: Iterable[PlanRecord]) -> list[Edition]:
    """The editions that a plan topic's records make, in log order."""
    found: list[Edition] = []
    for record in records:
        in_force = found[-1].plan.id if found else None
        if record.follows == in_force and record.plan.id not in {edition.plan.id for edition in found}:
            found.append(Edition(len(found) + 1, record.plan, record.raw_ids))
    return found
