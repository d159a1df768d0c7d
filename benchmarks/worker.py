"""A raw topic to batches: our worker, alone and with a second one, against what one could use instead.

Apache Kafka on the same machine, four partitions, the DeepSeek tokenizer, rows of 2048 in blocks of 8. The topics hold
records of one document, or bundles of 64. Slow programs get fewer documents. Every token must be in the output.
"""

from __future__ import annotations

import tempfile
import uuid
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Final

from benchmarks import core
from benchmarks.corpus import bundles, documents, token_ends
from benchmarks.peers.common import BLOCK_BYTES
from benchmarks.programs import (
    PARTITIONS,
    Watch,
    apache_kafka,
    batch_tokens,
    block_tokens,
    create,
    delete,
    feed_settings,
    fill,
    peer,
)
from benchmarks.report import Contenders, Report, alternate
from tests.brokers import Broker
from tests.service import Service, wait_until
from tokenfeed.documents import NDJSON
from tokenfeed.settings import Settings
from tokenfeed.tokenizing import load_tokenizer
from tokenfeed.torchless import hide_torch

_DOCUMENTS: Final = 200_000
_FEWER: Final = 20_000
_FEWEST: Final = 5_000
_BUNDLE: Final = 64
_SECONDS: Final = 180.0
_LINGER_SECONDS: Final = 2.0  # for the tail only, which does not count


class Bench:
    """The topics and how programs are run on them."""

    def __init__(self, broker: Broker, folder: Path) -> None:
        hide_torch()
        self.broker, self.folder = broker, folder
        self.settings = Settings(raw_partitions=PARTITIONS, slots=PARTITIONS)
        self.tokenizer = load_tokenizer(self.settings.tokenizer)
        texts = documents(_DOCUMENTS)
        self.tokens = token_ends(self.tokenizer, texts)
        for count in (_DOCUMENTS, _FEWER, _FEWEST):
            fill(broker, f"single-{count}", texts[:count])
            fill(broker, f"bundles-{count}", bundles(texts[:count], _BUNDLE), NDJSON)

    def peer(self, script: str, engine: str, kind: str, count: int) -> Mapping[str, float]:
        """One run of a peer."""
        out = f"out-{uuid.uuid4().hex[:8]}"
        create(self.broker, out)
        blocks = int(self.tokens[count]) * 4 // BLOCK_BYTES
        arguments = (self.broker.bootstrap, f"{kind}-{count}", out, engine)
        with peer(script, self.folder, *arguments) as (pid, _):
            watch = Watch(self.broker, out, PARTITIONS, [pid])
            watch.until(lambda messages: messages >= blocks, _SECONDS)
        figures, tokens = watch.figures(count, block_tokens)
        assert tokens == blocks * BLOCK_BYTES // 4, f"{script}: {tokens} tokens"
        delete(self.broker, [out])
        return figures

    def empty_faust(self) -> Mapping[str, float]:
        """Records a second that stock Faust gives to an agent that does nothing."""
        arguments = (self.broker.bootstrap, f"single-{_DOCUMENTS}", f"empty-{uuid.uuid4().hex[:8]}", "")
        with peer("empty_faust.py", self.folder, *arguments) as (_, log):
            wait_until(lambda: len(_counts(log)) >= 60, "60,000 records")
            lines = _counts(log)
        (first, begun), (last, ended) = lines[10], lines[-1]
        return {"documents/s": (last - first) / (ended - begun)}

    def ours(self, kind: str, workers: int) -> Mapping[str, float]:
        """One run of our worker, or of several that begin together."""
        folder = Path(tempfile.mkdtemp(dir=self.folder))
        gate = folder / "gate"
        values = feed_settings(raw_topics=(f"{kind}-{_DOCUMENTS}",), window_linger_seconds=_LINGER_SECONDS)
        service = Service(self.broker.bootstrap, folder, values)
        expected = int(self.tokens[-1])
        try:
            running = [service.start_worker("benchmarks.gated_app", GATE=str(gate)) for _ in range(workers)]
            for worker in running:
                worker.wait_for_log("at the gate")
            watch = Watch(self.broker, service.settings.batches_topic, PARTITIONS, [w.process.pid for w in running])
            gate.touch()
            watch.until(lambda messages: messages * BLOCK_BYTES // 4 > 0.96 * expected, _SECONDS)
            wait_until(lambda: _documents(service) == _DOCUMENTS, "all documents")
        finally:
            service.close()
        figures, tokens = watch.figures(_DOCUMENTS, batch_tokens)
        assert tokens == expected, f"{tokens} tokens in batches, {expected} in the documents"
        delete(self.broker, service.settings.topics[1:])
        return figures

    def core(self) -> Mapping[str, float]:
        """The same bundles to batches in this process."""
        values = bundles(documents(_FEWER), _BUNDLE)
        seconds, cpu, tokens, _ = core.run(self.settings, self.tokenizer, values)
        assert tokens == self.tokens[_FEWER]
        return {"documents/s": _FEWER / seconds, "CPU us/document": cpu / _FEWER * 1e6}


def _counts(log: Path) -> list[list[float]]:
    """What `empty_faust.py` has written: records, and when."""
    lines = log.read_text().splitlines()
    return [[float(word) for word in line.split()] for line in lines[:-1] if line[:1].isdigit()]


def _documents(service: Service) -> int:
    windows = [window for stream in range(PARTITIONS) for window in service.ledger(stream, service.plan.id)[1]]
    return sum(done.documents for _, done in windows if done is not None)


def measure(runs: int) -> Report:
    """Documents a second, and CPU time a document."""
    report = Report("worker")
    with apache_kafka() as (broker, folder):
        bench = Bench(broker, folder)
        contenders: Contenders = {
            "tokenfeed": partial(bench.ours, "single", 1),
            "tokenfeed, two workers": partial(bench.ours, "single", 2),
            "script, gigatoken": partial(bench.peer, "script.py", "gigatoken", "single", _DOCUMENTS),
            "Quix Streams, gigatoken": partial(bench.peer, "quix.py", "gigatoken", "single", _DOCUMENTS),
            "Bytewax, gigatoken": partial(bench.peer, "bytewax_flow.py", "gigatoken", "single", _DOCUMENTS),
            "script, tokenizers": partial(bench.peer, "script.py", "tokenizers", "single", _FEWER),
            "plain Faust app": partial(bench.peer, "plain_faust.py", "transformers", "single", _FEWEST),
            "empty Faust agent": bench.empty_faust,
            "bundles: tokenfeed": partial(bench.ours, "bundles", 1),
            "bundles: script, gigatoken": partial(bench.peer, "script.py", "gigatoken", "bundles", _DOCUMENTS),
            "bundles: script, tokenizers": partial(bench.peer, "script.py", "tokenizers", "bundles", _FEWER),
            "bundles: core alone": bench.core,
        }
        alternate(report, runs, contenders)
    rate = "documents/s"
    peers = ["script, gigatoken", "Quix Streams, gigatoken", "Bytewax, gigatoken", "script, tokenizers", "plain Faust app"]
    report.compare("worker.vs_plain_faust", "tokenfeed", "plain Faust app", rate)
    report.compare("worker.vs_empty_faust", "tokenfeed", "empty Faust agent", rate)
    report.compare("worker.vs_best_peer", "tokenfeed", report.best(peers, rate), rate)
    report.compare("bundles.vs_core", "bundles: tokenfeed", "bundles: core alone", rate)
    report.compare("bundles.vs_best_tokenizers_peer", "bundles: tokenfeed", "bundles: script, tokenizers", rate)
    report.compare("workers2.vs_one", "tokenfeed, two workers", "tokenfeed", rate)
    return report
