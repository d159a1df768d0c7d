"""The brokers that tests run on: the embedded one and Apache Kafka."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tokenfeed.broker import embedded_broker

SCRIPT = Path(__file__).parent.parent / "scripts" / "kafka"


@dataclass(frozen=True)
class Broker:
    """A broker that runs."""

    name: str
    bootstrap: str
    folder: Path | None = None

    @contextmanager
    def silent(self) -> Iterator[None]:
        """Stop Apache Kafka's processes, and let them go on afterwards."""
        assert self.folder is not None
        pids = [broker["pid"] for broker in json.loads((self.folder / "cluster.json").read_text())["brokers"]]
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            for pid in pids:
                os.kill(pid, signal.SIGCONT)


@contextmanager
def embedded() -> Iterator[Broker]:
    """The embedded broker."""
    with embedded_broker() as bootstrap:
        yield Broker("embedded", bootstrap)


@contextmanager
def kafka(folder: Path, brokers: int = 1) -> Iterator[Broker]:
    """Apache Kafka, from scripts/kafka. Where it cannot be had the test is skipped, but on CI it fails."""
    if not shutil.which("java") or not shutil.which("mvn"):
        _missing("Java and Maven are not installed")
    started = _run("start", "--brokers", str(brokers), "--dir", str(folder))
    if started.returncode:
        _missing(started.stderr)
    try:
        yield Broker("kafka", started.stdout.strip(), folder)
    finally:
        assert _run("stop", "--dir", str(folder)).returncode == 0


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, SCRIPT, *arguments], capture_output=True, text=True, check=False)


def _missing(reason: str) -> None:
    if os.environ.get("CI"):
        pytest.fail(f"Apache Kafka must run on CI: {reason}")
    pytest.skip(f"no Apache Kafka: {reason}")
