"""Memory, start-up and CPU of a worker and of a trainer's loader.

The worker has the DeepSeek tokenizer and default settings; it is ready when it has its partitions and would take the first
record, on a broker that runs. Its peak is that of working off the whole topic as fast as it can. The loader's memory is
that of a process which reads the feed to its end, above that of one which has only imported torch.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from benchmarks.corpus import documents
from benchmarks.programs import apache_kafka, feed_settings, fill
from benchmarks.report import Report, alternate
from tests.brokers import Broker
from tests.service import ROOT, Service

_DOCUMENTS: Final = 100_000
_PEAK: Final = "print(next(line for line in open('/proc/self/status') if line.startswith('VmHWM')).split()[1])"
_READ: Final = """
from torch.utils.data import DataLoader
from tokenfeed.loader import Feed
from tokenfeed.loader.torch import FeedDataset
from tokenfeed.settings import load_settings
for sample in DataLoader(FeedDataset(Feed.of(load_settings())), batch_size=None): pass
"""


class Bench:
    """A feed to measure on."""

    def __init__(self, broker: Broker, folder: Path) -> None:
        self.broker, self.folder = broker, folder
        self.values = feed_settings(raw_topics=("raw",))
        fill(broker, "raw", documents(_DOCUMENTS))
        self.service = Service(broker.bootstrap, folder, self.values)
        self.service.seal()

    def worker(self) -> Mapping[str, float]:
        """A worker from its start to the end of the topic."""
        folder = Path(tempfile.mkdtemp(dir=self.folder))
        gate = folder / "gate"
        self.service = Service(self.broker.bootstrap, folder, self.values)
        started = time.monotonic()
        worker = self.service.start_worker("benchmarks.gated_app", GATE=str(gate))
        try:
            worker.wait_for_log("at the gate")
            ready = time.monotonic() - started
            gate.touch()
            self.service.wait_sealed(180)
            status = Path(f"/proc/{worker.process.pid}/status").read_text().splitlines()
            times = Path(f"/proc/{worker.process.pid}/stat").read_text().split()
        finally:
            self.service.close()
        peak = next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))
        gigabytes = sum(map(len, documents(_DOCUMENTS))) / 1e9
        return {
            "peak MiB": peak / 1024,
            "ready s": ready,
            "CPU s/GB of text, start included": (int(times[13]) + int(times[14])) / 100 / gigabytes,
        }

    def process(self, code: str) -> Mapping[str, float]:
        """A Python process that runs some code with the feed's settings."""
        command = [sys.executable, "-c", f"{code}\n{_PEAK}"]
        started = time.monotonic()
        done = subprocess.run(command, cwd=ROOT, env=self.service.environment(), capture_output=True, text=True, check=True)
        return {"peak MiB": int(done.stdout.split()[-1]) / 1024, "seconds": time.monotonic() - started}


def measure(runs: int) -> Report:
    """MiB, seconds and CPU seconds."""
    report = Report("footprint")
    with apache_kafka() as (broker, folder):
        bench = Bench(broker, folder)
        contenders = {
            "worker": bench.worker,
            "import torch": lambda: bench.process("import torch"),
            "import of the loader": lambda: bench.process("import tokenfeed.loader.torch"),
            "loader": lambda: bench.process(_READ),
        }
        alternate(report, runs, contenders)
    report.ratios["footprint.worker_mb"] = report.median("worker", "peak MiB")
    report.ratios["footprint.ready_s"] = report.median("worker", "ready s")
    report.ratios["footprint.loader_mb_above_torch"] = report.median("loader", "peak MiB") - report.median(
        "import torch", "peak MiB"
    )
    return report
