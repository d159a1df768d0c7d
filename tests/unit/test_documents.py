"""Every byte of a raw record ends as a document, a dead letter or something filtered, and none of them raises."""

from __future__ import annotations

from typing import get_args

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenfeed.documents import (
    JSON,
    NDJSON,
    SEAL,
    TEXT,
    Document,
    Filtered,
    Outcome,
    RawRecord,
    Rejection,
    RejectReason,
    content_type_of,
    decode,
    decode_some,
    document_count,
    record_format,
)
from tokenfeed.ingest.files import Item
from tokenfeed.ingest.records import Record, RecordMaker
from tokenfeed.plan import RecordFormat
from tokenfeed.settings import Settings

texts = st.text(st.characters(exclude_categories=("Cs",)))
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
)
objects = st.fixed_dictionaries({}, optional={"text": json_values, "id": json_values, "other": json_values})
lines = (objects | json_values).map(orjson.dumps) | st.binary(max_size=20) | st.just(b"")
values = st.none() | st.binary() | lines | st.lists(lines, max_size=6).map(b"\n".join)
content_types = st.sampled_from(
    [None, TEXT, JSON, NDJSON, SEAL, "application/jsonl", "Text/Plain; charset=utf-8", "x/y", ""]
)
formats = st.sampled_from(get_args(RecordFormat))


def outcomes(value: bytes | None, content_type: str | None = None, default: RecordFormat = "auto") -> list[Outcome]:
    return list(decode([RawRecord(0, 7, value, content_type)], default, "text", "id"))


def reasons(value: bytes, content_type: str | None = None) -> list[str]:
    return [getattr(outcome, "reason", "document") for outcome in outcomes(value, content_type)]


@given(values, content_types, formats)
def test_no_bytes_raise_and_none_are_lost(value: bytes | None, content_type: str | None, default: RecordFormat) -> None:
    found = outcomes(value, content_type, default)
    assert bool(found) == (content_type != SEAL)
    assert [outcome.index for outcome in found] == list(range(len(found)))
    for outcome in found:
        assert (outcome.source, outcome.offset) == (0, 7)
        if isinstance(outcome, Document):
            assert outcome.text.encode()
        elif isinstance(outcome, Rejection):
            assert outcome.reason in get_args(RejectReason)
            assert outcome.value in (value or b"")


@given(values, content_types, formats, st.sets(st.integers(0, 6)))
def test_some_documents_of_a_record_are_those_of_all(
    value: bytes | None, content_type: str | None, default: RecordFormat, indexes: set[int]
) -> None:
    held = {one.index for one in outcomes(value, content_type, default) if isinstance(one, Document)}
    some = decode_some(RawRecord(0, 7, value, content_type), indexes & held, default, "text", "id")
    assert list(some) == [one for one in outcomes(value, content_type, default) if one.index in indexes & held]


@given(values, content_types, formats)
def test_a_record_counts_for_at_least_what_it_holds(
    value: bytes | None, content_type: str | None, default: RecordFormat
) -> None:
    count = document_count(RawRecord(0, 7, value, content_type), default)
    assert count >= len(outcomes(value, content_type, default))
    assert bool(count) == (content_type != SEAL)


@given(st.lists(lines.filter(lambda line: b"\n" not in line), max_size=6))
def test_a_bundle_holds_what_its_lines_hold_blank_ones_left_out(bundle: list[bytes]) -> None:
    whole = outcomes(b"\n".join(bundle), NDJSON)
    one_by_one = [outcomes(line, JSON)[0] for line in bundle if line.strip()]
    if one_by_one:
        assert [shape(outcome) for outcome in whole] == [shape(outcome) for outcome in one_by_one]
    else:
        assert whole == [Filtered(0, 7, 0, "empty")]


def shape(outcome: Outcome) -> tuple[object, ...]:
    if isinstance(outcome, Document):
        return outcome.text, outcome.id, outcome.metadata
    return type(outcome), outcome.reason


@pytest.mark.parametrize(
    ("value", "content_type", "reason"),
    [
        (b"\xff", TEXT, "invalid_utf8"),
        (b"\xff", None, "invalid_utf8"),
        (b"{", JSON, "invalid_json"),
        (b"{", None, "invalid_json"),
        (b'{"text": "\xff"}', JSON, "invalid_json"),
        (b'{"text": "\\ud800"}', JSON, "invalid_json"),
        (b"NaN", JSON, "invalid_json"),
        (b"", JSON, "invalid_json"),
        (b"[1]", JSON, "not_an_object"),
        (b'"text"', JSON, "not_an_object"),
        (b"{}", None, "missing_text"),
        (b'{"text": 1}', None, "wrong_type"),
        (b'{"text": null}', None, "wrong_type"),
        (b'{"text": "a", "id": []}', None, "wrong_type"),
        (b'{"text": ""}', None, "empty"),
        (b"", None, "empty"),
        (b"\n \n", NDJSON, "empty"),
        (b'{"text": "a"}', None, "document"),
        (b"plain", None, "document"),
    ],
)
def test_each_fault_has_its_reason(value: bytes, content_type: str | None, reason: str) -> None:
    assert reasons(value, content_type) == [reason]


def test_a_bad_line_costs_only_itself() -> None:
    assert reasons(b'{"text": "a"}\r\n\n{"text": 1}\n{"text": "b"}\n') == ["document", "wrong_type", "document"]


def test_a_tombstone_is_filtered_and_a_seal_holds_nothing() -> None:
    assert outcomes(None) == [Filtered(0, 7, 0, "tombstone")]
    assert outcomes(None, SEAL) == outcomes(b"text", SEAL) == []


@pytest.mark.parametrize(
    ("value", "content_type", "default", "form"),
    [
        (b"{}", None, "text", "text"),
        (b"{}", NDJSON, "json", "json"),
        (b"{}", TEXT, "auto", "text"),
        (b"text", "Application/JSON; charset=utf-8", "auto", "json"),
        (b"text", "application/x-jsonlines", "auto", "ndjson"),
        (b"{}\n{}", "x/unknown", "auto", "ndjson"),
        (b" \n{\n}\n", None, "auto", "json"),
        (b'{"text": "}\\n{"}', None, "auto", "json"),
        (b"{} \r\n \n {}", None, "auto", "ndjson"),
        (b"[1]", None, "auto", "text"),
    ],
)
def test_the_plan_decides_then_the_header_then_the_look(
    value: bytes, content_type: str | None, default: RecordFormat, form: str
) -> None:
    assert record_format(value, content_type, default) == form


def test_the_fields_are_those_of_the_plan_and_the_rest_is_metadata() -> None:
    record = RawRecord(0, 7, b'{"body": "a", "name": 3, "text": 1}')
    assert list(decode([record], "auto", "body", "name")) == [Document(0, 7, 0, "a", "3", {"text": 1})]


@given(st.lists(st.tuples(texts, st.booleans()), max_size=12), st.integers(1, 5), st.integers(2400, 2600))
def test_what_ingest_makes_is_read_back_in_order(documents: list[tuple[str, bool]], bundle: int, limit: int) -> None:
    settings = Settings(
        max_message_bytes=limit, sequence_length=8, batch_size=1, carry=0, memory_budget_bytes=2**26
    ).model_copy(update={"text_field": "body"})
    items = [
        Item(orjson.dumps({"text": text, "id": str(number)}), JSON) if as_json else Item(text.encode(), TEXT, str(number))
        for number, (text, as_json) in enumerate(documents)
    ]
    read: list[Outcome] = []
    for record in RecordMaker(settings, "text", None, bundle).make(items):
        assert isinstance(record, Record)
        raw = RawRecord(0, 0, record.value, record.content_type)
        found = list(decode([raw], "auto", "body", "id"))
        assert record.documents == document_count(raw, "auto") == len(found)
        read += found
    assert [getattr(outcome, "text", "") for outcome in read] == [text for text, _ in documents]


def test_the_content_type_is_the_same_however_a_client_gives_the_headers() -> None:
    assert content_type_of(None) is content_type_of([]) is content_type_of({"other": b"x"}) is None
    pairs = [("other", b"x"), ("content-type", None), ("content-type", JSON.encode()), ("content-type", b"later")]
    assert content_type_of(pairs) == JSON
    assert content_type_of({"content-type": SEAL.encode()}) == SEAL
    assert content_type_of([("content-type", b"\xff")]) == "\ufffd"
