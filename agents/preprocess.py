"""Raw records in, windows out: the agent hands every run of records to its stream."""

from __future__ import annotations

from typing import Any

import faust


def attach(app: Any, raw: faust.TopicT) -> None:
    """Subscribe the agent to the raw topics of an app that has a `feed`."""

    @app.agent(raw, name="preprocess")  # type: ignore[untyped-decorator]
    async def preprocess(stream: Any) -> None:
        async for event in stream.noack().events():
            try:
                app.feed.accept(event.message.value)
            except Exception as error:
                # Faust would restart the agent behind these records: without its streams no window can be cut around it.
                app.feed.close_streams()
                await app.crash(error)
                raise
