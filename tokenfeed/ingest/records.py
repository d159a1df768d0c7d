"""Turning documents into raw records: field names as the feed wants them, many documents a record if asked."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import orjson

from tokenfeed.documents import JSON, NDJSON, TEXT
from tokenfeed.errors import SettingsError
from tokenfeed.ingest.files import Item, Refused
from tokenfeed.plan import RecordFormat
from tokenfeed.settings import Settings

_RECORD_OVERHEAD: Final = 512  # headers and Kafka's own framing
_READABLE: Final[dict[RecordFormat, set[str]]] = {
    "auto": {TEXT, JSON, NDJSON},
    "text": {TEXT},
    "json": {JSON},
    "ndjson": {JSON, NDJSON},
}


def record_limit(settings: Settings) -> int:
    """Bytes that the key and value of a raw record may take together."""
    return settings.max_message_bytes - _RECORD_OVERHEAD


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
        settings: field names, record format and size limit of the feed.
        text_field, id_field: names in the JSON that is read; where they differ from the feed's, documents are rewritten.
        bundle: documents a record; 1 sends each as it came. A bundle closes early where it would grow too large.

    A document that is not UTF-8 or not JSON is sent as it came: the worker puts it into the dead letters, with its origin.

    Raises:
        SettingsError: on the first record that the feed, by its record format, would misread.
    """

    def __init__(
        self, settings: Settings, text_field: str | None = None, id_field: str | None = None, bundle: int = 1
    ) -> None:
        self._settings = settings
        names = ((text_field, settings.text_field), (id_field, settings.id_field))
        self._renames = {old: new for old, new in names if old is not None and old != new}
        self._text_field = text_field or settings.text_field
        self._bundle = bundle
        self._limit = record_limit(settings)
        self._lines: list[bytes] = []
        self._size = 0

    def make(self, items: Iterable[Item | Refused]) -> Iterator[Record | Refused]:
        """Yield the records of these documents; what cannot be sent passes through or is made a `Refused`."""
        for item in items:
            if isinstance(item, Refused):
                yield item
            else:
                yield from self._add(item)
        yield from self._close()

    def _add(self, item: Item) -> Iterator[Record | Refused]:
        try:
            value = self._renamed(item.value) if item.content_type == JSON and self._renames else item.value
        except KeyError as error:
            yield Refused(f"{item.origin}: has no field {error} (--text-field names it)")
            return
        line = self._as_line(item, value) if self._bundle > 1 else None
        key = os.fsencode(item.id) if item.id is not None and line is None else None
        if len(line or value) + len(key or b"") > self._limit:
            yield Refused(
                f"{item.origin}: too large, the limit is {self._limit} bytes (TOKENFEED_MAX_MESSAGE_BYTES="
                f"{self._settings.max_message_bytes} less {_RECORD_OVERHEAD} for headers)"
            )
        elif line is None:
            yield self._record(value, item.content_type, key, 1)
        else:
            if self._size + len(line) > self._limit:
                yield from self._close()
            self._lines.append(line)
            self._size += len(line) + 1
            if len(self._lines) == self._bundle:
                yield from self._close()

    def _close(self) -> Iterator[Record]:
        if self._lines:
            yield self._record(b"\n".join(self._lines), NDJSON, None, len(self._lines))
            self._lines, self._size = [], 0

    def _record(self, value: bytes, content_type: str, key: bytes | None, documents: int) -> Record:
        if content_type not in _READABLE[self._settings.record_format]:
            raise SettingsError(
                f"TOKENFEED_RECORD_FORMAT={self._settings.record_format} would misread a record of {content_type}; "
                "set it to auto, in a new feed, or ingest another kind of file or --bundle"
            )
        return Record(value, content_type, key, documents)

    def _renamed(self, value: bytes) -> bytes:
        """The object under the feed's names; what stood under these before gives way.

        Raises:
            KeyError: it has no text.
        """
        try:
            data = orjson.loads(value)
            if not isinstance(data, dict):
                return value
            if self._text_field not in data:
                raise KeyError(self._text_field)
            renamed: dict[str, Any] = {new: data.pop(old) for old, new in self._renames.items() if old in data}
            return orjson.dumps(data | renamed)
        except (orjson.JSONDecodeError, orjson.JSONEncodeError):
            return value

    def _as_line(self, item: Item, value: bytes) -> bytes | None:
        """The document as one line of a bundle; None when it must travel alone because it is not text or not one line."""
        if item.content_type == JSON:
            return None if b"\n" in value else value
        try:
            text = value.decode("utf-8")
        except UnicodeDecodeError:
            return None
        return orjson.dumps({self._settings.id_field: item.id, self._settings.text_field: text})
