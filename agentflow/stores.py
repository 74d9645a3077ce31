"""Stores: what one is, and those that come with the library (`docs/stores.md`)."""

from importlib import import_module
from typing import TYPE_CHECKING, cast

from agentflow.errors import UsageError
from agentflow.ground.lazy import lazily
from agentflow.ports.store import MemoryStore, SessionInfo, SessionStore, Store
from agentflow.ports.store_wrapper import StoreWrapper

if TYPE_CHECKING:
    from agentflow.state.sql import SqlStore

__all__ = [
    "MemoryStore",
    "SessionInfo",
    "SessionStore",
    "SqlStore",
    "Store",
    "StoreWrapper",
    "resolve_store",
]

__getattr__, __dir__ = lazily(
    __name__,
    {
        "SqlStore": "agentflow.state.sql",
    },
)


def resolve_store(store: Store | str) -> Store:
    """The store that is meant: `Agent(store="sqlite:///agentflow.db")` keeps sessions in that database.

    Args:
        store: A store, or a URL as `SqlStore` takes it.

    Raises:
        UsageError: It is no URL, and no store.
        StoreError: It is no database that can be used.
    """
    if not isinstance(store, str) and hasattr(store, "load"):
        return store
    if not isinstance(store, str) or "://" not in store:
        raise UsageError(
            f'store={store!r:.60} is no store. Write store="sqlite:///agentflow.db" (a file), '
            'store="postgresql+psycopg://user:password@host/database", MemoryStore(), or a store of your own.'
        )
    return cast("Store", import_module("agentflow.state.sql").SqlStore(store))
