"""The conservation law of one window.

What goes into a window is its own documents and the pieces that it carries; what comes out is its batches, the pieces
that it leaves to the next, its dead letters, and what it left out on purpose. Every document and every carried piece
must come out in full, once, in one of them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from tokenfeed.content import sort_out
from tokenfeed.documents import RawRecord
from tokenfeed.ledger import Cut, Done
from tokenfeed.packing import Ints
from tokenfeed.plan import Plan


@dataclass(frozen=True, slots=True, order=True)
class Origin:
    """Where a document stands in its stream's raw partitions."""

    source: int
    offset: int
    index: int


Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Contents:
    """What a batch says it holds: origins [D, 4] and lengths [D] of its pieces, int64."""

    origins: Ints
    lengths: Ints


@dataclass(slots=True)
class Account:
    """Where documents are. Counts; `lost` and `doubled` name the documents.

    Attributes:
        documents: all that were accepted below the frontier.
        batched: those with tokens in batches or on their way from one window to the next.
        dead: those in the dead letters.
        filtered: reason -> those left out on purpose.
        tokens: tokens in batches, padding not counted.
        lost: documents that are nowhere, or not in full.
        doubled: documents of which a part stands in two places.
        token_faults: windows whose tokens do not add up to what the ledger says.
    """

    documents: int = 0
    batched: int = 0
    dead: int = 0
    filtered: Counter[str] = field(default_factory=Counter)
    tokens: int = 0
    lost: list[Origin] = field(default_factory=list)
    doubled: list[Origin] = field(default_factory=list)
    token_faults: list[int] = field(default_factory=list)


def settle(
    plan: Plan,
    cut: Cut,
    done: Done,
    own: Sequence[RawRecord],
    contents: Iterable[Contents],
    letters: AbstractSet[Origin] | None,
) -> Account:
    """Check the conservation law of a window.

    Args:
        plan: the feed's plan.
        cut, done: the window's ledger entries.
        own: the raw records in the cut's ranges.
        contents: of the window's batches that are in the valid sequence.
        letters: origins of the dead letters that lie in the cut's ranges; None if retention may have removed them.
    """
    account = Account()
    found, account.tokens = _spans(contents)
    for piece in done.carry:
        found[Origin(piece.source, piece.offset, piece.index)].append((piece.first, piece.first + piece.length))
    wanted: dict[Origin, list[Span]] = defaultdict(list)
    for piece in cut.carry:
        wanted[Origin(piece.source, piece.offset, piece.index)].append((piece.first, piece.first + piece.length))
    for origin, spans in wanted.items():
        _compare(account, origin, spans, found.pop(origin, []))
    documents, rejections, filtered = sort_out(plan, own)
    _settle_own(
        account,
        done,
        [Origin(d.source, d.offset, d.index) for d in documents],
        Counter(drop.reason for drop in filtered),
        found,
    )
    rejected = {Origin(r.source, r.offset, r.index) for r in rejections}
    _settle_dead(account, rejected, rejected if letters is None else letters)
    account.doubled += found  # what is left belongs to another window, or was rejected or left out
    carried_in = sum(piece.length for piece in cut.carry)
    carried_on = sum(piece.length for piece in done.carry)
    if account.tokens != done.tokens + carried_in - carried_on:
        account.token_faults.append(cut.window)
    return account


def _spans(contents: Iterable[Contents]) -> tuple[dict[Origin, list[Span]], int]:
    found: dict[Origin, list[Span]] = defaultdict(list)
    tokens = 0
    for held in contents:
        lengths = held.lengths.tolist()
        for (offset, index, first, source), length in zip(held.origins.tolist(), lengths, strict=True):
            found[Origin(source, offset, index)].append((first, first + length))
            tokens += length
    return found, tokens


def _settle_own(
    account: Account, done: Done, documents: list[Origin], filtered: Counter[str], found: dict[Origin, list[Span]]
) -> None:
    without = [origin for origin in documents if origin not in found]
    for origin in documents:
        if spans := found.pop(origin, None):
            _compare(account, origin, [(0, max(end for _, end in spans))], spans)
    # The records do not tell which documents have no token, the ledger tells how many.
    empty = min(len(without), max(0, done.filtered.get("empty", 0) - filtered["empty"]))
    account.lost += without[empty:]
    account.batched = len(documents) - len(without)
    account.filtered = filtered + Counter({"empty": empty} if empty else {})
    account.documents = len(documents) + filtered.total()


def _settle_dead(account: Account, rejected: AbstractSet[Origin], letters: AbstractSet[Origin]) -> None:
    account.documents += len(rejected)
    account.dead = len(rejected & letters)
    account.lost += sorted(rejected - letters)
    account.doubled += sorted(letters - rejected)


def _compare(account: Account, origin: Origin, wanted: list[Span], found: list[Span]) -> None:
    """Whether spans cover what is wanted, each token once, and nothing else."""
    joined = _joined(found)
    common = _common(_joined(wanted), joined)
    if common < _total(wanted):
        account.lost.append(origin)
    if _total(found) > common:
        account.doubled.append(origin)


def _total(spans: Iterable[Span]) -> int:
    return sum(end - start for start, end in spans)


def _joined(spans: list[Span]) -> list[Span]:
    """The same tokens as spans that neither overlap nor touch, in order."""
    joined: list[Span] = []
    for start, end in sorted(spans):
        if joined and start <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(end, joined[-1][1])
        else:
            joined.append((start, end))
    return joined


def _common(one: list[Span], other: list[Span]) -> int:
    """How many tokens are in both."""
    return sum(max(0, min(a[1], b[1]) - max(a[0], b[0])) for a in one for b in other)
