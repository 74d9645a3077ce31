"""`Memory` and `MemoryFiles`: what an agent remembers about its users; `SqliteMemory` stores it."""

from agentflow.plugins.memory.files import MemoryFiles
from agentflow.plugins.memory.hook import Memory
from agentflow.plugins.memory.sqlite import SqliteMemory
from agentflow.vocabulary.ports.memory_bank import MemoryBank, Remembered

__all__ = ["Memory", "MemoryBank", "MemoryFiles", "Remembered", "SqliteMemory"]
