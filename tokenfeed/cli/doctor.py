"""`tokenfeed doctor`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import orjson
import typer
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from tokenfeed.doctor import Check


def doctor(
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Print the effective settings, check everything they lead to, and say what to do about each fault.

    Exit code 1 if there is a fault. Secrets are never printed.

    \b
    Examples:
      tokenfeed doctor
      tokenfeed doctor --json
    """
    from tokenfeed.doctor import examine
    from tokenfeed.settings import field_name, load_settings

    settings = load_settings()
    checks = list(examine(settings))
    if json:
        found = [{"check": one.name, "state": _state(one), "found": one.found, "fault": one.fault} for one in checks]
        typer.echo(orjson.dumps({"settings": settings.public(), "checks": found}).decode())
    else:
        values = Table("setting", "value", title="settings")
        for field, value in settings.public().items():
            values.add_row(field_name(field), str(value))
        results = Table("check", "", "found", title="checks")
        for check in checks:
            results.add_row(check.name, _state(check), check.fault or check.found)
        Console().print(values, results)
    if any(check.fault for check in checks):
        raise typer.Exit(1)


def _state(check: Check) -> str:
    if not check.was_made:
        return "not checked"
    return "fault" if check.fault else "ok"
