"""The smallest language model there is, for the examples: it takes a sample as the loader gives it."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


class TinyModel(nn.Module):
    """Predicts a token from the one before it."""

    def __init__(self, vocab_size: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, 16)
        self.head = nn.Linear(16, vocab_size)

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor, **_: Any) -> dict[str, torch.Tensor]:
        """The mean loss of the labels that count; 0 where none does."""
        logits = self.head(self.embedding(input_ids[:, :-1])).flatten(0, 1)
        targets = labels[:, 1:].flatten()
        total = nn.functional.cross_entropy(logits, targets, reduction="sum")
        return {"loss": total / (targets >= 0).sum().clamp(min=1)}
