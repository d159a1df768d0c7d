"""FSDP2 with distributed checkpoints. Kill it at any step; it goes on with any number of ranks.

torchrun --nproc-per-node 2 -m examples.fsdp runs/fsdp
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from examples.model import TinyModel
from tokenfeed.loader import Feed
from tokenfeed.loader.checkpoint import RunState
from tokenfeed.loader.mesh import coordinate
from tokenfeed.loader.torch import FeedDataset, FeedLoader
from tokenfeed.settings import load_settings


def main(folder: Path) -> None:
    """Train until the feed ends, with a checkpoint every five steps."""
    dist.init_process_group()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    mesh = init_device_mesh(device, (dist.get_world_size(),), mesh_dim_names=("dp",))
    feed = Feed.of(load_settings())
    loader = FeedLoader(FeedDataset(feed, *coordinate(mesh, "dp"), run=folder.name), device=device)
    model = TinyModel(feed.edition().plan.vocab_size).to(device)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters())
    model_state, optimizer_state = get_state_dict(model, optimizer)
    saved: dict[str, Any] = {"model": model_state, "optimizer": optimizer_state, "run": RunState(loader), "step": 0}
    done = sorted(folder.glob("step-*/.metadata"))  # written last: what has none was cut off
    if done:
        load(saved, checkpoint_id=done[-1].parent)
        set_state_dict(model, optimizer, model_state_dict=saved["model"], optim_state_dict=saved["optimizer"])
    print(f"from step {saved['step']}", flush=True)
    for step, sample in enumerate(loader, saved["step"] + 1):
        optimizer.zero_grad()
        loss = model(**sample)["loss"]
        loss.backward()
        optimizer.step()
        if step % 5 == 0:
            model_state, optimizer_state = get_state_dict(model, optimizer)
            saved |= {"model": model_state, "optimizer": optimizer_state, "step": step}
            save(saved, checkpoint_id=folder / f"step-{step:08d}")
            print(f"step {step}: loss {loss.item():.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
