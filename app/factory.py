"""Making the Faust app of a worker."""

from __future__ import annotations

import logging
from typing import Any

import faust

from agents.preprocess import attach
from app.feed import Feed
from app.settings import faust_options
from app.transport import FeedTransport
from tokenfeed.errors import TokenfeedError
from tokenfeed.settings import Settings

log = logging.getLogger(__name__)


class FaustSettings(faust.Settings):
    """Faust's settings without its environment variables, whose un-prefixed names override arguments."""

    def getenv(self, env_name: str) -> Any:
        """Nothing: every value comes from Tokenfeed's settings."""
        return None


class FeedApp(faust.App):
    """A Faust app that owns a feed, and follows its ledger."""

    Settings = FaustSettings
    feed: Feed

    def _new_transport(self) -> FeedTransport:
        return FeedTransport(self.conf.broker_consumer, self)

    async def on_start(self) -> None:
        """Prepare the feed before the consumer joins its group."""
        try:
            await self.feed.start()
        except TokenfeedError as error:
            log.critical("%s", error)
            raise SystemExit(1) from None
        await super().on_start()

    async def on_stop(self) -> None:
        """Drop the open windows before Faust stops the consumer."""
        self.feed.stop()
        await super().on_stop()


def create_app(settings: Settings) -> FeedApp:
    """A worker's app. Does no I/O: brokers and tokenizer are touched when the worker starts."""
    app = FeedApp(**faust_options(settings))
    app.feed = Feed(settings, app.crash)
    raw = app.topic(
        *settings.raw_topics,
        key_type=bytes,
        value_type=bytes,
        key_serializer="raw",
        value_serializer="raw",
        allow_empty=True,
        acks=False,
    )
    attach(app, raw)
    return app
