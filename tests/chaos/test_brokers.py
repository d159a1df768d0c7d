"""Brokers that are killed, stopped and started again, of a cluster of three with two in-sync replicas."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from confluent_kafka.admin import AdminClient

from tests.brokers import Broker
from tests.chaos.harness import Outcome, Trial, now

Sound = Callable[[Outcome], None]
MakeTrial = Callable[..., Trial]


def leader(feed: Trial, topic: str, partition: int = 0) -> str:
    """Name of the broker that leads a partition."""
    topics = AdminClient(feed.options).list_topics(timeout=10).topics
    return f"broker-{topics[topic].partitions[partition].leader}"


def coordinator(feed: Trial) -> str:
    """Name of the broker that coordinates the workers' group."""
    admin = AdminClient(feed.options)
    group = admin.describe_consumer_groups([feed.settings.app_id])[feed.settings.app_id].result(10)
    return f"broker-{group.coordinator.id}"


@pytest.mark.parametrize(
    "role", ["ledger", *(pytest.param(role, marks=pytest.mark.chaos) for role in ("slot", "coordinator", "raw"))]
)
def test_a_broker_that_is_killed(trial: MakeTrial, sound: Sound, cluster: Broker, role: str) -> None:
    feed = trial()
    workers = [feed.start_worker(), feed.start_worker()]
    with feed.produced():
        feed.wait_for_progress(now())
        names = feed.settings
        topics = {"slot": names.batches_topic, "ledger": names.ledger_topic, "raw": names.raw_topics[0]}
        name = coordinator(feed) if role == "coordinator" else leader(feed, topics[role])
        at = now()
        cluster.kill(name)
        try:
            feed.wait_for_progress(at)
        finally:
            cluster.restart(name)
        feed.wait_for_progress(now())
    assert [worker.process.poll() for worker in workers] == [None, None]
    sound(feed.finish(f"kill -9 of the broker that leads {role}", at))


@pytest.mark.chaos
@pytest.mark.timeout(600)
def test_a_rolling_restart(trial: MakeTrial, sound: Sound, cluster: Broker) -> None:
    feed = trial()
    workers = [feed.start_worker(), feed.start_worker()]
    with feed.produced():
        feed.wait_for_progress(now())
        at = now()
        for name in cluster.names:
            cluster.restart(name)
            feed.wait_for_progress(now())
    assert [worker.process.poll() for worker in workers] == [None, None]
    sound(feed.finish("rolling restart", at))


@pytest.mark.chaos
@pytest.mark.timeout(600)
def test_all_brokers_are_killed_and_started_again(trial: MakeTrial, sound: Sound, cluster: Broker) -> None:
    feed = trial()
    feed.start_worker()
    with feed.produced():
        feed.wait_for_progress(now())
        at = now()
        for name in cluster.names:
            cluster.kill(name)
        cluster.start()
        feed.wait_for_progress(at)
    sound(feed.finish("all brokers killed and started again", at))
