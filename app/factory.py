"""Making the Faust app of a worker."""

from __future__ import annotations

import logging
import os
import threading
from typing import Any, Final

import faust
from faust.tables.manager import TableManager

from agents.preprocess import attach
from app.feed import Feed
from app.settings import faust_options
from app.transport import FeedTransport
from tokenfeed.errors import TokenfeedError
from tokenfeed.settings import Settings

log = logging.getLogger(__name__)

_EXIT_SECONDS: Final = 3.0


class FaustSettings(faust.Settings):
    """Faust's settings without its environment variables, whose un-prefixed names override arguments."""

    def getenv(self, env_name: str) -> Any:
        """Nothing: every value comes from Tokenfeed's settings."""
        return None


class NoTables(TableManager):
    """Faust's manager of tables for an app that has none: it does not wait a second for them to be registered."""

    async def sleep(self, n: Any) -> None:
        """Nothing: only `on_start` sleeps."""


class FeedApp(faust.App):
    """A Faust app that owns a feed, and follows its ledger."""

    Settings = FaustSettings
    feed: Feed
    exit_code: int = 0

    def _new_transport(self) -> FeedTransport:
        return FeedTransport(self.conf.broker_consumer, self)

    async def on_start(self) -> None:
        """Prepare the feed before the consumer joins its group."""
        try:
            await self.feed.start()
        except TokenfeedError as error:
            log.critical("%s", error)
            self.exit_code = 1
            raise SystemExit(1) from None
        await super().on_start()

    async def on_stop(self) -> None:
        """Drop the open windows before Faust stops the consumer, and see to it that the process ends.

        It may end at any moment, because whatever it has not recorded as done is derived again. So nothing waits longer
        for a broker that does not answer, or for a thread that is at work on a window.
        """
        timer = threading.Timer(_EXIT_SECONDS, os._exit, [1 if self.crashed else self.exit_code])
        timer.daemon = True
        timer.start()
        self.feed.stop()
        await super().on_stop()


def create_app(settings: Settings) -> FeedApp:
    """A worker's app. Does no I/O: brokers and tokenizer are touched when the worker starts."""
    app = FeedApp(TableManager=NoTables, **faust_options(settings))
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
