"""A worker breaks each invariant on purpose, and the audit of its feed sees it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.brokers import Broker
from tests.integration.test_service import documents
from tests.service import Service
from tokenfeed.audit import Report, StreamReport, audit_feed

HONEST = "honest"
# What the worker does to a stream -> what the audit says of it from origins alone, and with all content made anew.
SEEN: dict[str, tuple[set[str], set[str]]] = {
    "document_skipped": ({"lost"}, {"lost", "altered"}),
    "document_twice": ({"doubled"}, {"doubled", "altered"}),
    "other_order_of_documents": (set(), {"altered"}),
    "other_token": (set(), {"altered"}),
    "token_dropped": ({"token_faults"}, {"token_faults", "altered"}),
    "batch_unsent": ({"gaps", "lost"}, {"gaps", "lost"}),
    "repeat_with_other_bytes": ({"altered"}, {"altered"}),
    "batches_backwards": ({"gaps"}, {"gaps"}),
    "dead_letters_unsent": ({"lost"}, {"lost"}),
    "foreign_plan": ({"gaps", "lost"}, {"gaps", "lost"}),
    "another_slot": ({"gaps", "lost"}, {"gaps", "lost"}),
    "wrong_seal": ({"fault"}, {"fault"}),
    "seal_unsent": ({"fault"}, {"fault"}),
    "cut_skips_offsets": ({"fault"}, {"fault"}),
    "late_start": ({"lost"}, {"lost"}),
    "end_before_the_seal": ({"fault"}, {"fault"}),
    "others_cut_ignored": ({"fault", "doubled"}, {"fault", "doubled", "altered"}),
    "done_of_one_more": ({"gaps"}, {"gaps", "altered"}),
}
CHOSEN = [HONEST, *SEEN]
SETTINGS = {"sequence_length": 32, "batch_size": 2, "slots": 2, "window_documents": 8, "window_linger_seconds": 3600.0}


def sabotaged(service: Service, chosen: list[str]) -> Report:
    """Run the worker over 24 documents a stream, one of them bad, to the end; audit by origins."""
    values = documents(24)
    values[10] = b"\xff"
    service.produce([(stream, value) for stream in range(service.settings.stream_count) for value in values])
    service.seal()
    worker = service.start_worker("tests.chaos.saboteur", SABOTAGE=",".join(chosen))
    for stream in range(service.settings.stream_count):
        worker.wait_for_log(f"stream {stream} has ended after")
    return audit_feed(service.named)


@dataclass
class Reports:
    """Audits of one feed."""

    origins: Report
    content: Report


@pytest.fixture(scope="module", params=["embedded", "kafka"])
def reports(
    request: pytest.FixtureRequest, running: Callable[[str], Broker], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Reports]:
    """One worker does something else to every stream of a feed; what audits say of it."""
    with ExitStack() as stack:
        settings = SETTINGS | {"raw_partitions": len(CHOSEN)}
        service = Service(running(request.param).bootstrap, tmp_path_factory.mktemp("sabotage"), settings)
        stack.callback(service.close)
        yield Reports(sabotaged(service, CHOSEN), service.audit())


def seen(stream: StreamReport) -> set[str]:
    """What an audit has against a stream."""
    return {name for name in ("lost", "doubled", "altered", "gaps", "token_faults", "fault") if getattr(stream, name)}


@pytest.mark.parametrize("name", list(SEEN))
def test_the_audit_sees_what_was_done(reports: Reports, name: str) -> None:
    stream = CHOSEN.index(name)
    of_origins, of_content = SEEN[name]
    assert seen(reports.origins.streams[stream]) >= of_origins
    assert seen(reports.content.streams[stream]) >= of_content
    assert not reports.content.streams[stream].ok
    assert not reports.content.ok


def test_the_audit_accuses_no_other_stream(reports: Reports) -> None:
    assert seen(reports.content.streams[CHOSEN.index(HONEST)]) == set()
    strays = {int(message.rpartition("stream ")[2]) for message in reports.content.foreign if "of plan 0000" in message}
    assert strays == {CHOSEN.index("foreign_plan")}
    assert [message for message in reports.content.foreign if "of plan" not in message] == [
        message for message in reports.content.foreign if "belongs into another slot" in message
    ]


def test_without_sabotage_the_same_worker_makes_a_sound_feed(embedded: Broker, tmp_path: Path) -> None:
    service = Service(embedded.bootstrap, tmp_path, SETTINGS)
    try:
        assert sabotaged(service, []).ok
        report = service.audit()
        assert report.ok
        assert sum(stream.documents for stream in report.streams) == 3 * 24
        assert sum(stream.dead for stream in report.streams) == 3
    finally:
        service.close()
