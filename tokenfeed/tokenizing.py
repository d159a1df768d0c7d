"""Text to token ids: transformers is the reference, the fastest engine that agrees with it does the work.

`load_tokenizer` reads a tokenizer with transformers' AutoTokenizer, never running code that came with it, and then
tries engines from the fastest on: gigatoken, the Rust `tokenizers`, transformers itself. An engine is taken only when it
gives the reference's ids for every probe string. Ids are those of `tokenizer(text, add_special_tokens=False)`; text that
spells a special token becomes that token, as the reference does it.

The fingerprint identifies a tokenizer by what it does: the hash of its canonical JSON and of its ids for the probes.
"""

from __future__ import annotations

import gc
import hashlib
import importlib.util
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import orjson

from tokenfeed.engines import Encoded, Engine, Gigatoken, Ids, Tokenizers, Transformers, give_back_memory
from tokenfeed.errors import SettingsError, TokenizerError
from tokenfeed.packing import splits
from tokenfeed.plan import BosRule, EosRule
from tokenfeed.probes import PROBES

EngineName = Literal["gigatoken", "tokenizers", "transformers"]

_ENGINES: Final[tuple[EngineName, ...]] = ("gigatoken", "tokenizers", "transformers")
_PACKAGE: Final = "package:"
_REASON: Final = 200  # characters of transformers' own message
_DEFAULT_MEMORY_BYTES: Final = 2**28


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
        expected = Transformers(reference).encode(PROBES)
        self._load = load  # the reference itself is let go: it takes more memory than the engine
        definition: str = reference.backend_tokenizer.to_str()
        canonical = _canonical(definition)
        self.fingerprint = _fingerprint(canonical, expected)
        self.parity: dict[str, str] = {}
        kind = type(reference.backend_tokenizer)
        self._definition = hashlib.sha256(canonical).digest()
        del reference
        gc.collect()
        give_back_memory()
        make = partial(_engine, load, kind, definition, memory_budget_bytes)
        self.engine, self._engine = self._choose(make, engine, expected)

    @property
    def ready(self) -> bool:
        """Whether `encode_batch` would begin at once: its engine need not be built anew."""
        return self._engine.ready

    def decode(self, ids: Sequence[int], /) -> str:
        """The text of ids, special tokens spelled out; bytes that are not whole characters become U+FFFD.

        Raises:
            TokenizerError: the files that the tokenizer was loaded from have changed.
        """
        return str(self._reference.decode(list(ids), skip_special_tokens=False))

    @cached_property
    def _reference(self) -> Any:
        reference = self._load()
        canonical = _canonical(reference.backend_tokenizer.to_str())
        if hashlib.sha256(canonical).digest() != self._definition:
            raise TokenizerError("the tokenizer's files are not those any more that it was loaded from; start anew")
        return reference

    def encode_batch(self, texts: Sequence[str], /) -> Encoded:
        """Ids of each text, with BOS and EOS as the rules say; none at all for a text that has no tokens.

        Raises:
            TokenizerError: a text holds a lone surrogate, which is not Unicode text; its index is named.
            TypeError, ValueError: something among them is not a string.
        """
        try:
            plain = self._engine.encode(texts)
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
        self, make: Callable[[EngineName], Engine], wanted: EngineName | Literal["auto"], expected: Encoded
    ) -> tuple[EngineName, Engine]:
        for name in _ENGINES if wanted == "auto" else (wanted,):
            try:
                engine = make(name)
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
        memory_budget_bytes: what an engine's caches may take. They grow by doubling, so an engine is built anew when they
            have reached a third of it.

    Raises:
        TokenizerError: it cannot be loaded, or the engine asked for disagrees with transformers.
        SettingsError: a rule needs a token that the tokenizer does not have.
    """
    return Tokenizer(partial(_load_reference, name, revision), engine, bos, eos, memory_budget_bytes)


def _load_reference(name: str, revision: str | None) -> Any:
    location = _in_package(name) if name.startswith(_PACKAGE) else name
    if Path(location).is_absolute() and not Path(location).exists():
        raise TokenizerError(f"TOKENFEED_TOKENIZER={name}: there is no {location}")
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


def _canonical(definition: str) -> bytes:
    """Without padding and truncation, which are a caller's state, not the tokenizer's."""
    values = orjson.loads(definition)
    for volatile in ("padding", "truncation"):
        values.pop(volatile, None)
    return orjson.dumps(values, option=orjson.OPT_SORT_KEYS)


def _fingerprint(canonical: bytes, probes: Encoded) -> str:
    digest = hashlib.sha256(canonical)
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


def _engine(load: Callable[[], Any], kind: Any, definition: str, memory_budget_bytes: int, name: EngineName) -> Engine:
    if name == "transformers":
        return Transformers(load())
    tokenizers = partial(Tokenizers, kind, definition)
    return tokenizers() if name == "tokenizers" else Gigatoken(definition, tokenizers, memory_budget_bytes)
