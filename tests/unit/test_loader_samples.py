"""Labels, positions and document ids agree with a plain loop over the pieces."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.feeds import ByteTokenizer, make_cut, make_plan
from tokenfeed.content import window_content
from tokenfeed.documents import RawRecord
from tokenfeed.loader.samples import FIELDS, padding, sample


@given(texts=st.lists(st.text(st.characters(codec="ascii"), min_size=1, max_size=40), min_size=1, max_size=12))
def test_samples_equal_a_plain_loop(texts: list[str]) -> None:
    plan = make_plan(record_format="text")
    records = [RawRecord(0, offset, text.encode()) for offset, text in enumerate(texts)]
    for batch in window_content(plan, ByteTokenizer(), make_cut(plan, records), records).batches:
        made = sample(batch)
        rows, length = batch.input_ids.shape
        labels = np.full((rows, length), -100)
        documents = np.full((rows, length), -1)
        positions = np.zeros((rows, length), dtype=int)
        for row in range(rows):
            cell = 0
            pieces = range(batch.row_splits[row], batch.row_splits[row + 1])
            for document, piece in enumerate(pieces):
                for position in range(batch.piece_lens[piece]):
                    labels[row, cell] = batch.input_ids[row, cell]
                    documents[row, cell] = document
                    positions[row, cell] = position
                    cell += 1
            positions[row, cell:] = np.arange(length - cell)
        np.testing.assert_array_equal(made["input_ids"], batch.input_ids)
        np.testing.assert_array_equal(made["labels"], labels)
        np.testing.assert_array_equal(made["document_ids"], documents)
        np.testing.assert_array_equal(made["position_ids"], positions)
        assert {array.dtype for array in made.values()} == {np.dtype(np.int64)}
        for field in FIELDS:
            (only,) = sample(batch, [field]).items()
            assert only[0] == field
            np.testing.assert_array_equal(only[1], made[field])


def test_padding_has_no_label() -> None:
    made = padding(2, 5, 9)
    assert (made["labels"] == -100).all()
    assert (made["input_ids"] == 9).all()
    assert {array.shape for array in made.values()} == {(2, 5)}
