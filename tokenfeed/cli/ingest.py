"""`tokenfeed ingest`."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import orjson
import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

if TYPE_CHECKING:
    from tokenfeed.ingest import Ingestor, RecordMaker, Source
    from tokenfeed.settings import Settings


def ingest(
    paths: Annotated[list[Path] | None, typer.Argument(help="Files, folders, or - for JSONL on stdin.")] = None,
    text_field: Annotated[str, typer.Option(help="Field of the JSONL that holds the text.")] = "text",
    id_field: Annotated[str, typer.Option(help="Field of the JSONL that holds the id.")] = "id",
    bundle: Annotated[int, typer.Option(min=1, help="Documents a record.")] = 1,
    seal: Annotated[bool, typer.Option("--seal", help="End the feed behind these documents.")] = False,
    rate: Annotated[float | None, typer.Option(min=0.001, help="Documents a second at most.")] = None,
    topic: Annotated[str | None, typer.Option(help="Raw topic, if the feed has several.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object at the end.")] = False,
) -> None:
    """Send documents to the raw topic: text files whole, .jsonl line by line; .gz and .zst of both.

    Returns when Kafka has acknowledged every record. A document too large for TOKENFEED_MAX_MESSAGE_BYTES is left out,
    named and makes the exit code 1.

    Examples: tokenfeed ingest corpus/ --bundle 64 | tokenfeed ingest pile.jsonl.zst --text-field content --seal |
    zcat more.gz | tokenfeed ingest -
    """
    from tokenfeed.errors import SettingsError
    from tokenfeed.ingest import Ingestor, RecordMaker, expand
    from tokenfeed.settings import load_settings

    settings = load_settings()
    if not paths and not seal:
        raise SettingsError("nothing to do: give a PATH, or --seal to end the feed")
    sources = expand(paths or [])
    ingestor = Ingestor(settings, _topic(settings, topic), rate)
    maker = RecordMaker(
        text_field=text_field,
        id_field=id_field,
        feed_text_field=settings.text_field,
        feed_id_field=settings.id_field,
        bundle=bundle,
        max_bytes=settings.max_message_bytes,
    )
    started = time.monotonic()
    _send_all(sources, maker, ingestor)
    if seal:
        ingestor.seal()
    _report(ingestor, time.monotonic() - started, json)
    if ingestor.report.oversized:
        raise typer.Exit(1)


def _topic(settings: Settings, topic: str | None) -> str:
    from tokenfeed.errors import SettingsError

    if topic is None and len(settings.raw_topics) == 1:
        return settings.raw_topics[0]
    if topic not in settings.raw_topics:
        raise SettingsError(f"--topic must be one of TOKENFEED_RAW_TOPICS: {', '.join(settings.raw_topics)}")
    return topic


def _send_all(sources: list[Source], maker: RecordMaker, ingestor: Ingestor) -> None:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TextColumn("{task.fields[documents]} documents"),
        TimeRemainingColumn(),
    )
    console = Console(stderr=True)
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        total = sum(source.size for source in sources) or None
        task = progress.add_task("ingest", total=total, documents=0)
        before = 0

        def advance(read: int) -> None:
            progress.update(task, completed=before + read, documents=ingestor.report.documents)

        for source in sources:
            _send(source, maker, ingestor, advance)
            before += source.size
        for record in maker.flush():
            ingestor.send(record)
        ingestor.flush()
        advance(0)


def _send(source: Source, maker: RecordMaker, ingestor: Ingestor, advance: Callable[[int], None]) -> None:
    from tokenfeed.ingest import read_source

    for item in read_source(source):
        for record in maker.add(item):
            ingestor.send(record)
        if maker.oversized > ingestor.report.oversized:
            ingestor.report.oversized = maker.oversized
            typer.echo(
                f"{source.path}: a document of {len(item.value)} bytes does not fit TOKENFEED_MAX_MESSAGE_BYTES; left out",
                err=True,
            )
        advance(item.read)


def _report(ingestor: Ingestor, seconds: float, json: bool) -> None:
    from dataclasses import asdict

    report = ingestor.report
    if json:
        typer.echo(orjson.dumps(asdict(report) | {"seconds": round(seconds, 3)}).decode())
        return
    typer.echo(
        f"{report.documents} documents in {report.records} records, {report.bytes} bytes, {seconds:.1f} s, all acknowledged"
        + (f"; sealed {report.sealed} partitions" if report.sealed else "")
        + (f"; {report.oversized} left out" if report.oversized else "")
    )
