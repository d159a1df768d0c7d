"""Agreeing on the plan: the first plan written to the plan topic is the feed's; a worker with another one stops."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson

from app.emitter import Emitter, Outgoing
from tokenfeed.editions import RAW_IDS, Edition
from tokenfeed.plan import Plan
from tokenfeed.planning import edition_of, read_editions
from tokenfeed.topics import topic_ids


async def agree(plan: Plan, topic: str, options: dict[str, Any], emitter: Emitter) -> tuple[Edition, list[Edition]]:
    """Write the plan if the feed has none yet; return the edition that is ours, and all that the feed has.

    Of several workers that write at once, the first in log order decides for all.

    Raises:
        PlanMismatch: none of the feed's plans is ours; lists every field that differs.
    """
    if not await asyncio.to_thread(read_editions, options, topic):
        ids = await asyncio.to_thread(topic_ids, options, plan.sources)
        headers = [(RAW_IDS, orjson.dumps(ids))]
        await emitter.send([Outgoing(topic, 0, plan.to_json(), headers, key=plan.id.encode())])
    found = await asyncio.to_thread(read_editions, options, topic)
    return edition_of(plan, found, topic), found
