"""The topics are what the settings imply."""

from __future__ import annotations

import pytest

from tokenfeed.settings import Settings
from tokenfeed.topics import TopicSpec, topic_specs


def specs(brokers: int = 3, **overrides: object) -> dict[str, TopicSpec]:
    return {spec.name: spec for spec in topic_specs(Settings(**overrides), brokers)}  # type: ignore[arg-type]


def test_every_topic_has_the_partitions_that_the_plan_needs() -> None:
    found = specs(raw_topics=("a", "b"), raw_partitions=3, slots=4)
    counts = {name: spec.partitions for name, spec in found.items()}
    assert counts == {"a": 3, "b": 3, "batches": 4, "ledger": 3, "plan": 1, "dead": 3}


def test_ledger_and_plan_are_never_deleted() -> None:
    found = specs(retention_hours=1)
    assert found["ledger"].config["retention.ms"] == found["ledger"].config["retention.bytes"] == "-1"
    assert found["ledger"].config["cleanup.policy"] == "delete"
    assert found["plan"].config == found["ledger"].config  # compaction could drop the first of equal plans
    assert {found[name].config["retention.ms"] for name in ("raw", "batches", "dead")} == {"3600000"}


@pytest.mark.parametrize(
    ("brokers", "setting", "replication", "in_sync"),
    [(1, 0, 1, "1"), (2, 0, 2, "1"), (3, 0, 3, "2"), (9, 0, 3, "2"), (9, 2, 2, "1"), (9, 5, 5, "2")],
)
def test_replication_follows_the_cluster_unless_set(brokers: int, setting: int, replication: int, in_sync: str) -> None:
    for spec in specs(brokers, replication_factor=setting).values():
        assert (spec.replication, spec.config["min.insync.replicas"]) == (replication, in_sync)


def test_every_topic_takes_the_largest_message_as_its_producer_packed_it() -> None:
    for spec in specs(max_message_bytes=5_000_000).values():
        assert (spec.config["max.message.bytes"], spec.config["compression.type"]) == ("5000000", "producer")
