"""Seconds without progress after a fault, and repeats emitted: `python -m benchmarks.recovery [--runs N] [--json]`.

Three brokers of Apache Kafka with two in-sync replicas, two workers with default timeouts, 300 documents a second into
three streams, a window every 0.4 s. Recovery is the longest time, from the fault on, in which a stream acknowledged no
window. Needs Java and Maven.
"""

from __future__ import annotations

import argparse
import os
import platform
import signal
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import orjson
from rich.console import Console
from rich.table import Table

from tests.brokers import Broker, kafka
from tests.chaos.harness import SETTINGS, Outcome, Trial, now
from tests.chaos.test_brokers import leader
from tests.service import Worker
from tokenfeed.settings import Settings

DEFAULTS: Final = {
    name: Settings.model_fields[name].default for name in ("session_timeout_seconds", "heartbeat_interval_seconds")
}

Fault = Callable[[Trial, Broker, Worker], Callable[[], None]]
"""Does the fault; returns what undoes it."""


def _nothing() -> None: ...


def sigterm(feed: Trial, cluster: Broker, worker: Worker) -> Callable[[], None]:
    """A worker is stopped in order."""
    worker.stop()
    return _nothing


def sigkill(feed: Trial, cluster: Broker, worker: Worker) -> Callable[[], None]:
    """A worker is killed."""
    worker.kill()
    return _nothing


def zombie(feed: Trial, cluster: Broker, worker: Worker) -> Callable[[], None]:
    """A worker is stopped for longer than the session timeout, and goes on."""
    worker.process.send_signal(signal.SIGSTOP)
    return lambda: worker.process.send_signal(signal.SIGCONT)


def leader_loss(feed: Trial, cluster: Broker, worker: Worker) -> Callable[[], None]:
    """The broker that leads a slot is killed."""
    name = leader(feed, feed.settings.batches_topic)
    cluster.kill(name)
    return lambda: cluster.restart(name)


def rolling_restart(feed: Trial, cluster: Broker, worker: Worker) -> Callable[[], None]:
    """The brokers are stopped and started one after the other."""
    for name in cluster.names:
        cluster.restart(name)
    return _nothing


FAULTS: Final[dict[str, Fault]] = {
    "SIGTERM of a worker": sigterm,
    "kill -9 of a worker": sigkill,
    "zombie": zombie,
    "kill -9 of a slot's leader": leader_loss,
    "rolling restart of the brokers": rolling_restart,
}


def measure(cluster: Broker, name: str) -> Outcome:
    """One fault on a feed of its own."""
    with tempfile.TemporaryDirectory() as folder:
        feed = Trial(cluster.bootstrap, Path(folder), SETTINGS | DEFAULTS)
        try:
            worker, _ = feed.start_worker(), feed.start_worker()
            with feed.produced():
                for each in feed.workers:
                    each.wait_for_log("Worker ready")
                feed.wait_for_progress(now())
                at = now()
                undo = FAULTS[name](feed, cluster, worker)
                feed.wait_for_progress(now(), 120)
                undo()
                feed.wait_for_progress(now())
            return feed.finish(name, at)
        finally:
            feed.close()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="end with one JSON object")
    parser.add_argument("--fault", action="append", choices=list(FAULTS), help="only these")
    options = parser.parse_args()
    found: dict[str, list[Outcome]] = {}
    with tempfile.TemporaryDirectory() as folder, kafka(Path(folder), 3) as cluster:
        for _ in range(options.runs):
            for name in options.fault or FAULTS:
                found.setdefault(name, []).append(measure(cluster, name))
    machine = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    table = Table(
        "fault", "median s", "least", "most", "repeats", "lost", title=f"recovery; {options.runs} runs, {machine}"
    )
    summary: dict[str, Any] = {}
    for name, outcomes in found.items():
        seconds = [outcome.recovery_seconds for outcome in outcomes]
        repeats = statistics.median(outcome.repeats for outcome in outcomes)
        lost = sum(outcome.lost + outcome.doubled + outcome.altered + outcome.unseen for outcome in outcomes)
        summary[name] = {"median_s": statistics.median(seconds), "seconds": seconds, "repeats": repeats, "lost": lost}
        row = f"{statistics.median(seconds):.1f}", f"{min(seconds):.1f}", f"{max(seconds):.1f}", f"{repeats:g}", str(lost)
        table.add_row(name, *row)
    Console().print(table)
    if options.json:
        print(orjson.dumps({"machine": machine, "recovery": summary}).decode())


if __name__ == "__main__":
    main()
