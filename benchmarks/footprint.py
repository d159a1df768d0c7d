"""Memory, start-up and CPU of a worker and of a trainer's loader.

The worker has the DeepSeek tokenizer and default settings; it is ready when it has its partitions and would take the first
record, on a broker that runs. Its peak is that of working off the whole topic as fast as it can; also where no word of it
has been seen before, which fills the tokenizer's caches as fast as can be: there the second half of the topic must add
nothing. The loader's memory is that of a process which reads the feed to its end, above that of one which has only imported
torch.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np

from benchmarks.corpus import documents
from benchmarks.programs import apache_kafka, feed_settings, fill
from benchmarks.report import Contenders, Report, alternate
from tests.brokers import Broker
from tests.service import ROOT, Service

_DOCUMENTS: Final = 100_000
_NEW_BYTES: Final = 400_000_000
_SAMPLE_SECONDS: Final = 0.5
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
        fill(broker, "new", new_words(_NEW_BYTES))
        self.service = Service(broker.bootstrap, folder, self.values)
        self.service.seal()
        Service(broker.bootstrap, folder, self.values | {"raw_topics": ("new",)}).seal()

    def worker(self, topic: str) -> Mapping[str, float]:
        """A worker from its start to the end of the topic."""
        folder = Path(tempfile.mkdtemp(dir=self.folder))
        gate = folder / "gate"
        service = Service(self.broker.bootstrap, folder, self.values | {"raw_topics": (topic,)})
        started = time.monotonic()
        worker = service.start_worker("benchmarks.gated_app", GATE=str(gate))
        try:
            worker.wait_for_log("at the gate")
            ready = time.monotonic() - started
            gate.touch()
            peaks: list[float] = []
            with ThreadPoolExecutor(1) as waiting:
                sealed = waiting.submit(service.wait_sealed, 300)
                while not sealed.done():
                    peaks.append(_peak_mib(worker.process.pid))
                    time.sleep(_SAMPLE_SECONDS)
                sealed.result()
            times = Path(f"/proc/{worker.process.pid}/stat").read_text().split()
        finally:
            service.close()
        if topic == "raw":
            self.service = service
        gigabytes = (_NEW_BYTES if topic == "new" else sum(map(len, documents(_DOCUMENTS)))) / 1e9
        return {
            "peak MiB": peaks[-1],
            "second half MiB": peaks[-1] - peaks[len(peaks) // 2],
            "ready s": ready,
            "CPU s/GB of text, start included": (int(times[13]) + int(times[14])) / 100 / gigabytes,
        }

    def process(self, code: str) -> Mapping[str, float]:
        """A Python process that runs some code with the feed's settings."""
        command = [sys.executable, "-c", f"{code}\n{_PEAK}"]
        started = time.monotonic()
        done = subprocess.run(command, cwd=ROOT, env=self.service.environment(), capture_output=True, text=True, check=True)
        return {"peak MiB": int(done.stdout.split()[-1]) / 1024, "seconds": time.monotonic() - started}


def _peak_mib(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


def new_words(size: int) -> list[bytes]:
    """About `size` bytes of documents of random letters, so that hardly a word comes twice."""
    letters = np.random.default_rng(0).integers(97, 123, size, dtype=np.uint8)
    letters[np.random.default_rng(1).integers(0, size, size // 8)] = ord(" ")
    text = letters.tobytes()
    return [text[start : start + 2200] for start in range(0, size, 2200)]


def measure(runs: int) -> Report:
    """MiB, seconds and CPU seconds."""
    report = Report("footprint")
    with apache_kafka() as (broker, folder):
        bench = Bench(broker, folder)
        contenders: Contenders = {
            "worker": partial(bench.worker, "raw"),
            "worker, words never seen": partial(bench.worker, "new"),
            "import torch": lambda: bench.process("import torch"),
            "import of the loader": lambda: bench.process("import tokenfeed.loader.torch"),
            "loader": lambda: bench.process(_READ),
        }
        alternate(report, runs, contenders)
    report.ratios["footprint.worker_mb"] = report.median("worker", "peak MiB")
    report.ratios["footprint.worker_mb_new_words"] = report.median("worker, words never seen", "peak MiB")
    report.ratios["footprint.ready_s"] = report.median("worker", "ready s")
    report.ratios["footprint.loader_mb_above_torch"] = report.median("loader", "peak MiB") - report.median(
        "import torch", "peak MiB"
    )
    return report
