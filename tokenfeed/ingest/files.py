"""Reading documents from files: text files whole, JSONL line by line, plain, gzip or zstandard."""

from __future__ import annotations

import gzip
import io
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, BinaryIO, Final, cast

from tokenfeed.documents import JSON, TEXT
from tokenfeed.errors import SettingsError

_LINES: Final = {".jsonl", ".ndjson"}
_PACKED: Final = {".gz", ".zst"}
# What a walk through a folder takes; a file named on the command line is taken whatever its suffix.
_TEXTS: Final = {
    *(
        ".txt",
        ".md",
        ".rst",
        ".py",
        ".pyi",
        ".c",
        ".h",
        ".cc",
        ".cpp",
        ".hpp",
        ".rs",
        ".go",
        ".java",
        ".js",
        ".ts",
    ),
    *(
        ".html",
        ".css",
        ".tex",
        ".toml",
        ".yaml",
        ".yml",
        ".ini",
        ".cfg",
        ".sh",
        ".sql",
        ".json",
        ".xml",
        ".csv",
    ),
}


@dataclass(frozen=True, slots=True)
class Source:
    """One file, or stdin for "-". `id` is the path as it was found, for text files the document's id."""

    path: Path
    id: str

    @property
    def size(self) -> int:
        """Bytes on disk, 0 for stdin."""
        return 0 if self.id == "-" else self.path.stat().st_size


@dataclass(frozen=True, slots=True)
class Item:
    """One document as it came: its bytes, their content type, and its id where the file gives one.

    `read` is how far in the file, in bytes on disk, the reader has come.
    """

    value: bytes
    content_type: str
    id: str | None
    read: int


def expand(paths: list[Path]) -> list[Source]:
    """The files of these paths, folders walked in sorted order.

    Raises:
        SettingsError: a path does not exist, or a folder holds no file of a kind we read.
    """
    sources: list[Source] = []
    for path in paths:
        if str(path) == "-":
            sources.append(Source(path, "-"))
        elif path.is_dir():
            found = [Source(file, str(file.relative_to(path))) for file in sorted(path.rglob("*")) if _wanted(file)]
            if not found:
                raise SettingsError(f"{path}: no text or JSONL file in this folder")
            sources += found
        elif path.is_file():
            sources.append(Source(path, path.name))
        else:
            raise SettingsError(f"{path}: no such file or folder")
    return sources


def read_source(source: Source) -> Iterator[Item]:
    """Yield the documents of one file in order, reading JSONL as it goes.

    Raises:
        OSError: the file cannot be read.
        SettingsError: a .zst file and the package `zstandard` is not installed.
    """
    if source.id == "-":
        yield from _lines(sys.stdin.buffer, sys.stdin.buffer)
        return
    with source.path.open("rb") as raw, _unpacked(source.path, raw) as stream:
        if _suffix(source.path) in _LINES:
            yield from _lines(stream, raw)
        else:
            value = stream.read()
            yield Item(value, TEXT, source.id, raw.tell())


def _lines(stream: IO[bytes], raw: IO[bytes]) -> Iterator[Item]:
    seekable = raw.seekable()
    for line in stream:
        if line.strip():
            yield Item(line.rstrip(b"\r\n"), JSON, None, raw.tell() if seekable else 0)


def _suffix(path: Path) -> str:
    return Path(path.stem).suffix if path.suffix in _PACKED else path.suffix


def _wanted(path: Path) -> bool:
    return path.is_file() and _suffix(path) in _LINES | _TEXTS


def _unpacked(path: Path, raw: IO[bytes]) -> BinaryIO:
    if path.suffix == ".gz":
        return cast(BinaryIO, gzip.open(raw))
    if path.suffix == ".zst":
        try:
            import zstandard
        except ImportError:
            raise SettingsError(f"{path}: reading .zst needs `pip install tokenfeed[ingest]`") from None
        return cast(BinaryIO, io.BufferedReader(cast(io.RawIOBase, zstandard.ZstdDecompressor().stream_reader(raw))))
    return io.BufferedReader(cast(io.RawIOBase, raw))
