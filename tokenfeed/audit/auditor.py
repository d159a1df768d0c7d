"""The audit of a feed, as one pass over its logs.

The slots are read side by side, kept level by their valid batches, as trainers read them. A window is settled once all of
its batches have been seen, with the raw records of its ranges; so what is held at any time is a few windows a stream,
whatever the size of the topics. A digest of every batch is kept on disk, 16 bytes each, to tell whether a batch that comes
twice has the same bytes.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from tokenfeed.audit.logs import Logs
from tokenfeed.audit.report import Report
from tokenfeed.audit.stream import StreamAudit
from tokenfeed.batches import Envelope, read_envelope
from tokenfeed.content import Encoder
from tokenfeed.editions import Beginning
from tokenfeed.errors import WireError
from tokenfeed.plan import Plan

_MOST_BATCHES: Final = 2**40  # of a stream; what a stray header says must not make the digests' file as long


class Auditor:
    """One audit.

    Args:
        plan: the feed's plan.
        logs: its logs, up to where the audit goes. The ledger's end must have been looked up before the others'.
        begins: where each stream must begin; by default anywhere.
        encoder: if given, the content of every window is made anew and compared byte by byte.
        until: (source, stream) -> raw offset; windows that end behind it are left out.
        progress: called after every message of the batches topic.
    """

    def __init__(
        self,
        plan: Plan,
        logs: Logs,
        *,
        begins: Sequence[Beginning] = (),
        encoder: Encoder | None = None,
        until: Mapping[tuple[int, int], int] | None = None,
        progress: Callable[[], None] = lambda: None,
    ) -> None:
        self._plan = plan
        self._logs = logs
        self._progress = progress
        self._remade = encoder is not None
        self._foreign: list[str] = []
        self._valid = [0] * plan.slots
        anywhere = Beginning.anywhere(len(plan.sources))
        self._streams = [
            StreamAudit(plan, logs, stream, begins[stream] if begins else anywhere, encoder, until or {})
            for stream in range(plan.streams)
        ]
        self._expected = [[(slot - p) % plan.slots for p in range(plan.streams)] for slot in range(plan.slots)]
        self._unknown = [set(range(plan.streams)) if log.start else set() for log in logs.batches]

    def run(self) -> Report:
        """Read everything.

        Raises:
            TopicError, BrokerUnreachable: a log cannot be read.
        """
        level = [(0, slot) for slot in range(self._plan.slots)]
        while level:
            _, slot = heapq.heappop(level)
            if self._read_one(slot):
                heapq.heappush(level, (self._valid[slot], slot))
        for stream in self._streams:
            stream.finish()
        reports = [stream.report for stream in self._streams]
        return Report(self._plan.id, reports, self._valid, self._foreign, self._remade)

    def _read_one(self, slot: int) -> bool:
        entry = next(self._logs.batches[slot].entries, None)
        if entry is None:
            return False
        self._progress()
        try:
            envelope = read_envelope(entry.headers)
        except WireError as error:
            self._foreign.append(f"slot {slot} offset {entry.offset}: {error}")
            return True
        known = 0 <= envelope.stream < self._plan.streams and 0 <= envelope.number < _MOST_BATCHES
        if envelope.plan != self._plan.id or not known:
            self._foreign.append(f"slot {slot} offset {entry.offset}: of plan {envelope.plan}, stream {envelope.stream}")
        elif envelope.kind == "seal":
            self._streams[envelope.stream].sealed(slot, envelope.number)
        elif self._plan.slot(envelope.stream, envelope.number) != slot:
            self._foreign.append(f"slot {slot} offset {entry.offset}: belongs into another slot")
        else:
            self._judge(slot, envelope, entry.value or b"")
        return True

    def _judge(self, slot: int, envelope: Envelope, value: bytes) -> None:
        """Apply the rule of the valid sequence, and know a missing batch from one that came early."""
        stream, number = self._streams[envelope.stream], envelope.number
        expected = self._expected[slot]
        if envelope.stream in self._unknown[slot]:
            self._unknown[slot].discard(envelope.stream)
            stream.starts_behind(number)
            expected[envelope.stream] = number
        if number > expected[envelope.stream]:
            # A window is cut only after the one before was acknowledged in full, so what it lacks here is lost.
            first = stream.first_of_window(number)
            while first is not None and expected[envelope.stream] < first:
                stream.missing(expected[envelope.stream])
                expected[envelope.stream] += self._plan.slots
        if number == expected[envelope.stream]:
            expected[envelope.stream] += self._plan.slots
            self._valid[slot] += 1
            stream.valid(number, value)
        else:
            stream.passed_over(number, value, early=number > expected[envelope.stream])
