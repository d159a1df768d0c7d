"""Workers that are killed or stopped at any point, and more of them and fewer."""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest

from tests.chaos.harness import Outcome, Trial, now, struck_at
from tests.service import wait_until

Sound = Callable[[Outcome], None]
MakeTrial = Callable[..., Trial]

STRUCK = "tests.chaos.worker"
POINTS = ("before_cut", "after_cut", "mid_emission", "before_done", "after_done", "rebalance")


def chaos(*values: object) -> object:
    """A case that `make chaos` runs and `make test` does not."""
    return pytest.param(*values, marks=pytest.mark.chaos)


@pytest.mark.parametrize(
    ("point", "window"),
    [("mid_emission", 2), *(chaos(point, 1) for point in POINTS), *(chaos(point, 4) for point in POINTS[:-1])],
)
def test_a_worker_that_is_killed_at_a_point(trial: MakeTrial, sound: Sound, point: str, window: int) -> None:
    feed = trial()
    struck = feed.start_worker(STRUCK, **feed.strike(point, window, "SIGKILL"))
    with feed.produced():
        at = wait_until(lambda: struck_at(struck.log), f"the worker to reach {point}", 60)
        assert struck.process.wait(10) == -signal.SIGKILL
        feed.start_worker()
        feed.wait_for_progress(at)
    sound(feed.finish(f"kill -9 at {point} of window {window}", at))


@pytest.mark.parametrize("point", ["after_cut", *map(chaos, ("mid_emission", "before_done", "before_cut"))])
def test_a_worker_that_is_stopped_at_a_point_and_goes_on_as_a_zombie(trial: MakeTrial, sound: Sound, point: str) -> None:
    feed = trial()
    zombie = feed.start_worker(STRUCK, **feed.strike(point, 2, "SIGSTOP"))
    with feed.produced():
        at = wait_until(lambda: struck_at(zombie.log), f"the worker to reach {point}", 60)
        feed.start_worker()
        feed.wait_for_progress(at)
        zombie.process.send_signal(signal.SIGCONT)
        feed.wait_for_progress(now())
    sound(feed.finish(f"SIGSTOP at {point} longer than the session timeout, then SIGCONT", at))


@pytest.mark.chaos
def test_two_zombies_at_once(trial: MakeTrial, sound: Sound) -> None:
    feed = trial()
    zombies = [feed.start_worker(STRUCK, **feed.strike(point, 2, "SIGSTOP")) for point in ("mid_emission", "after_cut")]
    with feed.produced():
        at = max(wait_until(lambda log=log: struck_at(log), "the worker to stop", 60) for log in [z.log for z in zombies])
        feed.start_worker()
        feed.wait_for_progress(at)
        for zombie in zombies:
            zombie.process.send_signal(signal.SIGCONT)
        feed.wait_for_progress(now())
    sound(feed.finish("two zombies at once", at))


@pytest.mark.chaos
def test_sigterm(trial: MakeTrial, sound: Sound) -> None:
    feed = trial()
    first, _ = feed.start_worker(), feed.start_worker()
    with feed.produced():
        feed.wait_for_progress(now())
        at = now()
        assert first.stop() < 5
        feed.wait_for_progress(at)
    sound(feed.finish("SIGTERM", at))


@pytest.mark.chaos
def test_a_worker_of_another_version_changes_nothing(trial: MakeTrial, sound: Sound) -> None:
    feed = trial()
    feed.start_worker()
    with feed.produced():
        feed.wait_for_progress(now())
        at = now()
        other = feed.start_worker("tests.chaos.other_version")
        assert other.process.wait(60) == 1
        assert "wire_version: 0 here, 1 there" in other.log.read_text()
        feed.wait_for_progress(at)
    sound(feed.finish("a worker of another version", at))


@pytest.mark.chaos
@pytest.mark.timeout(400)
def test_one_worker_becomes_four_then_two_then_one(trial: MakeTrial, sound: Sound) -> None:
    feed = trial()  # three partitions: of four workers one has none
    workers = [feed.start_worker()]
    with feed.produced():
        feed.wait_for_progress(now())
        at = now()
        for count in (4, 2, 1):
            workers += [feed.start_worker() for _ in range(count - len(workers))]
            while len(workers) > count:
                workers.pop(0).stop()
            feed.wait_for_progress(now())
    sound(feed.finish("1 -> 4 -> 2 -> 1 workers", at))
