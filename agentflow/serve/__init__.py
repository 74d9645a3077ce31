"""Agents served over HTTP and to editors, and the inspector, a web page for recorded runs (`docs/serve.md`)."""

from typing import TYPE_CHECKING

from agentflow._support.lazy import lazily

if TYPE_CHECKING:
    from agentflow.serve.app import STANDARD, App
    from agentflow.serve.guard import Auth, bearer_tokens
    from agentflow.serve.limits import Limits
    from agentflow.serve.service import RouteModule, Service
    from agentflow.serve.view import View

__all__ = ["STANDARD", "App", "Auth", "Limits", "RouteModule", "Service", "View", "bearer_tokens"]

__getattr__, __dir__ = lazily(
    __name__,
    {
        ".app": "App STANDARD",
        ".guard": "Auth bearer_tokens",
        ".limits": "Limits",
        ".service": "RouteModule Service",
        ".view": "View",
    },
    extra="serve",
)
