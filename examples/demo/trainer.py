"""One rank of the demo's training: a tiny DeepSeek-V3 with random weights, trained through the loader with DDP.

Every batch is consumed and trains. The loss of a batch is taken on POSITIONS of its tokens, chosen by a seed, because a
softmax over a vocabulary of 129,280 for every token is too dear for a CPU.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from transformers import DeepseekV3Config, DeepseekV3ForCausalLM

from examples.demo import POSITIONS
from tokenfeed.batches import Batch
from tokenfeed.loader import Feed
from tokenfeed.loader.samples import IGNORE
from tokenfeed.loader.torch import FeedDataset
from tokenfeed.settings import load_settings

HIDDEN: Final = 32
LEARNING_RATE: Final = 3e-3
SEED: Final = 0


class SampledLoss(nn.Module):
    """The model and its loss on some positions: returns the summed loss and the number of positions."""

    def __init__(self, vocab_size: int, length: int) -> None:
        super().__init__()
        self.model = DeepseekV3ForCausalLM(tiny(vocab_size, length))  # type: ignore[no-untyped-call]

    def forward(self, sample: dict[str, torch.Tensor], chosen: torch.Tensor) -> Any:
        ids, labels, positions = (sample[name] for name in ("input_ids", "labels", "position_ids"))
        hidden = self.model.model(input_ids=ids, position_ids=positions).last_hidden_state
        hidden = hidden[:, :-1].reshape(-1, hidden.shape[-1])[chosen]
        targets = labels[:, 1:].reshape(-1)[chosen]
        logits = self.model.lm_head(hidden).float()
        return nn.functional.cross_entropy(logits, targets, reduction="sum"), (targets != IGNORE).sum()


def tiny(vocab_size: int, length: int) -> DeepseekV3Config:
    """DeepSeek-V3's architecture (latent attention, routed experts) in the smallest size that learns."""
    return DeepseekV3Config(
        vocab_size=vocab_size,
        hidden_size=HIDDEN,
        intermediate_size=2 * HIDDEN,
        moe_intermediate_size=HIDDEN,
        num_hidden_layers=2,
        first_k_dense_replace=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        n_routed_experts=4,
        n_shared_experts=1,
        num_experts_per_tok=2,
        n_group=1,
        topk_group=1,
        q_lora_rank=HIDDEN // 2,
        kv_lora_rank=HIDDEN // 2,
        qk_rope_head_dim=8,
        qk_nope_head_dim=8,
        v_head_dim=16,
        max_position_embeddings=length,
        tie_word_embeddings=True,
        use_cache=False,
    )


class Account:
    """What this rank trained on: every piece with its origin and its tokens."""

    def __init__(self) -> None:
        self._origins: list[np.ndarray[Any, Any]] = []
        self._ids: list[np.ndarray[Any, Any]] = []
        self.batches = 0

    def add(self, batch: Batch, sample: dict[str, torch.Tensor]) -> None:
        """Note a batch's pieces: stream, offset, index, first token, length; and their ids as the model gets them."""
        self.batches += 1
        stream = np.full(len(batch.origins), batch.stream)
        self._origins.append(np.column_stack([stream, batch.origins[:, :3], batch.piece_lens]))
        self._ids.append(sample["input_ids"][sample["labels"] != IGNORE].numpy().astype(np.int32))

    def save(self, path: Path, **values: Any) -> None:
        """Write the account for the driver to check."""
        origins = np.concatenate(self._origins) if self._origins else np.zeros((0, 5), dtype=np.int64)
        ids = np.concatenate(self._ids) if self._ids else np.zeros(0, dtype=np.int32)
        np.savez(path, origins=origins, ids=ids, batches=self.batches, **values)


def train(rank: int, world: int, store: str, result: Path) -> None:
    """Train until the feed ends; every rank ends on the same step."""
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=world, timeout=timedelta(minutes=2))
    feed = Feed.of(load_settings())
    feed_plan = feed.edition().plan
    dataset = FeedDataset(feed, run="demo", slot_timeout=90)
    account = Account()
    losses: list[float] = []
    model = DistributedDataParallel(SampledLoss(feed_plan.vocab_size, feed_plan.sequence_length))
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
    chooser = np.random.default_rng(SEED + rank)
    for sample in DataLoader(dataset, batch_size=None):
        reader = dataset.reader
        batch = reader.last.batch if reader and reader.last else None
        if batch is not None:
            account.add(batch, sample)
        labelled = np.flatnonzero(sample["labels"][:, 1:].reshape(-1).numpy() != IGNORE)
        chosen = torch.from_numpy(chooser.choice(labelled, POSITIONS) if len(labelled) else np.zeros(1, dtype=np.int64))
        loss, count = model(sample, chosen)
        total = torch.stack([loss.detach(), count.float()])
        dist.all_reduce(total)
        # DDP averages gradients over ranks; this makes the step the mean over the positions of all ranks.
        (loss * world / total[1].clamp(min=1)).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(float(total[0] / total[1].clamp(min=1)))
        if rank == 0:
            report = {"step": len(losses), "loss": losses[-1], "batches": account.batches * world}
            print(json.dumps(report), flush=True)
    account.save(result, losses=np.array(losses))
    dist.destroy_process_group()


def main() -> None:
    """The command that the driver runs, once a rank."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--world", type=int, required=True)
    parser.add_argument("--store", required=True, help="where the ranks meet, e.g. file:///tmp/store")
    parser.add_argument("--result", type=Path, required=True)
    options = parser.parse_args()
    started = time.monotonic()
    train(options.rank, options.world, options.store, options.result)
    print(f"rank {options.rank} ended after {time.monotonic() - started:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
