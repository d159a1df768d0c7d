"""JSON lines on disk to tensors in the trainer's process, on the same cores.

Ours: `tokenfeed ingest --bundle 64`, Apache Kafka, one worker and the loader, all at once; all that is written is in the
broker's log and can be audited and resumed. Theirs: Hugging Face `datasets`, streaming, tokenized and packed in its map,
in the trainer's process. Tokens a second from 20 % of the data on.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import orjson

from benchmarks.corpus import documents, token_ends
from benchmarks.programs import apache_kafka, feed_settings, peers_python
from benchmarks.report import Contenders, Report, alternate
from tests.brokers import Broker
from tests.service import ROOT, Service
from tokenfeed.settings import Settings
from tokenfeed.tokenizing import load_tokenizer
from tokenfeed.torchless import hide_torch

_DOCUMENTS: Final = 200_000
_FEWER: Final = 8_000
_BUNDLE: Final = 64


class Bench:
    """The files, and what is run on them."""

    def __init__(self, broker: Broker, folder: Path) -> None:
        hide_torch()
        self.broker, self.folder = broker, folder
        tokenizer = load_tokenizer(Settings.model_fields["tokenizer"].default)
        self.tokens: dict[int, int] = {}
        texts = documents(_DOCUMENTS)
        totals = token_ends(tokenizer, texts)
        for count in (_DOCUMENTS, _FEWER):
            lines = [orjson.dumps({"text": text.decode()}) + b"\n" for text in texts[:count]]
            (folder / f"{count}.jsonl").write_bytes(b"".join(lines))
            self.tokens[count] = int(totals[count])

    def ours(self) -> Mapping[str, float]:
        """One run of everything of ours."""
        folder = Path(tempfile.mkdtemp(dir=self.folder))
        service = Service(self.broker.bootstrap, folder, feed_settings())
        environment = service.environment()
        expected = self.tokens[_DOCUMENTS]
        try:
            service.start_worker().wait_for_log("Waiting for agents to start")
            read = [sys.executable, "-m", "benchmarks.feed_loader", str(expected), "ids"]
            loader = subprocess.Popen(read, cwd=ROOT, env=environment, stdout=subprocess.PIPE)
            assert loader.stdout is not None and b"reading" in loader.stdout.readline()  # nothing is made before it reads
            send = [sys.executable, "-m", "tokenfeed", "ingest", "--bundle", str(_BUNDLE), "--seal"]
            subprocess.run(
                [*send, str(self.folder / f"{_DOCUMENTS}.jsonl")],
                cwd=ROOT,
                env=environment,
                check=True,
                capture_output=True,
            )
            out, _ = loader.communicate(timeout=180)
            report = service.audit()
            assert report.ok, report
            assert sum(stream.tokens for stream in report.streams) == expected
        finally:
            service.close()
        return self._figures(orjson.loads(out.splitlines()[-1]), _DOCUMENTS)

    def hub(self, engine: str, count: int) -> Mapping[str, float]:
        """One run of Hugging Face's."""
        script = str(Path(__file__).parent / "peers" / "hub.py")
        command = [peers_python(), script, str(self.folder / f"{count}.jsonl"), engine, str(self.tokens[count])]
        done = subprocess.run(command, cwd=self.folder, capture_output=True, text=True, check=True)
        return self._figures(orjson.loads(done.stdout.splitlines()[-1]), count)

    def _figures(self, found: Any, count: int) -> dict[str, float]:
        assert found["tokens"] > 0.97 * self.tokens[count], found
        return {"documents/s": found["rate"] * count / self.tokens[count], "Mtokens/s": found["rate"] / 1e6}


def measure(runs: int) -> Report:
    """Documents and tokens a second."""
    report = Report("endtoend")
    with apache_kafka() as (broker, folder):
        bench = Bench(broker, folder)
        contenders: Contenders = {
            "tokenfeed": bench.ours,
            "Hugging Face streaming, tokenizers": partial(bench.hub, "tokenizers", _FEWER),
            "Hugging Face streaming, gigatoken": partial(bench.hub, "gigatoken", _DOCUMENTS),
        }
        alternate(report, runs, contenders)
    rate = "documents/s"
    report.compare("endtoend.vs_hf_streaming", "tokenfeed", "Hugging Face streaming, tokenizers", rate)
    report.compare("endtoend.vs_hf_streaming_gigatoken", "tokenfeed", "Hugging Face streaming, gigatoken", rate)
    return report
