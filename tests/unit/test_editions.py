"""Which plans a feed has had: the rule of the plan topic, and the names of topics."""

from __future__ import annotations

from tests.feeds import make_plan
from tokenfeed.editions import Edition, PlanRecord, editions

A, B, C = (make_plan(seed=seed) for seed in range(3))


def test_the_first_record_is_the_first_plan_and_equal_ones_of_other_workers_change_nothing() -> None:
    assert editions([]) == []
    assert editions([PlanRecord(A), PlanRecord(A), PlanRecord(B)]) == [Edition(1, A)]


def test_a_plan_follows_only_the_one_in_force_and_the_first_in_log_order_holds() -> None:
    assert editions([PlanRecord(A), PlanRecord(B, A.id), PlanRecord(C, A.id)]) == [Edition(1, A), Edition(2, B)]
    assert editions([PlanRecord(A), PlanRecord(B, A.id), PlanRecord(C, B.id)])[-1] == Edition(3, C)
    assert editions([PlanRecord(A), PlanRecord(B, "other")]) == [Edition(1, A)]
    assert editions([PlanRecord(B, A.id), PlanRecord(A)]) == [Edition(1, A)]


def test_a_feed_never_returns_to_a_plan() -> None:
    assert editions([PlanRecord(A), PlanRecord(B, A.id), PlanRecord(A, B.id)]) == [Edition(1, A), Edition(2, B)]


def test_every_edition_has_topics_of_its_own() -> None:
    assert [Edition(number, A).topic("batches") for number in (1, 2, 3)] == ["batches", "batches-2", "batches-3"]
