"""Brokers, one of each kind a session, started by the first test that needs it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests import brokers
from tests.brokers import Broker
from tests.service import Service


@pytest.fixture(scope="session")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Broker]]:
    """Give a broker by name, the same one all session."""
    with ExitStack() as stack:
        started: dict[str, Broker] = {}

        def get(name: str) -> Broker:
            if name not in started:
                kind = brokers.embedded() if name == "embedded" else brokers.kafka(tmp_path_factory.mktemp("kafka"))
                started[name] = stack.enter_context(kind)
            return started[name]

        yield get


@pytest.fixture(params=["embedded", "kafka"])
def broker(request: pytest.FixtureRequest, running: Callable[[str], Broker]) -> Broker:
    """Each kind of broker in turn."""
    return running(request.param)


@pytest.fixture
def embedded(running: Callable[[str], Broker]) -> Broker:
    """The embedded broker."""
    return running("embedded")


@pytest.fixture
def service(broker: Broker, tmp_path: Path) -> Iterator[Callable[..., Service]]:
    """Make feeds on the broker; their workers end with the test."""
    with ExitStack() as stack:

        def make(**settings: Any) -> Service:
            folder = tmp_path / str(len(list(tmp_path.iterdir())))
            folder.mkdir()
            made = Service(broker.bootstrap, folder, settings)
            stack.callback(made.close)
            return made

        yield make
