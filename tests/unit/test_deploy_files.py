"""Deployment files say what the code says."""

from __future__ import annotations

import importlib
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import yaml

from tokenfeed import __version__
from tokenfeed.settings import Settings

ROOT = Path(__file__).parents[2]


def pins(path: str) -> dict[str, str]:
    return dict(re.findall(r"^([a-z0-9._-]+)==([^\s;\\]+)", (ROOT / path).read_text(), re.MULTILINE))


def compose() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    return loaded


def test_the_lock_has_every_pin_of_the_requirements() -> None:
    locked = pins("requirements.lock")
    wanted = pins("requirements.txt")
    assert len(wanted) > 20
    assert {name: locked.get(name) for name in wanted} == wanted


def test_the_requirements_have_what_the_package_needs() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    needed = [*project["dependencies"], *(one for extra in extras.values() for one in extra)]
    assert {re.split(r"[<>=]", one)[0] for one in needed} <= set(pins("requirements.txt"))


def test_the_procfile_names_an_app_that_exists() -> None:
    lines = dict(line.split(": ", 1) for line in (ROOT / "Procfile").read_text().splitlines())
    assert set(lines) == {"release", "worker"}
    (module,) = re.findall(r"-A (\S+)", lines["worker"])
    assert importlib.import_module(module).app


def test_compose_uses_settings_that_exist_and_binds_to_loopback() -> None:
    services = compose()["services"]
    known = {f"TOKENFEED_{name.upper()}" for name in Settings.model_fields} | {"KAFKA_BOOTSTRAP_SERVERS"}
    for name in ("topics", "worker"):
        assert set(services[name]["environment"]) <= known
        assert services[name]["read_only"] is True
        assert services[name]["image"] == f"tokenfeed:{__version__}"
    assert not {"container_name", "ports"} & set(services["worker"]), "workers scale"
    assert all(port.startswith("127.0.0.1:") for service in services.values() for port in service.get("ports", ()))
    assert services["worker"]["depends_on"] == {"topics": {"condition": "service_completed_successfully"}}
    assert services["topics"]["depends_on"] == {"kafka": {"condition": "service_healthy"}}


def test_the_image_runs_the_procfiles_worker_without_a_shell_and_without_root() -> None:
    text = (ROOT / "Dockerfile").read_text()
    (command,) = re.findall(r"^CMD (\[.*\])$", text, re.MULTILINE)
    worker = (ROOT / "Procfile").read_text().partition("worker: ")[2].split()
    assert yaml.safe_load(command) == worker
    assert re.findall(r"^USER (\d+)$", text, re.MULTILINE) == ["10001"]
    copied = set(re.findall(r"^COPY (\w+) \w+$", text, re.MULTILINE))
    assert copied == {"tokenfeed", "app", "agents"}
    assert all(f"!{name}" in (ROOT / ".dockerignore").read_text().splitlines() for name in copied)


def test_the_image_installs_the_versions_of_the_lock() -> None:
    text = (ROOT / "Dockerfile").read_text()
    (script,) = re.findall(r"sed -n '(.+)' requirements\.lock > constraints\.txt", text)
    constraints = subprocess.run(
        ["/usr/bin/env", "sed", "-n", script, str(ROOT / "requirements.lock")], capture_output=True, text=True, check=True
    ).stdout
    assert dict(re.findall(r"^([a-z0-9._-]+)==([^\s;\\]+)", constraints, re.MULTILINE)) == pins("requirements.lock")
    assert "--hash" not in constraints
    assert "pip install --no-cache-dir -c constraints.txt" in text
    assert "!requirements.lock" in (ROOT / ".dockerignore").read_text().splitlines()


def test_every_command_of_the_readme_exists() -> None:
    from typer.main import get_command

    from tokenfeed.cli import app

    text = (ROOT / "README.md").read_text()
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"\bmake ([a-z]+)\b`? ", text)) <= targets
    commands = set(get_command(app).commands)  # type: ignore[attr-defined]
    used = set(re.findall(r"^tokenfeed ([a-z]+)", text, re.MULTILINE)) | set(re.findall(r"`tokenfeed ([a-z]+)", text))
    assert used
    assert used <= commands
