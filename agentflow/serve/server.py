"""Run an `App` with uvicorn: on this machine only, unless the application authenticates its users."""

from __future__ import annotations

import asyncio
import errno
import signal
import socket
from types import FrameType
from typing import TYPE_CHECKING, Any, Final, cast

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from agentflow.errors import UsageError
from agentflow.serve.guard import LOOPBACK

if TYPE_CHECKING:
    from agentflow.serve.app import App

__all__ = ["Server", "listen", "open_socket", "server_for"]

_HEAD_SECONDS: Final = 10.0
_FIXES: Final = {
    errno.EADDRINUSE: "the port is in use. Choose another one, or 0 for a free one.",
    errno.EADDRNOTAVAIL: "this machine has no such address. Use one of its addresses, or 127.0.0.1 for local access only.",
    errno.EACCES: "permission denied. Choose a port from 1024 on, or 0 for a free one.",
}


class PatientProtocol(H11Protocol):
    """HTTP, with a time limit on the headers of a connection's first request; uvicorn has none."""

    def connection_made(self, transport: Any) -> None:
        """Start the time limit."""
        super().connection_made(transport)
        self._waiting = self.loop.call_later(_HEAD_SECONDS, self._close_unused)

    def _close_unused(self) -> None:
        if cast("object", self.cycle) is None and not self.transport.is_closing():
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the time limit."""
        self._waiting.cancel()
        super().connection_lost(exc)


class Server(uvicorn.Server):
    """A server that reports when it listens; after a shutdown by SIGTERM, the program continues.

    Attributes:
        listens: Set as soon as requests are accepted, or the start has failed.
    """

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listens = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start listening."""
        await super().startup(sockets)
        self.listens.set()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stop. After a shutdown, uvicorn re-raises the signals it received, and SIGTERM would kill the process."""
        if sig == signal.SIGTERM:
            self.should_exit = True
        else:
            super().handle_exit(sig, frame)

    async def serve_on(self, listening: socket.socket) -> None:
        """Serve until stopped, and leave the handling of signals to the program."""
        try:
            await self._serve([listening])
        finally:
            self.listens.set()  # also if the start failed, since the opener waits for the event


def listen(app: App, host: str, port: int, *, insecure: bool = False) -> socket.socket:
    """Return a socket that listens.

    Args:
        app: The application.
        host: The address.
        port: The port; 0 chooses a free one.
        insecure: Whether to listen beyond this machine without authentication.

    Raises:
        UsageError: The application does not authenticate and the address is open to other machines, or the socket cannot be
            opened (see `open_socket`).
    """
    if host not in LOOPBACK and not app.authenticates and not insecure:
        raise UsageError(
            f"Host {host!r} is open to other machines, and this application does not authenticate its users. Pass "
            "App(auth=...) (on the command line: --token-env), or listen on 127.0.0.1."
        )
    return open_socket("server", host, port)


def open_socket(server: str, host: str, port: int) -> socket.socket:
    """Return a socket that listens.

    Args:
        server: The name of the server, for errors.
        host: The address.
        port: The port; 0 chooses a free one.

    Raises:
        UsageError: The port is in use, or the host is not an address of this machine.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        family, *_, address = min(found, key=lambda known: known[0] != socket.AF_INET)  # `localhost` may be IPv6 first
        return socket.create_server((str(address[0]), port), family=family)
    except (socket.gaierror, UnicodeError) as error:
        raise UsageError(
            f"The {server} cannot listen on {host}: it is not an address or name of this machine."
        ) from error
    except OSError as error:
        reason = _FIXES.get(error.errno or 0, error.strerror)
        raise UsageError(f"The {server} cannot listen on {host}, port {port}: {reason}") from error


def server_for(app: Any, *, shutdown_seconds: float) -> Server:
    """Return the server of an application.

    Args:
        app: The ASGI application.
        shutdown_seconds: Seconds that running calls get to finish at shutdown; open responses get ten seconds more.
    """
    config = uvicorn.Config(
        app,
        http=PatientProtocol,
        ws="none",
        lifespan="on",
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        limit_concurrency=2_000,  # further requests are refused with 503
        timeout_graceful_shutdown=int(shutdown_seconds) + 10,
    )
    return Server(config)
