"""Stock Faust doing nothing: how many records a second an agent can be given. Says so every 1000 records."""

from __future__ import annotations

import os
import sys
import time

import faust

BOOTSTRAP, RAW, OUT, _ = sys.argv[1:]
app = faust.App(OUT, broker=f"kafka://{BOOTSTRAP}", store="memory://", web_enabled=False, topic_disable_leader=True)
raw = app.topic(RAW, value_serializer="raw")


@app.agent(raw)
async def nothing(stream: faust.StreamT) -> None:
    count = 0
    async for _ in stream:
        count += 1
        if count % 1000 == 0:
            os.write(1, f"\n{count} {time.time()}\n".encode())  # Faust makes log records of what is printed


sys.argv = ["faust", "worker", "--without-web", "-l", "warn"]
app.main()
