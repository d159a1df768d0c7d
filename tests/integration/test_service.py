"""What the service emits is what the oracle says, whatever happens to its workers."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from tests.brokers import Broker
from tests.service import Service, wait_until
from tokenfeed import batches
from tokenfeed.documents import NDJSON
from tokenfeed.kafka import partition_counts

MakeService = Callable[..., Service]


def documents(count: int, seed: int = 0) -> list[bytes]:
    """Texts of 1 to 300 words."""
    chosen = random.Random(seed)
    return [
        " ".join(
            chosen.choices(("stream", "of", "text", "window", "batch", "über", "火"), k=chosen.randint(1, 300))
        ).encode()
        for _ in range(count)
    ]


def spread(values: list[bytes], partitions: int = 3) -> list[tuple[int, bytes | None]]:
    return [(index % partitions, value) for index, value in enumerate(values)]


def content(valid: dict[tuple[int, int], bytes]) -> dict[tuple[int, int], bytes]:
    """Input ids of every batch: what it holds without the plan id, which differs between feeds."""
    return {key: batches.decode(value).input_ids.tobytes() for key, value in valid.items()}


def test_one_two_and_three_workers_emit_the_oracles_bytes(service: MakeService) -> None:
    results = []
    for workers in (1, 2, 3):
        feed = service()
        feed.produce(spread(documents(600)))
        for _ in range(workers):
            feed.start_worker()
        feed.seal()
        feed.wait_sealed()
        results.append(content(feed.assert_oracle()))
        feed.close()
    assert results[0] == results[1] == results[2]


def test_a_killed_worker_loses_and_doubles_nothing(service: MakeService) -> None:
    feed = service(window_documents=20)
    first, second = feed.start_worker(), feed.start_worker()
    values = documents(900)
    feed.produce(spread(values[:500]))
    wait_until(lambda: feed.ledger(0, feed.plan.id)[1], "the first window")
    first.kill()
    feed.produce(spread(values[500:]))
    feed.start_worker()
    feed.seal()
    feed.wait_sealed()
    feed.assert_oracle()
    assert second.process.poll() is None


def test_a_zombie_worker_cannot_change_a_window(service: MakeService) -> None:
    feed = service(window_documents=10, window_linger_seconds=0.5)
    zombie = feed.start_worker()
    values = documents(600)
    feed.produce(spread(values[:200]))
    wait_until(lambda: feed.ledger(0, feed.plan.id)[1], "the first window")
    zombie.process.send_signal(signal.SIGSTOP)
    feed.start_worker()
    feed.produce(spread(values[200:]))
    wait_until(lambda: sum(cut.ranges[0][1] for cut, _ in feed.ledger(0, feed.plan.id)[1][-1:]) > 100, "a takeover")
    zombie.process.send_signal(signal.SIGCONT)
    feed.seal()
    feed.wait_sealed()
    feed.assert_oracle()


def test_sigterm_ends_a_worker_within_five_seconds_also_with_a_half_full_window(service: MakeService) -> None:
    feed = service(window_linger_seconds=3600.0)
    worker = feed.start_worker()
    feed.produce(spread(documents(60)))
    worker.wait_for_log("Worker ready")
    time.sleep(1)  # records reach the window; nothing outside tells
    assert worker.stop() < 5
    assert worker.process.returncode == 0
    assert "Crashed" not in worker.log.read_text()
    assert not list(feed.emitted())
    feed.start_worker()
    feed.seal()
    feed.wait_sealed()
    feed.assert_oracle()


def test_sigterm_ends_a_worker_within_five_seconds_though_no_broker_answers(
    running: Callable[[str], Broker], tmp_path: Path
) -> None:
    broker = running("kafka")
    feed = Service(broker.bootstrap, tmp_path, {"window_documents": 20})
    try:
        worker = feed.start_worker()
        feed.produce(spread(documents(60)))
        wait_until(lambda: feed.ledger(0, feed.plan.id)[0].is_open is False and feed.ledger(0, feed.plan.id)[1], "a window")
        feed.produce(spread(documents(30)))
        with broker.silent():
            time.sleep(1)
            assert worker.stop() < 5
        assert worker.process.returncode == 0
        feed.start_worker()
        feed.seal()
        feed.wait_sealed()
        feed.assert_oracle()
    finally:
        feed.close()


def test_bad_records_end_where_they_should_and_stop_no_stream(service: MakeService) -> None:
    feed = service()
    huge = b"all work and no play " * (9 * 2**20 // 21)
    feed.produce([(0, value) for value in (b"\xff", b"good one", b'{"text": "open', b'{"text": 3}', b"", None, huge)])
    feed.produce([(0, b'{"text": "in a bundle"}\n{"txt": 1}\n')], NDJSON)
    feed.start_worker()
    feed.seal()
    feed.wait_sealed(120)
    valid = feed.assert_oracle()
    _, ((_, done), *rest) = feed.ledger(0, feed.plan.id)
    assert done is not None
    assert rest == []
    assert (done.documents, done.rejected, done.filtered) == (3, 4, {"empty": 1, "tombstone": 1})
    assert done.tokens == sum(batches.decode(value).tokens for value in valid.values())
    letters = [dict(message.headers() or ()) for message in feed.messages(feed.settings.dead_topic, 0)]
    origins = {
        (letter["tokenfeed-origin"].decode().partition("/")[2], letter["tokenfeed-reason"].decode()) for letter in letters
    }
    assert origins == {
        ("0/0/0", "invalid_utf8"),
        ("0/2/0", "invalid_json"),
        ("0/3/0", "wrong_type"),
        ("0/7/1", "missing_text"),
    }


def test_a_slow_stream_is_flushed_after_the_linger(service: MakeService) -> None:
    feed = service(window_linger_seconds=0.5)
    feed.start_worker()
    feed.produce([(1, b"one document is far from a window")])
    ((cut, _),) = wait_until(lambda: feed.ledger(1, feed.plan.id)[1], "the window")
    assert cut.reason == "linger"
    wait_until(lambda: list(feed.emitted()), "its batch")


def test_windows_close_early_rather_than_pass_the_memory_budget(service: MakeService) -> None:
    feed = service(
        window_documents=10**6,
        window_bytes=2**20,
        window_linger_seconds=3600.0,
        memory_budget_bytes=2 * 2**20,
        max_message_bytes=2**20,
        batch_size=1,
    )
    value = b"memory is counted in bytes " * 2000
    feed.produce([(index % 3, value) for index in range(60)])
    feed.start_worker()
    feed.seal()
    feed.wait_sealed()
    feed.assert_oracle()


def test_records_behind_a_seal_are_left_alone(service: MakeService) -> None:
    feed = service()
    feed.produce([(partition, b"text") for partition in range(3)])
    feed.seal()
    feed.produce([(0, b"too late")])
    feed.start_worker()
    feed.wait_sealed()
    assert feed.ledger(0, feed.plan.id)[1][-1][0].ranges == ((0, 2),)
    feed.assert_oracle()


def test_an_empty_sealed_feed_ends(service: MakeService) -> None:
    feed = service()
    feed.start_worker()
    feed.seal()
    feed.wait_sealed()
    assert [header.number for _, header, _ in feed.emitted()] == [0] * (3 * 4)


def test_a_worker_with_another_plan_stops_with_one_sentence(service: MakeService) -> None:
    feed = service()
    feed.start_worker().wait_for_log("Worker ready")
    other = feed.start_worker(TOKENFEED_SEED="8")
    assert other.process.wait(60) == 1
    assert "seed: 8 here, 0 there" in other.log.read_text()
    assert "Traceback" not in other.log.read_text()


@pytest.mark.parametrize("app", ["tests.integration.broken_app", "tests.integration.deaf_app"])
def test_a_fault_of_ours_ends_the_process_with_exit_code_1_and_loses_nothing(service: MakeService, app: str) -> None:
    feed = service()
    feed.produce(spread(documents(200)))
    broken = feed.start_worker(app)
    assert broken.process.wait(60) == 1
    assert "a fault of ours" in broken.log.read_text()
    feed.start_worker()
    feed.seal()
    feed.wait_sealed()
    feed.assert_oracle()


def test_records_that_are_lost_inside_a_worker_end_it(service: MakeService) -> None:
    feed = service()
    feed.produce(spread(documents(90)))
    lossy = feed.start_worker("tests.integration.lossy_app")
    streams, plan = range(feed.plan.streams), feed.plan.id
    wait_until(lambda: any(done for stream in streams for _, done in feed.ledger(stream, plan)[1]), "a window that is done")
    feed.produce(spread(documents(200)[90:]))
    assert lossy.process.wait(60) == 1
    assert "lost inside this worker" in lossy.log.read_text()
    feed.start_worker()
    feed.seal()
    feed.wait_sealed()
    feed.assert_oracle()


def test_a_lost_ledger_is_an_error_and_never_a_fresh_start(service: MakeService) -> None:
    feed = service()
    feed.produce(spread(documents(60)))
    feed.start_worker()
    feed.seal()
    feed.wait_sealed()
    emptied = feed.start_worker(TOKENFEED_LEDGER_TOPIC=service().settings.ledger_topic)
    assert emptied.process.wait(60) == 1
    assert "the ledger was lost" in emptied.log.read_text()


def made_anew(feed: Service, topic: str, partitions: int) -> None:
    """Delete a topic and create it again."""
    admin = AdminClient(feed.options)
    admin.delete_topics([topic])[topic].result(15)
    wait_until(lambda: topic not in partition_counts(feed.options), "the topic to go")
    admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(15)
    wait_until(lambda: partition_counts(feed.options).get(topic) == partitions, "the topic to come")


@pytest.fixture
def emitted(running: Callable[[str], Broker], tmp_path: Path) -> Iterator[Service]:
    """A feed on Apache Kafka that has emitted windows, without a worker now."""
    feed = Service(running("kafka").bootstrap, tmp_path, {"window_documents": 10})
    try:
        worker = feed.start_worker()
        feed.produce(spread(documents(90)))
        wait_until(lambda: all(feed.ledger(stream, feed.plan.id)[0].done for stream in range(3)), "windows of all streams")
        worker.stop()
        yield feed
    finally:
        feed.close()


@pytest.mark.parametrize("count", [6, 300], ids=["shorter", "longer than what was read"])
def test_a_raw_topic_that_was_made_anew_is_an_error(emitted: Service, count: int) -> None:
    made_anew(emitted, emitted.settings.raw_topics[0], 3)
    emitted.produce(spread(documents(count)))
    worker = emitted.start_worker()
    assert worker.process.wait(60) == 1
    assert "was made anew" in worker.log.read_text()


def test_a_batches_topic_that_was_made_anew_is_an_error(emitted: Service) -> None:
    made_anew(emitted, emitted.settings.batches_topic, 4)
    worker = emitted.start_worker()
    assert worker.process.wait(60) == 1
    assert "has never held a batch" in worker.log.read_text()


def test_partitions_that_are_added_under_a_feed_are_an_error(emitted: Service) -> None:
    worker = emitted.start_worker(TOKENFEED_REQUEST_TIMEOUT_SECONDS="10")
    worker.wait_for_log("Worker ready")
    admin = AdminClient(emitted.options)
    topic = emitted.settings.raw_topics[0]
    admin.create_partitions([NewPartitions(topic, 4)])[topic].result(15)
    second = emitted.start_worker()
    assert second.process.wait(60) == 1
    assert "has 4 partitions, the settings want 3" in second.log.read_text()


def test_retention_that_overtakes_a_running_worker_stops_it(running: Callable[[str], Broker], tmp_path: Path) -> None:
    """The worker sleeps while the records that it needs next are removed; it must not go on behind the hole."""
    feed = Service(running("kafka").bootstrap, tmp_path, {"window_documents": 1000, "window_linger_seconds": 3600.0})
    try:
        worker = feed.start_worker()
        feed.produce([(0, b"text")] * 10)
        worker.wait_for_log("Worker ready")
        time.sleep(2)  # records reach the window; nothing outside tells
        worker.process.send_signal(signal.SIGSTOP)
        feed.produce([(0, b"text")])  # answers the fetch that waits at the broker; a stopped worker sends no other
        time.sleep(1)
        feed.produce([(0, b"text")] * 49)
        position = TopicPartition(feed.settings.raw_topics[0], 0, 40)
        admin = AdminClient(feed.options)  # kept: its futures fail once it is collected
        admin.delete_records([position])[position].result(15)
        worker.process.send_signal(signal.SIGCONT)
        assert worker.process.wait(60) == 1
        assert "were removed by retention" in worker.log.read_text()
        assert not list(feed.emitted())
    finally:
        feed.close()
