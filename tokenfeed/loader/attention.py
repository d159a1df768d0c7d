"""Attention masks that keep the documents of a row apart, for models that take one.

Models that read `position_ids` or `cu_seq_lens` (flash attention) need none of these.
"""

from __future__ import annotations

import torch
from torch.nn.attention.flex_attention import BlockMask, create_block_mask


def dense_mask(document_ids: torch.Tensor) -> torch.Tensor:
    """Which positions may be attended to, bool [B, 1, L, L]: [b, 0, q, k] is for query q and key k.

    A token attends to those of its own document up to itself; padding to padding, so that no row is empty and softmax gives
    no NaN.

    Args:
        document_ids: int64 [B, L] of a sample.
    """
    length = document_ids.shape[-1]
    same = document_ids[:, None, :, None] == document_ids[:, None, None, :]
    return same & torch.ones(length, length, dtype=torch.bool, device=document_ids.device).tril()


def block_mask(document_ids: torch.Tensor) -> BlockMask:
    """The same as a mask of FlexAttention, which skips blocks that hold nothing to attend to.

    Args:
        document_ids: int64 [B, L] of a sample, on the device of the model.
    """
    rows, length = document_ids.shape

    def may(row: torch.Tensor, head: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        del head
        return (query >= key) & (document_ids[row, query] == document_ids[row, key])

    return create_block_mask(may, rows, None, length, length, device=document_ids.device)
