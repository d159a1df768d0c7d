"""A feed as a tf.data.Dataset.

tf.data takes batches ahead of the model, as many as it likes, so what was yielded says nothing about what was trained on.
The position follows the model instead: `FeedCallback` tells it after every batch of `model.fit`, a loop of one's own calls
`trained`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tokenfeed.errors import CursorError
from tokenfeed.loader.cursor import Cursor, State
from tokenfeed.loader.feed import Feed
from tokenfeed.loader.reader import FeedReader
from tokenfeed.loader.samples import FIELDS, Field, padding, sample


class FeedSource:
    """The batches of one rank, in the order and with the state of every other loader.

    Args:
        feed: where the feed is and what is expected of it.
        rank, world: this rank and their number, as in `FeedReader`.
        fields: what an element has; see `tokenfeed.loader.samples.sample`.
        options: further arguments of `FeedReader`.
    """

    def __init__(
        self, feed: Feed, rank: int = 0, world: int = 1, *, fields: Sequence[Field] = FIELDS, **options: Any
    ) -> None:
        self._feed = feed
        self._rank, self._world = rank, world
        self._fields = tuple(fields)
        self._options = options
        self._cursor: Cursor | None = None
        self._given: deque[Cursor] = deque()
        self.reader: FeedReader | None = None

    def dataset(self) -> tf.data.Dataset:
        """Elements of int64 [B, L] by field. Each iteration begins behind what was trained on, and ends with the feed."""
        plan = self._feed.edition(self._cursor.plan if self._cursor is not None else None).plan
        shape = plan.batch_size, plan.sequence_length
        signature = {name: tf.TensorSpec(shape, tf.int64) for name in self._fields}
        return tf.data.Dataset.from_generator(self._read, output_signature=signature)

    def trained(self, batches: int = 1) -> None:
        """The model has been trained on so many more batches.

        Raises:
            CursorError: there were not so many.
        """
        if batches > len(self._given):
            raise CursorError(f"{batches} batches trained on, but only {len(self._given)} were given since the last call")
        for _ in range(batches):
            self._cursor = self._given.popleft()

    def state_dict(self) -> State:
        """The position behind the last batch trained on, JSON-safe; empty before the first."""
        return {} if self._cursor is None else self._cursor.to_state()

    def load_state_dict(self, state: State) -> None:
        """Go on behind the position of `state`, also one saved under another `world` or by another loader.

        Raises:
            CursorError: it is not a state of Tokenfeed.
        """
        self._cursor = Cursor.from_state(state) if state else None
        self._given.clear()

    def close(self) -> None:
        """Stop reading."""
        if self.reader is not None:
            self.reader.close()

    def _read(self) -> Iterator[dict[str, Any]]:
        self.close()
        self._given.clear()
        with FeedReader(self._feed, self._rank, self._world, cursor=self._cursor, **self._options) as reader:
            self.reader = reader
            plan = reader.plan
            for delivered in reader:
                self._given.append(reader.cursor)
                if delivered.batch is None:
                    arrays = padding(plan.batch_size, plan.sequence_length, plan.pad_id)
                else:
                    arrays = sample(delivered.batch, self._fields)
                yield {name: np.ascontiguousarray(arrays[name]) for name in self._fields}


class FeedCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Moves the position of a FeedSource after every batch that `model.fit` has trained on.

    Args:
        source: what `model.fit` reads.
    """

    def __init__(self, source: FeedSource) -> None:
        super().__init__()
        self._source = source
        self._seen = 0

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Batches are counted anew."""
        del epoch, logs
        self._seen = 0

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """All batches up to number `batch` of the epoch are trained on; several at once with `steps_per_execution`."""
        del logs
        self._source.trained(batch + 1 - self._seen)
        self._seen = batch + 1
