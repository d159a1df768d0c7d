"""The one thread of a reader that talks to Kafka: from slots to bounded buffers of valid batches."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Final, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from tokenfeed import ledger
from tokenfeed.batches import read_envelope
from tokenfeed.errors import FeedStalledError, LedgerError, TokenfeedError, TopicError
from tokenfeed.kafka import is_passing, offset_of, reader, watermarks
from tokenfeed.loader.cursor import Position
from tokenfeed.loader.ends import StreamEnd
from tokenfeed.loader.feed import Feed
from tokenfeed.loader.order import GlobalOrder, Place
from tokenfeed.loader.sequence import SlotSequence
from tokenfeed.loader.span import Span
from tokenfeed.plan import Plan

T = TypeVar("T")

log = logging.getLogger(__name__)

_MESSAGES_A_TURN: Final = 32
_POLL_SECONDS: Final = 0.1
_FETCH_WAIT_MS: Final = 50
_QUEUE_BACKOFF_MS: Final = 5  # librdkafka's second, once its queue was full, would empty it
_MOST_A_FETCH: Final = 4 * 2**20  # of a slot: librdkafka's own megabyte fetches batches of 64 kB half as fast
_LEDGER_TAIL: Final = 4  # entries of a stream's ledger that are enough to tell how far it is


class _Slot:
    """What has been read of a slot and may still be needed: batches by index, and where blocks start."""

    def __init__(self, sequence: SlotSequence, start: Position, block: int) -> None:
        self.sequence = sequence
        self.ready: OrderedDict[int, bytes] = OrderedDict()
        self.bytes = 0
        self.paused = False
        self._block = block
        self._floor = start.taken  # all before it is dropped; the start of a block
        self._starts = OrderedDict([(start.taken, start)])

    def receive(self, offset: int, value: bytes) -> None:
        """Keep the batch that the sequence has just called valid."""
        taken = self.sequence.taken
        if taken > self._floor:
            self.ready[taken - 1] = value
            self.bytes += len(value)
        if taken % self._block == 0 and taken >= self._floor:
            self._starts[taken] = Position(taken, offset + 1, tuple(self.sequence.expected))

    def take(self, index: int) -> bytes:
        value = self.ready.pop(index)
        self.bytes -= len(value)
        return value

    def pass_to(self, index: int) -> Position | None:
        """Drop the blocks before the one of the order's index-th batch; the start of that block, None if not there yet."""
        if index < self._floor + self._block:
            return self._starts.get(self._floor)
        self._floor = index - index % self._block
        while self.ready and next(iter(self.ready)) < self._floor:
            _, value = self.ready.popitem(last=False)
            self.bytes -= len(value)
        while self._starts and next(iter(self._starts)) < self._floor:
            self._starts.popitem(last=False)
        return self._starts.get(self._floor)

    @property
    def lacks(self) -> bool:
        """Whether the current block has not been read to its end: a slot that lacks must not be paused."""
        return self.sequence.taken < self._floor + self._block


class Fetcher:
    """Follows slots, and the ledger where some slots are not followed.

    Args:
        feed: where the feed is.
        plan: its plan.
        order: told what is learned about streams and slots; touched under this object's lock only.
        prefetch_bytes: bytes of batches to hold ready, over all slots.
        run: consumer group for `commit`.
        block: batches of a slot that may be taken in any order among each other; no part of such a block is dropped
            while it is the current one.
        span: the batches that are wanted; None for all.
    """

    def __init__(
        self,
        feed: Feed,
        plan: Plan,
        order: GlobalOrder,
        prefetch_bytes: int,
        run: str | None,
        block: int = 1,
        span: Span | None = None,
    ) -> None:
        self._feed = feed
        self._plan = plan
        self._order = order
        self._prefetch_bytes = prefetch_bytes
        self._block = block
        self._span = span
        self._ends = [StreamEnd(stream, plan.id) for stream in range(plan.streams)]
        self._slots: dict[int, _Slot] = {}
        self._changed = threading.Condition(threading.RLock())
        self._error: TokenfeedError | None = None
        self._stopping = False
        self._resting = self._wanted = False
        self._received_at = 0.0
        # Only the thread touches the consumer: librdkafka's calls wait for each other across threads.
        self._commands: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        self.repeats = 0
        self.early = 0
        self._consumer: Consumer = reader(
            dict(feed.options),
            **{
                "group.id": run or "tokenfeed-reader",
                "fetch.wait.max.ms": _FETCH_WAIT_MS,
                "fetch.queue.backoff.ms": _QUEUE_BACKOFF_MS,
                "fetch.message.max.bytes": min(_MOST_A_FETCH, max(2**20, prefetch_bytes // plan.slots // 4)),
                "queued.max.messages.kbytes": max(1024, prefetch_bytes // 2 // 1024),  # more gains nothing
            },
        )
        self._thread = threading.Thread(target=self._fetch, name="feed-reader", daemon=True)
        self._thread.start()

    def follow(self, positions: Mapping[int, Position]) -> None:
        """Read these slots from these positions on."""
        with self._changed:
            for slot, position in positions.items():
                sequence = SlotSequence(self._plan, slot, position.expected, position.taken, self._order.finals, self._span)
                self._slots[slot] = _Slot(sequence, position, self._block)
                self._order.slot_has(slot, position.taken)
            self._changed.notify_all()
        topic = self._feed.batches_topic
        parts = [TopicPartition(topic, slot, position.offset) for slot, position in positions.items()]
        self._commands.put(lambda: self._consumer.incremental_assign(parts))

    def follow_ledger(self) -> None:
        """Learn from the ledger how many batches each stream has."""
        self._commands.put(self._assign_ledger)

    def follows(self, slot: int) -> bool:
        """Whether the slot is being read."""
        return slot in self._slots

    def wait_for(self, attempt: Callable[[], T | None], seconds: float) -> T | None:
        """Repeat `attempt`, under the lock, until it gives something; None when no message came for `seconds`.

        Raises what has ended the thread.
        """
        started = time.monotonic()
        with self._changed:
            while (result := attempt()) is None:
                if self._error is not None:
                    raise self._error
                left = max(started, self._received_at) + seconds - time.monotonic()
                if left <= 0:
                    return None
                self._wanted = True
                self._changed.notify_all()
                self._changed.wait(left)
            self._wanted = False
            if self._resting and not self._enough(self._prefetch_bytes // 4):
                self._changed.notify_all()
        return result

    def skip_below(self, index: int) -> None:
        """Drop, in every slot, the blocks before its index-th batch: no later batch of the order stands there."""
        with self._changed:
            for slot in self._slots.values():
                slot.pass_to(index)

    def skip_to(self, place: Place) -> None:
        """Drop the blocks that lie before the current sweep: what is left in them is other ranks'."""
        with self._changed:
            for number, slot in self._slots.items():
                slot.pass_to(place.index + (number < place.slot))

    def take(self, place: Place, index: int) -> tuple[bytes, Position] | None:
        """Take the batch, the index-th valid one of its slot, that stands at a place of the order; None until it is ready.

        Also returns where to read the slot from on from then: the start of the block that its next place is in, or of this
        place's block if the other has not been reached yet.
        """
        with self._changed:
            slot = self._slots[place.slot]
            start = slot.pass_to(place.index)
            if index not in slot.ready:
                return None
            assert start is not None, "a batch is ready only behind the start of its block"  # noqa: S101
            return slot.take(index), slot.pass_to(place.index + 1) or start

    def missing(self, slot: int) -> list[tuple[int, int]]:
        """(stream, number) of batches that are certainly missing from a slot."""
        with self._changed:
            return self._slots[slot].sequence.missing()

    def waiting_for(self, slot: int | None) -> str:
        """The numbers that a slot, or all slots, expect next; for an error message."""
        with self._changed:
            slots = sorted(self._slots) if slot is None else [slot]
            expected = {number: enumerate(self._slots[number].sequence.expected) for number in slots}
        return "; ".join(
            f"slot {number} expects " + ", ".join(f"{batch} of stream {stream}" for stream, batch in streams)
            for number, streams in expected.items()
        )

    def commit(self, offsets: Mapping[int, int]) -> None:
        """Commit positions to the run's group, without waiting."""
        topic = self._feed.batches_topic
        parts = [TopicPartition(topic, slot, offset) for slot, offset in offsets.items()]
        self._commands.put(lambda: self._commit(parts))

    def close(self) -> None:
        """Stop the thread and leave the broker."""
        self._stopping = True
        self._thread.join()

    # The thread

    def _fetch(self) -> None:
        try:
            while not self._stopping:
                self._obey()
                if self._rest():
                    continue
                first = self._consumer.poll(_POLL_SECONDS)
                rest = self._consumer.consume(_MESSAGES_A_TURN - 1, 0) if first is not None else []
                self._receive_all([first, *rest] if first is not None else [])
            self._obey()  # the last commit
        except TokenfeedError as error:
            self._fail(error)
        except KafkaException as error:
            self._fail(TopicError(f"reading {self._feed.batches_topic}: {error.args[0].str()}"))
        finally:
            if not self._stopping and self._error is None:  # a fault of ours: its traceback is printed by threading
                self._fail(FeedStalledError("the reader's fetch thread ended by an unexpected error; see its traceback"))
            self._consumer.close()

    def _rest(self) -> bool:
        """Let messages wait in librdkafka's queue, which is bounded, while there are enough: pausing would empty it.

        Returns whether there still are.
        """
        with self._changed:
            self._resting = self._enough(self._prefetch_bytes // 2)
            if self._resting:
                self._changed.wait(_POLL_SECONDS)
                self._resting = False
                return self._enough(self._prefetch_bytes // 2)
            return False

    def _enough(self, size: int) -> bool:
        """Whether so many bytes are held, no slot lacks what comes next, and nobody waits."""
        slots = self._slots.values()
        return not self._wanted and sum([slot.bytes for slot in slots]) >= size and not any(slot.lacks for slot in slots)

    def _commit(self, parts: list[TopicPartition]) -> None:
        try:
            self._consumer.commit(offsets=parts, asynchronous=True)
        except KafkaException as error:  # for lag tools only: the loader state, not the group, holds the position
            log.warning("the run's position was not committed: %s", error.args[0].str())

    def _obey(self) -> None:
        while not self._commands.empty():
            self._commands.get()()

    def _assign_ledger(self) -> None:
        parts = [TopicPartition(self._feed.ledger_topic, stream) for stream in range(self._plan.streams)]
        for part in parts:
            low, high = watermarks(self._consumer, part.topic, part.partition)
            part.offset = max(low, high - _LEDGER_TAIL)
        self._consumer.incremental_assign(parts)

    def _fail(self, error: TokenfeedError) -> None:
        with self._changed:
            self._error = error
            self._changed.notify_all()

    def _receive_all(self, messages: list[Message]) -> None:
        with self._changed:
            for message in messages:
                self._receive(message)
            self._regulate()
            self._changed.notify_all()

    def _receive(self, message: Message) -> None:
        if message.error() is not None:
            self._check(message)
        elif message.topic() == self._feed.ledger_topic:
            entry = ledger.decode(message.value() or b"")
            if (entry.plan, entry.stream) != (self._plan.id, message.partition()):
                raise LedgerError(
                    f"{message.topic()}/{message.partition()} offset {message.offset()}: entry of stream {entry.stream}, "
                    f"plan {entry.plan}, in the feed of plan {self._plan.id}"
                )
            self._order.stream_has(entry.stream, entry.first if isinstance(entry, ledger.Cut) else entry.next)
            self._learn_end(entry.stream, offset_of(message), entry)
        else:
            self._receive_batch(message)

    def _learn_end(self, stream: int, offset: int, entry: ledger.Entry) -> None:
        end = self._ends[stream]
        again = end.offer(offset, entry)
        if again is not None:
            self._consumer.seek(TopicPartition(self._feed.ledger_topic, stream, again))
        if end.batches is not None:
            self._order.stream_ends(stream, end.batches)

    def _receive_batch(self, message: Message) -> None:
        number, offset = message.partition() or 0, offset_of(message)
        envelope = read_envelope(message.headers())  # type: ignore[arg-type]
        slot = self._slots[number]
        verdict = slot.sequence.offer(envelope, offset)
        if verdict != "behind":  # there is no end of what comes behind a span, and none of it is waited for
            self._received_at = time.monotonic()
        match verdict:
            case "valid":
                slot.receive(offset, message.value() or b"")
                self._order.slot_has(number, slot.sequence.taken)
                self._order.stream_has(envelope.stream, envelope.number + 1)
            case "seal":
                self._order.stream_ends(envelope.stream, envelope.number)
            case "repeat":
                self.repeats += 1
            case "early":
                self.early += 1

    def _check(self, message: Message) -> None:
        error = message.error()
        if error is None or error.code() == KafkaError._PARTITION_EOF or is_passing(error):
            return
        where = f"{message.topic()}/{message.partition()}"
        if error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
            low, high = watermarks(self._consumer, message.topic() or "", message.partition() or 0)
            raise TopicError(
                f"{where}: the position asked for is not there; the broker has offsets {low} to {high}. Retention has "
                "passed this run, or the topic was made anew. Go on from the merged states of all ranks "
                "(tokenfeed.loader.merge) or from a newer one, or start a new run"
            )
        raise TopicError(f"{where}: {error.str()}")

    def _regulate(self) -> None:
        """Pause slots whose buffer is full or that have given all of the span, resume those with room."""
        share = self._prefetch_bytes // max(1, len(self._slots))
        for number, slot in self._slots.items():
            over = self._span is not None and slot.sequence.taken == self._order.batches(number)
            full = over or (not slot.lacks and (slot.bytes >= share if not slot.paused else slot.bytes > share // 2))
            if full != slot.paused:
                part = [TopicPartition(self._feed.batches_topic, number)]
                (self._consumer.pause if full else self._consumer.resume)(part)
                slot.paused = full
