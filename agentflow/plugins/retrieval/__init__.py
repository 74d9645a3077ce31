"""`Retrieve`: passages of documents for a model's requests; `SqliteIndex` stores them."""

from agentflow.plugins.retrieval.hook import Retrieve
from agentflow.plugins.retrieval.sqlite import SqliteIndex
from agentflow.vocabulary.ports.embedder import Embedded, Embedder
from agentflow.vocabulary.ports.index import Index, Passage, Searcher

__all__ = ["Embedded", "Embedder", "Index", "Passage", "Retrieve", "Searcher", "SqliteIndex"]
