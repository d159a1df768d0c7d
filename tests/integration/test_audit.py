"""`tokenfeed audit` on real topics."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import orjson
from confluent_kafka import Producer

from tests.integration.test_service import MakeService, documents, spread
from tests.service import Service
from tokenfeed.batches import read_envelope


def audit(feed: Service, *options: str) -> tuple[int, dict[str, Any]]:
    """Exit code and report of the command."""
    command = [sys.executable, "-m", "tokenfeed", "audit", "--json", *options]
    done = subprocess.run(command, env=feed.environment(), capture_output=True, check=False)
    assert done.stdout, done.stderr
    return done.returncode, orjson.loads(done.stdout)


def test_the_command_passes_a_sound_feed_and_finds_what_is_planted(service: MakeService) -> None:
    feed = service(window_documents=20)
    values = [*documents(200), b"\xff", b""]
    feed.produce(spread(values))
    feed.start_worker()
    feed.seal()
    feed.wait_sealed()
    code, report = audit(feed, "--content")
    assert (code, report["ok"]) == (0, True)
    counts = {name: report[name] for name in ("documents", "batched", "dead", "left_out", "pending")}
    assert counts == {"documents": 202, "batched": 200, "dead": 1, "left_out": 1, "pending": 0}
    assert report["editions"][0]["slot_spread"] <= feed.settings.stream_count

    (message, *_) = feed.messages(feed.settings.batches_topic, 1)
    value = bytearray(message.value() or b"")
    value[-1] ^= 1
    producer = Producer(feed.options)
    producer.produce(feed.settings.batches_topic, bytes(value), partition=1, headers=message.headers())
    assert producer.flush(10) == 0
    stream = read_envelope(message.headers()).stream  # type: ignore[arg-type]
    code, report = audit(feed)
    assert (code, report["ok"], report["altered"], report["lost"], report["doubled"]) == (1, False, 1, 0, 0)
    assert report["editions"][0]["streams"][stream]["altered"] == 1


def test_a_feed_may_be_audited_while_workers_run(service: MakeService) -> None:
    feed = service(window_documents=10)
    worker = feed.start_worker()
    worker.wait_for_log("Worker ready")
    for start in range(0, 600, 100):
        feed.produce(spread(documents(100, start)))
        report = feed.audit()
        assert report.ok, report
    feed.seal()
    feed.wait_sealed()
    report = feed.audit()
    assert report.ok
    assert sum(stream.documents for stream in report.streams) == 600
