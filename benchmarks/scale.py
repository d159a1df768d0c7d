"""How the cost of a document grows with everything that a feed can have more of.

CPU time of one thread from raw records to encoded batches, and from a message to the four tensors' arrays. One setting
grows at a time, the others stay at the middle. A cost that does not grow with a setting is a flat line.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, Final

from tokenizers import Tokenizer as Trained
from tokenizers import decoders, models, pre_tokenizers, trainers

from benchmarks import core
from benchmarks.corpus import documents
from benchmarks.report import Report, alternate
from tokenfeed.batches import decode
from tokenfeed.loader.order import GlobalOrder
from tokenfeed.loader.samples import sample
from tokenfeed.settings import Settings
from tokenfeed.tokenizing import Tokenizer, load_tokenizer
from tokenfeed.torchless import hide_torch

_DOCUMENTS: Final = 4096
_MIDDLE: Final[dict[str, int]] = {"streams": 4, "slots": 4, "length": 2048, "rows": 8, "window": core.WINDOW}
_GROWING: Final[dict[str, Sequence[int]]] = {
    "documents": (2048, 4096, 8192, 16384),
    "streams": (1, 4, 16, 64),
    "slots": (1, 4, 16, 64, 256),
    "length": (256, 1024, 4096, 16384),
    "rows": (1, 8, 32, 128),
    "vocabulary": (1024, 8192, 32768, 0),
    "window": (16, 128, 1024, 4096),
}
_TOKENS: Final = 16384  # of the loader's figure: a batch of 8 rows of 2048
_TRAINING: Final = 2000  # documents that a small vocabulary is learned from


@cache
def _tokenizer(vocabulary: int) -> Tokenizer:
    """A byte-level BPE of that many tokens, learned from the corpus; 0 for DeepSeek's with 129 thousand."""
    if not vocabulary:
        return load_tokenizer(Settings.model_fields["tokenizer"].default)
    made = Trained(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary, special_tokens=["</s>"], initial_alphabet=alphabet, show_progress=False
    )
    made.train_from_iterator((text.decode() for text in documents(_TRAINING)), trainer)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "tokenizer.json")
        made.save(str(path))
        return load_tokenizer(str(path), eos="none")


def _cost(**changed: int) -> Mapping[str, float]:
    """Microseconds of CPU for a document and for 16k tokens of the loader."""
    size = {**_MIDDLE, **changed}
    tokenizer = _tokenizer(size.get("vocabulary", 0))
    settings = Settings(
        raw_partitions=size["streams"],
        slots=size["slots"],
        sequence_length=size["length"],
        batch_size=size["rows"],
        executor_threads=1,
        eos="append" if tokenizer.eos_id is not None else "none",
    )
    values = documents(max(_GROWING["documents"]))[: size.get("documents", _DOCUMENTS)]
    messages: list[bytes] = []
    _, cpu, tokens, _ = core.run(settings, tokenizer, values, size["window"], messages.append)
    order = GlobalOrder(settings.raw_partitions, size["slots"])
    for stream in range(settings.raw_partitions):
        order.stream_has(stream, len(messages))
    started = time.process_time()
    for number, message in enumerate(messages):
        order.locate(number)
        sample(decode(message))
    loading = time.process_time() - started
    return {"CPU us/document": cpu / len(values) * 1e6, "loader CPU us/16k tokens": loading / tokens * _TOKENS * 1e6}


def measure(runs: int) -> Report:
    """Cost along each axis, and how much more the most costly point of it takes than the least costly."""
    hide_torch()
    report = Report("scale")
    contenders: dict[str, Any] = {}
    for name, values in _GROWING.items():
        for value in values:
            label = "129 thousand (DeepSeek)" if name == "vocabulary" and not value else f"{value:,}"
            contenders[f"{name}: {label}"] = partial(_cost, **{name: value})
    _cost(documents=max(_GROWING["documents"]))
    for vocabulary in _GROWING["vocabulary"]:
        _cost(vocabulary=vocabulary)
    alternate(report, runs, contenders)
    for name in _GROWING:
        costs = [report.median(point, "CPU us/document") for point in contenders if point.startswith(f"{name}:")]
        report.ratios[f"scale.{name}"] = max(costs) / min(costs)
    return report
