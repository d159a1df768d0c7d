"""A bad network between everyone and the broker."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests import brokers
from tests.brokers import Broker
from tests.chaos.harness import SETTINGS, Outcome, Trial, now
from tests.chaos.proxy import Proxy, proxy

Sound = Callable[[Outcome], None]


@pytest.fixture(scope="module")
def proxied(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Broker, Proxy]]:
    """One broker of Apache Kafka that sends its clients through a proxy."""
    with proxy() as between:
        folder = tmp_path_factory.mktemp("proxied")
        with brokers.kafka(folder, advertised_port=between.port) as started:
            between.upstream = started.port
            yield started, between


@pytest.fixture
def feed(proxied: tuple[Broker, Proxy], tmp_path: Path) -> Iterator[Trial]:
    """A feed whose clients all go through the proxy."""
    _, between = proxied
    made = Trial(f"127.0.0.1:{between.port}", tmp_path, SETTINGS)
    yield made
    between.delay, between.slices = 0.0, False
    between.swallow(False)
    made.close()


def slow(between: Proxy) -> None:
    for delay in (0.05, 0.2, 0.5):
        between.delay = delay
        time.sleep(4)
    between.delay = 0.0


def sliced(between: Proxy) -> None:
    between.slices = True
    time.sleep(8)
    between.slices = False


def reset(between: Proxy) -> None:
    """What is on its way at that time, requests and answers, is lost with the connections."""
    for _ in range(10):
        between.swallow(True)
        time.sleep(0.3)
        between.reset()
        between.swallow(False)
        time.sleep(0.5)


def hole(between: Proxy) -> None:
    between.swallow(True)
    time.sleep(20)
    between.swallow(False)


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("connections reset ten times", reset),
        pytest.param("latency of 50 to 500 ms", slow, marks=pytest.mark.chaos),
        pytest.param("data in slices of one byte", sliced, marks=pytest.mark.chaos),
        pytest.param("black hole for 20 s", hole, marks=pytest.mark.chaos),
    ],
)
def test_a_bad_network(
    feed: Trial, proxied: tuple[Broker, Proxy], sound: Sound, name: str, fault: Callable[[Proxy], None]
) -> None:
    _, between = proxied
    worker = feed.start_worker()
    with feed.produced():
        feed.wait_for_progress(now())
        at = now()
        fault(between)
        feed.wait_for_progress(at)
        feed.wait_for_progress(now())
    assert worker.process.poll() is None, "a worker rides out a bad network"
    sound(feed.finish(name, at))
