"""What the demo proves: the trainers' accounts against the corpus."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from rich.table import Table

from examples.demo.corpus import digest

_EDGE: Final = 0.05  # share of the steps that first and last loss are the mean of


@dataclass(frozen=True, kw_only=True)
class Report:
    """The figures of a run; `ok` says whether it proved what it should."""

    documents: int
    tokens: int
    tokens_expected: int
    batches: int
    fill: float
    steps: int
    loss_first: float
    loss_last: float
    lost: int
    duplicated: int

    @property
    def ok(self) -> bool:
        """Nothing lost, doubled or altered, and the loss fell."""
        whole = self.lost == self.duplicated == 0 and self.tokens == self.tokens_expected > 0
        return whole and self.loss_last < self.loss_first

    def to_json(self) -> dict[str, Any]:
        """The figures, losses and fill rounded."""
        return {name: round(value, 4) if isinstance(value, float) else value for name, value in asdict(self).items()}

    def table(self, seconds: dict[str, float]) -> Table:
        """The figures and the seconds of each stage, for people."""
        table = Table("", "", title="Tokenfeed demo", show_header=False)
        for name, value in self.to_json().items():
            table.add_row(name, f"{value:,}")
        for stage, spent in seconds.items():
            table.add_row(f"seconds: {stage}", f"{spent:.1f}")
        return table


def audit(accounts: list[Path], expected: Counter[str], tokens_expected: int, cells: int) -> Report:
    """Compare what the ranks were given with what the corpus holds.

    Args:
        accounts: one file a rank, as `trainer.Account` saves it.
        expected: digest of token ids -> how many documents have them, from an independent tokenizer pass.
        tokens_expected: their tokens.
        cells: cells of a batch, for the fill.
    """
    loaded = [np.load(account) for account in accounts]
    origins = np.concatenate([account["origins"] for account in loaded])
    ids = np.concatenate([account["ids"] for account in loaded])
    found, doubled = documents(origins, ids)
    batches = int(sum(account["batches"] for account in loaded))
    losses = loaded[0]["losses"]
    edge = max(1, int(len(losses) * _EDGE))
    return Report(
        documents=found.total(),
        tokens=len(ids),
        tokens_expected=tokens_expected,
        batches=batches,
        fill=len(ids) / (batches * cells) if batches else 0.0,
        steps=len(losses),
        loss_first=float(losses[:edge].mean()) if len(losses) else 0.0,
        loss_last=float(losses[-edge:].mean()) if len(losses) else 0.0,
        lost=(expected - found).total(),
        duplicated=doubled + (found - expected).total(),
    )


def documents(origins: npt.NDArray[Any], ids: npt.NDArray[Any]) -> tuple[Counter[str], int]:
    """Put documents together from their pieces: digests of whole documents, and how many pieces came twice.

    Args:
        origins: stream, offset, index, first token and length of each piece, int64 [D, 5].
        ids: token ids of all pieces, end to end.
    """
    ends = np.cumsum(origins[:, 4])
    pieces: dict[tuple[int, ...], list[tuple[int, int, int]]] = {}
    for (*document, first, length), end in zip(origins.tolist(), ends.tolist(), strict=True):
        pieces.setdefault(tuple(document), []).append((first, end - length, end))
    doubled = sum(len(parts) - len({first for first, *_ in parts}) for parts in pieces.values())
    whole = (np.concatenate([ids[start:end] for _, start, end in sorted(parts)]) for parts in pieces.values())
    return Counter(map(digest, whole)), doubled
