"""Quix Streams: a batch sink that tokenizes what one checkpoint has collected."""

from __future__ import annotations

import sys
from typing import Any

from common import Blocks, Encoder, texts_of
from quixstreams import Application
from quixstreams.sinks import BatchingSink, SinkBatch


class Preprocess(BatchingSink):
    """Collects records, and writes their blocks when a checkpoint is made."""

    def __init__(self, app: Application, topic: Any, engine: str) -> None:
        super().__init__()
        self._producer = app.get_producer()
        self._topic = topic
        self._encoder, self._blocks = Encoder(engine), Blocks()

    def write(self, batch: SinkBatch) -> None:
        values = [item.value for item in batch]
        for start in range(0, len(values), 1024):
            for block in self._blocks.add(self._encoder.encode(texts_of(values[start : start + 1024]))):
                self._producer.produce(topic=self._topic.name, value=block)
        self._producer.poll(0)


def main(bootstrap: str, raw: str, out: str, engine: str) -> None:
    app = Application(
        broker_address=bootstrap,
        consumer_group=out,
        auto_offset_reset="earliest",
        commit_every=4096,
        commit_interval=1.0,
        loglevel="WARNING",
        consumer_extra_config={"fetch.queue.backoff.ms": 5},
        producer_extra_config={"linger.ms": 5, "queue.buffering.max.kbytes": 2**20},
    )
    frame = app.dataframe(app.topic(raw, value_deserializer="bytes"))
    frame.sink(Preprocess(app, app.topic(out, value_serializer="bytes"), engine))
    app.run()


main(*sys.argv[1:])
