"""The examples: killed in the middle, each goes on behind its last checkpoint, where it can with other ranks."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.brokers import Broker
from tests.service import ROOT
from tests.written import write_feed
from tokenfeed.loader import Feed

TOTAL = 46
KILLED_AFTER = 12
SAVED_AT = 10
pytestmark = pytest.mark.contract


@pytest.fixture
def feed(embedded: Broker, tmp_path: Path) -> Feed:
    return write_feed(embedded, tmp_path, [26, 20])


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port: int = listening.getsockname()[1]
        return port


def train(module: str, feed: Feed, folder: Path, world: int, stop: int = -1) -> tuple[int, list[list[int]]]:
    """The step it began behind, and the batches that each rank was given."""
    folder.mkdir(exist_ok=True)
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("TOKENFEED_", "KAFKA_"))},
        "KAFKA_BOOTSTRAP_SERVERS": feed.options["bootstrap.servers"],
        "TOKENFEED_BATCHES_TOPIC": feed.batches_topic,
        "TOKENFEED_LEDGER_TOPIC": feed.ledger_topic,
        "TOKENFEED_PLAN_TOPIC": feed.plan_topic,
        "TOKENFEED_SEQUENCE_LENGTH": "16",
        "TOKENFEED_BATCH_SIZE": "3",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "WORLD_SIZE": str(world),
        "CUDA_VISIBLE_DEVICES": "",
        "ACCELERATE_USE_CPU": "true",
        "OMP_NUM_THREADS": "1",
    }
    logs = [folder / f"given-{world}-{rank}" for rank in range(world)]
    printed = [folder / f"printed-{world}-{rank}" for rank in range(world)]
    with ExitStack() as stack:
        ranks = [
            subprocess.Popen(
                [sys.executable, "-m", "tests.contract.watched", str(log), str(stop), module, str(folder / "run")],
                cwd=ROOT,
                env={**environment, "RANK": str(rank), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(world)},
                stdout=stack.enter_context(printed[rank].open("wb")),
                stderr=subprocess.STDOUT,
            )
            for rank, log in enumerate(logs)
        ]
        for process in ranks:
            stack.callback(process.wait)
            stack.callback(process.kill)
        ended = [process.wait(120) for process in (ranks if stop < 0 else ranks[:1])]
    assert set(ended) == {0 if stop < 0 else -signal.SIGKILL}, "".join(file.read_text() for file in printed)
    lines = printed[0].read_text().splitlines()
    begun = next(int(line.removeprefix("from step ")) for line in lines if line.startswith("from step "))
    given = [
        [int(number) for number, kind in map(str.split, log.read_text().splitlines()) if kind == "batch"] for log in logs
    ]
    return begun, given


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        ("ddp", 2, 1),
        ("ddp", 1, 2),
        ("fsdp", 2, 1),
        ("trainer", 2, 1),
        ("accelerated", 2, 1),
        ("lightning", 2, 1),
        ("lightning", 1, 1),
        ("tensorflow", 1, 1),
    ],
)
def test_an_example_goes_on_where_its_checkpoint_says(
    feed: Feed, tmp_path: Path, name: str, before: int, after: int
) -> None:
    begun, given = train(f"examples.{name}", feed, tmp_path / "first", before, stop=KILLED_AFTER)
    assert begun == 0
    assert given[0] == list(range(0, KILLED_AFTER * before, before))
    (tmp_path / "first").rename(tmp_path / "second")
    for log in (tmp_path / "second").glob("given-*"):
        log.unlink()
    begun, given = train(f"examples.{name}", feed, tmp_path / "second", after)
    assert begun == SAVED_AT
    first = SAVED_AT * before
    assert [ranks[:1] for ranks in given] == [[first + rank] for rank in range(after)], (
        "the first batch behind the checkpoint"
    )
    last = min(TOTAL, first + 20 * after) if name == "trainer" else TOTAL  # the Trainer must be told how many steps
    assert sorted(number for ranks in given for number in ranks) == list(range(first, last))
