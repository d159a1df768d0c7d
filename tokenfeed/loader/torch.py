"""A feed as a PyTorch dataset."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed
from torch.utils.data import IterableDataset, get_worker_info

from tokenfeed.errors import CursorError
from tokenfeed.loader.cursor import Cursor, State
from tokenfeed.loader.feed import Feed
from tokenfeed.loader.reader import FeedReader, LastStep
from tokenfeed.loader.samples import padding, sample

TensorSample = dict[str, torch.Tensor]


class FeedDataset(IterableDataset[TensorSample]):
    """The batches of one rank as dicts of int64 tensors [B, L]: `input_ids`, `labels`, `position_ids`, `document_ids`.

    Give it to `DataLoader(dataset, batch_size=None)`: it yields whole batches and fetches ahead by itself. The state is
    taken at the batch that was last yielded, so save it behind the optimizer step of that batch. Every rank ends on
    the same step. It connects when it is first iterated.

    Args:
        feed: where the feed is and what is expected of it.
        rank, world: by default those of `torch.distributed` if it is initialised, else 0 of 1.
        step_batches, run, follow, last_step, slot_timeout, prefetch_bytes: see `FeedReader`.

    Attributes:
        reader: the reader of the current or last iteration, None before the first. `reader.last.batch.origins` tells
            which documents the sample yielded last came from.
    """

    def __init__(
        self,
        feed: Feed,
        rank: int | None = None,
        world: int | None = None,
        *,
        step_batches: int | None = None,
        run: str | None = None,
        follow: bool = False,
        last_step: LastStep = "pad",
        slot_timeout: float = 60.0,
        prefetch_bytes: int = 64 * 2**20,
    ) -> None:
        super().__init__()
        together = torch.distributed.is_available() and torch.distributed.is_initialized()
        if world is None and rank and not together:
            raise CursorError(f"rank {rank} of how many? Give world too, or initialise torch.distributed")
        self._feed = feed
        self._rank = rank if rank is not None else torch.distributed.get_rank() if together else 0
        self._world = world if world is not None else torch.distributed.get_world_size() if together else 1
        self._options: dict[str, Any] = {
            "step_batches": step_batches,
            "run": run,
            "follow": follow,
            "last_step": last_step,
            "slot_timeout": slot_timeout,
            "prefetch_bytes": prefetch_bytes,
        }
        self._cursor: Cursor | None = None
        self.reader: FeedReader | None = None

    def __iter__(self) -> Iterator[TensorSample]:
        """Yield from the loaded state on, or from where the last iteration stopped.

        Raises:
            CursorError: inside a DataLoader worker, whose state the trainer could not see.
        """
        if get_worker_info() is not None:
            raise CursorError("use DataLoader(num_workers=0): FeedDataset fetches ahead in a thread of its own")
        self.close()
        with FeedReader(self._feed, self._rank, self._world, cursor=self._cursor, **self._options) as reader:
            self.reader = reader
            for delivered in reader:
                self._cursor = reader.cursor
                plan = reader.plan
                if delivered.batch is None:
                    arrays = padding(plan.batch_size, plan.sequence_length, plan.pad_id)
                else:
                    arrays = sample(delivered.batch)
                yield {name: torch.from_numpy(array) for name, array in arrays.items()}

    def state_dict(self) -> State:
        """The position behind the last batch yielded, JSON-safe; empty before the first."""
        return {} if self._cursor is None else self._cursor.to_state()

    def load_state_dict(self, state: State) -> None:
        """Go on behind the position of `state`, also one saved under another `world`.

        Raises:
            CursorError: it is not a state of this loader.
        """
        self._cursor = Cursor.from_state(state) if state else None

    def close(self) -> None:
        """Stop reading."""
        if self.reader is not None:
            self.reader.close()
