"""The audit sees every way in which a feed can be wrong, and nothing in a feed that is right."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from tests.feeds import ByteTokenizer, make_plan
from tokenfeed import batches, ledger
from tokenfeed.audit import Auditor, Log, Logs, Origin, Report
from tokenfeed.batches import Envelope
from tokenfeed.content import window_content
from tokenfeed.documents import CONTENT_TYPE_HEADER, SEAL, RawRecord
from tokenfeed.editions import Beginning
from tokenfeed.ledger import Cut, Done
from tokenfeed.tapes import Entry

PLAN = make_plan(slots=4, streams=2, batch_size=2, carry=2)
WINDOW = 10
BAD = b"\xff"
SEALING = [(CONTENT_TYPE_HEADER, SEAL.encode())]


class Topics:
    """The topics of a small feed that workers have emitted without a fault: tests plant theirs."""

    def __init__(self, documents: int = 57, *, sealed: bool = True) -> None:
        self.raw: list[list[Entry]] = [[], []]
        self.ledger: list[list[Entry]] = [[], []]
        self.dead: list[list[Entry]] = [[], []]
        self.slots: list[list[Entry]] = [[] for _ in range(PLAN.slots)]
        self.cuts: list[list[Cut]] = [[], []]
        windows = [self._windows(stream, documents + stream, sealed) for stream in range(2)]
        while any(windows):  # streams side by side, as workers run
            for stream in range(2):
                if windows[stream]:
                    self._emit(*windows[stream].pop(0))

    def _windows(self, stream: int, documents: int, sealed: bool) -> list[tuple[Cut, Done, list[Entry], list[Entry]]]:
        made = []
        done: Done | None = None
        values = [BAD if i % 9 == 4 else b"" if i % 9 == 7 else b"w%d" % i * (1 + i % 19) for i in range(documents)]
        records = [RawRecord(0, offset, value) for offset, value in enumerate(values)]
        self.raw[stream] = [Entry(record.offset, 0, [], record.value) for record in records]
        if sealed:
            append(self.raw[stream], None, SEALING)
        for window, start in enumerate(range(0, documents, WINDOW)):
            end = min(start + WINDOW, documents)
            cut = Cut(
                plan=PLAN.id,
                stream=stream,
                window=window,
                ranges=((start, end + (sealed and end == documents)),),
                first=done.next if done else 0,
                previous=2 * (window - 1) if window else -1,
                reason="seal" if sealed and end == documents else "documents",
                worker="test",
                carry=done.carry if done else (),
            )
            carried = {piece.offset for piece in cut.carry}
            held = [record for record in records if start <= record.offset < end or record.offset in carried]
            content = window_content(PLAN, ByteTokenizer(), cut, held)
            done = content.done(cut)
            letters = [
                Entry(0, 0, [("tokenfeed-origin", b"raw/%d/%d/%d" % (stream, r.offset, r.index))], r.value)
                for r in content.rejections
            ]
            messages = [Entry(0, 0, list(batches.envelope(b).headers()), batches.encode(b)) for b in content.batches]
            made.append((cut, done, letters, messages))
        return made

    def _emit(self, cut: Cut, done: Done, letters: list[Entry], messages: list[Entry]) -> None:
        self.cuts[cut.stream].append(cut)
        append(self.ledger[cut.stream], ledger.encode(cut))
        for letter in letters:
            append(self.dead[cut.stream], letter.value, letter.headers)
        for number, message in enumerate(messages, cut.first):
            append(self.slots[PLAN.slot(cut.stream, number)], message.value, message.headers)
        append(self.ledger[cut.stream], ledger.encode(done))
        if cut.is_final:
            for slot in self.slots:
                append(slot, None, list(Envelope("seal", PLAN.id, cut.stream, done.next).headers()))

    def where(self, stream: int, number: int) -> tuple[int, int]:
        """Slot and position of a batch."""
        slot = PLAN.slot(stream, number)
        wanted = dict(Envelope("batch", PLAN.id, stream, number).headers())
        return slot, next(i for i, entry in enumerate(self.slots[slot]) if dict(entry.headers) == wanted)

    def audit(
        self,
        *,
        content: bool = False,
        until: dict[tuple[int, int], int] | None = None,
        begins: Sequence[Beginning] = (),
    ) -> Report:
        def log(entries: list[Entry]) -> Log:
            return Log(entries[0].offset if entries else 0, iter(entries))

        logs = Logs(
            raw=[[log(entries) for entries in self.raw]],
            ledger=[log(entries) for entries in self.ledger],
            dead=[log(entries) for entries in self.dead],
            batches=[log(entries) for entries in self.slots],
        )
        encoder = ByteTokenizer() if content else None
        return Auditor(PLAN, logs, encoder=encoder, until=until, begins=begins).run()


def append(log: list[Entry], value: bytes | None, headers: object = ()) -> None:
    log.append(Entry(log[-1].offset + 1 if log else 0, 0, list(headers), value))  # type: ignore[call-overload]


def insert(log: list[Entry], at: int, entry: Entry) -> None:
    log.insert(at, entry)
    log[:] = [item._replace(offset=offset) for offset, item in enumerate(log)]


def total(report: Report, name: str) -> int:
    return sum(getattr(stream, name) for stream in report.streams)


@pytest.mark.parametrize("content", [False, True])
def test_a_feed_without_a_fault_passes(content: bool) -> None:
    topics = Topics()
    assert any(cut.carry for cut in topics.cuts[0])
    report = topics.audit(content=content)
    assert report.ok, report
    expected = Counter(
        "dead" if entry.value == BAD else "batched" if entry.value else "empty"
        for raw in topics.raw
        for entry in raw
        if entry.headers != SEALING
    )
    assert total(report, "documents") == 57 + 58 == expected.total()
    assert total(report, "batched") == expected["batched"]
    assert total(report, "dead") == expected["dead"]
    assert sum((stream.filtered for stream in report.streams), Counter()) == {"empty": expected["empty"]}
    texts = [entry.value.decode() for raw in topics.raw for entry in raw if entry.value and entry.value != BAD]
    tokens = sum(len(ByteTokenizer().encode(text)) for text in texts)
    assert total(report, "tokens") == tokens
    assert all(stream.sealed for stream in report.streams)
    assert (total(report, "pending"), total(report, "re_emitted"), report.foreign) == (0, 0, [])
    assert report.spread <= PLAN.streams


def test_repeats_and_batches_that_came_early_are_counted_and_are_no_fault() -> None:
    topics = Topics()
    slot, at = topics.where(0, 4)
    insert(topics.slots[slot], at + 1, topics.slots[slot][at])
    first, behind = topics.cuts[0][1].first, topics.cuts[0][2].first
    assert behind - first > PLAN.slots
    slot, at = topics.where(0, first)
    insert(topics.slots[slot], at, topics.slots[slot][topics.where(0, first + PLAN.slots)[1]])
    report = topics.audit()
    assert report.ok, report
    assert (total(report, "re_emitted"), total(report, "early")) == (1, 1)


def test_a_batch_that_is_missing_is_a_gap_and_its_documents_are_lost() -> None:
    topics = Topics()
    slot, at = topics.where(1, 6)
    gone = batches.decode(topics.slots[slot].pop(at).value or b"")
    report = topics.audit()
    assert not report.ok
    assert report.streams[0].ok
    assert report.streams[1].gaps == [6]
    assert {origin.offset for origin in report.streams[1].lost_named} == set(gone.origins[:, 0].tolist())
    assert total(report, "doubled") == total(report, "altered") == 0


def test_the_last_batch_missing_is_a_gap_too() -> None:
    topics = Topics()
    last = ledger.decode(topics.ledger[0][-1].value or b"")
    assert isinstance(last, Done)
    slot, at = topics.where(0, last.next - 1)
    topics.slots[slot].pop(at)
    assert topics.audit().streams[0].gaps == [last.next - 1]


def test_a_batch_that_comes_twice_with_other_bytes_is_altered() -> None:
    topics = Topics()
    slot, at = topics.where(0, 3)
    batch = batches.decode(topics.slots[slot][at].value or b"")
    other = batch.input_ids.copy()
    other[0, 0] ^= 1
    changed = topics.slots[slot][at]._replace(value=batches.encode(replace(batch, input_ids=other)))
    insert(topics.slots[slot], len(topics.slots[slot]), changed)
    report = topics.audit()
    assert [stream.altered for stream in report.streams] == [1, 0]
    assert not report.ok


def test_other_tokens_with_true_labels_are_found_by_making_the_content_anew() -> None:
    topics = Topics()
    slot, at = topics.where(0, 3)
    batch = batches.decode(topics.slots[slot][at].value or b"")
    other = batch.input_ids.copy()
    other[0, 0] ^= 1
    topics.slots[slot][at] = topics.slots[slot][at]._replace(value=batches.encode(replace(batch, input_ids=other)))
    assert topics.audit().ok
    assert topics.audit(content=True).streams[0].altered == 1


def remade(topics: Topics, stream: int, window: int, change: Callable[[list[RawRecord]], list[RawRecord]]) -> None:
    """Emit a window again as a faulty worker would have: from other records. Batches and `done` are replaced."""
    cut = topics.cuts[stream][window]
    records = [RawRecord(0, entry.offset, entry.value) for entry in topics.raw[stream]]
    carried = {piece.offset for piece in cut.carry}
    held = [r for r in records if cut.ranges[0][0] <= r.offset < cut.ranges[0][1] or r.offset in carried]
    content = window_content(PLAN, ByteTokenizer(), cut, change(held))
    for batch in content.batches:
        slot = PLAN.slot(stream, batch.number)
        topics.slots[slot] = [e for e in topics.slots[slot] if dict(e.headers) != dict(batches.envelope(batch).headers())]
        append(topics.slots[slot], batches.encode(batch), batches.envelope(batch).headers())
    topics.ledger[stream][2 * window + 1] = topics.ledger[stream][2 * window + 1]._replace(
        value=ledger.encode(content.done(cut))
    )


def test_a_document_that_was_skipped_is_lost() -> None:
    topics = Topics(sealed=False)
    last = len(topics.cuts[0]) - 1
    skipped = topics.cuts[0][last].ranges[0][0]
    remade(topics, 0, last, lambda records: [record for record in records if record.offset != skipped])
    report = topics.audit()
    assert report.streams[0].lost_named == [Origin(0, skipped, 0)]
    assert report.streams[1].ok


def test_a_document_of_another_window_is_doubled() -> None:
    topics = Topics(sealed=False)
    last = len(topics.cuts[0]) - 1
    remade(topics, 0, last, lambda records: [*records, RawRecord(0, 900, b"from elsewhere")])
    report = topics.audit()
    assert report.streams[0].doubled_named == [Origin(0, 900, 0)]


def test_a_dead_letter_that_is_missing_is_a_document_lost() -> None:
    topics = Topics()
    topics.dead[0].pop(1)
    report = topics.audit()
    assert [stream.lost for stream in report.streams] == [1, 0]


def test_a_dead_letter_of_a_document_that_is_in_the_batches_is_doubled() -> None:
    topics = Topics()
    insert(topics.dead[0], 1, Entry(0, 0, [("tokenfeed-origin", b"raw/0/5/0")], b""))
    report = topics.audit()
    assert report.streams[0].doubled_named == [Origin(0, 5, 0)]


def test_dead_letters_sent_again_are_no_fault() -> None:
    topics = Topics()
    insert(topics.dead[0], 2, topics.dead[0][1])
    append(topics.dead[0], topics.dead[0][0].value, topics.dead[0][0].headers)
    assert topics.audit().ok


def test_a_cut_that_was_overwritten_is_a_fault() -> None:
    topics = Topics()
    cut = topics.cuts[0][2]
    (start, end) = cut.ranges[0]
    forged = replace(cut, ranges=((start, end - 1),))
    topics.ledger[0][4] = topics.ledger[0][4]._replace(value=ledger.encode(forged))
    report = topics.audit()
    assert not report.streams[0].ok
    assert "does not follow" in (report.streams[0].fault or "")
    assert report.streams[1].ok


def test_a_cut_that_lost_the_race_is_no_fault() -> None:
    topics = Topics()
    cut = replace(topics.cuts[0][2], ranges=((20, 29),), worker="zombie")
    insert(topics.ledger[0], 5, Entry(0, 0, [], ledger.encode(cut)))
    # Ledger offsets behind the insertion have moved, as `previous` of later cuts must have.
    for at, entry in enumerate(topics.ledger[0]):
        decoded = ledger.decode(entry.value or b"")
        if isinstance(decoded, Cut) and decoded.window > 3:
            topics.ledger[0][at] = entry._replace(value=ledger.encode(replace(decoded, previous=decoded.previous + 1)))
    assert topics.audit(content=True).ok


def test_batches_that_follow_the_cut_that_lost_are_lost_and_doubled() -> None:
    topics = Topics(sealed=False)
    last = len(topics.cuts[0]) - 1
    cut = topics.cuts[0][last]
    start, end = cut.ranges[0]
    valid = replace(cut, ranges=((start, end - 2),))
    topics.ledger[0][2 * last] = topics.ledger[0][2 * last]._replace(value=ledger.encode(valid))
    report = topics.audit()
    assert report.streams[0].doubled
    assert not report.ok


def test_messages_of_a_foreign_plan_are_named() -> None:
    topics = Topics()
    entry = topics.slots[0][0]
    append(topics.slots[0], entry.value, Envelope("batch", "0" * 16, 0, 0).headers())
    append(topics.slots[1], b"rubbish")
    append(topics.slots[2], entry.value, Envelope("batch", PLAN.id, 0, 2**60 + 2).headers())
    report = topics.audit()
    assert len(report.foreign) == 3
    assert "plan 0000000000000000" in report.foreign[0]
    assert not report.ok


def test_a_seal_that_is_missing_or_wrong_is_a_fault() -> None:
    missing, wrong = Topics(), Topics()
    missing.slots[2] = [entry for entry in missing.slots[2] if entry.value is not None]
    assert missing.audit().streams[0].fault == "no seal in slots 2"
    at = next(i for i, entry in enumerate(wrong.slots[2]) if entry.value is None)
    wrong.slots[2][at] = wrong.slots[2][at]._replace(headers=list(Envelope("seal", PLAN.id, 0, 3).headers()))
    assert "two seals" in (wrong.audit().streams[0].fault or "")


def test_batches_of_a_slot_in_the_wrong_order_are_gaps_because_readers_never_get_to_them() -> None:
    topics = Topics()
    first = topics.cuts[0][1].first
    slot, at = topics.where(0, first)
    behind = topics.where(0, first + PLAN.slots)[1]
    log = topics.slots[slot]
    log[at], log[behind] = log[behind]._replace(offset=at), log[at]._replace(offset=behind)
    report = topics.audit(content=True)
    assert [stream.gaps for stream in report.streams] == [[first + PLAN.slots], []]
    assert (total(report, "lost"), total(report, "altered"), report.ok) == (0, 0, False)


def test_records_before_the_first_window_are_lost_if_they_are_there() -> None:
    late, removed = Topics(), Topics()
    for topics in (late, removed):
        cut = replace(topics.cuts[0][0], ranges=((2, WINDOW),))
        topics.cuts[0][0] = cut
        topics.ledger[0][0] = topics.ledger[0][0]._replace(value=ledger.encode(cut))
        remade(topics, 0, 0, lambda records: records)
    removed.raw[0] = removed.raw[0][2:]
    assert late.audit().streams[0].lost_named[:2] == [Origin(0, 0, 0), Origin(0, 1, 0)]
    assert not {0, 1} & {origin.offset for origin in removed.audit().streams[0].lost_named}


def test_an_end_without_a_seal_is_a_fault() -> None:
    topics = Topics()
    topics.raw[1][-1] = topics.raw[1][-1]._replace(headers=[], value=b"not the end")
    assert topics.audit().streams[1].fault == "window 5 ends the stream before its seal"
    topics = Topics()
    topics.raw[0][15] = topics.raw[0][15]._replace(headers=SEALING, value=None)
    assert topics.audit().streams[0].fault == "window 1 goes on behind the seal at offset 15"


def test_a_seal_below_what_was_acknowledged_is_a_fault_also_while_the_stream_goes_on() -> None:
    topics = Topics(sealed=False)
    number = topics.cuts[0][-1].first
    append(topics.slots[1], None, Envelope("seal", PLAN.id, 0, number).headers())
    fault = topics.audit().streams[0].fault or ""
    assert fault.endswith(f"and no end, the seals say {number}")


def test_a_fault_in_the_seals_hides_nothing_else() -> None:
    topics = Topics()
    for slot in range(2):
        insert(topics.slots[slot], 0, Entry(0, 0, list(Envelope("seal", PLAN.id, 0, slot).headers()), None))
    stream = topics.audit().streams[0]
    assert "two seals" in (stream.fault or "")
    assert (stream.documents, stream.sealed) == (57, True)


def test_what_lies_behind_the_frontier_is_pending() -> None:
    topics = Topics(sealed=False)
    for offset in range(3):
        append(topics.raw[0], b"new %d" % offset)
    topics.ledger[1].pop()
    report = topics.audit()
    assert report.ok
    assert [stream.pending for stream in report.streams] == [3, 8]
    assert not any(stream.sealed for stream in report.streams)


def test_an_audit_can_end_before_the_feed() -> None:
    report = Topics().audit(until={(0, 0): 35})
    assert report.ok
    assert [stream.documents for stream in report.streams] == [30, 58]
    assert report.streams[0].pending == 27


def test_windows_whose_records_retention_has_removed_are_counted_and_no_fault() -> None:
    topics = Topics()
    topics.raw[0] = topics.raw[0][25:]
    report = topics.audit(content=True)
    assert report.ok, report
    assert [stream.unverified_windows for stream in report.streams] == [3, 0]
    assert report.streams[0].documents == 27


def test_windows_whose_batches_retention_has_removed_are_counted_and_no_fault() -> None:
    topics = Topics()
    topics.slots = [slot[4:] for slot in topics.slots]
    report = topics.audit()
    assert report.ok, report
    assert all(stream.unverified_windows for stream in report.streams)
    slot, at = topics.where(0, 17)
    topics.slots[slot].pop(at)
    assert topics.audit().streams[0].gaps == [17]


def test_an_edition_begins_where_the_one_before_ended() -> None:
    begins = [Beginning((0,), (False,)), Beginning((3,), (False,))]
    assert Topics().audit(begins=begins[:1] * 2).ok
    report = Topics().audit(begins=begins)
    assert report.streams[0].ok
    assert report.streams[1].fault == "begins at raw offsets (0,), the edition before ended at (3,)"
