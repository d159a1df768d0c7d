"""Bytes a token on the broker, and how fast tokens are read, for what could stand in a batch message.

Ids of a vocabulary of 129 thousand as int32, or as our messages hold them, in planes of the low 16 bits and the bits
above; each as it is and compressed by Kafka's own codecs. All are read by confluent-kafka in one thread and become int64
arrays; the messages have 8 rows of 2048 and nothing but ids.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from confluent_kafka import Producer, TopicPartition

from benchmarks import core
from benchmarks.corpus import documents
from benchmarks.programs import PARTITIONS, apache_kafka, create, options
from benchmarks.report import Report, alternate
from tests.brokers import Broker
from tokenfeed import batches
from tokenfeed.kafka import reader
from tokenfeed.settings import Settings
from tokenfeed.tokenizing import load_tokenizer
from tokenfeed.torchless import hide_torch

Ids = npt.NDArray[np.int32]

_DOCUMENTS: Final = 60_000
_TUNED: Final = {"fetch.queue.backoff.ms": 5, "fetch.message.max.bytes": 4 * 2**20}


def _int32(ids: Ids) -> bytes:
    return ids.tobytes()


def _read_int32(value: bytes) -> Any:
    return np.frombuffer(value, np.int32).astype(np.int64)


def _planes(ids: Ids) -> bytes:
    split = batches._split(ids)
    return split["input_ids_low"].tobytes() + split["input_ids_high"].tobytes()


def _read_planes(value: bytes) -> Any:
    tokens = len(value) * 8 // 17
    low = np.frombuffer(value, np.uint16, tokens)
    high = np.frombuffer(value, np.uint8, offset=2 * tokens)
    return batches._joined(low, high.reshape(1, -1)).astype(np.int64)


_FORMS: Final[dict[str, tuple[Callable[[Ids], bytes], Callable[[bytes], Any], str]]] = {
    "int32": (_int32, _read_int32, "none"),
    "int32, lz4": (_int32, _read_int32, "lz4"),
    "int32, zstd": (_int32, _read_int32, "zstd"),
    "planes of 16 and 1 bits": (_planes, _read_planes, "none"),
    "planes, lz4": (_planes, _read_planes, "lz4"),
    "planes, zstd": (_planes, _read_planes, "zstd"),
}


class Bench:
    """The same batches in topics of each form."""

    def __init__(self, broker: Broker, folder: Path) -> None:
        hide_torch()
        self.broker, self.folder = broker, folder
        settings = Settings(raw_partitions=PARTITIONS, slots=PARTITIONS)
        messages: list[bytes] = []
        core.run(settings, load_tokenizer(settings.tokenizer), documents(_DOCUMENTS), take=messages.append)
        self.ids = [batches.decode(message).input_ids for message in messages]
        self.tokens = len(messages) * settings.batch_size * settings.sequence_length

    def run(self, form: str) -> Mapping[str, float]:
        """Write a topic of this form and read it."""
        write, read, codec = _FORMS[form]
        topic = f"{form.replace(', ', '-').replace(' ', '-')}-{time.time_ns()}"
        create(self.broker, topic)
        values = [write(ids) for ids in self.ids]
        producer = Producer({**options(self.broker), "compression.type": codec, "message.max.bytes": 10 * 2**20})
        used = time.process_time()
        for number, value in enumerate(values):
            producer.produce(topic, value, partition=number % PARTITIONS)
        assert producer.flush(120) == 0
        sending = time.process_time() - used
        consumer = reader(options(self.broker), **{"enable.partition.eof": False, **_TUNED})
        consumer.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
        found = checksum = 0
        started, used = time.perf_counter(), time.process_time()
        while found < len(values):
            for message in consumer.consume(32, 0.1):
                checksum += int(read(message.value() or b"")[-1])
                found += 1
        seconds, reading = time.perf_counter() - started, time.process_time() - used
        consumer.close()
        assert checksum == sum(int(ids[-1, -1]) for ids in self.ids)
        logs = self.folder.parent.rglob(f"{topic}-*/*.log")
        return {
            "bytes/token": sum(log.stat().st_size for log in logs) / self.tokens,
            "Mtokens/s": self.tokens / seconds / 1e6,
            "reading, CPU us/batch": reading / len(values) * 1e6,
            "sending, CPU us/batch": sending / len(values) * 1e6,
        }


def measure(runs: int) -> Report:
    """Size and speed of each form."""
    report = Report("wire")
    with apache_kafka() as (broker, folder):
        bench = Bench(broker, folder)
        alternate(report, runs, {form: partial(bench.run, form) for form in _FORMS})
    report.ratios["wire.planes_bytes"] = report.median("planes of 16 and 1 bits", "bytes/token") / report.median(
        "int32", "bytes/token"
    )
    report.compare("wire.planes_speed", "planes of 16 and 1 bits", "int32", "Mtokens/s")
    report.compare("wire.zstd_speed", "int32, zstd", "int32", "Mtokens/s")
    return report
