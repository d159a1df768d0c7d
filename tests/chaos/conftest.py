"""Clusters that faults are done to, and the report of what they did."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from tests import brokers
from tests.brokers import Broker
from tests.chaos.harness import SETTINGS, Outcome, Trial


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """Three brokers of Apache Kafka."""
    with brokers.kafka(tmp_path_factory.mktemp("cluster"), 3) as started:
        yield started


@pytest.fixture
def trial(cluster: Broker, tmp_path: Path) -> Iterator[Callable[..., Trial]]:
    """Make feeds on the cluster."""
    with ExitStack() as stack:

        def make(**settings: Any) -> Trial:
            made = Trial(cluster.bootstrap, tmp_path, SETTINGS | settings)
            stack.callback(made.close)
            return made

        yield make


@pytest.fixture(scope="session")
def outcomes() -> Iterator[list[Outcome]]:
    """What the faults did; written to $CHAOS_REPORT at the end."""
    found: list[Outcome] = []
    yield found
    if report := os.environ.get("CHAOS_REPORT"):
        Path(report).write_text(json.dumps({"faults": [asdict(outcome) for outcome in found]}, indent=1) + "\n")


@pytest.fixture
def sound(outcomes: list[Outcome]) -> Callable[[Outcome], None]:
    """Note an outcome, and fail if anything was lost, doubled, altered, out of order or unseen."""

    def check(outcome: Outcome) -> None:
        outcomes.append(outcome)
        outcome.assert_sound()

    return check
