"""Why a run is cancelled, and what is cancelled with it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Literal, Protocol, TypeAlias

from agentflow._support.values import NamedTuple

__all__ = ["Cause", "CauseKind", "Requester", "TaskGroup"]

CauseKind: TypeAlias = Literal["interrupted", "timeout", "cancelled", "closed", "shutdown"]


class TaskGroup(Protocol):
    """The tasks of parallel tool calls."""

    @property
    def running(self) -> Mapping[asyncio.Task[Any], None]:
        """The running tasks, in the order in which they started."""
        ...

    def cancel(self, requester: asyncio.Task[Any] | None = None) -> None:
        """Cancel the running tasks, except for one that requests it, and start no others."""
        ...


Requester: TypeAlias = Literal["interrupt", "failure", "caller"]
"""The source of a cancellation that code of the run or of a parent requests: one of its hooks or tools, a failure of one of
several parallel tool calls (which cancels only the others), or the caller's run."""


class Cause(NamedTuple):
    """The reason for which a run is cancelled.

    Attributes:
        kind: `interrupted` by `agent.interrupt` or a hook; `timeout` of the call; its caller was `cancelled`; its
            stream was `closed`; the process shuts down (`shutdown`), and the run stays open as after a crash.
        reason: The reason, as text.
        inside: Whether a hook or tool of the run requested it.
        by_caller: Whether a hook or tool of a parent run requested it, or a parent run was cancelled.
    """

    kind: CauseKind
    reason: str
    inside: bool = False
    by_caller: bool = False
