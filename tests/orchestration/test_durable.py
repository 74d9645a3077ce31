"""Compositions as durable calls: a worker runs them, steps, handoffs and all."""

from __future__ import annotations

from pathlib import Path

import pytest
from compositions import Compose, by_round
from dbos_clock import looks_often as looks_often
from laws_checks import check_history

from agentflow import Agent
from agentflow.durable.agent import DurableAgent
from agentflow.state.sql import SqlStore


@pytest.mark.ci
async def test_a_worker_runs_it(compose: Compose, tmp_path: Path) -> None:
    """Two durable calls of one session have the same answers as without a worker."""
    plain = compose(Agent("ann", by_round("ann says so.")), Agent("bob", by_round("bob says so.")))
    expected = [(await plain.call(text, session="s")).text for text in ("one", "two")]
    url = f"sqlite:///{tmp_path / 'runs.db'}"
    async with SqlStore(url) as store:
        whole = compose(Agent("ann", by_round("ann says so.")), Agent("bob", by_round("bob says so.")), store=store)
        async with DurableAgent(whole, url, poll=0.02) as durable, durable.worker(poll=0.02):
            given = [(await durable.call(text, session="s")).text for text in ("one", "two")]
        assert given == expected
        check_history(await whole.history("s"))
