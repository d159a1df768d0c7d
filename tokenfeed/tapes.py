"""Reading many partitions side by side, each from one offset to another, in bounded memory."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from tokenfeed.errors import BrokerUnreachable, TopicError
from tokenfeed.kafka import EARLIEST, is_passing, offset_of, reader, watermarks

_MESSAGES_A_TURN: Final = 500
_POLL_SECONDS: Final = 0.2
_BUFFER_KBYTES: Final = 32 * 1024


class Partition(NamedTuple):
    """A partition of a topic."""

    topic: str
    number: int


class Entry(NamedTuple):
    """A message as it lies in the log."""

    offset: int
    timestamp: int
    headers: list[tuple[str, bytes | None]]
    value: bytes | None


class _Tape:
    def __init__(self, end: int) -> None:
        self.end = end
        self.ready: deque[Entry] = deque()
        self.bytes = 0
        self.paused = False
        self.ended = False


class Tapes:
    """Tapes of partitions: whoever turns one gets its messages in order; the others are fetched ahead a little.

    Not for several threads.

    Args:
        options: librdkafka's connection options.
        timeout: seconds without any message after which a broker counts as unreachable.
    """

    def __init__(self, options: Mapping[str, Any], timeout: float = 60.0) -> None:
        self._consumer: Consumer = reader(dict(options), **{"queued.max.messages.kbytes": _BUFFER_KBYTES})
        self._timeout = timeout
        self._tapes: dict[Partition, _Tape] = {}

    def ends(self, partitions: list[Partition]) -> dict[Partition, int]:
        """Offset behind the last message of each partition, as it is now, on every broker.

        Raises:
            TopicError, BrokerUnreachable: see `tokenfeed.kafka.watermarks`.
        """
        ends = {part: watermarks(self._consumer, *part, self._timeout)[1] for part in partitions}
        found: dict[Partition, int] = {}
        self._assign(ends)
        deadline = time.monotonic() + self._timeout
        while len(found) < len(partitions):
            for message in self._poll(deadline):
                part = Partition(message.topic() or "", message.partition() or 0)
                if message.error() is None:
                    ends[part] = offset_of(message) + 1
                elif _is_end(message):
                    found.setdefault(part, max(ends[part], offset_of(message)))
        self._consumer.unassign()
        return found

    def add(self, spans: Mapping[Partition, tuple[int, int]]) -> dict[Partition, int]:
        """Read each partition from `start` (or EARLIEST, or the first that is left) to before `end`.

        Returns where each starts, which is above what was asked for where retention has removed messages.
        """
        starts: dict[Partition, int] = {}
        for part, (start, _) in spans.items():
            low, _ = watermarks(self._consumer, *part, self._timeout)
            starts[part] = low if start == EARLIEST else max(low, start)
        tapes = {part: _Tape(end) for part, (_, end) in spans.items()}
        for part, tape in tapes.items():
            tape.ended = starts[part] >= tape.end
        self._tapes |= tapes
        self._assign({part: start for part, start in starts.items() if not tapes[part].ended})
        return starts

    def turn(self, part: Partition) -> Iterator[Entry]:
        """The messages of a partition, in order.

        Raises:
            BrokerUnreachable: nothing came for `timeout` seconds.
            TopicError: the partition cannot be read.
        """
        tape = self._tapes[part]
        while True:
            if not tape.ready:
                self._fill(part, tape)
            if not tape.ready:
                return
            entry = tape.ready.popleft()
            tape.bytes -= len(entry.value or b"")
            yield entry

    def close(self) -> None:
        """Leave the broker."""
        self._consumer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _assign(self, starts: Mapping[Partition, int]) -> None:
        self._consumer.incremental_assign([TopicPartition(*part, start) for part, start in starts.items()])

    def _fill(self, wanted: Partition, tape: _Tape) -> None:
        """Fetch until the tape has a message or has ended."""
        if tape.paused:
            self._consumer.resume([TopicPartition(*wanted)])
            tape.paused = False
        deadline = time.monotonic() + self._timeout
        while not tape.ready and not tape.ended:
            for message in self._poll(deadline):
                deadline = time.monotonic() + self._timeout
                self._receive(message)
            self._hold_back(wanted)

    def _receive(self, message: Message) -> None:
        part = Partition(message.topic() or "", message.partition() or 0)
        tape = self._tapes[part]
        if message.error() is not None:
            tape.ended |= _is_end(message) and offset_of(message) >= tape.end
        if message.error() is not None or tape.ended:
            return
        offset = offset_of(message)
        if offset < tape.end:
            value = message.value()
            _, timestamp = message.timestamp()
            headers: Any = message.headers() or []
            tape.ready.append(Entry(offset, timestamp, headers, value))
            tape.bytes += len(value or b"")
        if offset + 1 >= tape.end:
            tape.ended = True
            self._consumer.incremental_unassign([TopicPartition(*part)])

    def _hold_back(self, wanted: Partition) -> None:
        """Pause the other tapes that are far enough ahead."""
        share = _BUFFER_KBYTES * 1024 // max(1, len(self._tapes))
        for part, tape in self._tapes.items():
            if part != wanted and not tape.ended and not tape.paused and tape.bytes > share:
                self._consumer.pause([TopicPartition(*part)])
                tape.paused = True

    def _poll(self, deadline: float) -> list[Message]:
        first = self._consumer.poll(_POLL_SECONDS)
        messages = [] if first is None else [first, *self._consumer.consume(_MESSAGES_A_TURN - 1, 0)]
        for message in messages:
            error = message.error()
            if error is not None and error.code() != KafkaError._PARTITION_EOF and not is_passing(error):
                raise TopicError(f"{message.topic()}/{message.partition()}: {error.str()}")
        if not messages and time.monotonic() > deadline:
            raise BrokerUnreachable(f"nothing read for {self._timeout:g} s")
        return messages


def _is_end(message: Message) -> bool:
    error = message.error()
    return error is not None and error.code() == KafkaError._PARTITION_EOF
