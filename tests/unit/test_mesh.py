"""Ranks that train on the same data get the same batches, and context parallel ranks parts of their rows."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore

from tokenfeed.loader.mesh import coordinate, sequence_slice

SHAPE = (2, 2, 2)


@pytest.fixture(params=range(8))
def mesh(request: pytest.FixtureRequest) -> Iterator[DeviceMesh]:
    """Each rank's view of a mesh of 8."""
    dist.init_process_group("fake", rank=request.param, world_size=8, store=FakeStore())
    try:
        yield init_device_mesh("cpu", SHAPE, mesh_dim_names=("dp_replicate", "dp_shard", "tp"))
    finally:
        dist.destroy_process_group()


def test_a_rank_is_counted_along_the_named_dimensions_only(mesh: DeviceMesh) -> None:
    rank = dist.get_rank()
    assert coordinate(mesh, "dp_replicate", "dp_shard") == (rank // 2, 4)
    assert coordinate(mesh, "dp_shard") == (rank // 2 % 2, 2)
    assert coordinate(mesh, "tp") == (rank % 2, 2)
    assert coordinate(mesh) == (0, 1)
    with pytest.raises(ValueError, match="no dimension cp; it has dp_replicate, dp_shard, tp"):
        coordinate(mesh, "dp_shard", "cp")


def sample_of(length: int) -> dict[str, torch.Tensor]:
    ids = torch.arange(2 * length).reshape(2, length)
    labels = torch.where(torch.arange(length) < length - 2, ids, -100)
    return {"input_ids": ids, "labels": labels, "position_ids": ids % 5}


@pytest.mark.parametrize("world", [1, 2, 4])
def test_the_slices_together_are_the_sample_with_its_labels_shifted(world: int) -> None:
    sample = sample_of(8)
    parts = [sequence_slice(sample, rank, world) for rank in range(world)]
    assert {tuple(part["input_ids"].shape) for part in parts} == {(2, 8 // world)}
    whole = {name: torch.cat([part[name] for part in parts], dim=1) for name in parts[0]}
    assert whole.keys() == {"input_ids", "shift_labels", "position_ids"}
    assert torch.equal(whole["input_ids"], sample["input_ids"])
    assert torch.equal(whole["position_ids"], sample["position_ids"])
    assert torch.equal(whole["shift_labels"][:, :-1], sample["labels"][:, 1:])
    assert (whole["shift_labels"][:, -1] == -100).all()
    assert "labels" in sample, "the sample itself is left alone"


def test_what_cannot_be_sliced_evenly_is_refused() -> None:
    with pytest.raises(ValueError, match="rows of 8 tokens do not fall into 3 equal parts"):
        sequence_slice(sample_of(8), 0, 3)
    with pytest.raises(ValueError, match='use layout="rows"'):
        sequence_slice({"input_ids": torch.zeros(1, 8), "cu_seq_lens_q": torch.zeros(2)}, 0, 2)
