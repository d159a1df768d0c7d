"""A feed as a PyTorch dataset."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal, get_args

import numpy as np
import orjson
import torch
import torch.distributed
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from tokenfeed.errors import CursorError
from tokenfeed.loader.cursor import Cursor, State
from tokenfeed.loader.feed import Feed
from tokenfeed.loader.reader import Delivered, FeedReader, LastStep
from tokenfeed.loader.samples import FIELDS, Field, flattened, flattened_padding, padding, sample
from tokenfeed.loader.span import Span

TensorSample = dict[str, Any]
Layout = Literal["rows", "flat"]


class FeedDataset(IterableDataset[TensorSample]):
    """The batches of one rank as dicts of tensors.

    In rows, they are `input_ids`, `labels`, `position_ids` and `document_ids`, int64 [B, L] each. Flat, for padding-free
    attention, they are what `tokenfeed.loader.samples.flattened` says: the names that transformers' models take.

    Give it to `FeedLoader(dataset)`, with `num_workers=N` where decoding in the trainer's process takes too long, or to
    `DataLoader(dataset, batch_size=None)`: it yields whole batches and fetches ahead by itself. The state is taken at the
    batch that was last yielded, so save it behind the optimizer step of that batch. Every rank ends on the same step.
    It connects when it is first iterated.

    Args:
        feed: where the feed is and what is expected of it.
        rank, world: by default those of `torch.distributed` if it is initialised, else 0 of 1.
        layout: "rows" or "flat".
        fields: which of the four a dict of rows has; each costs the trainer's process 4 to 40 microseconds a batch of 16k
            tokens.
        step_batches, run, follow, last_step, slot_timeout, prefetch_bytes, shuffle_batches, span: see `FeedReader`.

    Attributes:
        reader: the reader of the current or last iteration in this process, None before the first; workers have their
            own. `reader.last.batch.origins` tells which documents the sample yielded last came from.
    """

    def __init__(
        self,
        feed: Feed,
        rank: int | None = None,
        world: int | None = None,
        *,
        layout: Layout = "rows",
        fields: Sequence[Field] = FIELDS,
        step_batches: int | None = None,
        run: str | None = None,
        follow: bool = False,
        last_step: LastStep = "pad",
        slot_timeout: float = 60.0,
        prefetch_bytes: int = 64 * 2**20,
        shuffle_batches: int = 64,
        span: Span | None = None,
    ) -> None:
        super().__init__()
        if layout not in get_args(Layout):
            raise ValueError(f"layout: {layout}: there are {', '.join(get_args(Layout))}")
        if layout == "flat" and tuple(fields) != FIELDS:
            raise ValueError("fields are of rows; a flat sample has all that padding-free attention needs")
        if unknown := set(fields) - set(FIELDS):
            raise ValueError(f"fields: {', '.join(sorted(unknown))}: a sample has {', '.join(FIELDS)}")
        together = torch.distributed.is_available() and torch.distributed.is_initialized()
        if world is None and rank and not together:
            raise CursorError(f"rank {rank} of how many? Give world too, or initialise torch.distributed")
        self._feed = feed
        self._layout = layout
        self._fields = tuple(fields)
        self._rank = rank if rank is not None else torch.distributed.get_rank() if together else 0
        self._world = world if world is not None else torch.distributed.get_world_size() if together else 1
        self._options: dict[str, Any] = {
            "step_batches": step_batches,
            "run": run,
            "follow": follow,
            "last_step": last_step,
            "slot_timeout": slot_timeout,
            "prefetch_bytes": prefetch_bytes,
            "shuffle_batches": shuffle_batches,
            "span": span,
        }
        self._cursor: Cursor | None = None
        self._epoch = 0
        self._in_feed_loader = False
        self.reader: FeedReader | None = None

    def __iter__(self) -> Iterator[TensorSample]:
        """Yield from the loaded state on, or from where the last iteration stopped.

        Raises:
            CursorError: inside a worker of a plain DataLoader, whose state the trainer could not see.
        """
        worker = get_worker_info()
        if worker is not None:
            if not self._in_feed_loader:
                raise CursorError("use FeedLoader(dataset, num_workers=N): a plain DataLoader with workers loses the state")
            return self._part(worker.id, worker.num_workers)
        return self._whole()

    def _whole(self) -> Iterator[TensorSample]:
        self.close()
        with self._read() as reader:
            self.reader = reader
            for delivered in reader:
                self._cursor = reader.cursor
                yield self._tensors(reader, delivered)

    def _part(self, worker: int, workers: int) -> Iterator[Any]:
        """(sample, how the cursor moves with it) of a worker's part.

        A forked process must leave the parent's reader alone: only its reference is there, not its thread.
        """
        with self._read(part=(worker, workers)) as reader:
            before = self._cursor
            for delivered in reader:
                after = reader.cursor
                yield self._tensors(reader, delivered), orjson.dumps(after.moved(before).to_state())
                before = after

    def _read(self, **options: Any) -> FeedReader:
        place: dict[str, Any] = {"cursor": self._cursor, "epoch": self._epoch}
        return FeedReader(self._feed, self._rank, self._world, **place, **self._options, **options)

    def _tensors(self, reader: FeedReader, delivered: Delivered) -> TensorSample:
        plan, batch = reader.plan, delivered.batch
        if self._layout == "flat":
            flat = flattened_padding(plan.sequence_length, plan.pad_id) if batch is None else flattened(batch)
            return {
                name: torch.from_numpy(value) if isinstance(value, np.ndarray) else value for name, value in flat.items()
            }
        arrays = (
            padding(plan.batch_size, plan.sequence_length, plan.pad_id) if batch is None else sample(batch, self._fields)
        )
        return {name: torch.from_numpy(arrays[name]) for name in self._fields}

    def advance(self, moved: bytes) -> None:
        """Take over how the cursor moved with a sample of a worker."""
        cursor = Cursor.from_state(orjson.loads(moved))
        same_plan = self._cursor is not None and self._cursor.plan == cursor.plan
        self._cursor = cursor.joined(self._cursor) if self._cursor is not None and same_plan else cursor

    def __getstate__(self) -> dict[str, Any]:
        """For processes that are not forked: everything but the reader, which belongs to this one."""
        return {**self.__dict__, "reader": None}

    def set_epoch(self, epoch: int) -> None:
        """Iterate over this pass next: 0 gives the feed as it comes, later ones a sealed feed again in other orders.

        It begins at its first batch, except where the position is in this very pass already: so the usual loop over
        epochs goes on from a loaded state, if it starts with the state's epoch.

        Raises:
            CursorError: there is no such epoch.
        """
        if epoch < 0:
            raise CursorError(f"epoch {epoch}: epochs are counted from 0")
        if epoch != self._epoch and self._cursor is not None:
            self._cursor = self._cursor.at_epoch(epoch, self._options["shuffle_batches"])
        self._epoch = epoch

    @property
    def epoch(self) -> int:
        """The pass that `set_epoch` or a loaded state has chosen."""
        return self._epoch

    def state_dict(self) -> State:
        """The position behind the last batch yielded, JSON-safe; empty before the first."""
        return {} if self._cursor is None else self._cursor.to_state()

    def load_state_dict(self, state: State) -> None:
        """Go on behind the position of `state`, also one saved under another `world`.

        Raises:
            CursorError: it is not a state of this loader.
        """
        self._cursor = Cursor.from_state(state) if state else None
        self._epoch = self._cursor.epoch if self._cursor is not None else self._epoch

    def close(self) -> None:
        """Stop reading."""
        if self.reader is not None:
            self.reader.close()


class FeedLoader(DataLoader[TensorSample]):
    """A DataLoader whose workers read and decode a FeedDataset, with the state in this process.

    Each of N workers reads every N-th batch of this rank, and they are yielded in order: the samples are those of
    `num_workers=0`. `dataset.state_dict()` is the position behind the sample that was yielded last, whatever the workers
    have prepared ahead, and does not depend on their number. Every iteration goes on there.

    With workers, `run` commits the workers' positions, which are ahead of the trained one by what they have prepared.

    Args:
        dataset: what to read; its loaded state holds.
        num_workers: processes (N); 0 reads in this one.
        prefetch_factor: samples that each worker prepares ahead; by default 2.
        pin_memory: whether samples are copied to pinned memory.
        multiprocessing_context: how processes are started; by default the platform's way.
    """

    dataset: FeedDataset

    def __init__(
        self,
        dataset: FeedDataset,
        num_workers: int = 0,
        *,
        prefetch_factor: int | None = None,
        pin_memory: bool = False,
        multiprocessing_context: str | None = None,
    ) -> None:
        super().__init__(
            dataset,
            batch_size=None,
            collate_fn=_as_it_is,
            num_workers=num_workers,
            prefetch_factor=prefetch_factor,
            pin_memory=pin_memory,
            multiprocessing_context=multiprocessing_context,
            worker_init_fn=_enter_feed_loader,
        )

    def __iter__(self) -> Iterator[TensorSample]:  # type: ignore[override]
        """Yield from the loaded state on, or from where the last iteration stopped."""
        self.dataset.close()
        if self.num_workers == 0 and not self.pin_memory:  # PyTorch's own iterator would take half as long again
            yield from self.dataset
            return
        if self.num_workers == 0:
            yield from super().__iter__()
            return
        for sample_of_worker, moved in super().__iter__():
            self.dataset.advance(moved)
            yield sample_of_worker


def _as_it_is(sample: Any) -> Any:
    """What PyTorch would do to a sample instead takes longer than reading it."""
    return sample


def _enter_feed_loader(_: int) -> None:
    worker = get_worker_info()
    assert worker is not None and isinstance(worker.dataset, FeedDataset)  # noqa: S101
    worker.dataset._in_feed_loader = True
