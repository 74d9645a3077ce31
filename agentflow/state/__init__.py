"""Stores: the protocol, and the stores included in the library (`docs/stores.md`)."""

from typing import TYPE_CHECKING

from agentflow._support.lazy import lazily
from agentflow.vocabulary.ports.memory_store import MemoryStore
from agentflow.vocabulary.ports.store import SessionInfo, SessionStore, Store
from agentflow.vocabulary.ports.store_wrapper import StoreWrapper

if TYPE_CHECKING:
    from agentflow.state.sql import SqlStore

__all__ = [
    "MemoryStore",
    "SessionInfo",
    "SessionStore",
    "SqlStore",
    "Store",
    "StoreWrapper",
]

__getattr__, __dir__ = lazily(
    __name__,
    {".sql": "SqlStore"},
)
