"""Checking everything a feed's settings lead to."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tokenfeed.changes import in_force, read_ledgers
from tokenfeed.errors import TokenfeedError
from tokenfeed.kafka import connection, partition_counts
from tokenfeed.planning import edition_of, outdated, plan_of, read_editions, tokenizer_of
from tokenfeed.settings import Settings
from tokenfeed.topics import check_topics

if TYPE_CHECKING:
    from tokenfeed.tokenizing import Tokenizer

_PACKAGES: Final = (
    "tokenfeed",
    "confluent-kafka",
    "faust-streaming",
    "aiokafka",
    "transformers",
    "gigatoken",
    "torch",
)


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at: what was found, and the fault with its way out, if there is one.

    A check that was not made, because another has a fault, has neither.
    """

    name: str
    found: str
    fault: str | None = None

    @property
    def was_made(self) -> bool:
        """Whether it was looked at at all."""
        return bool(self.found or self.fault)


def examine(settings: Settings) -> Iterator[Check]:
    """Check packages, tokenizer, broker, topics and plan; what needs a thing that has a fault is not looked at."""
    yield Check("packages", ", ".join(_versions()))
    loaded: list[Tokenizer] = []
    yield _checked("tokenizer", lambda: _tokenizer(settings, loaded))
    broker = _checked("broker", lambda: _broker(settings))
    yield broker
    topics = Check("topics", "") if broker.fault else _checked("topics", lambda: _topics(settings))
    yield topics
    ready = loaded and topics.was_made and not topics.fault
    yield _checked("plan", lambda: _plan(settings, loaded[0])) if ready else Check("plan", "")


def _checked(name: str, look: Callable[[], str]) -> Check:
    try:
        return Check(name, look())
    except TokenfeedError as error:
        return Check(name, "", str(error))


def _versions() -> Iterator[str]:
    for package in _PACKAGES:
        try:
            yield f"{package} {importlib.metadata.version(package)}"
        except importlib.metadata.PackageNotFoundError:
            yield f"{package} not installed"


def _broker(settings: Settings) -> str:
    return f"{len(partition_counts(connection(settings)))} topics at {settings.bootstrap_servers}"


def _topics(settings: Settings) -> str:
    names = in_force(settings)
    check_topics(names)
    return ", ".join(names.topics)


def _tokenizer(settings: Settings, loaded: list[Tokenizer]) -> str:
    tokenizer = tokenizer_of(settings)
    loaded.append(tokenizer)
    parity = ", ".join(f"{engine}: {result}" for engine, result in tokenizer.parity.items())
    return f"engine {tokenizer.engine} ({parity}), {tokenizer.vocab_size} ids, fingerprint {tokenizer.fingerprint[:16]}"


def _plan(settings: Settings, tokenizer: Tokenizer) -> str:
    ours = plan_of(settings, tokenizer)
    found = read_editions(connection(settings), settings.plan_topic)
    if not found:
        return f"{ours.id}; the first worker will write it"
    edition = edition_of(ours, found, settings.plan_topic)
    if edition == found[-1]:
        return f"{ours.id}, as the feed says"
    following = found[edition.number].plan
    if all(ledger.is_sealed for ledger in read_ledgers(settings, edition)):
        raise outdated(ours, following)
    return f"{ours.id}; workers with it end their streams, for the feed is to go on under {following.id}"
