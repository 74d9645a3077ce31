"""Evaluate a hook's answer: await it, validate it, and apply the hook's failure policy if it failed.

The chain, the wrappers for a hook's options and the recording all use these functions, so each of them interprets an
answer in the same way.

Rules:

1. An answer is the event, a changed event, None, a verdict, or an awaitable or observable of any of these, nested to
   any depth. An awaitable or observable without a value counts as None.
2. A `Veto` that a hook raises or an observable signals counts as `Deny`.
3. The event and the hook's role determine the valid answers: guards may deny, stop, suspend and ask again, observers
   must not decide, and neither may edit.
4. With `on_failure="deny"` a failure becomes `Deny` if the hook may deny on that event. An invalid answer counts as a
   failure.
"""

from __future__ import annotations

from collections.abc import Awaitable
from types import CoroutineType
from typing import Any, cast

from reactivex import Observable

from agentflow.errors import HookContractError, HookError, Veto
from agentflow.hooks.hook import Hook
from agentflow.reactive import EMPTY, Flux, Mono
from agentflow.vocabulary.events import Error, ErrorPhase, Event, PostActing, PostReasoning, PreCall, PreReasoning
from agentflow.vocabulary.messages import Msg, ToolResultBlock
from agentflow.vocabulary.verdicts import Again, Answer, Deny, Recover, Verdict


def is_later(answer: object) -> bool:
    """Whether an answer has to be awaited. An immediate answer of a synchronous hook needs no coroutine."""
    # The frequent answers come first: `isinstance` with an abstract class is slow.
    if answer is None or isinstance(answer, Event):
        return False
    return type(answer) is CoroutineType or isinstance(answer, Awaitable | Observable)


async def settle(answer: Any) -> Any:
    """Wait until an answer is a value: the event, None, a verdict, or an invalid value."""
    while True:
        if type(answer) is CoroutineType:  # the common case; the isinstance checks of abstract classes are slow
            answer = await cast("Awaitable[Any]", answer)
        elif isinstance(answer, Mono):
            answer = await cast("Mono[Any]", answer).resolve()
        elif isinstance(answer, Observable):
            # The first value decides. Waiting for the last one could wait for a stream that never ends.
            answer = await Flux[Any].wrap(cast("Observable[Any]", answer)).first().resolve()
        elif is_later(answer):
            answer = await cast("Awaitable[Any]", answer)
        else:
            return None if answer is EMPTY else answer


def verdicts_of(hook: Hook, kind: type[Event]) -> tuple[type[Verdict], ...]:
    """Return the verdicts that a hook may give on an event class."""
    if hook.observer:
        return ()
    if hook.guard:
        return tuple([verdict for verdict in kind.verdicts if verdict.by_guards])
    return kind.verdicts


def evaluate(hook: Hook, kind: type[Event], event: Event, answer: object) -> Verdict | Event | None:
    """Interpret a settled answer.

    Returns:
        None if the event continues unchanged, an event with values to copy into it, or the verdict.

    Raises:
        HookContractError: The answer is not valid for this hook and event.
    """
    if answer is event or answer is None:
        return None
    if isinstance(answer, kind):
        if not (hook.guard or hook.observer):
            return answer
        raise _contract(hook, kind, event, f"a changed {kind.__name__} although it is {_role(hook)}")
    if isinstance(answer, kind.verdicts):
        if not isinstance(answer, verdicts_of(hook, kind)):
            raise _contract(hook, kind, event, f"{type(answer).__name__} although it is {_role(hook)}")
        # A verdict that does not fit this particular event is refused below, like any other invalid answer.
        if _fits(answer, event):
            if isinstance(answer, Answer | Recover):
                _check_reply(hook, event, answer.value)
            return answer
    # `return Deny` for `return Deny(...)` is a common mistake, so it gets its own message.
    if isinstance(answer, type) and answer in kind.verdicts:
        raise _contract(
            hook, kind, event, f"the class {answer.__name__} instead of a verdict object: {answer.__name__}(...)"
        )
    raise _contract(hook, kind, event, f"{type(answer).__name__} ({answer!r:.60})")


def failure_of(hook: Hook, kind: type[Event], event: Event, error: Exception) -> Verdict | Exception:
    """Interpret an exception from a hook: return a verdict, or the exception if it is a failure. An illegal `Veto`
    becomes a `HookContractError`."""
    denies = Deny in verdicts_of(hook, kind)
    if isinstance(error, Veto):
        if denies:
            return Deny(error.reason)
        role = f" although it is {_role(hook)}" if Deny in kind.verdicts else ""
        contract = _contract(hook, kind, event, f"Veto({error.reason!r}){role}")
        # Set by hand, because the error is returned here and raised elsewhere.
        contract.__cause__ = error
        error = contract
    if denies and hook.on_failure == "deny":
        return Deny(f"{hook.name} failed ({type(error).__name__}), so the request was denied")
    return error


def cancellation_error(hook: Hook, kind: type[Event], reason: str) -> HookError:
    """Return the error for a hook that was cancelled in a run that continues; `reason` is empty if the hook raised it."""
    if reason:
        return HookError(f"Hook {label_of(hook)!r} was cancelled while handling {kind.__name__}: {reason}.")
    return HookError(
        f"Hook {label_of(hook)!r} raised CancelledError on {kind.__name__}, but the run was not cancelled."
    )


def withheld_result(hook: Hook, event: PostActing, error: Exception) -> ToolResultBlock:
    """Return the replacement for a tool's result that a hook with `on_failure="deny"` failed to check."""
    result = event.tool_result
    text = f"(withheld: {hook.name} failed with {type(error).__name__})"
    return ToolResultBlock(result.tool_use_id, result.name, text, "denied")


def outcome_of(
    hook: Hook, kind: type[Event], event: Event, answer: object, error: BaseException | None
) -> tuple[Event, Verdict | None, BaseException | None]:
    """Normalise the outcome of a hook's call for recording: the event, the verdict, the error."""
    if error is None:
        try:
            result = evaluate(hook, kind, event, answer)
        except HookContractError as problem:
            error = problem
        else:
            return (result, None, None) if isinstance(result, Event) else (event, result, None)
    if not isinstance(error, Exception):
        return event, None, error
    found = failure_of(hook, kind, event, error)
    if not isinstance(found, Exception):
        # A Veto is recorded as a verdict; a denial by `on_failure` as verdict and error.
        return event, found, None if isinstance(error, Veto) else error
    if hook.on_failure == "deny" and isinstance(event, PostActing):
        event = event.replace(tool_result=withheld_result(hook, event, found))
    return event, None, found


def label_of(hook: Hook) -> str:
    """Return the name of a hook for error messages."""
    return f"{hook.name} (priority {hook.priority})"


def check_final(msg: Msg, hook: str, event: str) -> None:
    """Refuse a hook's message as the last message of a call if it contains tool calls (which would never run) or tool results.

    Raises:
        HookContractError: The message contains tool calls or results.
    """
    if msg.tool_uses or msg.tool_results:
        raise HookContractError(
            hook,
            event,
            "a message with tool calls or results",
            "a message without them, since it ends the call (an Answer on PreReasoning may call tools)",
        )


def _check_reply(hook: Hook, event: Event, value: object) -> None:
    """Refuse a verdict that replaces a reply if its value is not a valid reply."""
    phase = event.phase if isinstance(event, Error) else None
    # A value for the whole call becomes its last message; one for a model call may still call tools.
    ends = isinstance(event, PreCall) or phase is ErrorPhase.CALL
    if not ends and not isinstance(event, PreReasoning) and phase is not ErrorPhase.REASONING:
        return
    kind = type(event).__name__
    if not isinstance(value, str | Msg):
        raise HookContractError(
            label_of(hook), kind, f"a verdict with {type(value).__name__}", "a verdict with a Msg or a str"
        )
    if ends and isinstance(value, Msg):
        check_final(value, label_of(hook), kind)


def _fits(verdict: Verdict, event: Event) -> bool:
    """Whether a verdict that is allowed for the event's class is also allowed for this particular event."""
    if isinstance(event, Error):
        # An error that is not fatal has lost nothing that a verdict could replace.
        return event.fatal
    # The summary is the last model call that the iteration limit allows.
    return not (isinstance(verdict, Again) and _is_summary(event))


def _is_summary(event: Event) -> bool:
    return isinstance(event, PostReasoning) and event.purpose == "summary"


def _role(hook: Hook) -> str:
    return "an observer" if hook.observer else "a guard"


def _contract(hook: Hook, kind: type[Event], event: Event, got: str) -> HookContractError:
    summary = _is_summary(event)
    verdicts = ", ".join(v.__name__ for v in verdicts_of(hook, kind) if not (summary and v is Again))
    edits = kind.writable and not (hook.guard or hook.observer)
    legal = f"the event, a changed {kind.__name__}, None" if edits else "the event, None"
    if verdicts:
        only = " (only while event.fatal)" if kind is Error else ""
        legal += f", or a verdict: {verdicts}{only}" + (" (this is the summary)" if summary else "")
    return HookContractError(label_of(hook), kind.__name__, got, legal)
