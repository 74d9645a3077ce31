"""The connection to a server (`Link`) and its options (`ServerOptions`), which are checked when the server is created."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from fnmatch import fnmatchcase
from typing import Any, Literal, TypeAlias, cast

from typing_extensions import TypedDict

from agentflow._support.shown import one_line, without_secrets
from agentflow._support.values import frozen
from agentflow.errors import UsageError
from agentflow.mcp.hints import ApprovalPolicy, Hints, needs_approval
from agentflow.mcp.roots import Roots, folders_of
from agentflow.mcp.sdk import MODERN_PROTOCOL_VERSIONS
from agentflow.vocabulary.messages import Pending
from agentflow.vocabulary.specs import is_seconds
from agentflow.vocabulary.verdicts import Resolution

Answering: TypeAlias = Callable[[Pending], Awaitable[Resolution]]
"""A function that answers a server's question without suspending the call."""


class ServerOptions(TypedDict, total=False):
    """The keyword options of all transports."""

    name: str
    """The name in logs, errors and suspensions; by default taken from the command, the URL or the server."""
    prefix: str
    """A prefix for the names of the tools, so that an agent can use several servers; none by default."""
    allow: str | Iterable[str]
    """The tools to use, by the server's names for them, with the wildcards `*` and `?`; all by default."""
    deny: str | Iterable[str]
    """The tools to leave out, by the server's names for them."""
    approve: ApprovalPolicy
    """The tools that need approval: `"destructive"` (default), `"writes"`, `"always"`, `"never"`, or a function of `Hints`."""
    timeout: float | None
    """The time limit of one call of a tool, in seconds (60 by default); None: no limit."""
    connect_timeout: float
    """The time limit for connecting and listing the server's tools, in seconds (20 by default)."""
    attempts: int
    """The number of attempts to connect (3 by default); the wait between them doubles each time."""
    required: bool
    """If true (default), a call fails if the server is unreachable; if false, it continues without the server's tools."""
    follow: bool
    """If true (default), the tools are updated when the server announces changes; if false, the first list stays."""
    resources: bool
    """If true, the model gets two more tools, `list_resources` and `read_resource`; false by default."""
    sampling: int
    """How many model calls the server may request in one call of a tool, billed to the run; 0 by default."""
    elicitation: Literal["suspend", "refuse"] | Answering
    """How a server's question for a person is handled: `"suspend"` (default) suspends the call, `"refuse"` declines;
    a function gets the `Pending` and returns a decision (`Answer`, `Approve`, `Deny`) without suspending the call."""
    roots: Roots | None
    """Folders in which the server may work: paths or `file://` URIs, or a function (sync or async) that returns them whenever
    the server asks; none by default."""
    protocol: str
    """The protocol version: `"auto"` (default), `"legacy"` (the handshake before 2026), or a version such as `"2026-07-28"`."""
    log_level: Literal["debug", "info", "warning", "error"] | None
    """The minimum level of the server's messages that are logged (`"warning"` by default); None logs none."""
    max_size: int
    """The maximum size of a result, in characters, and of a message, in bytes; 4 * 1024 * 1024 by default."""


@frozen
class Link:
    """A way to connect to a server.

    Attributes:
        connect: Creates the target for the SDK's client: a new transport each time, or a server in this process.
        shown: A description without secrets.
        secrets: Values that must not appear in logs and errors.
        in_process: Whether the server runs in this event loop.
    """

    connect: Callable[[Callable[[str], None]], Any]
    shown: str
    secrets: tuple[str, ...] = ()
    in_process: bool = False

    def clean(self, text: str) -> str:
        """Return a text on one line, without secrets."""
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
        """Return whether a tool of this name is selected.

        Example:
            >>> settings = checked("files", {"allow": "read_*", "deny": ["read_secrets"]})
            >>> [settings.takes(name) for name in ("read_file", "read_secrets", "write_file")]
            [True, False, False]
        """
        return any(fnmatchcase(name, pattern) for pattern in self.allow) and not any(
            fnmatchcase(name, pattern) for pattern in self.deny
        )


def checked(name: str, options: ServerOptions) -> Settings:
    """Check options, and return them with the defaults filled in.

    Raises:
        UsageError: An option is unknown or invalid.
    """
    unknown = sorted(set(options) - set(ServerOptions.__annotations__))
    if unknown:
        raise UsageError(
            f"MCPServer got unknown options {', '.join(unknown)}. Use {', '.join(sorted(ServerOptions.__annotations__))}."
        )
    filled = cast("dict[str, Any]", dict(options))
    for key in ("allow", "deny"):
        if key in filled:
            filled[key] = (filled[key],) if isinstance(filled[key], str) else tuple(filled[key])
    roots = filled.get("roots")
    if roots is not None and not callable(roots):
        # Resolved now, so that a later change of the working directory has no effect.
        filled["roots"] = tuple([str(root.uri) for root in folders_of(roots)])
    settings = Settings(**cast("dict[str, Any]", {"name": name, **filled}))
    timed = settings.timeout is None or is_seconds(settings.timeout)
    if not settings.name or not timed or not is_seconds(settings.connect_timeout):
        raise UsageError(
            f"MCPServer {settings.name!r} got timeout={settings.timeout!r}, connect_timeout={settings.connect_timeout!r}. Both "
            "must be positive numbers of seconds (timeout=None: no limit), and the name must not be empty."
        )
    numbers = {"attempts": 1, "sampling": 0, "max_size": 1024}
    for key, least in numbers.items():
        value = getattr(settings, key)
        if type(value) is not int or value < least:
            raise UsageError(f"MCPServer {settings.name!r}: {key}={value!r} must be an integer of at least {least}.")
    if settings.elicitation not in ("suspend", "refuse") and not callable(settings.elicitation):
        raise UsageError(
            f"MCPServer {settings.name!r}: elicitation={settings.elicitation!r} must be 'suspend', 'refuse', or a function."
        )
    if settings.protocol not in ("auto", "legacy", *MODERN_PROTOCOL_VERSIONS):
        legal = ", ".join(map(repr, ("auto", "legacy", *MODERN_PROTOCOL_VERSIONS)))
        raise UsageError(f"MCPServer {settings.name!r}: unknown protocol={settings.protocol!r}. Use {legal}.")
    # Raises a UsageError if the policy is unknown.
    needs_approval(settings.approve if not callable(settings.approve) else "never", Hints(name))
    return settings
