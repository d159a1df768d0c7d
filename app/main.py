"""The app that `faust -A app.main worker` runs."""

from __future__ import annotations

import sys

from app.factory import create_app
from tokenfeed.errors import SettingsError
from tokenfeed.settings import load_settings

try:
    app = create_app(load_settings())
except SettingsError as error:
    sys.exit(f"settings: {error}")
