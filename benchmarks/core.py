"""Raw records to batches in this process, against the tokenizer alone and against copying the rows.

Windows of 1024 documents of four streams, as the worker makes them: two threads, so that one tokenizes while the other
packs. All contenders have seen the corpus once before.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final

import numpy as np

from benchmarks.corpus import documents
from benchmarks.report import Report, alternate
from tokenfeed.batches import encode
from tokenfeed.content import window_content
from tokenfeed.documents import RawRecord, document_count
from tokenfeed.ledger import Cut, Piece
from tokenfeed.plan import Plan
from tokenfeed.planning import plan_of
from tokenfeed.settings import Settings
from tokenfeed.tokenizing import Tokenizer, load_tokenizer
from tokenfeed.torchless import hide_torch

WINDOW: Final = 1024
_DOCUMENTS: Final = 14_000
_STREAMS: Final = 4


def measure(runs: int) -> Report:
    """Documents a second of each contender."""
    hide_torch()
    sys.setswitchinterval(0.0005)  # as a worker
    settings = Settings(raw_partitions=_STREAMS, slots=_STREAMS)
    tokenizer = load_tokenizer(settings.tokenizer)
    plan = plan_of(settings, tokenizer)
    values = documents(_DOCUMENTS)
    texts = [value.decode() for value in values]
    expected = len(tokenizer.encode_batch(texts).ids)
    rust = load_tokenizer(settings.tokenizer, engine="tokenizers")
    few = texts[: len(texts) // 10]
    rows = np.zeros(expected, dtype=plan.token_dtype)

    def timed(work: Callable[[], object], count: int) -> dict[str, float]:
        started, used = time.perf_counter(), time.process_time()
        work()
        seconds, cpu = time.perf_counter() - started, time.process_time() - used
        return {
            "documents/s": count / seconds,
            "Mtokens/s": expected * count / len(texts) / seconds / 1e6,
            "CPU us/document": cpu / count * 1e6,
        }

    def ours() -> None:
        _, _, made, _ = run(settings, tokenizer, values)
        assert made == expected, f"{made} tokens in batches, {expected} in the documents"

    engine = tokenizer._engine._tokenizer  # type: ignore[attr-defined]  # by itself, on all cores

    def in_calls(size: int) -> None:
        for start in range(0, len(texts), size):
            engine.encode_batch(texts[start : start + size])

    ours()
    report = Report("core")
    alternate(
        report,
        runs,
        {
            "tokenfeed": lambda: timed(ours, len(texts)),
            "gigatoken, 1024 documents a call": lambda: timed(lambda: in_calls(WINDOW), len(texts)),
            "gigatoken, all in one call": lambda: timed(lambda: in_calls(len(texts)), len(texts)),
            "tokenizers.encode_batch_fast": lambda: timed(lambda: rust._engine.encode(few), len(few)),
            "memcpy of the rows": lambda: timed(rows.copy, len(texts)),
        },
    )
    best = report.best(["gigatoken, 1024 documents a call", "gigatoken, all in one call"], "documents/s")
    report.compare("core.vs_gigatoken", "tokenfeed", best, "documents/s")
    report.compare("core.vs_tokenizers_core", "tokenfeed", "tokenizers.encode_batch_fast", "documents/s")
    report.notes.append(
        f"{len(texts)} documents of {sum(map(len, values)) / len(values):.0f} bytes; every token is in a batch"
    )
    return report


def run(
    settings: Settings,
    tokenizer: Tokenizer,
    values: list[bytes],
    window: int = WINDOW,
    take: Callable[[bytes], object] = len,
) -> tuple[float, float, int, int]:
    """Make batches of all records as a worker does, and `take` their messages.

    Returns wall seconds, CPU seconds, tokens, batches.
    """
    plan = plan_of(settings, tokenizer)
    count = plan.streams
    streams = [
        [RawRecord(0, offset, value) for offset, value in enumerate(values[stream::count])] for stream in range(count)
    ]
    started, used = time.perf_counter(), time.process_time()
    with ThreadPoolExecutor(settings.executor_threads) as threads:
        emit = partial(_emit, plan, tokenizer, window, take)
        made = list(threads.map(emit, range(count), streams))
    tokens, batches = (sum(figures) for figures in zip(*made, strict=True))
    return time.perf_counter() - started, time.process_time() - used, tokens, batches


def _emit(
    plan: Plan,
    tokenizer: Tokenizer,
    documents_a_window: int,
    take: Callable[[bytes], object],
    stream: int,
    records: list[RawRecord],
) -> tuple[int, int]:
    """Encode all batches of a stream; the tokens in them, and how many there are."""
    carry: tuple[Piece, ...] = ()
    first = tokens = 0
    size = max(1, documents_a_window // document_count(records[0], plan.record_format))
    for window, start in enumerate(range(0, len(records), size)):
        end = min(start + size, len(records))
        cut = Cut(
            plan=plan.id,
            stream=stream,
            window=window,
            ranges=((start, end),),
            first=first,
            previous=-1,
            reason="documents" if end < len(records) else "seal",
            worker="benchmark",
            carry=carry,
        )
        held = [records[offset] for offset in sorted({piece.offset for piece in carry})]
        content = window_content(plan, tokenizer, cut, held + records[start:end])
        for batch in content.batches:
            take(encode(batch))
            tokens += batch.tokens
        first += len(content.batches)
        carry = content.carry
    return tokens, first
