"""Recorded runs as a page: a timeline, every event, what hooks changed, the conversation, cost. Loaded when first asked for."""

from typing import TYPE_CHECKING

from agentflow.ground.lazy import lazily

if TYPE_CHECKING:
    from agentflow.inspector.inspector import Inspector
    from agentflow.inspector.one_file import export

__all__ = ["Inspector", "export"]

__getattr__, __dir__ = lazily(__name__, {"Inspector": ".inspector", "export": ".one_file"})
