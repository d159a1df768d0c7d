"""Faust's consumer, made to follow the ledger and the memory budget.

Four things differ from Faust's own:

- positions come from the ledger, not from the consumer group's commits;
- on revocation the streams are dropped before Faust does anything else;
- nothing is fetched while the memory budget is used up;
- a commit that fails is a warning, because commits are for lag tools only.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from aiokafka import OffsetAndMetadata, TopicPartition
from aiokafka.errors import KafkaError
from faust.transport.drivers import aiokafka as driver
from faust.types import TP

if TYPE_CHECKING:
    from app.feed import Feed

log = logging.getLogger(__name__)

_ROOM_CHECK_SECONDS: Final = 0.2


class FeedConsumerThread(driver.AIOKafkaConsumerThread):
    """The thread in which aiokafka runs."""

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

    def _new_consumer_thread(self) -> FeedConsumerThread:
        return FeedConsumerThread(self, loop=self.loop, beacon=self.beacon)

    @property
    def feed(self) -> Feed:
        """The worker's feed."""
        return self.app.feed  # type: ignore[attr-defined,no-any-return]

    async def seek_to_committed(self) -> Mapping[TP, int]:
        """Seek every assigned partition to the record that its stream needs next."""
        positions: dict[TP, int] = await self.feed.open_streams(self)
        await self.seek_wait(positions)
        return positions

    async def on_partitions_revoked(self, revoked: set[TP]) -> None:
        """Drop the streams: their open windows can be derived again by whoever owns them next."""
        self.feed.close_streams()
        await super().on_partitions_revoked(revoked)

    async def getmany(self, timeout: float) -> AsyncIterator[tuple[TP, Any]]:
        """Yield fetched records, once there is room for them."""
        feed = self.feed
        while not feed.has_room() and self.flow_active and not self.should_stop:
            await feed.wait_for_room(_ROOM_CHECK_SECONDS)
        async for tp, message in super().getmany(timeout):
            feed.fetched(message)
            yield tp, message


class FeedTransport(driver.Transport):
    """Faust's aiokafka transport with our consumer."""

    Consumer = FeedConsumer
