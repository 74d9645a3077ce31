"""Verdicts: what a hook returns to steer a run. Frozen values; control flow is never an exception.

| Verdict | On | Effect |
|---|---|---|
| `Deny(reason)` | every Pre event | the work does not happen; the reason takes its place |
| `Answer(value)` | `PreCall`, `PreReasoning`, `PreActing` | the work does not happen; the value takes its place |
| `Again(messages)` | `PostReasoning` | the reply is not accepted; the model is asked again |
| `Stop(reason)` | `PreReasoning`, `PostReasoning`, rounds, `PostActing` | the call ends at the next legal place |
| `Suspend(request)` | `PostReasoning`, rounds, `PreActing` | the call ends and waits to be resumed |
| `Recover(value)` | fatal `Error` | the value takes the failed work's place |

A verdict has one field, what it carries; whoever stores, shows or cleans it goes by that, and by what its class says of
it. So a new one is a class here, a member of the union, the events that name it, and the stage that acts on it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, TypeAlias

from agentflow.ground.values import frozen
from agentflow.messages import Msg

__all__ = [
    "Again",
    "Answer",
    "AnyVerdict",
    "Approve",
    "Decided",
    "Deny",
    "Recover",
    "Resolution",
    "Stop",
    "Suspend",
    "Verdict",
    "carried",
]


@frozen
class Deny:
    """The work behind the event must not happen.

    Args:
        reason: What the model (or on `PreCall` the caller) is told.
    """

    reason: str = "denied"

    said: ClassVar[str] = "denied"
    by_guards: ClassVar[bool] = True
    strength: ClassVar[int] = 0


@frozen
class Answer:
    """The work behind the event need not happen: here is what it would have given.

    Args:
        value: On `PreCall` and `PreReasoning` a `Msg` (or its text); on `PreActing` a `ToolResultBlock` or what the
            tool would have returned.
    """

    value: Any

    said: ClassVar[str] = "answered"
    by_guards: ClassVar[bool] = False
    strength: ClassVar[int] = 0


@frozen
class Again:
    """The model's reply is not accepted: it is asked again, with these messages after the rejected reply.

    Args:
        messages: A text, a message, or several messages; what the model is told.
    """

    messages: str | Msg | Sequence[Msg] = ()

    said: ClassVar[str] = "asked again"
    by_guards: ClassVar[bool] = True
    strength: ClassVar[int] = 1


@frozen
class Stop:
    """The call ends at the next legal place, with this reason as its answer.

    Args:
        reason: The text of the final message.
    """

    reason: str = "stopped"

    said: ClassVar[str] = "stop"
    by_guards: ClassVar[bool] = True
    strength: ClassVar[int] = 2


@frozen
class Suspend:
    """The call ends and waits for somebody outside; `agent.resume` continues it.

    Args:
        request: JSON-like data for whoever decides.
    """

    request: Any = None

    said: ClassVar[str] = "suspended"
    by_guards: ClassVar[bool] = True
    strength: ClassVar[int] = 3


@frozen
class Recover:
    """A fatal error is made good.

    Args:
        value: A `Msg` (or text) where a call or the model failed, a result where a tool failed; ignored where a hook
            failed (the hook is then skipped).
    """

    value: Any = None

    said: ClassVar[str] = "recovered"
    by_guards: ClassVar[bool] = False
    strength: ClassVar[int] = 0


@frozen
class Approve:
    """A person allows a suspended tool call.

    Args:
        input: Edited arguments; None keeps the model's. They are validated and judged by the whole chain again.
    """

    input: Mapping[str, Any] | None = None


Verdict: TypeAlias = Deny | Answer | Again | Stop | Suspend | Recover
"""What a hook may return besides the event. Each class says of itself: `said`, in one word for people; `by_guards`, whether
guards may give it; `strength`, where several are given on a Post event the strongest counts."""

AnyVerdict: TypeAlias = Verdict | Approve
"""What hooks and people say; all of it can be written down (`agentflow.saving.codec.verdict_to_dict`)."""

Resolution: TypeAlias = Approve | Deny | Answer
"""What a suspended tool call is resumed with."""


def carried(verdict: AnyVerdict) -> Any:
    """What a verdict carries: the value of its one field.

    Example:
        >>> carried(Deny("not today"))
        'not today'
    """
    return getattr(verdict, verdict.__match_args__[0])


@frozen
class Decided:
    """What an event's chain decided, readable on the sealed event.

    Attributes:
        verdict: The verdict; None where the chain failed.
        hook: The name of the hook that gave it or failed.
        error: The exception or cancellation that ended the chain, if it failed.
    """

    verdict: Verdict | None
    hook: str
    error: BaseException | None = None
