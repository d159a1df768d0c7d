"""`tokenfeed audit`."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import orjson
import typer
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from tokenfeed.audit import Report, StreamReport
    from tokenfeed.plan import Plan
    from tokenfeed.settings import Settings
    from tokenfeed.tokenizing import Tokenizer


def audit(
    until: Annotated[
        list[str] | None, typer.Option(metavar="TOPIC/PARTITION=OFFSET", help="Leave out what lies behind; repeatable.")
    ] = None,
    content: Annotated[
        bool, typer.Option("--content", help="Make every window anew with the tokenizer, and compare all bytes.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Prove that every accepted document stands in exactly one place: batches, left out, or dead letters.

    Reads raw records, ledger, batches and dead letters as they are now, in bounded memory; workers may go on meanwhile.
    Exit code 0 only if nothing is lost, doubled, altered or missing. --content says which plans need another tokenizer.

    \b
    pending   documents that are not in an acknowledged window yet
    lost      documents that are nowhere, or not in full
    doubled   documents of which a part stands in two places
    altered   batches that came twice with other bytes, or are not what they must be
    gaps      batches that are missing
    repeats   messages that readers pass over; no fault

    \b
    Examples:
      tokenfeed audit
      tokenfeed audit --content --json
      tokenfeed audit --until raw/0=120000 --until raw/1=118500
    """
    from tokenfeed.audit import audit_feed
    from tokenfeed.changes import begun_editions
    from tokenfeed.kafka import connection
    from tokenfeed.planning import existing_editions
    from tokenfeed.settings import load_settings

    settings = load_settings()
    encoder_of = _encoders(settings) if content else None
    limits = _limits(settings, until or [])
    existing = existing_editions(connection(settings), settings.plan_topic)
    begun = begun_editions(settings)
    reports: list[Report] = []
    with _progress() as progress:
        for edition in begun:
            task = progress.add_task(f"edition {edition.number}", total=None)
            reports.append(
                audit_feed(
                    settings,
                    edition=edition,
                    encoder_of=encoder_of,
                    until=limits,
                    progress=partial(_show, progress, task),
                )
            )
    if json:
        typer.echo(orjson.dumps(_as_json(reports)).decode())
    else:
        for report in reports:
            _print(report)
    for edition in existing[len(begun) :]:
        typer.echo(
            f"plan {edition.plan.id}: nothing is made under it yet, for the streams have not ended before it", err=True
        )
    for report in reports:
        if content and not report.remade:
            typer.echo(f"plan {report.plan}: content was NOT compared, for the settings' tokenizer is another", err=True)
    if not all(report.ok for report in reports):
        raise typer.Exit(1)


def _show(progress: Any, task: Any, done: int, total: int) -> None:
    progress.update(task, completed=done, total=total)


def _progress() -> Any:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = TextColumn("messages"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    return Progress(*columns, console=console, disable=not console.is_terminal)


def _encoders(settings: Settings) -> Callable[[Plan], Tokenizer | None]:
    """The settings' tokenizer for the plans that were made with it and its rules; that of others is not at hand."""
    from tokenfeed.planning import tokenizer_of

    tokenizer = tokenizer_of(settings)
    ours = tokenizer.fingerprint, settings.bos, settings.eos
    return lambda plan: tokenizer if (plan.tokenizer, plan.bos, plan.eos) == ours else None


def _limits(settings: Settings, limits: list[str]) -> dict[tuple[int, int], int]:
    from tokenfeed.errors import SettingsError

    found: dict[tuple[int, int], int] = {}
    for limit in limits:
        match = re.fullmatch(r"(.+)/(\d+)=(\d+)", limit)
        if match is None or match[1] not in settings.raw_topics or int(match[2]) >= settings.stream_count:
            raise SettingsError(
                f"--until {limit}: give TOPIC/PARTITION=OFFSET of a raw topic ({', '.join(settings.raw_topics)}; "
                f"partitions 0 to {settings.stream_count - 1})"
            )
        found[settings.raw_topics.index(match[1]), int(match[2])] = int(match[3])
    return found


_TABLE_WIDTH = 140  # a narrow terminal breaks lines, but no number is cut off
_COUNTS = (
    "documents",
    "batched",
    "left out",
    "dead",
    "pending",
    "lost",
    "doubled",
    "altered",
    "gaps",
    "repeats",
    "batches",
    "tokens",
)


def _counts(stream: StreamReport) -> dict[str, int]:
    return {
        "documents": stream.documents,
        "batched": stream.batched,
        "left out": stream.filtered.total(),
        "dead": stream.dead,
        "pending": stream.pending,
        "lost": stream.lost,
        "doubled": stream.doubled,
        "altered": stream.altered,
        "gaps": len(stream.gaps),
        "repeats": stream.re_emitted + stream.early,
        "batches": stream.batches,
        "tokens": stream.tokens,
    }


def _totals(report: Report) -> dict[str, int]:
    return {name: sum(_counts(stream)[name] for stream in report.streams) for name in _COUNTS}


def _as_json(reports: list[Report]) -> dict[str, Any]:
    return {
        "ok": all(report.ok for report in reports),
        **_named_totals(reports),
        "editions": [_edition(number, report) for number, report in enumerate(reports, 1)],
    }


def _edition(number: int, report: Report) -> dict[str, Any]:
    streams = [
        asdict(stream)
        | {
            "filtered": dict(stream.filtered),
            "ok": stream.ok,
            "lost_named": [asdict(origin) for origin in stream.lost_named],
            "doubled_named": [asdict(origin) for origin in stream.doubled_named],
        }
        for stream in report.streams
    ]
    return {
        "edition": number,
        "plan": report.plan,
        "ok": report.ok,
        **_named_totals([report]),
        "unsealed": sum(not stream.sealed for stream in report.streams),
        "remade": report.remade,
        "slot_spread": report.spread,
        "foreign": report.foreign,
        "streams": streams,
    }


def _named_totals(reports: list[Report]) -> dict[str, int]:
    return {name.replace(" ", "_"): sum(_totals(report)[name] for report in reports) for name in _COUNTS}


def _print(report: Report) -> None:
    table = Table("stream", *_COUNTS, "sealed", title=f"audit of plan {report.plan}")
    for stream in report.streams:
        table.add_row(str(stream.stream), *(f"{n:,}" for n in _counts(stream).values()), "yes" if stream.sealed else "no")
    table.add_section()
    table.add_row("all", *(f"{n:,}" for n in _totals(report).values()), "")
    console = Console(width=max(Console().width, _TABLE_WIDTH))
    console.print(table)
    for line in _findings(report):
        console.print(line, markup=False, soft_wrap=True)


def _findings(report: Report) -> list[str]:
    lines = [f"foreign message: {message}" for message in report.foreign[:10]]
    for stream in report.streams:
        at = f"stream {stream.stream}"
        lines += [f"{at}: {stream.fault}"] if stream.fault else []
        lines += [f"{at}: batches missing: {', '.join(map(str, stream.gaps[:20]))}"] if stream.gaps else []
        for name, origins in (("lost", stream.lost_named), ("doubled", stream.doubled_named)):
            named = ", ".join(f"source {o.source} offset {o.offset} index {o.index}" for o in origins[:10])
            lines += [f"{at}: {name}: {named}"] if origins else []
        if stream.token_faults:
            lines.append(f"{at}: tokens do not add up in windows {', '.join(map(str, stream.token_faults[:20]))}")
        if stream.unverified_windows:
            lines.append(
                f"{at}: {stream.unverified_windows} windows could not be compared: retention has removed their records"
            )
    verdict = "every accepted document stands in exactly one place" if report.ok else "the feed is NOT sound"
    if report.remade:
        verdict += ", and every batch has the bytes that its documents make"
    return [*lines, f"slots are level to within {report.spread} batches; {verdict}"]
