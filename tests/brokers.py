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
from typing import Any

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
        pids = [broker["pid"] for broker in self._brokers()]
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            for pid in pids:
                os.kill(pid, signal.SIGCONT)

    @property
    def port(self) -> int:
        """Where the first broker listens."""
        port: int = self._brokers()[0]["port"]
        return port

    @property
    def names(self) -> list[str]:
        """Names of its brokers; the node id of the n-th is n + 1."""
        return [broker["name"] for broker in self._brokers()]

    def kill(self, name: str) -> None:
        """kill -9 one broker."""
        assert _run("kill", "--dir", str(self.folder), "--broker", name).returncode == 0

    def restart(self, name: str) -> None:
        """Stop one broker if it runs, start it again on its data, wait until it answers."""
        restarted = _run("restart", "--dir", str(self.folder), "--broker", name)
        assert restarted.returncode == 0, restarted.stderr

    def start(self) -> None:
        """Start every broker that does not run, and wait until all answer."""
        started = _run("start", "--brokers", str(len(self.names)), "--dir", str(self.folder))
        assert started.returncode == 0, started.stderr

    def _brokers(self) -> list[dict[str, Any]]:
        assert self.folder is not None
        brokers: list[dict[str, Any]] = json.loads((self.folder / "cluster.json").read_text())["brokers"]
        return brokers


@contextmanager
def embedded() -> Iterator[Broker]:
    """The embedded broker."""
    with embedded_broker() as bootstrap:
        yield Broker("embedded", bootstrap)


@contextmanager
def kafka(folder: Path, brokers: int = 1, advertised_port: int | None = None) -> Iterator[Broker]:
    """Apache Kafka, from scripts/kafka. Where it cannot be had the test is skipped, but on CI it fails.

    With an advertised port it is reached through a proxy, which needs the `port` of the first broker.
    """
    if not shutil.which("java") or not shutil.which("mvn"):
        _missing("Java and Maven are not installed")
    proxied = ["--advertised-port", str(advertised_port)] if advertised_port else []
    started = _run("start", "--brokers", str(brokers), "--dir", str(folder), *proxied)
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
