"""What makes it safe to fork a process that has Kafka clients, as PyTorch does for a loader's workers.

librdkafka's threads do not follow into the forked process. Where a client of the parent's is freed there, librdkafka waits
for them, and the process crashes. A client that is garbage, but in a cycle, is freed whenever Python collects garbage; so
everything that stands when a process is forked is left alone in the new one.
"""

from __future__ import annotations

import gc
import os


class _Collector:
    """Python's garbage collector, which must not run between a fork and the moment at which its garbage is frozen."""

    def __init__(self) -> None:
        self._on = True

    def pause(self) -> None:
        self._on = gc.isenabled()
        gc.disable()

    def resume(self) -> None:
        if self._on:
            gc.enable()

    def resume_without_what_stands(self) -> None:
        gc.freeze()
        self.resume()


def make_forks_safe() -> None:
    """Do so for every fork from now on. Call it once in a process."""
    collector = _Collector()
    os.register_at_fork(
        before=collector.pause,
        after_in_parent=collector.resume,
        after_in_child=collector.resume_without_what_stands,
    )
