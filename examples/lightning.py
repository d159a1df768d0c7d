"""Lightning. Kill it at any step; it goes on with any number of ranks.

torchrun --nproc-per-node 2 -m examples.lightning runs/lightning
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader

from examples.model import TinyModel
from tokenfeed.loader import Feed
from tokenfeed.loader.checkpoint import RunState
from tokenfeed.loader.torch import FeedDataset
from tokenfeed.settings import load_settings


class FeedModule(lightning.LightningDataModule):  # type: ignore[misc]
    """A feed, with its position in every checkpoint. Lightning takes one batch ahead of the one it trains on."""

    def __init__(self, feed: Feed, name: str) -> None:
        super().__init__()
        rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
        self.dataset = FeedDataset(feed, rank, world, run=name, read_ahead=1)
        self.run = RunState(self.dataset)

    def train_dataloader(self) -> Any:
        """The feed's."""
        return DataLoader(self.dataset, batch_size=None)

    def state_dict(self) -> dict[str, Any]:
        """Called on all ranks."""
        return self.run.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on there."""
        self.run.load_state_dict(state_dict)


class Model(lightning.LightningModule):  # type: ignore[misc]
    """The model and its optimizer."""

    def __init__(self, vocab_size: int) -> None:
        super().__init__()
        self.model = TinyModel(vocab_size)

    def training_step(self, sample: dict[str, torch.Tensor], _: int) -> torch.Tensor:
        """The loss of a sample."""
        return self.model(**sample)["loss"]  # type: ignore[no-any-return]

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """AdamW."""
        return torch.optim.AdamW(self.parameters())


def main(folder: Path) -> None:
    """Train until the feed ends, with a checkpoint every five steps."""
    feed = Feed.of(load_settings())
    saving = ModelCheckpoint(folder, "{step:08d}", every_n_train_steps=5, save_top_k=-1)
    trainer = lightning.Trainer(max_epochs=1, callbacks=[saving], logger=False, enable_progress_bar=False, devices="auto")
    saved = sorted(folder.glob("step=*.ckpt"))
    print(f"from step {saved[-1].stem.split('=')[1] if saved else 0}", flush=True)
    model = Model(feed.edition().plan.vocab_size)
    trainer.fit(model, datamodule=FeedModule(feed, folder.name), ckpt_path=saved[-1] if saved else None, weights_only=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
