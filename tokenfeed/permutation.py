"""A seeded permutation that is the same on every machine, in every version, in any language.

NumPy allows its generators' streams to change between versions (NEP 19), which would change the bytes of a feed on
an upgrade. So the order is defined here: element i gets the key `mix(seed + (i + 1) * GAMMA)`, and the elements are
sorted by key, ties by index. `mix` and GAMMA are those of SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom
number generators, OOPSLA 2014), all arithmetic modulo 2^64. The seed is the first 8 bytes, little-endian, of the
BLAKE2b hash of the parts' decimal forms joined by "/".
"""

from __future__ import annotations

import hashlib
from typing import Final

import numpy as np
import numpy.typing as npt

_GAMMA: Final = np.uint64(0x9E3779B97F4A7C15)
_MIX_1: Final = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2: Final = np.uint64(0x94D049BB133111EB)


def permutation(size: int, *parts: int | str) -> npt.NDArray[np.int64]:
    """A permutation of 0..size-1 that depends on `parts` alone; int64 [size]. O(size log size)."""
    if size < 2:  # most windows of a feed that has caught up
        return np.arange(size, dtype=np.int64)
    digest = hashlib.blake2b("/".join(map(str, parts)).encode(), digest_size=8).digest()
    seed = np.uint64(int.from_bytes(digest, "little"))
    with np.errstate(over="ignore"):
        keys = seed + np.arange(1, size + 1, dtype=np.uint64) * _GAMMA
        keys = (keys ^ (keys >> np.uint64(30))) * _MIX_1
        keys = (keys ^ (keys >> np.uint64(27))) * _MIX_2
        keys ^= keys >> np.uint64(31)
    return np.argsort(keys, kind="stable").astype(np.int64, copy=False)
