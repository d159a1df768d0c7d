"""A batches topic to tensors in the trainer's process, against a raw fetch, local files and other ways from Kafka.

Everything reads the same rows of 2048 in batches of 8 and gives int64 tensors of token ids. Tokens a second from 20 % of
the data on. Files are in the page cache. Hugging Face tokenizes and packs on the way.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import orjson
from confluent_kafka import Producer

from benchmarks.corpus import documents
from benchmarks.programs import PARTITIONS, apache_kafka, create, feed_settings, fill, options, peers_python
from benchmarks.report import Report, alternate
from tests.brokers import Broker
from tests.service import ROOT, Service
from tokenfeed.loader import Feed, FeedReader

_DOCUMENTS: Final = 200_000
_FEWER: Final = 8_000
_JSON_BATCHES: Final = 300
_PEERS: Final = Path(__file__).parent / "peers"


class Bench:
    """The rows, wherever the contenders read them from."""

    def __init__(self, broker: Broker, folder: Path) -> None:
        self.folder = folder
        fill(broker, "raw", documents(_DOCUMENTS))
        self.service = Service(broker.bootstrap, folder, feed_settings(raw_topics=("raw",)))
        self.service.start_worker()
        self.service.seal()
        self.service.wait_sealed(180)
        self.service.workers[0].stop()
        with FeedReader(Feed.of(self.service.settings)) as reader:
            self.rows = np.concatenate([given.batch.input_ids for given in reader if given.batch is not None])
        np.save(folder / "rows.npy", self.rows)
        self.jsonl = folder / "text.jsonl"
        with self.jsonl.open("wb") as file:
            for text in documents(_FEWER):
                file.write(orjson.dumps({"text": text.decode()}) + b"\n")
        self._json_topic(broker)
        for script in ("mosaic.py", "lit.py"):
            self._run([peers_python(), str(_PEERS / script), "prepare", "rows.npy", script.removesuffix(".py")])

    def _json_topic(self, broker: Broker) -> None:
        create(broker, "json")
        producer = Producer({**options(broker), "message.max.bytes": 10 * 2**20})
        for number in range(_JSON_BATCHES):
            rows = self.rows[8 * number : 8 * number + 8]
            producer.produce("json", orjson.dumps({"input_ids": rows.tolist()}), partition=number % PARTITIONS)
        assert producer.flush(60) == 0

    def _run(self, command: list[str], **extra: Any) -> Any:
        done = subprocess.run(command, capture_output=True, text=True, check=False, **{"cwd": self.folder, **extra})
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)}: {done.stderr[-2000:]}")
        lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
        return orjson.loads(lines[-1]) if lines else None

    def peer(self, script: str, *arguments: str, tokens: int) -> Mapping[str, float]:
        """One run of a peer."""
        return self._figures(self._run([peers_python(), str(_PEERS / script), *arguments]), tokens)

    def ours(self, what: str) -> Mapping[str, float]:
        """One run of our loader, or of the raw fetch."""
        command = [sys.executable, "-m", "benchmarks.feed_loader", str(self.rows.size), what]
        found = self._run(command, cwd=ROOT, env=self.service.environment())
        if what == "waiting":
            return {f"next() {name} ms": value for name, value in found.items()}
        assert found["tokens"] == self.rows.size, f"{found['tokens']} of {self.rows.size} tokens"
        return self._figures(found, self.rows.size)

    def _figures(self, found: Any, tokens: int) -> dict[str, float]:
        share = found["tokens"] / tokens
        assert 0.95 < share < 1.05, f"{found['tokens']} of {tokens} tokens"
        a_document = self.rows.size / _DOCUMENTS
        return {"documents/s": found["rate"] / a_document, "Mtokens/s": found["rate"] / 1e6}


def measure(runs: int) -> Report:
    """Documents and tokens a second."""
    report = Report("loader")
    with apache_kafka() as (broker, folder):
        bench = Bench(broker, folder)
        size = bench.rows.size
        few = int(_FEWER / _DOCUMENTS * size)
        alternate(
            report,
            runs,
            {
                "tokenfeed, token ids": partial(bench.ours, "ids"),
                "tokenfeed, all four tensors": partial(bench.ours, "all"),
                "raw fetch, confluent-kafka": partial(bench.ours, "raw"),
                "raw fetch, as large as ours": partial(bench.ours, "raw-large"),
                "raw fetch, ids as int64": partial(bench.ours, "raw-ids"),
                "memory-mapped file": partial(bench.peer, "memmap.py", "rows.npy", tokens=size),
                "mosaicml-streaming": partial(bench.peer, "mosaic.py", "read", "mosaic", tokens=size),
                "litdata": partial(bench.peer, "lit.py", "read", "lit", tokens=size),
                "Hugging Face, tokenizers": partial(bench.peer, "hub.py", "text.jsonl", "tokenizers", str(few), tokens=few),
                "kafka-python, JSON": partial(
                    bench.peer,
                    "kafka_json.py",
                    broker.bootstrap,
                    "json",
                    str(_JSON_BATCHES * 8 * 2048),
                    tokens=_JSON_BATCHES * 8 * 2048,
                ),
                "tokenfeed, data waiting": partial(bench.ours, "waiting"),
            },
        )
    rate = "documents/s"
    report.compare("loader.vs_raw_fetch", "tokenfeed, token ids", "raw fetch, confluent-kafka", rate)
    report.compare("loader.vs_raw_ids", "tokenfeed, token ids", "raw fetch, ids as int64", rate)
    report.compare("loader.vs_mosaicml", "tokenfeed, token ids", "mosaicml-streaming", rate)
    report.compare("loader.vs_litdata", "tokenfeed, token ids", "litdata", rate)
    report.ratios["loader.next_p99_ms"] = report.median("tokenfeed, data waiting", "next() p99 ms")
    return report
