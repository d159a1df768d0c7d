"""Training one model from the loader, from a memory-mapped file and from tensors that are on the device already.

On a GPU: a Llama of about 200 million parameters in bfloat16, batches of 8 rows of 2048, while one worker tokenizes the
feed on the same machine. Without one: a model of a few layers that trains as fast as a CPU does, so that the benchmark
itself is tried out. Busy is the share of the time in which the device computes (CUDA events around each step; on a CPU
the time in the step), waiting is the share in which the trainer waits for `next`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks.corpus import documents
from benchmarks.programs import apache_kafka, feed_settings, fill
from benchmarks.report import Report, alternate
from tests.brokers import Broker
from tests.service import Service
from tokenfeed.loader import Feed, FeedReader
from tokenfeed.loader.torch import FeedDataset, FeedLoader

_VOCABULARY: Final = 129_280
_WARM_STEPS: Final = 5


@dataclass(frozen=True, slots=True)
class _Size:
    rows: int
    length: int
    hidden: int
    layers: int
    steps: int
    documents: int


_ON_GPU: Final = _Size(rows=8, length=2048, hidden=768, layers=12, steps=200, documents=200_000)
_ON_CPU: Final = _Size(rows=1, length=128, hidden=32, layers=2, steps=40, documents=4_000)


class Bench:
    """The model, and where its batches come from."""

    def __init__(self, broker: Broker, folder: Path) -> None:
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.size = _ON_GPU if self.device.type == "cuda" else _ON_CPU
        fill(broker, "raw", documents(self.size.documents))
        sizes = {"sequence_length": self.size.length, "batch_size": self.size.rows}
        self.service = Service(broker.bootstrap, folder, feed_settings(raw_topics=("raw",), **sizes))
        self.worker = self.service.start_worker()
        self.worker.wait_for_log("plan ")
        self.feed = Feed.of(self.service.settings, plan_id=self.service.plan.id)
        self.rows = folder / "rows.npy"
        with FeedReader(self.feed) as reader:
            taken = [next(reader).batch for _ in range(min(self.size.steps, 100))]
        np.save(self.rows, np.concatenate([batch.input_ids for batch in taken if batch is not None]))

    def model(self) -> LlamaForCausalLM:
        """A fresh one; equal for all contenders."""
        torch.manual_seed(0)
        config = LlamaConfig(
            vocab_size=_VOCABULARY,
            hidden_size=self.size.hidden,
            intermediate_size=4 * self.size.hidden,
            num_hidden_layers=self.size.layers,
            num_attention_heads=max(1, self.size.hidden // 64),
            max_position_embeddings=self.size.length,
        )
        dtype = torch.bfloat16 if self.device.type == "cuda" else torch.float32
        model: LlamaForCausalLM = LlamaForCausalLM(config)  # type: ignore[no-untyped-call]
        return model.to(device=self.device, dtype=dtype)  # type: ignore[call-arg,no-any-return]

    def loaded(self) -> Iterator[torch.Tensor]:
        """From the feed, while the worker fills it."""
        for sample in FeedLoader(FeedDataset(self.feed, fields=("input_ids",), slot_timeout=120)):
            yield sample["input_ids"].to(self.device, non_blocking=True)

    def mapped(self) -> Iterator[torch.Tensor]:
        """From a file, as nanoGPT does it."""
        rows = np.load(self.rows, mmap_mode="r")
        draw = np.random.default_rng(0)
        while True:
            chosen = draw.integers(len(rows) - self.size.rows + 1)
            batch = torch.from_numpy(rows[chosen : chosen + self.size.rows].astype(np.int64))
            yield batch.to(self.device, non_blocking=True)

    def waiting(self) -> Iterator[torch.Tensor]:
        """From the device's own memory: the limit."""
        shape = (self.size.rows, self.size.length)
        batches = [torch.randint(_VOCABULARY, shape, device=self.device) for _ in range(8)]
        while True:
            yield from batches

    def train(self, batches: Iterator[torch.Tensor]) -> Mapping[str, float]:
        """Steps of AdamW; tokens a second, and shares of the time."""
        model = self.model()
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
        clock = _Clock(self.device)
        waited = 0.0
        started = 0.0
        for step in range(_WARM_STEPS + self.size.steps):
            if step == _WARM_STEPS:
                clock.restart()
                waited, started = 0.0, time.perf_counter()
            asked = time.perf_counter()
            ids = next(batches)
            waited += time.perf_counter() - asked
            with clock:
                loss = model(input_ids=ids, labels=ids).loss
                loss.backward()
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
        busy = clock.seconds()
        seconds = time.perf_counter() - started
        assert torch.isfinite(loss), "the model diverged"
        tokens = self.size.steps * self.size.rows * self.size.length
        return {
            "tokens/s": tokens / seconds,
            "busy %": 100 * busy / seconds,
            "waiting %": 100 * waited / seconds,
            "loss": float(loss.detach()),
        }


class _Clock:
    """Adds up the device's time inside `with`."""

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self.restart()

    def restart(self) -> None:
        self._spans: list[tuple[Any, Any]] = []

    def _now(self) -> Any:
        if not self._cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def __enter__(self) -> None:
        self._begun = self._now()

    def __exit__(self, *_: object) -> None:
        self._spans.append((self._begun, self._now()))

    def seconds(self) -> float:
        """Waits until the device has done all."""
        if not self._cuda:
            return float(sum(end - start for start, end in self._spans))
        torch.cuda.synchronize()
        return float(sum(start.elapsed_time(end) for start, end in self._spans)) / 1000


def measure(runs: int) -> Report:
    """Tokens a second, and how busy the device is."""
    report = Report("gpu")
    with apache_kafka() as (broker, folder):
        bench = Bench(broker, folder)
        try:
            contenders = {
                "tokenfeed": partial(_train, bench, "loaded"),
                "memory-mapped file": partial(_train, bench, "mapped"),
                "tensors on the device": partial(_train, bench, "waiting"),
            }
            alternate(report, runs, contenders)
        finally:
            bench.service.close()
    report.compare("gpu.vs_on_device", "tokenfeed", "tensors on the device", "tokens/s")
    report.compare("gpu.vs_memmap", "tokenfeed", "memory-mapped file", "tokens/s")
    parameters = sum(parameter.numel() for parameter in bench.model().parameters())
    name = torch.cuda.get_device_name() if bench.device.type == "cuda" else "no GPU: the CPU"
    report.notes.append(f"{name}, {parameters / 1e6:.0f} million parameters, {bench.size.rows} rows of {bench.size.length}")
    return report


def _train(bench: Bench, source: str) -> Mapping[str, float]:
    return bench.train(getattr(bench, source)())
