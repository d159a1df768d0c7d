"""A feed's logs, as an audit reads them."""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf
from typing import IO, Final

from tokenfeed.audit.window import Origin
from tokenfeed.documents import ORIGIN_HEADER, RawRecord, content_type_of
from tokenfeed.ledger import Cut
from tokenfeed.plan import Plan
from tokenfeed.tapes import Entry

_ORIGIN: Final = re.compile(r"(?P<topic>.+)/(?P<stream>\d+)/(?P<offset>\d+)/(?P<index>\d+)")
_DIGEST_BYTES: Final = 16


@dataclass(frozen=True, slots=True)
class Log:
    """A partition: the first offset that is left of it, and its messages."""

    start: int
    entries: Iterator[Entry]


@dataclass(frozen=True, slots=True)
class Logs:
    """A feed's logs: raw ones by source and stream, ledger and dead letters by stream, batches by slot."""

    raw: Sequence[Sequence[Log]]
    ledger: Sequence[Log]
    dead: Sequence[Log]
    batches: Sequence[Log]


class RawRecords:
    """The raw records of one source, taken window by window."""

    def __init__(self, source: int, log: Log) -> None:
        self._source = source
        self._log = log
        self._ahead: RawRecord | None = None

    def take(self, start: int, end: int) -> tuple[list[RawRecord], bool]:
        """The records [start, end), and whether the log still has all of them. Take those below `start` before."""
        return list(self.rest(end)), start >= self._log.start or start == end

    def skip(self, end: int) -> None:
        """Leave out the records before `end`."""
        for _ in self.rest(end):
            pass

    def rest(self, end: float = inf) -> Iterator[RawRecord]:
        """What has not been taken, up to before `end`."""
        while (record := self._peek()) is not None and record.offset < end:
            self._ahead = None
            yield record

    def _peek(self) -> RawRecord | None:
        if self._ahead is None and (entry := next(self._log.entries, None)) is not None:
            self._ahead = RawRecord(self._source, entry.offset, entry.value, content_type_of(entry.headers))
        return self._ahead


class DeadLetters:
    """The dead letters of a stream, taken window by window.

    Letters of a window come before those of the next, which is cut only after they were acknowledged; what comes later
    is a repeat.
    """

    def __init__(self, plan: Plan, stream: int, log: Log) -> None:
        self._plan = plan
        self._stream = stream
        self._log = log
        self._whole = log.start == 0
        self._ahead: Origin | None = None

    def take(self, cut: Cut) -> set[Origin] | None:
        """Origins in a cut's ranges; None while retention may have removed them."""
        found: set[Origin] = set()
        while (origin := self._peek()) is not None:
            start, end = cut.ranges[origin.source]
            if origin.offset >= end:
                break
            self._ahead = None
            if origin.offset >= start:
                found.add(origin)
        if found or self._ahead is not None or self._whole:
            self._whole = True
            return found
        return None

    def _peek(self) -> Origin | None:
        while self._ahead is None and (entry := next(self._log.entries, None)) is not None:
            self._ahead = self._origin(entry)
        return self._ahead

    def _origin(self, entry: Entry) -> Origin | None:
        """None for a letter that is not of this stream."""
        name = dict(entry.headers).get(ORIGIN_HEADER) or b""
        match = _ORIGIN.fullmatch(name.decode("utf-8", "replace"))
        if match is None or match["topic"] not in self._plan.sources or int(match["stream"]) != self._stream:
            return None
        return Origin(self._plan.sources.index(match["topic"]), int(match["offset"]), int(match["index"]))


class Digests:
    """A digest for every batch number, on disk."""

    def __init__(self) -> None:
        self._file: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed by close

    def agree(self, number: int, digest: bytes) -> bool:
        """Whether this is the first digest of the number, or equal to the first."""
        at = number * _DIGEST_BYTES
        known = os.pread(self._file.fileno(), _DIGEST_BYTES, at)
        if known.strip(b"\0"):
            return known == digest
        os.pwrite(self._file.fileno(), digest, at)
        return True

    def close(self) -> None:
        """Give the disk space back."""
        self._file.close()


def digest_of(value: bytes) -> bytes:
    return hashlib.blake2b(value, digest_size=_DIGEST_BYTES).digest()
