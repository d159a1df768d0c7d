"""Which feed a trainer reads, and what it expects of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from typing import Any

from tokenfeed.editions import Edition
from tokenfeed.errors import CursorError, PlanMismatch, TopicError
from tokenfeed.kafka import connection, partition_counts
from tokenfeed.planning import existing_editions, read_editions
from tokenfeed.settings import Settings


@dataclass(frozen=True, kw_only=True)
class Feed:
    """Where a feed is, and what a trainer expects of it.

    Attributes:
        options: librdkafka's connection options.
        batches_topic, ledger_topic, plan_topic: the feed's topics; those of its first edition.
        expected: plan fields that must have these values, for instance `{"sequence_length": 2048}`; "plan_id" expects
            that very plan.
    """

    options: Mapping[str, Any] = field(repr=False)  # it holds the password
    batches_topic: str = "batches"
    ledger_topic: str = "ledger"
    plan_topic: str = "plan"
    expected: Mapping[str, Any]

    @classmethod
    def of(cls, settings: Settings, **expected: Any) -> Feed:
        """The feed that the settings name; rows and batches must have the settings' size, unless None is expected."""
        sizes = {"sequence_length": settings.sequence_length, "batch_size": settings.batch_size}
        return cls(
            options=connection(settings),
            batches_topic=settings.batches_topic,
            ledger_topic=settings.ledger_topic,
            plan_topic=settings.plan_topic,
            expected={name: value for name, value in (sizes | expected).items() if value is not None},
        )

    def edition(self, plan: str | None = None) -> Edition:
        """Read which editions the feed has, and choose one: that of a plan id, else of the expected one, else the newest.

        Raises:
            PlanMismatch: lists every field that differs from what is expected.
            CursorError: no edition has this plan id.
            TopicError: there is no plan yet, or the edition's batches topic has another partition count.
        """
        found = existing_editions(dict(self.options), self.plan_topic)
        known = {edition.plan.id: edition for edition in found}
        if plan is not None and plan not in known:
            raise CursorError(f"the loader state is of plan {plan}, the feed has {', '.join(known)}")
        chosen = known.get(plan or self.expected.get("plan_id", ""), found[-1])
        self._check(chosen, self.expected)
        return chosen

    def after(self, plan: str) -> Edition | None:
        """The edition that follows that of a plan id, None while there is none. It is held against no expectation.

        Raises:
            TopicError, BrokerUnreachable, WireError.
        """
        found = read_editions(dict(self.options), self.plan_topic)
        return next((one for before, one in pairwise(found) if before.plan.id == plan), None)

    def check_next(self, edition: Edition) -> None:
        """Make sure that an edition has what is expected, whatever its plan id.

        Raises:
            PlanMismatch, TopicError: see `edition`.
        """
        self._check(edition, {name: value for name, value in self.expected.items() if name != "plan_id"})

    def of_edition(self, edition: Edition) -> Feed:
        """The same feed with the topics of one edition."""
        return replace(self, batches_topic=edition.topic(self.batches_topic), ledger_topic=edition.topic(self.ledger_topic))

    def _check(self, edition: Edition, expected: Mapping[str, Any]) -> None:
        plan = edition.plan
        if unknown := expected.keys() - {"plan_id"} - asdict(plan).keys():
            raise PlanMismatch(f"a plan has no field {', '.join(sorted(unknown))}; it has {', '.join(asdict(plan))}")
        found = {name: plan.id if name == "plan_id" else getattr(plan, name) for name in expected}
        wrong = [
            f"{name}: {value!r} expected, {found[name]!r} in the feed"
            for name, value in expected.items()
            if found[name] != value
        ]
        topic = edition.topic(self.batches_topic)
        if wrong:
            raise PlanMismatch(
                f"the feed of topic {topic} is not the one asked for: {'; '.join(wrong)}; "
                "Feed.of(settings, NAME=None) takes any"
            )
        slots = partition_counts(dict(self.options)).get(topic)
        if slots is None:
            raise TopicError(f"topic {topic} does not exist; `tokenfeed topics create` makes what is missing")
        if slots != plan.slots:
            raise TopicError(f"topic {topic} has {slots} partitions, its plan has {plan.slots} slots")
