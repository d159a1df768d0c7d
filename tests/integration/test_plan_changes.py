"""A feed that goes on under another plan: nothing is lost or doubled between the two, and nobody mixes them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest
from confluent_kafka import Producer
from typer.testing import CliRunner

from tests.brokers import Broker
from tests.feeds import make_cut, make_plan
from tests.integration.test_service import MakeService, documents, spread
from tests.service import Service, wait_until
from tokenfeed.audit import Report
from tokenfeed.changes import apply_plan, beginnings
from tokenfeed.cli import app
from tokenfeed.documents import SEAL
from tokenfeed.editions import Beginning, Edition
from tokenfeed.errors import CursorError, PlanMismatch, TopicError
from tokenfeed.ledger import CutReason, Done, encode
from tokenfeed.loader import Cursor, Feed, FeedReader
from tokenfeed.planning import at_edition, read_editions
from tokenfeed.topics import create_topics


def command(feed: Service, *arguments: str) -> tuple[int, dict[str, Any]]:
    """Exit code and JSON of a command."""
    done = CliRunner().invoke(app, [*arguments, "--json"], env=feed.environment())
    return done.exit_code, orjson.loads(done.stdout)


def base(feed: Service) -> Feed:
    """The feed as a trainer knows it that takes any plan."""
    return replace(Feed.of(feed.named), expected={})


def apply(feed: Service, seconds: float = 60) -> Edition:
    """What `tokenfeed plan apply` does with the settings of this feed."""
    return apply_plan(feed.named, feed.plan, seconds)


def audited(*editions: Service) -> list[Report]:
    """All editions, with their content."""
    reports = [edition.audit() for edition in editions]
    assert all(report.ok for report in reports), reports
    return reports


def documents_in(reports: list[Report]) -> int:
    return sum(stream.documents for report in reports for stream in report.streams)


def tokens_in(report: Report) -> int:
    return sum(stream.tokens for stream in report.streams)


def test_a_plan_is_changed_while_documents_arrive(service: MakeService) -> None:
    old = service(window_documents=20)
    values = documents(900)
    worker = old.start_worker()
    old.produce(spread(values[:400]))
    wait_until(lambda: old.ledger(0, old.plan.id)[1], "the first window")
    new = old.changed(sequence_length=96, slots=6, seed=5)
    old.produce(spread(values[400:600]))
    edition = apply(new)
    assert (edition.number, edition.plan) == (2, new.plan)
    assert apply(new) == edition, "it may be run again"
    new.start_worker()
    assert worker.process.wait(30) == 0, "its streams have ended"
    assert "goes on under plan" in worker.log.read_text()
    assert "Traceback" not in worker.log.read_text()
    new.produce(spread(values[600:]))
    new.seal()
    new.wait_sealed()
    old.assert_oracle()
    new.assert_oracle()
    reports = audited(old, new)
    assert [report.plan for report in reports] == [old.plan.id, new.plan.id]
    assert documents_in(reports) == 900

    feed = base(new)
    with FeedReader(replace(feed, expected={"plan_id": old.plan.id}), slot_timeout=20) as reader:
        kept = [next(reader).batch for _ in range(3)]
        cursor = reader.cursor
        with pytest.raises(PlanMismatch, match=r"goes on under plan .* sequence_length: 128 here, 96 there"):
            list(reader)
    for world in (1, 3):
        tokens = 0
        for rank in range(world):
            with FeedReader(feed, rank, world, cursor=cursor, follow=True, slot_timeout=20) as reader:
                assert reader.plan == old.plan
                tokens += sum(one.batch.tokens for one in reader if one.batch)
                assert reader.plan == new.plan
        assert tokens + sum(batch.tokens for batch in kept if batch) == sum(map(tokens_in, reports))
    with FeedReader(feed, slot_timeout=20) as reader:
        assert reader.plan == new.plan, "a new run reads the newest plan"
        assert sum(one.batch.tokens for one in reader if one.batch) == tokens_in(reports[1])
    narrow = replace(feed, expected={"sequence_length": 128})
    with (
        FeedReader(narrow, cursor=cursor, follow=True, slot_timeout=20) as reader,
        pytest.raises(PlanMismatch, match="sequence_length: 128 expected, 96 in the feed"),
    ):
        list(reader)
    with pytest.raises(CursorError, match="plan other, the feed has"):
        FeedReader(feed, cursor=Cursor("other"))


def test_a_worker_that_dies_while_the_plan_changes_is_replaced_by_one_of_the_old_plan(
    broker: Broker, service: MakeService
) -> None:
    old = service(window_documents=20, window_linger_seconds=3600.0)
    values = documents(500)
    worker = old.start_worker()
    old.produce(spread(values[:310]))
    wait_until(lambda: old.ledger(0, old.plan.id)[1], "the first window")
    worker.kill()
    new = old.changed(seed=1)
    with pytest.raises(TopicError, match="streams 0, 1, 2 have not ended"):
        apply(new, 0)
    third = new.changed(seed=2)
    with pytest.raises(PlanMismatch, match="has not ended: run `tokenfeed plan apply` with its settings first"):
        apply(third)
    early = new.start_worker()
    outdated = old.start_worker()
    assert apply(new).number == 2
    assert early.process.wait(60) == 1
    assert "`tokenfeed plan apply` waits for them" in early.log.read_text()
    if broker.name == "embedded":  # it cannot take a member that joins while the leader leaves
        outdated.process.wait(60)
    new.start_worker()
    new.produce(spread(values[310:]))
    new.seal()
    new.wait_sealed()
    old.assert_oracle()
    new.assert_oracle()
    assert documents_in(audited(old, new)) == 500
    with pytest.raises(TopicError, match="all of its streams are sealed"):
        apply(third)
    with pytest.raises(PlanMismatch, match="was the feed's before"):
        apply(new.changed(seed=0))
    assert len(read_editions(new.options, new.settings.plan_topic)) == 2


@pytest.mark.parametrize("broker", ["embedded"], indirect=True)
def test_a_stream_that_was_sealed_under_the_old_plan_stays_sealed(service: MakeService) -> None:
    old = service(raw_partitions=2)
    worker = old.start_worker()
    old.produce([(0, b"one"), (1, b"two"), (0, None)])
    old.produce([(0, None)], SEAL)
    wait_until(lambda: old.ledger(0, old.plan.id)[0].is_sealed, "the seal of stream 0")
    new = old.changed(seed=1)
    apply(new)
    worker.stop()
    outdated = old.start_worker()
    new.start_worker()
    new.produce([(1, b"three")])
    new.produce([(1, None)], SEAL)
    new.wait_sealed()
    assert documents_in(audited(old, new)) == 4
    assert outdated.process.wait(60) == 1
    assert "seed: 0 here, 1 there. Start this worker with the settings of the newest plan" in outdated.log.read_text()


@pytest.mark.parametrize("broker", ["embedded"], indirect=True)
def test_the_commands_compare_change_and_audit(service: MakeService) -> None:
    feed = service()
    with pytest.raises(TopicError, match="holds no plan yet"):
        apply(feed)
    feed.start_worker().wait_for_log("Worker ready")
    with pytest.raises(PlanMismatch, match="streams: 4 here, 3 there: that cannot change under a feed"):
        apply(feed.changed(raw_partitions=4))
    assert command(feed, "plan", "diff") == (0, {"in_force": feed.plan.id, "settings": feed.plan.id, "differences": {}})
    new = feed.changed(seed=5, slots=6)
    differences = {"seed": {"in_force": 0, "settings": 5}, "slots": {"in_force": 4, "settings": 6}}
    assert command(new, "plan", "diff") == (
        3, {"in_force": feed.plan.id, "settings": new.plan.id, "differences": differences}
    )  # fmt: skip
    code, found = command(new, "plan", "apply", "--wait", "60")
    assert (code, found["edition"], found["batches_topic"]) == (0, 2, new.settings.batches_topic)
    assert command(new, "topics", "create") == (0, {"created": []})
    code, found = command(new, "doctor")
    assert (code, [check["fault"] for check in found["checks"]]) == (0, [None] * 5)
    code, found = command(new, "plan", "show")
    assert (code, found["in_force"], len(found["editions"])) == (0, new.plan.id, 2)
    code, found = command(new, "audit", "--content")
    assert (code, [edition["remade"] for edition in found["editions"]]) == (0, [True, True])
    code, found = command(new.changed(eos="none"), "audit", "--content")
    assert (code, [edition["remade"] for edition in found["editions"]]) == (0, [False, False])


def test_a_source_that_comes_back_goes_on_where_it_was_left(embedded: Broker, tmp_path: Path) -> None:
    feed = Service(embedded.bootstrap, tmp_path, {"raw_partitions": 2})
    plans = [make_plan(streams=2, sources=sources) for sources in (("a", "b"), ("a",), ("a", "b", "c"))]
    editions = [Edition(number, plan) for number, plan in enumerate(plans, 1)]
    producer = Producer(feed.options)
    written: list[tuple[Edition, int, CutReason, tuple[tuple[int, int], ...]]] = [
        (editions[0], 0, "plan", ((0, 10), (0, 5))),
        (editions[0], 1, "seal", ((0, 7), (0, 3))),
        (editions[1], 0, "plan", ((10, 20),)),
        (editions[1], 1, "seal", ((7, 7),)),
    ]
    for edition, stream, reason, ranges in written:
        if stream == 0 and edition.number == 2:
            create_topics(at_edition(feed.named, edition))
        cut = make_cut(edition.plan, [], stream=stream, ranges=ranges, reason=reason)
        done = Done(plan=cut.plan, stream=stream, window=0, next=0, documents=0, tokens=0, rejected=0)
        for entry in (cut, done):
            producer.produce(edition.topic(feed.named.ledger_topic), encode(entry), partition=stream)
    assert producer.flush(10) == 0
    assert beginnings(feed.named, editions[2], editions) == [
        Beginning((20, 5, None), (False, False, False)),
        Beginning((7, 3, None), (True, True, False)),
    ]
