"""What trainers get from a real feed: every token once, the same stream for any number of ranks, resumable anywhere."""

from __future__ import annotations

import logging
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from confluent_kafka import Producer
from torch._dynamo.testing import CompileCounter
from torch.utils.data import DataLoader

from tests.brokers import Broker
from tests.feeds import ByteTokenizer, make_cut, make_plan
from tests.integration.test_service import MakeService, documents, spread
from tests.service import Service
from tokenfeed import batches, ledger
from tokenfeed.batches import Batch, Envelope
from tokenfeed.broker import embedded_broker
from tokenfeed.content import window_content
from tokenfeed.documents import RawRecord
from tokenfeed.errors import CursorError, FeedGapError, FeedStalledError, PlanMismatch, TopicError, WireError
from tokenfeed.loader import Cursor, Feed, FeedReader, merge
from tokenfeed.loader.torch import FeedDataset, FeedLoader

QUIET = logging.getLogger("tests.outage")
Keys = list[tuple[int, int] | None]


def key(batch: Batch | None) -> tuple[int, int] | None:
    return None if batch is None else (batch.stream, batch.number)


def read(feed: Feed, rank: int, world: int, cursor: Cursor | None = None, stop: int = 10**9) -> tuple[Keys, Cursor]:
    """The batches of a rank from a cursor on, and where it is then."""
    with FeedReader(feed, rank, world, cursor=cursor, slot_timeout=20) as reader:
        keys: Keys = []
        while len(keys) < stop and (delivered := next(reader, None)) is not None:
            keys.append(key(delivered.batch))
        return keys, reader.cursor


def interleaved(ranks: list[Keys]) -> Keys:
    assert len({len(keys) for keys in ranks}) == 1, "every rank ends on the same step"
    return [keys[step] for step in range(len(ranks[0])) for keys in ranks]


def trimmed(keys: Keys) -> Keys:
    return [one for one in keys if one is not None]


def test_every_token_reaches_the_trainers_once_and_in_one_order(service: MakeService) -> None:
    made = service(sequence_length=64, batch_size=2)
    values = documents(150)
    made.produce(spread(values))
    made.start_worker()
    made.seal()
    made.wait_sealed()
    feed = Feed.of(made.settings, tokenizer=made.plan.tokenizer, vocab_size=made.plan.vocab_size)
    pieces: dict[tuple[int, int], list[tuple[int, list[int]]]] = defaultdict(list)
    with FeedReader(feed) as reader:
        delivered = [one.batch for one in reader if one.batch is not None]
    for batch in delivered:
        for row in range(2):
            cell = 0
            for piece in range(batch.row_splits[row], batch.row_splits[row + 1]):
                length = int(batch.piece_lens[piece])
                offset, _, first, _ = batch.origins[piece].tolist()
                pieces[batch.stream, offset].append((first, batch.input_ids[row, cell : cell + length].tolist()))
                cell += length
    found = Counter(tuple(token for _, ids in sorted(parts) for token in ids) for parts in pieces.values())
    encoded = made.tokenizer.encode_batch([value.decode() for value in values])
    parts = np.split(encoded.ids, encoded.offsets[1:-1])
    assert found == Counter(tuple(part.tolist()) for part in parts)
    streams = [trimmed(interleaved([read(feed, rank, world)[0] for rank in range(world)])) for world in (1, 2, 3)]
    assert streams[0] == streams[1] == streams[2] == [key(batch) for batch in delivered]


MakeFeed = Callable[..., Feed]


@pytest.fixture
def made_feed(running: Callable[[str], Broker], tmp_path_factory: pytest.TempPathFactory) -> MakeFeed:
    """Write a feed by hand: windows of uneven streams, with repeats and half-sent windows among them."""

    def make(
        counts: list[int],
        *,
        skip: tuple[int, int] | None = None,
        sealed: bool = True,
        broker: str = "embedded",
        bootstrap: str | None = None,
        seal_of: Callable[[int, int], int] = lambda slot, count: count,
        done: bool = True,
    ) -> Feed:
        made = Service(
            bootstrap or running(broker).bootstrap, tmp_path_factory.mktemp("feed"), {"raw_partitions": len(counts)}
        )
        plan = make_plan(streams=len(counts), slots=4)
        producer = Producer({**made.options, "linger.ms": 0, "batch.num.messages": 1})
        topic = made.settings.batches_topic
        failed: list[object] = []

        def delivered(error: object, _: object) -> None:
            failed.extend([error] if error else [])

        producer.produce(made.settings.plan_topic, plan.to_json(), b"plan", partition=0, on_delivery=delivered)

        def send(envelope: Envelope, slot: int, value: bytes | None) -> None:
            producer.produce(topic, value, partition=slot, headers=list(envelope.headers()), on_delivery=delivered)

        for stream, count in enumerate(counts):
            sent = [one for one in batches_of(plan, stream, count) if (stream, one.number) != skip]
            for batch in (*sent[1:3], *sent[: count // 2], *sent):
                send(batches.envelope(batch), plan.slot(stream, batch.number), batches.encode(batch))
            entries: list[ledger.Entry] = [make_cut(plan, [], stream=stream, reason="seal" if sealed else "documents")]
            if done:
                counted = {"documents": 0, "tokens": 0, "rejected": 0}
                entries.append(ledger.Done(plan=plan.id, stream=stream, window=0, next=count, **counted))
            for entry in entries:
                producer.produce(made.settings.ledger_topic, ledger.encode(entry), partition=stream)
            for slot in range(plan.slots) if sealed else ():
                send(Envelope("seal", plan.id, stream, seal_of(slot, count)), slot, None)
        assert producer.flush(10) == 0
        assert not failed
        sizes = {"sequence_length": plan.sequence_length, "batch_size": plan.batch_size}
        return replace(Feed.of(made.settings), expected=sizes)

    return make


def batches_of(plan: object, stream: int, count: int) -> list[Batch]:
    """Exactly `count` batches of a stream."""
    used = make_plan(streams=plan.streams, slots=plan.slots)  # type: ignore[attr-defined]
    rows = [RawRecord(0, offset, b"%015d" % offset) for offset in range(count * used.batch_size)]
    content = window_content(used, ByteTokenizer(), make_cut(used, rows, stream=stream), rows)
    assert len(content.batches) == count
    return content.batches


UNEVEN = [13, 0, 5, 1, 9]


@pytest.mark.parametrize("world", [1, 2, 3, 4, 5])
def test_all_ranks_together_read_a_sealed_feed_to_its_last_batch(made_feed: MakeFeed, world: int) -> None:
    feed = made_feed(UNEVEN)
    everything = read(feed, 0, 1)[0]
    assert Counter(everything) == Counter((p, q) for p, count in enumerate(UNEVEN) for q in range(count))
    keys = interleaved([read(feed, rank, world)[0] for rank in range(world)])
    assert trimmed(keys) == everything
    assert keys[: len(everything)] == everything
    assert len(keys) == -(-len(everything) // world) * world


def test_dropping_the_last_step_ends_all_ranks_before_it(made_feed: MakeFeed) -> None:
    feed = made_feed(UNEVEN)
    for rank in range(3):
        with FeedReader(feed, rank, 3, last_step="drop") as reader:
            assert len([one for one in reader if one.batch]) == sum(UNEVEN) // 3


@pytest.mark.parametrize(("before", "after"), [(2, 1), (4, 3)])
def test_a_run_goes_on_under_another_number_of_ranks(made_feed: MakeFeed, before: int, after: int) -> None:
    feed = made_feed(UNEVEN)
    everything = read(feed, 0, 1)[0]
    for step in (0, 1, 3, 12 // before):
        firsts = [read(feed, rank, before, stop=step * after) for rank in range(before)]
        seen = trimmed(interleaved([keys for keys, _ in firsts]))
        for cursor in (firsts[0][1], merge(cursor for _, cursor in firsts)):
            state = Cursor.from_state(cursor.to_state())
            rest = interleaved([read(feed, rank, after, state)[0] for rank in range(after)])
            assert seen + trimmed(rest) == everything


def test_a_foreign_plan_is_refused(made_feed: MakeFeed) -> None:
    feed = made_feed([1])
    with pytest.raises(PlanMismatch, match="sequence_length: 99 expected, 16 in the feed; tokenizer: 'x' expected"):
        FeedReader(replace(feed, expected={"sequence_length": 99, "tokenizer": "x"}))
    with pytest.raises(PlanMismatch, match="a plan has no field sequence_lenght; it has seed, sequence_length"):
        FeedReader(replace(feed, expected={"sequence_lenght": 16}))
    with pytest.raises(CursorError, match="plan other"):
        FeedReader(feed, cursor=Cursor("other"))


def test_a_lost_batch_is_an_error_that_names_it(made_feed: MakeFeed) -> None:
    feed = made_feed([6, 6], skip=(1, 3))
    with FeedReader(feed, slot_timeout=1) as reader, pytest.raises(FeedGapError, match=r"batch 3 of stream 1 never came"):
        list(reader)


def test_an_outage_after_a_resume_is_a_stall_not_a_loss(made_feed: MakeFeed) -> None:
    with embedded_broker() as bootstrap:
        feed = made_feed([40, 40], bootstrap=bootstrap)
        with FeedReader(feed, slot_timeout=20) as reader:
            for _ in range(80):
                next(reader)
            finals = reader.cursor.finals
        assert finals == {0: 40, 1: 40}
        # Fetch so little ahead that the seals have not been read again when the broker goes.
        little = {**feed.options, "queued.min.messages": 1, "fetch.message.max.bytes": 1500, "logger": QUIET}
        start = Cursor(reader.plan.id, finals=finals)
        again = FeedReader(replace(feed, options=little), cursor=start, prefetch_bytes=1, slot_timeout=8)
        next(again)
    with again, pytest.raises(FeedStalledError, match="did not come within 8 s"):
        list(again)


@pytest.mark.parametrize("world", [1, 2])
def test_seals_that_contradict_each_other_stop_a_rank_that_reads_both(made_feed: MakeFeed, world: int) -> None:
    feed = made_feed([8, 8], seal_of=lambda slot, count: count + (slot == 2), done=False)
    with FeedReader(feed, 0, world, slot_timeout=5) as reader, pytest.raises(WireError, match="by another"):
        list(reader)


def test_a_reader_counts_what_it_delivered(made_feed: MakeFeed) -> None:
    feed = made_feed(UNEVEN)
    with FeedReader(feed, slot_timeout=20) as reader:
        delivered = [one.batch for one in reader if one.batch is not None]
        assert reader.batches == len(delivered) == sum(UNEVEN)
        assert reader.tokens == sum(batch.tokens for batch in delivered)
        assert reader.bytes == sum(len(batches.encode(batch)) for batch in delivered)


def test_a_stalled_feed_is_an_error_that_names_what_is_expected(made_feed: MakeFeed) -> None:
    feed = made_feed([4, 4], sealed=False)
    with FeedReader(feed, slot_timeout=1) as reader, pytest.raises(FeedStalledError, match="slot 0 expects 4 of stream 0"):
        list(reader)


def test_a_position_that_is_gone_is_an_error_not_a_reset(made_feed: MakeFeed) -> None:
    feed = made_feed([8], broker="kafka")  # the embedded broker does not tell
    keys, cursor = read(feed, 0, 1, stop=4)
    assert len(keys) == 4
    far = {slot: replace(position, offset=10**6) for slot, position in cursor.slots.items()}
    with (
        FeedReader(feed, cursor=Cursor(cursor.plan, 4, far)) as reader,
        pytest.raises(TopicError, match="broker has offsets"),
    ):
        next(reader)


def test_the_torch_dataset_resumes_behind_the_batch_it_yielded_last(made_feed: MakeFeed) -> None:
    feed = made_feed(UNEVEN)
    whole = [one["input_ids"] for one in DataLoader(FeedDataset(feed), batch_size=None)]
    assert len(whole) == sum(UNEVEN)
    for stop in (0, 1, 7, 27):
        dataset = FeedDataset(feed)
        samples = iter(DataLoader(dataset, batch_size=None))
        first = [next(samples)["input_ids"] for _ in range(stop)]
        again = FeedDataset(feed)
        again.load_state_dict(dataset.state_dict())
        dataset.close()
        rest = [one["input_ids"] for one in DataLoader(again, batch_size=None)]
        assert torch.equal(torch.stack(first + rest), torch.stack(whole))


@pytest.mark.parametrize("workers", [0, 1])
def test_a_flat_sample_holds_the_tokens_of_the_rows(made_feed: MakeFeed, workers: int) -> None:
    feed = made_feed([3, 2])
    last = []
    for rank in range(2):
        rows = list(FeedLoader(FeedDataset(feed, rank, 2), workers))
        flat = list(FeedLoader(FeedDataset(feed, rank, 2, layout="flat"), workers))
        last += [(rows.pop(), flat.pop())]
        for one, other in zip(rows, flat, strict=True):
            assert torch.equal(one["input_ids"][one["document_ids"] >= 0], other["input_ids"][0])
            assert int(other["cu_seq_lens_q"][-1]) == other["input_ids"].numel()
            assert other["max_length_q"] == int(other["cu_seq_lens_q"].diff().max())
    (_, full), (padded, flat_padding) = last
    assert (full["labels"] >= 0).any()
    assert (padded["labels"] < 0).all()
    assert (flat_padding["labels"] < 0).all()


def test_a_layout_that_does_not_exist_is_refused(made_feed: MakeFeed) -> None:
    with pytest.raises(ValueError, match="layout: columns: there are rows, flat"):
        FeedDataset(made_feed([1]), layout="columns")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="fields are of rows"):
        FeedDataset(made_feed([1]), layout="flat", fields=("input_ids",))


def test_small_buffers_hide_nothing_that_must_be_known(made_feed: MakeFeed) -> None:
    """Steps and worlds larger than what the buffers hold: evidence comes from the ledger, not from what is held."""
    feed = made_feed([40, 30, 20])
    with FeedReader(feed, step_batches=45, last_step="drop", prefetch_bytes=4096, slot_timeout=10) as reader:
        assert len(list(reader)) == 90
    with FeedReader(feed, 1, 30, prefetch_bytes=4096, slot_timeout=10) as reader:
        assert [one.number for one in reader] == [1, 31, 61]


def test_what_is_held_ahead_is_bounded_and_all_of_it_comes(made_feed: MakeFeed) -> None:
    feed = made_feed([400, 400])
    with FeedReader(feed, prefetch_bytes=200_000, slot_timeout=20) as reader:
        held = []
        for _ in range(400):
            whole = 800 * len(batches.encode(next(reader).batch))
            time.sleep(0.002)
            held.append(sum(slot.bytes for slot in reader._fetcher._slots.values()))
        turn = 32 * whole // 800
        assert max(held) < 200_000 + 4 * turn < whole, "each slot may pass its share by a turn before it is paused"
        assert 50_000 < max(held[200:]) < 200_000, "half, and some turns, is held once all slots have come"
        slots = reader._fetcher._slots.values()
        while sum(slot.bytes for slot in slots) < 100_000:
            time.sleep(0.01)
        time.sleep(0.2)
        received = sum(slot.sequence.taken for slot in slots)
        time.sleep(0.6)
        assert sum(slot.sequence.taken for slot in slots) == received, "nothing more is fetched until batches are taken"
        assert len(list(reader)) == 400
    with FeedReader(feed, 1, 3, prefetch_bytes=1, slot_timeout=20) as reader:
        assert len(list(reader)) == 267
        assert sum(slot.bytes for slot in reader._fetcher._slots.values()) == 0, "other ranks' batches are dropped"


def test_no_secret_stands_in_what_a_feed_prints() -> None:
    assert "canary" not in repr(Feed(options={"sasl.password": "canary"}, expected={}))


@pytest.mark.contract
def test_a_compiled_model_is_compiled_once(made_feed: MakeFeed) -> None:
    """Every sample has the same shapes and types, that of padding in the last step too."""
    counter = CompileCounter()

    @torch.compile(backend=counter, dynamic=False)
    def model(sample: dict[str, torch.Tensor]) -> torch.Tensor:
        return (sample["input_ids"] * (sample["labels"] >= 0) + sample["position_ids"] - sample["document_ids"]).sum()

    for sample in FeedLoader(FeedDataset(made_feed(UNEVEN), 2, 3)):
        model(sample)
    assert (sample["labels"] < 0).all(), "the last one is padding"
    assert counter.frame_count == 1
