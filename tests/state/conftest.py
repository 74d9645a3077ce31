"""Stores of all kinds: in memory, in real SQLite files, on a real PostgreSQL server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from agentflow.state.sql import SqlStore
from agentflow.vocabulary.ports.memory_store import MemoryStore
from agentflow.vocabulary.ports.store import SessionStore

OpenStore: TypeAlias = Callable[..., SqlStore]


@pytest.fixture
async def open_store(url: str) -> AsyncIterator[OpenStore]:
    """Opens stores on one database, as several processes would, and closes them at the end."""
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
