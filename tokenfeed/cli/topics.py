"""`tokenfeed topics`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import orjson
import typer
from rich.console import Console
from rich.table import Table

topics = typer.Typer(
    help="The topics of the feed.\n\n\b\nExamples:\n  tokenfeed topics create --dry-run\n  tokenfeed topics create",
    no_args_is_help=True,
)


@topics.callback()
def _group() -> None:
    """Keeps `create` a subcommand while it is the only one."""


@topics.command()
def create(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be created, touch nothing.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Create the topics that are missing, with the right partitions and configs, and check the others.

    Those of the plan in force, whatever the settings say of slots; `tokenfeed plan apply` makes the next plan's. --dry-run
    needs a broker too: replication depends on how many there are.

    \b
    Examples:
      tokenfeed topics create --dry-run
      TOKENFEED_GPU_WORKERS=8 tokenfeed topics create
    """
    from tokenfeed.changes import in_force
    from tokenfeed.settings import load_settings
    from tokenfeed.topics import create_topics, missing_topics

    settings = in_force(load_settings())
    specs = missing_topics(settings) if dry_run else create_topics(settings)
    if json:
        key = "planned" if dry_run else "created"
        typer.echo(orjson.dumps({key: [asdict(spec) for spec in specs]}).decode())
        return
    table = Table("topic", "partitions", "replication", "config", title="would create" if dry_run else "created")
    for spec in specs:
        config = " ".join(f"{name}={value}" for name, value in spec.config.items())
        table.add_row(spec.name, str(spec.partitions), str(spec.replication), config)
    Console().print(table if specs else "all topics exist already, with the right partition counts")
