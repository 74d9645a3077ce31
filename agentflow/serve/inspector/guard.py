"""Access control: a token, the expected host and origin, and headers that allow only our own scripts.

Rules:

1. Nothing is served without the token, not even the page's files.
2. A request with a foreign Host or Origin is refused first: a foreign page can neither read nor control anything.
3. The token is sent once in the link, then as a cookie that scripts cannot read; programs send it as a bearer token.
"""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qs

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agentflow.serve.guard import host_name, is_cross_site
from agentflow.serve.web_chat import PAGE_HEADERS

_COOKIE = "agentflow_inspector"


class PageGuard:
    """Authenticates requests: valid token and same origin.

    Args:
        app: The guarded application.
        token: The token.
        hosts: The host names under which the application is reachable, without ports.
    """

    def __init__(self, app: ASGIApp, token: str, hosts: Sequence[str]) -> None:
        self._app = app
        self._token = token
        self._hosts = frozenset(hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Forward a request, or refuse it."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        reason = self._refusal(scope, headers)
        by_link = self._in_link(scope)

        async def send_safely(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._secure(MutableHeaders(scope=message), scope, by_link and not reason)
            await send(message)

        answer: ASGIApp = self._app if not reason else PlainTextResponse(reason, 403)
        await answer(scope, receive, send_safely)

    def _refusal(self, scope: Scope, headers: Headers) -> str:
        if scope["type"] != "http":
            return "Only HTTP is supported."
        host = headers.get("host", "")
        if host_name(host) not in self._hosts:
            return "Unexpected Host header."
        if is_cross_site(headers):
            return "Unexpected Origin header."
        if not (self._in_link(scope) or self._in_headers(scope, headers)):
            return "A valid token is required. Open the link that `agentflow inspect` prints."
        return ""

    def _in_link(self, scope: Scope) -> bool:
        if scope.get("method") != "GET":
            return False
        return any(self._fits(token) for token in parse_qs(scope["query_string"].decode("latin-1")).get("token", ()))

    def _in_headers(self, scope: Scope, headers: Headers) -> bool:
        kind, _, bearer = headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer" and self._fits(bearer):
            return True
        try:
            cookie = SimpleCookie(headers.get("cookie", "")).get(_cookie(scope))
        except CookieError:
            return False
        return cookie is not None and self._fits(cookie.value)

    def _fits(self, token: str) -> bool:
        return hmac.compare_digest(token.encode("utf-8", "replace"), self._token.encode())

    def _secure(self, headers: MutableHeaders, scope: Scope, give_cookie: bool) -> None:
        headers.update(PAGE_HEADERS)
        headers["x-frame-options"] = "DENY"
        headers["cache-control"] = "no-store"
        if give_cookie:
            path = scope.get("root_path") or "/"
            secure = "; Secure" if scope.get("scheme") == "https" else ""
            cookie = f"{_cookie(scope)}={self._token}; HttpOnly; SameSite=Strict; Path={path}{secure}"
            headers.append("set-cookie", cookie)


def _cookie(scope: Scope) -> str:
    """Return the cookie's name, which depends on the port because a host's ports share cookies."""
    server = scope.get("server")
    return f"{_COOKIE}_{server[1]}" if server else _COOKIE
