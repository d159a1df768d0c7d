"""The plan on Kafka: the first plan written to the plan topic is the feed's; a worker with another one stops."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from app.emitter import Emitter, Outgoing
from tokenfeed.errors import PlanMismatch
from tokenfeed.kafka import EARLIEST, read_range, reader
from tokenfeed.plan import Plan, differences
from tokenfeed.settings import Settings

if TYPE_CHECKING:
    from tokenfeed.tokenizing import Tokenizer


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
        record_format=settings.record_format,
        text_field=settings.text_field,
        id_field=settings.id_field,
    )


async def agree(plan: Plan, topic: str, options: dict[str, Any], emitter: Emitter) -> None:
    """Write the plan if the feed has none yet, and make sure that the feed's plan is ours.

    Of several workers that write at once, the first in log order decides for all.

    Raises:
        PlanMismatch: the feed has another plan; lists every field that differs.
    """
    if not _plans(topic, options):
        await emitter.send([Outgoing(topic, 0, plan.to_json(), key=plan.id.encode())])
    theirs = _plans(topic, options)[0]
    if theirs.id != plan.id:
        raise PlanMismatch(
            f"topic {topic} says that this feed was made under plan {theirs.id}, the settings make plan {plan.id}: "
            + "; ".join(differences(plan, theirs))
            + ". Restore these settings, or use new topics for a new feed"
        )


def _plans(topic: str, options: dict[str, Any]) -> list[Plan]:
    consumer = reader(options)
    try:
        values = [message.value() for message in read_range(consumer, topic, 0, EARLIEST)]
    finally:
        consumer.close()
    return [Plan.from_json(value) for value in values if value is not None]


def _id(token: int | None) -> int:
    return -1 if token is None else token
