"""`tokenfeed ingest`."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import orjson
import typer

if TYPE_CHECKING:
    from rich.progress import Progress

    from tokenfeed.ingest import IngestReport, Item, Refused, Source


_INTERRUPTED: Final = 130  # as shells report SIGINT


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

    Folders are searched for .txt, .md, .csv, .html, source code and other text (tokenfeed/ingest/files.py lists the
    suffixes); a file that is named is taken whatever it is called, as often as it is named.

    Returns when Kafka has acknowledged every record. What cannot be read, or is too large for
    TOKENFEED_MAX_MESSAGE_BYTES, is named, left out, keeps --seal from being done, and makes the exit code 1. A path
    that is not there or wrong settings make it 2, Ctrl-C 130.

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
    interrupted = _interruption()
    with _progress() as progress:
        report = ingest_documents(
            settings,
            _read(sources, record_limit(settings), progress, interrupted),
            topic=topic,
            text_field=text_field,
            id_field=id_field,
            bundle=bundle,
            rate=rate,
            seal=seal,
            refused=lambda message: typer.echo(f"tokenfeed: {message}", err=True),
        )
    typer.echo(orjson.dumps(asdict(report)).decode() if json else _sentence(report, seal))
    if interrupted.is_set():
        raise typer.Exit(_INTERRUPTED)
    if report.failed:
        raise typer.Exit(1)


def _interruption() -> threading.Event:
    """Set by the first Ctrl-C, so that what was sent is awaited and counted; the second ends the process."""
    interrupted = threading.Event()

    def handle(*_: object) -> None:
        interrupted.set()
        signal.signal(signal.SIGINT, signal.default_int_handler)

    signal.signal(signal.SIGINT, handle)
    return interrupted


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


def _read(sources: list[Source], limit: int, progress: Progress, interrupted: threading.Event) -> Iterator[Item | Refused]:
    from tokenfeed.ingest import Refused, read_source

    task = progress.add_task("ingest", total=sum(source.size for source in sources) or None, documents=0)
    documents = before = 0
    for source in sources:
        for item in read_source(source, limit):
            if interrupted.is_set():
                yield Refused("interrupted: what was sent is in the topic, and another run would send it again")
                return
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
