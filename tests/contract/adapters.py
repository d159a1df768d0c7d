"""Every way of reading a feed, behind one face, so that the same tests judge them all."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from multiprocessing import get_context
from typing import Any, Protocol

import numpy as np
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

from tests.contract import tensorflow_process
from tokenfeed.loader import Cursor, Feed, FeedReader
from tokenfeed.loader.torch import FeedDataset, FeedLoader

State = dict[str, Any]
Ids = tuple[int, ...] | None  # the token ids of a batch, None for one of padding


class Adapter(Protocol):
    """A way of reading.

    Attributes:
        elastic: its state holds for any number of ranks.
    """

    elastic: bool

    def read(
        self, feed: Feed, rank: int, world: int, state: State | None = None, stop: int | None = None, **options: Any
    ) -> tuple[list[Ids], State]:
        """The next batches of a rank, all or so many, and its state behind them."""


def ids(sample: Any) -> Ids:
    """Of a dict of tensors [B, L]."""
    if not (np.asarray(sample["labels"]) >= 0).any():
        return None
    return tuple(np.asarray(sample["input_ids"]).reshape(-1).tolist())


@dataclass(frozen=True)
class Reader:
    """FeedReader itself."""

    elastic: bool = True

    def read(
        self, feed: Feed, rank: int, world: int, state: State | None = None, stop: int | None = None, **options: Any
    ) -> tuple[list[Ids], State]:
        cursor = Cursor.from_state(state) if state else None
        with FeedReader(feed, rank, world, cursor=cursor, slot_timeout=20, **options) as reader:
            found = [one.batch and tuple(one.batch.input_ids.reshape(-1).tolist()) for one in islice(reader, stop)]
            return found, reader.cursor.to_state()


@dataclass(frozen=True)
class Plain:
    """PyTorch's own DataLoader, without workers."""

    elastic: bool = True

    def read(
        self, feed: Feed, rank: int, world: int, state: State | None = None, stop: int | None = None, **options: Any
    ) -> tuple[list[Ids], State]:
        dataset = FeedDataset(feed, rank, world, slot_timeout=20, **options)
        dataset.load_state_dict(state or {})
        found = [ids(sample) for sample in islice(DataLoader(dataset, batch_size=None), stop)]
        return found, dataset.state_dict()


@dataclass(frozen=True)
class Feeding:
    """FeedLoader."""

    workers: int = 0
    start: str | None = None
    persistent: bool = False
    elastic: bool = True

    def read(
        self, feed: Feed, rank: int, world: int, state: State | None = None, stop: int | None = None, **options: Any
    ) -> tuple[list[Ids], State]:
        dataset = FeedDataset(feed, rank, world, slot_timeout=20, **options)
        how = {"multiprocessing_context": self.start, "persistent_workers": self.persistent, "device": "cpu"}
        loader = FeedLoader(dataset, self.workers, **how)  # type: ignore[arg-type]
        loader.load_state_dict(state or {})
        found = [ids(sample) for sample in islice(loader, stop)]
        return found, loader.state_dict()


@dataclass(frozen=True)
class Stateful:
    """torchdata's StatefulDataLoader."""

    workers: int = 0
    start: str | None = None
    persistent: bool = False
    elastic: bool = False

    def read(
        self, feed: Feed, rank: int, world: int, state: State | None = None, stop: int | None = None, **options: Any
    ) -> tuple[list[Ids], State]:
        dataset = FeedDataset(feed, rank, world, slot_timeout=20, **options)
        how = {"multiprocessing_context": self.start, "persistent_workers": self.persistent}
        loader = StatefulDataLoader(dataset, batch_size=None, num_workers=self.workers, **how)
        if state:
            loader.load_state_dict(state)
        found = [ids(sample) for sample in islice(loader, stop)]
        return found, loader.state_dict()


@dataclass(frozen=True)
class TfData:
    """tf.data, which takes elements ahead."""

    elastic: bool = True

    def read(
        self, feed: Feed, rank: int, world: int, state: State | None = None, stop: int | None = None, **options: Any
    ) -> tuple[list[Ids], State]:
        return _tensorflow().submit(tensorflow_process.read, feed, rank, world, state, options, stop).result()


@lru_cache
def _tensorflow() -> ProcessPoolExecutor:
    return ProcessPoolExecutor(1, get_context("spawn"))


ADAPTERS: dict[str, Adapter] = {
    "tf.data": TfData(),
    "reader": Reader(),
    "dataloader": Plain(),
    "feedloader": Feeding(),
    "feedloader-1": Feeding(1),
    "feedloader-2": Feeding(2),
    "feedloader-2-persistent": Feeding(2, persistent=True),
    "stateful": Stateful(),
    "stateful-1": Stateful(1),
    "stateful-2": Stateful(2),
    "stateful-2-persistent": Stateful(2, persistent=True),
}
SPAWNING: dict[str, Adapter] = {"feedloader-2": Feeding(2, "spawn"), "stateful-2": Stateful(2, "spawn")}
