"""Agreeing on the plan: the first plan written to the plan topic is the feed's; a worker with another one stops."""

from __future__ import annotations

import asyncio
from typing import Any

from app.emitter import Emitter, Outgoing
from tokenfeed.plan import Plan
from tokenfeed.planning import must_match, read_plans


async def agree(plan: Plan, topic: str, options: dict[str, Any], emitter: Emitter) -> None:
    """Write the plan if the feed has none yet, and make sure that the feed's plan is ours.

    Of several workers that write at once, the first in log order decides for all.

    Raises:
        PlanMismatch: the feed has another plan; lists every field that differs.
    """
    if not await asyncio.to_thread(read_plans, options, topic):
        await emitter.send([Outgoing(topic, 0, plan.to_json(), key=plan.id.encode())])
    (theirs, *_) = await asyncio.to_thread(read_plans, options, topic)
    must_match(topic, plan, theirs)
