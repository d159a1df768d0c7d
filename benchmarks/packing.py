"""Fill, truncation and time of our packer against TRL's, on the same documents.

One window of 20,000 documents: the lengths of the corpus in tokens, and a log-normal distribution with a mean of 800. The
time is that from token ids in a row to rows of ids. Fill with carry is that of all batches of 100,000 documents of the
corpus, in windows of 1024 documents of two streams, the padding at the end of each stream included.
"""

from __future__ import annotations

import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
import orjson

from benchmarks import core
from benchmarks.corpus import documents
from benchmarks.programs import peers_python
from benchmarks.report import Report, alternate
from tokenfeed.batches import decode
from tokenfeed.packing import Ints, pack, splits
from tokenfeed.settings import Settings
from tokenfeed.tokenizing import load_tokenizer
from tokenfeed.torchless import hide_torch

_DOCUMENTS: Final = 20_000
_STREAMED: Final = 100_000
_LENGTH: Final = 2048
_PEER: Final = Path(__file__).parent / "peers" / "trl_packing.py"


def ours(lengths: Ints) -> Mapping[str, float]:
    """Lay out and gather the ids."""
    ids = np.arange(int(lengths.sum()), dtype=np.int32)
    started = time.perf_counter()
    layout = pack(lengths, _LENGTH, "best_fit")
    first = (splits(lengths)[layout.document] + layout.first).tolist()
    view = ids.data
    parts = [view[start : start + length] for start, length in zip(first, layout.length.tolist(), strict=True)]
    b"".join(parts)
    return _figures(time.perf_counter() - started, layout.rows, int(layout.length.sum()), lengths)


def trl(folder: Path, name: str, strategy: str, lengths: Ints) -> Mapping[str, float]:
    """TRL's `pack_dataset`."""
    command = [peers_python(), str(_PEER), str(folder / f"{name}.npy"), str(_LENGTH), strategy]
    found = orjson.loads(subprocess.run(command, capture_output=True, check=True).stdout.splitlines()[-1])
    return _figures(found["seconds"], found["rows"], found["tokens"], lengths)


def first_fit(lengths: Ints) -> Mapping[str, float]:
    """Each document, or piece of L tokens, into the first row that has room for it, in the order given."""
    started = time.perf_counter()
    free = np.zeros(len(lengths) * 2, dtype=np.int64)
    rows = 0
    for length in lengths.tolist():
        for piece in (*([_LENGTH] * (length // _LENGTH)), length % _LENGTH):
            if piece:
                fitting = np.flatnonzero(free[:rows] >= piece)
                row = int(fitting[0]) if fitting.size else rows
                if row == rows:
                    free[row] = _LENGTH
                    rows += 1
                free[row] -= piece
    return _figures(time.perf_counter() - started, rows, int(lengths.sum()), lengths)


def _figures(seconds: float, rows: int, tokens: int, lengths: Ints) -> dict[str, float]:
    return {
        "ms": seconds * 1000,
        "fill": tokens / (rows * _LENGTH),
        "tokens dropped %": 100 * (1 - tokens / int(lengths.sum())),
    }


def measure(runs: int) -> Report:
    """Milliseconds, fill and what is dropped."""
    hide_torch()
    settings = Settings(raw_partitions=2, slots=2, sequence_length=_LENGTH)
    tokenizer = load_tokenizer(settings.tokenizer)
    values = documents(_DOCUMENTS)
    real = np.diff(tokenizer.encode_batch([value.decode() for value in values]).offsets)
    sigma = 1.0
    drawn = np.random.default_rng(0).lognormal(np.log(800) - sigma**2 / 2, sigma, _DOCUMENTS)
    report = Report("packing")
    with tempfile.TemporaryDirectory() as temporary:
        contenders: dict[str, Callable[[], Mapping[str, float]]] = {}
        for name, lengths in (("corpus", real), ("log-normal", np.maximum(1, drawn).astype(np.int64))):
            np.save(Path(temporary, f"{name}.npy"), lengths)
            contenders |= {
                f"{name}: tokenfeed": partial(ours, lengths),
                f"{name}: TRL bfd": partial(trl, Path(temporary), name, "bfd", lengths),
                f"{name}: TRL bfd_split": partial(trl, Path(temporary), name, "bfd_split", lengths),
                f"{name}: first fit": partial(first_fit, lengths),
            }
        alternate(report, runs, contenders)
    report.compare("packing.vs_trl_time", "corpus: TRL bfd_split", "corpus: tokenfeed", "ms")
    held: dict[tuple[int, int], list[int]] = {}  # tokens of the batches of each window

    def count(message: bytes) -> None:
        batch = decode(message)
        held.setdefault((batch.stream, batch.window), []).append(batch.tokens)

    core.run(settings, tokenizer, documents(_STREAMED), take=count)
    last = {stream: max(window for of, window in held if of == stream) for stream, _ in held}
    running = [tokens for (stream, window), found in held.items() if window < last[stream] for tokens in found]
    everything = [tokens for found in held.values() for tokens in found]
    cells = settings.batch_size * _LENGTH
    report.ratios["packing.fill"] = sum(running) / (len(running) * cells)
    sealed = sum(everything) / (len(everything) * cells)
    report.notes.append(
        f"tokenfeed with carry: {len(everything)} batches, windows of {core.WINDOW} documents; no token dropped. The last "
        f"window of each stream, which leaves nothing to a next one, is not in packing.fill; with it {sealed:.4f}"
    )
    return report
