"""Clients of a run database, and worker processes that are real processes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from dbos_clock import looks_often as looks_often
from nursery import Nursery
from worker_processes import HERE, Workers

from agentflow.durable.client import DurableClient


@pytest.fixture
async def client(url: str) -> AsyncIterator[DurableClient]:
    """A client in this process."""
    async with DurableClient(url, poll=0.05) as made:
        yield made


@pytest.fixture(scope="session")
def nursery() -> Iterator[Nursery]:
    """The process that starts workers."""
    made = Nursery("program", paths=(HERE,))
    yield made
    made.end()


@pytest.fixture
def workers(nursery: Nursery, url: str, tmp_path: Path) -> Iterator[Workers]:
    """Worker processes, killed at the end."""
    made = Workers(nursery, url, tmp_path / "log", lease=3)
    yield made
    made.end()
