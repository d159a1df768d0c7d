"""A feed that is produced to without a pause while something is done to it, and what became of it."""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from confluent_kafka import Producer

from tests.service import Service, wait_until
from tokenfeed.batches import Batch
from tokenfeed.ledger import Done, decode
from tokenfeed.loader import Feed, FeedReader

SETTINGS: dict[str, Any] = {
    "window_documents": 40,
    "window_linger_seconds": 1.0,
    "sequence_length": 64,
    "batch_size": 4,
    "raw_partitions": 3,
    "slots": 4,
    "session_timeout_seconds": 6.0,
}
_DOCUMENTS_A_SECOND = 300
_RECOVERY_SECONDS = 90.0


@dataclass
class Outcome:
    """What a fault did. Only `repeats` and `recovery_seconds` may differ from 0.

    Attributes:
        lost, doubled: documents.
        altered: batches.
        out_of_order: batches that the loader gave otherwise than in the order of their slot.
        unseen: batches in the topic that the loader did not give.
        repeats: messages that the loader passed over.
        recovery_seconds: the longest time, from the fault on, in which a stream acknowledged no window.
    """

    fault: str
    lost: int
    doubled: int
    altered: int
    out_of_order: int
    unseen: int
    repeats: int
    recovery_seconds: float

    def assert_sound(self) -> None:
        """Nothing is lost, doubled, altered, out of order or unseen."""
        counts = asdict(self)
        assert {name: counts[name] for name in ("lost", "doubled", "altered", "out_of_order", "unseen")} == {
            "lost": 0,
            "doubled": 0,
            "altered": 0,
            "out_of_order": 0,
            "unseen": 0,
        }, self


class Trial(Service):
    """A feed under a fault. Make it, start workers, and do the fault within `produced`.

    Attributes:
        produced_until: when, in Unix seconds, documents ceased to arrive.
    """

    produced_until = 0.0

    @contextmanager
    def produced(self) -> Iterator[None]:
        """Documents arrive all the while, some of them bad."""
        ending = threading.Event()
        failed: list[object] = []
        thread = threading.Thread(target=self._produce, args=(ending, failed))
        thread.start()
        try:
            yield
        finally:
            self.produced_until = now()
            ending.set()
            thread.join()
        assert not failed, failed[:3]

    def _produce(self, ending: threading.Event, failed: list[object]) -> None:
        chosen = random.Random(0)
        producer = Producer({**self.options, "acks": "all", "enable.idempotence": True, "delivery.timeout.ms": 120_000})
        for number in itertools.count():
            text = b"\xff" if number % 97 == 0 else b"%d " % number * chosen.randint(1, 60)
            producer.produce(
                self.settings.raw_topics[0],
                text,
                partition=number % self.settings.stream_count,
                on_delivery=lambda error, _: failed.append(error) if error else None,
            )
            producer.poll(0)
            if ending.wait(1 / _DOCUMENTS_A_SECOND):
                break
        if producer.flush(120):
            failed.append("not flushed")

    def progress(self) -> list[list[float]]:
        """When, in Unix seconds, each stream acknowledged its windows, by the clock of its worker."""
        return [
            [
                message.timestamp()[1] / 1000
                for message in self.messages(self.settings.ledger_topic, stream)
                if isinstance(decode(message.value() or b""), Done)
            ]
            for stream in range(self.settings.stream_count)
        ]

    def wait_for_progress(self, since: float, seconds: float = _RECOVERY_SECONDS) -> None:
        """Wait until every stream has acknowledged a window after `since`."""

        def all_went_on() -> bool:
            return all(any(at > since for at in times) for times in self.progress())

        wait_until(all_went_on, "every stream to go on", seconds)

    def longest_pause(self, since: float) -> float:
        """The longest time without an acknowledged window, of any stream, from `since` to the end of production."""
        return longest_pause(self.progress(), since, self.produced_until)

    def finish(self, fault: str, since: float) -> Outcome:
        """Seal the feed, let the workers end it, audit it, read it as a trainer does. The fault began at `since`."""
        self.seal()
        self.wait_sealed(_RECOVERY_SECONDS)
        report = self.audit()
        given: list[Batch] = []
        with FeedReader(Feed.of(self.settings), slot_timeout=20) as reader:
            given += [one.batch for one in reader if one.batch is not None]
            repeats = reader.repeats + reader.early
        slots = self.settings.slot_count
        following: dict[tuple[int, int], int] = {}
        out_of_order = 0
        for batch in given:
            slot = (batch.stream + batch.number) % slots
            out_of_order += batch.number != following.get((slot, batch.stream), (slot - batch.stream) % slots)
            following[slot, batch.stream] = batch.number + slots
        assert not report.foreign
        assert all(stream.fault is None and not stream.token_faults and stream.sealed for stream in report.streams), report
        return Outcome(
            fault=fault,
            lost=sum(stream.lost + len(stream.gaps) for stream in report.streams),
            doubled=sum(stream.doubled for stream in report.streams),
            altered=sum(stream.altered for stream in report.streams),
            out_of_order=out_of_order,
            unseen=sum(stream.batches for stream in report.streams) - len(given),
            repeats=repeats,
            recovery_seconds=round(self.longest_pause(since), 1),
        )

    def strike(self, point: str, window: int, number: str) -> dict[str, str]:
        """Environment of a worker that sends itself a signal; see tests/chaos/worker.py."""
        return {"CHAOS_POINT": point, "CHAOS_WINDOW": str(window), "CHAOS_SIGNAL": number}


def longest_pause(progress: list[list[float]], since: float, until: float) -> float:
    """The longest time within [since, until] in which a stream has no mark; all of it for a stream without any."""
    marks = [[since, *(at for at in times if since < at < until), until] for times in progress]
    return max(after - before for times in marks for before, after in itertools.pairwise(times))


def struck_at(log: Path) -> float | None:
    """When the worker of this log has struck, None before."""
    if log.is_file() and "struck at" in log.read_text(errors="replace"):
        return log.stat().st_mtime
    return None


def now() -> float:
    """Unix seconds."""
    return time.time()
