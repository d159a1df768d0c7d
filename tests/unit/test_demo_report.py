"""The demo says no when something is lost, doubled or altered, keeps to itself, and leaves nothing running."""

from __future__ import annotations

import gzip
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
import zstandard

from examples.demo import driver
from examples.demo.corpus import digest, texts
from examples.demo.report import Report, audit
from examples.demo.trainer import Account
from tokenfeed.batches import Batch
from tokenfeed.loader.samples import sample

EXPECTED = Counter({digest([1, 2, 3, 9]): 1, digest([4, 9]): 2})
# stream, offset, index, first token, length
PIECES = [((0, 0, 0, 0, 3), [1, 2, 3]), ((0, 0, 0, 3, 1), [9]), ((1, 0, 0, 0, 2), [4, 9]), ((1, 1, 0, 0, 2), [4, 9])]


def report_of(pieces: list[tuple[tuple[int, ...], list[int]]], folder: Path) -> Report:
    origins = np.array([origin for origin, _ in pieces])
    ids = np.array([token for _, tokens in pieces for token in tokens], dtype=np.int32)
    np.savez(folder / "rank.npz", origins=origins, ids=ids, batches=1, losses=np.linspace(5, 4, 40))
    return audit([folder / "rank.npz"], EXPECTED, 8, 16)


def test_a_whole_feed_passes_in_whatever_order(tmp_path: Path) -> None:
    report = report_of(PIECES[::-1], tmp_path)
    assert report.ok
    assert (report.documents, report.tokens, report.lost, report.duplicated, report.fill) == (3, 8, 0, 0, 0.5)


@pytest.mark.parametrize(
    ("pieces", "lost", "duplicated"),
    [
        (PIECES[:-1], 1, 0),
        (PIECES[1:], 1, 1),  # half a document: the whole one is lost, and what came is none of the corpus
        ([*PIECES, PIECES[0]], 1, 2),
        ([*PIECES[:-1], ((1, 1, 0, 0, 2), [5, 9])], 1, 1),
    ],
)
def test_a_feed_that_is_not_whole_fails(
    pieces: list[tuple[tuple[int, ...], list[int]]], lost: int, duplicated: int, tmp_path: Path
) -> None:
    report = report_of(pieces, tmp_path)
    assert not report.ok
    assert (report.lost, report.duplicated) == (lost, duplicated)


def test_a_loss_that_does_not_fall_fails() -> None:
    values = {"documents": 1, "tokens": 1, "tokens_expected": 1, "batches": 1, "fill": 1.0, "steps": 2}
    assert Report(**values, loss_first=2.0, loss_last=1.0, lost=0, duplicated=0).ok
    assert not Report(**values, loss_first=1.0, loss_last=1.0, lost=0, duplicated=0).ok


def test_an_account_has_the_tokens_that_the_model_was_given(tmp_path: Path) -> None:
    batch = Batch(
        plan="p",
        stream=3,
        number=0,
        window=0,
        input_ids=np.array([[1, 2, 3, 9, 0], [4, 9, 4, 9, 0]], dtype=np.int32),
        piece_lens=np.array([4, 2, 2], dtype=np.int32),
        row_splits=np.array([0, 1, 3], dtype=np.int32),
        origins=np.array([[0, 0, 0, 0], [1, 0, 0, 0], [1, 1, 0, 0]]),
    )
    given = {name: torch.from_numpy(array) for name, array in sample(batch).items()}
    account = Account()
    account.add(batch, given)
    account.save(tmp_path / "whole.npz", losses=np.linspace(5, 4, 40))
    assert audit([tmp_path / "whole.npz"], EXPECTED, 8, 10).ok
    given["input_ids"][1, 0] = 7
    account = Account()
    account.add(batch, given)
    account.save(tmp_path / "altered.npz", losses=np.linspace(5, 4, 40))
    assert not audit([tmp_path / "altered.npz"], EXPECTED, 8, 10).ok


def test_the_reference_reads_every_kind_of_file(tmp_path: Path) -> None:
    lines = b'{"text": "a"}\r\n\n{"text": ""}\n{"text": 1}\nno json\n[1]\n{"other": "x"}\n{"text": "b"}'
    (tmp_path / "1.jsonl").write_bytes(lines)
    (tmp_path / "2.jsonl.gz").write_bytes(gzip.compress(b'{"text": "c"}\n') + gzip.compress(b'{"text": "d"}\n'))
    frames = [zstandard.compress(part) for part in (b"whole ", b"file\r\n")]
    (tmp_path / "3.txt.zst").write_bytes(b"".join(frames))
    (tmp_path / "4.py").write_bytes(b"\xff")
    (tmp_path / "5.py").write_bytes(b"")
    assert list(texts([tmp_path])) == ["a", "b", "c", "d", "whole file\r\n"]


def test_settings_of_another_feed_do_not_reach_the_demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAFKA_BOOTSTRAP_SERVERS", "broker.example:9092")
    monkeypatch.setenv("kafka_security_protocol", "SASL_SSL")
    monkeypatch.setenv("TOKENFEED_EOS", "none")
    environment = driver.environment_of(tmp_path, "127.0.0.1:1")
    ours = {name: value for name, value in environment.items() if name.upper().startswith(("KAFKA_", "TOKENFEED_"))}
    assert ours == driver.SETTINGS | {
        "KAFKA_BOOTSTRAP_SERVERS": "127.0.0.1:1",
        "TOKENFEED_DATA_DIR": str(tmp_path / "data"),
    }


def test_no_part_of_the_demo_runs_where_a_dotenv_could_stand(tmp_path: Path) -> None:
    environment = driver.environment_of(tmp_path, "127.0.0.1:1")
    show = [sys.executable, "-c", "import os; print(os.getcwd())"]
    with driver.child(show, environment, stdout=subprocess.PIPE, text=True) as process:
        output, _ = process.communicate()
    assert Path(output.strip()) == tmp_path.resolve()


def test_what_a_part_started_in_a_group_of_its_own_is_stopped_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "_STOP_SECONDS", 0.2)
    script = (
        "import signal, subprocess, sys, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'], start_new_session=True)\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    environment = driver.environment_of(tmp_path, "127.0.0.1:1")
    with driver.child([sys.executable, "-c", script], environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        grandchild = psutil.Process(int(process.stdout.readline()))
    _, alive = psutil.wait_procs([grandchild], timeout=5)
    assert not [one for one in alive if one.status() != psutil.STATUS_ZOMBIE]
