"""`Retrieve`: passages of documents for a model's requests; `SqliteIndex` or `PostgresIndex` stores them."""

from typing import TYPE_CHECKING

from agentflow._support.lazy import lazily
from agentflow.plugins.retrieval.hook import Retrieve
from agentflow.plugins.retrieval.texts import SqliteIndex
from agentflow.vocabulary.ports.embedder import Embedder, Embeddings
from agentflow.vocabulary.ports.index import Index, Passage, Searcher

if TYPE_CHECKING:
    from agentflow.plugins.retrieval.postgres import PostgresIndex

__all__ = ["Embedder", "Embeddings", "Index", "Passage", "PostgresIndex", "Retrieve", "Searcher", "SqliteIndex"]

__getattr__, __dir__ = lazily(__name__, {".postgres": "PostgresIndex"})
