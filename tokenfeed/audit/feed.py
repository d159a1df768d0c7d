"""Auditing a feed's topics."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tokenfeed.audit.auditor import Auditor
from tokenfeed.audit.logs import Log, Logs
from tokenfeed.audit.report import Report
from tokenfeed.changes import beginnings
from tokenfeed.content import Encoder
from tokenfeed.editions import Edition
from tokenfeed.kafka import EARLIEST, connection
from tokenfeed.plan import Plan
from tokenfeed.planning import at_edition, existing_editions
from tokenfeed.settings import Settings
from tokenfeed.tapes import Partition, Tapes


def audit_feed(
    settings: Settings,
    *,
    edition: Edition | None = None,
    encoder_of: Callable[[Plan], Encoder | None] | None = None,
    until: Mapping[tuple[int, int], int] | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Report:
    """Audit one edition of the feed that the settings name, as it is now; its workers may go on meanwhile.

    Args:
        settings: name the brokers and topics; the plan is read from the feed.
        edition: by default the newest. Its streams must begin where those of the edition before ended.
        encoder_of: gives the tokenizer of a plan, to make the content of every window anew; None compares origins only.
        until: (source, stream) -> raw offset; windows that end behind it are left out.
        progress: called with messages of the batches topic that were read, and how many there are.

    Raises:
        TopicError: a topic is missing or cannot be read, the feed has no plan yet, or the edition before has not ended.
        BrokerUnreachable, WireError.
    """
    options = connection(settings)
    found = existing_editions(options, settings.plan_topic)
    edition = edition or found[-1]
    plan = edition.plan
    begins = beginnings(settings, edition, found)
    settings = at_edition(settings, edition)
    with Tapes(options) as tapes:
        ledger = [Partition(settings.ledger_topic, stream) for stream in range(plan.streams)]
        batches = [Partition(settings.batches_topic, slot) for slot in range(plan.slots)]
        dead = [Partition(settings.dead_topic, stream) for stream in range(plan.streams)]
        raw = [[Partition(topic, stream) for stream in range(plan.streams)] for topic in plan.sources]
        # The ledger first: whatever it says was sent before, so the other ends lie behind it.
        ends = tapes.ends(ledger)
        ends |= tapes.ends([*batches, *dead, *(part for parts in raw for part in parts)])
        starts = tapes.add({part: (EARLIEST, end) for part, end in ends.items()})
        total = sum(ends[part] - starts[part] for part in batches)
        read = 0

        def one_more() -> None:
            nonlocal read
            read += 1
            progress(read, total)

        def log(part: Partition) -> Log:
            return Log(starts[part], tapes.turn(part))

        logs = Logs(
            raw=[[log(part) for part in parts] for parts in raw],
            ledger=[log(part) for part in ledger],
            dead=[log(part) for part in dead],
            batches=[log(part) for part in batches],
        )
        encoder = encoder_of(plan) if encoder_of is not None else None
        return Auditor(plan, logs, begins=begins, encoder=encoder, until=until, progress=one_more).run()
