"""Agents of other programs over A2A, and agents served to them (`docs/a2a.md`). Needs the extra `a2a`; serving also
needs `serve`."""

from typing import TYPE_CHECKING

from agentflow._support.lazy import lazily

if TYPE_CHECKING:
    from agentflow.serve.a2a.model import A2AModel
    from agentflow.serve.a2a.remote import RemoteAgent
    from agentflow.serve.a2a.routes import A2A

__all__ = ["A2A", "A2AModel", "RemoteAgent"]

__getattr__, __dir__ = lazily(__name__, {".routes": "A2A", ".model": "A2AModel", ".remote": "RemoteAgent"})
