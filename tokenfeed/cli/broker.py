"""`tokenfeed broker`."""

from __future__ import annotations

from typing import Annotated

import typer


def broker(
    port: Annotated[int, typer.Option(help="Port on 127.0.0.1.")] = 9092,
) -> None:
    """Run the embedded broker: Kafka's protocol, in memory, for trying things out.

    Example: tokenfeed broker --port 9092
    """
    from tokenfeed.broker import serve

    serve(port, announce=typer.echo)
