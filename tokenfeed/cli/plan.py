"""`tokenfeed plan`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import orjson
import typer
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from tokenfeed.editions import Edition
    from tokenfeed.plan import Plan
    from tokenfeed.settings import Settings

_DIFFERENT = 3  # 1 and 2 are failures

plan = typer.Typer(
    help="The plan of the feed: what decides its content, and changing it.\n\n\b\nExamples:\n  tokenfeed plan show\n"
    "  TOKENFEED_SEQUENCE_LENGTH=4096 tokenfeed plan diff\n  TOKENFEED_SEQUENCE_LENGTH=4096 tokenfeed plan apply",
    no_args_is_help=True,
)


@plan.command()
def show(
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Print the plans that the feed has had, in order; the last is in force.

    \b
    Examples:
      tokenfeed plan show
      tokenfeed plan show --json
    """
    from tokenfeed.settings import load_settings

    settings = load_settings()
    found = _editions(settings)
    if json:
        editions = [_as_json(settings, edition) for edition in found]
        typer.echo(orjson.dumps({"in_force": found[-1].plan.id, "editions": editions}).decode())
        return
    table = Table("field", *(f"edition {edition.number}" for edition in found))
    table.add_row("plan id", *(edition.plan.id for edition in found))
    table.add_row("batches topic", *(edition.topic(settings.batches_topic) for edition in found))
    table.add_section()
    values = [_fields(edition.plan) for edition in found]
    for name in values[-1]:
        table.add_row(name, *(str(fields.get(name)) for fields in values))
    Console().print(table)


@plan.command()
def diff(
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Compare the plan that the settings make with the one in force.

    Exit code 0 if they are the same, 3 if they differ.

    \b
    Examples:
      tokenfeed plan diff
      TOKENFEED_SEQUENCE_LENGTH=4096 tokenfeed plan diff
    """
    from tokenfeed.settings import load_settings

    settings = load_settings()
    in_force = _editions(settings)[-1].plan
    ours = _plan(settings)
    before, after = _fields(in_force), _fields(ours)
    changed = {name: (before[name], after[name]) for name in after if before[name] != after[name]}
    if json:
        differences = {name: {"in_force": old, "settings": new} for name, (old, new) in changed.items()}
        typer.echo(orjson.dumps({"in_force": in_force.id, "settings": ours.id, "differences": differences}).decode())
    elif changed:
        table = Table("field", f"in force: {in_force.id}", f"settings: {ours.id}")
        for name, (old, new) in changed.items():
            table.add_row(name, str(old), str(new))
        Console().print(table)
    else:
        typer.echo(f"the settings make plan {ours.id}, which is in force")
    if changed:
        raise typer.Exit(_DIFFERENT)


@plan.command()
def apply(
    wait: Annotated[float, typer.Option(min=0, help="Seconds to wait for the streams to end.")] = 300.0,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Let the feed go on under the plan that the settings make.

    The workers that run see it, cut what they hold as the last window of each stream, and end the streams. Then topics are
    made for the new edition; start the workers anew with the new settings. Every document stands in one edition.
    Trainers read on with `follow=True`, or stop at the end of the old plan. Interrupted, it may be run again.

    \b
    Examples:
      TOKENFEED_SEQUENCE_LENGTH=4096 tokenfeed plan apply
      TOKENFEED_TOKENIZER=/models/new tokenfeed plan apply --wait 60 --json
    """
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    from tokenfeed.changes import apply_plan
    from tokenfeed.settings import load_settings

    settings = load_settings()
    _editions(settings)  # says at once that there is no broker or no feed; loading a tokenizer takes seconds
    ours = _plan(settings)
    console = Console(stderr=True)
    columns = TextColumn("streams that have ended"), BarColumn(), MofNCompleteColumn()
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task("streams", total=None)
        edition = apply_plan(settings, ours, wait, lambda ended, of: progress.update(task, completed=ended, total=of))
    if json:
        typer.echo(orjson.dumps(_as_json(settings, edition)).decode())
    else:
        typer.echo(
            f"plan {edition.plan.id} is in force: edition {edition.number}, topic {edition.topic(settings.batches_topic)}. "
            "Start the workers with these settings"
        )


def _editions(settings: Settings) -> list[Edition]:
    from tokenfeed.kafka import connection
    from tokenfeed.planning import existing_editions

    return existing_editions(connection(settings), settings.plan_topic)


def _plan(settings: Settings) -> Plan:
    from tokenfeed.planning import plan_of, tokenizer_of

    return plan_of(settings, tokenizer_of(settings))


def _fields(plan: Plan) -> dict[str, Any]:
    fields: dict[str, Any] = orjson.loads(plan.to_json())
    return fields


def _as_json(settings: Settings, edition: Edition) -> dict[str, Any]:
    names = {name: edition.topic(getattr(settings, name)) for name in ("batches_topic", "ledger_topic", "dead_topic")}
    return {"edition": edition.number, "plan": edition.plan.id, **names, "fields": _fields(edition.plan)}
