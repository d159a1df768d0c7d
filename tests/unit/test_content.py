"""The pure function: raw records + plan + cut -> batches."""

from __future__ import annotations

from collections import Counter, defaultdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.feeds import END, ByteTokenizer, make_cut, make_plan
from tokenfeed.batches import Batch, encode
from tokenfeed.content import WindowContent, window_content
from tokenfeed.documents import RawRecord
from tokenfeed.errors import LedgerError
from tokenfeed.ledger import Cut, Piece
from tokenfeed.plan import Plan

texts = st.lists(st.text(st.characters(codec="utf-8"), max_size=60), max_size=25)


def content_of(plan: Plan, records: list[RawRecord], window: int = 0) -> WindowContent:
    return window_content(plan, ByteTokenizer(), make_cut(plan, records, window=window), records)


def documents_in(batches: list[Batch]) -> dict[tuple[int, int], list[int]]:
    """Token ids of every document, put together from its pieces; fails when a piece is missing or doubled."""
    pieces: dict[tuple[int, int], list[tuple[int, list[int]]]] = defaultdict(list)
    for batch in batches:
        for row in range(len(batch.input_ids)):
            cell = 0
            for piece in range(batch.row_splits[row], batch.row_splits[row + 1]):
                offset, index, first, _ = batch.origins[piece].tolist()
                length = int(batch.piece_lens[piece])
                ids = batch.input_ids[row, cell : cell + length].tolist()
                pieces[offset, index].append((first, ids))
                cell += length
            assert set(batch.input_ids[row, cell:].tolist()) <= {END}
    documents = {}
    for origin, found in pieces.items():
        documents[origin] = [token for _, ids in sorted(found) for token in ids]
        assert [first for first, _ in sorted(found)] == [
            sum(len(ids) for _, ids in sorted(found)[:i]) for i in range(len(found))
        ]
    return documents


@pytest.mark.parametrize("packing", ["best_fit", "concatenate"])
@given(texts=texts)
def test_every_document_is_in_the_batches_exactly_once(packing: str, texts: list[str]) -> None:
    plan = make_plan(packing=packing, record_format="text")
    records = [RawRecord(0, offset, text.encode()) for offset, text in enumerate(texts)]
    content = content_of(plan, records)
    expected = {(i, 0): ids for i, text in enumerate(texts) if (ids := ByteTokenizer().encode(text))}
    assert documents_in(content.batches) == expected
    assert content.documents == len(expected)
    assert content.tokens == sum(map(len, expected.values())) == sum(batch.tokens for batch in content.batches)
    assert content.documents + len(content.filtered) == len(texts)


def test_equal_arguments_give_equal_bytes() -> None:
    records = [RawRecord(0, offset, b"text %d" % offset) for offset in range(100)]
    first, second = (content_of(make_plan(), records).batches for _ in range(2))
    assert list(map(encode, first)) == list(map(encode, second))


def test_seed_stream_and_window_change_the_order_and_nothing_else() -> None:
    records = [RawRecord(0, offset, b"text %d" % offset) for offset in range(100)]
    one = content_of(make_plan(), records)
    for other in (content_of(make_plan(seed=8), records), content_of(make_plan(), records, window=1)):
        assert documents_in(one.batches) == documents_in(other.batches)
        assert [b.origins.tolist() for b in one.batches] != [b.origins.tolist() for b in other.batches]


def test_batches_are_numbered_on_from_the_cut() -> None:
    plan = make_plan()
    records = [RawRecord(0, offset, b"x" * 40) for offset in range(10)]
    cut = make_cut(plan, records, first=41)
    content = window_content(plan, ByteTokenizer(), cut, records)
    assert [batch.number for batch in content.batches] == list(range(41, 41 + len(content.batches)))
    assert content.done(cut).next == 41 + len(content.batches)


def test_an_empty_window_has_no_batch() -> None:
    content = content_of(make_plan(), [])
    assert content.batches == []
    assert content.tokens == 0


def test_bad_records_end_beside_the_batches_and_stop_nothing() -> None:
    records = [
        RawRecord(0, 0, b"\xff\xfe"),
        RawRecord(0, 1, b'{"text": "open'),
        RawRecord(0, 2, b'{"text": 3}'),
        RawRecord(0, 3, b""),
        RawRecord(0, 4, None),
        RawRecord(0, 5, b"good"),
        RawRecord(0, 6, b'{"text": "a"}\n{"text": 1}\n{"text": ""}\n'),
    ]
    content = content_of(make_plan(), records)
    assert set(documents_in(content.batches)) == {(5, 0), (6, 0)}
    assert [(r.offset, r.index, r.reason) for r in content.rejections] == [
        (0, 0, "invalid_utf8"),
        (1, 0, "invalid_json"),
        (2, 0, "wrong_type"),
        (6, 1, "wrong_type"),
    ]
    assert Counter(f.reason for f in content.filtered) == {"empty": 2, "tombstone": 1}


def test_documents_of_several_raw_topics_keep_their_source() -> None:
    plan = make_plan(sources=("web", "code"))
    records = [RawRecord(0, 0, b"web"), RawRecord(1, 0, b"code")]
    (batch,) = content_of(plan, records).batches
    assert sorted(batch.origins[:, 3].tolist()) == [0, 1]


def test_a_bundle_of_nothing_but_faults_does_not_become_millions_of_dead_letters() -> None:
    value = b"x\n" * 50_000
    content = content_of(make_plan(record_format="ndjson"), [RawRecord(0, 0, value)])
    assert len(content.rejections) == 1001
    assert content.rejections[-1].reason == "too_many_faults"
    assert b"".join(r.value + b"\n" for r in content.rejections[:-1]) + content.rejections[-1].value == value


def carried_on(plan: Plan, sizes: list[list[int]], reason: str) -> list[tuple[Cut, WindowContent]]:
    """Windows of documents of these lengths, one behind the other; the last is cut for another reason."""
    windows: list[tuple[Cut, WindowContent]] = []
    seen: list[RawRecord] = []
    for window, lengths in enumerate(sizes):
        start = len(seen)
        seen += [RawRecord(0, start + i, b"%c" % (97 + i % 26) * (length - 1)) for i, length in enumerate(lengths)]
        cut = make_cut(
            plan,
            seen,
            window=window,
            ranges=((start, len(seen)),),
            first=windows[-1][1].done(windows[-1][0]).next if windows else 0,
            carry=windows[-1][1].carry if windows else (),
            reason=reason if window == len(sizes) - 1 else "documents",
        )
        held = {piece.offset for piece in cut.carry}
        records = [record for record in seen if record.offset >= start or record.offset in held]
        windows.append((cut, window_content(plan, ByteTokenizer(), cut, records)))
    return windows


windows_of_sizes = st.lists(st.lists(st.integers(2, 40), max_size=12), min_size=1, max_size=6)


@pytest.mark.parametrize("packing", ["best_fit", "concatenate"])
@pytest.mark.parametrize("reason", ["linger", "memory", "seal"])
@given(sizes=windows_of_sizes, limit=st.integers(1, 3))
def test_pieces_are_carried_on_until_their_rows_fill_a_batch(
    packing: str, reason: str, sizes: list[list[int]], limit: int
) -> None:
    plan = make_plan(packing=packing, record_format="text", carry=limit)
    windows = carried_on(plan, sizes, reason)
    batches = [batch for _, content in windows for batch in content.batches]
    assert [batch.number for batch in batches] == list(range(len(batches)))
    lengths = [length for window in sizes for length in window]
    assert {offset: len(ids) for (offset, _), ids in documents_in(batches).items()} == dict(enumerate(lengths))
    assert windows[-1][1].carry == ()
    for cut, content in windows[:-1]:
        assert all(piece.times <= limit for piece in content.carry)
        exhausted = any(piece.times == limit for piece in cut.carry)
        for batch in content.batches:
            assert np.diff(batch.row_splits).all() or exhausted  # only what was left too often is padded


def test_the_rows_with_the_fewest_tokens_are_carried_on() -> None:
    plan = make_plan(record_format="text", carry=1)  # rows of 16, batches of 3
    ((cut, content),) = carried_on(plan, [[16, 5, 14, 16, 9]], "documents")
    assert {(piece.offset, piece.length) for piece in content.carry} == {(4, 9), (1, 5)}
    assert len(content.batches) == 1
    assert content.done(cut).carry == content.carry


@pytest.mark.parametrize("packing", ["best_fit", "concatenate"])
def test_pieces_that_may_wait_no_longer_do_not_leave_their_row_empty(packing: str) -> None:
    plan = make_plan(packing=packing, record_format="text", carry=1, sequence_length=128, batch_size=4)
    draw = np.random.default_rng(0)
    sizes = [np.clip(draw.lognormal(3.3, 0.8, 300), 2, 127).astype(int).tolist() for _ in range(12)]
    windows = carried_on(plan, sizes, "documents")
    assert any(piece.times == 1 for cut, _ in windows for piece in cut.carry)
    fills = [batch.tokens / batch.input_ids.size for _, content in windows for batch in content.batches]
    assert min(fills) > 0.95


def test_an_emptier_row_is_left_with_a_whole_batch_where_all_rows_fill_batches() -> None:
    plan = make_plan(record_format="text", carry=1)  # rows of 16, batches of 3
    (_, first), (_, second) = carried_on(plan, [[16, 5, 14], [11]], "linger")
    assert (len(first.batches), len(first.carry)) == (0, 3)
    assert [batch.tokens for batch in second.batches] == [46]
    ((_, full),) = carried_on(plan, [[16, 16, 16]], "documents")
    assert (len(full.batches), full.carry) == (1, ())


def test_without_carry_every_window_is_padded() -> None:
    windows = carried_on(make_plan(record_format="text", carry=0), [[5], [5]], "linger")
    assert [len(content.batches) for _, content in windows] == [1, 1]


def test_a_carried_piece_that_is_not_at_hand_is_an_error() -> None:
    plan = make_plan(record_format="text", carry=1)
    cut = make_cut(plan, [], ranges=((5, 5),), carry=(Piece(0, 3, 0, 0, 4, 1),))
    with pytest.raises(LedgerError, match="is no document at hand"):
        window_content(plan, ByteTokenizer(), cut, [])
    with pytest.raises(LedgerError, match="ends behind its document"):
        window_content(plan, ByteTokenizer(), cut, [RawRecord(0, 3, b"ab")])
