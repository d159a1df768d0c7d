"""Accelerate. Kill it at any step; it goes on with any number of processes.

accelerate launch --num-processes 2 -m examples.accelerated runs/accelerate
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from accelerate import Accelerator

from examples.model import TinyModel
from tokenfeed.loader import Feed
from tokenfeed.loader.checkpoint import RunState
from tokenfeed.loader.torch import FeedDataset, FeedLoader
from tokenfeed.settings import load_settings


def main(folder: Path) -> None:
    """Train until the feed ends, with a checkpoint every five steps."""
    accelerator = Accelerator()
    feed = Feed.of(load_settings())
    loader = FeedLoader(FeedDataset(feed, run=folder.name), device=accelerator.device)  # not to be prepared
    model = TinyModel(feed.edition().plan.vocab_size)
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters()))
    accelerator.register_for_checkpointing(RunState(loader))
    done = sorted(file.parent for file in folder.glob("step-*/done"))
    if done:
        accelerator.load_state(str(done[-1]))
    begin = int(done[-1].name.split("-")[1]) if done else 0
    print(f"from step {begin}", flush=True)
    for step, sample in enumerate(loader, begin + 1):
        optimizer.zero_grad()
        loss = model(**sample)["loss"]
        accelerator.backward(loss)
        optimizer.step()
        if step % 5 == 0:
            accelerator.save_state(str(folder / f"step-{step:08d}"))
            accelerator.wait_for_everyone()
            if accelerator.is_main_process:
                (folder / f"step-{step:08d}" / "done").touch()
                print(f"step {step}: loss {loss.item():.3f}", flush=True)
    accelerator.end_training()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
