"""The text of the demo, and what the transformers tokenizer makes of it: the answer that the feed is compared with."""

from __future__ import annotations

import gzip
import hashlib
import os
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import orjson
import zstandard

from tokenfeed.ingest.files import expand

_LEFT_OUT: Final = {"site-packages", "test", "tests", "__pycache__"}


def paths() -> list[Path]:
    """$CORPUS, or the source of the Python standard library, without its tests."""
    if named := os.environ.get("CORPUS"):
        return [Path(named).resolve()]
    root = Path(sysconfig.get_path("stdlib"))
    files = (file for file in sorted(root.rglob("*.py")) if not _LEFT_OUT & set(file.relative_to(root).parts))
    return [file for file in files if file.stat().st_size]


def texts(sources: list[Path]) -> Iterator[str]:
    """Every document that must reach the trainers: those that are UTF-8 text and not empty.

    Which files a folder stands for is ingest's to say; their bytes are read here anew, so that what ingest drops is missed.
    """
    for source in expand(sources):
        for text in _documents(source.path):
            if text:
                yield text


def _documents(path: Path) -> Iterator[str | None]:
    """The documents of one file, None for what is not text."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    value = _bytes(path, suffixes)
    if suffixes and suffixes[-1] in {".jsonl", ".ndjson"}:
        yield from (_field(line) for line in value.split(b"\n") if line.strip())
    else:
        yield _decoded(value)


def _bytes(path: Path, suffixes: list[str]) -> bytes:
    """The plain bytes of a file; takes the suffix of a compression off `suffixes`."""
    packing = suffixes.pop() if suffixes and suffixes[-1] in {".gz", ".zst"} else None
    if packing == ".gz":
        return gzip.decompress(path.read_bytes())
    if packing == ".zst":
        with path.open("rb") as raw:
            return zstandard.ZstdDecompressor().stream_reader(raw, read_across_frames=True).read()
    return path.read_bytes()


def _decoded(value: bytes) -> str | None:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return None


def _field(line: bytes) -> str | None:
    try:
        text = orjson.loads(line)["text"]
    except (ValueError, KeyError, TypeError):
        return None
    return text if isinstance(text, str) else None


def digest(ids: npt.ArrayLike) -> str:
    """A document's token ids as a short hash."""
    return hashlib.blake2b(np.asarray(ids, dtype="<i4").tobytes(), digest_size=12).hexdigest()


def main() -> None:
    """Print a line "TOKENS DIGEST" for each document of the corpus, by transformers alone."""
    from transformers import AutoTokenizer

    folder, *sources = sys.argv[1:]
    tokenizer = AutoTokenizer.from_pretrained(folder)
    for text in texts([Path(source) for source in sources]):
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        if ids:
            ids.append(tokenizer.eos_token_id)
            print(len(ids), digest(ids), flush=True)


if __name__ == "__main__":
    main()
