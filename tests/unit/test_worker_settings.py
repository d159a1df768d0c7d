"""Faust gets its settings from Tokenfeed's, all of them, and tells no secret."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest
from faust.types.auth import AuthProtocol

from app.factory import create_app
from app.settings import credentials, faust_options
from tokenfeed.kafka import connection
from tokenfeed.settings import Settings

CANARY = "canary-password"
SASL: dict[str, Any] = {"sasl_username": "user", "sasl_password": CANARY}


def test_fausts_own_environment_variables_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BROKER_SESSION_TIMEOUT", "11")
    monkeypatch.setenv("WEB_PORT", "tcp://10.0.0.1:80")
    monkeypatch.setenv("APP_ENV_PREFIX", "X_")
    monkeypatch.setenv("X_BROKER_URL", "kafka://elsewhere:1")
    conf = create_app(Settings(bootstrap_servers="a:1,b:2")).conf
    assert conf.broker_session_timeout == 10
    assert conf.web_port == 6066
    assert [str(url) for url in conf.broker] == ["kafka://a:1", "kafka://b:2"]
    assert conf.stream_wait_empty is False


@pytest.mark.parametrize(
    ("protocol", "expected"),
    [
        ("PLAINTEXT", None),
        ("SSL", AuthProtocol.SSL),
        ("SASL_SSL", AuthProtocol.SASL_SSL),
        ("SASL_PLAINTEXT", AuthProtocol.SASL_PLAINTEXT),
    ],
)
def test_every_security_protocol_reaches_faust_and_librdkafka(protocol: Any, expected: AuthProtocol | None) -> None:
    sasl = SASL if protocol.startswith("SASL") else {}
    settings = Settings(security_protocol=protocol, allow_insecure_sasl=True, **sasl)
    made = credentials(settings)
    assert (made and made.protocol) == expected
    options = connection(settings)
    assert options["security.protocol"] == protocol
    assert options.get("sasl.password") == (CANARY if sasl else None)
    if sasl:
        assert (made.username, made.password, made.mechanism.value) == ("user", CANARY, "SCRAM-SHA-512")  # type: ignore[union-attr]


def test_no_secret_stands_in_what_a_worker_prints() -> None:
    environment = {
        **os.environ,
        "KAFKA_BOOTSTRAP_SERVERS": "127.0.0.1:1",
        "KAFKA_SECURITY_PROTOCOL": "SASL_PLAINTEXT",
        "KAFKA_SASL_USERNAME": "user",
        "KAFKA_SASL_PASSWORD": CANARY,
        "TOKENFEED_ALLOW_INSECURE_SASL": "true",
    }
    command = [sys.executable, "-m", "faust", "-A", "app.main", "worker", "-l", "debug", "--without-web"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == 1
    assert "no broker answers at 127.0.0.1:1" in done.stdout + done.stderr
    assert CANARY not in done.stdout + done.stderr
    assert CANARY not in repr(faust_options(Settings(security_protocol="SASL_SSL", **SASL)))


def test_a_worker_with_wrong_settings_says_all_of_it_and_stops() -> None:
    environment = {**os.environ, "TOKENFEED_BATCH_SIZE": "0", "TOKENFEED_SLOT": "3"}
    done = subprocess.run(
        [sys.executable, "-m", "faust", "-A", "app.main", "worker"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert "TOKENFEED_BATCH_SIZE" in done.stderr
    assert "TOKENFEED_SLOT" in done.stderr
