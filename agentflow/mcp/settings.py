"""How a server is reached (`Link`) and used (`ServerOptions`), checked when it is made."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from fnmatch import fnmatchcase
from typing import Any, Literal, TypeAlias, cast

from typing_extensions import TypedDict

from agentflow.errors import UsageError
from agentflow.ground.shown import one_line, without_secrets
from agentflow.ground.values import frozen
from agentflow.mcp.hints import ApprovalPolicy, Hints, needs_approval
from agentflow.mcp.roots import Roots, folders_of
from agentflow.mcp.sdk import MODERN_PROTOCOL_VERSIONS
from agentflow.messages import Pending
from agentflow.specs import is_seconds
from agentflow.verdicts import Resolution

__all__ = ["Answering", "Link", "ServerOptions", "Settings", "checked"]

Answering: TypeAlias = Callable[[Pending], Awaitable[Resolution]]
"""Answers a server's question at once."""


class ServerOptions(TypedDict, total=False):
    """The keywords that every way to a server takes."""

    name: str
    """What logs, errors and suspensions call it; what the command, the address or the server is called by default."""
    prefix: str
    """Put before the name of each tool, so that several servers fit into one agent; none by default."""
    allow: str | Iterable[str]
    """Names of the tools to take, as the server has them; `*` and `?` stand for anything. All by default."""
    deny: str | Iterable[str]
    """Names of tools to leave out."""
    approve: ApprovalPolicy
    """Which tools wait for a person: `"destructive"` (default), `"writes"`, `"always"`, `"never"`, or a function of `Hints`."""
    timeout: float | None
    """Seconds that one call of a tool may take (60 by default); None is no limit."""
    connect_timeout: float
    """Seconds to be connected and to know the server's tools (20 by default)."""
    attempts: int
    """How often a connection is tried before it is given up, with a wait in between that doubles (3 by default)."""
    required: bool
    """Whether a call is refused when the server cannot be reached (default); else it goes on without the server's tools."""
    follow: bool
    """Whether tools that the server changes while it is connected are taken (default); else they stay as they were."""
    resources: bool
    """Whether the model gets two more tools, `list_resources` and `read_resource`; no by default."""
    sampling: int
    """How many model calls the server may ask for in one call of a tool, billed to the run; 0, none, by default."""
    elicitation: Literal["suspend", "refuse"] | Answering
    """What becomes of a question that the server has for a person: the call is suspended (default), it is refused, or a
    function answers it at once: it gets what would wait (`Pending`), and gives a decision (`Answer`, `Approve`, `Deny`)."""
    roots: Roots | None
    """Folders that the server is told to work in: paths or `file://` addresses, or a function (it may be async) that gives them
    whenever the server asks. By default there are none to ask for."""
    protocol: str
    """Which version is spoken: `"auto"` (default), `"legacy"` (the handshake of before 2026), or one such as `"2026-07-28"`."""
    log_level: Literal["debug", "info", "warning", "error"] | None
    """From which level on the server's log is taken over (`"warning"` by default); None: not at all."""
    max_size: int
    """Most characters of a result, most bytes of one message (4 MiB by default)."""


@frozen
class Link:
    """How a server is reached.

    Attributes:
        connect: Makes what the SDK's client connects to: a transport that is fresh each time, or a server in this process.
        shown: How it is shown, without secrets.
        secrets: Values that must not get into logs and errors.
        in_process: Whether the server runs in this event loop.
    """

    connect: Callable[[Callable[[str], None]], Any]
    shown: str
    secrets: tuple[str, ...] = ()
    in_process: bool = False

    def clean(self, text: str) -> str:
        """A text on one line, without secrets."""
        return without_secrets(one_line(text), self.secrets)


@frozen
class Settings:
    """`ServerOptions`, with the defaults filled in."""

    name: str
    prefix: str = ""
    allow: tuple[str, ...] = ("*",)
    deny: tuple[str, ...] = ()
    approve: ApprovalPolicy = "destructive"
    timeout: float | None = 60.0
    connect_timeout: float = 20.0
    attempts: int = 3
    required: bool = True
    follow: bool = True
    resources: bool = False
    sampling: int = 0
    elicitation: Literal["suspend", "refuse"] | Answering = "suspend"
    roots: Roots | None = None
    protocol: str = "auto"
    log_level: Literal["debug", "info", "warning", "error"] | None = "warning"
    max_size: int = 4 * 1024 * 1024

    def takes(self, name: str) -> bool:
        """Whether a tool of this name is taken.

        Example:
            >>> settings = checked("files", {"allow": "read_*", "deny": ["read_secrets"]})
            >>> [settings.takes(name) for name in ("read_file", "read_secrets", "write_file")]
            [True, False, False]
        """
        return any(fnmatchcase(name, one) for one in self.allow) and not any(
            fnmatchcase(name, one) for one in self.deny
        )


def checked(name: str, given: ServerOptions) -> Settings:
    """Options with their defaults.

    Raises:
        UsageError: One is unknown or cannot be meant.
    """
    unknown = sorted(set(given) - set(ServerOptions.__annotations__))
    if unknown:
        raise UsageError(
            f"MCPServer got {', '.join(unknown)}; its options are {', '.join(sorted(ServerOptions.__annotations__))}."
        )
    options = cast("dict[str, Any]", dict(given))
    for key in ("allow", "deny"):
        if key in options:
            options[key] = (options[key],) if isinstance(options[key], str) else tuple(options[key])
    roots = options.get("roots")
    if roots is not None and not callable(roots):
        options["roots"] = tuple([str(root.uri) for root in folders_of(roots)])
    settings = Settings(**cast("dict[str, Any]", {"name": name, **options}))
    timed = settings.timeout is None or is_seconds(settings.timeout)
    if not settings.name or not timed or not is_seconds(settings.connect_timeout):
        raise UsageError(
            f"MCPServer {settings.name!r}: timeout={settings.timeout!r}, connect_timeout={settings.connect_timeout!r}. They "
            "are seconds above 0 (a timeout of None is no limit), and the name is not empty."
        )
    numbers = {"attempts": 1, "sampling": 0, "max_size": 1024}
    for key, least in numbers.items():
        value = getattr(settings, key)
        if type(value) is not int or value < least:
            raise UsageError(f"MCPServer {settings.name!r}: {key}={value!r}; it is a whole number of at least {least}.")
    if settings.elicitation not in ("suspend", "refuse") and not callable(settings.elicitation):
        raise UsageError(
            f"MCPServer {settings.name!r}: elicitation={settings.elicitation!r}; it is 'suspend', 'refuse', or a function."
        )
    if settings.protocol not in ("auto", "legacy", *MODERN_PROTOCOL_VERSIONS):
        legal = ", ".join(map(repr, ("auto", "legacy", *MODERN_PROTOCOL_VERSIONS)))
        raise UsageError(f"MCPServer {settings.name!r}: protocol={settings.protocol!r}; legal are {legal}.")
    needs_approval(settings.approve if not callable(settings.approve) else "never", Hints(name))
    return settings
