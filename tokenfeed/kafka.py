"""What every Kafka client of ours shares: its connection, and reading a partition from one offset to another.

The end of a partition is taken from a fetch, not from a ListOffsets request: the embedded broker answers that wrongly.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka.admin import AdminClient

from tokenfeed.errors import BrokerUnreachable, TopicError
from tokenfeed.forking import make_forks_safe

if TYPE_CHECKING:
    from tokenfeed.settings import Settings

log = logging.getLogger(__name__)

make_forks_safe()

EARLIEST: Final = -2  # librdkafka's OFFSET_BEGINNING
_POLL_SECONDS: Final = 0.5
_TURN_SECONDS: Final = 3.0
# What librdkafka overcomes by itself, though it does not call all of it retriable.
_PASSING: Final = {
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._TRANSPORT,
    KafkaError._RESOLVE,
    KafkaError._TIMED_OUT,
    KafkaError.BROKER_NOT_AVAILABLE,
    KafkaError.FENCED_LEADER_EPOCH,
    KafkaError.KAFKA_STORAGE_ERROR,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NETWORK_EXCEPTION,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.OFFSET_NOT_AVAILABLE,  # a new leader that does not know yet how far the others are
    KafkaError.REPLICA_NOT_AVAILABLE,
    KafkaError.REQUEST_TIMED_OUT,
    KafkaError.UNKNOWN_LEADER_EPOCH,
}


def connection(settings: Settings) -> dict[str, Any]:
    """librdkafka's options for reaching the brokers, secrets included: never print it."""
    options: dict[str, Any] = {
        "bootstrap.servers": settings.bootstrap_servers,
        "security.protocol": settings.security_protocol,
        "log_level": 3,
        "logger": log,
    }
    if settings.security_protocol.startswith("SASL") and settings.sasl_password:
        options |= {
            "sasl.mechanism": settings.sasl_mechanism,
            "sasl.username": settings.sasl_username,
            "sasl.password": settings.sasl_password.get_secret_value(),
        }
    if settings.security_protocol.endswith("SSL"):
        files = {
            "ssl.ca.location": settings.ssl_cafile,
            "ssl.certificate.location": settings.ssl_certfile,
            "ssl.key.location": settings.ssl_keyfile,
        }
        options |= {name: str(path) for name, path in files.items() if path}
    return options


def reader(options: dict[str, Any], **extra: Any) -> Consumer:
    """A consumer for `assign` and `seek`: it joins no group, commits nothing and never resets an offset by itself."""
    return Consumer(
        {
            "group.id": "tokenfeed-reader",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "enable.partition.eof": True,
            # How long the broker holds back the empty answer that tells a reader that it has reached the end.
            "fetch.wait.max.ms": 10,
            **options,
            **extra,
        }
    )


def partition_counts(options: dict[str, Any], timeout: float = 10.0) -> dict[str, int]:
    """Partition count of every topic.

    Raises:
        BrokerUnreachable: no broker answered within `timeout` seconds.
    """
    try:
        metadata = AdminClient(options).list_topics(timeout=timeout)
    except KafkaException as error:
        raise unreachable(options, error) from None
    return {name: len(topic.partitions) for name, topic in metadata.topics.items()}


def unreachable(options: dict[str, Any], error: KafkaException) -> BrokerUnreachable:
    """The error for a broker that did not answer."""
    return BrokerUnreachable(
        f"no broker answers at {options['bootstrap.servers']} ({error.args[0].str()}); "
        "check KAFKA_BOOTSTRAP_SERVERS, KAFKA_SECURITY_PROTOCOL and that the broker runs"
    )


def read_range(
    consumer: Consumer,
    topic: str,
    partition: int,
    start: int = 0,
    end: int | None = None,
    timeout: float = 30.0,
) -> Iterator[Message]:
    """Yield the messages of a partition from offset `start` (or EARLIEST) up to `end`, or to its end as it is now.

    Takes over the consumer's assignment; at its end it leaves none, because an assigned consumer would go on fetching, and
    the next read would wait for the answer. Offsets may have gaps.

    Raises:
        BrokerUnreachable: nothing arrived for `timeout` seconds.
        TopicError: `start` is out of range, or the partition does not exist.
    """
    if start == EARLIEST:  # looked up here, because librdkafka waits 500 ms before it looks up a logical offset
        start, _ = watermarks(consumer, topic, partition, timeout)
    consumer.assign([TopicPartition(topic, partition, start)])
    yield from _read(consumer, TopicPartition(topic, partition, start), end, timeout)
    consumer.unassign()


def _read(consumer: Consumer, part: TopicPartition, end: int | None, timeout: float) -> Iterator[Message]:
    deadline = time.monotonic() + timeout
    while True:
        message = consumer.poll(_POLL_SECONDS)
        error = None if message is None else message.error()
        if message is None or (error is not None and is_passing(error)):
            if time.monotonic() > deadline:
                raise BrokerUnreachable(f"{part.topic}/{part.partition}: nothing read for {timeout:g} s")
            continue
        if error is not None:
            if error.code() == KafkaError._PARTITION_EOF:
                return
            raise TopicError(f"{part.topic}/{part.partition} from offset {part.offset}: {error.str()}")
        deadline = time.monotonic() + timeout
        if end is None:  # as the fetch has told; a topic that is written to all the time has no other end
            _, end = consumer.get_watermark_offsets(part, cached=True)
        if offset_of(message) >= end:
            return
        yield message
        if offset_of(message) + 1 >= end:
            return


def is_passing(error: KafkaError) -> bool:
    """Whether a reader should go on polling: the client tries again by itself."""
    return error.retriable() or error.code() in _PASSING


def offset_of(message: Message) -> int:
    """The offset of a message that came from a broker."""
    offset = message.offset()
    assert offset is not None, "only messages that were never sent have no offset"  # noqa: S101
    return offset


def end_offset(consumer: Consumer, topic: str, partition: int, timeout: float = 30.0) -> int:
    """Offset behind the last message of a partition, on every broker: what ListOffsets says, and what is behind it."""
    _, end = watermarks(consumer, topic, partition, timeout)
    for message in read_range(consumer, topic, partition, end, timeout=timeout):
        end = offset_of(message) + 1
    return end


def watermarks(consumer: Consumer, topic: str, partition: int, timeout: float = 30.0) -> tuple[int, int]:
    """First offset of a partition, and a lower bound of its end: some brokers' ListOffsets stop short of it.

    Tries again for `timeout` seconds while the partition has no leader.

    Raises:
        TopicError: the topic or partition does not exist.
        BrokerUnreachable: no answer came in time.
    """
    deadline = time.monotonic() + timeout
    while True:
        try:
            # A longer wait would be for the leader that was known at its start, which may be down for good.
            low, high = consumer.get_watermark_offsets(
                TopicPartition(topic, partition), timeout=min(timeout, _TURN_SECONDS)
            )
        except KafkaException as exception:
            error: KafkaError = exception.args[0]
            if error.code() > 0 and not is_passing(error):  # an answer of a broker, not a fault on the way
                raise TopicError(f"{topic}/{partition}: {error.str()}") from None
            _learn_leader(consumer, topic, partition)
            if time.monotonic() > deadline:
                raise BrokerUnreachable(f"{topic}/{partition}: no answer for {timeout:g} s: {error.str()}") from None
            time.sleep(_POLL_SECONDS)
        else:
            return low, high


def _learn_leader(consumer: Consumer, topic: str, partition: int) -> None:
    """Ask for the leader anew; librdkafka says "unknown partition" of one without a leader and of one that is not there."""
    try:
        known = consumer.list_topics(topic, timeout=_TURN_SECONDS).topics[topic]
    except KafkaException:
        return
    if partition not in known.partitions:
        raise TopicError(f"{topic}/{partition} does not exist; `tokenfeed topics create` makes what is missing")
