"""`Memory` and `MemoryFiles`: what an agent remembers about its users; `SqliteMemory` or `PostgresMemory` stores it."""

from typing import TYPE_CHECKING

from agentflow._support.lazy import lazily
from agentflow.plugins.memory.files import MemoryFiles
from agentflow.plugins.memory.hook import Memory
from agentflow.plugins.memory.texts import SqliteMemory
from agentflow.vocabulary.ports.memory_bank import MemoryBank, MemoryEntry

if TYPE_CHECKING:
    from agentflow.plugins.memory.postgres import PostgresMemory

__all__ = ["Memory", "MemoryBank", "MemoryEntry", "MemoryFiles", "PostgresMemory", "SqliteMemory"]

__getattr__, __dir__ = lazily(__name__, {".postgres": "PostgresMemory"})
