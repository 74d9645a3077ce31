"""The hooks of handoffs fulfil the contract of hooks."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from agentflow import Agent, Hook
from agentflow.agent.orchestration.handoff import OfferHandoffs
from agentflow.testing import ScriptedModel, check_hook


def offer(limit: int | None) -> Hook:
    other = Agent("billing", ScriptedModel([]), description="Knows invoices.")
    return OfferHandoffs({"transfer_to_billing": other}, limit)


@pytest.mark.ci
@pytest.mark.parametrize("make", [lambda: offer(None), lambda: offer(3)], ids=["offers", "refuses"])
def test_check_hook(make: Callable[[], Hook]) -> None:
    """In any order with others, cancelled anywhere, used by many runs at once, and with one handoff too many."""
    check_hook(make, runs=10, orders=2, cancellations=4).assert_clean()
