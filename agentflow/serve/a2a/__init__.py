"""Agents served to other agents over A2A (`docs/a2a.md`). Needs the extras `serve` and `a2a`."""

from typing import TYPE_CHECKING

from agentflow._support.lazy import lazily

if TYPE_CHECKING:
    from agentflow.serve.a2a.routes import A2A

__all__ = ["A2A"]

__getattr__, __dir__ = lazily(__name__, {"A2A": ".routes"})
