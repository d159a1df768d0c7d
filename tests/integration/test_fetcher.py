"""Runs of raw records: whole, in order, one behind another, and of the partitions that were asked for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from faust.types import TP

from app.fetcher import RawFetcher, Run
from tests.service import Service
from tokenfeed.documents import JSON, SEAL, RawRecord

MakeService = Callable[..., Service]


def fetch(fetcher: RawFetcher, positions: dict[TP, int], generation: int, count: int) -> list[Run]:
    """Assign, and fetch until `count` records have come; then see that no more come."""

    async def collected() -> list[Run]:
        await fetcher.assign(positions, generation)
        runs: list[Run] = []
        async with asyncio.timeout(30):
            while sum(len(run.records) for run in runs) < count:
                runs += await fetcher.fetch()
        return [*runs, *await fetcher.fetch()]

    return asyncio.run(collected())


def of_partition(runs: list[Run], tp: TP) -> list[RawRecord]:
    return [record for run in runs if run.tp == tp for record in run.records]


def test_runs_follow_one_another_from_where_they_were_asked_for(service: MakeService) -> None:
    feed = service()
    values = [b"record %d" % number for number in range(3000)]
    feed.produce([(number % 2, value) for number, value in enumerate(values)])
    first, second = (TP(feed.settings.raw_topics[0], partition) for partition in range(2))
    fetcher = RawFetcher(feed.options, feed.settings.raw_topics, 2**20)
    runs = fetch(fetcher, {first: 0, second: 1000}, 7, 2000)
    assert of_partition(runs, first) == [RawRecord(0, offset, value) for offset, value in enumerate(values[::2])]
    assert of_partition(runs, second) == [RawRecord(0, offset, values[2 * offset + 1]) for offset in range(1000, 1500)]
    ends = {first: 0, second: 1000}
    for run in runs:
        assert (run.start, run.generation) == (ends[run.tp], 7)
        ends[run.tp] = run.end
    # Another assignment leaves nothing of the one before.
    again = fetch(fetcher, {second: 1499}, 8, 1)
    assert [(run.tp, run.generation, run.start, run.end) for run in again] == [(second, 8, 1499, 1500)]
    assert fetch(fetcher, {}, 9, 0) == []
    fetcher.close()


def test_tombstones_seals_and_content_types_come_as_they_are(service: MakeService) -> None:
    feed = service()
    feed.produce([(0, None), (0, b"text")])
    feed.produce([(0, b'{"text": "a"}')], JSON)
    feed.produce([(0, None)], SEAL)
    fetcher = RawFetcher(feed.options, feed.settings.raw_topics, 2**20)
    tp = TP(feed.settings.raw_topics[0], 0)
    assert of_partition(fetch(fetcher, {tp: 0}, 1, 4), tp) == [
        RawRecord(0, 0, None),
        RawRecord(0, 1, b"text"),
        RawRecord(0, 2, b'{"text": "a"}', JSON),
        RawRecord(0, 3, None, SEAL),
    ]
    fetcher.close()
