"""What is ingested stands in the raw topic, once and in place, or it is said that it does not."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import orjson
import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from tests.brokers import Broker
from tests.service import ROOT, Service, wait_until
from tokenfeed import producing
from tokenfeed.broker import embedded_broker
from tokenfeed.documents import JSON, NDJSON, SEAL, TEXT
from tokenfeed.errors import DeliveryError, SettingsError, TopicError
from tokenfeed.ingest import Item, Refused, ingest_documents
from tokenfeed.ingest.records import record_limit
from tokenfeed.ingest.seal import sealed_partitions
from tokenfeed.kafka import connection, partition_counts
from tokenfeed.topics import check_topics, create_topics

MakeService = Callable[..., Service]


def items(count: int) -> list[Item]:
    return [Item(b"document %d" % number, TEXT, str(number)) for number in range(count)]


def stored(feed: Service) -> list[list[tuple[bytes | None, str | None]]]:
    """(value, content type) of every record, by partition."""
    return [
        [(record.value, record.content_type) for record in feed.raw(partition)]
        for partition in range(feed.settings.stream_count)
    ]


def command(feed: Service, *arguments: str | Path, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "tokenfeed", *arguments],
        capture_output=True,
        check=False,
        cwd=ROOT,
        env=feed.environment(),
        input=stdin,
        timeout=60,
    )


def report(done: subprocess.CompletedProcess[bytes]) -> dict[str, Any]:
    found: dict[str, Any] = orjson.loads(done.stdout)
    del found["seconds"]
    return found


# Topics


def test_topics_are_made_once_and_the_same_by_many_at_a_time(service: MakeService) -> None:
    feed = service()
    assert create_topics(feed.settings) == []
    other = feed.settings.model_copy(
        update={
            "raw_topics": ("other-" + feed.settings.raw_topics[0],),
            "batches_topic": "other-" + feed.settings.batches_topic,
        }
    )
    with pytest.raises(TopicError, match=f"{other.batches_topic} does not exist"):
        check_topics(other)
    with ThreadPoolExecutor(3) as threads:
        created = [spec.name for specs in threads.map(create_topics, [other] * 3) for spec in specs]
    assert sorted(created) == sorted([other.raw_topics[0], other.batches_topic])
    check_topics(other)
    counts = partition_counts(connection(other))
    assert (counts[other.raw_topics[0]], counts[other.batches_topic]) == (3, 4)


def test_a_wrong_partition_count_is_named_and_nothing_is_created(service: MakeService) -> None:
    feed = service()
    wrong = feed.settings.model_copy(update={"slots": 5, "dead_topic": "not-" + feed.settings.dead_topic})
    message = f"topic {wrong.batches_topic} has 4 partitions, the settings want 5.*TOKENFEED_SLOTS"
    for check in (create_topics, check_topics):
        with pytest.raises(TopicError, match=message):
            check(wrong)
    assert wrong.dead_topic not in partition_counts(connection(wrong))


def test_a_dry_run_touches_nothing(service: MakeService) -> None:
    feed = service()
    feed.overrides["dead_topic"] = "not-" + feed.settings.dead_topic
    done = command(feed, "topics", "create", "--dry-run", "--json")
    assert feed.overrides["dead_topic"] in [spec["name"] for spec in orjson.loads(done.stdout)["planned"]]
    assert feed.overrides["dead_topic"] not in partition_counts(feed.options)


# Records


def test_document_i_goes_to_partition_i_mod_p(service: MakeService) -> None:
    feed = service()
    found = ingest_documents(feed.settings, items(10))
    assert (found.documents, found.records, found.bytes, found.sealed, found.failed) == (10, 10, 100, 0, 0)
    assert stored(feed) == [[(b"document %d" % number, TEXT) for number in range(first, 10, 3)] for first in range(3)]
    assert [m.key() for m in feed.messages(feed.settings.raw_topics[0], 1)] == [b"1", b"4", b"7"]


def test_a_full_queue_is_waited_for_and_nothing_is_lost_or_out_of_order(
    service: MakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(producing, "_QUEUE_KBYTES", 64)
    feed = service()
    values = [b"%0300d" % number for number in range(20_000)]
    assert ingest_documents(feed.settings, map(Item, values)).records == len(values)
    assert [[value for value, _ in partition] for partition in stored(feed)] == [values[first::3] for first in range(3)]


def test_the_largest_record_that_is_let_through_is_taken(service: MakeService) -> None:
    feed = service(max_message_bytes=100_000, carry=0)
    limit = record_limit(feed.settings)
    refused: list[str] = []
    found = ingest_documents(
        feed.settings,
        [Item(b"x" * limit), Item(b"x" * (limit + 1)), Item(b"x", TEXT, "y" * (limit - 1))],
        refused=refused.append,
    )
    assert (found.records, found.failed, len(refused)) == (2, 1, 1)


def test_a_rate_is_kept(service: MakeService) -> None:
    feed = service()
    assert ingest_documents(feed.settings, items(20), rate=20).seconds >= 0.9


# Seals


def test_a_seal_ends_every_partition_and_nothing_gets_behind_it(service: MakeService) -> None:
    feed = service()
    assert ingest_documents(feed.settings, items(4), seal=True).sealed == 3
    assert [partition[-1] for partition in stored(feed)] == [(None, SEAL)] * 3
    before = stored(feed)
    with pytest.raises(TopicError, match="sealed"):
        ingest_documents(feed.settings, items(1))
    assert ingest_documents(feed.settings, [], seal=True).sealed == 0
    assert stored(feed) == before


def test_sealing_that_broke_off_can_be_finished(service: MakeService) -> None:
    feed = service()
    feed.produce([(1, None)], SEAL)
    assert sealed_partitions(feed.settings, feed.settings.raw_topics[0]) == {1}
    with pytest.raises(TopicError, match=f"{feed.settings.raw_topics[0]}/1 is a seal"):
        ingest_documents(feed.settings, items(1), seal=True)
    assert ingest_documents(feed.settings, [], seal=True).sealed == 2
    assert stored(feed) == [[(None, SEAL)]] * 3


def test_nothing_is_sealed_while_a_document_is_missing(service: MakeService) -> None:
    feed = service()
    found = ingest_documents(feed.settings, [*items(3), Refused("lost")], seal=True, refused=lambda _: None)
    assert (found.documents, found.failed, found.sealed) == (3, 1, 0)
    assert sealed_partitions(feed.settings, feed.settings.raw_topics[0]) == set()


def test_records_that_expired_are_no_obstacle(running: Callable[[str], Broker], tmp_path: Path) -> None:
    feed = Service(running("kafka").bootstrap, tmp_path)
    ingest_documents(feed.settings, items(9))
    topic = feed.settings.raw_topics[0]
    ends = [TopicPartition(topic, partition, 3) for partition in range(3)]
    admin = AdminClient(feed.options)
    for deleted in admin.delete_records(ends).values():
        deleted.result()
    assert ingest_documents(feed.settings, items(3), seal=True).sealed == 3
    assert [len(partition) for partition in stored(feed)] == [2, 2, 2]


# Faults


def test_a_missing_topic_is_said_and_not_made(service: MakeService) -> None:
    feed = service()
    missing = feed.settings.model_copy(update={"raw_topics": ("not-" + feed.settings.raw_topics[0],)})
    with pytest.raises(TopicError, match="does not exist"):
        ingest_documents(missing, items(1))
    assert missing.raw_topics[0] not in partition_counts(feed.options)


def test_which_raw_topic_must_be_said_when_there_are_two(service: MakeService) -> None:
    feed = service()
    both = feed.settings.model_copy(update={"raw_topics": (*feed.settings.raw_topics, "other")})
    with pytest.raises(SettingsError, match="--topic"):
        ingest_documents(both, items(1))
    assert ingest_documents(both, items(1), topic=feed.settings.raw_topics[0]).documents == 1


def test_a_broker_that_goes_away_is_an_error_and_not_a_loss(tmp_path: Path) -> None:
    with ExitStack() as stack:
        feed = Service(stack.enter_context(embedded_broker()), tmp_path, {"delivery_timeout_seconds": 1.0})

        def documents() -> Iterator[Item]:
            yield from items(5)
            stack.close()
            yield from items(5)

        started = time.monotonic()
        with pytest.raises(DeliveryError, match="not acknowledged"):
            ingest_documents(feed.settings, documents(), seal=True)
        assert time.monotonic() - started < 20


def test_a_record_that_the_broker_refuses_is_an_error(running: Callable[[str], Broker], tmp_path: Path) -> None:
    feed = Service(running("kafka").bootstrap, tmp_path, {"max_message_bytes": 100_000, "carry": 0})
    larger = feed.settings.model_copy(update={"max_message_bytes": 1_000_000})
    with pytest.raises(DeliveryError, match="not acknowledged"):
        ingest_documents(larger, [Item(b"x" * 500_000)], seal=True)
    assert stored(feed) == [[], [], []]


# The command


def test_the_command_sends_files_and_stdin_and_seals(service: MakeService, tmp_path: Path) -> None:
    feed = service()
    folder = tmp_path / "corpus"
    folder.mkdir()
    (folder / "a.txt").write_text("one")
    (folder / "b.jsonl").write_text('{"content":"two"}\n{"content":"three"}\n')
    done = command(feed, "ingest", folder, "--text-field", "content", "--json")
    assert (done.returncode, done.stderr) == (0, b"")
    assert report(done) == {"documents": 3, "records": 3, "bytes": 3 + 14 + 16, "sealed": 0, "failed": 0}
    done = command(feed, "ingest", "-", "--bundle", "9", "--seal", stdin=b'{"text":"four"}\n{"text":"five"}\n')
    assert done.returncode == 0, done.stderr
    assert b"2 documents in 1 records" in done.stdout
    assert b"sealed 3 partitions" in done.stdout
    assert stored(feed) == [
        [(b"one", TEXT), (b'{"text":"four"}\n{"text":"five"}', NDJSON), (None, SEAL)],
        [(b'{"text":"two"}', JSON), (None, SEAL)],
        [(b'{"text":"three"}', JSON), (None, SEAL)],
    ]


def test_what_was_left_out_is_named_and_fails_the_command(embedded: Broker, tmp_path: Path) -> None:
    feed = Service(embedded.bootstrap, tmp_path, {"max_message_bytes": 100_000, "carry": 0})
    (tmp_path / "big.txt").write_text("x" * 100_000)
    (tmp_path / "cut.txt.gz").write_bytes(b"\x1f\x8b\x08")
    (tmp_path / "good.txt").write_text("good")
    names = [tmp_path / name for name in ("big.txt", "cut.txt.gz", "good.txt")]
    done = command(feed, "ingest", *names, "--seal", "--json")
    assert done.returncode == 1
    assert report(done) == {"documents": 1, "records": 1, "bytes": 4, "sealed": 0, "failed": 2}
    lines = done.stderr.decode().splitlines()
    assert [f"{name}:" in line for name, line in zip(names, lines, strict=False)] == [True, True]
    assert "TOKENFEED_MAX_MESSAGE_BYTES=100000" in lines[0]


def test_an_interrupted_ingest_says_what_it_has_sent_and_seals_nothing(embedded: Broker, tmp_path: Path) -> None:
    feed = Service(embedded.bootstrap, tmp_path)
    file = tmp_path / "many.jsonl"
    file.write_bytes(b"".join(b'{"text": "line %d"}\n' % number for number in range(5000)))
    running = subprocess.Popen(
        [sys.executable, "-m", "tokenfeed", "ingest", file, "--rate", "200", "--seal", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=ROOT,
        env=feed.environment(),
    )
    wait_until(lambda: any(stored(feed)), "the first records")
    running.send_signal(signal.SIGINT)
    out, err = running.communicate(timeout=20)
    assert running.returncode == 130, err
    assert b"interrupted" in err
    assert b"Traceback" not in err
    records = [record for partition in stored(feed) for record in partition]
    found = orjson.loads(out)
    assert (found["documents"], found["sealed"]) == (len(records), 0)
    assert SEAL not in {content_type for _, content_type in records}


def test_an_error_is_one_message_without_a_traceback(embedded: Broker, tmp_path: Path) -> None:
    feed = Service(embedded.bootstrap, tmp_path)
    feed.overrides["slots"] = 5
    done = command(feed, "topics", "create")
    assert done.returncode == 1
    assert done.stderr.startswith(b"tokenfeed: topic ")
    assert done.stderr.count(b"\n") == 1
