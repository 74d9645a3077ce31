"""Stores of all kinds: in memory, in real SQLite files, on a real PostgreSQL server."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from typing import Any, TypeAlias

import pytest

sys.path.append(str(Path(__file__).parents[1] / "support"))

from postgres import Postgres, postgres_server

from agentflow.ports.store import MemoryStore, SessionStore
from agentflow.state.sql import SqlStore

OpenStore: TypeAlias = Callable[..., SqlStore]


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
            yield f"sqlite:///{tmp_path / 'sessions.db'}"
        else:
            yield opened.enter_context(request.getfixturevalue("postgres").database())


@pytest.fixture
async def open_store(url: str) -> AsyncIterator[OpenStore]:
    """Opens stores on one database, as several processes would; they are closed at the end."""
    async with AsyncExitStack() as opened:
        stores: list[SqlStore] = []

        def open_one(**options: Any) -> SqlStore:
            stores.append(SqlStore(url, **options))
            opened.push_async_callback(stores[-1].close)
            return stores[-1]

        yield open_one


@pytest.fixture(params=["memory", "sqlite", "postgresql"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[SessionStore]:
    """An empty store of each kind."""
    with ExitStack() as opened:
        if request.param == "memory":
            yield MemoryStore()
            return
        if request.param == "sqlite":
            where = f"sqlite:///{tmp_path / 'sessions.db'}"
        else:
            where = opened.enter_context(request.getfixturevalue("postgres").database())
        async with SqlStore(where) as made:
            yield made
