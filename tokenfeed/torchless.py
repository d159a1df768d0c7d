"""Processes that load a tokenizer and train nothing."""

from __future__ import annotations

import os
import sys


def hide_torch() -> None:
    """Keep transformers from importing torch, for seconds and hundreds of megabytes that a tokenizer does not need.

    It holds for the whole process, so nothing that a trainer imports may call this.
    """
    sys.modules.setdefault("torch", None)  # type: ignore[arg-type]
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")  # it would say that torch is not installed
