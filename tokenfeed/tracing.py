"""From a training step, a batch or a row to the documents in it, and from a document to where it went.

All of it is read from the feed's topics: batches name the raw offset of every piece, the ledger names the window of every
offset, and the valid sequence of a slot gives a batch its place in the global order.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import Any, Final

from confluent_kafka import Consumer

from tokenfeed import ledger as entries
from tokenfeed.batches import Batch, decode, read_envelope
from tokenfeed.content import sort_out
from tokenfeed.documents import Document, RawRecord, content_type_of
from tokenfeed.errors import TopicError
from tokenfeed.history import CLOCK_SKEW_MS, offsets_at, windows
from tokenfeed.kafka import EARLIEST, connection, offset_of, read_range, reader, watermarks
from tokenfeed.ledger import Ledger
from tokenfeed.loader import Cursor, Feed, FeedReader
from tokenfeed.loader.order import GlobalOrder, Place
from tokenfeed.loader.sequence import SlotSequence
from tokenfeed.plan import Plan
from tokenfeed.planning import at_edition
from tokenfeed.settings import Settings

_TIMEOUT_SECONDS: Final = 10.0  # what is to be read is there already
_NEAR: Final = 2000  # records apart that are read through rather than sought


@dataclass(frozen=True, slots=True)
class TracedPiece:
    """A piece of a document in a batch.

    Attributes:
        number: the batch's place in the global order; None where that is not certain yet, or was not asked for.
        stream, batch, window: the batch, and the window that it is of.
        row, column: where the piece starts in it.
        topic, offset, index: the document: raw topic, offset in partition `stream`, index in its record.
        first, length: the tokens of the document that it holds.
        id: the document's id, None without one, or where retention has removed the record.
        record_removed: whether retention has removed the record.
        ids: the piece's token ids.
    """

    number: int | None
    stream: int
    batch: int
    window: int
    row: int
    column: int
    topic: str
    offset: int
    index: int
    first: int
    length: int
    id: str | None
    record_removed: bool
    ids: list[int]


class Tracer:
    """Traces in one feed.

    Args:
        settings: name the brokers and topics; the plan is read from the feed.
        plan: id of one of the feed's plans, by default the newest.
        progress: called with a text for people while much is read.

    Raises:
        TopicError, BrokerUnreachable, WireError: the feed cannot be read or has no plan.
    """

    def __init__(
        self, settings: Settings, plan: str | None = None, progress: Callable[[str], None] = lambda _: None
    ) -> None:
        edition = replace(Feed.of(settings), expected={"plan_id": plan} if plan else {}).edition()
        self._settings = at_edition(settings, edition)
        self._feed = replace(Feed.of(settings), expected={"plan_id": edition.plan.id})
        self.plan: Plan = edition.plan
        self._progress = progress
        self._consumer: Consumer = reader(connection(settings))

    def close(self) -> None:
        """Leave the broker."""
        self._consumer.close()

    # Forwards

    def numbers(self, start: int, stop: int, cursor: Cursor | None = None) -> Iterator[TracedPiece]:
        """The pieces of batches [start, stop) of the global order; reads the feed from `cursor`, or its start, on.

        Raises:
            TopicError: the cursor stands behind `start`.
            FeedStalledError, FeedGapError: the feed does not reach so far.
        """
        if cursor is not None and cursor.next > start:
            raise TopicError(f"the loader state stands at batch {cursor.next}, behind batch {start}; give an older one")
        with FeedReader(self._feed, cursor=cursor, slot_timeout=_TIMEOUT_SECONDS) as feed:
            for delivered in feed:
                if delivered.number >= stop:
                    return
                self._progress(f"batch {delivered.number} of {stop}")
                if delivered.number >= start and delivered.batch is not None:
                    yield from self._pieces(delivered.batch, delivered.number)
                if delivered.number + 1 >= stop:
                    return

    def batch(self, stream: int, number: int) -> list[TracedPiece]:
        """The pieces of one batch.

        Raises:
            TopicError: there is no such batch in the topic.
        """
        if not 0 <= stream < self.plan.streams or number < 0:
            raise TopicError(f"the feed has streams 0 to {self.plan.streams - 1}; {stream}/{number} is none of its batches")
        for cut, done, timestamp in windows(self._consumer, self._settings.ledger_topic, stream, self.plan.id):
            if done is not None and cut.first <= number < done.next:
                (batch,) = self._batches(stream, {number}, timestamp)
                return self._pieces(batch, self.places(stream, {number}).get(number))
        raise TopicError(f"stream {stream} has no batch {number} yet")

    # Backwards

    def document(self, topic: str, stream: int, offset: int, index: int | None = None) -> list[TracedPiece]:
        """Where a document, or all documents of a record, went: their pieces in batches, with places in the global order.

        Empty if it lies behind the frontier, was left out, or is in the dead letters.
        """
        source = self.plan.sources.index(topic)

        def wanted(piece: TracedPiece) -> bool:
            return (piece.topic, piece.offset) == (topic, offset) and index in (None, piece.index)

        numbers: set[int] = set()
        since: int | None = None
        carried = False
        for cut, done, timestamp in windows(self._consumer, self._settings.ledger_topic, stream, self.plan.id):
            start, end = cut.ranges[source]
            if done is not None and (start <= offset < end or carried):
                numbers |= set(range(cut.first, done.next))
                since = timestamp if since is None else since
                carried = any((piece.source, piece.offset) == (source, offset) for piece in done.carry)
            elif since is not None:
                break
        # A list, because pieces are looked up with the consumer that batches are read with.
        holding = [
            batch
            for batch in self._batches(stream, numbers, since or 0)
            if ((batch.origins[:, 0] == offset) & (batch.origins[:, 3] == source)).any()
        ]
        places = self.places(stream, {batch.number for batch in holding})
        pieces = [piece for batch in holding for piece in self._pieces(batch, places.get(batch.number))]
        return sorted(filter(wanted, pieces), key=lambda piece: (piece.offset, piece.index, piece.first))

    def with_id(self, name: str) -> Iterator[tuple[str, int, int, int]]:
        """(topic, stream, offset, index) of every document of that id; reads all raw records."""
        for source, topic in enumerate(self.plan.sources):
            for stream in range(self.plan.streams):
                for message in read_range(self._consumer, topic, stream, EARLIEST):
                    self._progress(f"{topic}/{stream} offset {message.offset()}")
                    for document in self._documents([_record(source, message)]):
                        if document.id == name:
                            yield topic, stream, document.offset, document.index

    def places(self, stream: int, numbers: AbstractSet[int]) -> dict[int, int | None]:
        """The place of batches in the global order; None while it is not certain. Reads their slots up to them."""
        found: dict[int, int | None] = {}
        order = GlobalOrder(self.plan.streams, self.plan.slots)
        for other in range(self.plan.streams):
            state = self._ledger(other)
            if state.cut is not None:
                order.stream_has(other, state.cut.first if state.done is None else state.done.next)
                if state.is_sealed:
                    order.stream_ends(other, state.next_number)
        for slot in range(self.plan.slots):
            wanted = {number for number in numbers if self.plan.slot(stream, number) == slot}
            sequence = SlotSequence(self.plan, slot)
            for message in read_range(self._consumer, self._settings.batches_topic, slot) if wanted else ():
                envelope = read_envelope(message.headers())  # type: ignore[arg-type]
                self._progress(f"slot {slot} offset {message.offset()}")
                valid = sequence.offer(envelope, offset_of(message)) == "valid"
                if valid and envelope.stream == stream and envelope.number in wanted:
                    found[envelope.number] = order.number_of(Place(slot, sequence.taken - 1))
                    wanted.discard(envelope.number)
                if not wanted:
                    break
        return found

    # Reading

    def _ledger(self, stream: int) -> Ledger:
        state = Ledger(stream, self.plan.id)
        for message in read_range(self._consumer, self._settings.ledger_topic, stream, EARLIEST):
            state = state.apply(offset_of(message), entries.decode(message.value() or b""))
        return state

    def _batches(self, stream: int, numbers: set[int], since: int) -> Iterator[Batch]:
        """Batches of a stream, any copy of each, looked for from a while before `since` on."""
        for slot in range(self.plan.slots):
            wanted = {number for number in numbers if self.plan.slot(stream, number) == slot}
            topic = self._settings.batches_topic
            starts = (*offsets_at(self._consumer, topic, [slot], since - CLOCK_SKEW_MS).values(), EARLIEST)
            for start in starts if wanted else ():
                for message in read_range(self._consumer, topic, slot, start):
                    envelope = read_envelope(message.headers())  # type: ignore[arg-type]
                    if envelope.kind == "batch" and envelope.stream == stream and envelope.number in wanted:
                        wanted.discard(envelope.number)
                        yield decode(message.value() or b"")
                    if not wanted:
                        break
                if not wanted:
                    break
            if wanted:
                raise TopicError(
                    f"batch {min(wanted)} of stream {stream} is not in slot {slot}; `tokenfeed audit` says more"
                )

    def _pieces(self, batch: Batch, number: int | None) -> list[TracedPiece]:
        documents = self._look_up(batch.stream, {(source, offset) for offset, _, _, source in batch.origins.tolist()})
        pieces: list[TracedPiece] = []
        for row in range(len(batch.row_splits) - 1):
            column = 0
            for piece in range(batch.row_splits[row], batch.row_splits[row + 1]):
                offset, index, first, source = batch.origins[piece].tolist()
                length = int(batch.piece_lens[piece])
                document = documents.get((source, offset, index))
                pieces.append(
                    TracedPiece(
                        number=number,
                        stream=batch.stream,
                        batch=batch.number,
                        window=batch.window,
                        row=row,
                        column=column,
                        topic=self.plan.sources[source],
                        offset=offset,
                        index=index,
                        first=first,
                        length=length,
                        id=None if document is None else document.id,
                        record_removed=document is None,
                        ids=batch.input_ids[row, column : column + length].tolist(),
                    )
                )
                column += length
        return pieces

    def _look_up(self, stream: int, places: set[tuple[int, int]]) -> dict[tuple[int, int, int], Document]:
        """The documents of records (source, offset); those that retention has removed are left out."""
        by_source: dict[int, list[int]] = defaultdict(list)
        for source, offset in sorted(places):
            by_source[source].append(offset)
        found: dict[tuple[int, int, int], Document] = {}
        for source, offsets in by_source.items():
            topic = self.plan.sources[source]
            low, _ = watermarks(self._consumer, topic, stream)
            for start, end in _runs(offset for offset in offsets if offset >= low):
                wanted = set(offsets)
                messages = read_range(self._consumer, topic, stream, start, end)
                records = [_record(source, message) for message in messages if message.offset() in wanted]
                found |= {(d.source, d.offset, d.index): d for d in self._documents(records)}
        return found

    def _documents(self, records: list[RawRecord]) -> list[Document]:
        return sort_out(self.plan, records)[0]


def _runs(offsets: Iterable[int]) -> Iterator[tuple[int, int]]:
    """[start, end) of runs of sorted offsets that lie near each other."""
    start = last = None
    for offset in offsets:
        if start is None or last is None or offset - last > _NEAR:
            if start is not None and last is not None:
                yield start, last + 1
            start = offset
        last = offset
    if start is not None and last is not None:
        yield start, last + 1


def _record(source: int, message: Any) -> RawRecord:
    return RawRecord(source, offset_of(message), message.value(), content_type_of(message.headers()))
