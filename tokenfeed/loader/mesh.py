"""Which data a rank takes where ranks train together in more than one way.

Under tensor and pipeline parallelism several ranks train on the same batch, under context parallelism each on a part of
its rows. What counts for the feed is a rank's place along the data parallel dimensions alone.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh

from tokenfeed.loader.samples import IGNORE


def coordinate(mesh: DeviceMesh, *dimensions: str) -> tuple[int, int]:
    """(rank, world) of this process along some dimensions of a mesh, as FeedDataset takes them.

    For instance `FeedDataset(feed, *coordinate(mesh, "dp_replicate", "dp_shard"))`. Ranks that differ in other dimensions
    only get the same answer, and so the same batches.

    Raises:
        ValueError: the mesh has no such dimension.
    """
    names = mesh.mesh_dim_names or ()
    if unknown := set(dimensions) - set(names):
        raise ValueError(f"the mesh has no dimension {', '.join(sorted(unknown))}; it has {', '.join(names) or 'no names'}")
    rank, world = 0, 1
    for name in dimensions:
        size = mesh.size(names.index(name))
        rank, world = rank * size + mesh.get_local_rank(name), world * size
    return rank, world


def sequence_slice(sample: dict[str, Any], rank: int, world: int) -> dict[str, Any]:
    """A context parallel rank's part of a sample: positions [rank * L / world, (rank + 1) * L / world) of its rows.

    `labels` become `shift_labels`: what stands one position further, -100 behind the last, because the label of a part's
    last position stands in the next part. Models and losses of transformers take them by that name.

    Args:
        sample: tensors [B, L].
        rank, world: place along the context parallel dimension; see `coordinate`.

    Raises:
        ValueError: L is not a multiple of `world`, or the sample is flat.
    """
    length = sample["input_ids"].shape[1]
    if "cu_seq_lens_q" in sample:
        raise ValueError('a flat sample has no rows to slice; use layout="rows"')
    if length % world:
        raise ValueError(f"rows of {length} tokens do not fall into {world} equal parts")
    whole = dict(sample)
    if "labels" in whole:
        labels = whole.pop("labels")
        whole["shift_labels"] = torch.cat((labels[:, 1:], torch.full_like(labels[:, :1], IGNORE)), dim=1)
    share = length // world
    return {name: value[:, rank * share : (rank + 1) * share] for name, value in whole.items()}
