"""The types for the cancellation of a run: its cause, and the tasks that are cancelled with it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Literal, Protocol, TypeAlias

from agentflow._support.values import NamedTuple

__all__ = ["CallTurns", "Cause", "CauseKind", "Notice", "Requester", "ToolTasks"]

Notice: TypeAlias = Literal["cancelled", "failed", "pending", "swallowed", "twice"]
"""The notifications for the listener of a run; see `RunScope.listener`."""

CauseKind: TypeAlias = Literal["interrupted", "timeout", "cancelled", "closed", "shutdown"]


class ToolTasks(Protocol):
    """The tasks of parallel tool calls."""

    @property
    def running(self) -> Mapping[asyncio.Task[Any], None]:
        """The running tasks, in the order in which they started."""
        ...

    def cancel(self, requester: asyncio.Task[Any] | None = None) -> None:
        """Cancel the running tasks, except for the task that requests this, and start no others."""
        ...


Requester: TypeAlias = Literal["interrupt", "failure", "caller"]
"""The origin of a cancellation from inside: `interrupt`: a hook or tool; `failure`: a failed tool call, which cancels
only the calls parallel to it; `caller`: the caller's run.
"""


class CallTurns(NamedTuple):
    """How a replay holds back the calls of parallel rounds.

    Attributes:
        wait: Awaited before each call starts, with the call's id and a function that returns whether the round starts no
            more calls.
        wake: Called when a round starts no more calls.
    """

    wait: Callable[[str, Callable[[], bool]], Awaitable[None]]
    wake: Callable[[], None]


class Cause(NamedTuple):
    """The reason for which a run is cancelled.

    Attributes:
        kind: `interrupted`: `agent.interrupt`, a hook or a tool requested it. `timeout`: the call's time limit passed.
            `cancelled`: its caller was cancelled. `closed`: its stream was closed. `shutdown`: the process shuts down; the
            run stays open as after a crash.
        reason: The reason, as text.
        inside: Whether a hook or tool of the run requested it.
        by_caller: Whether a hook or tool of a parent run requested it, or a parent run was cancelled.
    """

    kind: CauseKind
    reason: str
    inside: bool = False
    by_caller: bool = False
