"""Which feed a trainer reads, and what it expects of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from tokenfeed.errors import PlanMismatch, TopicError
from tokenfeed.kafka import connection, partition_counts
from tokenfeed.plan import Plan
from tokenfeed.planning import read_plans
from tokenfeed.settings import Settings


@dataclass(frozen=True, kw_only=True)
class Feed:
    """Where a feed is, and what a trainer expects of it.

    Attributes:
        options: librdkafka's connection options.
        batches_topic, ledger_topic, plan_topic: the feed's topics.
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
        """The feed that the settings name; rows and batches must have the settings' size."""
        sizes = {"sequence_length": settings.sequence_length, "batch_size": settings.batch_size}
        return cls(
            options=connection(settings),
            batches_topic=settings.batches_topic,
            ledger_topic=settings.ledger_topic,
            plan_topic=settings.plan_topic,
            expected=sizes | expected,
        )

    def plan(self) -> Plan:
        """Read the feed's plan and check what is expected of it.

        Raises:
            PlanMismatch: lists every field that differs.
            TopicError: there is no plan yet, or the batches topic has another partition count.
        """
        slots = partition_counts(dict(self.options)).get(self.batches_topic)
        plans = read_plans(dict(self.options), self.plan_topic)
        if not plans:
            raise TopicError(f"topic {self.plan_topic} holds no plan yet: start a worker first")
        plan = plans[0]
        if unknown := self.expected.keys() - {"plan_id"} - asdict(plan).keys():
            raise PlanMismatch(f"a plan has no field {', '.join(sorted(unknown))}; it has {', '.join(asdict(plan))}")
        found = {name: plan.id if name == "plan_id" else getattr(plan, name) for name in self.expected}
        wrong = [
            f"{name}: {value!r} expected, {found[name]!r} in the feed"
            for name, value in self.expected.items()
            if found[name] != value
        ]
        if wrong:
            raise PlanMismatch(f"the feed of topic {self.batches_topic} is not the one asked for: {'; '.join(wrong)}")
        if slots != plan.slots:
            raise TopicError(f"topic {self.batches_topic} has {slots} partitions, its plan has {plan.slots} slots")
        return plan
