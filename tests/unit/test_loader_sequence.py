"""Repeats and early batches are passed over; what is left is every batch once, in order."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.feeds import make_plan
from tokenfeed.batches import Envelope
from tokenfeed.errors import PlanMismatch, WireError
from tokenfeed.loader.sequence import SlotSequence
from tokenfeed.loader.span import Span

PLAN = make_plan(streams=2, slots=3)


def batch(stream: int, number: int) -> Envelope:
    return Envelope("batch", PLAN.id, stream, number)


@st.composite
def slot_logs(draw: st.DrawFn) -> list[Envelope]:
    """Slot 0: windows of both streams, each emitted in order, now and then only half, then again from its start."""
    log: list[Envelope] = []
    number = [0, 0]
    for _ in range(draw(st.integers(0, 12))):
        stream = draw(st.integers(0, 1))
        size = draw(st.integers(0, 8))
        window = [batch(stream, q) for q in range(number[stream], number[stream] + size) if (stream + q) % 3 == 0]
        number[stream] += size
        for _ in range(draw(st.integers(0, 2))):
            start = draw(st.integers(0, len(window)))
            log += window[start : draw(st.integers(start, len(window)))]
        log += window
    return log


@given(log=slot_logs())
def test_every_batch_is_valid_exactly_once_and_in_order(log: list[Envelope]) -> None:
    sequence = SlotSequence(PLAN, 0)
    valid = [envelope for offset, envelope in enumerate(log) if sequence.offer(envelope, offset) == "valid"]
    for stream in range(2):
        numbers = sorted({envelope.number for envelope in log if envelope.stream == stream})
        assert [envelope.number for envelope in valid if envelope.stream == stream] == numbers
    assert sequence.taken == len(valid)


@given(log=slot_logs(), data=st.data())
def test_resuming_anywhere_gives_the_same_rest(log: list[Envelope], data: st.DataObject) -> None:
    whole = SlotSequence(PLAN, 0)
    verdicts = []
    states = []
    for offset, envelope in enumerate(log):
        states.append((list(whole.expected), whole.taken))
        verdicts.append(whole.offer(envelope, offset))
    for start, (expected, taken) in enumerate(states):
        again = SlotSequence(PLAN, 0, expected, taken)
        assert [again.offer(envelope, start + i) for i, envelope in enumerate(log[start:])] == verdicts[start:]


def test_a_seal_tells_what_is_missing() -> None:
    sequence = SlotSequence(PLAN, 0)
    assert sequence.offer(batch(0, 0), 0) == "valid"
    assert sequence.offer(Envelope("seal", PLAN.id, 0, 7), 1) == "seal"
    assert sequence.missing() == [(0, 3)]
    with pytest.raises(WireError, match="different seal"):
        sequence.offer(Envelope("seal", PLAN.id, 0, 8), 2)


def test_a_foreign_plan_or_stream_is_refused() -> None:
    sequence = SlotSequence(PLAN, 0)
    with pytest.raises(PlanMismatch, match="slot 0 offset 5"):
        sequence.offer(Envelope("batch", "other", 0, 0), 5)
    with pytest.raises(WireError, match="no stream 2"):
        sequence.offer(batch(2, 0), 5)


def test_only_a_seal_read_in_this_slot_proves_a_loss() -> None:
    """An end learned elsewhere does not: the batches before this slot's seal may just not have been fetched yet."""
    sequence = SlotSequence(PLAN, 0, finals={0: 7})
    assert sequence.missing() == []
    assert sequence.offer(Envelope("seal", PLAN.id, 0, 7), 0) == "seal"
    assert sequence.missing() == [(0, 0)]
    with pytest.raises(WireError, match="different seal"):
        SlotSequence(PLAN, 0, finals={0: 7}).offer(Envelope("seal", PLAN.id, 0, 8), 3)


def test_what_is_not_in_the_span_is_passed_over() -> None:
    sequence = SlotSequence(PLAN, 0, (6, 5), span=Span(PLAN.id, (4, 3), (7, 9), 0))
    numbers = [(0, 3), (1, 5), (0, 6), (0, 9), (1, 2), (1, 8), (1, 5), (1, 11)]
    verdicts = [sequence.offer(batch(*one), offset) for offset, one in enumerate(numbers)]
    assert verdicts == ["before", "valid", "valid", "behind", "before", "valid", "repeat", "behind"]
    assert sequence.taken == 3


def test_only_a_batch_of_the_span_can_be_missing_from_it() -> None:
    sequence = SlotSequence(PLAN, 0, (6, 5), span=Span(PLAN.id, (4, 3), (7, 5), 0))
    for stream in range(2):
        assert sequence.offer(Envelope("seal", PLAN.id, stream, 30), stream) == "seal"
    assert sequence.missing() == [(0, 6)]
