"""From documents to acknowledged records, and the seal behind them."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from tokenfeed.errors import SettingsError
from tokenfeed.ingest.files import Item, Refused
from tokenfeed.ingest.producer import Ingestor
from tokenfeed.ingest.records import RecordMaker
from tokenfeed.settings import Settings

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class IngestReport:
    """What an ingest has done.

    Attributes:
        documents, records, bytes: what was sent and acknowledged; bytes are those of the values.
        seconds: how long it took.
        sealed: partitions that were sealed.
        failed: documents, or files from some point on, that could not be sent.
    """

    documents: int
    records: int
    bytes: int
    seconds: float
    sealed: int
    failed: int


def ingest_documents(
    settings: Settings,
    items: Iterable[Item | Refused],
    *,
    topic: str | None = None,
    text_field: str | None = None,
    id_field: str | None = None,
    bundle: int = 1,
    rate: float | None = None,
    seal: bool = False,
    refused: Callable[[str], object] = log.warning,
) -> IngestReport:
    """Send documents to a raw topic; return once Kafka has acknowledged every record.

    Args:
        settings: connection, topics and limits.
        items: the documents, read as they are sent.
        topic: the raw topic; None for the only one.
        text_field, id_field: names in JSON documents; None for the feed's own.
        bundle: documents a record.
        rate: documents a second at most.
        seal: end the feed behind these documents. Left undone if one was refused, because a seal cannot be taken back.
        refused: gets one message for each document or file that cannot be sent; the others are sent all the same.

    Raises:
        SettingsError: no such raw topic, or records that the feed would misread.
        TopicError: the topic is missing or sealed.
        DeliveryError: a record was not acknowledged.
        BrokerUnreachable: no broker answers.
    """
    started = time.monotonic()
    ingestor = Ingestor(settings, _topic(settings, topic), rate)
    failed = 0
    for made in RecordMaker(settings, text_field, id_field, bundle).make(items):
        if isinstance(made, Refused):
            failed += 1
            refused(made.message)
        else:
            ingestor.send(made)
    ingestor.flush()
    sealed = ingestor.seal() if seal and not failed else 0
    seconds = round(time.monotonic() - started, 3)
    return IngestReport(ingestor.documents, ingestor.records, ingestor.bytes, seconds, sealed, failed)


def _topic(settings: Settings, topic: str | None) -> str:
    if topic is None and len(settings.raw_topics) == 1:
        return settings.raw_topics[0]
    if topic not in settings.raw_topics:
        raise SettingsError(f"--topic must be one of TOKENFEED_RAW_TOPICS: {', '.join(settings.raw_topics)}")
    return topic
