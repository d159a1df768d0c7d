"""From a document's production to its tensor in the trainer, in the low-latency profile; and `next` with data waiting.

The profile: a window closes as soon as the one before is done, rows of 512, one row a batch, so that a document does not
wait for others. The producer stamps each document; the trainer finds it again by its origin. Both are this process, so
one clock is read. Half the maximum is half of the rate at which the worker works off a backlog in this profile.
"""

from __future__ import annotations

import threading
import time
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
from confluent_kafka import Producer

from benchmarks.corpus import documents
from benchmarks.programs import apache_kafka
from benchmarks.report import Report, alternate
from tests.brokers import Broker
from tests.service import Service
from tokenfeed.loader import Feed, FeedReader
from tokenfeed.settings import Settings

RATES: Final = (10, 100, 1000)
PROFILE: Final[dict[str, Any]] = {
    "raw_partitions": 1,
    "slots": 1,
    "sequence_length": 512,
    "batch_size": 1,
    "window_linger_seconds": 0,
    "tokenizer": Settings.model_fields["tokenizer"].default,
}
_SECONDS: Final = 20.0
_WARM_SECONDS: Final = 3.0
_SHORT: Final = 1000  # bytes: so that a document fits into a row


class Bench:
    """A worker and a reader that run all the time."""

    def __init__(self, broker: Broker, folder: Path) -> None:
        self.service = Service(broker.bootstrap, folder, PROFILE)
        self.worker = self.service.start_worker()
        self.texts = [text[:_SHORT].decode("utf-8", "ignore").encode() for text in documents(20_000)]
        self.sent: list[float] = []
        self.arrived: dict[int, float] = {}
        self.reader = FeedReader(Feed.of(self.service.settings, plan_id=self._wait_for_plan()), slot_timeout=3600)
        threading.Thread(target=self._read, daemon=True).start()
        self.producer = Producer({**self.service.options, "linger.ms": 0})
        self.at(100, 2.0)

    def _wait_for_plan(self) -> str:
        self.worker.wait_for_log("plan ")
        return self.service.plan.id

    def _read(self) -> None:
        for delivered in self.reader:
            now = time.perf_counter()
            if delivered.batch is not None:
                for offset in delivered.batch.origins[:, 0].tolist():
                    self.arrived[offset] = now

    def at(self, rate: float, seconds: float = _SECONDS) -> dict[str, float]:
        """Latencies, in milliseconds, at `rate` documents a second."""
        first = len(self.sent)
        started = time.perf_counter()
        for number in range(int(rate * seconds)):
            wait = started + number / rate - time.perf_counter()
            if wait > 0:
                time.sleep(wait)
            self.sent.append(time.perf_counter())
            self.producer.produce(self.service.settings.raw_topics[0], self.texts[number % len(self.texts)], partition=0)
            self.producer.poll(0)
        deadline = time.monotonic() + 60
        while len(self.arrived) < len(self.sent):
            assert time.monotonic() < deadline, f"{len(self.sent) - len(self.arrived)} documents have not arrived"
            time.sleep(0.01)
        kept = range(first + int(rate * min(_WARM_SECONDS, seconds / 2)), len(self.sent))
        taken = [(self.arrived[offset] - self.sent[offset]) * 1000 for offset in kept]
        p50, p99, p999 = map(float, np.percentile(taken, [50, 99, 99.9]))
        return {"p50 ms": p50, "p99 ms": p99, "p99.9 ms": p999}

    def most(self) -> float:
        """Documents a second that the worker works off when more are waiting than it can take."""
        count = 20_000
        first = len(self.sent)
        for number in range(count):
            self.sent.append(time.perf_counter())
            self.producer.produce(self.service.settings.raw_topics[0], self.texts[number % len(self.texts)], partition=0)
        self.producer.flush()
        while len(self.arrived) < len(self.sent):
            time.sleep(0.01)
        arrivals = sorted(self.arrived[offset] for offset in range(first, first + count))
        return 0.8 * count / (arrivals[int(0.9 * count)] - arrivals[int(0.1 * count)])


def measure(runs: int) -> Report:
    """Milliseconds."""
    report = Report("latency")
    with apache_kafka() as (broker, folder):
        bench = Bench(broker, folder)
        try:
            half = bench.most() / 2
            contenders = {f"{rate} documents/s": partial(bench.at, rate) for rate in RATES}
            alternate(report, runs, {**contenders, "half the maximum": partial(bench.at, half, 10.0)})
            report.notes.append(f"half the maximum is {half:,.0f} documents/s")
        finally:
            bench.service.close()
    report.ratios["latency.p50_ms"] = report.median("100 documents/s", "p50 ms")
    report.ratios["latency.p99_ms"] = report.median("100 documents/s", "p99 ms")
    return report
