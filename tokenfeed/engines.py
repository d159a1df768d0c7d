"""The engines that turn texts into ids: transformers itself, the Rust `tokenizers`, and gigatoken."""

from __future__ import annotations

import ctypes
import threading
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt
import psutil

from tokenfeed.packing import Ints, splits

Ids = npt.NDArray[np.uint32]

_FEW: Final = 8
_FEW_CHARACTERS: Final = 2**14
_CALL_CHARACTERS: Final = 2**22  # a usual window: between two calls a thread waits for the interpreter
_ROOM_TO_GROW: Final = 3  # tables double, and the old one is there until the new one is filled
_CODE_POINTS: Final = 0x110000
_UNUSED_PLANES: Final = slice(0x40000, 0xE0000)
_PRIVATE_PLANES: Final = slice(0xF0000, _CODE_POINTS)


@dataclass(frozen=True, slots=True)
class Encoded:
    """Token ids of many documents, end to end: document i has ids[offsets[i]:offsets[i + 1]]."""

    ids: Ids
    offsets: Ints


class Engine(Protocol):
    """Something that turns texts into ids without adding any. Safe to call from several threads."""

    @property
    def ready(self) -> bool:
        """Whether `encode` would begin at once."""

    def encode(self, texts: Sequence[str], /) -> Encoded:
        """Ids of each text."""


class Transformers:
    """transformers itself."""

    ready = True

    def __init__(self, reference: Any) -> None:
        self._tokenizer = reference

    def encode(self, texts: Sequence[str], /) -> Encoded:
        """Ids of each text."""
        return _flat([self._tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts])


class Tokenizers:
    """The Rust tokenizer behind the reference, as a copy without padding or truncation.

    Args:
        kind: its class.
        definition: its canonical JSON.
    """

    ready = True

    def __init__(self, kind: Any, definition: str) -> None:
        self._tokenizer = kind.from_str(definition)
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()

    def encode(self, texts: Sequence[str], /) -> Encoded:
        """Ids of each text."""
        found = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        return _flat([encoding.ids for encoding in found])


class Gigatoken:
    """gigatoken, built anew when its caches have grown past the budget.

    Its caches keep every word they have seen, some 10 to 50 bytes a byte of text full of new words, and grow in steps:
    what may be their last step is left room for. Their growth is what the process gained while calls ran, less the
    results; before the engine is built anew for it, what is free has to be given back, and the process still be larger.
    A call is of bounded size, and none runs while the engine is built anew.

    Its Unicode tables are newer than those of the reference: texts with a character that one may know and the other not
    are left to the Rust tokenizer.

    Args:
        definition: the tokenizer's canonical JSON.
        other: makes the Rust tokenizer, once it is needed.
        memory_budget_bytes: how far the caches may grow.
    """

    def __init__(self, definition: str, other: Callable[[], Engine], memory_budget_bytes: int) -> None:
        self._definition = definition
        self._most_bytes = memory_budget_bytes // _ROOM_TO_GROW
        self._tokenizer = self._build()
        self._other = cache(other)
        self._process = psutil.Process()
        self._calls = threading.Condition()
        self._running = self._grown = self._seen = 0
        self._base = self._resident()

    def _build(self) -> Any:
        import gigatoken

        tokenizer = gigatoken.Tokenizer.from_json(self._definition)
        _encode(tokenizer, ["a"])  # what the first call takes is not growth
        return tokenizer

    @property
    def ready(self) -> bool:
        """Whether the engine need not be built anew first."""
        return self._grown <= self._most_bytes

    def encode(self, texts: Sequence[str], /) -> Encoded:
        """Ids of each text."""
        parts = [self._part(part) for part in _parts(texts)]
        return parts[0] if len(parts) == 1 else _joined(parts)

    def _part(self, texts: Sequence[str]) -> Encoded:
        unsettled = _unsettled(texts)
        if not unsettled.any():
            return self._call(texts)
        rest, others = ([texts[index] for index in np.flatnonzero(chosen).tolist()] for chosen in (~unsettled, unsettled))
        return _merged(unsettled, self._call(rest), self._other().encode(others))

    def _call(self, texts: Sequence[str]) -> Encoded:
        tokenizer = self._begin()
        gained = 0
        try:
            encoded = _encode(tokenizer, texts)
            gained = encoded.ids.nbytes + encoded.offsets.nbytes
            return encoded
        finally:
            with self._calls:
                self._running -= 1
                self._measure(gained)
                self._calls.notify_all()

    def _begin(self) -> Any:
        with self._calls:
            while self._grown > self._most_bytes and self._running:
                self._calls.wait()
            if self._grown > self._most_bytes:
                give_back_memory()
                held = self._resident() - self._base
                # What others hold counts in part, so that one look does not lead to the next.
                self._grown = max(0, held) // 2
                if held > self._most_bytes:
                    self._tokenizer = None  # before there is a new one: both would not fit
                    give_back_memory()
                    self._tokenizer = self._build()
                    self._base, self._grown = self._resident(), 0
            if not self._running:
                self._seen = self._resident()
            self._running += 1
            return self._tokenizer

    def _resident(self) -> int:
        return int(self._process.memory_info().rss)

    def _measure(self, results: int) -> None:
        """Each moment counts once, however many calls it was part of."""
        now = self._resident()
        self._grown += max(0, now - self._seen - results)
        self._seen = now


def _encode(tokenizer: Any, texts: Sequence[str]) -> Encoded:
    # What `encode_batch` wraps its result in costs 0.2 ms, lists cost an object a token. Its `encode` holds the
    # interpreter, and fails beside another call.
    if len(texts) <= _FEW and sum(map(len, texts)) <= _FEW_CHARACTERS:
        return _flat(tokenizer.encode_batch_list(list(texts), parallel=False))
    layout = tokenizer.encode_batch(list(texts), parallel=False).layout
    return Encoded(
        np.asarray(layout.content.data).astype(np.uint32, copy=False),
        np.asarray(layout.offsets.data).astype(np.int64, copy=False),
    )


def _parts(texts: Sequence[str]) -> Iterator[Sequence[str]]:
    """Texts for one call after another; a part is longer than a call should be only if it is one text."""
    start = characters = 0
    for index, text in enumerate(texts):
        characters += len(text)
        if characters > _CALL_CHARACTERS and index > start:
            yield texts[start:index]
            start, characters = index, len(text)
    yield texts[start:] if start else texts


def _flat(lists: Sequence[Sequence[int]]) -> Encoded:
    lengths = np.fromiter(map(len, lists), dtype=np.int64, count=len(lists))
    ids = np.fromiter((token for ids in lists for token in ids), dtype=np.uint32, count=int(lengths.sum()))
    return Encoded(ids, splits(lengths))


def _joined(parts: Sequence[Encoded]) -> Encoded:
    lengths = [np.diff(part.offsets) for part in parts]
    return Encoded(np.concatenate([part.ids for part in parts]), splits(np.concatenate(lengths)))


def _merged(chosen: npt.NDArray[np.bool_], rest: Encoded, others: Encoded) -> Encoded:
    """Texts that were encoded apart, in their order: those of `others` stand where `chosen` says."""
    lengths = np.empty(len(chosen), dtype=np.int64)
    lengths[~chosen], lengths[chosen] = np.diff(rest.offsets), np.diff(others.offsets)
    tokens = np.repeat(chosen, lengths)
    ids = np.empty(len(tokens), dtype=np.uint32)
    ids[~tokens], ids[tokens] = rest.ids, others.ids
    return Encoded(ids, splits(lengths))


def _unsettled(texts: Sequence[str]) -> npt.NDArray[np.bool_]:
    """Which texts hold a character that Python's Unicode tables do not know, bool [N].

    They are older than those of either engine, so that the engines agree on what they know.
    """
    found = np.zeros(len(texts), dtype=np.bool_)
    beyond = [index for index, text in enumerate(texts) if not str.isascii(text)]
    if beyond and _unknown("".join([texts[index] for index in beyond])):
        found[beyond] = [_unknown(texts[index]) for index in beyond]
    return found


def _unknown(text: str) -> bool:
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype="<u4")
    return bool(unassigned()[codes].any())


@cache
def unassigned() -> npt.NDArray[np.bool_]:
    """Which code points Python's Unicode tables do not assign, bool [0x110000]; private ones count as assigned."""
    table = np.ones(_CODE_POINTS, dtype=np.bool_)
    for begin, end in ((0, _UNUSED_PLANES.start), (_UNUSED_PLANES.stop, _PRIVATE_PLANES.start)):
        table[begin:end] = [unicodedata.category(chr(code)) == "Cn" for code in range(begin, end)]
    table[_PRIVATE_PLANES] = False
    return table


def give_back_memory() -> None:
    """Return what has been freed to the system; the C library keeps some 100 MB of a tokenizer that is gone."""
    with suppress(AttributeError):  # another C library than glibc
        ctypes.CDLL(None).malloc_trim(0)
