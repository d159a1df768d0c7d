"""First writer wins, in log order, also when only the tail of the log is read."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenfeed.errors import LedgerError, WireError
from tokenfeed.ledger import Cut, Done, Entry, Ledger, Piece, decode, encode, fold_tail, needed_from

PLAN = "p"


def cut(window: int, start: int, end: int, first: int, previous: int, worker: str = "a") -> Cut:
    return Cut(
        plan=PLAN,
        stream=0,
        window=window,
        ranges=((start, end),),
        first=first,
        previous=previous,
        reason="documents",
        worker=worker,
    )


def done(window: int, following: int) -> Done:
    return Done(plan=PLAN, stream=0, window=window, next=following, documents=1, tokens=1, rejected=0)


@st.composite
def logs(draw: st.DrawFn) -> list[Entry]:
    """A log that several workers wrote: honest entries, and zombies that repeat or contradict any earlier window."""
    log: list[Entry] = []
    ledger = Ledger(0, PLAN)
    written: list[Entry] = []
    for _ in range(draw(st.integers(0, 40))):
        zombie = written and draw(st.booleans())
        if zombie:
            entry = draw(st.sampled_from(written))
            if isinstance(entry, Cut):
                entry = dataclasses.replace(entry, ranges=((entry.ranges[0][0], 999),), worker="zombie")
        elif ledger.is_open:
            entry = done(ledger.next_window - 1, (ledger.cut.first if ledger.cut else 0) + draw(st.integers(0, 3)))
        else:
            (start,) = ledger.next_starts(1) or (0,)
            entry = cut(
                ledger.next_window,
                start,
                start + draw(st.integers(1, 5)),
                ledger.next_number,
                ledger.cut_offset,
            )
        ledger = ledger.apply(len(log), entry)
        log.append(entry)
        written.append(entry)
    return log


@given(log=logs())
def test_a_zombie_cannot_change_a_window(log: list[Entry]) -> None:
    first: dict[int, Cut] = {}
    for entry in log:
        if isinstance(entry, Cut):
            first.setdefault(entry.window, entry)
    ledger = Ledger(0, PLAN).extend(enumerate(log))
    assert ledger.cut == first.get(ledger.next_window - 1)
    assert ledger.read_to == len(log)


@given(log=logs(), tail=st.integers(1, 10))
def test_the_tail_tells_the_same_as_the_whole_log(log: list[Entry], tail: int) -> None:
    whole = Ledger(0, PLAN).extend(enumerate(log))
    begin = max(0, len(log) - tail)
    while True:
        entries = list(enumerate(log))[begin:]
        start = needed_from(entries, begin)
        if start >= begin:
            break
        begin = start
    assert fold_tail(0, PLAN, entries, start) == whole


@given(log=logs())
def test_entries_survive_the_wire(log: list[Entry]) -> None:
    assert [decode(encode(entry)) for entry in log] == log


def test_an_open_window_must_be_emitted_again() -> None:
    ledger = Ledger(0, PLAN).apply(0, cut(0, 0, 5, 0, -1))
    assert ledger.is_open
    with pytest.raises(LedgerError, match="still open"):
        _ = ledger.next_number
    ledger = ledger.apply(1, done(0, 3))
    assert not ledger.is_open
    assert ledger.next_number == 3
    assert ledger.next_starts(1) == (5,)


@pytest.mark.parametrize(
    "entry",
    [
        cut(2, 5, 6, 3, 0),  # a window is missing
        cut(1, 6, 7, 3, 0),  # documents are missing
        cut(1, 5, 6, 4, 0),  # batches are missing
        cut(1, 5, 6, 3, 1),  # made from another log
    ],
)
def test_a_cut_that_no_race_explains_is_an_error(entry: Cut) -> None:
    ledger = Ledger(0, PLAN).extend([(0, cut(0, 0, 5, 0, -1)), (1, done(0, 3))])
    with pytest.raises(LedgerError, match="does not follow"):
        ledger.apply(2, entry)


def test_a_cut_behind_the_end_is_an_error() -> None:
    last = dataclasses.replace(cut(0, 0, 5, 0, -1), reason="seal")
    sealed = Ledger(0, PLAN).extend([(0, last), (1, done(0, 2))])
    with pytest.raises(LedgerError, match="does not follow"):
        sealed.apply(2, cut(1, 5, 9, 2, 0))
    assert sealed.apply(2, cut(0, 0, 4, 0, -1, "zombie")).cut == last


def test_another_plan_in_the_ledger_is_an_error() -> None:
    with pytest.raises(LedgerError, match="one plan"):
        Ledger(0, "other").apply(0, cut(0, 0, 5, 0, -1))


@given(value=st.binary(max_size=60) | st.sampled_from([b"[]", b"{}", b'{"type":"cut"}', b'{"type":"x"}', b"1"]))
def test_foreign_bytes_are_refused(value: bytes) -> None:
    with pytest.raises(WireError):
        decode(value)


def test_carried_pieces_survive_the_wire_and_must_be_those_of_the_window_before() -> None:
    piece = Piece(0, 7, 2, 16, 9, 1)
    left = Done(plan=PLAN, stream=0, window=0, next=0, documents=9, tokens=9, rejected=0, carry=(piece,))
    assert decode(encode(left)) == left
    state = Ledger(0, PLAN).apply(0, cut(0, 0, 10, 0, -1)).apply(1, left)
    assert state.carry == (piece,)
    second = dataclasses.replace(cut(1, 10, 20, 0, 0), carry=(piece,))
    assert decode(encode(second)) == second
    assert state.apply(2, second).carry == (piece,)
    for other in ((), (dataclasses.replace(piece, times=2),)):
        with pytest.raises(LedgerError, match="does not follow"):
            state.apply(2, dataclasses.replace(second, carry=other))
