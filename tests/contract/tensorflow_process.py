"""tf.data in a process of its own: TensorFlow and PyTorch's compiler crash each other in one process."""

from __future__ import annotations

from itertools import islice
from typing import Any

import numpy as np

from tokenfeed.loader import Feed


def read(
    feed: Feed, rank: int, world: int, state: dict[str, Any] | None, options: dict[str, Any], stop: int | None
) -> tuple[list[Any], dict[str, Any]]:
    """The token ids of the next batches, all or so many, None for padding, and the state when they are trained on."""
    from tokenfeed.loader.tensorflow import FeedSource

    source = FeedSource(feed, rank, world, slot_timeout=20, **options)
    source.load_state_dict(state or {})
    found: list[Any] = []
    for element in islice(source.dataset().prefetch(4), stop):
        source.trained()
        is_padding = not (element["labels"].numpy() >= 0).any()
        found.append(None if is_padding else tuple(np.reshape(element["input_ids"].numpy(), -1).tolist()))
    source.close()
    return found, source.state_dict()
