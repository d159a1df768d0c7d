"""The wire format: deterministic, self-checking, readable by the safetensors library."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from safetensors.numpy import load

from tests.feeds import ByteTokenizer, make_cut, make_plan
from tokenfeed.batches import Batch, Envelope, decode, encode, envelope, read_envelope
from tokenfeed.content import window_content
from tokenfeed.documents import RawRecord
from tokenfeed.errors import WireError


def a_batch() -> Batch:
    plan = make_plan()
    records = [RawRecord(0, offset, b"some text %d" % offset) for offset in range(9)]
    return window_content(plan, ByteTokenizer(), make_cut(plan, records), records).batches[0]


def test_a_batch_survives_the_wire() -> None:
    batch = a_batch()
    again = decode(encode(batch))
    for field in dataclasses.fields(Batch):
        np.testing.assert_array_equal(getattr(again, field.name), getattr(batch, field.name))
    assert again.input_ids.dtype == np.uint16
    assert encode(again) == encode(batch)


@given(
    hnp.arrays(np.int32, st.tuples(st.integers(1, 3), st.integers(1, 20)), elements=st.integers(0, 2**31 - 1)),
    st.integers(1, 31),
)
def test_ids_of_any_vocabulary_survive_in_planes(ids: npt.NDArray[np.int32], bits: int) -> None:
    batch = of_ids(ids & np.int32(2**bits - 1))
    value = encode(batch)
    again = decode(value)
    assert again.input_ids.dtype == np.int32
    np.testing.assert_array_equal(again.input_ids, batch.input_ids)
    assert encode(again) == value
    low, high = (load(value)[name] for name in ("input_ids_low", "input_ids_high"))
    np.testing.assert_array_equal(low, batch.input_ids & 0xFFFF)
    assert len(high) == max(0, int(batch.input_ids.max()).bit_length() - 16)
    planes = np.unpackbits(high, axis=1, count=low.size, bitorder="little")  # as docs/wire-format.md says
    read = low.ravel() + sum(planes[k].astype(int) << (16 + k) for k in range(len(high)))
    np.testing.assert_array_equal(read, batch.input_ids.ravel())


def of_ids(ids: npt.NDArray[np.int32]) -> Batch:
    rows, length = ids.shape
    return dataclasses.replace(
        a_batch(),
        input_ids=ids,
        piece_lens=np.full(rows, length, dtype=np.int32),
        row_splits=np.arange(rows + 1, dtype=np.int32),
        origins=np.zeros((rows, 4), dtype=np.int64),
    )


def test_the_safetensors_library_reads_the_same_arrays() -> None:
    batch = a_batch()
    tensors = load(encode(batch))
    assert set(tensors) == {"input_ids", "piece_lens", "row_splits", "origins"}
    np.testing.assert_array_equal(tensors["input_ids"], batch.input_ids)
    np.testing.assert_array_equal(tensors["origins"], batch.origins)


def test_decoding_copies_nothing() -> None:
    value = bytearray(encode(a_batch()))
    batch = decode(value)
    before = int(batch.origins[-1, -1])
    start = value.rindex(batch.origins.tobytes()[-8:])
    value[start : start + 8] = (before + 1).to_bytes(8, "little")
    assert int(batch.origins[-1, -1]) == before + 1


@settings(max_examples=300)
@given(data=st.data())
def test_damaged_bytes_raise_nothing_but_a_wire_error(data: st.DataObject) -> None:
    value = bytearray(encode(data.draw(st.sampled_from([a_batch(), of_ids(np.full((2, 9), 70_000, dtype=np.int32))]))))
    for _ in range(data.draw(st.integers(1, 4))):
        value[data.draw(st.integers(0, len(value) - 1))] = data.draw(st.integers(0, 255))
    if data.draw(st.booleans()):
        value = value[: data.draw(st.integers(0, len(value)))]
    try:
        decode(value)
    except WireError:
        return


@given(value=st.binary(max_size=200))
def test_foreign_bytes_are_refused(value: bytes) -> None:
    with pytest.raises(WireError):
        decode(value)


@pytest.mark.parametrize("header", [b"5", b"null", b'"x"', b"[]", b"{}", b'{"__metadata__":5}'])
def test_a_header_of_another_kind_is_refused(header: bytes) -> None:
    with pytest.raises(WireError):
        decode(len(header).to_bytes(8, "little") + header)


def test_arrays_that_no_loader_could_use_are_refused_at_once() -> None:
    batch = a_batch()
    pieces = len(batch.piece_lens)
    for row_splits in ([0, pieces] * 2000, [0, -1, pieces], [0, pieces + 1, pieces]):
        rows = len(row_splits) - 1
        ids, splits = np.zeros((rows, 1000), dtype=np.uint16), np.array(row_splits, dtype=np.int32)
        with pytest.raises(WireError):
            decode(encode(dataclasses.replace(batch, input_ids=ids, row_splits=splits)))
    nothing = {name: getattr(batch, name)[:0] for name in ("piece_lens", "origins")}
    empty = np.zeros((0, 2**40), dtype=np.uint16)
    with pytest.raises(WireError):
        decode(encode(dataclasses.replace(batch, input_ids=empty, row_splits=np.zeros(1, dtype=np.int32), **nothing)))


def test_headers_tell_what_the_value_tells() -> None:
    batch = a_batch()
    assert read_envelope([*envelope(batch).headers()]) == Envelope("batch", batch.plan, batch.stream, batch.number)
    seal = Envelope("seal", batch.plan, 3, 17)
    assert read_envelope([*seal.headers()]) == seal


@pytest.mark.parametrize("headers", [None, [], [("tokenfeed-kind", b"other")], [("tokenfeed-kind", None)]])
def test_messages_of_other_programs_are_refused(headers: list[tuple[str, bytes | None]] | None) -> None:
    with pytest.raises(WireError, match="no other program"):
        read_envelope(headers)


@pytest.mark.parametrize(
    ("name", "value"),
    [("plan", None), ("plan", 12), ("wire", 2.0), ("wire", "2")]
    + [(name, value) for name in ("stream", "number", "window", "tokens") for value in (1.5, -7, "12", None, True, [2])],
)
def test_values_of_another_type_are_no_batch(name: str, value: Any) -> None:
    encoded = encode(a_batch())
    size = int.from_bytes(encoded[:8], "little")
    header = orjson.loads(encoded[8 : 8 + size])
    metadata = orjson.loads(header["__metadata__"]["tokenfeed"])
    header["__metadata__"]["tokenfeed"] = orjson.dumps(metadata | {name: value}).decode()
    text = orjson.dumps(header)
    with pytest.raises(WireError):
        decode(len(text).to_bytes(8, "little") + text + encoded[8 + size :])


def test_bytes_behind_a_batch_are_an_error() -> None:
    encoded = encode(a_batch())
    assert decode(encoded).tokens
    with pytest.raises(WireError):
        decode(encoded + b"12345678")
