"""From Tokenfeed's settings to the arguments of a Faust app."""

from __future__ import annotations

import ssl
from typing import Any, Final

import faust

from tokenfeed.settings import Settings

# Far above any pause of ours: fetching stops while the memory budget is used up, and must not cost the membership.
_MAX_POLL_INTERVAL_SECONDS: Final = 3600.0
# Runs of records that wait between consumer and agent; their bytes count against the memory budget.
_BUFFER_RUNS: Final = 4096


def faust_options(settings: Settings) -> dict[str, Any]:
    """Keyword arguments for `faust.App`."""
    servers = ";".join(f"kafka://{server.strip()}" for server in settings.bootstrap_servers.split(","))
    return {
        "id": settings.app_id,
        "broker": servers,
        "broker_credentials": credentials(settings),
        "store": "memory://",
        "datadir": str(settings.data_dir),
        "key_serializer": "raw",
        "value_serializer": "raw",
        "consumer_auto_offset_reset": "earliest",
        "broker_max_poll_interval": _MAX_POLL_INTERVAL_SECONDS,
        "broker_session_timeout": settings.session_timeout_seconds,
        "broker_heartbeat_interval": settings.heartbeat_interval_seconds,
        "broker_rebalance_timeout": settings.rebalance_timeout_seconds,
        "broker_request_timeout": settings.request_timeout_seconds,
        "stream_buffer_maxsize": _BUFFER_RUNS,
        # Nothing is acknowledged through Faust, so there is nothing to wait for on revoke and stop.
        "stream_wait_empty": False,
        "topic_allow_declare": False,
        "topic_disable_leader": True,
        "web_tables_enabled": False,
        "web_router_enabled": False,
        "web_bind": "127.0.0.1",
    }


def credentials(settings: Settings) -> faust.SASLCredentials | faust.SSLCredentials | None:
    """Faust's credentials for the security protocol; certificates are always verified."""
    if settings.security_protocol == "PLAINTEXT":
        return None
    context = _ssl_context(settings) if settings.security_protocol.endswith("SSL") else None
    if settings.security_protocol == "SSL":
        return faust.SSLCredentials(context=context)
    password = settings.sasl_password.get_secret_value() if settings.sasl_password else None
    return faust.SASLCredentials(
        username=settings.sasl_username,
        password=password,
        ssl_context=context,
        mechanism=settings.sasl_mechanism,
    )


def _ssl_context(settings: Settings) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=settings.ssl_cafile)
    if settings.ssl_certfile:
        context.load_cert_chain(settings.ssl_certfile, settings.ssl_keyfile)
    return context
