"""A web page for recorded runs: a timeline, every event, hooks' changes, the conversation, cost. Loaded on first use."""

from typing import TYPE_CHECKING

from agentflow._support.lazy import lazily

if TYPE_CHECKING:
    from agentflow.serve.inspector.inspector import Inspector
    from agentflow.serve.inspector.one_file import export

__all__ = ["Inspector", "export"]

__getattr__, __dir__ = lazily(__name__, {".inspector": "Inspector", ".one_file": "export"})
