"""A rank that trains: `python -m tests.chaos.trainer FOLDER RANK WORLD SAVE_EVERY WORKERS`.

For every batch it appends "number hash" to FOLDER/rank-R.log, as an optimizer step would change the model, and every
SAVE_EVERY batches it saves its state together with how long the log was, in one rename, as a checkpoint does. Started
again, it goes on from the merge of all ranks' last common checkpoint, FOLDER/resume.json.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from pathlib import Path

from tokenfeed.loader import Feed
from tokenfeed.loader.torch import FeedDataset, FeedLoader
from tokenfeed.settings import load_settings

STEP_SECONDS = 0.005


def main() -> None:
    """Train until the feed ends."""
    folder = Path(sys.argv[1])
    rank, world, every, workers = map(int, sys.argv[2:])
    dataset = FeedDataset(Feed.of(load_settings()), rank, world, slot_timeout=30)
    resume = folder / "resume.json"
    begin = 0
    if resume.exists():
        state = json.loads(resume.read_text())
        begin = state["next"]
        dataset.load_state_dict(state)
    with (folder / f"rank-{rank}.log").open("a") as log:
        for step, sample in enumerate(FeedLoader(dataset, workers)):
            digest = hashlib.sha256(sample["input_ids"].numpy().tobytes()).hexdigest()
            log.write(f"{begin + step * world + rank} {digest}\n")
            log.flush()
            time.sleep(STEP_SECONDS)
            if (step + 1) % every == 0:
                saved = folder / f"state-{rank}-{begin + (step + 1) * world}.json"
                saved.with_suffix(".tmp").write_text(json.dumps(dataset.state_dict()))
                saved.with_suffix(".tmp").replace(saved)
    (folder / f"rank-{rank}.ended").touch()


if __name__ == "__main__":
    main()
