"""The batch message: B rows of L token ids, and where every piece of them came from.

The value is a safetensors blob (docs/wire-format.md), so that any language can open it without pickle. Encoding is
deterministic: equal batches have equal bytes. It is written here, with one copy, as the safetensors library writes it,
which takes more; that library sorts tensors but not metadata keys, so all metadata stands under one key, as canonical
JSON.

Ids of a vocabulary that 16 bits do not hold are sent as their low 16 bits and as one bit plane for each bit above that
some id of the batch has: 17 bits a token for a vocabulary of 128 thousand instead of 32.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, Literal, TypeVar

import numpy as np
import numpy.typing as npt
import orjson

from tokenfeed.errors import WireError
from tokenfeed.packing import Ints, ranges, splits
from tokenfeed.plan import WIRE_VERSION

Headers = list[tuple[str, bytes]]
Kind = Literal["batch", "seal"]

T = TypeVar("T")

KIND: Final = "tokenfeed-kind"
STREAM: Final = "tokenfeed-stream"
NUMBER: Final = "tokenfeed-number"
PLAN: Final = "tokenfeed-plan"

_KINDS: Final[dict[bytes, Kind]] = {b"batch": "batch", b"seal": "seal"}
_METADATA: Final = "tokenfeed"
_DTYPES: Final[dict[str, np.dtype[Any]]] = {
    "U8": np.dtype("u1"),
    "U16": np.dtype("<u2"),
    "I32": np.dtype("<i4"),
    "I64": np.dtype("<i8"),
}
_NAMES: Final = {dtype: name for name, dtype in _DTYPES.items()}
_PLACES: Final = frozenset({"piece_lens", "row_splits", "origins"})
_IDS: Final = frozenset({"input_ids"})
_PLANES: Final = frozenset({"input_ids_low", "input_ids_high"})
_LOW_BITS: Final = 16
_MOST_PLANES: Final = 15  # ids are int32


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """One message of the batches topic.

    Attributes:
        plan: plan id.
        stream: raw partition that its documents came from.
        number: q, counted per stream from 0 without gaps.
        window: window of the stream, counted from 0.
        input_ids: uint16, or int32 for a vocabulary that needs it, [B, L]; pieces from the left, pad ids behind.
        piece_lens: tokens a piece, in row order, int32 [D].
        row_splits: pieces of row r are row_splits[r]:row_splits[r + 1], int32 [B + 1].
        origins: offset, index in record, first token, source index of each piece, int64 [D, 4].
    """

    plan: str
    stream: int
    number: int
    window: int
    input_ids: npt.NDArray[Any]
    piece_lens: npt.NDArray[np.int32]
    row_splits: npt.NDArray[np.int32]
    origins: npt.NDArray[np.int64]

    @property
    def tokens(self) -> int:
        """Real tokens, padding not counted."""
        return int(self.piece_lens.sum())


@dataclass(frozen=True, slots=True)
class Envelope:
    """What a message's headers tell without decoding it. For a seal, `number` is the stream's final count."""

    kind: Kind
    plan: str
    stream: int
    number: int

    def headers(self) -> Headers:
        """The Kafka headers that `read_envelope` reads back."""
        return [
            (KIND, self.kind.encode()),
            (PLAN, self.plan.encode()),
            (STREAM, b"%d" % self.stream),
            (NUMBER, b"%d" % self.number),
        ]


def read_envelope(headers: list[tuple[str, bytes | None]] | None) -> Envelope:
    """Read the headers of a message of the batches topic.

    Raises:
        WireError: a header is missing or malformed: some other program writes to the topic.
    """
    found = dict(headers or ())
    try:
        kind, plan, stream, number = (found[name] or b"" for name in (KIND, PLAN, STREAM, NUMBER))
        return Envelope(_KINDS[kind], plan.decode(), int(stream), int(number))
    except (KeyError, ValueError):
        raise WireError(
            "a message of the batches topic lacks Tokenfeed's headers; no other program may write to that topic"
        ) from None


def envelope(batch: Batch) -> Envelope:
    """The envelope of a batch."""
    return Envelope("batch", batch.plan, batch.stream, batch.number)


def cells(piece_lens: npt.NDArray[Any], row_splits: npt.NDArray[Any], length: int) -> Ints:
    """Flat index, in rows of `length`, of every token's cell: pieces of a row side by side from its left edge."""
    ends = splits(piece_lens)
    row = np.repeat(np.arange(len(row_splits) - 1), np.diff(row_splits))
    within = ends[:-1] - ends[row_splits[:-1]][row]
    return ranges(row * length + within, piece_lens)


def encode(batch: Batch) -> bytes:
    """The message value. Equal batches give equal bytes."""
    metadata = {
        "wire": WIRE_VERSION,
        "plan": batch.plan,
        "stream": batch.stream,
        "number": batch.number,
        "window": batch.window,
        "tokens": batch.tokens,
    }
    header: dict[str, Any] = {"__metadata__": {_METADATA: orjson.dumps(metadata, option=orjson.OPT_SORT_KEYS).decode()}}
    arrays = {**_split(batch.input_ids), **{name: getattr(batch, name) for name in _PLACES}}
    end = 0
    # safetensors' own order: wider types first, then by name.
    order = sorted(arrays, key=lambda name: (-arrays[name].itemsize, arrays[name].dtype.kind != "i", name))
    for name in order:
        start, end = end, end + arrays[name].nbytes
        header[name] = {
            "dtype": _NAMES[arrays[name].dtype],
            "shape": arrays[name].shape,
            "data_offsets": (start, end),
        }
    text = orjson.dumps(header)
    text += b" " * (-len(text) % 8)
    return b"".join((len(text).to_bytes(8, "little"), text, *(np.ascontiguousarray(arrays[name]).data for name in order)))


def decode(value: bytes | bytearray | memoryview) -> Batch:
    """Read a message value. The arrays are views of `value`, as writable as it is, but for ids that were in planes.

    Raises:
        WireError: for bytes that are no batch of this wire version, or whose parts contradict each other.
    """
    try:
        tensors, metadata = _parse(memoryview(value))
        _check_version(metadata["wire"])
        batch = Batch(
            plan=_exactly(str, metadata["plan"]),
            stream=_count(metadata["stream"]),
            number=_count(metadata["number"]),
            window=_count(metadata["window"]),
            **tensors,
        )
        _check(batch, _count(metadata["tokens"]))
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise WireError(f"not a batch of Tokenfeed: {type(error).__name__}") from None
    return batch


def _exactly(kind: type[T], value: Any) -> T:
    if type(value) is not kind:
        raise TypeError
    return value


def _count(value: Any) -> int:
    if _exactly(int, value) < 0:
        raise ValueError("count")
    return int(value)


def _check_version(version: Any) -> None:
    if _exactly(int, version) != WIRE_VERSION:
        raise WireError(f"batch of wire version {version}, this Tokenfeed reads {WIRE_VERSION}")


def _parse(view: memoryview) -> tuple[dict[str, npt.NDArray[Any]], dict[str, Any]]:
    """The safetensors layout: uint64 header length, JSON header, tensors at offsets behind it."""
    size = int.from_bytes(view[:8], "little")
    if size > len(view) - 8:
        raise ValueError("header")
    header = orjson.loads(view[8 : 8 + size])
    metadata = orjson.loads(header.pop("__metadata__")[_METADATA])
    tensors = {name: _tensor(view, 8 + size, entry) for name, entry in header.items()}
    if sum(tensor.nbytes for tensor in tensors.values()) != len(view) - 8 - size:
        raise ValueError("length")
    if tensors.keys() == _PLACES | _PLANES:
        tensors["input_ids"] = _joined(tensors.pop("input_ids_low"), tensors.pop("input_ids_high"))
    elif tensors.keys() != _PLACES | _IDS:
        raise ValueError("tensors")
    return tensors, metadata


def _split(ids: npt.NDArray[Any]) -> dict[str, npt.NDArray[Any]]:
    """Ids as tensors of a message: uint16 as they are, others as low bits and planes of the bits above."""
    if ids.dtype == _DTYPES["U16"]:
        return {"input_ids": ids}
    flat = ids.reshape(-1)
    bits = range(_LOW_BITS, int(flat.max(initial=0)).bit_length())
    planes = [np.packbits((flat & (1 << bit)) != 0, bitorder="little") for bit in bits]
    high = np.stack(planes) if planes else np.zeros((0, -(-flat.size // 8)), dtype=np.uint8)
    return {"input_ids_low": flat.astype(np.uint16).reshape(ids.shape), "input_ids_high": high}


def _joined(low: npt.NDArray[Any], high: npt.NDArray[Any]) -> npt.NDArray[np.int32]:
    """The ids that `_split` has split, int32."""
    if low.dtype != _DTYPES["U16"] or high.dtype != _DTYPES["U8"]:
        raise ValueError("planes")
    if high.ndim != 2 or len(high) > _MOST_PLANES or high.shape[1] != -(-low.size // 8):
        raise ValueError("planes")
    ids = low.reshape(-1).astype(np.int32)
    for bit, plane in enumerate(high, _LOW_BITS):
        bits = np.unpackbits(plane, count=low.size, bitorder="little").astype(np.int32)
        bits <<= bit
        ids |= bits
    return ids.reshape(low.shape)


def _tensor(view: memoryview, body: int, entry: dict[str, Any]) -> npt.NDArray[Any]:
    start, end = entry["data_offsets"]
    if start < 0:
        raise ValueError("offsets")
    tensor: npt.NDArray[Any] = np.ndarray(entry["shape"], _DTYPES[entry["dtype"]], view, body + start)
    if tensor.nbytes != end - start:
        raise ValueError("offsets")
    return tensor


def _check(batch: Batch, tokens: int) -> None:
    """The arrays agree with each other, so that a loader may index with them."""
    rows, length = batch.input_ids.shape
    pieces = len(batch.piece_lens)
    if (
        rows < 1
        or batch.input_ids.dtype not in (_DTYPES["U16"], _DTYPES["I32"])
        or not batch.row_splits.dtype == batch.piece_lens.dtype == _DTYPES["I32"]
        or batch.origins.dtype != _DTYPES["I64"]
        or batch.row_splits.shape != (rows + 1,)
        or batch.piece_lens.shape != (pieces,)
        or batch.origins.shape != (pieces, 4)
    ):
        raise ValueError("tensors")
    # Of numbers this few, Python is done before numpy has begun.
    ends, lens = batch.row_splits.tolist(), batch.piece_lens.tolist()
    if ends[0] != 0 or ends[-1] != pieces or any(start > end for start, end in pairwise(ends)):
        raise ValueError("row_splits")
    fills = [sum(lens[start:end]) for start, end in pairwise(ends)]
    if min(lens, default=1) < 1 or max(fills) > length or sum(fills) != tokens:
        raise ValueError("piece_lens")
