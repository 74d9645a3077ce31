"""The chain: hooks in order, compiled per event type into a tuple of calls.

Rules:

1. Order: editing hooks, then guards, then observers. In each group hooks are sorted by ascending priority, then by scope,
   then by registration.
2. A hook answers with the event, None (the same event with the hook's assignments), a verdict, or an awaitable or
   observable of one of these (an empty observable counts as None). Anything else is a `HookContractError`.
3. On a Pre event the first verdict decides and the remaining hooks are skipped. On a Post event all hooks run and the
   strongest verdict counts (Suspend, then Stop, then Again).
4. The event is sealed after the editing hooks: guards and observers cannot write.
5. An exception keeps its type and gets a note that names hook, priority and event. A cancellation is never a failure. If
   an editing hook or a guard swallows the cancellation, it is raised again after the hook. If an observer swallows it,
   the run's next checkpoint raises it again, because all observers must see the event.
6. When a chain is built, its order is fixed and a hook's options become wrappers around the hook's call. Running a chain
   is one loop.
"""

from __future__ import annotations

import asyncio
import operator
from collections.abc import Callable, Coroutine, Iterator
from types import CoroutineType
from typing import Any, ClassVar, Protocol

from agentflow._support.cancellation import cancel_requests, forget_cancellations
from agentflow._support.values import NamedTuple
from agentflow.errors import FailureNote, Veto
from agentflow.hooks.answers import (
    cancellation_error,
    evaluate,
    failure_of,
    is_later,
    label_of,
    settle,
    withheld_result,
)
from agentflow.hooks.hook import Hook
from agentflow.hooks.options import Call
from agentflow.hooks.skipped import warn_denied
from agentflow.reactive import Just
from agentflow.vocabulary.events import Decision, Error, Event, PostActing, PostReasoning
from agentflow.vocabulary.events.base import builder
from agentflow.vocabulary.messages import Msg
from agentflow.vocabulary.verdicts import Decided, Suspend, Verdict

__all__ = ["Chain", "ChainEntry", "Faults", "NoRun", "run_chain"]

# Bypasses the events' own `__setattr__`, which refuses all assignments after sealing.
_put = object.__setattr__


class ChainEntry(NamedTuple):
    """One hook in the chain of one event type."""

    call: Call
    hook: Hook


class StopFlag(Protocol):
    """The part of a run's scope that a chain reads."""

    stopped: bool
    """Whether the run should stop."""


class Faults(Protocol):
    """The interface of a run to which a chain reports failing hooks."""

    abandoned: ClassVar[bool]
    """Whether another task has finished the run while this chain was running. If so, no further hook receives the event."""

    @property
    def scope(self) -> StopFlag:
        """The run's scope, which knows if the run was cancelled."""
        ...

    async def hook_failed(self, kind: type[Event], hook: Hook, error: Exception, fatal: bool) -> bool:
        """Report a failed hook.

        Args:
            kind: The class of the event on which it failed.
            hook: The hook.
            error: The exception that it raised.
            fatal: Whether the hook's policy ends the call.

        Returns:
            True if the chain should continue without the hook.
        """
        ...

    def passes_suspend(self, event: Event) -> bool:
        """Whether to ignore a `Suspend` on this event, because the call was resumed with a decision on that event."""
        ...

    def check(self) -> None:
        """Raise `CancelledError` if the run was cancelled, even if a hook swallowed the cancellation, so that no
        further hook is called."""
        ...

    def why_cancelled(self) -> str:
        """Return why a hook was cancelled although the run continues (a cleanup took too long, say), or ""."""
        ...

    def is_cancelled(self) -> bool:
        """Whether a `CancelledError` comes from a cancellation of the run. Otherwise the hook itself raised it."""
        ...


class _NeverStopped:
    stopped = False


class NoRun:
    """`Faults` for a chain outside a run. Subclasses decide how to handle failures."""

    scope: StopFlag = _NeverStopped()
    abandoned: ClassVar[bool] = False

    async def hook_failed(self, kind: type[Event], hook: Hook, error: Exception, fatal: bool) -> bool:
        """Return False, so that each failure is raised; see `Faults.hook_failed`."""
        return False

    def passes_suspend(self, event: Event) -> bool:
        """See `Faults.passes_suspend`."""
        return False

    def check(self) -> None:
        """See `Faults.check`."""

    def why_cancelled(self) -> str:
        """See `Faults.why_cancelled`."""
        return ""

    def is_cancelled(self) -> bool:
        """See `Faults.is_cancelled`."""
        return cancel_requests() > 0  # outside a run there is no scope to check


def _always(_reply: Msg) -> bool:
    return True


class Chain:
    """The hooks of one event type, in order.

    Attributes:
        kind: The event class.
        editors: Hooks that may write.
        guards: Hooks that check the edited event.
        observers: Hooks that see the sealed event.
        make: Builds the event as `run_chain` expects it; see `Event.make`.
    """

    __slots__ = ("calls", "concern_checks", "editors", "guards", "kind", "make", "observers", "pre", "sealed_calls")

    def __init__(
        self,
        kind: type[Event],
        editors: tuple[ChainEntry, ...],
        guards: tuple[ChainEntry, ...],
        observers: tuple[ChainEntry, ...],
    ) -> None:
        self.kind = kind
        self.editors = editors
        self.guards = guards
        self.observers = observers
        # The hot loops only need the calls. After an answer or a failure, `_current` and `_continue` look up the entry.
        self.calls = tuple(entry.call for entry in editors)
        self.sealed_calls = tuple(entry.call for entry in (*guards, *observers))
        self.make = builder(kind, bool(editors))
        # Rule 3: only on a Pre event does the first verdict end the chain.
        self.pre = kind.__name__.startswith("Pre")
        hooks = [entry.hook for entry in (*editors, *guards, *observers)]
        # A reply's event is skipped only if every hook overrides `concerns`: the inherited one is always True.
        self.concern_checks: tuple[Callable[[Msg], bool], ...] = (_always,)
        if kind is PostReasoning and all(type(hook).concerns is not Hook.concerns for hook in hooks):
            self.concern_checks = tuple(hook.concerns for hook in hooks)

    def can_skip(self, reply: Msg) -> bool:
        """Whether this reply's event can be skipped, because no hook needs it."""
        for concerns in self.concern_checks:  # noqa: SIM110 - `any` with a generator is slower
            if concerns(reply):
                return False
        return True

    def without(self, hook: Hook) -> Chain | None:
        """Return the chain without one hook, or None if no hook remains."""
        parts = [tuple(e for e in part if e.hook is not hook) for part in (self.editors, self.guards, self.observers)]
        return Chain(self.kind, *parts) if any(parts) else None

    def __iter__(self) -> Iterator[ChainEntry]:
        yield from self.editors
        yield from self.guards
        yield from self.observers


def run_chain(chain: Chain, event: Event, faults: Faults) -> Coroutine[Any, Any, None] | None:
    """Pass an event through its chain and seal it. Return None if nothing has to be awaited.

    Args:
        chain: The hooks.
        event: The event, in its open form if the chain has editing hooks, and sealed otherwise. `event.decision` is set to
            the verdict if there is one.
        faults: Receives reports of failing hooks.

    Returns:
        None if the event has passed; otherwise a coroutine for the rest of the chain. If a hook with `on_failure="abort"`
        fails, the coroutine raises its exception. The event has then been sealed with the exception as
        `event.decision.error`, and the observers have seen it.
    """
    # While every hook answers at once, no coroutine is created. The first other answer or failure hands the same
    # iterator to a coroutine, which continues at the next hook.
    if chain.calls:
        editing = iter(chain.calls)
        for call in editing:
            try:
                result = call(event)
            except BaseException as error:  # `_failed` applies the policy of the hook
                return _continue_editing(chain, event, faults, editing, None, error)
            if result is not event and result is not None:
                return _continue_editing(chain, event, faults, editing, result, None)
        # Open and sealed form have the same layout, so sealing only changes the class.
        _put(event, "__class__", chain.kind)
    reading = iter(chain.sealed_calls)
    for call in reading:
        try:
            result = call(event)
        except BaseException as error:  # `_failed` applies the policy of the hook
            return _continue(chain, event, faults, reading, None, error)
        if result is not None and result is not event:
            return _continue(chain, event, faults, reading, result, None)
    return None


async def _continue_editing(
    chain: Chain, event: Event, faults: Faults, editing: Iterator[Call], answer: Any, failure: BaseException | None
) -> None:
    """Continue after an editing hook that failed or did not answer with the event itself, then run the guards and
    observers."""
    decided: Decided | None = None
    try:
        while True:
            try:
                if failure is not None:
                    raise failure
                if answer is None:
                    for call in editing:
                        answer = call(event)
                        if answer is event:
                            continue
                        kind = answer.__class__
                        # The two common answers, without a call of `settle`; `_verdict` handles all others.
                        if kind is CoroutineType:
                            answer = await answer
                            if faults.scope.stopped:  # the hook may have swallowed the cancellation (rule 5)
                                faults.check()
                        elif kind is Just:
                            answer = answer.value
                        if answer is not event and answer is not None:
                            break
                    else:
                        break
                # An answer other than the event ended the loop over the calls, or arrived from `run_chain`.
                verdict = await _verdict(chain, _current(chain, editing), event, answer, faults)
                if faults.scope.stopped:
                    faults.check()
            except asyncio.CancelledError as error:
                verdict = await _cancelled(chain, _current(chain, editing), event, error, faults)
            except Exception as error:
                verdict = await _failed(chain, _current(chain, editing), event, error, faults)
            # Both are evaluated, so the next iteration calls the next hook.
            failure = answer = None
            if verdict is not None:
                decided = _stronger(decided, verdict, _current(chain, editing))
                if chain.pre:
                    break
        # Rule 4: guards see the sealed event, and on a Pre event only if no editing hook has decided.
        if chain.guards and not (chain.pre and decided is not None):
            _put(event, "__class__", chain.kind)
            decided = await _run_guards(chain, event, faults, decided, chain.guards, None, None)
    except BaseException as error:  # the sealed event names the hook that failed
        decided = event.decision  # set if a guard failed
        if decided is None or decided.error is not error:
            decided = Decided(None, _current(chain, editing).hook.name if chain.editors else "", error)
        raise
    finally:
        failure = None  # its traceback may refer to this frame, in a cycle
        _put(event, "__class__", chain.kind)
        if decided is not None:
            _put(event, "decision", decided)
        # In `finally`, because observers also see events whose chain failed or was cancelled.
        if chain.observers:
            await _observe(chain, event, faults, chain.observers, None, None)


def _current(chain: Chain, editing: Iterator[Call]) -> ChainEntry:
    """Return the entry of the call that the iterator yielded last."""
    # An iterator over a tuple knows how many items are left, so the loops need not count.
    left = operator.length_hint(editing)
    return chain.editors[len(chain.editors) - left - 1]


def _continue(
    chain: Chain, event: Event, faults: Faults, reading: Iterator[Call], answer: Any, failure: BaseException | None
) -> Coroutine[Any, Any, None]:
    """Continue after a guard or an observer that failed or did not answer with the event itself."""
    guards, observers = chain.guards, chain.observers
    # `sealed_calls` lists guards, then observers. The call that answered last is counted too.
    left = operator.length_hint(reading) + 1
    if left > len(observers):
        return _guarded(chain, event, faults, guards[len(guards) + len(observers) - left :], answer, failure)
    return _observe(chain, event, faults, observers[len(observers) - left :], answer, failure)


async def _guarded(
    chain: Chain,
    event: Event,
    faults: Faults,
    remaining: tuple[ChainEntry, ...],
    answer: Any,
    failure: BaseException | None,
) -> None:
    """Continue after a guard that answered or failed. This guard is the first item of `remaining`."""
    decided: Decided | None = None
    try:
        decided = await _run_guards(chain, event, faults, None, remaining, answer, failure)
    finally:
        failure = None  # its traceback may refer to this frame, in a cycle
        if decided is not None:
            _put(event, "decision", decided)
        if chain.observers:
            await _observe(chain, event, faults, chain.observers, None, None)


async def _run_guards(
    chain: Chain,
    event: Event,
    faults: Faults,
    decided: Decided | None,
    remaining: tuple[ChainEntry, ...],
    answer: Any,
    failure: BaseException | None,
) -> Decided | None:
    """Call the remaining guards. The first of them may have answered or failed already."""
    for entry in remaining:
        try:
            verdict = await _answer(chain, entry, event, faults, answer, failure)
        except BaseException as error:  # the sealed event names the hook that failed
            _put(event, "decision", Decided(None, entry.hook.name, error))
            raise
        finally:
            answer = failure = None  # its traceback may refer to this frame, in a cycle
        if verdict is not None:
            decided = _stronger(decided, verdict, entry)
            if chain.pre:
                break
    return decided


async def _observe(
    chain: Chain,
    event: Event,
    faults: Faults,
    remaining: tuple[ChainEntry, ...],
    answer: Any,
    failure: BaseException | None,
) -> None:
    """Continue after an observer that answered or failed. All observers see the event; then the first relevant failure
    is raised."""
    first: BaseException | None = None
    by = ""
    try:
        for entry in remaining:
            if faults.abandoned:
                # Ends this chain as closing its coroutine would: the run has ended already, so no failure is reported.
                raise GeneratorExit("the run was abandoned")
            try:
                await _answer(chain, entry, event, faults, answer, failure)
            except GeneratorExit:  # the coroutine is being closed, so no further observer can be awaited
                raise
            except BaseException as error:  # all observers are called, then the first failure is raised
                first, by = (first, by) if first else (error, entry.hook.name)
            finally:
                answer = failure = None
        if first is not None:
            if event.decision is None or event.decision.error is None:
                _put(event, "decision", Decided(None, by, first))
            raise first
    finally:
        first = failure = None  # a traceback may refer to this frame, in a cycle


async def _answer(
    chain: Chain,
    entry: ChainEntry,
    event: Event,
    faults: Faults,
    answer: Any = None,
    failure: BaseException | None = None,
) -> Verdict | None:
    """Return the verdict of a guard or an observer on the sealed event. Call the hook unless it has answered or failed
    already."""
    try:
        if failure is not None:
            raise failure
        # `answer` is None only if the hook has not been called yet: a call that returned None needs no evaluation.
        result: Any = entry.call(event) if answer is None else answer
        if result is event or result is None:
            return None
        verdict = await _verdict(chain, entry, event, result, faults)
        # See rule 5 for observers.
        if faults.scope.stopped and not entry.hook.observer:
            faults.check()
        return verdict
    except asyncio.CancelledError as error:
        return await _cancelled(chain, entry, event, error, faults)
    except Exception as error:
        return await _failed(chain, entry, event, error, faults)
    finally:
        failure = None  # its traceback may refer to this frame, in a cycle


async def _verdict(chain: Chain, entry: ChainEntry, event: Event, result: Any, faults: Faults) -> Verdict | None:
    """Return the verdict of an answer, or None if the event continues. The values of a changed event are copied into it."""
    answer = await settle(result) if is_later(result) else result
    evaluated = evaluate(entry.hook, chain.kind, event, answer)
    if isinstance(evaluated, Event):
        for name in chain.kind.writable:
            value = getattr(evaluated, name)
            # The other values have passed the event's checks already.
            if value is not getattr(event, name):
                setattr(event, name, value)
        return None
    if isinstance(evaluated, Suspend) and faults.passes_suspend(event):
        return None
    return evaluated


def _stronger(before: Decided | None, verdict: Verdict, entry: ChainEntry) -> Decided:
    # Between equally strong verdicts, the earlier hook's counts.
    if before is not None and before.verdict is not None and before.verdict.strength >= verdict.strength:
        return before
    return Decided(verdict, entry.hook.name)


async def _failed(chain: Chain, entry: ChainEntry, event: Event, error: Exception, faults: Faults) -> Verdict | None:
    """Apply a hook's failure policy: return a verdict, return None to continue without the hook, or raise."""
    hook, kind = entry.hook, chain.kind
    # A shadow hook's failure does not change the run either.
    policy = "skip" if hook.shadow else hook.on_failure
    found = failure_of(hook, kind, event, error) if not hook.shadow else error
    if not isinstance(found, Exception):
        if not isinstance(error, Veto):  # a Veto is a decision, not a failure
            warn_denied(hook, kind.__name__, error, event)
        return found
    # A tool that has run cannot be denied, so its unchecked result is withheld instead.
    if policy == "deny" and isinstance(event, PostActing):
        warn_denied(hook, kind.__name__, found, event)
        _put(event, "tool_result", withheld_result(hook, event, found))
        return None
    found.add_note(FailureNote(f"raised by hook {label_of(entry.hook)} on {kind.__name__}"))
    # After a failure on a decision, the call must not continue; a notification only reports.
    decision = issubclass(kind, Decision) or (isinstance(event, Error) and event.fatal)
    if policy is None:
        policy = "skip" if hook.observer or not decision else "abort"
    if await faults.hook_failed(kind, hook, found, policy != "skip"):
        return None
    raise found


async def _cancelled(
    chain: Chain, entry: ChainEntry, event: Event, error: asyncio.CancelledError, faults: Faults
) -> Verdict | None:
    """Handle a `CancelledError` in a hook: re-raise it if the run was cancelled; otherwise report it as a failure of
    the hook.
    """
    if reason := faults.why_cancelled():
        # The run is cleaning up, and continues; a request that stays counted would look like a new cancellation.
        forget_cancellations()
    elif faults.is_cancelled():
        raise error
    failure = cancellation_error(entry.hook, chain.kind, reason)
    failure.__cause__ = error
    return await _failed(chain, entry, event, failure, faults)
