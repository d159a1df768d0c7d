"""Our loader on a feed, as a program of its own: `python -m benchmarks.feed_loader TOKENS WHAT`.

`all` gives the four tensors of a batch, `ids` the token ids alone. `raw` only fetches the messages of the batches topic
with confluent-kafka, `raw-large` with as large fetches as our loader's, `raw-ids` also makes int64 arrays of the ids.
Each prints tokens a second as the peers do. `waiting` trains for 5 ms a step, so that data waits, and prints how long
`next` takes. "reading" is printed before the first batch is asked for. The feed is that of the environment's settings.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import orjson
from confluent_kafka import TopicPartition

from benchmarks.peers.reading import FROM, timed
from tokenfeed.batches import decode
from tokenfeed.kafka import connection, reader
from tokenfeed.loader import Feed
from tokenfeed.loader.samples import Field
from tokenfeed.loader.torch import FeedDataset, FeedLoader
from tokenfeed.settings import Settings, load_settings

_STEP_SECONDS = 0.005
_WARM = 50


_LARGE = {"fetch.queue.backoff.ms": 5, "fetch.message.max.bytes": 4 * 2**20}


def raw(settings: Settings, expected: int, what: str) -> None:
    """Fetch all messages, without looking into them unless their ids are wanted, and print the rate."""
    options: dict[str, Any] = {} if what == "raw" else _LARGE
    consumer = reader(connection(settings), **{"enable.partition.eof": False}, **options)
    consumer.assign([TopicPartition(settings.batches_topic, slot, 0) for slot in range(settings.slot_count)])
    tokens = settings.batch_size * settings.sequence_length
    seen = counted = 0
    started = 0.0
    while seen < expected:
        for message in consumer.consume(64, 0.1):
            value = message.value()
            if value is not None:
                seen += decode(value).input_ids.astype(np.int64).size if what == "raw-ids" else tokens
        if not started and seen >= FROM * expected:
            started, counted = time.perf_counter(), seen
    rate = (seen - counted) / (time.perf_counter() - started)
    print(orjson.dumps({"rate": rate, "tokens": seen}).decode())


def main() -> None:
    """Read what the arguments say."""
    expected, what = int(sys.argv[1]), sys.argv[2]
    settings = load_settings()
    if what.startswith("raw"):
        raw(settings, expected, what)
        return
    fields: Sequence[Field] = ("input_ids",) if what == "ids" else ("input_ids", "labels", "position_ids", "document_ids")
    loader = FeedLoader(FeedDataset(Feed.of(settings), fields=fields))
    if what == "waiting":
        waiting(loader, expected)
        return
    print("reading", flush=True)
    timed((sample["input_ids"] for sample in loader), expected)


def waiting(loader: Any, expected: int) -> None:
    """Time `next` while a step takes longer than a batch needs to come."""
    iterator = iter(loader)
    taken: list[float] = []
    for _ in range(1000):
        started = time.perf_counter()
        next(iterator)
        taken.append((time.perf_counter() - started) * 1000)
        time.sleep(_STEP_SECONDS)
    p50, p99, p999 = map(float, np.percentile(taken[_WARM:], [50, 99, 99.9]))
    print(orjson.dumps({"p50": p50, "p99": p99, "p99.9": p999}).decode())


if __name__ == "__main__":
    main()
