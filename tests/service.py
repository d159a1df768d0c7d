"""A real feed for tests: topics of its own on a real broker, workers as processes, and the oracle."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any

from confluent_kafka import Message, Producer

from tests.vocabulary import small_tokenizer
from tokenfeed import ledger as ledger_entries
from tokenfeed.audit import Report, audit_feed
from tokenfeed.batches import Envelope, encode, read_envelope
from tokenfeed.content import window_content
from tokenfeed.documents import CONTENT_TYPE_HEADER, SEAL, RawRecord, content_type_of
from tokenfeed.editions import Edition
from tokenfeed.kafka import EARLIEST, connection, read_range, reader
from tokenfeed.ledger import Cut, Done, Ledger
from tokenfeed.plan import Plan
from tokenfeed.planning import at_edition, plan_of
from tokenfeed.settings import Settings
from tokenfeed.tokenizing import Tokenizer, load_tokenizer
from tokenfeed.topics import create_topics

ROOT = Path(__file__).parent.parent
DEADLINE = 60.0


def wait_until(condition: Callable[[], Any], what: str, seconds: float = DEADLINE) -> Any:
    """Poll a condition until it is true; fail after `seconds`."""
    deadline = time.monotonic() + seconds
    while not (result := condition()):
        assert time.monotonic() < deadline, f"waited {seconds:g} s for {what}"
        time.sleep(0.1)
    return result


@dataclass
class Worker:
    """A `faust worker` process."""

    process: subprocess.Popen[bytes]
    log: Path

    def stop(self, seconds: float = 15.0) -> float:
        """SIGTERM; return the seconds it took to end."""
        started = time.monotonic()
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(seconds)
        return time.monotonic() - started

    def kill(self) -> None:
        """SIGKILL."""
        self.process.kill()
        self.process.wait()

    def wait_for_log(self, text: str, seconds: float = DEADLINE) -> None:
        """Wait until the worker has logged a text."""
        wait_until(lambda: text in self.log.read_text(errors="replace"), f"{text!r} in {self.log}", seconds)


@dataclass
class Service:
    """One feed under one plan, and its workers.

    Attributes:
        named: the settings that everyone is given.
        settings: the same with the topics of this edition.
    """

    bootstrap: str
    folder: Path
    overrides: dict[str, Any] = field(default_factory=dict)
    workers: list[Worker] = field(default_factory=list)
    edition: int = 1

    def __post_init__(self) -> None:
        name = uuid.uuid4().hex[:8]
        values: dict[str, Any] = {
            "app_id": f"feed-{name}",
            "raw_topics": (f"raw-{name}",),
            "batches_topic": f"batches-{name}",
            "ledger_topic": f"ledger-{name}",
            "plan_topic": f"plan-{name}",
            "dead_topic": f"dead-{name}",
            "raw_partitions": 3,
            "slots": 4,
            "tokenizer": small_tokenizer(),
            "sequence_length": 128,
            "batch_size": 4,
            "window_documents": 50,
            "window_linger_seconds": 1.0,
            "session_timeout_seconds": 6.0,
            "data_dir": self.folder / "data",
        }
        self.overrides = values | self.overrides
        self.named = self.settings = Settings(bootstrap_servers=self.bootstrap, **self.overrides)
        self.options = connection(self.settings)
        if self.edition == 1:
            create_topics(self.settings)
        self.settings = at_edition(self.named, Edition(self.edition, self.plan))

    def changed(self, **overrides: Any) -> Service:
        """The same feed under the next plan, which other settings make. Its topics are made when the plan is applied."""
        return replace(self, overrides=self.overrides | overrides, edition=self.edition + 1)

    # Workers

    def environment(self) -> dict[str, str]:
        """The settings as environment variables."""
        values = {
            f"TOKENFEED_{name.upper()}": f'["{value[0]}"]' if isinstance(value, tuple) else str(value)
            for name, value in self.overrides.items()
        }
        return {**os.environ, **values, "KAFKA_BOOTSTRAP_SERVERS": self.bootstrap}

    def start_worker(self, app: str = "app.main", **environment: str) -> Worker:
        """Start one more worker of an app module."""
        log = self.folder / f"worker-{len(self.workers)}.log"
        output: IO[bytes] = log.open("wb")
        command = [sys.executable, "-m", "faust", "-A", app, "worker", "-l", "info", "--without-web"]
        with output:
            process = subprocess.Popen(
                command,
                cwd=ROOT,
                env=self.environment() | environment,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        self.workers.append(Worker(process, log))
        return self.workers[-1]

    def close(self) -> None:
        """Kill what still runs."""
        for worker in self.workers:
            if worker.process.poll() is None:
                worker.kill()

    # Topics

    def produce(self, values: Iterable[tuple[int, bytes | None]], content_type: str | None = None) -> None:
        """Write (partition, value) records to the raw topic and await every delivery."""
        failed: list[Any] = []
        producer = Producer({**self.options, "acks": "all", "message.max.bytes": 10 * 2**20})
        headers = [(CONTENT_TYPE_HEADER, content_type.encode())] if content_type else None
        for partition, value in values:
            producer.produce(
                self.settings.raw_topics[0],
                value,
                partition=partition,
                headers=headers,
                on_delivery=lambda error, _: failed.append(error) if error else None,
            )
            producer.poll(0)
        assert producer.flush(60) == 0
        assert not failed

    def seal(self) -> None:
        """End every raw partition."""
        self.produce([(partition, None) for partition in range(self.settings.stream_count)], SEAL)

    def messages(self, topic: str, partition: int) -> list[Message]:
        """Everything in a partition."""
        consumer = reader(self.options)
        try:
            return list(read_range(consumer, topic, partition, EARLIEST))
        finally:
            consumer.close()

    def ledger(self, stream: int, plan: str) -> tuple[Ledger, list[tuple[Cut, Done | None]]]:
        """The ledger of a stream and its valid windows in order."""
        state = Ledger(stream, plan)
        windows: list[tuple[Cut, Done | None]] = []
        for message in self.messages(self.settings.ledger_topic, stream):
            before, state = (
                state,
                state.apply(message.offset(), ledger_entries.decode(message.value() or b"")),
            )
            if state.cut is not None and state.cut != before.cut:
                windows.append((state.cut, None))
            elif state.done is not None and before.done is None:
                windows[-1] = (windows[-1][0], state.done)
        return state, windows

    def wait_sealed(self, seconds: float = DEADLINE) -> None:
        """Wait until every stream has emitted its last batch."""
        for stream in range(self.settings.stream_count):
            wait_until(
                lambda stream=stream: self.ledger(stream, self.plan.id)[0].is_sealed,
                f"seal of stream {stream}",
                seconds,
            )

    # Oracle

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the settings, loaded once a process."""
        return _tokenizer(self.settings.tokenizer)

    @property
    def plan(self) -> Plan:
        """The plan that the settings make."""
        return plan_of(self.settings, self.tokenizer)

    def raw(self, stream: int) -> list[RawRecord]:
        """The records of a raw partition."""
        return [
            RawRecord(0, message.offset(), message.value(), content_type_of(message.headers()))
            for message in self.messages(self.settings.raw_topics[0], stream)
        ]

    def oracle(self) -> dict[tuple[int, int], bytes]:
        """Bytes that batch (stream, number) must have, computed from raw records, plan and cuts alone."""
        expected: dict[tuple[int, int], bytes] = {}
        for stream in range(self.settings.stream_count):
            raw = self.raw(stream)
            for cut, _ in self.ledger(stream, self.plan.id)[1]:
                ((start, end),) = cut.ranges
                carried = {piece.offset for piece in cut.carry}
                records = [record for record in raw if start <= record.offset < end or record.offset in carried]
                for batch in window_content(self.plan, self.tokenizer, cut, records).batches:
                    expected[stream, batch.number] = encode(batch)
        return expected

    def emitted(self) -> Iterator[tuple[int, Envelope, bytes]]:
        """(slot, envelope, value) of every message of the batches topic, in log order of each slot."""
        for slot in range(self.settings.slot_count):
            for message in self.messages(self.settings.batches_topic, slot):
                yield slot, read_envelope(message.headers()), message.value() or b""

    def assert_oracle(self) -> dict[tuple[int, int], bytes]:
        """Every batch stands in its slot with the oracle's bytes, in valid sequence; nothing else is there."""
        expected = self.oracle()
        following: dict[tuple[int, int], int] = {}
        valid: dict[tuple[int, int], bytes] = {}
        seals: dict[int, dict[int, int]] = defaultdict(dict)
        for slot, header, value in self.emitted():
            assert header.plan == self.plan.id
            if header.kind == "seal":
                seals[header.stream][slot] = header.number
                continue
            assert expected[header.stream, header.number] == value, f"altered: {header}"
            key = slot, header.stream
            if header.number == following.get(key, (slot - header.stream) % self.settings.slot_count):
                following[key] = header.number + self.settings.slot_count
                valid[header.stream, header.number] = value
        assert valid.keys() == expected.keys()
        for stream, found in seals.items():
            count = sum(1 for owner, _ in expected if owner == stream)
            assert found == dict.fromkeys(range(self.settings.slot_count), count)
        report = self.audit()
        assert report.ok, report
        assert sum(stream.batches for stream in report.streams) == len(valid)
        return valid

    def audit(self) -> Report:
        """The audit of the feed, with all content made anew."""
        edition = Edition(self.edition, self.plan)
        return audit_feed(self.named, edition=edition, encoder_of=lambda plan: self.tokenizer)


_loaded: dict[str, Tokenizer] = {}


def _tokenizer(name: str) -> Tokenizer:
    if name not in _loaded:
        _loaded[name] = load_tokenizer(name, bos="none", eos="append")
    return _loaded[name]
