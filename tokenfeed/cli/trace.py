"""`tokenfeed trace`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import orjson
import typer
from rich.console import Console
from rich.table import Table

from tokenfeed.errors import SettingsError

if TYPE_CHECKING:
    from tokenfeed.loader import Cursor
    from tokenfeed.plan import Plan
    from tokenfeed.tracing import TracedPiece, Tracer


def trace(
    step: Annotated[int | None, typer.Option(min=0, help="Step of a run, from 0.")] = None,
    world: Annotated[int, typer.Option(min=1, help="Ranks of the run (W).")] = 1,
    rank: Annotated[int | None, typer.Option(min=0, help="Only this rank's batches.")] = None,
    step_batches: Annotated[int | None, typer.Option(min=1, help="Batches a step (M), if not W.")] = None,
    begin: Annotated[int, typer.Option(min=0, help="Batch at which the run began: `next` of the state it was given.")] = 0,
    batch: Annotated[str | None, typer.Option(metavar="STREAM/NUMBER", help="One batch.")] = None,
    row: Annotated[int | None, typer.Option(min=0, help="Only this row.")] = None,
    source: Annotated[str | None, typer.Option(metavar="TOPIC/PARTITION/OFFSET[/INDEX]", help="One raw record.")] = None,
    id: Annotated[str | None, typer.Option(help="Documents of this id; reads all raw records.")] = None,  # noqa: A002
    state: Annotated[Path | None, typer.Option(help="JSON of a loader state before the step, to read less.")] = None,
    plan: Annotated[str | None, typer.Option(help="Plan id, where the feed has had several; else the newest.")] = None,
    text: Annotated[bool, typer.Option("--text", help="Show the text of each piece.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Say which documents a training step, a batch or a row holds, or where a document went.

    \b
    Examples:
      tokenfeed trace --step 1200 --world 8
      tokenfeed trace --step 1200 --world 8 --rank 3 --row 0 --text
      tokenfeed trace --batch 4/317
      tokenfeed trace --source raw/4/90210 --world 8
      tokenfeed trace --id article-17 --json
    """
    from tokenfeed.settings import load_settings
    from tokenfeed.tracing import Tracer

    if sum(value is not None for value in (step, batch, source, id)) != 1:
        raise SettingsError("give one of --step, --batch, --source and --id")
    settings = load_settings()
    per_step = step_batches or world
    console = Console(stderr=True)
    with console.status("reading", spinner="line") as status:
        tracer = Tracer(settings, plan, lambda what: status.update(what))
        try:
            if step is not None:
                pieces = _step(tracer, begin + step * per_step, per_step, world, rank, _cursor(state))
            elif batch is not None:
                pieces = tracer.batch(*_numbers(batch, "--batch", r"(\d+)/(\d+)"))
            else:
                pieces = _documents(tracer, source, id)
        finally:
            tracer.close()
    if row is not None and row >= tracer.plan.batch_size:
        raise SettingsError(f"--row {row}: a batch has rows 0 to {tracer.plan.batch_size - 1}")
    pieces = [piece for piece in pieces if row in (None, piece.row)]
    texts = _texts(settings, tracer.plan, pieces) if text else [None] * len(pieces)
    found = [_as_json(piece, begin, per_step, shown) for piece, shown in zip(pieces, texts, strict=True)]
    if json:
        typer.echo(orjson.dumps({"plan": tracer.plan.id, "pieces": found}).decode())
    else:
        _print(found, text)
    if not found:
        raise typer.Exit(1)


def _step(
    tracer: Tracer, start: int, per_step: int, world: int, rank: int | None, cursor: Cursor | None
) -> list[TracedPiece]:
    if per_step % world or not (rank is None or rank < world):
        raise SettingsError("--step-batches must be a multiple of --world, and --rank lie below it")
    pieces = tracer.numbers(start, start + per_step, cursor)
    return [piece for piece in pieces if rank is None or (piece.number or 0) % world == (start + rank) % world]


def _documents(tracer: Tracer, source: str | None, name: str | None) -> list[TracedPiece]:
    if name is not None:
        places = list(tracer.with_id(name))
        return [piece for topic, stream, offset, index in places for piece in tracer.document(topic, stream, offset, index)]
    match = re.fullmatch(r"(.+?)/(\d+)/(\d+)(?:/(\d+))?", source or "")
    if match is None or match[1] not in tracer.plan.sources or int(match[2]) >= tracer.plan.streams:
        raise SettingsError(
            f"--source {source}: give TOPIC/PARTITION/OFFSET of a raw topic ({', '.join(tracer.plan.sources)}; "
            f"partitions 0 to {tracer.plan.streams - 1})"
        )
    return tracer.document(match[1], int(match[2]), int(match[3]), None if match[4] is None else int(match[4]))


def _numbers(value: str, option: str, pattern: str) -> Iterator[int]:
    match = re.fullmatch(pattern, value)
    if match is None:
        raise SettingsError(f"{option} {value}: give STREAM/NUMBER, for instance 4/317")
    return map(int, match.groups())


def _cursor(state: Path | None) -> Cursor | None:
    from tokenfeed.loader import Cursor

    if state is None:
        return None
    try:
        return Cursor.from_state(orjson.loads(state.read_bytes()))
    except (OSError, orjson.JSONDecodeError) as error:
        raise SettingsError(f"--state {state}: {error}") from None


def _texts(settings: Any, plan: Plan, pieces: list[TracedPiece]) -> list[str | None]:
    from tokenfeed.planning import tokenizer_of

    tokenizer = tokenizer_of(settings)
    if tokenizer.fingerprint != plan.tokenizer:
        raise SettingsError(
            f"TOKENFEED_TOKENIZER={settings.tokenizer} has fingerprint {tokenizer.fingerprint[:12]}, plan {plan.id} has "
            f"{plan.tokenizer[:12]}: name the tokenizer that made the tokens, or leave out --text"
        )
    return [tokenizer.decode(piece.ids) for piece in pieces]


def _as_json(piece: TracedPiece, begin: int, per_step: int, text: str | None) -> dict[str, Any]:
    number = piece.number
    step = None if number is None or number < begin else (number - begin) // per_step
    found = asdict(replace(piece, ids=[])) | {"step": step, "partition": piece.stream}
    del found["ids"]
    return found if text is None else found | {"text": text}


def _print(pieces: list[dict[str, Any]], text: bool) -> None:
    table = Table("step", "batch", "row", "column", "document", "id", "tokens", *(["text"] if text else []))
    for piece in pieces:
        where = f"{piece['topic']}/{piece['stream']}/{piece['offset']}/{piece['index']}"
        table.add_row(
            "?" if piece["step"] is None else str(piece["step"]),
            f"{piece['stream']}/{piece['batch']}",
            str(piece["row"]),
            str(piece["column"]),
            where,
            "(removed by retention)" if piece["record_removed"] else piece["id"] or "",
            f"{piece['first']} to {piece['first'] + piece['length'] - 1}",
            *([piece["text"]] if text else []),
        )
    console = Console()
    console.print(
        table
        if pieces
        else "in no batch of this plan: behind the frontier, left out, in the dead letters (`tokenfeed audit`), never "
        "ingested, or of another plan (--plan; `tokenfeed plan show` lists them)"
    )
