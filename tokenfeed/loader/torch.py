"""A feed as a PyTorch dataset."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Literal, get_args

import numpy as np
import orjson
import torch
import torch.distributed
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from tokenfeed.errors import CursorError
from tokenfeed.loader.cursor import Cursor, State
from tokenfeed.loader.device import Placer
from tokenfeed.loader.feed import Feed
from tokenfeed.loader.reader import Delivered, FeedReader, LastStep
from tokenfeed.loader.samples import FIELDS, Field, flattened, flattened_padding, padding, sample
from tokenfeed.loader.span import Span

TensorSample = dict[str, Any]
Layout = Literal["rows", "flat"]

_SHARED_BYTES: Final = 4 * 2**20  # a state of 512 slots and 512 streams


class FeedDataset(IterableDataset[TensorSample]):
    """The batches of one rank as dicts of tensors.

    In rows, they are `input_ids`, `labels`, `position_ids` and `document_ids`, int64 [B, L] each. Flat, for padding-free
    attention, they are what `tokenfeed.loader.samples.flattened` says: the names that transformers' models take.

    Give it to `FeedLoader(dataset)`, with `num_workers=N` where decoding in the trainer's process takes too long, or to
    `DataLoader(dataset, batch_size=None)`: it yields whole batches and fetches ahead by itself. The state is taken at the
    batch that was last yielded, so save it behind the optimizer step of that batch. Every rank ends on the same step.
    It connects when it is first iterated.

    In torchdata's StatefulDataLoader, workers keep a state each, which holds for as many workers and ranks only; the state
    of a FeedLoader holds for any number of both.

    Args:
        feed: where the feed is and what is expected of it.
        rank, world: by default those of `torch.distributed` if it is initialised, else 0 of 1. Ranks that train on the same
            data have the same rank here: see `tokenfeed.loader.mesh`.
        layout: "rows" or "flat".
        fields: which of the four a dict of rows has; each costs the trainer's process 4 to 40 microseconds a batch of 16k
            tokens.
        read_ahead: batches that whoever iterates takes before training on them, as Lightning takes 1: the state is that of
            the batch which was yielded so many batches ago.
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
        read_ahead: int = 0,
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
        self._read_ahead = read_ahead
        self._given: deque[Cursor] = deque()  # positions of what was yielded and not trained on, behind `_cursor`
        self._epoch = 0
        self._in_feed_loader = False
        self._shared_start: _SharedStart | None = None
        self._worker_start: State | None = None
        self._worker_reader: FeedReader | None = None
        self._asked_by = 0
        self.reader: FeedReader | None = None

    def __iter__(self) -> Iterator[TensorSample]:
        """Yield from the loaded state on, or from where the last iteration stopped.

        Raises:
            CursorError: inside a worker of a plain DataLoader, whose state the trainer could not see.
        """
        worker = get_worker_info()
        if worker is None:
            return self._whole()
        self._worker_reader = None
        part = worker.id, worker.num_workers
        return self._part(part) if self._in_feed_loader else self._stateful_part(part)  # type: ignore[return-value]

    def _whole(self) -> Iterator[TensorSample]:
        self.close()
        self._given.clear()
        with self._read(cursor=self._cursor, epoch=self._epoch) as reader:
            self.reader = reader
            for delivered in reader:
                self._reached(reader.cursor)
                yield self._tensors(reader, delivered)
        self.finish()

    def _part(self, part: tuple[int, int]) -> Iterator[tuple[TensorSample, bytes]]:
        """(sample, how the cursor moves with it) of a worker of a FeedLoader.

        A forked process must leave the parent's reader alone: only its reference is there, not its thread.
        """
        cursor, epoch = self._cursor, self._epoch
        if self._shared_start is not None:
            epoch, state = self._shared_start.read()
            cursor = Cursor.from_state(state) if state else None
        with self._read(cursor=cursor, epoch=epoch, part=part) as reader:
            before = cursor
            for delivered in reader:
                after = reader.cursor
                yield self._tensors(reader, delivered), orjson.dumps(after.moved(before).to_state())
                before = after

    def _stateful_part(self, part: tuple[int, int]) -> Iterator[TensorSample]:
        """The samples of a worker of a StatefulDataLoader, which asks for the state before the first."""
        if self._asked_by != os.getpid():
            raise CursorError("use FeedLoader(dataset, num_workers=N): a plain DataLoader with workers loses the state")
        start, self._worker_start = self._worker_start, None
        place: dict[str, Any] = {"cursor": self._cursor, "epoch": self._epoch, "part": part}
        if start is not None:
            if tuple(start["worker"]) != part:
                raise CursorError(
                    "the state of worker {} of {} was given to worker {} of {}".format(*start["worker"], *part)
                    + ": StatefulDataLoader goes on with as many workers, FeedLoader with any number"
                )
            place = {
                "cursor": Cursor.from_state(start["cursor"]) if start["cursor"] else None,
                "part": tuple(start["part"]),
                "base": start["base"],
            }
        with self._read(**place) as reader:
            self._worker_reader = reader
            for delivered in reader:
                yield self._tensors(reader, delivered)

    def _read(self, **options: Any) -> FeedReader:
        return FeedReader(self._feed, self._rank, self._world, **self._options, **options)

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

    def begin(self) -> None:
        """Samples of workers will follow, from the state on."""
        self.close()
        self._given.clear()

    def advance(self, moved: bytes) -> None:
        """Take over how the cursor moved with a sample of a worker."""
        cursor = Cursor.from_state(orjson.loads(moved))
        latest = self._given[-1] if self._given else self._cursor
        self._reached(cursor.joined(latest) if latest is not None and latest.plan == cursor.plan else cursor)

    def finish(self) -> None:
        """All samples have been yielded, and whoever took some ahead has been told: nothing is left untrained for long."""
        if self._given:
            self._cursor = self._given[-1]
            self._given.clear()

    def _reached(self, cursor: Cursor) -> None:
        self._given.append(cursor)
        if len(self._given) > self._read_ahead:
            self._cursor = self._given.popleft()

    def __getstate__(self) -> dict[str, Any]:
        """For processes that are not forked: everything but the readers, which belong to this one."""
        return {**self.__dict__, "reader": None, "_worker_reader": None}

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
        """The position behind the last batch yielded, or `read_ahead` before it; JSON-safe, empty before the first.

        In a worker, where StatefulDataLoader asks for it, the position of that worker.
        """
        self._asked_by = os.getpid()
        worker = get_worker_info()
        if worker is None:
            return {} if self._cursor is None else self._cursor.to_state()
        if self._worker_start is not None:
            return self._worker_start
        reader, own = self._worker_reader, [worker.id, worker.num_workers]
        if reader is not None:
            return {"worker": own, "part": list(reader.part), "base": reader.base, "cursor": reader.cursor.to_state()}
        start = self._cursor
        return {
            "worker": own,
            "part": own,
            "base": 0 if start is None else start.next,
            "cursor": {} if start is None else start.to_state(),
        }

    def load_state_dict(self, state: State) -> None:
        """Go on behind the position of `state`, also one saved under another `world`.

        Raises:
            CursorError: it is not a state of this loader.
        """
        if get_worker_info() is not None:
            self._worker_start, self._worker_reader = state, None
            return
        self._cursor = Cursor.from_state(state) if state else None
        self._given.clear()
        self._epoch = self._cursor.epoch if self._cursor is not None else self._epoch

    def close(self) -> None:
        """Stop reading."""
        if self.reader is not None:
            self.reader.close()


class FeedLoader(DataLoader[TensorSample]):
    """A DataLoader whose workers read and decode a FeedDataset, with the state in this process.

    Each of N workers reads every N-th batch of this rank, and they are yielded in order: the samples are those of
    `num_workers=0`. The state is the position behind the sample that was yielded last, whatever the workers have prepared
    ahead, and does not depend on their number. Every iteration goes on there.

    With workers, `run` commits the workers' positions, which are ahead of the trained one by what they have prepared.

    Args:
        dataset: what to read; its loaded state holds.
        num_workers: processes (N); 0 reads in this one.
        device: where samples are copied to. To a GPU they go through pinned memory on a stream of their own, while the GPU
            is still at the step before; on a CPU they stay as they are. None leaves them in this process's memory.
        pin_memory: whether samples that are not copied are put into pinned memory, for trainers that copy them themselves.
        prefetch_factor: samples that each worker prepares ahead; by default 2.
        persistent_workers: whether workers outlive an iteration.
        multiprocessing_context: how processes are started; by default the platform's way.
        on_wait: called with the seconds that each `next` has taken.

    Attributes:
        waits: how long the trainer has waited for samples.
    """

    dataset: FeedDataset

    def __init__(
        self,
        dataset: FeedDataset,
        num_workers: int = 0,
        *,
        device: torch.device | str | None = None,
        pin_memory: bool = False,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        multiprocessing_context: str | None = None,
        on_wait: Callable[[float], None] | None = None,
    ) -> None:
        self._place = Placer(device, pin_memory)
        self._on_wait = on_wait
        self.waits = Waits()
        self._start = _SharedStart() if persistent_workers else None
        super().__init__(
            dataset,
            batch_size=None,
            collate_fn=_as_it_is,
            num_workers=num_workers,
            prefetch_factor=prefetch_factor,
            pin_memory=num_workers > 0 and self._place.pins,
            persistent_workers=persistent_workers,
            multiprocessing_context=multiprocessing_context,
            worker_init_fn=partial(_enter_feed_loader, self._start),
        )

    def __iter__(self) -> Iterator[TensorSample]:  # type: ignore[override]
        """Yield from the loaded state on, or from where the last iteration stopped."""
        samples = iter(self.dataset) if self.num_workers == 0 else self._of_workers()
        while True:
            started = time.monotonic()
            found = next(samples, None)
            if found is None:
                return
            placed = self._place(found)
            seconds = time.monotonic() - started
            self.waits.count(seconds)
            if self._on_wait is not None:
                self._on_wait(seconds)
            yield placed

    def _of_workers(self) -> Iterator[TensorSample]:
        self.dataset.begin()
        if self._start is not None:
            self._start.write(self.dataset)
        for sample_of_worker, moved in super().__iter__():
            self.dataset.advance(moved)
            yield sample_of_worker
        self.dataset.finish()

    def state_dict(self) -> State:
        """That of the dataset."""
        return self.dataset.state_dict()

    def load_state_dict(self, state: State) -> None:
        """Load it into the dataset; the next iteration begins there."""
        self.dataset.load_state_dict(state)

    def set_epoch(self, epoch: int) -> None:
        """Choose the pass of the next iteration; see `FeedDataset.set_epoch`."""
        self.dataset.set_epoch(epoch)


@dataclass
class Waits:
    """How long the trainer has waited for samples.

    Attributes:
        samples: how many it was given.
        seconds: time spent in `next` of the loader's iterator, for all of them; the copy to a GPU is only begun there.
        longest: the longest of them, in seconds.
    """

    samples: int = 0
    seconds: float = 0.0
    longest: float = 0.0

    def count(self, seconds: float) -> None:
        """One more sample, after so long a wait."""
        self.samples += 1
        self.seconds += seconds
        self.longest = max(self.longest, seconds)


class _SharedStart:
    """Where an iteration begins, in memory shared with workers that outlive the one before."""

    def __init__(self) -> None:
        self._bytes = torch.zeros(_SHARED_BYTES, dtype=torch.uint8).share_memory_()  # type: ignore[no-untyped-call]

    def write(self, dataset: FeedDataset) -> None:
        text = orjson.dumps([dataset.epoch, dataset.state_dict()])
        if len(text) > _SHARED_BYTES:
            raise CursorError(f"a loader state of {len(text)} bytes is too long for persistent_workers; go on without")
        padded = text.ljust(_SHARED_BYTES)
        self._bytes.numpy()[:] = np.frombuffer(padded, np.uint8)

    def read(self) -> tuple[int, State]:
        epoch, state = orjson.loads(self._bytes.numpy().tobytes())
        return epoch, state


def _enter_feed_loader(start: _SharedStart | None, _: int) -> None:
    worker = get_worker_info()
    assert worker is not None and isinstance(worker.dataset, FeedDataset)  # noqa: S101
    worker.dataset._in_feed_loader = True
    worker.dataset._shared_start = start


def _as_it_is(sample: Any) -> Any:
    """What PyTorch would do to a sample instead takes longer than reading it."""
    return sample
