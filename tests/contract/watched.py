"""Runs a module, notes every batch its loader is given, and kills itself after so many: `watched LOG STOP MODULE ARGS`."""

from __future__ import annotations

import os
import runpy
import signal
import sys
from typing import Any

from tokenfeed.loader.reader import FeedReader

if __name__ == "__main__":
    log = open(sys.argv[1], "a")  # noqa: SIM115, PTH123
    stop = int(sys.argv[2])
    given = 0
    plain = FeedReader.__next__

    def watched(reader: FeedReader) -> Any:
        global given
        if given == stop:
            os.kill(os.getpid(), signal.SIGKILL)
        delivered = plain(reader)
        given += 1
        print(delivered.number, "batch" if delivered.batch else "padding", file=log, flush=True)
        return delivered

    FeedReader.__next__ = watched  # type: ignore[method-assign]
    del sys.argv[:3]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
