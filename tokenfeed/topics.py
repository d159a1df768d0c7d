"""The topics of a feed: which there are, how many partitions each has, and making or checking them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tokenfeed.errors import TopicError
from tokenfeed.kafka import connection, partition_counts, unreachable
from tokenfeed.settings import Settings

_REPLICATION: Final = 3  # what survives one broker with acks=all and two in-sync replicas
_TIMEOUT_SECONDS: Final = 15.0


@dataclass(frozen=True, slots=True)
class TopicSpec:
    """One topic as it should be."""

    name: str
    partitions: int
    replication: int
    config: dict[str, str] = field(default_factory=dict)


def topic_specs(settings: Settings, brokers: int) -> list[TopicSpec]:
    """Every topic of the feed on a cluster of so many brokers.

    Ledger and plan are kept for ever: they are the truth about position and content.
    """
    replication = settings.replication_factor or min(_REPLICATION, brokers)
    common = {
        "max.message.bytes": str(settings.max_message_bytes),
        "min.insync.replicas": str(max(1, replication - 1)),
    }
    kept = common | {"retention.ms": str(settings.retention_hours * 3_600_000)}
    forever = common | {"retention.ms": "-1"}
    shapes = [(name, settings.stream_count, kept) for name in settings.raw_topics]
    shapes += [
        (settings.batches_topic, settings.slot_count, kept),
        (settings.ledger_topic, settings.stream_count, forever),
        (settings.plan_topic, 1, common | {"cleanup.policy": "compact"}),
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


def create_topics(settings: Settings) -> list[TopicSpec]:
    """Create the topics that are missing, check the others; return those created.

    Raises:
        TopicError: one exists with another partition count, or the broker refuses one.
        BrokerUnreachable: no broker answers.
    """
    options = connection(settings)
    specs = planned_topics(settings)
    existing = partition_counts(options)
    missing = [spec for spec in specs if spec.name not in existing]
    _check([spec for spec in specs if spec.name in existing], existing)
    if missing:
        _create(AdminClient(options), missing)
    return missing


def _create(admin: AdminClient, specs: list[TopicSpec]) -> None:
    topics = [
        NewTopic(spec.name, spec.partitions, replication_factor=spec.replication, config=spec.config) for spec in specs
    ]
    for name, future in admin.create_topics(topics, operation_timeout=_TIMEOUT_SECONDS).items():
        try:
            future.result()
        except KafkaException as error:
            raise TopicError(f"topic {name} cannot be created: {error.args[0].str()}") from None


def check_topics(settings: Settings) -> None:
    """Make sure that every topic exists with the partition count that the settings imply.

    Raises:
        TopicError: names every topic that is missing or has another count.
        BrokerUnreachable: no broker answers.
    """
    _check(topic_specs(settings, _REPLICATION), partition_counts(connection(settings)))


def _check(specs: list[TopicSpec], counts: dict[str, int]) -> None:
    faults = [
        f"topic {spec.name} does not exist"
        if spec.name not in counts
        else f"topic {spec.name} has {counts[spec.name]} partitions, the settings want {spec.partitions}"
        for spec in specs
        if counts.get(spec.name) != spec.partitions
    ]
    if faults:
        raise TopicError(
            "; ".join(faults) + ". `tokenfeed topics create` makes what is missing; counts come from TOKENFEED_SLOTS, "
            "TOKENFEED_GPU_WORKERS and TOKENFEED_RAW_PARTITIONS, and a topic's count cannot change under a feed"
        )
