"""The topics of a feed: which there are, how many partitions each has, and making or checking them."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tokenfeed.errors import TopicError
from tokenfeed.kafka import connection, partition_counts, unreachable
from tokenfeed.settings import Settings

_REPLICATION: Final = 3  # what survives one broker with acks=all and two in-sync replicas
_TIMEOUT_SECONDS: Final = 15.0
_POLL_SECONDS: Final = 0.1
_NO_ID: Final = "AAAAAAAAAAAAAAAAAAAAAA"  # of a cluster that has none


@dataclass(frozen=True, slots=True)
class TopicSpec:
    """One topic as it should be."""

    name: str
    partitions: int
    replication: int
    config: dict[str, str] = field(default_factory=dict)


def topic_specs(settings: Settings, brokers: int) -> list[TopicSpec]:
    """Every topic of the feed on a cluster of so many brokers.

    Ledger and plan are kept for ever: they are the truth about position and content. What a cluster's defaults could turn
    against that is set explicitly.
    """
    replication = settings.replication_factor or min(_REPLICATION, brokers)
    common = {
        "max.message.bytes": str(settings.max_message_bytes),
        # Two copies acknowledge where one broker of three may be down.
        "min.insync.replicas": "2" if replication >= _REPLICATION else "1",
        "compression.type": "producer",
    }
    kept = common | {"cleanup.policy": "delete", "retention.ms": str(settings.retention_hours * 3_600_000)}
    forever = common | {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}
    shapes = [(name, settings.stream_count, kept) for name in settings.raw_topics]
    shapes += [
        (settings.batches_topic, settings.slot_count, kept),
        (settings.ledger_topic, settings.stream_count, forever),
        (settings.plan_topic, 1, forever),
        (settings.dead_topic, settings.stream_count, kept),
    ]
    return [TopicSpec(name, partitions, replication, config) for name, partitions, config in shapes]


def planned_topics(settings: Settings) -> list[TopicSpec]:
    """`topic_specs` for the cluster that the settings name.

    Raises:
        BrokerUnreachable: no broker answers.
    """
    options = connection(settings)
    try:
        brokers = len(AdminClient(options).list_topics(timeout=_TIMEOUT_SECONDS).brokers)
    except KafkaException as error:
        raise unreachable(options, error) from None
    return topic_specs(settings, brokers)


def missing_topics(settings: Settings) -> list[TopicSpec]:
    """Those of `planned_topics` that do not exist.

    Raises:
        TopicError: one exists with another partition count.
        BrokerUnreachable: no broker answers.
    """
    specs = planned_topics(settings)
    existing = partition_counts(connection(settings))
    _check([spec for spec in specs if spec.name in existing], existing)
    return [spec for spec in specs if spec.name not in existing]


def create_topics(settings: Settings) -> list[TopicSpec]:
    """Create the topics that are missing, check all, and return those created, once the brokers know of them.

    Raises:
        TopicError: one exists with another partition count, or the broker refuses one.
        BrokerUnreachable: no broker answers.
    """
    options = connection(settings)
    created = [spec for spec in missing_topics(settings) if _create(AdminClient(options), spec)]
    specs = planned_topics(settings)
    if created:
        _wait_until_known(options, specs)
    _check(specs, partition_counts(options))
    return created


def _wait_until_known(options: dict[str, Any], specs: list[TopicSpec]) -> None:
    """Wait until every broker that answers knows the topics: whoever comes next may ask any of them."""
    names = {spec.name for spec in specs}
    deadline = time.monotonic() + _TIMEOUT_SECONDS
    for broker in AdminClient(options).list_topics(timeout=_TIMEOUT_SECONDS).brokers.values():
        alone = {**options, "bootstrap.servers": f"{broker.host}:{broker.port}"}
        admin = AdminClient(alone)
        while time.monotonic() < deadline:
            try:
                if names <= admin.list_topics(timeout=_POLL_SECONDS + 1).topics.keys():
                    break
            except KafkaException:
                break  # it has just gone down
            time.sleep(_POLL_SECONDS)


def _create(admin: AdminClient, spec: TopicSpec) -> bool:
    """Create one topic; False if another process has just done so."""
    topic = NewTopic(spec.name, spec.partitions, replication_factor=spec.replication, config=spec.config)
    try:
        admin.create_topics([topic], operation_timeout=_TIMEOUT_SECONDS)[spec.name].result()
    except KafkaException as error:
        if error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS:
            return False
        raise TopicError(f"topic {spec.name} cannot be created: {error.args[0].str()}") from None
    return True


def check_topics(settings: Settings, names: Collection[str] | None = None) -> None:
    """Make sure that every topic, or those named, exists with the partition count that the settings imply.

    Raises:
        TopicError: names every topic that is missing or has another count.
        BrokerUnreachable: no broker answers.
    """
    specs = topic_specs(settings, _REPLICATION)
    _check([spec for spec in specs if names is None or spec.name in names], partition_counts(connection(settings)))


def topic_ids(options: dict[str, Any], names: Collection[str]) -> dict[str, str]:
    """Ids that the cluster gave topics when they were made, without those that it does not tell.

    Raises:
        TopicError: a topic does not exist.
        BrokerUnreachable: no broker answers.
    """
    admin = AdminClient(options)
    found: dict[str, str] = {}
    for name, future in admin.describe_topics(TopicCollection(list(names)), request_timeout=_TIMEOUT_SECONDS).items():
        try:
            found[name] = str(future.result().topic_id)
        except KafkaException as error:
            if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise TopicError(f"topic {name} does not exist; `tokenfeed topics create` makes what is missing") from None
            raise unreachable(options, error) from None
    return {name: made for name, made in found.items() if made != _NO_ID}


def check_not_made_anew(options: dict[str, Any], known: Mapping[str, str]) -> None:
    """Make sure that topics are still those that had these ids.

    Raises:
        TopicError: one was deleted and made anew, so that its offsets mean other records; or it does not exist.
        BrokerUnreachable: no broker answers.
    """
    now = topic_ids(options, known) if known else {}
    anew = [name for name, made in known.items() if now.get(name, made) != made]
    if anew:
        raise TopicError(
            f"topic {', '.join(anew)} was made anew since this feed began, so its offsets are of other records. Use new "
            "topics for a new feed"
        )


def _check(specs: list[TopicSpec], counts: dict[str, int]) -> None:
    missing = [spec.name for spec in specs if spec.name not in counts]
    other = [
        f"topic {spec.name} has {counts[spec.name]} partitions, the settings want {spec.partitions}"
        for spec in specs
        if counts.get(spec.name, spec.partitions) != spec.partitions
    ]
    faults = [f"topic {name} does not exist" for name in missing] + other
    ways = []
    if missing:
        ways.append("`tokenfeed topics create` makes what is missing" + (", once the counts are right" if other else ""))
    if other:
        ways.append(
            "counts come from TOKENFEED_SLOTS, TOKENFEED_GPU_WORKERS and TOKENFEED_RAW_PARTITIONS, and a topic's count "
            "cannot change under a feed"
        )
    if faults:
        raise TopicError(f"{'; '.join(faults)}. {'; '.join(ways)}")
