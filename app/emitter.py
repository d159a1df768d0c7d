"""Sending messages and knowing that they arrived.

librdkafka sends from its own threads, so neither compression nor the network costs the event loop anything. Messages
to one partition keep the order in which they were given.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from confluent_kafka import KafkaError, Message, Producer

from tokenfeed.errors import DeliveryError

_POLL_SECONDS: Final = 0.2
_RETRY_SECONDS: Final = 0.005
_MESSAGES_A_TURN: Final = 64  # so that a large window does not hold the event loop


@dataclass(frozen=True, slots=True)
class Outgoing:
    """One message to send."""

    topic: str
    partition: int
    value: bytes | None
    headers: list[tuple[str, bytes]] = field(default_factory=list)
    key: bytes | None = None


class Emitter:
    """A producer whose deliveries can be awaited.

    Args:
        options: librdkafka's options, from `tokenfeed.producing.producer_options`.
    """

    def __init__(self, options: dict[str, Any]) -> None:
        self._producer = Producer(options)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._poll, name="emitter", daemon=True)
        self._thread.start()

    async def send(self, messages: Iterable[Outgoing]) -> list[int]:
        """Send messages in order and return once all are acknowledged, with their offsets.

        Raises:
            DeliveryError: a broker refused one, or did not acknowledge it within the delivery timeout.
        """
        deliveries = _Deliveries()
        for index, message in enumerate(messages):
            await self._produce(message, deliveries)
            if index % _MESSAGES_A_TURN == _MESSAGES_A_TURN - 1:
                await asyncio.sleep(0)
        return await deliveries.wait()

    def close(self) -> None:
        """Stop without waiting for what is in flight: what is not acknowledged is emitted again by the next owner."""
        self._stopping.set()
        self._producer.purge()
        self._thread.join(2 * _POLL_SECONDS)

    async def _produce(self, message: Outgoing, deliveries: _Deliveries) -> None:
        while True:
            try:
                self._producer.produce(
                    message.topic,
                    value=message.value,
                    key=message.key,
                    partition=message.partition,
                    headers=list(message.headers),
                    on_delivery=deliveries.expect(),
                )
            except BufferError:
                deliveries.retract()
                await asyncio.sleep(_RETRY_SECONDS)
            else:
                return

    def _poll(self) -> None:
        while not self._stopping.is_set():
            self._producer.poll(_POLL_SECONDS)


class _Deliveries:
    """The acknowledgements of one `send`; reports come from the producer's thread, in any order."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._finished = self._loop.create_future()
        self._lock = threading.Lock()
        self._offsets: list[int] = []
        self._pending = 1  # the sender itself, until it has handed over the last message

    def expect(self) -> Any:
        """The delivery callback of one more message."""
        index = len(self._offsets)
        with self._lock:
            self._offsets.append(-1)
            self._pending += 1

        def report(error: KafkaError | None, message: Message) -> None:
            if error is not None:
                where = f"{message.topic()}/{message.partition()}"
                self._settle(DeliveryError(f"{where}: not acknowledged: {error.str()}"))
            else:
                self._offsets[index] = message.offset() or 0
                self._settle(None)

        return report

    def retract(self) -> None:
        """The message expected last was not taken over by the producer."""
        with self._lock:
            self._offsets.pop()
            self._pending -= 1

    async def wait(self) -> list[int]:
        self._settle(None)
        await self._finished
        return self._offsets

    def _settle(self, error: DeliveryError | None) -> None:
        with self._lock:
            self._pending -= 1
            finished = self._pending == 0
        if error is not None or finished:
            self._loop.call_soon_threadsafe(self._finish, error)

    def _finish(self, error: DeliveryError | None) -> None:
        if self._finished.done():
            return
        if error is not None:
            self._finished.set_exception(error)
        else:
            self._finished.set_result(None)
