"""Files become documents and documents become records: in order, whole, and nothing silently left out."""

from __future__ import annotations

import gzip
import io
import os
import random
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import orjson
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from tokenfeed.documents import JSON, NDJSON, TEXT
from tokenfeed.errors import SettingsError
from tokenfeed.ingest import Item, Refused, expand, read_source
from tokenfeed.ingest.records import Record, RecordMaker, record_limit
from tokenfeed.ingest.zst import open_zst
from tokenfeed.settings import Settings

LIMIT = 3000
NOISE = random.Random(0).randbytes(300)


def read(path: Path, limit: int = LIMIT) -> list[Item | Refused]:
    return [item for source in expand([path]) for item in read_source(source, limit)]


def values(path: Path, limit: int = LIMIT) -> list[bytes]:
    return [item.value for item in read(path, limit) if isinstance(item, Item)]


def settings(**overrides: Any) -> Settings:
    return Settings(
        **{
            "max_message_bytes": LIMIT + 512,
            "sequence_length": 8,
            "batch_size": 1,
            "carry": 0,
            "memory_budget_bytes": 2**26,
        }
        | overrides
    )


def make(items: list[Item | Refused], *arguments: Any, **overrides: Any) -> list[Record]:
    made = list(RecordMaker(settings(**overrides), *arguments).make(items))
    assert all(isinstance(record, Record) for record in made), made
    return [record for record in made if isinstance(record, Record)]


# Files


def test_a_folder_is_walked_in_sorted_order_for_texts_only(tmp_path: Path) -> None:
    for name in ("z.txt", "b/a.py", "b/c/d.md", "a.jsonl.gz", "x.bin", "noend", "B.RST", "y.txt.zst", "w.tar.gz"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    assert [source.id for source in expand([tmp_path])] == [
        "B.RST",
        "a.jsonl.gz",
        "b/a.py",
        "b/c/d.md",
        "y.txt.zst",
        "z.txt",
    ]


def test_a_file_that_is_named_is_taken_whatever_it_is_called(tmp_path: Path) -> None:
    (tmp_path / "notes.bin").write_bytes(b"\xff\x00")
    assert read(tmp_path / "notes.bin") == [
        Item(b"\xff\x00", TEXT, "notes.bin", str(tmp_path / "notes.bin"), 2),
    ]


@pytest.mark.parametrize("name", ["missing.txt", "."])
def test_a_path_without_documents_is_a_fault(name: str, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=str(tmp_path)):
        expand([tmp_path / name])


def pack(suffix: str, data: bytes) -> bytes:
    packers = {"": bytes, ".gz": gzip.compress, ".zst": zstandard.ZstdCompressor().compress}
    return packers[suffix](data)


@pytest.mark.parametrize("suffix", ["", ".gz", ".zst"])
@pytest.mark.parametrize("pieces", [1, 3])
def test_packed_files_hold_what_plain_ones_hold(suffix: str, pieces: int, tmp_path: Path) -> None:
    (tmp_path / f"a.txt{suffix}").write_bytes(b"".join(pack(suffix, NOISE) for _ in range(pieces)))
    (tmp_path / f"b.jsonl{suffix}").write_bytes(b"".join(pack(suffix, b'{"a":1}\r\n\n \n{"b":2}\n') for _ in range(pieces)))
    assert values(tmp_path) == [NOISE * pieces, *[b'{"a":1}', b'{"b":2}'] * pieces]


def test_lines_know_their_number_and_a_last_line_needs_no_end(tmp_path: Path) -> None:
    path = tmp_path / "a.ndjson"
    path.write_bytes(b"{}\n\n[]")
    assert read(path) == [Item(b"{}", JSON, None, f"{path} line 1", 3), Item(b"[]", JSON, None, f"{path} line 3", 6)]


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
@pytest.mark.parametrize("kind", ["txt", "jsonl"])
@pytest.mark.parametrize("damage", ["cut", "bent"])
def test_a_damaged_file_is_refused_not_shortened(suffix: str, kind: str, damage: str, tmp_path: Path) -> None:
    packed = pack(suffix, NOISE * 9)
    path = tmp_path / f"a.{kind}{suffix}"
    path.write_bytes(packed[:-7] if damage == "cut" else b"junk" + packed)
    *_, last = read(path, 10**6)
    assert isinstance(last, Refused)
    assert str(path) in last.message
    if kind == "txt":
        assert values(path, 10**6) == []


def test_a_file_that_vanished_is_refused_and_the_others_are_read(tmp_path: Path) -> None:
    for name in "abc":
        (tmp_path / f"{name}.txt").write_text(name)
    sources = expand([tmp_path])
    (tmp_path / "b.txt").unlink()
    found = [item for source in sources for item in read_source(source, LIMIT)]
    assert [type(item) for item in found] == [Item, Refused, Item]


def test_stdin_is_jsonl(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b'{"text":"a"}\n{"text":"b"}')))
    assert values(Path("-")) == [b'{"text":"a"}', b'{"text":"b"}']


def test_no_more_than_one_byte_over_the_limit_is_held(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"x" * 5000)
    (tmp_path / "b.jsonl").write_bytes(b"y" * 5000 + b"\n" + b"z" * LIMIT + b"\n" + b"v" * (LIMIT + 1))
    assert [(value[:1], len(value)) for value in values(tmp_path)] == [
        (b"x", LIMIT + 1),
        (b"y", LIMIT + 1),
        (b"z", LIMIT),
        (b"v", LIMIT + 1),
    ]


def test_a_name_that_is_not_utf8_is_still_a_name(tmp_path: Path) -> None:
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff.txt")).write_text("a")
    (record,) = make(read(tmp_path))
    assert record.key == "\ufffd.txt".encode()
    assert make(read(tmp_path), None, None, 2)[0].documents == 1


@given(st.lists(st.binary(max_size=50), max_size=8), st.integers(1, 60))
def test_zst_gives_back_every_frame_at_any_read_size(frames: list[bytes], size: int) -> None:
    packed = b"".join(pack(".zst", frame) for frame in frames)
    stream = open_zst(io.BytesIO(packed))
    assert b"".join(iter(lambda: stream.read(size), b"")) == b"".join(frames)


# Records


def test_a_document_travels_as_it_came_under_its_path() -> None:
    items: list[Item | Refused] = [Item(b"\xff", TEXT, "a/b.txt"), Item(b'{ "text" : 1 }', JSON)]
    assert make(items) == [Record(b"\xff", TEXT, b"a/b.txt", 1), Record(b'{ "text" : 1 }', JSON, None, 1)]


def test_a_bundle_holds_so_many_documents_and_texts_become_objects() -> None:
    items: list[Item | Refused] = [Item(b"one", TEXT, "1"), Item(b'{"text":"two"}', JSON), Item(b"three", TEXT, "3")]
    assert make(items, None, None, 2) == [
        Record(b'{"id":"1","text":"one"}\n{"text":"two"}', NDJSON, None, 2),
        Record(b'{"id":"3","text":"three"}', NDJSON, None, 1),
    ]


def test_what_is_not_one_line_of_text_stays_out_of_bundles() -> None:
    items: list[Item | Refused] = [Item(b"\xff", TEXT, "a"), Item(b'{"text":\n"b"}', JSON)]
    assert make(items, None, None, 2) == [Record(b"\xff", TEXT, b"a", 1), Record(b'{"text":\n"b"}', JSON, None, 1)]


@pytest.mark.parametrize(
    ("value", "sent"),
    [
        (b'{"content":"a","key":1}', {"body": "a", "name": 1}),
        (b'{"content":"a","body":"old"}', {"body": "a"}),
        (b'{"body":"old","content":"a"}', {"body": "a"}),
        (b'{"content":1,"x":{"content":2}}', {"body": 1, "x": {"content": 2}}),
        (b"[1]", [1]),
    ],
)
def test_fields_get_the_feeds_names(value: bytes, sent: object) -> None:
    (record,) = make([Item(value, JSON)], "content", "key", 1, text_field="body", id_field="name")
    assert orjson.loads(record.value) == sent


def test_fields_can_change_places() -> None:
    (record,) = make([Item(b'{"id":"a","text":"b"}', JSON)], "id", "text")
    assert orjson.loads(record.value) == {"id": "b", "text": "a"}


@pytest.mark.parametrize("value", [b"{", b'{"content":"\\ud800"}', b'{"content":' * 400 + b"1" + b"}" * 400])
def test_what_cannot_be_rewritten_travels_as_it_came(value: bytes) -> None:
    assert make([Item(value, JSON)], "content", max_message_bytes=10_000)[0].value == value


def test_nothing_is_rewritten_when_the_names_agree() -> None:
    assert make([Item(b'{ "text":1 }', JSON)], "text", "id")[0].value == b'{ "text":1 }'


@given(st.lists(st.integers(0, 2000), max_size=12), st.integers(1, 5))
def test_no_record_is_too_large_and_bundles_are_as_full_as_they_can_be(sizes: list[int], bundle: int) -> None:
    records = make([Item(b"x" * size, JSON) for size in sizes], None, None, bundle)
    assert [len(line) for record in records for line in record.value.split(b"\n")] == sizes
    for record, following in pairwise(records):
        assert len(record.value) <= LIMIT
        assert record.documents == bundle or len(record.value) + 1 + len(following.value.split(b"\n")[0]) > LIMIT


@pytest.mark.parametrize("bundle", [1, 3])
def test_a_document_too_large_is_refused_by_name_and_the_rest_is_sent(bundle: int) -> None:
    assert record_limit(settings()) == LIMIT
    items: list[Item | Refused] = [
        Item(b"a" * LIMIT, JSON),
        Item(b"b" * (LIMIT + 1), JSON, None, "big.jsonl line 2"),
        Item(b"c", JSON),
        Refused("unreadable"),
    ]
    made = list(RecordMaker(settings(), None, None, bundle).make(items))
    refused = [item.message for item in made if isinstance(item, Refused)]
    assert refused[1] == "unreadable"
    assert refused[0].startswith("big.jsonl line 2: too large")
    assert "TOKENFEED_MAX_MESSAGE_BYTES=3512" in refused[0]
    assert sorted(item.value[:1] for item in made if isinstance(item, Record)) == [b"a", b"c"]


def test_a_long_name_counts_too() -> None:
    (made,) = RecordMaker(settings()).make([Item(b"x" * (LIMIT - 9), TEXT, "1234567890")])
    assert isinstance(made, Refused)


@pytest.mark.parametrize(
    ("record_format", "item", "bundle"),
    [
        ("text", Item(b"{}", JSON), 1),
        ("text", Item(b"a", TEXT), 2),
        ("json", Item(b"a", TEXT), 1),
        ("json", Item(b"{}", JSON), 2),
        ("ndjson", Item(b"a", TEXT), 1),
        ("ndjson", Item(b"\xff", TEXT), 2),
    ],
)
def test_nothing_is_sent_that_the_feed_would_misread(record_format: str, item: Item, bundle: int) -> None:
    with pytest.raises(SettingsError, match="TOKENFEED_RECORD_FORMAT"):
        make([item], None, None, bundle, record_format=record_format)


def test_a_document_without_the_text_field_that_was_named_is_left_out_and_its_feed_field_is_not_taken() -> None:
    items = [Item(b'{"content": "good"}', JSON), Item(b'{"text": "of another field"}', JSON, None, "b.jsonl:2")]
    good, bad = RecordMaker(settings(), "content").make(items)
    assert isinstance(good, Record)
    assert good.value == b'{"text":"good"}'
    assert isinstance(bad, Refused)
    assert bad.message == "b.jsonl:2: has no field 'content' (--text-field names it)"
