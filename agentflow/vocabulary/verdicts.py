"""Verdicts: values that a hook returns to steer a run. They are frozen; control flow is never an exception.

| Verdict | On | Effect |
|---|---|---|
| `Deny(reason)` | every Pre event | the work does not happen; the reason replaces it |
| `Answer(value)` | `PreCall`, `PreReasoning`, `PreActing` | the work does not happen; the value replaces it |
| `Again(messages)` | `PostReasoning` | the reply is not accepted; the model is asked again |
| `Stop(reason)` | `PreReasoning`, `PostReasoning`, rounds, `PostActing` | the call ends at the next legal place |
| `Suspend(request)` | `PostReasoning`, rounds, `PreActing` | the call ends and waits to be resumed |
| `Recover(value)` | fatal `Error` | the value replaces the failed work |

A verdict has one field, its value. Code that stores, shows or redacts verdicts uses that field and the class attributes
only. So a new verdict is a class here, a member of the union, the events that name it, and the stage that acts on it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, TypeAlias

from agentflow._support.values import frozen
from agentflow.vocabulary.messages import Msg

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
    "verdict_value",
]


@frozen
class Deny:
    """The work of the event must not happen.

    Args:
        reason: The reason, for the model (on `PreCall` for the caller).
    """

    reason: str = "denied"

    label: ClassVar[str] = "denied"
    by_guards: ClassVar[bool] = True
    strength: ClassVar[int] = 0


@frozen
class Answer:
    """The work of the event need not happen: this value is its result.

    Args:
        value: On `PreCall` and `PreReasoning` a `Msg` (or its text); on `PreActing` a `ToolResultBlock` or the tool's
            return value.
    """

    value: Any

    label: ClassVar[str] = "answered"
    by_guards: ClassVar[bool] = False
    strength: ClassVar[int] = 0


@frozen
class Again:
    """The model's reply is not accepted: it is asked again, with these messages after the rejected reply.

    Args:
        messages: A text, a message, or several messages, for the model.
    """

    messages: str | Msg | Sequence[Msg] = ()

    label: ClassVar[str] = "asked again"
    by_guards: ClassVar[bool] = True
    strength: ClassVar[int] = 1


@frozen
class Stop:
    """The call ends at the next legal place, with this reason as its answer.

    Args:
        reason: The text of the final message.
    """

    reason: str = "stopped"

    label: ClassVar[str] = "stop"
    by_guards: ClassVar[bool] = True
    strength: ClassVar[int] = 2


@frozen
class Suspend:
    """The call ends and waits for a decision from outside; `agent.resume` continues it.

    Args:
        request: JSON-like data for the person who decides.
    """

    request: Any = None

    label: ClassVar[str] = "suspended"
    by_guards: ClassVar[bool] = True
    strength: ClassVar[int] = 3


@frozen
class Recover:
    """The run recovers from a fatal error.

    Args:
        value: A `Msg` (or text) if a call or the model failed, a result if a tool failed; ignored if a hook failed (the
            hook is then skipped).
    """

    value: Any = None

    label: ClassVar[str] = "recovered"
    by_guards: ClassVar[bool] = False
    strength: ClassVar[int] = 0


@frozen
class Approve:
    """A person allows a suspended tool call.

    Args:
        input: Edited arguments; None keeps the model's. They are validated and evaluated by the whole chain again.
    """

    input: Mapping[str, Any] | None = None


Verdict: TypeAlias = Deny | Answer | Again | Stop | Suspend | Recover
"""A value that a hook may return besides the event. Class attributes: `label`, one word for people; `by_guards`, whether
guards may return it; `strength`, which decides if several are returned on a Post event (the strongest counts).
"""

AnyVerdict: TypeAlias = Verdict | Approve
"""Verdicts of hooks and people; all can be serialised (`agentflow.vocabulary.saving.codec.verdict_to_dict`)."""

Resolution: TypeAlias = Approve | Deny | Answer
"""A decision with which a suspended tool call is resumed."""


def verdict_value(verdict: AnyVerdict) -> Any:
    """Return the value of a verdict's one field.

    Example:
        >>> verdict_value(Deny("not today"))
        'not today'
    """
    return getattr(verdict, verdict.__match_args__[0])


@frozen
class Decided:
    """The decision of an event's chain, readable on the sealed event.

    Attributes:
        verdict: The verdict; None if the chain failed.
        hook: The name of the hook that returned it or failed.
        error: The exception or cancellation that ended the chain, if it failed.
    """

    verdict: Verdict | None
    hook: str
    error: BaseException | None = None
