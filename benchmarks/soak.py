"""What two workers and a trainer hold after a long time: `python -m benchmarks.soak [--minutes N] [--json]`.

One broker of Apache Kafka, 300 documents a second into three streams, some of them bad, and a reader that keeps up. Memory,
file descriptors and threads of every process, raw records that are not in an acknowledged window yet, and messages by
which the slots differ are sampled every few seconds. In the end the feed is sealed and audited with all content; the
exit code is 1 if the audit fails. Needs Java and Maven.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import platform
import statistics
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import orjson
import psutil
from confluent_kafka import Consumer
from rich.console import Console
from rich.table import Table

from benchmarks.recovery import DEFAULTS
from tests.brokers import kafka
from tests.chaos.harness import SETTINGS, Trial
from tokenfeed.audit import Report
from tokenfeed.kafka import read_range, reader, watermarks
from tokenfeed.ledger import Cut, decode
from tokenfeed.loader import Feed, FeedReader
from tokenfeed.settings import Settings

_SAMPLE_SECONDS: Final = 5.0
_TAIL_ENTRIES: Final = 16
_SEAL_SECONDS: Final = 300.0
_SIZES: Final = {"window_documents": 100, "sequence_length": 512, "batch_size": 8}
_MIB: Final = 2**20
_COUNTS: Final = ("documents", "tokens", "batches", "lost", "doubled", "altered", "re_emitted")


@dataclass(frozen=True)
class Usage:
    """What a process holds."""

    mib: float
    descriptors: int
    threads: int


@dataclass(frozen=True)
class Sample:
    """What was seen at one time, in seconds since the start.

    Attributes:
        usage: name -> what this process holds.
        lag: raw records that are not in an acknowledged window.
        spread: messages by which the fullest slot is ahead of the emptiest.
    """

    at: float
    usage: dict[str, Usage]
    lag: int
    spread: int


def read(settings: Settings) -> int:
    """Read the feed to its end as a trainer does; return how many batches there were."""
    with FeedReader(Feed.of(settings), run="soak", slot_timeout=_SEAL_SECONDS) as feed:
        return sum(one.batch is not None for one in feed)


def usage(process: psutil.Process) -> Usage:
    """What a process holds now."""
    return Usage(process.memory_info().rss / _MIB, process.num_fds(), process.num_threads())


def acknowledged(consumer: Consumer, feed: Trial, stream: int) -> int:
    """Raw offset up to which the windows of a stream have been acknowledged."""
    topic = feed.settings.ledger_topic
    _, end = watermarks(consumer, topic, stream)
    tail = read_range(consumer, topic, stream, max(0, end - _TAIL_ENTRIES), end)
    entries = [decode(message.value() or b"") for message in tail]
    done = {entry.window for entry in entries if not isinstance(entry, Cut)}
    ends = [entry.ranges[0][1] for entry in entries if isinstance(entry, Cut) and entry.window in done]
    return max(ends, default=0)


def sample(consumer: Consumer, feed: Trial, processes: dict[str, psutil.Process], at: float) -> Sample:
    """See how things are."""
    names = feed.settings
    streams = range(names.stream_count)
    done = sum(acknowledged(consumer, feed, stream) for stream in streams)
    lag = sum(watermarks(consumer, names.raw_topics[0], stream)[1] for stream in streams) - done
    slots = [watermarks(consumer, names.batches_topic, slot)[1] for slot in range(names.slot_count)]
    held = {name: usage(process) for name, process in processes.items()}
    return Sample(at, held, lag, max(slots) - min(slots))


def soak(bootstrap: str, folder: Path, minutes: float) -> tuple[list[Sample], Report, int]:
    """Run a feed; return what was sampled, the audit, and how many batches the reader was given."""
    feed = Trial(bootstrap, folder, SETTINGS | DEFAULTS | _SIZES)
    consumer = reader(feed.options)
    samples: list[Sample] = []
    try:
        workers = [feed.start_worker(), feed.start_worker()]
        for worker in workers:
            worker.wait_for_log("Worker ready")
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
            processes = {f"worker {n}": psutil.Process(worker.process.pid) for n, worker in enumerate(workers, 1)}
            processes["reader"] = psutil.Process(pool.submit(os.getpid).result())
            given = pool.submit(read, feed.settings)
            with feed.produced():
                started = time.monotonic()
                while (at := time.monotonic() - started) < 60 * minutes:
                    samples.append(sample(consumer, feed, processes, at))
                    show(samples[-1], minutes)
                    time.sleep(_SAMPLE_SECONDS)
            feed.seal()
            feed.wait_sealed(_SEAL_SECONDS)
            return samples, feed.audit(), given.result(_SEAL_SECONDS)
    finally:
        consumer.close()
        feed.close()


def show(seen: Sample, minutes: float) -> None:
    """A line about how it goes."""
    held = ", ".join(f"{name} {used.mib:.0f} MiB" for name, used in seen.usage.items())
    end = "\r" if sys.stderr.isatty() else "\n"
    print(f"{seen.at / 60:.1f} of {minutes:g} min: {held}, lag {seen.lag}", end=end, file=sys.stderr, flush=True)


def slope(samples: list[Sample], name: str) -> float:
    """MiB an hour by which a process grew over the second half, by least squares."""
    half = samples[len(samples) // 2 :]
    return statistics.linear_regression([each.at / 3600 for each in half], [each.usage[name].mib for each in half]).slope


def summary(samples: list[Sample], report: Report, given: int) -> dict[str, Any]:
    """The figures that are printed."""
    first, quarter, last = samples[0], samples[len(samples) // 4], samples[-1]
    processes = {
        name: {
            "mib_at_a_quarter": round(quarter.usage[name].mib, 1),
            "mib_at_the_end": round(last.usage[name].mib, 1),
            "mib_an_hour": round(slope(samples, name), 1),
            "descriptors": [first.usage[name].descriptors, last.usage[name].descriptors],
            "threads": [first.usage[name].threads, last.usage[name].threads],
        }
        for name in last.usage
    }
    lags, spreads = [each.lag for each in samples], [each.spread for each in samples]
    return {
        "samples": len(samples),
        "processes": processes,
        "lag": {"median": statistics.median(lags), "most": max(lags)},
        "spread": {"median": statistics.median(spreads), "most": max(spreads)},
        "audit_ok": report.ok,
        "given": given,
        **{name: sum(getattr(stream, name) for stream in report.streams) for name in _COUNTS},
        "gaps": sum(len(stream.gaps) for stream in report.streams),
    }


def tables(found: dict[str, Any], title: str) -> list[Table]:
    """What people read."""
    held = Table("process", "MiB at 1/4", "at the end", "MiB/h", "fds first", "last", "threads first", "last", title=title)
    for name, one in found["processes"].items():
        mib = (f"{one[key]:.1f}" for key in ("mib_at_a_quarter", "mib_at_the_end", "mib_an_hour"))
        held.add_row(name, *mib, *map(str, (*one["descriptors"], *one["threads"])))
    flow = Table("", "median", "most")
    flow.add_row("raw records not acknowledged", f"{found['lag']['median']:g}", str(found["lag"]["most"]))
    flow.add_row("slots apart by, messages", f"{found['spread']['median']:g}", str(found["spread"]["most"]))
    counts = Table("audit with content", "sound" if found["audit_ok"] else "NOT SOUND")
    for name in (*_COUNTS, "gaps"):
        counts.add_row(name.replace("_", "-"), f"{found[name]:,}")
    counts.add_row("batches given to the reader", f"{found['given']:,}")
    return [held, flow, counts]


def main() -> None:
    """Run, print, and exit with 1 if the feed is not sound."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--json", action="store_true", help="end with one JSON object")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, kafka(Path(folder, "kafka")) as broker:
        samples, report, given = soak(broker.bootstrap, Path(folder), options.minutes)
    found = summary(samples, report, given)
    machine = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    for table in tables(found, f"soak; {options.minutes:g} minutes, {machine}"):
        Console().print(table)
    if options.json:
        print(orjson.dumps({"machine": machine, "minutes": options.minutes, "soak": found}).decode())
    sys.exit(0 if report.ok else 1)


if __name__ == "__main__":
    main()
