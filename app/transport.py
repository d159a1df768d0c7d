"""Faust's consumer, made to follow the ledger and the memory budget.

Faust keeps the group: which partitions are ours, and the commits. Four things differ from Faust's own consumer:

- positions come from the ledger, not from the consumer group's commits;
- records come from `app.fetcher`, in runs, while there is room for them within the memory budget; aiokafka fetches none;
- on revocation the streams are dropped before Faust does anything else;
- a commit that fails is a warning, because commits are for lag tools only.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from aiokafka import OffsetAndMetadata, TopicPartition
from aiokafka.errors import KafkaError
from faust.transport.drivers import aiokafka as driver
from faust.types import TP
from faust.types.tuples import ConsumerMessage

from app.fetcher import Run

if TYPE_CHECKING:
    from app.feed import Feed

log = logging.getLogger(__name__)

_ROOM_CHECK_SECONDS: Final = 0.2


class FeedConsumerThread(driver.AIOKafkaConsumerThread):
    """The thread in which aiokafka runs."""

    async def on_partitions_assigned(self, assigned: set[TP], generation_id: int = 0) -> None:
        """Keep aiokafka from fetching what `app.fetcher` fetches."""
        self._ensure_consumer().pause(*(TopicPartition(tp.topic, tp.partition) for tp in assigned))
        await super().on_partitions_assigned(assigned, generation_id)

    def polled(self) -> None:
        """Tell aiokafka that the worker is alive: it leaves the group when nobody has fetched for too long."""
        with self._ensure_consumer()._subscription.fetch_context():
            pass

    async def _commit(self, offsets: Mapping[TP, int]) -> bool:
        positions = {
            TopicPartition(tp.topic, tp.partition): OffsetAndMetadata(offset, "") for tp, offset in offsets.items()
        }
        try:
            await self._ensure_consumer().commit(positions)
        except KafkaError as error:
            log.warning("positions were not committed, lag tools show old ones: %r", error)
            return False
        return True


class FeedConsumer(driver.Consumer):
    """The consumer of the raw topics."""

    _thread: FeedConsumerThread

    def _new_consumer_thread(self) -> FeedConsumerThread:
        return FeedConsumerThread(self, loop=self.loop, beacon=self.beacon)

    @property
    def feed(self) -> Feed:
        """The worker's feed."""
        return self.app.feed  # type: ignore[attr-defined,no-any-return]

    async def seek_to_committed(self) -> Mapping[TP, int]:
        """Seek every assigned partition to the record that its stream needs next."""
        positions: dict[TP, int] = await self.feed.open_streams(self)
        await self.feed.seek(positions)
        return positions

    async def on_partitions_revoked(self, revoked: set[TP]) -> None:
        """Drop the streams: their open windows can be derived again by whoever owns them next."""
        self.feed.close_streams()
        await super().on_partitions_revoked(revoked)

    async def _getmany(self, active_partitions: set[TP] | None, timeout: float) -> dict[TP, list[Run]]:
        """Fetch runs, once there is room for them."""
        feed = self.feed
        self._thread.polled()
        while not feed.has_room() and self.flow_active and not self.should_stop:
            await feed.wait_for_room(_ROOM_CHECK_SECONDS)
        return {run.tp: [run] for run in await feed.fetch()} if self.flow_active else {}

    def _to_message(self, tp: TP, record: Run) -> ConsumerMessage:
        """A message whose value is a run."""
        return ConsumerMessage(
            topic=tp.topic,
            partition=tp.partition,
            offset=record.start,
            timestamp=0.0,
            timestamp_type=0,
            headers=None,
            key=None,
            value=record,  # type: ignore[arg-type]  # the raw codec hands on whatever it is
            checksum=None,
            serialized_key_size=0,
            serialized_value_size=record.bytes,
            tp=tp,
            generation_id=self.app.consumer_generation_id,
        )

    def highwater(self, tp: TP) -> int:
        """Raw offset that has been fetched to; Faust shows it and does nothing with it."""
        return self._read_offset[tp] or 0

    def verify_event_path(self, now: float, tp: TP) -> None:
        """Nothing: Faust would complain that aiokafka fetches nothing."""


class FeedTransport(driver.Transport):
    """Faust's aiokafka transport with our consumer."""

    Consumer = FeedConsumer
