"""Keras's model.fit on TensorFlow. Kill it at any step; it goes on behind its last checkpoint.

python -m examples.tensorflow runs/tensorflow
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import keras

from tokenfeed.loader import Feed
from tokenfeed.loader.tensorflow import FeedCallback, FeedSource
from tokenfeed.settings import load_settings


class Save(keras.callbacks.Callback):  # type: ignore[misc]
    """A checkpoint every five steps."""

    def __init__(self, folder: Path, source: FeedSource, step: int) -> None:
        super().__init__()
        self.folder, self.source, self.step = folder, source, step

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Comes after FeedCallback's."""
        self.step += 1
        if self.step % 5 == 0:
            self.model.save_weights(self.folder / f"step-{self.step:08d}.weights.h5")
            written = self.folder / f"step-{self.step:08d}.new"
            written.write_text(json.dumps(self.source.state_dict()))
            written.rename(written.with_suffix(".json"))  # what has no such file was cut off


def main(folder: Path) -> None:
    """Train until the feed ends."""
    folder.mkdir(parents=True, exist_ok=True)
    feed = Feed.of(load_settings())
    plan = feed.edition().plan
    source = FeedSource(feed, fields=("input_ids", "labels"), run=folder.name)
    model = keras.Sequential([keras.layers.Embedding(plan.vocab_size, 16), keras.layers.Dense(plan.vocab_size)])
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=-100))
    model.build((None, plan.sequence_length - 1))
    saved = sorted(folder.glob("step-*.json"))
    step = int(saved[-1].stem.split("-")[1]) if saved else 0
    if saved:
        model.load_weights(saved[-1].with_suffix(".weights.h5"))
        source.load_state_dict(json.loads(saved[-1].read_text()))
    print(f"from step {step}", flush=True)
    samples = source.dataset().map(lambda sample: (sample["input_ids"][:, :-1], sample["labels"][:, 1:]))
    model.fit(samples, callbacks=[FeedCallback(source), Save(folder, source, step)], verbose=2)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
