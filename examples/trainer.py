"""The Trainer of transformers. Kill it at any step; it goes on with any number of ranks.

torchrun --nproc-per-node 2 -m examples.trainer runs/trainer
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from transformers import Trainer, TrainerCallback, TrainingArguments

from examples.model import TinyModel
from tokenfeed.loader import Feed
from tokenfeed.loader.checkpoint import RunState
from tokenfeed.loader.torch import FeedDataset, FeedLoader
from tokenfeed.settings import load_settings


class SavePosition(TrainerCallback):
    """Writes feed.json into every checkpoint."""

    def __init__(self, run: RunState) -> None:
        self.run = run

    def on_save(self, args: TrainingArguments, state: Any, control: Any, **_: Any) -> None:
        """Called on all ranks, when the rest of the checkpoint is there."""
        position = self.run.state_dict()
        if state.is_world_process_zero:
            file = Path(args.output_dir or ".", f"checkpoint-{state.global_step}", "feed.json")
            file.with_suffix(".new").write_text(json.dumps(position))
            file.with_suffix(".new").replace(file)


class FeedTrainer(Trainer):
    """Takes batches as they come: the loader gives each rank its own, so nothing may be prepared or skipped."""

    loader: FeedLoader

    def get_train_dataloader(self) -> FeedLoader:
        """The feed's."""
        return self.loader


def main(folder: Path) -> None:
    """Train 30 steps, or until the feed ends, with a checkpoint every five."""
    args = TrainingArguments(
        str(folder), max_steps=30, save_steps=5, logging_steps=5, ignore_data_skip=True, report_to="none"
    )
    feed = Feed.of(load_settings())
    loader = FeedLoader(FeedDataset(feed, run=folder.name), device=args.device)
    run = RunState(loader)
    trainer = FeedTrainer(TinyModel(feed.edition().plan.vocab_size), args, callbacks=[SavePosition(run)])
    trainer.loader = loader
    whole = sorted(folder.glob("checkpoint-*/feed.json"), key=lambda file: int(file.parent.name.split("-")[1]))
    if whole:
        run.load_state_dict(json.loads(whole[-1].read_text()))
    print(f"from step {whole[-1].parent.name.split('-')[1] if whole else 0}", flush=True)
    trainer.train(resume_from_checkpoint=str(whole[-1].parent) if whole else None)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
