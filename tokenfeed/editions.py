"""The editions of a feed: what different plans made of it, one after another.

A feed goes on under another plan where each of its streams was told to end under the plan before. The plan topic says in
which order: its first record is the first plan, and a record that names the plan in force as the one it follows begins
the next edition. Of several such records the first in log order holds, like everywhere in a feed. Every edition has
batches, ledger and dead letters in topics of its own, so that nothing of two plans can stand in one log.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from tokenfeed.plan import Plan

FOLLOWS: Final = "tokenfeed-follows"
"""Header of a plan record: id of the plan before."""


@dataclass(frozen=True, slots=True)
class Edition:
    """A plan, and its place among the feed's plans, counted from 1."""

    number: int
    plan: Plan

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


def editions(records: Iterable[tuple[Plan, str | None]]) -> list[Edition]:
    """The editions that a plan topic's records, each with the plan that it follows, make, in log order."""
    found: list[Edition] = []
    for plan, follows in records:
        in_force = found[-1].plan.id if found else None
        if follows == in_force and plan.id not in {edition.plan.id for edition in found}:
            found.append(Edition(len(found) + 1, plan))
    return found
