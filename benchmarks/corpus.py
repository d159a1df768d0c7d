"""The text of every benchmark: the source of Python's standard library, cut into documents of about 2 kB."""

from __future__ import annotations

import random
import sysconfig
from functools import cache
from pathlib import Path
from typing import Final

import numpy as np
import orjson

from tokenfeed.packing import Ints, splits
from tokenfeed.tokenizing import Tokenizer

# ln of the median length in bytes, and its spread: about those of web text, scaled to a mean of 2.2 kB.
_MU: Final = 7.3
_SIGMA: Final = 0.9
_SHORTEST: Final = 100
_LONGEST: Final = 20_000
_CALL: Final = 4096


@cache
def documents(count: int, seed: int = 0) -> list[bytes]:
    """UTF-8 documents, lengths log-normal; the text is begun again, at other places, as often as it takes."""
    files = sorted(Path(sysconfig.get_path("stdlib")).rglob("*.py"))
    texts = (file.read_bytes() for file in files if "site-packages" not in file.parts)
    text = b"".join(texts).decode("utf-8", "replace")
    draw = random.Random(seed)
    found: list[bytes] = []
    at = 0
    while len(found) < count:
        length = int(min(_LONGEST, max(_SHORTEST, draw.lognormvariate(_MU, _SIGMA))))
        if at + length > len(text):
            at = draw.randrange(length)
        document = text[at : at + length]
        if not document.lstrip().startswith("{"):  # a record that does is JSON
            found.append(document.encode())
        at += length
    return found


def token_ends(tokenizer: Tokenizer, texts: list[bytes]) -> Ints:
    """Tokens of the first n documents, int64 [N + 1]."""
    lengths = [
        np.diff(tokenizer.encode_batch([text.decode() for text in texts[start : start + _CALL]]).offsets)
        for start in range(0, len(texts), _CALL)
    ]
    return splits(np.concatenate(lengths))


def bundles(texts: list[bytes], size: int) -> list[bytes]:
    """The same documents as NDJSON records of `size` documents."""
    lines = [orjson.dumps({"text": text.decode()}) for text in texts]
    return [b"\n".join(lines[start : start + size]) for start in range(0, len(lines), size)]
