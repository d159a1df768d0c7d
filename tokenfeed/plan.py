"""The plan: everything that decides the content of a feed, and nothing else.

Two workers with equal plans, equal cuts and equal raw records emit equal bytes. Whatever changes a single byte of
a batch is a field here; whatever does not (brokers, memory, threads, when windows are cut) is a setting. The plan id
is a hash of the canonical JSON of all fields, so that one different field is another feed.
"""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

import orjson

from tokenfeed.errors import SettingsError, WireError

WIRE_VERSION = 2
UINT16_VOCABULARY = 1 << 16

BosRule = Literal["none", "prepend"]
EosRule = Literal["none", "append"]
Packing = Literal["best_fit", "concatenate"]
RecordFormat = Literal["auto", "text", "json", "ndjson"]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What decides content.

    Attributes:
        seed: seed of every permutation.
        sequence_length: token ids in a row (L).
        batch_size: rows in a batch (B).
        slots: partitions of the batches topic (S).
        streams: partitions of each raw topic (P).
        sources: raw topics, in the order that origins count them.
        tokenizer: fingerprint of the tokenizer.
        vocab_size: ids lie in [0, vocab_size).
        bos, eos: whether a BOS id is put before, an EOS id behind each document.
        bos_id, eos_id: the ids used; -1 where the rule is "none" and the tokenizer has none.
        pad_id: id in cells that hold no token.
        packing: how pieces are laid into rows.
        carry: how many windows may leave a piece to the next; 0 fills up every window's last batch with padding.
        record_format: how raw records are read.
        text_field, id_field: names in JSON documents.
        wire_version: layout of the batch message.
    """

    seed: int
    sequence_length: int
    batch_size: int
    slots: int
    streams: int
    sources: tuple[str, ...]
    tokenizer: str
    vocab_size: int
    bos: BosRule
    eos: EosRule
    bos_id: int
    eos_id: int
    pad_id: int
    packing: Packing
    carry: int
    record_format: RecordFormat
    text_field: str
    id_field: str
    wire_version: int = WIRE_VERSION

    def __post_init__(self) -> None:
        for name in ("sequence_length", "batch_size", "slots", "streams", "vocab_size"):
            if getattr(self, name) < 1:
                raise SettingsError(f"plan: {name} must be at least 1, got {getattr(self, name)}")
        if self.carry < 0:
            raise SettingsError(f"plan: carry must be at least 0, got {self.carry}")
        if not self.sources:
            raise SettingsError("plan: at least one raw topic is needed")
        if not 0 <= self.pad_id < self.vocab_size:
            raise SettingsError(f"plan: pad_id {self.pad_id} lies outside the vocabulary of {self.vocab_size}")

    @property
    def id(self) -> str:
        """First 16 hex digits of the SHA-256 of the canonical JSON."""
        return hashlib.sha256(self.to_json()).hexdigest()[:16]

    @property
    def token_dtype(self) -> Literal["uint16", "int32"]:
        """Type of the token ids of a batch: the smaller one that the vocabulary fits."""
        return "uint16" if self.vocab_size <= UINT16_VOCABULARY else "int32"

    def slot(self, stream: int, number: int) -> int:
        """The slot of batch `number` of `stream`: (stream + number) mod slots."""
        return (stream + number) % self.slots

    def to_json(self) -> bytes:
        """Canonical JSON: sorted keys, no spaces."""
        return orjson.dumps(asdict(self), option=orjson.OPT_SORT_KEYS)

    @classmethod
    def from_json(cls, data: bytes) -> Plan:
        """Read what `to_json` wrote.

        Raises:
            WireError: not JSON, a field missing or unknown, or a wire version other than ours.
        """
        try:
            values: dict[str, Any] = orjson.loads(data)
            values["sources"] = tuple(values["sources"])
            plan = cls(**values)
        except (orjson.JSONDecodeError, KeyError, TypeError) as error:
            raise WireError(f"the plan topic holds something that is not a plan: {type(error).__name__}") from None
        if plan.wire_version != WIRE_VERSION:
            raise WireError(
                f"the feed uses wire version {plan.wire_version}, this Tokenfeed reads {WIRE_VERSION}; install its match"
            )
        return plan


def differences(ours: Plan, theirs: Plan) -> list[str]:
    """One line a field in which two plans differ, e.g. `seed: 0 here, 7 there`."""
    return [
        f"{field.name}: {getattr(ours, field.name)!r} here, {getattr(theirs, field.name)!r} there"
        for field in fields(Plan)
        if getattr(ours, field.name) != getattr(theirs, field.name)
    ]
