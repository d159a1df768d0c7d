"""What Tokenfeed relies on, asked of every kind of broker it is tested on.

Where the embedded broker falls short the test is a strict expected failure with the reason, so that this file is the list
of its limits and a new version that lifts one is noticed. Apache Kafka has to pass everything.
"""

from __future__ import annotations

import asyncio
import os
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer
from confluent_kafka import OFFSET_END, Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.brokers import Broker
from tests.service import wait_until
from tokenfeed.kafka import end_offset, partition_counts, read_range, reader

SECONDS = 20.0
HEADERS: list[tuple[str, str | bytes | None]] = [("stream", b"7"), ("none", None), ("stream", b"again")]


class Client:
    """Short words for what the tests do on one broker."""

    def __init__(self, broker: Broker) -> None:
        self.options: dict[str, Any] = {"bootstrap.servers": broker.bootstrap, "log_level": 0}
        self.admin = AdminClient(self.options)  # kept: its futures fail once it is collected
        self.consumers: list[Consumer] = []

    def create(self, partitions: int = 1, config: dict[str, str] | None = None) -> str:
        """A new topic, once metadata tells of it: Apache Kafka acknowledges the creation a little before that."""
        name = f"conformance-{uuid.uuid4().hex[:12]}"
        self.admin.create_topics([NewTopic(name, partitions, 1, config=config or {})])[name].result(SECONDS)
        wait_until(lambda: partition_counts(self.options).get(name) == partitions, f"{name} in metadata", SECONDS)
        return name

    def send(self, topic: str, values: Sequence[bytes | None], partition: int = 0, **options: Any) -> list[int]:
        """Send values and return the offsets that the delivery reports name, in the order of sending."""
        offsets: dict[int, int] = {}

        def report(index: int) -> Callable[[KafkaError | None, Message], None]:
            def delivered(error: KafkaError | None, message: Message) -> None:
                assert error is None, error
                offset = message.offset()
                assert offset is not None
                offsets[index] = offset

            return delivered

        settings = {"acks": "all", "linger.ms": 100, "message.max.bytes": 10 * 2**20}
        producer = Producer({**self.options, **settings, **options})
        for index, value in enumerate(values):
            producer.produce(topic, value, b"key", partition, headers=HEADERS, on_delivery=report(index))
        assert producer.flush(SECONDS) == 0
        return [offsets[index] for index in range(len(values))]

    def consumer(self, **options: Any) -> Consumer:
        """A consumer for assign and seek, closed with the client. An empty fetch waits 50 ms at most, to be quick."""
        self.consumers.append(reader(self.options, **{"fetch.wait.max.ms": 50, **options}))
        return self.consumers[-1]

    def read(self, topic: str, start: int = 0, partition: int = 0, end: int | None = None) -> list[Message]:
        """The messages from an offset to another, or to the end."""
        return list(read_range(self.consumer(), topic, partition, start, end, timeout=SECONDS))

    def close(self) -> None:
        """Close the consumers."""
        for consumer in self.consumers:
            consumer.close()


@pytest.fixture
def client(broker: Broker) -> Iterator[Client]:
    """A client of each kind of broker in turn."""
    made = Client(broker)
    yield made
    made.close()


def embedded_cannot(request: pytest.FixtureRequest, reason: str) -> None:
    """Expect the running test to fail on the embedded broker."""
    if request.getfixturevalue("broker").name == "embedded":
        request.applymarker(pytest.mark.xfail(strict=True, reason=reason))


def poll(consumer: Consumer, seconds: float = SECONDS) -> Message:
    """The next message or error event."""
    message = consumer.poll(seconds)
    assert message is not None, f"no message and no error within {seconds:g} s"
    return message


def poll_value(consumer: Consumer) -> Message:
    """The next message; ends of partitions are passed over."""
    while (error := (message := poll(consumer)).error()) is not None:
        assert error.code() == KafkaError._PARTITION_EOF, error
    return message


def offsets(messages: list[Message]) -> list[int | None]:
    return [message.offset() for message in messages]


class TestTopics:
    def test_a_topic_has_the_partitions_that_were_asked_for(self, client: Client) -> None:
        topics = {client.create(count): count for count in (1, 3, 8)}
        counts = partition_counts(client.options)
        assert {topic: counts[topic] for topic in topics} == topics

    def test_a_topic_that_exists_is_not_created_again(self, client: Client) -> None:
        topic = client.create(3)
        with pytest.raises(KafkaException) as caught:
            client.admin.create_topics([NewTopic(topic, 5, 1)])[topic].result(SECONDS)
        assert caught.value.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS
        assert partition_counts(client.options)[topic] == 3

    def test_a_produce_to_a_missing_topic_does_not_create_it(self, client: Client, request: pytest.FixtureRequest) -> None:
        embedded_cannot(request, "creates a topic that somebody writes to")
        missing = f"missing-{uuid.uuid4().hex}"
        producer = Producer({**client.options, "message.timeout.ms": 1000})
        producer.produce(missing, b"value", partition=0)
        producer.flush(SECONDS)
        assert missing not in partition_counts(client.options)

    def test_the_config_of_a_topic_holds(self, client: Client, request: pytest.FixtureRequest) -> None:
        embedded_cannot(request, "takes messages above max.message.bytes")
        topic = client.create(config={"max.message.bytes": "100000"})
        with pytest.raises(AssertionError, match="MSG_SIZE_TOO_LARGE"):
            client.send(topic, [os.urandom(200_000)])


class TestProducing:
    @pytest.mark.parametrize("compression", ["none", "snappy", "lz4", "zstd", "gzip"])
    def test_offsets_and_order_are_right_when_messages_share_a_batch(self, client: Client, compression: str) -> None:
        topic = client.create()
        values = [b"%d " % index * 50 for index in range(500)]
        options: dict[str, Any] = {"compression.type": compression}
        for start in (0, 500):
            assert client.send(topic, values, **options) == list(range(start, start + 500))
        assert [message.value() for message in client.read(topic)] == values * 2

    def test_a_message_goes_to_the_partition_that_was_named(self, client: Client) -> None:
        topic = client.create(3)
        for partition in range(3):
            client.send(topic, [b"%d" % partition] * (partition + 1), partition)
        for partition in range(3):
            messages = client.read(topic, partition=partition)
            assert [message.value() for message in messages] == [b"%d" % partition] * (partition + 1)

    def test_many_small_requests_in_flight_keep_their_order(self, client: Client) -> None:
        topic = client.create()
        values = [b"%d" % index for index in range(2000)]
        client.send(topic, values, **{"batch.num.messages": 10, "linger.ms": 0})
        assert [message.value() for message in client.read(topic)] == values

    def test_an_idempotent_producer_keeps_order_without_a_repeat(self, client: Client) -> None:
        topic = client.create()
        values = [b"%d" % index for index in range(2000)]
        for _ in range(2):  # the second producer has an id and sequence numbers of its own
            client.send(topic, values, **{"enable.idempotence": True, "batch.num.messages": 10, "linger.ms": 0})
        assert [message.value() for message in client.read(topic)] == values * 2

    def test_messages_of_nine_megabytes_come_back_whole(self, client: Client) -> None:
        topic = client.create(config={"max.message.bytes": str(10 * 2**20)})
        values = [os.urandom(9_000_000) for _ in range(3)]
        client.send(topic, values)
        assert [message.value() for message in client.read(topic)] == values


class TestReading:
    def test_assign_and_seek_start_in_the_middle_of_a_batch(self, client: Client) -> None:
        topic = client.create()
        client.send(topic, [b"value"] * 500)
        assert offsets(client.read(topic, 123, end=126)) == [123, 124, 125]
        consumer = client.consumer()
        consumer.assign([TopicPartition(topic, 0, 10)])
        assert poll_value(consumer).offset() == 10
        for offset in (400, 0, 499):
            consumer.seek(TopicPartition(topic, 0, offset))
            assert poll_value(consumer).offset() == offset

    def test_headers_key_and_timestamp_come_back(self, client: Client) -> None:
        topic = client.create()
        before = time.time()
        client.send(topic, [b"value"])
        [message] = client.read(topic)
        assert (message.key(), message.headers()) == (b"key", HEADERS)
        assert before - 1 < message.timestamp()[1] / 1000 < time.time() + 1

    def test_a_tombstone_is_not_an_empty_value(self, client: Client) -> None:
        topic = client.create(config={"cleanup.policy": "compact"})
        client.send(topic, [None, b""])
        assert [message.value() for message in client.read(topic)] == [None, b""]

    def test_a_paused_partition_is_silent_and_goes_on_where_it_stopped(self, client: Client) -> None:
        topic = client.create(2)
        consumer = client.consumer()
        consumer.assign([TopicPartition(topic, partition, 0) for partition in (0, 1)])
        consumer.pause([TopicPartition(topic, 0)])
        client.send(topic, [b"value"] * 20, 0)
        client.send(topic, [b"value"] * 20, 1)
        seen = [poll_value(consumer).partition() for _ in range(20)]
        assert seen == [1] * 20
        consumer.resume([TopicPartition(topic, 0)])
        assert [poll_value(consumer).offset() for _ in range(20)] == list(range(20))

    def test_a_waiting_reader_gets_a_new_message(self, client: Client) -> None:
        topic = client.create()
        consumer = client.consumer(**{"enable.partition.eof": False, "fetch.wait.max.ms": 500})
        consumer.assign([TopicPartition(topic, 0, 0)])
        assert consumer.poll(0.2) is None
        client.send(topic, [b"value"])
        assert poll(consumer, 5).value() == b"value"

    def test_an_offset_beyond_the_end_is_an_error(self, client: Client, request: pytest.FixtureRequest) -> None:
        embedded_cannot(request, "answers with nothing, for ever; later messages are then skipped without a word")
        topic = client.create()
        client.send(topic, [b"value"] * 10)
        consumer = client.consumer()
        consumer.assign([TopicPartition(topic, 0, 15)])
        assert_out_of_range(poll(consumer, 5))

    def test_an_offset_that_retention_has_passed_is_an_error(self, client: Client, request: pytest.FixtureRequest) -> None:
        embedded_cannot(request, "cannot delete records")
        topic = client.create()
        client.send(topic, [b"value"] * 10)
        delete_before(client, topic, 5)
        consumer = client.consumer()
        consumer.assign([TopicPartition(topic, 0, 3)])
        assert_out_of_range(poll(consumer, 5))


class TestEnds:
    """The end of a partition. Asked with ListOffsets it is wrong on the embedded broker, from a fetch it is right."""

    @pytest.mark.parametrize("batches", [[], [1], [500], [500, 10], [10, 1, 500]])
    def test_our_end_offset_is_right(self, client: Client, batches: list[int]) -> None:
        topic = client.create()
        for count in batches:
            client.send(topic, [b"value"] * count)
        assert end_offset(client.consumer(), topic, 0) == sum(batches)

    def test_the_high_watermark_of_a_fetch_is_right(self, client: Client) -> None:
        topic = client.create()
        client.send(topic, [b"value"] * 500)
        consumer = client.consumer()
        list(read_range(consumer, topic, 0, 499))
        assert consumer.get_watermark_offsets(TopicPartition(topic, 0), cached=True)[1] == 500

    def test_list_offsets_gives_the_end(self, client: Client, request: pytest.FixtureRequest) -> None:
        embedded_cannot(request, "ListOffsets gives the base offset of the last record batch + 1")
        topic = client.create()
        client.send(topic, [b"value"] * 500)
        assert client.consumer().get_watermark_offsets(TopicPartition(topic, 0), timeout=SECONDS) == (0, 500)

    @pytest.mark.parametrize(("logical", "first"), [(OFFSET_END, 500), (-2000 - 5, 495)], ids=["end", "tail"])
    def test_seeking_to_the_end_lands_there(
        self, client: Client, request: pytest.FixtureRequest, logical: int, first: int
    ) -> None:
        embedded_cannot(request, "both come from ListOffsets")
        topic = client.create()
        client.send(topic, [b"value"] * 500)
        consumer = client.consumer()
        consumer.assign([TopicPartition(topic, 0, logical)])
        while (message := poll(consumer)).error() is not None:
            client.send(topic, [b"value"])  # at the end: the next message must be the first one seen
        assert message.offset() == first

    def test_the_end_of_a_partition_that_retention_has_emptied(
        self, client: Client, request: pytest.FixtureRequest
    ) -> None:
        embedded_cannot(request, "cannot delete records")
        topic = client.create()
        client.send(topic, [b"value"] * 10)
        delete_before(client, topic, 10)
        assert end_offset(client.consumer(), topic, 0, timeout=5) == 10


class TestGroups:
    def test_a_second_consumer_reads_the_groups_commit(self, client: Client) -> None:
        topic, group = client.create(2), {"group.id": f"group-{uuid.uuid4().hex}"}
        client.send(topic, [b"value"] * 500)
        client.consumer(**group).commit(offsets=[TopicPartition(topic, 0, 123)], asynchronous=False)
        committed = client.consumer(**group).committed([TopicPartition(topic, n) for n in (0, 1)], timeout=SECONDS)
        assert [position.offset for position in committed] == [123, -1001]  # OFFSET_INVALID: nothing committed

    def test_commit_metadata_is_kept(self, client: Client, request: pytest.FixtureRequest) -> None:
        embedded_cannot(request, "drops commit metadata")
        topic, group = client.create(), {"group.id": f"group-{uuid.uuid4().hex}"}
        client.consumer(**group).commit(offsets=[TopicPartition(topic, 0, 1, "note")], asynchronous=False)
        [position] = client.consumer(**group).committed([TopicPartition(topic, 0)], timeout=SECONDS)
        assert position.metadata == "note"

    def test_two_members_share_the_partitions_and_one_takes_over(self, client: Client) -> None:
        topic = client.create(4)
        for partition in range(4):
            client.send(topic, [b"value"], partition)
        asyncio.run(asyncio.wait_for(share_and_take_over(client.options["bootstrap.servers"], topic), 60))

    def test_a_member_that_joins_while_the_leader_leaves_takes_over(
        self, client: Client, request: pytest.FixtureRequest
    ) -> None:
        embedded_cannot(request, "waits for ever for the leader that left: every join ends in another join")
        topic = client.create()
        group = {"group.id": f"group-{uuid.uuid4().hex}", "heartbeat.interval.ms": 10_000}
        leader, member = client.consumer(**group), client.consumer(**group)
        leader.subscribe([topic])
        wait_until(lambda: leader.poll(0.1) or leader.assignment(), "the leader's assignment", SECONDS)
        member.subscribe([topic])
        member.poll(1)  # it has asked to join; the leader hears of that with its next heartbeat
        leader.close()
        wait_until(lambda: member.poll(0.1) or member.assignment(), "the member's assignment", SECONDS)


async def share_and_take_over(bootstrap: str, topic: str) -> None:
    """One aiokafka member, then two, then the first leaves."""
    group = f"group-{uuid.uuid4().hex}"
    everything = {0, 1, 2, 3}

    def member() -> AIOKafkaConsumer:
        return AIOKafkaConsumer(
            topic,
            bootstrap_servers=bootstrap,
            group_id=group,
            auto_offset_reset="earliest",
            session_timeout_ms=6000,
            heartbeat_interval_ms=500,
        )

    def assigned(consumer: AIOKafkaConsumer) -> set[int]:
        return {owned.partition for owned in consumer.assignment()}

    async with member() as second:
        async with member() as first:
            await until(lambda: assigned(first) | assigned(second) == everything)
            await until(lambda: len(assigned(first)) == len(assigned(second)) == 2)
            assert not assigned(first) & assigned(second)
        await until(lambda: assigned(second) == everything)
        found: set[int] = set()
        while found != everything:
            found |= {owned.partition for owned in await second.getmany(timeout_ms=500)}


async def until(condition: Callable[[], bool]) -> None:
    """Wait for a condition."""
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.05)


def assert_out_of_range(message: Message) -> None:
    error = message.error()
    assert error is not None
    assert error.code() == KafkaError._AUTO_OFFSET_RESET
    assert "out of range" in error.str()


def delete_before(client: Client, topic: str, offset: int) -> None:
    """What retention does, at once."""
    position = TopicPartition(topic, 0, offset)
    client.admin.delete_records([position])[position].result(SECONDS)
