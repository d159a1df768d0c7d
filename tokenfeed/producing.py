"""How everything of ours that writes to Kafka is set up: all replicas acknowledge, retries neither double nor reorder."""

from __future__ import annotations

from typing import Any, Final

from tokenfeed.kafka import connection
from tokenfeed.settings import Settings

_QUEUE_KBYTES: Final = 256 * 1024


def producer_options(settings: Settings, linger_ms: float = 0.0) -> dict[str, Any]:
    """librdkafka's producer options, secrets included: never print them.

    Args:
        linger_ms: how long a message waits for others to be sent with it: worth it for many small ones that nobody awaits.
    """
    return {
        **connection(settings),
        "acks": "all",
        "enable.idempotence": True,
        "compression.type": settings.compression,
        "linger.ms": linger_ms,
        "message.max.bytes": settings.max_message_bytes,
        "queue.buffering.max.kbytes": _QUEUE_KBYTES,
        "delivery.timeout.ms": int(settings.delivery_timeout_seconds * 1000),
    }
