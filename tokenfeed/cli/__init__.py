"""The `tokenfeed` command.

Exit codes: 0 all is well, 1 something failed or a check found a fault, 2 wrong usage or wrong settings.
"""

from __future__ import annotations

import sys
from typing import Annotated, Final

import orjson
import typer

from tokenfeed import __version__
from tokenfeed.cli.audit import audit
from tokenfeed.cli.broker import broker
from tokenfeed.cli.doctor import doctor
from tokenfeed.cli.ingest import ingest
from tokenfeed.cli.plan import plan
from tokenfeed.cli.topics import topics
from tokenfeed.cli.trace import trace
from tokenfeed.errors import SettingsError, TokenfeedError
from tokenfeed.torchless import hide_torch

_FAILED: Final = 1
_MISUSED: Final = 2

app = typer.Typer(
    name="tokenfeed",
    help="Keep GPUs fed from a live text stream on Kafka.",
    epilog="Settings come from TOKENFEED_* and KAFKA_* variables, .env, or the file TOKENFEED_CONFIG_FILE names; "
    "`tokenfeed doctor` shows and checks them.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(broker)
app.add_typer(topics, name="topics")
app.command()(ingest)
app.command()(doctor)
app.add_typer(plan, name="plan")
app.command()(audit)
app.command()(trace)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"tokenfeed {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None: ...


def main() -> None:
    """Run the command; say every error of ours in one message, without a traceback; with --json as an object too."""
    hide_torch()
    try:
        app(prog_name="tokenfeed")
    except TokenfeedError as error:
        if "--json" in sys.argv:
            print(orjson.dumps({"error": type(error).__name__, "message": str(error)}).decode())
        print(f"tokenfeed: {error}", file=sys.stderr)
        sys.exit(_MISUSED if isinstance(error, SettingsError) else _FAILED)
    except ModuleNotFoundError as error:
        print(
            f"tokenfeed: this needs {error.name}, which is not installed: pip install 'PATH/TO/CHECKOUT[worker]' brings "
            "what workers, doctor, plan and tokenizers need",
            file=sys.stderr,
        )
        sys.exit(_FAILED)
