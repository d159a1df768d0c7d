"""The order of a further pass over a feed: the sweep over the slots stays, the batches of each slot are permuted in blocks.

Batch n is still the n-th of the sweep, so that a rank that reads only its own slots still does. What the sweep calls the
i-th batch of a slot is, in epoch e > 0, the one whose place in i's block is permuted; blocks are K batches, the last of a
slot is what is left. So at most K batches a slot must be held, and the order depends on nothing but the plan's seed, the
epoch, K and how many batches each slot has.
"""

from __future__ import annotations

from functools import lru_cache

from tokenfeed.loader.order import Place
from tokenfeed.packing import Ints
from tokenfeed.permutation import permutation


def stands_at(place: Place, batches: int, seed: int, epoch: int, block: int) -> int:
    """Which valid batch of its slot stands at a place of the order.

    Args:
        place: where in the sweep, below `batches`.
        batches: how many the slot has.
        seed: the plan's.
        epoch: 1 or more.
        block: K.
    """
    number, within = divmod(place.index, block)
    size = min(block, batches - number * block)
    return number * block + int(_permuted(size, seed, epoch, place.slot, number)[within])


@lru_cache(maxsize=1024)
def _permuted(size: int, seed: int, epoch: int, slot: int, number: int) -> Ints:
    return permutation(size, seed, "epoch", epoch, slot, number)
