"""Where windows end does not depend on how records arrive."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from tokenfeed.documents import SEAL, RawRecord, held_bytes
from tokenfeed.ledger import Piece, Range
from tokenfeed.windows import StreamBuffer, WindowLimits

sizes = st.lists(st.integers(0, 30), min_size=1, max_size=80)


def buffer(documents: int = 5, size: int = 40, starts: tuple[int, ...] = (0,)) -> StreamBuffer:
    return StreamBuffer(WindowLimits(documents=documents, bytes=size, linger=10.0), starts, "text")


def records(sizes: list[int]) -> list[RawRecord]:
    return [RawRecord(0, offset, b"x" * size) for offset, size in enumerate(sizes)]


def take_open(window: StreamBuffer) -> list[RawRecord]:
    """The open window's records, which must be the same before a cut as behind it."""
    before = window.open_records()
    taken = window.take(window.ranges())
    assert before == taken
    return taken


def cut_all(buffer: StreamBuffer, ranges: list[tuple[Range, ...]], taken: list[RawRecord]) -> None:
    while buffer.full():
        ranges.append(buffer.ranges())
        taken += take_open(buffer)


@given(sizes=sizes, lag=st.integers(0, 10))
def test_cuts_by_count_and_bytes_do_not_depend_on_arrival(sizes: list[int], lag: int) -> None:
    at_once, one_by_one = buffer(), buffer()
    first: list[tuple[Range, ...]] = []
    second: list[tuple[Range, ...]] = []
    taken: list[RawRecord] = []
    at_once.extend(records(sizes), 0.0)
    cut_all(at_once, first, taken)
    for index, record in enumerate(records(sizes)):
        one_by_one.add(record, 0.0)
        if index % (lag + 1) == 0:
            cut_all(one_by_one, second, [])
    cut_all(one_by_one, second, [])
    assert first == second
    assert [record.offset for record in taken] == list(range(sum(end - start for ((start, end),) in first)))


@given(sizes=sizes)
def test_bytes_held_are_the_bytes_of_what_is_held(sizes: list[int]) -> None:
    window = buffer()
    taken: list[RawRecord] = []
    for record in records(sizes):
        window.add(record, 0.0)
        held = records(sizes)[: record.offset + 1]
        assert window.buffered_bytes == held_bytes(held) - held_bytes(taken)
        if window.full():
            taken += take_open(window)


@given(
    sizes=sizes,
    seal=st.integers(0, 90),
    start=st.integers(0, 5),
    carried=st.sets(st.integers(0, 4), max_size=3),
    cuts=st.lists(st.integers(0, 80), max_size=5),
)
def test_records_may_come_one_by_one_or_in_runs(
    sizes: list[int], seal: int, start: int, carried: set[int], cuts: list[int]
) -> None:
    made = [record if record.offset != seal else RawRecord(0, seal, None, SEAL) for record in records(sizes)]
    carry = tuple(piece(offset) for offset in sorted(carried) if offset < start)
    limits = WindowLimits(documents=5, bytes=40, linger=10.0)
    singly, in_runs = (StreamBuffer(limits, (start,), "text", carry) for _ in range(2))
    edges = sorted({0, *(cut for cut in cuts if cut < len(made)), len(made)})
    for first, last in pairwise(edges):
        taken = [singly.add(record, float(first)) for record in made[first:last]]
        assert in_runs.extend(made[first:last], float(first)) == any(taken)
        # A run that comes again is ignored.
        assert not in_runs.extend(made[first:last], 99.0)
    for seen in ("expected", "needed", "starts", "buffered_bytes"):
        assert getattr(singly, seen) == getattr(in_runs, seen)
    assert (singly.full(), singly.ranges(), singly.linger_deadline(), singly.ends_stream()) == (
        in_runs.full(),
        in_runs.ranges(),
        in_runs.linger_deadline(),
        in_runs.ends_stream(),
    )
    everything = ((start, len(made) + 1),)
    assert singly.take(everything) == in_runs.take(everything)


def test_what_was_emitted_before_is_ignored() -> None:
    window = buffer(starts=(3,))
    assert [window.add(record, 0.0) for record in records([1] * 6)] == [False] * 3 + [True] * 3
    assert not window.add(RawRecord(0, 4, b"again"), 0.0)
    assert window.ranges() == ((3, 6),)


def test_gaps_between_offsets_belong_to_the_window() -> None:
    window = buffer()
    for offset in (2, 3, 9):
        window.add(RawRecord(0, offset, b"x"), 0.0)
    assert window.ranges() == ((0, 10),)
    assert window.holds(((0, 10),))
    assert not window.holds(((0, 11),))


def test_a_bundle_counts_its_documents_and_is_never_split() -> None:
    window = StreamBuffer(WindowLimits(documents=3, bytes=10**6, linger=1.0), (0,), "ndjson")
    window.add(RawRecord(0, 0, b"{}\n{}"), 0.0)
    assert window.full() is None
    window.add(RawRecord(0, 1, b"{}\n{}\n"), 0.0)
    assert window.full() == "documents"
    assert window.ranges() == ((0, 2),)


def test_linger_counts_from_the_oldest_record() -> None:
    window = buffer()
    assert window.linger_deadline() is None
    window.add(RawRecord(0, 0, b"x"), 5.0)
    window.add(RawRecord(0, 1, b"x"), 9.0)
    assert window.linger_deadline() == 15.0
    window.take(((0, 1),))
    assert window.linger_deadline() == 19.0


def test_a_seal_ends_the_stream_behind_the_last_full_window() -> None:
    window = buffer(documents=2)
    for record in [*records([1, 1]), RawRecord(0, 2, None, SEAL), RawRecord(0, 3, b"late")]:
        window.add(record, 0.0)
    assert window.full() == "documents"
    assert not window.ends_stream()
    take_open(window)
    assert window.full() is None
    assert window.ends_stream()
    assert window.ranges() == ((2, 3),)


def test_several_raw_topics_fill_one_window() -> None:
    window = StreamBuffer(WindowLimits(documents=3, bytes=10**6, linger=1.0), (0, 5), "text")
    window.add(RawRecord(1, 5, b"b"), 0.0)
    window.add(RawRecord(0, 0, b"a"), 0.0)
    window.add(RawRecord(1, 6, b"c"), 0.0)
    assert window.ranges() == ((0, 1), (5, 7))
    assert [(r.source, r.offset) for r in take_open(window)] == [(0, 0), (1, 5), (1, 6)]


def test_advancing_follows_another_workers_cut() -> None:
    window = buffer(documents=2)
    for record in records([1] * 5):
        window.add(record, 0.0)
    window.advance((4,), (), (), 0.0)
    assert window.starts == (4,)
    assert window.ranges() == ((4, 5),)
    window.advance((9,), (), (), 0.0)
    assert not window.add(RawRecord(0, 7, b"x"), 0.0)


def test_tombstones_and_small_records_count_against_memory() -> None:
    window = buffer(documents=10**6)
    for offset in range(1000):
        window.add(RawRecord(0, offset, None), 0.0)
    assert window.buffered_bytes > 100_000


def test_a_seal_is_left_for_the_last_window_whatever_closes_the_others() -> None:
    window = StreamBuffer(WindowLimits(documents=10, bytes=10**6, linger=1.0), (0, 0), "text")
    window.add(RawRecord(0, 0, b"a"), 0.0)
    window.add(RawRecord(0, 1, None, SEAL), 0.0)
    window.add(RawRecord(1, 0, b"b"), 0.0)
    assert not window.ends_stream()
    assert window.ranges() == ((0, 1), (0, 1))
    take_open(window)
    assert window.linger_deadline() is None
    window.add(RawRecord(1, 1, None, SEAL), 0.0)
    assert window.ends_stream()
    assert window.ranges() == ((1, 2), (1, 2))
    again = StreamBuffer(WindowLimits(documents=10, bytes=10**6, linger=1.0), window.starts, "text")
    again.add(RawRecord(0, 1, None, SEAL), 0.0)
    again.add(RawRecord(1, 1, None, SEAL), 0.0)
    assert again.ends_stream()


@given(
    arrivals=st.lists(st.integers(0, 1), max_size=60),
    ends=st.tuples(st.integers(0, 40), st.integers(0, 40)),
)
def test_taking_any_ranges_takes_those_records_and_no_other(arrivals: list[int], ends: tuple[int, int]) -> None:
    window = StreamBuffer(WindowLimits(documents=7, bytes=10**6, linger=1.0), (0, 0), "text")
    made = [RawRecord(source, arrivals[:i].count(source), b"x") for i, source in enumerate(arrivals)]
    for record in made:
        window.add(record, 0.0)
    taken = window.take(((0, ends[0]), (0, ends[1])))
    assert taken == sorted(
        (r for r in made if r.offset < ends[r.source]), key=lambda record: (record.source, record.offset)
    )
    rest = [r for r in made if r.offset >= ends[r.source]]
    assert window.buffered_bytes == held_bytes(rest)
    while window.full():
        rest = rest[len(take_open(window)) :]
    assert window.buffered_bytes == held_bytes(rest)


def piece(offset: int) -> Piece:
    return Piece(0, offset, 0, 0, 1, 1)


def test_records_of_carried_pieces_are_held_until_they_are_taken() -> None:
    window = buffer(documents=3)
    made = records([1] * 9)
    for record in made[:5]:
        window.add(record, 1.0)
    taken = take_open(window)
    window.advance((3,), (piece(1),), taken, 2.0)
    assert window.needed == (1,)
    assert window.ranges() == ((3, 5),)
    assert window.buffered_bytes == held_bytes((made[1], made[3], made[4]))
    window.add(made[5], 3.0)
    assert [record.offset for record in take_open(window)] == [1, 3, 4, 5]
    assert (window.needed, window.buffered_bytes) == ((6,), 0)


def test_a_restart_reads_again_from_the_first_carried_piece() -> None:
    window = StreamBuffer(WindowLimits(documents=2, bytes=10**6, linger=10.0), (5,), "text", (piece(1), piece(3)))
    assert window.expected == window.needed == (1,)
    assert [window.add(record, 1.0) for record in records([1] * 7)] == [False, True, False, True, False, True, True]
    assert window.full() == "documents"
    assert [record.offset for record in take_open(window)] == [1, 3, 5, 6]


def test_pieces_that_another_workers_window_carries_on_may_be_held_or_still_to_come() -> None:
    window = buffer(documents=2)
    made = records([1] * 6)
    for record in made[:3]:
        window.add(record, 0.0)
    window.advance((5,), (piece(2), piece(4)), (), 1.0)
    assert [window.add(record, 2.0) for record in made[3:]] == [False, True, True]
    assert [record.offset for record in take_open(window)] == [2, 4, 5]


def test_carried_pieces_do_not_wait_longer_than_the_linger() -> None:
    window = buffer(documents=2)
    for record in records([1, 1]):
        window.add(record, 0.0)
    taken = take_open(window)
    assert window.linger_deadline() is None
    window.advance((2,), (piece(1),), taken, 4.0)
    assert window.linger_deadline() == 14.0
    assert window.ranges() == ((2, 2),)
