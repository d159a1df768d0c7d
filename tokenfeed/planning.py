"""From settings to the plan: the tokenizer they name, the plan the two make, and the editions of a feed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson
from confluent_kafka import Message

from tokenfeed.editions import FOLLOWS, RAW_IDS, Edition, PlanRecord, editions
from tokenfeed.errors import PlanMismatch, TopicError, WireError
from tokenfeed.kafka import EARLIEST, partition_counts, read_range, reader
from tokenfeed.plan import Plan, differences
from tokenfeed.settings import Settings

if TYPE_CHECKING:
    from tokenfeed.tokenizing import Tokenizer


def tokenizer_of(settings: Settings) -> Tokenizer:
    """Load the tokenizer that the settings name, with their rules.

    Raises:
        TokenizerError, SettingsError: see `load_tokenizer`.
    """
    from tokenfeed.tokenizing import load_tokenizer

    return load_tokenizer(
        settings.tokenizer,
        revision=settings.tokenizer_revision,
        engine=settings.engine,
        bos=settings.bos,
        eos=settings.eos,
        memory_budget_bytes=settings.tokenizer_cache_bytes,
    )


def plan_of(settings: Settings, tokenizer: Tokenizer) -> Plan:
    """The plan that these settings and this tokenizer make."""
    return Plan(
        seed=settings.seed,
        sequence_length=settings.sequence_length,
        batch_size=settings.batch_size,
        slots=settings.slot_count,
        streams=settings.stream_count,
        sources=settings.raw_topics,
        tokenizer=tokenizer.fingerprint,
        vocab_size=tokenizer.vocab_size,
        bos=settings.bos,
        eos=settings.eos,
        bos_id=_id(tokenizer.bos_id),
        eos_id=_id(tokenizer.eos_id),
        pad_id=tokenizer.pad_id,
        packing=settings.packing,
        carry=settings.carry,
        record_format=settings.record_format,
        text_field=settings.text_field,
        id_field=settings.id_field,
    )


def read_editions(options: dict[str, Any], topic: str) -> list[Edition]:
    """The editions that a plan topic tells of; the last is the one in force.

    Raises:
        TopicError, BrokerUnreachable, WireError.
    """
    consumer = reader(options)
    try:
        messages = [message for message in read_range(consumer, topic, 0, EARLIEST) if message.value() is not None]
    finally:
        consumer.close()
    return editions(map(_record, messages))


def existing_editions(options: dict[str, Any], topic: str) -> list[Edition]:
    """`read_editions` of a feed that has begun.

    Raises:
        TopicError: it has no plan yet, or no topics.
        BrokerUnreachable, WireError.
    """
    if topic not in partition_counts(options):
        raise TopicError(f"topic {topic} does not exist; `tokenfeed topics create` makes what is missing")
    found = read_editions(options, topic)
    if not found:
        raise TopicError(f"topic {topic} holds no plan yet: the first worker will write it")
    return found


def edition_of(plan: Plan, found: list[Edition], topic: str) -> Edition:
    """The edition of `plan` among those of a plan topic.

    Raises:
        PlanMismatch: there is none; lists every field that differs from the plan in force.
    """
    for edition in found:
        if edition.plan.id == plan.id:
            return edition
    theirs = found[-1].plan
    raise PlanMismatch(
        f"topic {topic} says that this feed is made under plan {theirs.id}, the settings make plan {plan.id}: "
        + "; ".join(differences(plan, theirs))
        + ". Restore these settings, let the feed go on under the new plan with `tokenfeed plan apply`, or use new topics "
        "for a new feed"
    )


def at_edition(settings: Settings, edition: Edition) -> Settings:
    """The settings with the topics of one edition."""
    names = ("batches_topic", "ledger_topic", "dead_topic")
    return settings.model_copy(update={name: edition.topic(getattr(settings, name)) for name in names})


def outdated(ours: Plan, following: Plan) -> PlanMismatch:
    """What there is to say to settings whose plan the feed has left."""
    return PlanMismatch(
        f"the feed has ended under plan {ours.id} and goes on under plan {following.id}: "
        + "; ".join(differences(ours, following))
        + ". Start this worker with the settings of the newest plan"
    )


def _record(message: Message) -> PlanRecord:
    headers: dict[str, Any] = dict(message.headers() or ())
    try:
        follows = headers[FOLLOWS].decode() if FOLLOWS in headers else None
        raw_ids: dict[str, str] = orjson.loads(headers.get(RAW_IDS, b"{}"))
    except (AttributeError, ValueError) as error:
        raise WireError(f"the plan topic holds headers that are not ours: {type(error).__name__}") from None
    return PlanRecord(Plan.from_json(message.value() or b""), follows, raw_ids)


def _id(token: int | None) -> int:
    return -1 if token is None else token
