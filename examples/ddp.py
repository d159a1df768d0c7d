"""DistributedDataParallel in a loop of one's own. Kill it at any step; it goes on with any number of ranks.

torchrun --nproc-per-node 2 -m examples.ddp runs/ddp
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from examples.model import TinyModel
from tokenfeed.loader import Feed
from tokenfeed.loader.checkpoint import RunState
from tokenfeed.loader.torch import FeedDataset, FeedLoader
from tokenfeed.settings import load_settings


def main(folder: Path) -> None:
    """Train until the feed ends, with a checkpoint every five steps."""
    folder.mkdir(parents=True, exist_ok=True)
    dist.init_process_group()
    feed = Feed.of(load_settings())
    loader = FeedLoader(FeedDataset(feed, run=folder.name), device="cuda" if torch.cuda.is_available() else None)
    run = RunState(loader)
    model = DistributedDataParallel(TinyModel(feed.edition().plan.vocab_size))
    optimizer = torch.optim.AdamW(model.parameters())
    step, checkpoint = 0, folder / "checkpoint.pt"
    if checkpoint.exists():
        saved = torch.load(checkpoint, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        run.load_state_dict(saved["run"])
        step = saved["step"]
    print(f"from step {step}", flush=True)
    for step, sample in enumerate(loader, step + 1):  # noqa: B020
        optimizer.zero_grad()
        loss = model(**sample)["loss"]
        loss.backward()
        optimizer.step()
        if step % 5 == 0:
            position = run.state_dict()  # all ranks
            if dist.get_rank() == 0:
                state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "run": position, "step": step}
                torch.save(state, checkpoint.with_suffix(".new"))
                checkpoint.with_suffix(".new").replace(checkpoint)
                print(f"step {step}: loss {loss.item():.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
