"""The doctor finds every fault of a feed's surroundings, says what to do, and shows no secret."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import orjson
from confluent_kafka import Producer

from tests.brokers import Broker
from tests.service import ROOT, Service

CANARY = "canary-7f3a"


def doctor(given: dict[str, str], **environment: str) -> tuple[int, dict[str, dict[str, Any]], str]:
    """Exit code, checks by name, and everything that was printed."""
    done = subprocess.run(
        [sys.executable, "-m", "tokenfeed", "doctor", "--json"],
        capture_output=True,
        check=False,
        cwd=ROOT,
        env=given | environment,
        timeout=100,
        text=True,
    )
    checks = {check["check"]: check for check in orjson.loads(done.stdout)["checks"]}
    return done.returncode, checks, done.stdout + done.stderr


def test_a_feed_that_is_right_has_no_fault(embedded: Broker, tmp_path: Path) -> None:
    feed = Service(embedded.bootstrap, tmp_path)
    code, checks, _ = doctor(feed.environment())
    assert (code, list(checks)) == (0, ["packages", "tokenizer", "broker", "topics", "plan"])
    assert [check["fault"] for check in checks.values()] == [None] * 5
    assert feed.plan.id in checks["plan"]["found"]


def test_a_feed_of_another_plan_is_a_fault_that_names_the_field(embedded: Broker, tmp_path: Path) -> None:
    feed = Service(embedded.bootstrap, tmp_path)
    producer = Producer(feed.options)
    producer.produce(feed.settings.plan_topic, feed.plan.to_json(), key=b"plan")
    assert producer.flush(10) == 0
    code, checks, _ = doctor(feed.environment(), TOKENFEED_SEED="5")
    assert code == 1
    assert "seed: 5 here, 0 there" in checks["plan"]["fault"]


def test_what_needs_a_thing_with_a_fault_is_left_out_and_no_secret_is_shown() -> None:
    code, checks, shown = doctor(
        dict(os.environ),
        KAFKA_BOOTSTRAP_SERVERS="127.0.0.1:1",
        KAFKA_SECURITY_PROTOCOL="SASL_SSL",
        KAFKA_SASL_USERNAME="someone",
        KAFKA_SASL_PASSWORD=CANARY,
        TOKENFEED_TOKENIZER="package:not_there",
    )
    states = {name: check["state"] for name, check in checks.items()}
    faults = {"tokenizer": "fault", "broker": "fault", "topics": "not checked", "plan": "not checked"}
    assert (code, states) == (1, {"packages": "ok", **faults})
    assert "TOKENFEED_TOKENIZER=package:not_there" in checks["tokenizer"]["fault"]
    assert "127.0.0.1:1" in checks["broker"]["fault"]
    assert "KAFKA_BOOTSTRAP_SERVERS" in checks["broker"]["fault"]
    assert "someone" in shown
    assert "Traceback" not in shown
    assert CANARY not in shown
