"""The text of the demo, and what the transformers tokenizer makes of it: the answer that the feed is compared with."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import sysconfig
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from tokenfeed.documents import TEXT
from tokenfeed.ingest.files import Item, expand, read_source
from tokenfeed.ingest.records import record_limit
from tokenfeed.settings import load_settings

_LEFT_OUT: Final = {"site-packages", "test", "tests", "__pycache__"}


def paths() -> list[Path]:
    """$CORPUS, or the source of the Python standard library, without its tests."""
    if named := os.environ.get("CORPUS"):
        return [Path(named)]
    root = Path(sysconfig.get_path("stdlib"))
    files = (file for file in sorted(root.rglob("*.py")) if not _LEFT_OUT & set(file.relative_to(root).parts))
    return [file for file in files if file.stat().st_size]


def texts(sources: list[Path]) -> Iterator[str]:
    """Every document that must reach the trainers: those that are UTF-8 text and not empty."""
    limit = record_limit(load_settings())
    for source in expand(sources):
        for item in read_source(source, limit):
            text = _text(item) if isinstance(item, Item) else None
            if text:
                yield text


def _text(item: Item) -> str | None:
    try:
        text = item.value.decode() if item.content_type == TEXT else json.loads(item.value)["text"]
    except (ValueError, KeyError, TypeError):
        return None
    return text if isinstance(text, str) else None


def digest(ids: npt.ArrayLike) -> str:
    """A document's token ids as a short hash."""
    return hashlib.blake2b(np.asarray(ids, dtype="<i4").tobytes(), digest_size=12).hexdigest()


def main() -> None:
    """Print {"tokens": ..., "documents": {digest: count}} of the corpus, by transformers alone."""
    from transformers import AutoTokenizer

    folder, *sources = sys.argv[1:]
    tokenizer = AutoTokenizer.from_pretrained(folder)
    found: Counter[str] = Counter()
    tokens = 0
    for text in texts([Path(source) for source in sources]):
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        if ids:
            ids.append(tokenizer.eos_token_id)
            found[digest(ids)] += 1
            tokens += len(ids)
    json.dump({"tokens": tokens, "documents": found}, sys.stdout)


if __name__ == "__main__":
    main()
