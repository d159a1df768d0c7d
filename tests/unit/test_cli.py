"""The command says what is wrong in one message, tells by its exit code, and shows no secret."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tokenfeed import __version__, cli
from tokenfeed.audit.report import Report, StreamReport
from tokenfeed.cli.audit import _print
from tokenfeed.cli.ingest import ingest
from tokenfeed.ingest import IngestReport, ingest_documents
from tokenfeed.settings import Settings

CANARY = "canary-7f3a"
# What takes longer to import than `tokenfeed --help` may take in all.
HEAVY = ("aiokafka", "confluent_kafka", "faust", "numpy", "pydantic", "torch", "transformers")


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An environment without settings, in an empty folder."""
    for name in os.environ:
        if name.startswith(("TOKENFEED_", "KAFKA_")):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int | str | None:
    """Run the command in this process; return its exit code."""
    monkeypatch.setattr(sys, "argv", ["tokenfeed", *arguments])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    return ended.value.code


@pytest.mark.parametrize(
    "command",
    [[], ["broker"], ["doctor"], ["ingest"], ["topics"], ["topics", "create"], ["audit"], ["trace"]],
)
def test_every_command_explains_itself(
    command: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, *command, "--help") == 0
    assert "Usage: tokenfeed" in capsys.readouterr().out


def test_an_error_is_an_object_too_where_json_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TOKENFEED_SLOTS", "none")
    assert run(monkeypatch, "doctor", "--json") == 2
    printed = capsys.readouterr()
    assert json.loads(printed.out) == {"error": "SettingsError", "message": printed.err.removeprefix("tokenfeed: ").strip()}
    assert "TOKENFEED_SLOTS" in printed.err


def test_the_version_is_the_packages(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch, "--version") == 0
    assert capsys.readouterr().out == f"tokenfeed {__version__}\n"


def test_help_imports_nothing_heavy() -> None:
    code = f"import sys, tokenfeed.cli; print([name for name in {HEAVY} if name in sys.modules])"
    root = str(Path(cli.__file__).parents[2])
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=root)
    assert found.stdout == "[]\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["ingest"], "give a PATH"),
        (["ingest", "missing.txt"], "missing.txt: no such file or folder"),
        (["ingest", "--bundle", "0"], "--bundle"),
        (["ingest", "--seal", "--topic", "other"], "TOKENFEED_RAW_TOPICS: raw"),
        (["nonsense"], "nonsense"),
    ],
)
def test_wrong_usage_is_exit_code_2(
    arguments: list[str], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, *arguments) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("command", [["doctor"], ["topics", "create"], ["ingest", "--seal"]])
def test_wrong_settings_are_exit_code_2_and_all_named(
    command: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TOKENFEED_SEED", "x")
    monkeypatch.setenv("TOKENFEED_SEDE", "1")
    monkeypatch.setenv("KAFKA_SASL_PASSWORD", CANARY)
    assert run(monkeypatch, *command) == 2
    said = capsys.readouterr().err
    assert "TOKENFEED_SEED:" in said
    assert "TOKENFEED_SEDE is" in said
    assert CANARY not in said


def test_a_port_that_is_taken_is_said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert run(monkeypatch, "broker", "--port", port) == 2
    assert f"port {port}" in capsys.readouterr().err


def test_the_broker_runs_until_it_is_told_to_stop() -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = str(probe.getsockname()[1])
    command = [sys.executable, "-m", "tokenfeed", "broker", "--port", port]
    root = Path(cli.__file__).parents[2]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=root, env=os.environ | {"PYTHONUNBUFFERED": "1"}) as process:
        try:
            assert process.stdout is not None
            assert f"127.0.0.1:{port}".encode() in process.stdout.readline()
        finally:
            process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0


def test_what_the_command_takes_the_library_takes() -> None:
    """The CLI adds files and output; everything else is `ingest_documents`."""
    options = set(ingest.__annotations__) - {"paths", "json", "return"}
    assert options <= set(ingest_documents.__annotations__)
    assert Settings.model_fields.keys() & options == {"text_field", "id_field"}
    assert {"documents", "records", "bytes", "seconds", "sealed", "failed"} == set(IngestReport.__annotations__)


def test_the_audit_cuts_off_no_number_in_a_narrow_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    report = Report("plan", [StreamReport(0, documents=123_456_789, batched=123_456_789)], [1], [], remade=False)
    _print(report)
    shown = capsys.readouterr().out
    assert shown.count("123,456,789") == 4
    assert "doubled" in shown
    assert "…" not in shown
