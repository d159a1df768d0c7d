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
        self._forks = 0  # threads may fork at the same time

    def pause(self) -> None:
        if not self._forks:
            self._on = gc.isenabled()
        self._forks += 1
        gc.disable()

    def resume(self) -> None:
        self._forks -= 1
        if self._on and not self._forks:
            gc.enable()

    def resume_without_what_stands(self) -> None:
        gc.freeze()
        self._forks = 1  # the other threads are not here
        self.resume()


def make_forks_safe() -> None:
    """Do so for every fork from now on. Call it once in a process."""
    collector = _Collector()
    os.register_at_fork(
        before=collector.pause,
        after_in_parent=collector.resume,
        after_in_child=collector.resume_without_what_stands,
    )
