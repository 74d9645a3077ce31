"""What a server says of a tool (`Hints`), and which tools need a person's approval by it (`ApprovalPolicy`).

Hints are the server's word: nobody checks them. A policy that trusts no server is `"always"`, or `"writes"` for one that is
trusted to tell reading from writing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeAlias

from agentflow.errors import UsageError
from agentflow.ground.values import frozen

__all__ = ["ApprovalPolicy", "Hints", "needs_approval"]


@frozen
class Hints:
    """What a server says of a tool; None where it says nothing.

    Attributes:
        name: The tool's name, as the server has it.
        read_only: It changes nothing.
        destructive: It may destroy something, where it is not read-only.
        idempotent: Running it twice with the same arguments does no more than once.
        open_world: It reaches beyond the server's own data, such as the web.
    """

    name: str
    read_only: bool | None = None
    destructive: bool | None = None
    idempotent: bool | None = None
    open_world: bool | None = None


ApprovalPolicy: TypeAlias = Literal["destructive", "writes", "always", "never"] | Callable[[Hints], bool]
"""Which tools wait for a person: those that say that they destroy, those that do not say that they only read, all, none; or
what a function says of a tool's hints."""


def needs_approval(policy: ApprovalPolicy, hints: Hints) -> bool:
    """Whether calls of a tool wait for a person.

    Raises:
        UsageError: There is no such policy.

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
                f"approve={policy!r}: legal are 'destructive', 'writes', 'always', 'never', or a function of the tool's Hints."
            )
