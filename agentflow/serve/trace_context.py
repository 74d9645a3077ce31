"""The trace context of requests: the parent of a run's spans, if the `OpenTelemetry` plugin is in use."""

from __future__ import annotations

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agentflow._support.tracing import current_trace, use_trace


class TraceContext:
    """Middleware that makes a request's `traceparent` the current trace context, and sends it back in the response.

    If an outer application has started a span, that is the parent. Other parts of a context, such as baggage, are not accepted
    from clients.

    Args:
        app: The application.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request within its trace."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        received = {name: headers[name] for name in ("traceparent", "tracestate") if name in headers}
        with use_trace({} if "traceparent" in current_trace() else received):
            parent = current_trace().get("traceparent")

            async def send_traced(message: Message) -> None:
                if parent and message["type"] == "http.response.start":
                    MutableHeaders(scope=message)["traceparent"] = parent
                await send(message)

            await self._app(scope, receive, send_traced)
