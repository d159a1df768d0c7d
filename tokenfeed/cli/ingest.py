"""`tokenfeed ingest`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import orjson
import typer

if TYPE_CHECKING:
    from rich.progress import Progress

    from tokenfeed.ingest import IngestReport, Item, Refused, Source


def ingest(
    paths: Annotated[list[Path] | None, typer.Argument(help="Files, folders, or - for JSONL on stdin.")] = None,
    text_field: Annotated[str | None, typer.Option(help="Field of the JSON with the text, if not the feed's.")] = None,
    id_field: Annotated[str | None, typer.Option(help="Field of the JSON with the id, if not the feed's.")] = None,
    bundle: Annotated[int, typer.Option(min=1, help="Documents a record.")] = 1,
    seal: Annotated[bool, typer.Option("--seal", help="End the feed behind these documents.")] = False,
    rate: Annotated[float | None, typer.Option(min=0.001, help="Documents a second at most.")] = None,
    topic: Annotated[str | None, typer.Option(help="Raw topic, if the feed has several.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object at the end.")] = False,
) -> None:
    """Send documents to the raw topic: text files whole, .jsonl line by line; .gz and .zst of both.

    Returns when Kafka has acknowledged every record. What cannot be read, or is too large for
    TOKENFEED_MAX_MESSAGE_BYTES, is named, left out, keeps --seal from being done, and makes the exit code 1.

    \b
    Examples:
      tokenfeed ingest corpus/ --bundle 64
      tokenfeed ingest pile.jsonl.zst --text-field content --seal
      zcat more.gz | tokenfeed ingest -
      tokenfeed ingest --seal
    """
    from tokenfeed.errors import SettingsError
    from tokenfeed.ingest import expand, ingest_documents
    from tokenfeed.ingest.records import record_limit
    from tokenfeed.settings import load_settings

    settings = load_settings()
    if not paths and not seal:
        raise SettingsError("nothing to do: give a PATH, or --seal to end the feed")
    sources = expand(paths or [])
    with _progress() as progress:
        report = ingest_documents(
            settings,
            _read(sources, record_limit(settings), progress),
            topic=topic,
            text_field=text_field,
            id_field=id_field,
            bundle=bundle,
            rate=rate,
            seal=seal,
            refused=lambda message: typer.echo(f"tokenfeed: {message}", err=True),
        )
    typer.echo(orjson.dumps(asdict(report)).decode() if json else _sentence(report, seal))
    if report.failed:
        raise typer.Exit(1)


def _progress() -> Progress:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    console = Console(stderr=True)
    return Progress(
        TextColumn("{task.fields[documents]} documents"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,
    )


def _read(sources: list[Source], limit: int, progress: Progress) -> Iterator[Item | Refused]:
    from tokenfeed.ingest import Refused, read_source

    task = progress.add_task("ingest", total=sum(source.size for source in sources) or None, documents=0)
    documents = before = 0
    for source in sources:
        for item in read_source(source, limit):
            if not progress.disable and not isinstance(item, Refused):
                documents += 1
                progress.update(task, completed=before + item.read, documents=documents)
            yield item
        before += source.size


def _sentence(report: IngestReport, seal: bool) -> str:
    text = f"{report.documents} documents in {report.records} records, {report.bytes} bytes, {report.seconds:.1f} s"
    text += ", all acknowledged"
    if seal and not report.failed:
        text += f"; sealed {report.sealed} partitions" if report.sealed else "; sealed already"
    if report.failed:
        text += f"; {report.failed} left out"
        text += ", so nothing was sealed: `tokenfeed ingest --seal` does it all the same" if seal else ""
    return text
