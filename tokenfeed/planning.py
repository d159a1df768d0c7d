"""From settings to the plan: the tokenizer they name, the plan the two make, and the plans that a feed's topic holds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tokenfeed.errors import PlanMismatch
from tokenfeed.kafka import EARLIEST, read_range, reader
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


def read_plans(options: dict[str, Any], topic: str) -> list[Plan]:
    """The plans that a plan topic holds, in log order. The first is the feed's.

    Raises:
        TopicError, BrokerUnreachable, WireError.
    """
    consumer = reader(options)
    try:
        values = [message.value() for message in read_range(consumer, topic, 0, EARLIEST)]
    finally:
        consumer.close()
    return [Plan.from_json(value) for value in values if value is not None]


def must_match(topic: str, ours: Plan, theirs: Plan) -> None:
    """Raise PlanMismatch, with every field that differs, unless the plans are the same."""
    if theirs.id != ours.id:
        raise PlanMismatch(
            f"topic {topic} says that this feed was made under plan {theirs.id}, the settings make plan {ours.id}: "
            + "; ".join(differences(ours, theirs))
            + ". Restore these settings, or use new topics for a new feed"
        )


def _id(token: int | None) -> int:
    return -1 if token is None else token
