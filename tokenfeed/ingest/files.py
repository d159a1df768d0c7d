"""Reading documents from files: text files whole, JSONL line by line, plain, gzip or zstandard.

Bytes are passed on as they are; whether they are UTF-8 or JSON is for the worker to judge, which keeps what it cannot use
as dead letters. What cannot be read to its end becomes a `Refused`, never a shorter document.
"""

from __future__ import annotations

import gzip
import os
import sys
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final, cast

from tokenfeed.documents import JSON, TEXT
from tokenfeed.errors import SettingsError

_LINES: Final = frozenset({".jsonl", ".ndjson"})
_PACKED: Final = frozenset({".gz", ".zst"})
# What a walk through a folder takes; a file named on the command line is taken whatever its suffix.
_KINDS: Final = "txt md rst tex html xml csv json toml yaml yml ini cfg py pyi c h cc cpp hpp rs go java js ts css sh sql"
_TEXTS: Final = frozenset(f".{kind}" for kind in _KINDS.split())


@dataclass(frozen=True, slots=True)
class Source:
    """One file, or stdin for "-".

    Attributes:
        path: where it is.
        id: path below the folder that was named, or the file's name; for text files the document's id.
        size: bytes on disk, 0 for stdin.
    """

    path: Path
    id: str
    size: int = 0


@dataclass(frozen=True, slots=True)
class Item:
    """One document as it came.

    Attributes:
        value: its bytes, at most one more than the limit it was read under.
        content_type: TEXT or JSON.
        id: its id, where the file gives one.
        origin: what to call it in messages.
        read: how far in its file, in bytes on disk, the reader has come.
    """

    value: bytes
    content_type: str = TEXT
    id: str | None = None
    origin: str = "a document"
    read: int = 0


@dataclass(frozen=True, slots=True)
class Refused:
    """A document, or the rest of a file, that cannot be sent, and why."""

    message: str


def expand(paths: list[Path]) -> list[Source]:
    """The files of these paths in order, folders walked in sorted order, links to folders not followed.

    Raises:
        SettingsError: a path does not exist, or a folder holds no file of a kind we read.
    """
    return [source for path in paths for source in _sources(path)]


def _sources(path: Path) -> list[Source]:
    if str(path) == "-":
        return [Source(path, "-")]
    if path.is_dir():
        files = [file for file in sorted(path.rglob("*")) if file.is_file() and _suffix(file) in _LINES | _TEXTS]
        if not files:
            raise SettingsError(f"{path}: no text or JSONL file in this folder")
        return [Source(file, _name(file.relative_to(path)), file.stat().st_size) for file in files]
    if not path.exists():
        raise SettingsError(f"{path}: no such file or folder")
    return [Source(path, _name(Path(path.name)), path.stat().st_size)]


def read_source(source: Source, limit: int) -> Iterator[Item | Refused]:
    """Yield the documents of one file in order, holding one at a time and at most `limit` + 1 bytes of it.

    A file that cannot be read, or is damaged, yields a `Refused` where that shows.

    Raises:
        SettingsError: a .zst file, and the package `zstandard` is not installed.
    """
    try:
        if source.id == "-":
            yield from _lines("stdin", sys.stdin.buffer, sys.stdin.buffer, limit)
            return
        with source.path.open("rb") as raw:
            stream = _unpacked(source.path, raw)
            if _suffix(source.path) in _LINES:
                yield from _lines(str(source.path), stream, raw, limit)
            else:
                yield Item(stream.read(limit + 1), TEXT, source.id, str(source.path), source.size)
    except (OSError, EOFError, zlib.error) as error:
        yield Refused(f"{source.path}: cannot be read to its end: {error}")


def _lines(origin: str, stream: IO[bytes], raw: IO[bytes], limit: int) -> Iterator[Item]:
    seekable = raw.seekable()
    number = 0
    while line := stream.readline(limit + 1):
        number += 1
        rest = line
        while len(rest) > limit and not rest.endswith(b"\n"):
            rest = stream.readline(limit + 1)
        if line.strip():
            yield Item(line.rstrip(b"\r\n"), JSON, None, f"{origin} line {number}", raw.tell() if seekable else 0)


def _name(path: Path) -> str:
    return os.fsencode(path).decode("utf-8", "replace")


def _suffix(path: Path) -> str:
    """The suffix that tells the kind, without that of the compression."""
    suffix = path.suffix.lower()
    return Path(path.stem).suffix.lower() if suffix in _PACKED else suffix


def _unpacked(path: Path, raw: IO[bytes]) -> IO[bytes]:
    suffix = path.suffix.lower()
    if suffix == ".gz":
        return cast(IO[bytes], gzip.open(raw))
    if suffix == ".zst":
        try:
            from tokenfeed.ingest.zst import open_zst
        except ImportError:
            raise SettingsError(f"{path}: reading .zst needs `pip install zstandard`") from None
        return open_zst(raw)
    return raw
