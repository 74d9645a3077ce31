"""The chain: hooks in order, compiled per event type into a tuple of calls.

Rules:

1. Order: editing hooks, then guards, then observers; in each by ascending priority; ties by scope, then registration.
2. A hook's answer is the event, None (the same event, assignments included), a verdict, or any of these as an awaitable or
   observable (an empty one is None); anything else is a `HookContractError`.
3. On a Pre event the first verdict decides and the rest is skipped; on a Post event all run, the strongest counts
   (Suspend, then Stop, then Again).
4. When the editing hooks are done the event is sealed; guards and observers cannot write.
5. An exception keeps its type and gets a note that names hook, priority and event. Cancellation is never a failure; one
   that a hook swallows is raised behind it.
6. The order is settled when a chain is made, options of a hook become wrappers around its call then; running is one loop.
"""

from __future__ import annotations

import asyncio
import operator
from collections.abc import Callable, Coroutine, Iterator
from types import CoroutineType
from typing import Any, ClassVar, Protocol

from agentflow.errors import Aside, HookError
from agentflow.events import Decision, Error, Event, PostActing, PostReasoning
from agentflow.ground.values import NamedTuple
from agentflow.hooks.answers import failure_of, is_later, judge, label_of, settle, withheld
from agentflow.hooks.hook import Hook
from agentflow.hooks.options import Call
from agentflow.messages import Msg
from agentflow.reactive import Just
from agentflow.verdicts import Decided, Suspend, Verdict

__all__ = ["Chain", "Entry", "Faults", "NoRun", "run_chain"]

_put = object.__setattr__


class Entry(NamedTuple):
    """One hook in the chain of one event type."""

    call: Call
    hook: Hook


class Stoppable(Protocol):
    """A run's scope, as its chains know it."""

    stopped: bool
    """Whether the run's work must not continue."""


class Faults(Protocol):
    """Where a chain reports hooks that fail: the run."""

    abandoned: ClassVar[bool]
    """Whether the run was finished without the task that runs this chain: no further hook sees the event."""

    @property
    def scope(self) -> Stoppable:
        """Whether the run was cancelled."""
        ...

    async def hook_failed(self, kind: type[Event], hook: Hook, error: Exception, fatal: bool) -> bool:
        """A hook has failed.

        Args:
            kind: The event class it failed on.
            hook: The hook.
            error: What it raised.
            fatal: Whether its policy ends the call.

        Returns:
            Whether the chain goes on without the hook.
        """
        ...

    def passes_suspend(self, event: Event) -> bool:
        """Whether a `Suspend` on this event has been answered by resuming, so that it counts as pass."""
        ...

    def check(self) -> None:
        """Raise `CancelledError` if the run was cancelled, also if a hook has swallowed that: no further hook is called."""
        ...

    def cut_off(self) -> str:
        """Why the wait for a hook was cancelled although the run continues: its cleanup is late. Empty: it was not."""
        ...

    def is_cancelled(self) -> bool:
        """Whether a `CancelledError` is a cancellation of the run; else the hook has raised it itself."""
        ...


class _NeverStopped:
    stopped = False


class NoRun:
    """What a chain asks where no run drives it; a subclass says what becomes of failures."""

    scope: Stoppable = _NeverStopped()
    abandoned: ClassVar[bool] = False

    async def hook_failed(self, kind: type[Event], hook: Hook, error: Exception, fatal: bool) -> bool:
        """See `Faults.hook_failed`: each failure is raised."""
        return False

    def passes_suspend(self, event: Event) -> bool:
        """See `Faults.passes_suspend`."""
        return False

    def check(self) -> None:
        """See `Faults.check`."""

    def cut_off(self) -> str:
        """See `Faults.cut_off`."""
        return ""

    def is_cancelled(self) -> bool:
        """See `Faults.is_cancelled`."""
        task = asyncio.current_task()
        return task is not None and task.cancelling() > 0


class Chain:
    """The hooks of one event type, in order.

    Attributes:
        kind: The event class.
        editors: Those that may write.
        guards: Those that judge what the editors made of it.
        observers: Those that see the sealed result.
    """

    __slots__ = ("calls", "choosy", "editors", "guards", "kind", "observers", "pre")

    def __init__(
        self, kind: type[Event], editors: tuple[Entry, ...], guards: tuple[Entry, ...], observers: tuple[Entry, ...]
    ) -> None:
        self.kind = kind
        self.editors = editors
        self.guards = guards
        self.observers = observers
        # What the hot loop walks; the entry behind a call is looked up only when it is needed.
        self.calls = tuple(entry.call for entry in editors)
        self.pre = kind.__name__.startswith("Pre")
        hooks = [entry.hook for entry in (*editors, *guards, *observers)]
        self.choosy: tuple[Callable[[Msg], bool], ...] = ()
        if kind is PostReasoning and all(type(hook).concerns is not Hook.concerns for hook in hooks):
            self.choosy = tuple(hook.concerns for hook in hooks)

    def passes(self, reply: Msg) -> bool:
        """Whether a reply concerns none of the hooks."""
        for concerns in self.choosy:
            if concerns(reply):
                return False
        return bool(self.choosy)

    def without(self, hook: Hook) -> Chain | None:
        """The chain without one hook; None if nobody is left."""
        parts = [tuple(e for e in part if e.hook is not hook) for part in (self.editors, self.guards, self.observers)]
        return Chain(self.kind, *parts) if any(parts) else None

    def __iter__(self) -> Iterator[Entry]:
        yield from self.editors
        yield from self.guards
        yield from self.observers


def run_chain(chain: Chain, event: Event, faults: Faults) -> Coroutine[Any, Any, None] | None:
    """Pass an open event through its chain and seal it; what needs no waiting is done at once.

    Args:
        chain: The hooks.
        event: The event, in its open form; `event.decision` holds the verdict in the end, if there was one.
        faults: Told of hooks that fail.

    Returns:
        None: the event is through. Else the rest, to be awaited; it raises what a hook has raised, where its policy is to
        abort: the event is sealed then too, `event.decision.error` is the exception, and observers have seen it.
    """
    editing = iter(chain.calls)
    for call in editing:
        try:
            result = call(event)
        except BaseException as error:
            return _rest(chain, event, faults, editing, None, error)
        if result is not event and result is not None:
            return _rest(chain, event, faults, editing, result, None)
    _put(event, "__class__", chain.kind)
    if chain.guards:
        more = _ask(chain.guards, event)
        if more is not None:
            return _guarded(chain, event, faults, *more)
    if chain.observers:
        more = _ask(chain.observers, event)
        if more is not None:
            return _observe(chain, event, faults, *more)
    return None


async def _rest(
    chain: Chain, event: Event, faults: Faults, editing: Iterator[Call], answer: Any, failure: BaseException | None
) -> None:
    """Go on where an editing hook has answered more than "go on", or failed; and with guards and observers."""
    decided: Decided | None = None
    try:
        while True:
            try:
                if failure is not None:
                    raise failure
                if answer is not None:
                    first, answer = answer, None
                    verdict = await _verdict(chain, _current(chain, editing), event, first, faults)
                    if faults.scope.stopped:
                        faults.check()
                    if verdict is not None:
                        decided = _stronger(decided, verdict, _current(chain, editing))
                        if chain.pre:
                            break
                for call in editing:
                    result = call(event)
                    if result is event:
                        continue
                    kind = result.__class__
                    if kind is CoroutineType:
                        result = await result
                        if faults.scope.stopped:
                            faults.check()
                        if result is event or result is None:
                            continue
                    elif result is None:
                        continue
                    elif kind is Just:
                        result = result.value
                        if result is event or result is None:
                            continue
                    verdict = await _verdict(chain, _current(chain, editing), event, result, faults)
                    if faults.scope.stopped:
                        faults.check()
                    if verdict is not None:
                        decided = _stronger(decided, verdict, _current(chain, editing))
                        if chain.pre:
                            break
                break
            except asyncio.CancelledError as error:
                failure = None
                verdict = await _stray(chain, _current(chain, editing), event, error, faults)
            except Exception as error:
                failure = None
                verdict = await _failed(chain, _current(chain, editing), event, error, faults)
            if verdict is not None:
                decided = _stronger(decided, verdict, _current(chain, editing))
                if chain.pre:
                    break
        if chain.guards and not (chain.pre and decided is not None):
            _put(event, "__class__", chain.kind)
            decided = await _judge(chain, event, faults, decided, chain.guards, None, None)
    except BaseException as error:
        decided = event.decision  # a guard's, if it was one
        if decided is None or decided.error is not error:
            decided = Decided(None, _current(chain, editing).hook.name if chain.editors else "", error)
        raise
    finally:
        failure = None  # its traceback may hold this frame
        _put(event, "__class__", chain.kind)
        if decided is not None:
            _put(event, "decision", decided)
        if chain.observers:
            await _observe(chain, event, faults, chain.observers, None, None)


def _current(chain: Chain, editing: Iterator[Call]) -> Entry:
    """The entry whose call the iterator gave last."""
    left = operator.length_hint(editing)
    return chain.editors[len(chain.editors) - left - 1]


def _ask(entries: tuple[Entry, ...], event: Event) -> tuple[tuple[Entry, ...], Any, BaseException | None] | None:
    """Call guards or observers up to the first that answers more than "go on", or fails: the rest, its answer, its failure."""
    for place, entry in enumerate(entries):
        try:
            result = entry.call(event)
        except BaseException as error:
            return entries[place:], None, error
        if result is not event and result is not None:
            return entries[place:], result, None
    return None


async def _guarded(
    chain: Chain, event: Event, faults: Faults, left: tuple[Entry, ...], answer: Any, failure: BaseException | None
) -> None:
    """Go on where a guard has answered, or failed; `left` begins with it."""
    decided: Decided | None = None
    try:
        decided = await _judge(chain, event, faults, None, left, answer, failure)
    finally:
        failure = None  # its traceback may hold this frame
        if decided is not None:
            _put(event, "decision", decided)
        if chain.observers:
            await _observe(chain, event, faults, chain.observers, None, None)


async def _judge(
    chain: Chain,
    event: Event,
    faults: Faults,
    decided: Decided | None,
    left: tuple[Entry, ...],
    answer: Any,
    failure: BaseException | None,
) -> Decided | None:
    """Ask the guards that are left; the first of them may have given an answer, or failed, already."""
    for entry in left:
        try:
            verdict = await _answer(chain, entry, event, faults, answer, failure)
        except BaseException as error:
            _put(event, "decision", Decided(None, entry.hook.name, error))
            raise
        finally:
            answer = failure = None  # its traceback may hold this frame
        if verdict is not None:
            decided = _stronger(decided, verdict, entry)
            if chain.pre:
                break
    return decided


async def _observe(
    chain: Chain, event: Event, faults: Faults, left: tuple[Entry, ...], answer: Any, failure: BaseException | None
) -> None:
    """Go on where an observer has answered, or failed; the first failure that counts is raised when all have seen the event."""
    first: BaseException | None = None
    by = ""
    try:
        for entry in left:
            if faults.abandoned:
                raise GeneratorExit("the run was abandoned")
            try:
                await _answer(chain, entry, event, faults, answer, failure)
            except GeneratorExit:
                raise
            except BaseException as error:
                first, by = (first, by) if first else (error, entry.hook.name)
            finally:
                answer = failure = None
        if first is not None:
            if event.decision is None or event.decision.error is None:
                _put(event, "decision", Decided(None, by, first))
            raise first
    finally:
        first = failure = None  # a traceback may hold this frame


async def _answer(
    chain: Chain, entry: Entry, event: Event, faults: Faults, answer: Any = None, failure: BaseException | None = None
) -> Verdict | None:
    """What a guard or an observer says to the sealed event; it is asked, where it has not answered or failed yet."""
    try:
        if failure is not None:
            raise failure
        result: Any = entry.call(event) if answer is None else answer
        if result is event or result is None:
            return None
        verdict = await _verdict(chain, entry, event, result, faults)
        if faults.scope.stopped:
            faults.check()
        return verdict
    except asyncio.CancelledError as error:
        return await _stray(chain, entry, event, error, faults)
    except Exception as error:
        return await _failed(chain, entry, event, error, faults)
    finally:
        failure = None  # its traceback may hold this frame


async def _verdict(chain: Chain, entry: Entry, event: Event, result: Any, faults: Faults) -> Verdict | None:
    """The verdict that a hook returned; None: the event goes on, changed in place if need be."""
    answer = await settle(result) if is_later(result) else result
    judged = judge(entry.hook, chain.kind, event, answer)
    if isinstance(judged, Event):
        for name in chain.kind.writable:
            value = getattr(judged, name)
            if value is not getattr(event, name):
                setattr(event, name, value)
        return None
    if isinstance(judged, Suspend) and faults.passes_suspend(event):
        return None
    return judged


def _stronger(before: Decided | None, verdict: Verdict, entry: Entry) -> Decided:
    if before is not None and before.verdict is not None and before.verdict.strength >= verdict.strength:
        return before
    return Decided(verdict, entry.hook.name)


async def _failed(chain: Chain, entry: Entry, event: Event, error: Exception, faults: Faults) -> Verdict | None:
    """What a hook's failure comes to by its policy: a verdict; None, the chain goes on without the hook; or it is raised."""
    hook, kind = entry.hook, chain.kind
    policy = "skip" if hook.shadow else hook.on_failure
    found = failure_of(hook, kind, event, error) if not hook.shadow else error
    if not isinstance(found, Exception):
        return found
    if policy == "deny" and isinstance(event, PostActing):
        _put(event, "tool_result", withheld(hook, event, found))
        return None
    found.add_note(Aside(f"raised by hook {label_of(entry.hook)} on {kind.__name__}"))
    decision = issubclass(kind, Decision) or (isinstance(event, Error) and event.fatal)
    if policy is None:
        policy = "skip" if hook.observer or not decision else "abort"
    if await faults.hook_failed(kind, hook, found, policy != "skip"):
        return None
    raise found


async def _stray(
    chain: Chain, entry: Entry, event: Event, error: asyncio.CancelledError, faults: Faults
) -> Verdict | None:
    """Tell a cancellation of the run from a hook that was cut off, or raises `CancelledError` itself: a failing hook."""
    kind = chain.kind.__name__
    if why := faults.cut_off():
        failure = HookError(f"Hook {label_of(entry.hook)!r} was cut off while it handled {kind}: {why}.")
    elif faults.is_cancelled():
        raise error
    else:
        failure = HookError(
            f"Hook {label_of(entry.hook)!r} raised CancelledError on {kind}, although nobody cancelled the run."
        )
    failure.__cause__ = error
    return await _failed(chain, entry, event, failure, faults)
