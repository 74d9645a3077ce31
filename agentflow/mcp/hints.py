"""A server's description of a tool (`Hints`), and the rule for approvals that uses it (`ApprovalPolicy`).

Hints are claims of the server, and are not verified. For an untrusted server, you should use `"always"`; if you trust the
server to distinguish reading from writing, use `"writes"`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeAlias

from agentflow._support.values import frozen
from agentflow.errors import UsageError


@frozen
class Hints:
    """A server's description of a tool; hints that the server does not send are None.

    Attributes:
        name: The tool's name at the server.
        read_only: Whether the tool changes nothing.
        destructive: Whether it may destroy something; ignored if it is read-only.
        idempotent: Whether running it twice with the same arguments has the same effect as running it once.
        open_world: Whether it reaches beyond the server's own data, such as to the web.
    """

    name: str
    read_only: bool | None = None
    destructive: bool | None = None
    idempotent: bool | None = None
    open_world: bool | None = None


ApprovalPolicy: TypeAlias = Literal["destructive", "writes", "always", "never"] | Callable[[Hints], bool]
"""The tools that need approval: those declared destructive, those not declared read-only, all, or none; or a function of the
tool's hints."""


def needs_approval(policy: ApprovalPolicy, hints: Hints) -> bool:
    """Return whether calls of a tool need a person's approval.

    Raises:
        UsageError: The policy is unknown.

    Example:
        >>> [needs_approval(policy, Hints("look")) for policy in ("destructive", "writes", "always", "never")]
        [False, True, True, False]
    """
    match policy:
        case "destructive":
            return hints.destructive is True and hints.read_only is not True
        case "writes":
            return hints.read_only is not True
        case "always":
            return True
        case "never":
            return False
        case _ if callable(policy):
            return bool(policy(hints))
        case _:
            raise UsageError(
                f"approve={policy!r}: use 'destructive', 'writes', 'always', 'never', or a function of the tool's Hints."
            )
