"""Programs that read a raw topic and write an output topic, and how fast they do it, seen from the broker.

The rate is that between the times at which 35 % and 95 % of all tokens stood in the output topic, by the broker's clock:
starting, what was fetched before, and the tail do not count. CPU is that of the program and of the broker meanwhile.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import psutil
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from benchmarks.peers.common import BLOCK_BYTES
from tests.brokers import Broker, kafka
from tokenfeed import batches
from tokenfeed.kafka import EARLIEST, read_range, reader, watermarks
from tokenfeed.settings import Settings

PARTITIONS: Final = 4
_FROM, _TO = 0.35, 0.95
_POLL_SECONDS: Final = 0.1
_PEERS: Final = Path(__file__).parent / "peers"
_PEERS_PYTHON: Final = Path(__file__).parent.parent / ".cache" / "peers" / "bin" / "python"


def options(broker: Broker) -> dict[str, Any]:
    """librdkafka's options."""
    return {"bootstrap.servers": broker.bootstrap}


@contextmanager
def apache_kafka() -> Iterator[tuple[Broker, Path]]:
    """One broker, and a folder for everything else."""
    with tempfile.TemporaryDirectory() as temporary, kafka(Path(temporary, "kafka")) as broker:
        folder = Path(temporary, "work")
        folder.mkdir()
        yield broker, folder


def feed_settings(**changes: Any) -> dict[str, Any]:
    """Settings of a feed for `tests.service.Service`: the defaults of what decides its speed."""
    defaults = ("tokenizer", "sequence_length", "batch_size", "window_documents", "session_timeout_seconds")
    values = {name: Settings.model_fields[name].default for name in defaults}
    return values | {"raw_partitions": PARTITIONS, "slots": PARTITIONS} | changes


def create(broker: Broker, topic: str, partitions: int = PARTITIONS) -> None:
    """Make a topic whose messages carry the broker's time."""
    config = {"message.timestamp.type": "LogAppendTime", "max.message.bytes": str(10 * 2**20)}
    admin = AdminClient(options(broker))
    for made in admin.create_topics([NewTopic(topic, partitions, 1, config=config)]).values():
        made.result()


def delete(broker: Broker, topics: Sequence[str]) -> None:
    """Remove topics and give the disk space back soon."""
    admin = AdminClient(options(broker))
    for removed in admin.delete_topics(list(topics)).values():
        removed.result()


def fill(broker: Broker, topic: str, values: Sequence[bytes], content_type: str | None = None) -> None:
    """Make a raw topic of these records, evenly spread."""
    create(broker, topic)
    producer = Producer({**options(broker), "linger.ms": 20, "batch.size": 2**20, "message.max.bytes": 10 * 2**20})
    headers: list[tuple[str, str | bytes | None]] = [("content-type", content_type)] if content_type else []
    for number, value in enumerate(values):
        while True:
            try:
                producer.produce(topic, value, partition=number % PARTITIONS, headers=headers)
                break
            except BufferError:
                producer.poll(0.05)
        if number % 1000 == 0:
            producer.poll(0)
    assert producer.flush(60) == 0


def peers_python() -> str:
    """The interpreter that has benchmarks/peers/requirements.txt."""
    if not _PEERS_PYTHON.exists():
        sys.exit(f"{_PEERS_PYTHON} does not exist: `make peers` makes it")
    return str(_PEERS_PYTHON)


@contextmanager
def peer(script: str, folder: Path, *arguments: str) -> Any:
    """A peer's program that runs."""
    log = (folder / f"{script}-{time.time_ns()}.log").open("wb")
    command = [peers_python(), str(_PEERS / script), *arguments]
    process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=subprocess.STDOUT)
    try:
        yield process.pid, Path(log.name)
    except TimeoutError:
        print(Path(log.name).read_text()[-2000:], file=sys.stderr)
        raise
    finally:
        process.kill()
        process.wait()


@dataclass
class _Sample:
    messages: int
    program: float
    broker: float


class Watch:
    """Counts the messages of a topic, and the CPU seconds of the processes, until enough have come."""

    def __init__(self, broker: Broker, topic: str, partitions: int, pids: Sequence[int]) -> None:
        self._consumer = reader(options(broker))
        self._broker = broker
        self._topic, self._partitions, self._pids = topic, partitions, pids
        self.samples: list[_Sample] = []

    def until(self, enough: Callable[[int], bool], seconds: float) -> None:
        """Sample until `enough` says so of the number of messages."""
        deadline = time.monotonic() + seconds
        while True:
            count = sum(self._end(partition) for partition in range(self._partitions))
            brokers = [entry["pid"] for entry in self._broker._brokers()]
            self.samples.append(_Sample(count, sum(map(_cpu, self._pids)), sum(map(_cpu, brokers))))
            if enough(count):
                return
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self._topic}: {count} messages after {seconds:g} s")
            time.sleep(_POLL_SECONDS)

    def _end(self, partition: int) -> int:
        return watermarks(self._consumer, self._topic, partition)[1]

    def figures(self, documents: int, tokens_of: Callable[[bytes], int]) -> tuple[dict[str, float], int]:
        """Rate and CPU, and all tokens in the topic."""
        stamped: list[tuple[int, int]] = []
        for partition in range(self._partitions):
            messages = read_range(self._consumer, self._topic, partition, EARLIEST)
            stamped += [(message.timestamp()[1], tokens_of(value)) for message in messages if (value := message.value())]
        self._consumer.close()
        stamped.sort()
        times = np.array([at for at, _ in stamped]) / 1000
        share = np.cumsum([tokens for _, tokens in stamped]) / sum(tokens for _, tokens in stamped)
        first, last = np.searchsorted(share, (_FROM, _TO))
        done = documents * (share[last] - share[first])
        counted = [sample for sample in self.samples if sample.messages >= _FROM * len(stamped)]
        covered = documents * (counted[-1].messages - counted[0].messages) / len(stamped)
        return {
            "documents/s": done / (times[last] - times[first]),
            "CPU us/document": (counted[-1].program - counted[0].program) / covered * 1e6,
            "broker's": (counted[-1].broker - counted[0].broker) / covered * 1e6,
        }, sum(tokens for _, tokens in stamped)


def _cpu(pid: int) -> float:
    used = psutil.Process(pid).cpu_times()
    return float(used.user + used.system)


def block_tokens(value: bytes) -> int:
    """Tokens of a peer's message."""
    assert len(value) == BLOCK_BYTES
    return len(value) // 4


def batch_tokens(value: bytes) -> int:
    """Tokens of a batch of ours."""
    return batches.decode(value).tokens
