"""A worker of a version that writes another wire format."""

from __future__ import annotations

from dataclasses import replace

import app.feed
from app.factory import create_app
from tokenfeed.settings import load_settings

_plan_of = app.feed.plan_of
app.feed.plan_of = lambda *arguments: replace(_plan_of(*arguments), wire_version=0)
app = create_app(load_settings())  # type: ignore[assignment]
