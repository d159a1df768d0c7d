"""Trainers that are killed at random steps and go on with other numbers of ranks."""

from __future__ import annotations

import hashlib
import json
import random
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.chaos.harness import Outcome, Trial
from tests.integration.test_service import documents, spread
from tests.service import ROOT, wait_until
from tokenfeed.loader import Cursor, Feed, FeedReader, merge

SAVE_EVERY = 3


def uninterrupted(feed: Trial) -> list[str]:
    """Digest of the input ids of every batch of the global order."""
    with FeedReader(Feed.of(feed.settings), slot_timeout=30) as reader:
        return [
            hashlib.sha256(one.batch.input_ids.astype("<i8").tobytes()).hexdigest()
            for one in reader
            if one.batch is not None
        ]


def train(feed: Trial, folder: Path, world: int, workers: int, stop_at: int | None) -> bool:
    """Run all ranks; kill -9 them once each has given `stop_at` batches. Whether all came to the end."""
    for path in folder.glob("rank-*.ended"):
        path.unlink()
    ranks = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.chaos.trainer", folder, *map(str, (rank, world, SAVE_EVERY, workers))],
            cwd=ROOT,
            env=feed.environment(),
        )
        for rank in range(world)
    ]
    logs = [folder / f"rank-{rank}.log" for rank in range(world)]

    def reached() -> bool:
        given = min(len(log.read_text().splitlines()) if log.exists() else 0 for log in logs)
        return (stop_at is not None and given >= stop_at) or all(rank.poll() is not None for rank in ranks)

    wait_until(reached, "the ranks to train", 100)
    for rank in ranks:
        rank.kill()
        rank.wait()
    return all((folder / f"rank-{rank}.ended").exists() for rank in range(world))


def common_checkpoint(folder: Path, world: int) -> int:
    """Merge the newest checkpoint that all ranks have; forget what was trained behind it. Return where it stands."""
    saved: dict[int, dict[int, Path]] = {}
    for path in folder.glob("state-*.json"):
        rank, stands = map(int, re.findall(r"\d+", path.name))
        saved.setdefault(stands, {})[rank] = path
    whole = [stands for stands, paths in saved.items() if len(paths) == world]
    resume = folder / "resume.json"
    if whole:
        states = [json.loads(path.read_text()) for path in saved[max(whole)].values()]
        resume.write_text(json.dumps(merge(map(Cursor.from_state, states)).to_state()))
    for path in folder.glob("state-*.json"):
        path.unlink()
    return int(json.loads(resume.read_text())["next"]) if resume.exists() else 0


@pytest.mark.parametrize(
    ("worlds", "workers"),
    [
        ((2, 3), 1),
        pytest.param((1, 2, 3, 4, 6, 8), 0, marks=pytest.mark.chaos),
        pytest.param((8, 6, 3, 8), 1, marks=pytest.mark.chaos),
        pytest.param((2, 3, 1, 2), 2, marks=pytest.mark.chaos),
    ],
)
@pytest.mark.timeout(600)
def test_ranks_that_are_killed_go_on_with_other_numbers(
    trial: Callable[..., Trial],
    sound: Callable[[Outcome], None],
    tmp_path: Path,
    worlds: tuple[int, ...],
    workers: int,
) -> None:
    feed = trial()
    feed.start_worker()
    feed.produce(spread(documents(1500)))
    feed.seal()
    feed.wait_sealed()
    expected = uninterrupted(feed)
    folder = tmp_path / "run"
    folder.mkdir()
    chosen = random.Random(len(worlds))
    trained: dict[int, list[str]] = defaultdict(list)
    stood = again = 0
    for turn, world in enumerate(worlds):
        last = turn == len(worlds) - 1
        ended = train(feed, folder, world, workers, None if last else chosen.randint(4, 12))
        assert ended == last
        stands = len(expected) if ended else common_checkpoint(folder, world)
        assert stands > stood, "the next ranks go on from a state that these have saved"
        stood = stands
        for path in folder.glob("rank-*.log"):
            for line in path.read_text().splitlines():
                number, digest = line.split()
                if int(number) < stands:
                    trained[int(number)].append(digest)
                elif not ended:
                    again += 1  # trained behind the checkpoint, so forgotten
            path.unlink()
    wrong = [digests[0] for number, digests in trained.items() if digests[0] != expected[number]]
    sound(
        Outcome(
            fault=f"trainers killed: {', '.join(map(str, worlds))} ranks, {workers} DataLoader workers each",
            lost=0,
            doubled=sum(len(digests) > 1 for digests in trained.values()),
            altered=sum(digest not in expected for digest in wrong),
            out_of_order=sum(digest in expected for digest in wrong),
            unseen=len(expected) - len(trained),
            repeats=again,
            recovery_seconds=0.0,
        )
    )
