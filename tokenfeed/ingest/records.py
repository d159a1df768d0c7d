"""Turning documents into raw records: field names as the feed wants them, many documents a record if asked."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import orjson

from tokenfeed.documents import JSON, NDJSON
from tokenfeed.ingest.files import Item

_RECORD_OVERHEAD: Final = 512  # headers, key and Kafka's own framing


@dataclass(frozen=True, slots=True)
class Record:
    """One raw record to send, and how many documents it holds."""

    value: bytes
    content_type: str
    key: bytes | None
    documents: int


class RecordMaker:
    """Makes raw records of documents, in order.

    Args:
        text_field, id_field: names in the JSONL that is read.
        feed_text_field, feed_id_field: names that the feed expects; where they differ, documents are rewritten.
        bundle: documents a record; 1 sends each as it came.
        max_bytes: no record is larger; a bundle closes early instead.

    A document that is not UTF-8 or not JSON is sent as it came: the worker puts it into the dead letters, with its
    origin. `oversized` counts documents too large for any record, which are left out.
    """

    def __init__(
        self,
        *,
        text_field: str,
        id_field: str,
        feed_text_field: str,
        feed_id_field: str,
        bundle: int,
        max_bytes: int,
    ) -> None:
        self._renames = {old: new for old, new in ((text_field, feed_text_field), (id_field, feed_id_field)) if old != new}
        self._text_field, self._id_field = feed_text_field, feed_id_field
        self._bundle = bundle
        self._max_bytes = max_bytes - _RECORD_OVERHEAD
        self._lines: list[bytes] = []
        self._size = 0
        self.oversized = 0

    def add(self, item: Item) -> Iterator[Record]:
        """Take one document; yield the records that are complete with it."""
        value = self._renamed(item) if item.content_type == JSON and self._renames else item.value
        line = self._as_line(item, value) if self._bundle > 1 else None
        if len(line or value) > self._max_bytes:
            self.oversized += 1
        elif line is None:
            key = item.id.encode() if item.id is not None else None
            yield Record(value, item.content_type, key, 1)
        else:
            if self._size + len(line) + 1 > self._max_bytes:
                yield from self.flush()
            self._lines.append(line)
            self._size += len(line) + 1
            if len(self._lines) >= self._bundle:
                yield from self.flush()

    def flush(self) -> Iterator[Record]:
        """Yield the bundle that is not full yet."""
        if self._lines:
            yield Record(b"\n".join(self._lines), NDJSON, None, len(self._lines))
            self._lines, self._size = [], 0

    def _renamed(self, item: Item) -> bytes:
        try:
            data = orjson.loads(item.value)
        except orjson.JSONDecodeError:
            return item.value
        if not isinstance(data, dict):
            return item.value
        return orjson.dumps({self._renames.get(name, name): value for name, value in data.items()})

    def _as_line(self, item: Item, value: bytes) -> bytes | None:
        """The document as one line of a bundle; None when it must travel alone because it is not text."""
        if item.content_type == JSON:
            return value
        try:
            return orjson.dumps({self._id_field: item.id, self._text_field: value.decode("utf-8")})
        except UnicodeDecodeError:
            return None
