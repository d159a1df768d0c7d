"""Changing a feed's plan: announcing the next one, waiting until every stream has ended, and where each goes on.

`apply_plan` appends the next plan to the plan topic. Workers of the plan before see it there, cut what each of their
streams holds as its last window, and seal the streams. In the next edition a stream starts at the raw offset where its last
window ended: so every document stands in one edition, and the ledgers say in which.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

import orjson
from confluent_kafka import KafkaException, Producer

from tokenfeed.editions import FOLLOWS, RAW_IDS, Beginning, Edition
from tokenfeed.errors import DeliveryError, PlanMismatch, TopicError
from tokenfeed.kafka import connection, partition_counts, reader
from tokenfeed.ledger import Ledger
from tokenfeed.ledgers import read_ledger
from tokenfeed.plan import Plan, differences
from tokenfeed.planning import at_edition, existing_editions, read_editions
from tokenfeed.producing import producer_options
from tokenfeed.settings import Settings
from tokenfeed.topics import check_not_made_anew, create_topics, topic_ids

_POLL_SECONDS: Final = 1.0
_FIXED: Final = ("streams", "wire_version")
_FLUSH_SECONDS: Final = 60.0


def beginnings(settings: Settings, edition: Edition, found: list[Edition]) -> list[Beginning]:
    """Where the streams of an edition start, by stream.

    Raises:
        TopicError: a stream has not ended under an earlier plan.
        LedgerError, BrokerUnreachable, WireError.
    """
    sources = edition.plan.sources
    offsets: list[dict[str, int]] = [{} for _ in range(edition.plan.streams)]
    sealed: list[set[str]] = [set() for _ in range(edition.plan.streams)]
    for earlier in found[: edition.number - 1]:
        ledgers = read_ledgers(settings, earlier)
        if open_streams := [ledger.stream for ledger in ledgers if not ledger.is_sealed]:
            raise TopicError(
                f"streams {', '.join(map(str, open_streams))} have not ended under plan {earlier.plan.id} yet; "
                "`tokenfeed plan apply` waits for them"
            )
        for ledger in ledgers:
            ends = ledger.next_starts(len(earlier.plan.sources)) or ()
            offsets[ledger.stream] |= dict(zip(earlier.plan.sources, ends, strict=True))
            if ledger.cut is not None and ledger.cut.reason == "seal":
                sealed[ledger.stream] |= set(earlier.plan.sources)
    return [
        Beginning(tuple(known.get(source) for source in sources), tuple(source in ended for source in sources))
        for known, ended in zip(offsets, sealed, strict=True)
    ]


def begun_editions(settings: Settings) -> list[Edition]:
    """The editions that have begun: not the last while streams of the one before have not ended, and none without a plan.

    Raises:
        LedgerError, TopicError, BrokerUnreachable, WireError.
    """
    options = connection(settings)
    found = read_editions(options, settings.plan_topic) if settings.plan_topic in partition_counts(options) else []
    pending = len(found) > 1 and not all(ledger.is_sealed for ledger in read_ledgers(settings, found[-2]))
    return found[:-1] if pending else found


def in_force(settings: Settings) -> Settings:
    """The settings with topics and partition counts of the edition that has begun last; as they are without one.

    Raises:
        LedgerError, TopicError, BrokerUnreachable, WireError.
    """
    begun = begun_editions(settings)
    if not begun:
        return settings
    plan = begun[-1].plan
    return at_edition(settings, begun[-1]).model_copy(update={"slots": plan.slots, "raw_partitions": plan.streams})


def read_ledgers(settings: Settings, edition: Edition) -> list[Ledger]:
    """What the ledgers of an edition say, by stream.

    Raises:
        LedgerError, TopicError, BrokerUnreachable, WireError.
    """
    topic = edition.topic(settings.ledger_topic)
    consumer = reader(connection(settings))
    try:
        return [read_ledger(consumer, topic, stream, edition.plan.id) for stream in range(edition.plan.streams)]
    finally:
        consumer.close()


def apply_plan(
    settings: Settings, plan: Plan, wait_seconds: float, progress: Callable[[int, int], None] = lambda ended, of: None
) -> Edition:
    """Let the feed go on under `plan`: announce it, wait for all streams to end, create the topics of its edition.

    May be called again with the same plan, after an interruption or a timeout, to finish what was begun.

    Args:
        settings: the settings that make the plan.
        plan: the next plan.
        wait_seconds: how long to wait for the workers of the plan before; they must run, with their own settings.
        progress: called with streams that have ended, and how many there are.

    Raises:
        PlanMismatch: another change has not ended, or came first; or the feed was made under this plan before.
        TopicError: the feed has no plan yet, or has been sealed; or the streams did not end in time.
        DeliveryError, BrokerUnreachable, WireError.
    """
    found = existing_editions(connection(settings), settings.plan_topic)
    if found[-1].plan.id != plan.id:
        found = _announce(settings, plan, found)
    elif len(found) == 1:
        return found[0]
    before, next_edition = found[-2:]
    _wait(settings, before, wait_seconds, progress)
    create_topics(at_edition(settings, next_edition))
    return next_edition


def _announce(settings: Settings, plan: Plan, found: list[Edition]) -> list[Edition]:
    in_force = found[-1]
    if plan.id in {edition.plan.id for edition in found}:
        raise PlanMismatch(f"plan {plan.id} was the feed's before; change TOKENFEED_SEED to return to what it was")
    fixed = [line for line in differences(plan, in_force.plan) if line.startswith(_FIXED)]
    if fixed:
        raise PlanMismatch(
            f"{'; '.join(fixed)}: that cannot change under a feed. TOKENFEED_RAW_PARTITIONS={in_force.plan.streams} keeps "
            "the number of streams, whatever that of slots; or use new topics for a new feed"
        )
    if len(found) > 1 and any(not ledger.is_sealed for ledger in read_ledgers(settings, found[-2])):
        raise PlanMismatch(
            f"the change to plan {in_force.plan.id} has not ended: run `tokenfeed plan apply` with its settings first"
        )
    ledgers = read_ledgers(settings, in_force)
    if all(ledger.is_sealed for ledger in ledgers):
        raise TopicError("the feed has ended: all of its streams are sealed. Use new topics for a new feed")
    check_not_made_anew(connection(settings), in_force.raw_ids)
    _append(settings, plan, in_force.plan.id)
    found = read_editions(connection(settings), settings.plan_topic)
    if found[-1].plan.id != plan.id:
        raise PlanMismatch(f"plan {found[-1].plan.id} was applied at the same time, and stands first")
    return found


def _append(settings: Settings, plan: Plan, follows: str) -> None:
    ids = topic_ids(connection(settings), plan.sources)
    faults: list[str] = []
    producer = Producer(producer_options(settings))
    producer.produce(
        settings.plan_topic,
        value=plan.to_json(),
        key=plan.id,
        partition=0,
        headers=[(FOLLOWS, follows.encode()), (RAW_IDS, orjson.dumps(ids))],
        on_delivery=lambda error, _: faults.append(error.str()) if error else None,
    )
    try:
        left = producer.flush(_FLUSH_SECONDS)
    except KafkaException as error:
        raise DeliveryError(f"{settings.plan_topic}: {error.args[0].str()}") from None
    if left or faults:
        raise DeliveryError(f"{settings.plan_topic}: the plan was not acknowledged: {', '.join(faults) or 'no answer'}")


def _wait(settings: Settings, edition: Edition, seconds: float, progress: Callable[[int, int], None]) -> None:
    deadline = time.monotonic() + seconds
    while True:
        ledgers = read_ledgers(settings, edition)
        left = [str(ledger.stream) for ledger in ledgers if not ledger.is_sealed]
        progress(len(ledgers) - len(left), len(ledgers))
        if not left:
            return
        if time.monotonic() > deadline:
            raise TopicError(
                f"streams {', '.join(left)} have not ended under plan {edition.plan.id} after {seconds:g} s. Workers with "
                "its settings must run to end them; then run this command again, which goes on where it stopped"
            )
        time.sleep(_POLL_SECONDS)
