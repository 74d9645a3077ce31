"""Agents served over HTTP: an ASGI application with runs, events and sessions (`docs/serve.md`)."""

from agentflow.serve.app import App
from agentflow.serve.guard import Auth, bearer_tokens
from agentflow.serve.limits import Limits
from agentflow.serve.service import RouteModule, Service
from agentflow.serve.view import View

__all__ = ["App", "Auth", "Limits", "RouteModule", "Service", "View", "bearer_tokens"]
