"""Access control: the host names that a request may address, and the origins and users from which it may come.

Rules:

1. A request with an unexpected Host is refused first, so no foreign page can reach a server on this machine (DNS rebinding).
2. A request from a page of another site is refused, unless its origin is listed; then the browser may read the response.
3. Without authentication only this machine is served.
4. Only `auth` determines the user, never a path or a body. If `auth` fails, the request is refused.
"""

from __future__ import annotations

import hashlib
import hmac
import inspect
import ipaddress
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, TypeAlias, cast

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agentflow.errors import UsageError
from agentflow.serve.failures import log_failed
from agentflow.serve.refusals import Refusal

Auth: TypeAlias = Callable[[Request], Awaitable[str | None]]
"""Returns the id of the user who makes a request, or None if there is none: the request is then refused with 401."""

LOOPBACK: Final = ("127.0.0.1", "localhost", "::1")
_OWNER: Final = "agentflow.owner"
_HOST: Final = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\[\]:@/?#\s]+)(?::[0-9]{1,5})?\Z")
_MIN_TOKEN: Final = 16


def host_name(host: str) -> str:
    """Return a Host header without its port, or an empty string if it is malformed (`urlsplit` is too tolerant)."""
    found = _HOST.match(host)
    return "" if found is None else found[1].strip("[]").lower()


def is_cross_site(headers: Headers, origins: Sequence[str] = ()) -> bool:
    """Return whether a page of another site sent the request, other than by opening a link.

    Args:
        headers: The request's headers.
        origins: Origins that are allowed.
    """
    origin = headers.get("origin")
    if origin is not None:
        return origin not in origins and origin.partition("://")[2] != headers.get("host", "")
    mode = headers.get("sec-fetch-mode")
    return headers.get("sec-fetch-site") in ("cross-site", "same-site") and mode != "navigate"


def bearer_tokens(users: Mapping[str, str]) -> Auth:
    """Return an `auth` for fixed tokens, sent as `Authorization: Bearer TOKEN` or `x-api-key: TOKEN`.

    Args:
        users: The users' ids, by token.

    Raises:
        UsageError: A token is shorter than 16 characters.

    Example:
        >>> auth = bearer_tokens({"a-long-random-token": "ada"})
    """
    if any(len(token) < _MIN_TOKEN for token in users):
        raise UsageError(
            f"bearer_tokens: a token needs at least {_MIN_TOKEN} characters, so that it cannot be guessed."
        )
    known = [(token.encode(), user) for token, user in users.items()]

    async def auth(request: Request) -> str | None:
        kind, _, credentials = request.headers.get("authorization", "").partition(" ")
        sent = (credentials.strip() if kind.lower() == "bearer" else request.headers.get("x-api-key", "")).encode()
        found = [user for token, user in known if hmac.compare_digest(token, sent)]  # all, in constant time
        return found[0] if found else None

    return auth


def owner_of(scope: Scope) -> str:
    """Return the key of the user who makes a request. It is the first part of the stored ids of the user's sessions."""
    return scope[_OWNER]


class Guard:
    """Middleware that admits requests.

    Args:
        app: The guarded application.
        auth: Returns the user of a request; None admits this machine only.
        hosts: The names under which the server is reachable, without ports; `"*"` for any.
        origins: Origins of other sites with pages that use the server.
    """

    def __init__(self, app: ASGIApp, auth: Auth | None, hosts: Sequence[str], origins: Sequence[str]) -> None:
        if auth is not None and not callable(auth):
            raise UsageError(
                f"App: auth= takes an async function of the request, not {type(auth).__name__}. For fixed tokens, write "
                "auth=bearer_tokens({'a-long-random-token': 'ada'})."
            )
        self._app = app
        self._auth = auth
        self._hosts = frozenset(host.lower() for host in hosts)
        self._origins = frozenset(origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Admit a request, or refuse it."""
        if scope["type"] != "http":
            if scope["type"] == "websocket":
                # 1008: policy violation; WebSockets are not served
                await send({"type": "websocket.close", "code": 1008})
            return
        headers = Headers(scope=scope)
        allowed = headers.get("origin", "") if headers.get("origin") in self._origins else ""

        async def send_safely(message: Message) -> None:
            if message["type"] == "http.response.start":
                _secure(MutableHeaders(scope=message), allowed)
            await send(message)

        try:
            self._check_place(scope, headers)
            if allowed and scope["method"] == "OPTIONS":
                await _preflight(headers)(scope, receive, send_safely)
                return
            scope[_OWNER] = await self._owner(Request(scope, receive))
        except Refusal as refusal:
            await refusal.response()(scope, receive, send_safely)
            return
        await self._app(scope, receive, send_safely)

    def _check_place(self, scope: Scope, headers: Headers) -> None:
        if "*" not in self._hosts and host_name(headers.get("host", "")) not in self._hosts:
            raise Refusal(
                421, "unexpected_host", "This host name is not served here. Add it: App(hosts=[...]) or --name."
            )
        if is_cross_site(headers, tuple(self._origins)):
            raise Refusal(
                403, "cross_site", "Pages of this origin are not allowed. Add it: App(origins=[...]) or --origin."
            )
        if self._auth is None and not _is_local(scope):
            raise Refusal(
                403, "authentication_required", "Without authentication only this machine is served. Set App(auth=...)."
            )

    async def _owner(self, request: Request) -> str:
        if self._auth is None:
            return hashlib.sha256(b"").hexdigest()[:32]  # no user has this key, because an empty id is refused
        try:
            owner = cast("object", self._auth(request))
            if not inspect.isawaitable(owner):
                raise UsageError(f"auth= must be an async function, but it returned {type(owner).__name__}")
            user = await owner
        except Refusal:
            raise
        except Exception as error:
            log_failed("auth failed, so the request was refused", error)
            raise Refusal(500, "authentication_failed", "The user could not be determined.") from error
        if not user:
            raise Refusal(
                401, "unauthenticated", "This server requires authentication.", headers={"WWW-Authenticate": "Bearer"}
            )
        if not isinstance(user, str):
            log_failed(f"auth returned {type(user).__name__}, but a user's id is a str; the request was refused")
            raise Refusal(500, "authentication_failed", "The user could not be determined.")
        # fits into ids, whatever the user's id is
        return hashlib.sha256(user.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def _is_local(scope: Scope) -> bool:
    client = scope.get("client")
    if client is None:
        return True  # a Unix socket
    try:
        return ipaddress.ip_address(client[0]).is_loopback
    except ValueError:
        return False


def _secure(headers: MutableHeaders, allowed: str) -> None:
    # A route module's pages may have set their own policy.
    headers.setdefault("content-security-policy", "default-src 'none'; frame-ancestors 'none'")
    headers["x-content-type-options"] = "nosniff"
    headers["referrer-policy"] = "no-referrer"
    headers["cross-origin-resource-policy"] = "same-origin" if not allowed else "cross-origin"
    headers.setdefault("cache-control", "no-store")
    if allowed:
        headers["access-control-allow-origin"] = allowed
        headers["access-control-allow-credentials"] = "true"
        headers.add_vary_header("origin")


def _preflight(headers: Headers) -> Response:
    requested = headers.get("access-control-request-headers", "")
    return Response(
        status_code=204,
        headers={
            "Access-Control-Allow-Methods": "GET, POST, DELETE",
            "Access-Control-Allow-Headers": requested,
            "Access-Control-Max-Age": "600",
        },
    )
