"""Settings come from where they are said to come from, and everything wrong with them is said at once."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tokenfeed.errors import SettingsError
from tokenfeed.settings import CONFIG_FILE, Settings, field_name, load_settings

CANARY = "canary-7f3a"


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An environment without settings, in an empty folder."""
    for name in os.environ:
        if name.startswith(("TOKENFEED_", "KAFKA_")):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


def toml(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    Path("feed.toml").write_text(text)
    monkeypatch.setenv(CONFIG_FILE, "feed.toml")


def test_the_strongest_source_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    assert load_settings().seed == 0
    toml(monkeypatch, "seed = 1")
    assert load_settings().seed == 1
    Path(".env").write_text("TOKENFEED_SEED=2")
    assert load_settings().seed == 2
    monkeypatch.setenv("TOKENFEED_SEED", "3")
    assert load_settings().seed == 3
    assert load_settings(seed=4).seed == 4


def test_the_strongest_source_wins_under_any_of_a_settings_names(monkeypatch: pytest.MonkeyPatch) -> None:
    toml(monkeypatch, 'bootstrap_servers = "toml:1"')
    assert load_settings().bootstrap_servers == "toml:1"
    Path(".env").write_text("KAFKA_BOOTSTRAP_SERVERS=dotenv:1")
    assert load_settings().bootstrap_servers == "dotenv:1"
    Path(".env").write_text("TOKENFEED_BOOTSTRAP_SERVERS=dotenv:1")
    monkeypatch.setenv("KAFKA_BOOTSTRAP_SERVERS", "kafka:1")
    assert load_settings().bootstrap_servers == "kafka:1"
    monkeypatch.setenv("TOKENFEED_BOOTSTRAP_SERVERS", "tokenfeed:1")
    assert load_settings().bootstrap_servers == "tokenfeed:1"
    assert load_settings(bootstrap_servers="argument:1").bootstrap_servers == "argument:1"


CONNECTION = [name for name, field in Settings.model_fields.items() if field.validation_alias]


def test_the_connection_is_what_answers_to_kafka_names() -> None:
    assert {name.partition("_")[0] for name in CONNECTION} == {"bootstrap", "security", "sasl", "ssl"}


@pytest.mark.parametrize("name", CONNECTION)
def test_a_bare_name_in_the_environment_is_not_a_setting(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = load_settings()
    monkeypatch.setenv(name.upper(), "SSL")
    assert load_settings() == before


@pytest.mark.parametrize("text", ["a,b", "a, b", '["a", "b"]'])
def test_raw_topics_are_a_list(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKENFEED_RAW_TOPICS", text)
    assert load_settings().raw_topics == ("a", "b")


def faults(**overrides: Any) -> list[str]:
    with pytest.raises(SettingsError) as caught:
        load_settings(**overrides)
    return str(caught.value).splitlines()


@pytest.mark.parametrize("text", ["", "a,,b", "[]", '["a"', "a b", "a/b"])
def test_raw_topics_must_be_named(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKENFEED_RAW_TOPICS", text)
    assert faults()[0].startswith("TOKENFEED_RAW_TOPICS")


def test_all_faults_are_said_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKENFEED_SEED", "x")
    monkeypatch.setenv("KAFKA_SECURITY_PROTOCOL", "y")
    monkeypatch.setenv("TOKENFEED_SEDE", "1")
    named = [line.partition(":")[0] for line in faults(batch_size=0)]
    assert sorted(named) == [
        "KAFKA_SECURITY_PROTOCOL",
        "TOKENFEED_BATCH_SIZE",
        "TOKENFEED_SEDE is not a setting of Tokenfeed; did you mean TOKENFEED_SEED?",
        "TOKENFEED_SEED",
    ]


def test_all_broken_relations_are_said_at_once() -> None:
    assert len(faults(batches_topic="raw", heartbeat_interval_seconds=9.0, bootstrap_servers="u:p@host:1")) == 3


def test_a_name_that_is_no_setting_is_refused_wherever_it_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    Path(".env").write_text("TOKENFEED_A=1\nUNRELATED=1")
    toml(monkeypatch, "b = 1")
    monkeypatch.setenv("tokenfeed_c", "1")
    assert [line.split()[0] for line in faults(d=1)] == ["TOKENFEED_A", "tokenfeed_c", "d", "b"]


@pytest.mark.parametrize("name", ["missing.toml", "."])
def test_a_config_file_that_cannot_be_read_is_a_fault(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CONFIG_FILE, name)
    assert [line.partition(":")[0] for line in faults()] == [CONFIG_FILE]


def test_a_config_file_that_is_not_toml_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    toml(monkeypatch, "seed = ")
    assert [line.partition(":")[0] for line in faults()] == [CONFIG_FILE]


@pytest.mark.parametrize(
    ("overrides", "names"),
    [
        ({"ledger_topic": "raw"}, ["raw", "TOKENFEED_RAW_TOPICS"]),
        ({"raw_topics": ("a", "a")}, ["TOKENFEED_RAW_TOPICS"]),
        ({"security_protocol": "SASL_SSL"}, ["KAFKA_SASL_USERNAME", "KAFKA_SASL_PASSWORD"]),
        ({"security_protocol": "SASL_SSL", "sasl_username": "u"}, ["KAFKA_SASL_PASSWORD"]),
        (
            {"security_protocol": "SASL_PLAINTEXT", "sasl_username": "u", "sasl_password": CANARY},
            ["SASL_SSL", "TOKENFEED_ALLOW_INSECURE_SASL"],
        ),
        ({"bootstrap_servers": "user:canary-7f3a@host:9092"}, ["KAFKA_BOOTSTRAP_SERVERS"]),
        ({"bootstrap_servers": "kafka://host:9092"}, ["KAFKA_BOOTSTRAP_SERVERS"]),
        (
            {"heartbeat_interval_seconds": 4.0},
            ["TOKENFEED_HEARTBEAT_INTERVAL_SECONDS=4", "TOKENFEED_SESSION_TIMEOUT_SECONDS=10"],
        ),
        (
            {"session_timeout_seconds": 31.0},
            ["TOKENFEED_SESSION_TIMEOUT_SECONDS=31", "TOKENFEED_REQUEST_TIMEOUT_SECONDS=30"],
        ),
        (
            {"sequence_length": 131072, "batch_size": 64},
            ["TOKENFEED_SEQUENCE_LENGTH", "TOKENFEED_BATCH_SIZE", "TOKENFEED_MAX_MESSAGE_BYTES"],
        ),
        ({"window_bytes": 300 * 2**20}, ["TOKENFEED_MEMORY_BUDGET_BYTES", "TOKENFEED_WINDOW_BYTES"]),
        ({"max_message_bytes": 300 * 2**20}, ["TOKENFEED_MEMORY_BUDGET_BYTES", "TOKENFEED_MAX_MESSAGE_BYTES"]),
    ],
)
def test_each_relation_is_checked_and_names_its_settings(overrides: dict[str, Any], names: list[str]) -> None:
    (fault,) = faults(**overrides)
    assert all(name in fault for name in names)
    assert CANARY not in fault


def test_an_unencrypted_password_can_be_allowed() -> None:
    settings = load_settings(
        security_protocol="SASL_PLAINTEXT", sasl_username="u", sasl_password=CANARY, allow_insecure_sasl=True
    )
    assert settings.sasl_password is not None
    assert settings.sasl_password.get_secret_value() == CANARY


def test_a_secret_is_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAFKA_SASL_PASSWORD", CANARY)
    settings = load_settings()
    assert CANARY not in f"{settings!r} {settings} {settings.public()} {settings.model_dump_json()}"
    assert not any(CANARY in line for line in faults(seed="x", security_protocol="SASL_SSL"))


def test_counts_follow_the_gpu_workers_unless_set() -> None:
    assert (load_settings(gpu_workers=3).slot_count, load_settings(gpu_workers=3).stream_count) == (6, 6)
    assert (load_settings(slots=5).slot_count, load_settings(slots=5).stream_count) == (5, 5)
    assert (load_settings(slots=5, raw_partitions=2).slot_count, load_settings(raw_partitions=2).stream_count) == (5, 2)


def test_the_name_in_a_message_is_one_that_works(monkeypatch: pytest.MonkeyPatch) -> None:
    for field, value in {"seed": "9", "sasl_username": "u"}.items():
        monkeypatch.setenv(field_name(field), value)
    assert (load_settings().seed, load_settings().sasl_username) == (9, "u")


def test_the_partition_counts_shown_are_those_that_take_effect() -> None:
    shown = Settings(gpu_workers=3).public()
    assert (shown["slots"], shown["raw_partitions"]) == (6, 6)
