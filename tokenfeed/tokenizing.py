"""Text to token ids: transformers is the reference, the fastest engine that agrees with it does the work.

`load_tokenizer` reads a tokenizer with transformers' AutoTokenizer, never running code that came with it, and then
tries engines from the fastest on: gigatoken, the Rust `tokenizers`, transformers itself. An engine is taken only when it
gives the reference's ids for every probe string. Ids are those of `tokenizer(text, add_special_tokens=False)`; text that
spells a special token becomes that token, as the reference does it.

The fingerprint identifies a tokenizer by what it does: the hash of its canonical JSON and of its ids for the probes.
"""

from __future__ import annotations

import ctypes
import gc
import hashlib
import importlib.util
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, Literal, Protocol

import numpy as np
import numpy.typing as npt
import orjson
import psutil

from tokenfeed.errors import SettingsError, TokenizerError
from tokenfeed.packing import Ints, splits
from tokenfeed.plan import BosRule, EosRule
from tokenfeed.probes import PROBES

EngineName = Literal["gigatoken", "tokenizers", "transformers"]
Ids = npt.NDArray[np.uint32]

_ENGINES: Final[tuple[EngineName, ...]] = ("gigatoken", "tokenizers", "transformers")
_PACKAGE: Final = "package:"
_REASON: Final = 200  # characters of transformers' own message
_DEFAULT_MEMORY_BYTES: Final = 2**28
_FEW: Final = 8
_ROOM_TO_GROW: Final = 3  # tables double, and the old one is there until the new one is filled


@dataclass(frozen=True, slots=True)
class Encoded:
    """Token ids of many documents, end to end: document i has ids[offsets[i]:offsets[i + 1]]."""

    ids: Ids
    offsets: Ints


class Engine(Protocol):
    """Something that turns texts into ids without adding any."""

    @property
    def ready(self) -> bool:
        """Whether `encode` would begin at once."""

    def encode(self, texts: Sequence[str], /) -> Encoded:
        """Ids of each text."""


class Tokenizer:
    """A loaded tokenizer with its engine and its BOS and EOS rules. Safe to call from several threads.

    Attributes:
        engine: the engine that does the work.
        parity: engine -> "ok", or why it was passed over.
        fingerprint: SHA-256 in hex of the tokenizer's canonical JSON and its ids for the probes.
        vocab_size: ids lie in [0, vocab_size).
        bos_id, eos_id: ids that the rules use (CLS and SEP where a tokenizer has no BOS or EOS), None without one.
        pad_id: the padding id, else EOS, else 0.
    """

    def __init__(
        self,
        load: Callable[[], Any],
        engine: EngineName | Literal["auto"],
        bos: BosRule,
        eos: EosRule,
        memory_budget_bytes: int,
    ) -> None:
        reference = load()
        self.bos_id: int | None = _first(reference.bos_token_id, reference.cls_token_id)
        self.eos_id: int | None = _first(reference.eos_token_id, reference.sep_token_id)
        self.pad_id: int = _first(reference.pad_token_id, self.eos_id) or 0
        self._prefix = _rule("BOS", bos == "prepend", self.bos_id)
        self._suffix = _rule("EOS", eos == "append", self.eos_id)
        self.vocab_size: int = max(reference.get_vocab().values()) + 1
        expected = _Reference(reference).encode(PROBES)
        self._load = load  # the reference itself is let go: it takes more memory than the engine
        definition: str = reference.backend_tokenizer.to_str()
        self.fingerprint = _fingerprint(definition, expected)
        self.parity: dict[str, str] = {}
        self.engine, self._engine = self._choose(reference, definition, engine, expected, memory_budget_bytes)

    @property
    def ready(self) -> bool:
        """Whether `encode_batch` would begin at once: its engine need not be built anew."""
        return self._engine.ready

    def decode(self, ids: Sequence[int], /) -> str:
        """The text of ids, special tokens spelled out; bytes that are not whole characters become U+FFFD."""
        return str(self._reference.decode(list(ids), skip_special_tokens=False))

    @cached_property
    def _reference(self) -> Any:
        return self._load()

    def encode_batch(self, texts: Sequence[str], /) -> Encoded:
        """Ids of each text, with BOS and EOS as the rules say; none at all for a text that has no tokens.

        Raises:
            TokenizerError: a text holds a lone surrogate, which is not Unicode text; its index is named.
            TypeError, ValueError: something among them is not a string.
        """
        try:
            plain = self._engine.encode(texts) if texts else _flat([])
        except (TypeError, UnicodeEncodeError):
            for index, text in enumerate(texts):
                if isinstance(text, str) and _has_surrogate(text):
                    raise TokenizerError(f"text {index} of the batch holds a lone surrogate; it is not Unicode") from None
            raise
        return self._with_rules(plain) if self._prefix.size or self._suffix.size else plain

    def _with_rules(self, plain: Encoded) -> Encoded:
        prefix, suffix, ids = self._prefix.data, self._suffix.data, plain.ids.data
        parts: list[memoryview] = []
        for start, end in pairwise(np.unique(plain.offsets).tolist()):
            if prefix:
                parts.append(prefix)
            parts.append(ids[start:end])
            if suffix:
                parts.append(suffix)
        lengths = np.diff(plain.offsets)
        offsets = splits(lengths + (lengths > 0) * (len(prefix) + len(suffix)))
        return Encoded(np.frombuffer(b"".join(parts), dtype=np.uint32), offsets)

    def _choose(
        self,
        reference: Any,
        definition: str,
        wanted: EngineName | Literal["auto"],
        expected: Encoded,
        memory_budget_bytes: int,
    ) -> tuple[EngineName, Engine]:
        for name in _ENGINES if wanted == "auto" else (wanted,):
            try:
                engine = _FACTORIES[name](reference, definition, memory_budget_bytes)
            except (ImportError, ValueError, TypeError, AttributeError, RuntimeError) as error:
                self.parity[name] = f"cannot load this tokenizer: {type(error).__name__}"
                continue
            self.parity[name] = _parity(engine, expected)
            if self.parity[name] == "ok":
                return name, engine
        reasons = "; ".join(f"{name}: {reason}" for name, reason in self.parity.items())
        raise TokenizerError(f"no engine gives the reference's ids ({reasons}); set TOKENFEED_ENGINE=auto")


def load_tokenizer(
    name: str,
    *,
    revision: str | None = None,
    engine: EngineName | Literal["auto"] = "auto",
    bos: BosRule = "none",
    eos: EosRule = "append",
    memory_budget_bytes: int = _DEFAULT_MEMORY_BYTES,
) -> Tokenizer:
    """Load a tokenizer.

    Args:
        name: a directory, a tokenizer.json, "package:NAME" or "package:NAME/path" for files that an installed
            Python package carries (it is not imported), or a hub name.
        revision: branch, tag or commit of a hub name.
        engine: "auto" takes the fastest that agrees with transformers.
        bos, eos: what is put around each document.
        memory_budget_bytes: how far an engine's caches may grow before it is built anew.

    Raises:
        TokenizerError: it cannot be loaded, or the engine asked for disagrees with transformers.
        SettingsError: a rule needs a token that the tokenizer does not have.
    """
    tokenizer = Tokenizer(partial(_load_reference, name, revision), engine, bos, eos, memory_budget_bytes)
    gc.collect()
    _give_back_memory()
    return tokenizer


def _load_reference(name: str, revision: str | None) -> Any:
    location = _in_package(name) if name.startswith(_PACKAGE) else name
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    try:
        if location.endswith(".json"):
            return PreTrainedTokenizerFast(tokenizer_file=location)  # type: ignore[no-untyped-call]
        reference = AutoTokenizer.from_pretrained(
            location, revision=revision or "main", trust_remote_code=False, use_fast=True
        )
    except Exception as error:
        reason = str(error).partition("\n")[0][:_REASON]
        raise TokenizerError(
            f"TOKENFEED_TOKENIZER={name}: {type(error).__name__}: {reason}; give a directory with tokenizer.json, the "
            "file itself, package:NAME, or a hub name that this machine can reach (HF_HUB_OFFLINE must not be set then)"
        ) from error
    if not hasattr(reference, "backend_tokenizer"):
        kind = type(reference).__name__
        raise TokenizerError(f"TOKENFEED_TOKENIZER={name}: {kind} has no fast version; use one that has")
    return reference


def _give_back_memory() -> None:
    """Return what has been freed to the system; the C library keeps some 100 MB of a tokenizer that is gone."""
    with suppress(AttributeError):  # another C library than glibc
        ctypes.CDLL(None).malloc_trim(0)


def _in_package(name: str) -> str:
    package, _, below = name.removeprefix(_PACKAGE).partition("/")
    # A dotted name would import its parent, so only top-level packages are looked up.
    spec = importlib.util.find_spec(package) if package.isidentifier() else None
    if spec is None or spec.origin is None:
        raise TokenizerError(f"TOKENFEED_TOKENIZER={name}: the Python package {package} is not installed")
    return str(Path(spec.origin).parent / below)


def _first(*ids: int | None) -> int | None:
    return next((token for token in ids if token is not None), None)


def _has_surrogate(text: str) -> bool:
    return any("\ud800" <= character <= "\udfff" for character in text)


def _rule(name: str, wanted: bool, token: int | None) -> Ids:
    if wanted and token is None:
        raise SettingsError(f"the tokenizer has no {name} token; set TOKENFEED_{name}=none")
    return np.array([token] if wanted else [], dtype=np.uint32)


def _fingerprint(definition: str, probes: Encoded) -> str:
    """Padding and truncation are a caller's state, not the tokenizer's, and stay out."""
    values = orjson.loads(definition)
    for volatile in ("padding", "truncation"):
        values.pop(volatile, None)
    digest = hashlib.sha256(orjson.dumps(values, option=orjson.OPT_SORT_KEYS))
    digest.update(probes.offsets.astype("<i8").tobytes() + probes.ids.astype("<u4").tobytes())
    return digest.hexdigest()


def _parity(engine: Engine, expected: Encoded) -> str:
    """ "ok" when an engine gives the expected ids for the probes, together and one by one."""
    try:
        together = engine.encode(PROBES)
        alone = [engine.encode([probe]) for probe in PROBES]
    except Exception as error:  # noqa: BLE001 - an engine that fails, however it does, must not stop the next one
        return f"fails on the probes: {type(error).__name__}"
    for index in range(len(PROBES)):
        right = expected.ids[expected.offsets[index] : expected.offsets[index + 1]]
        for found, at in ((together, index), (alone[index], 0)):
            if not np.array_equal(found.ids[found.offsets[at] : found.offsets[at + 1]], right):
                return f"differs from transformers on probe {index}"
    return "ok"


def _flat(lists: Sequence[Sequence[int]]) -> Encoded:
    lengths = np.fromiter(map(len, lists), dtype=np.int64, count=len(lists))
    ids = np.fromiter((token for ids in lists for token in ids), dtype=np.uint32, count=int(lengths.sum()))
    return Encoded(ids, splits(lengths))


class _Reference:
    """transformers itself."""

    ready = True

    def __init__(self, reference: Any) -> None:
        self._tokenizer = reference

    def encode(self, texts: Sequence[str], /) -> Encoded:
        return _flat([self._tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts])


class _Tokenizers:
    """The Rust tokenizer behind the reference, as a copy without padding or truncation."""

    ready = True

    def __init__(self, reference: Any, definition: str) -> None:
        self._tokenizer = type(reference.backend_tokenizer).from_str(definition)
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()

    def encode(self, texts: Sequence[str], /) -> Encoded:
        found = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        return _flat([encoding.ids for encoding in found])


class _Gigatoken:
    """gigatoken, built anew when its caches have grown past the budget.

    Its caches keep every word they have seen, which on text full of new words is some 50 bytes a byte of text. The
    growth is what the process gained during the calls, less their results. Every call is measured, because the caches
    grow in steps: what may be their last step is left room for.

    Each call stays in its thread, and several run side by side.
    """

    def __init__(self, definition: str, memory_budget_bytes: int) -> None:
        import gigatoken

        self._most_bytes = memory_budget_bytes // _ROOM_TO_GROW
        self._build: Callable[[], Any] = lambda: gigatoken.Tokenizer.from_json(definition)
        self._tokenizer: Any = self._build()
        self._process = psutil.Process()
        self._grown = 0
        self._lock = threading.Lock()

    @property
    def ready(self) -> bool:
        return not self._lock.locked() and self._grown <= self._most_bytes

    def encode(self, texts: Sequence[str], /) -> Encoded:
        tokenizer = self._bounded()
        before = self._process.memory_info().rss
        encoded = self._encode(tokenizer, texts)
        gained = self._process.memory_info().rss - before - encoded.ids.nbytes - encoded.offsets.nbytes
        self._grown += max(0, gained)
        return encoded

    def _bounded(self) -> Any:
        with self._lock:
            if self._grown > self._most_bytes:
                self._tokenizer = None  # before there is a new one: both would not fit
                _give_back_memory()
                self._tokenizer, self._grown = self._build(), 0
            return self._tokenizer

    @staticmethod
    def _encode(tokenizer: Any, texts: Sequence[str]) -> Encoded:
        if len(texts) <= _FEW:  # what `encode_batch` wraps its result in costs 0.3 ms
            arrays = [tokenizer.encode(text) for text in texts]
            return Encoded(np.concatenate(arrays).astype(np.uint32, copy=False), splits(np.array([*map(len, arrays)])))
        layout = tokenizer.encode_batch(list(texts), parallel=False).layout
        return Encoded(
            np.asarray(layout.content.data).astype(np.uint32, copy=False),
            np.asarray(layout.offsets.data).astype(np.int64, copy=False),
        )


_FACTORIES: Final[dict[EngineName, Callable[[Any, str, int], Engine]]] = {
    "gigatoken": lambda _, definition, budget: _Gigatoken(definition, budget),
    "tokenizers": lambda reference, definition, _: _Tokenizers(reference, definition),
    "transformers": lambda reference, *_: _Reference(reference),
}
