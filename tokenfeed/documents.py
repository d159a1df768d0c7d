"""From the bytes of a raw record to its documents.

A raw record holds one document as UTF-8 text, one as a JSON object, or many as NDJSON (a bundle). The content-type
header says which; without one we look: a value that starts with `{` is JSON, and a bundle where two objects meet at
a line break. Nothing is guessed further and nothing is repaired: what cannot be read becomes a `Rejection` (a dead
letter), what holds no text is counted as filtered. Every document of every record ends in exactly one of the three.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple

import orjson

from tokenfeed.errors import RecordError
from tokenfeed.plan import RecordFormat

CONTENT_TYPE_HEADER: Final = "content-type"
TEXT: Final = "text/plain"
JSON: Final = "application/json"
NDJSON: Final = "application/x-ndjson"
SEAL: Final = "application/vnd.tokenfeed.seal"

# Headers of a dead letter.
ORIGIN_HEADER: Final = "tokenfeed-origin"
REASON_HEADER: Final = "tokenfeed-reason"
ERROR_HEADER: Final = "tokenfeed-error"
TRUNCATED_HEADER: Final = "tokenfeed-truncated"

_NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})

Headers = Mapping[str, Any] | Iterable[tuple[str, Any]] | None
"""Headers of a message as the Kafka clients give them: values are bytes or None."""

RejectReason = Literal["invalid_utf8", "invalid_json", "not_an_object", "missing_text", "wrong_type", "too_many_faults"]
FilterReason = Literal["tombstone", "empty"]

_FORMATS: Final[dict[str, RecordFormat]] = {
    TEXT: "text",
    JSON: "json",
    NDJSON: "ndjson",
    "application/ndjson": "ndjson",
    "application/jsonl": "ndjson",
    "application/x-jsonlines": "ndjson",
}
RECORD_BYTES: Final = 256  # of the objects around a value
# Each rejection costs hundreds of bytes: a record of ten million broken lines must not become gigabytes.
_MOST_REJECTIONS: Final = 1000
# A line break cannot stand inside a JSON string, so "} newline {" separates two top-level objects.
_OBJECTS_MEET: Final = re.compile(rb"\}[ \t\r]*\n\s*\{")
_OBJECT_MAY_START: Final = frozenset((b"{", b" ", b"\t", b"\r", b"\n"))
_OBJECT_STARTS: Final = re.compile(rb"[ \t\r\n]*\{").match


class RawRecord(NamedTuple):
    """One message of a raw topic, without its broker.

    Attributes:
        source: index of the raw topic in the plan's sources.
        offset: offset in its partition.
        value: the bytes, None for a tombstone.
        content_type: value of the content-type header, None without one.
    """

    source: int
    offset: int
    value: bytes | None
    content_type: str | None = None

    @property
    def is_seal(self) -> bool:
        """Whether this record ends its partition instead of holding documents."""
        return self.content_type == SEAL


@dataclass(slots=True)  # frozen would cost a microsecond a document
class Document:
    """One text, and where it stands: `index` counts the documents of its record from 0."""

    source: int
    offset: int
    index: int
    text: str
    id: str | None
    metadata: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Rejection:
    """A record (index -1) or one document of a bundle that cannot be read."""

    source: int
    offset: int
    index: int
    reason: str
    message: str
    value: bytes


@dataclass(frozen=True, slots=True)
class Filtered:
    """A document that was left out on purpose."""

    source: int
    offset: int
    index: int
    reason: FilterReason


Outcome = Document | Rejection | Filtered


def held_bytes(records: Collection[RawRecord]) -> int:
    """Bytes of memory that records take about: values and the objects around them, so that tombstones count too."""
    return sum([len(record.value) for record in records if record.value]) + len(records) * RECORD_BYTES


def content_type_of(headers: Headers) -> str | None:
    """Value of the first content-type header that has one, None without any; never raises for any bytes."""
    if not headers:
        return None
    pairs = headers.items() if isinstance(headers, Mapping) else headers or ()
    values = (value for name, value in pairs if name == CONTENT_TYPE_HEADER and value is not None)
    first = next(values, None)
    return None if first is None else bytes(first).decode("ascii", "replace")


def record_format(value: bytes, content_type: str | None, default: RecordFormat) -> RecordFormat:
    """How to read a value: by the plan's format, else its content type, else by looking. Never "auto"."""
    if default != "auto":
        return default
    if content_type is not None:
        named = _FORMATS.get(content_type.partition(";")[0].strip().lower())
        if named is not None:
            return named
    if value[:1] not in _OBJECT_MAY_START or not _OBJECT_STARTS(value):
        return "text"
    return "ndjson" if _OBJECTS_MEET.search(value) else "json"


def document_count(record: RawRecord, default: RecordFormat) -> int:
    """Documents that a record counts for when a window is cut: its lines if it is a bundle, 0 for a seal, else 1.

    Cheap and a pure function of the record, so that a window cut by count has the same end on every worker. It does
    not decode: a blank or broken line counts too, and a tombstone counts 1, so that no run of records is endless.
    """
    _, _, value, content_type = record
    if content_type == SEAL:
        return 0
    if not value or record_format(value, content_type, default) != "ndjson":
        return 1
    return value.count(b"\n") + (not value.endswith(b"\n"))


def decode(records: Iterable[RawRecord], default: RecordFormat, text_field: str, id_field: str) -> Iterator[Outcome]:
    """Yield what becomes of each document of some records, in order.

    Guarantees at least one outcome a record (a seal has none), and never raises for any bytes.
    """
    for record in records:
        source, offset, value, content_type = record
        if content_type == SEAL:
            continue
        if value is None:
            yield Filtered(source, offset, 0, "tombstone")
            continue
        form = record_format(value, content_type, default)
        if form == "ndjson":
            yield from _decode_bundle(record, value, text_field, id_field)
        else:
            yield _decode_one(record, value, 0, form, text_field, id_field)


def decode_some(
    record: RawRecord, indexes: Container[int], default: RecordFormat, text_field: str, id_field: str
) -> Iterator[Outcome]:
    """Yield what `decode` yields for some documents of a record that holds them, without parsing the others."""
    value = record.value or b""
    form = record_format(value, record.content_type, default)
    for index, (_, line) in enumerate(_lines(value) if form == "ndjson" else ((0, value),)):
        if index in indexes:
            yield _decode_one(record, line, index, "json" if form == "ndjson" else form, text_field, id_field)


def _lines(value: bytes) -> Iterator[tuple[int, bytes]]:
    """Where each line begins that is not blank, and the line. One at a time: millions of short ones would not fit."""
    start = 0
    while start < len(value):
        end = value.find(b"\n", start)
        line = value[start : end if end >= 0 else None]
        if line and not line.isspace():
            yield start, line
        start = end + 1 if end >= 0 else len(value)


def _decode_bundle(record: RawRecord, value: bytes, text_field: str, id_field: str) -> Iterator[Outcome]:
    index = rejected = 0
    for start, line in _lines(value):
        if rejected == _MOST_REJECTIONS:
            message = f"the rest of a bundle that has had {rejected} bad lines before"
            yield Rejection(record.source, record.offset, index, "too_many_faults", message, value[start:])
            return
        outcome = _decode_one(record, line, index, "json", text_field, id_field)
        rejected += isinstance(outcome, Rejection)
        yield outcome
        index += 1
    if index == 0:
        yield Filtered(record.source, record.offset, 0, "empty")


def _decode_one(record: RawRecord, value: bytes, index: int, form: RecordFormat, text_field: str, id_field: str) -> Outcome:
    try:
        if form == "text":
            text, name, metadata = _parse_text(value), None, _NOTHING
        else:
            text, name, metadata = _parse_object(value, text_field, id_field)
    except RecordError as error:
        return Rejection(record.source, record.offset, index, error.reason, str(error), value)
    if not text:
        return Filtered(record.source, record.offset, index, "empty")
    return Document(record.source, record.offset, index, text, name, metadata)


def _parse_text(value: bytes) -> str:
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError as error:
        raise RecordError("invalid_utf8", f"not UTF-8 at byte {error.start}") from None


def _parse_object(value: bytes, text_field: str, id_field: str) -> tuple[str, str | None, Mapping[str, Any]]:
    try:
        data = orjson.loads(value)
    except orjson.JSONDecodeError as error:
        raise RecordError("invalid_json", f"not JSON: line {error.lineno} column {error.colno}") from None
    if not isinstance(data, dict):
        raise RecordError("not_an_object", f"a JSON {type(data).__name__} where an object was expected")
    if text_field not in data:
        raise RecordError("missing_text", f"no field {text_field!r} (TOKENFEED_TEXT_FIELD names it)")
    text = data.pop(text_field)
    if not isinstance(text, str):
        raise RecordError("wrong_type", f"field {text_field!r} holds a {type(text).__name__}, not a string")
    name = data.pop(id_field, None)
    if name is not None and (isinstance(name, bool) or not isinstance(name, str | int)):
        raise RecordError("wrong_type", f"field {id_field!r} holds a {type(name).__name__}, not a string or integer")
    return text, None if name is None else str(name), data
