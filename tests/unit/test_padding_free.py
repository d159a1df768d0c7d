"""Documents that share a row or a flat batch do not see each other: a model says of each what it says of it alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.attention.flex_attention import flex_attention
from transformers import DataCollatorWithFlattening, LlamaConfig, LlamaForCausalLM

from tests.feeds import ByteTokenizer, make_cut, make_plan
from tokenfeed.batches import Batch
from tokenfeed.content import window_content
from tokenfeed.documents import RawRecord
from tokenfeed.loader.attention import block_mask, dense_mask
from tokenfeed.loader.samples import flattened, flattened_padding, sample

TEXTS = [
    b"a",
    b"some words",
    b"some",
    b"a document of more than one row, so that it is cut",
    b"words",
    b"the last",
    b"x" * 16,
]


@pytest.fixture(scope="module")
def batches() -> list[Batch]:
    plan = make_plan(record_format="text", sequence_length=16, batch_size=3)
    records = [RawRecord(0, offset, text) for offset, text in enumerate(TEXTS)]
    return window_content(plan, ByteTokenizer(), make_cut(plan, records), records).batches


@pytest.fixture(scope="module")
def model() -> Any:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=512,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        attn_implementation="sdpa",
    )
    return LlamaForCausalLM(config).eval()


def pieces(batch: Batch) -> list[np.ndarray[Any, Any]]:
    """Token ids of each piece, by a plain loop."""
    found = []
    for row in range(len(batch.input_ids)):
        cell = 0
        for piece in range(batch.row_splits[row], batch.row_splits[row + 1]):
            found.append(batch.input_ids[row, cell : cell + batch.piece_lens[piece]].astype(np.int64))
            cell += batch.piece_lens[piece]
    return found


def test_the_flat_batch_is_that_of_transformers(batches: list[Batch]) -> None:
    collate = DataCollatorWithFlattening(return_flash_attn_kwargs=True, return_tensors="np")
    for batch in batches:
        expected = collate([{"input_ids": piece.tolist()} for piece in pieces(batch)])
        made = flattened(batch)
        assert made.keys() == expected.keys()
        for name, value in made.items():
            np.testing.assert_array_equal(value, expected[name], name)
            assert np.asarray(value).dtype == np.asarray(expected[name]).dtype, name


def test_flat_padding_has_no_label() -> None:
    made = flattened_padding(16, 9)
    assert (made["labels"] == -100).all()
    assert (made["input_ids"] == 9).all()
    assert made["cu_seq_lens_q"].tolist() == [0, 16]
    assert made["input_ids"].shape == made["position_ids"].shape == (1, 16)


@torch.no_grad()
def alone(model: Any, batch: Batch) -> list[torch.Tensor]:
    return [model(input_ids=torch.from_numpy(piece)[None]).logits[0] for piece in pieces(batch)]


@torch.no_grad()
def packed(model: Any, batch: Batch, mask: torch.Tensor | None) -> list[torch.Tensor]:
    """Logits of each piece where it stands in its row."""
    made = {name: torch.from_numpy(array) for name, array in sample(batch).items()}
    logits = model(input_ids=made["input_ids"], position_ids=made["position_ids"], attention_mask=mask).logits
    document_ids = made["document_ids"]
    return [
        logits[row][document_ids[row] == document]
        for row in range(len(document_ids))
        for document in range(int(document_ids[row].max()) + 1)
    ]


def test_no_document_of_a_row_sees_another(model: Any, batches: list[Batch]) -> None:
    assert max(np.diff(batch.row_splits).max() for batch in batches) > 1
    leaks = False
    for batch in batches:
        expected = alone(model, batch)
        mask = dense_mask(torch.from_numpy(sample(batch)["document_ids"]))
        for found, wanted in zip(packed(model, batch, mask), expected, strict=True):
            torch.testing.assert_close(found, wanted)
        causal = torch.ones(1, 1, 16, 16, dtype=torch.bool).tril().expand(len(batch.input_ids), 1, 16, 16)
        leaks |= any(
            not torch.allclose(found, wanted, atol=1e-3)
            for found, wanted in zip(packed(model, batch, causal), expected, strict=True)
        )
    assert leaks, "with a causal mask alone they do see each other"


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")  # which needs a C++ compiler
def test_the_block_mask_is_the_dense_one(batches: list[Batch]) -> None:
    torch.manual_seed(0)
    for batch in batches:
        document_ids = torch.from_numpy(sample(batch)["document_ids"])
        query, key, value = torch.randn(3, len(document_ids), 2, 16, 8).unbind()
        expected = torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=dense_mask(document_ids))
        torch.testing.assert_close(flex_attention(query, key, value, block_mask=block_mask(document_ids)), expected)
