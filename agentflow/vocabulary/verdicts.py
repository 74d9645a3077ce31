"""Verdicts: frozen values that a hook returns to steer a run. (A hook that raises `Veto` denies, as with `Deny`.)

| Verdict | On | Effect |
|---|---|---|
| `Deny(reason)` | every Pre event except `PreTurn` | the work is not done; the reason is its result |
| `Answer(value)` | `PreCall`, `PreReasoning`, `PreActing` | the work is not done; the value is its result |
| `Again(messages)` | `PostReasoning` | the reply is not accepted; the model is called again |
| `Stop(reason)` | `PreReasoning`, `PostReasoning`, rounds, `PostActing` | the call ends when its running tools have finished |
| `Suspend(request)` | `PostReasoning`, rounds, `PreActing` | the call ends and waits to be resumed |
| `Recover(value)` | fatal `Error` | the value replaces the failed work |

A verdict has one field, its value. Code that stores, shows or redacts verdicts uses only this field and the class
attributes. So a new verdict needs a class here, a member of the union, the events that name it, and the stage that acts
on it.
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
    """Prevents the work of the event.

    Args:
        reason: The reason, for the model (for the caller if on `PreCall`).
    """

    reason: str = "denied"

    label: ClassVar[str] = "denied"
    by_guards: ClassVar[bool] = True
    strength: ClassVar[int] = 0


@frozen
class Answer:
    """Supplies the result of the event's work, which is then not done.

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
    """Rejects the model's reply: the model is called again, with these messages after the rejected reply.

    Args:
        messages: A text, a message, or several messages, for the model.
    """

    messages: str | Msg | Sequence[Msg] = ()

    label: ClassVar[str] = "asked again"
    by_guards: ClassVar[bool] = True
    strength: ClassVar[int] = 1


@frozen
class Stop:
    """Ends the call when its running tools have finished. The reason is its answer, unless the model has just answered
    without tool calls.

    Args:
        reason: The text of the final message.
    """

    reason: str = "stopped"

    label: ClassVar[str] = "stop"
    by_guards: ClassVar[bool] = True
    strength: ClassVar[int] = 2


@frozen
class Suspend:
    """Ends the call until an external decision is made, with which `agent.resume` continues it.

    Args:
        request: JSON-like data for the person who decides.
    """

    request: Any = None

    label: ClassVar[str] = "suspended"
    by_guards: ClassVar[bool] = True
    strength: ClassVar[int] = 3


@frozen
class Recover:
    """Lets the run recover from a fatal error.

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
    """Approves a suspended tool call, as a person's decision.

    Args:
        input: Edited arguments, which are validated and pass through the whole chain again; None keeps the model's.
    """

    input: Mapping[str, Any] | None = None


Verdict: TypeAlias = Deny | Answer | Again | Stop | Suspend | Recover
"""A value that a hook may return to steer the run. Class attributes: `label`, a readable name; `by_guards`, whether guards may
return it; `strength`: if several verdicts are returned on a Post event, the strongest one is selected.
"""

AnyVerdict: TypeAlias = Verdict | Approve
"""Verdicts of hooks and people; all can be serialised (`agentflow.vocabulary.saving.codec.verdict_to_dict`)."""

Resolution: TypeAlias = Approve | Deny | Answer
"""A decision with which a suspended tool call is resumed."""


def verdict_value(verdict: AnyVerdict) -> Any:
    """Return the value of a verdict.

    Example:
        >>> verdict_value(Deny("not today"))
        'not today'
    """
    return getattr(verdict, verdict.__match_args__[0])


@frozen
class Decided:
    """The decision of an event's chain, as shown on the sealed event.

    Attributes:
        verdict: The verdict; None if the chain failed.
        hook: The name of the hook that returned it or failed.
        error: The exception or cancellation that ended the chain, if it failed.
    """

    verdict: Verdict | None
    hook: str
    error: BaseException | None = None
