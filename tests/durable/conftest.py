"""Databases of both kinds, clients of them, and worker processes that are real processes."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

sys.path += [str(Path(__file__).parents[1] / "support"), str(Path(__file__).parent)]

from postgres import Postgres, postgres_server
from worker_processes import Workers

from agentflow.durable.client import DurableClient


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """The server, started once."""
    with postgres_server() as server:
        yield server


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """An empty database of each kind."""
    with ExitStack() as opened:
        if request.param == "sqlite":
            yield f"sqlite:///{tmp_path / 'runs.db'}"
        else:
            yield opened.enter_context(request.getfixturevalue("postgres").database())


@pytest.fixture
async def client(url: str) -> AsyncIterator[DurableClient]:
    """A client in this process."""
    async with DurableClient(url, poll=0.05) as made:
        yield made


@pytest.fixture
def workers(url: str, tmp_path: Path) -> Iterator[Workers]:
    """Worker processes, killed at the end."""
    made = Workers(url, tmp_path / "log", lease=3)
    yield made
    made.end()
