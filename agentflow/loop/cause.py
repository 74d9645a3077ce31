"""Why a run is cancelled, and how a replay controls it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Literal, TypeAlias

from agentflow._support.values import NamedTuple

__all__ = ["Cause", "CauseKind", "Notice", "ReplayControl", "Requester"]

Notice: TypeAlias = Literal["cancelled", "failed", "pending", "swallowed", "twice"]
"""The notifications for the listener of a run; see `RunScope.listener`."""

CauseKind: TypeAlias = Literal["interrupted", "timeout", "cancelled", "closed", "shutdown"]


Requester: TypeAlias = Literal["interrupt", "failure", "caller"]
"""The origin of a cancellation from inside: `interrupt`: a hook or tool; `failure`: a failed tool call, which cancels
only the calls parallel to it; `caller`: the caller's run.
"""


class ReplayControl:
    """How a replay repeats the recorded order in one run.

    Args:
        wait: Awaited before each call of a parallel round starts, with the call's id and a function that returns whether the
            round starts no more calls.
        wake: Called when a round starts no more calls.
        delay: Receives the function that cancels, if the run's own code or its caller requests a cancellation, and calls it
            at the recorded position.

    Attributes:
        passes: Whether the next check between hooks should raise nothing.
    """

    __slots__ = ("delay", "passes", "wait", "wake")

    def __init__(
        self,
        wait: Callable[[str, Callable[[], bool]], Awaitable[None]],
        wake: Callable[[], None],
        delay: Callable[[Callable[[], None], Requester], object],
    ) -> None:
        self.wait = wait
        self.wake = wake
        self.delay = delay
        self.passes = False


class Cause(NamedTuple):
    """The reason for which a run is cancelled.

    Attributes:
        kind: `interrupted`: by `agent.interrupt` or a hook. `timeout`: the call's limit passed. `cancelled`: its caller was
            cancelled. `closed`: its stream was closed. `shutdown`: the process shuts down; the run stays open as after a crash.
        reason: The reason, as text.
        inside: Whether a hook or tool of the run requested it.
        by_caller: Whether a hook or tool of a parent run requested it, or a parent run was cancelled.
        at: The `positions` at which it was cancelled from outside.
    """

    kind: CauseKind
    reason: str
    inside: bool = False
    by_caller: bool = False
    at: tuple[str, ...] = ()
