"""Run a turn, directly or from an agent's queue.

A turn runs as a `ToolCall`, as in the loop, with the same verdicts, lock, retries, time limit, chunks and cleanup. Only
the destination of its result differs: the result goes to the caller instead of a round.

Rules:

1. After a run, a turn always has a `stop_reason` and an `end_time` and is not `running`, even if hooks raise.
2. `PreTurn` comes first and `PostTurn` last, on every path. The caller receives the original error.
3. A value is handed to the reader before the tool continues; values are not collected.
4. A value with no work after it is handed over after the turn has ended. So a reader that stops after this value
   interrupts nothing, and may run the turn again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from functools import partial
from typing import Any

from agentflow._support.frozen import EMPTY
from agentflow._support.ids import new_id as fresh_id
from agentflow.errors import FailureNote, TurnDeniedError, TurnTimeoutError, UsageError
from agentflow.hooks.hook_set import FullHookSet
from agentflow.loop.bound_tool import FullBoundTool, StopReason
from agentflow.loop.config import LoopConfig
from agentflow.loop.endings import abandon_tasks, detach
from agentflow.loop.escalation import NotedOn
from agentflow.loop.journal import Journal
from agentflow.loop.run import Resumption, RunBase, RunSettings, TurnPlace
from agentflow.loop.session import FullSession
from agentflow.loop.stream import EventBuffer
from agentflow.loop.tool_call import ToolCall
from agentflow.loop.waits import Waits
from agentflow.tools.results import read_back
from agentflow.tools.signature import return_hint
from agentflow.tools.tool import full_tool
from agentflow.vocabulary.context import Compaction
from agentflow.vocabulary.events import Event, Origin, PostTurn, PreTurn, TurnValue, TurnView
from agentflow.vocabulary.facts import Fact
from agentflow.vocabulary.messages import Msg, Pending, ToolResultBlock, ToolUseBlock
from agentflow.vocabulary.specs import ModelOptions
from agentflow.vocabulary.verdicts import Answer, Deny

__all__ = ["TurnRun", "make_host", "make_run", "run_turn"]


class TurnRun(RunBase):
    """A run of a turn without a model: no conversation and no stored facts, but events, hooks, context and usage."""

    __slots__ = ("bound", "last", "route", "stop")

    can_halt = False

    stop: str | None
    """The reason if a hook of `PostActing` stops the queue."""
    route: Callable[[FullBoundTool], Awaitable[object]] | None
    """Handles turns that a tool returns or yields; None: they are values for the caller."""
    bound: FullBoundTool | None
    """The turn; None: the run only emits events of a queue."""
    last: Event | None
    """The value that the reader receives after the turn has ended."""

    async def deliver(self, turn: FullBoundTool, value: object, values: EventBuffer | None) -> None:
        """Pass a value of a turn to hooks and the reader. If the value is a turn, it is routed."""
        if isinstance(value, FullBoundTool) and self.route is not None:
            await self.events.emit(TurnValue, (turn.view, value))
            await self.route(value)  # after the event, which also shows values that are turns
            return
        event = await self.events.emit(TurnValue, (turn.view, value))
        if values is not None:
            # The turn's own reader needs the event, even if no hook handled it.
            await _put(values, event or self.events.sealed(TurnValue, (turn.view, value)))

    async def deliver_last(self, turn: FullBoundTool, value: object, values: EventBuffer | None) -> None:
        """Like `deliver`, for a value with no work after it; `hand_out` passes it to the reader."""
        if isinstance(value, FullBoundTool) and self.route is not None:
            await self.deliver(turn, value, None)
            return
        event = await self.events.emit(TurnValue, (turn.view, value))
        if values is not None:
            self.last = event or self.events.sealed(TurnValue, (turn.view, value))
        # No wait follows, so a cancellation that hooks swallowed would be lost here.
        self.scope.check()

    async def hand_out(self, values: EventBuffer | None) -> None:
        """Pass the last value to the reader after the turn has ended, if there is one."""
        event, self.last = self.last, None
        if event is not None and values is not None:
            await _put(values, event)

    def start(self, work: Coroutine[Any, Any, Any], values: EventBuffer | None = None) -> None:
        """Run the turn's work in its own task; `scope.result` waits for its value.

        Args:
            work: The coroutine to run.
            values: The buffer of its reader, which is woken when the work has ended.
        """
        self.scope.start(self._drive(work, values), partial(self._abandon, values))

    async def _drive(self, work: Coroutine[Any, Any, Any], values: EventBuffer | None) -> None:
        self.scope.state = "running"
        if self.scope.tasks.driver is None:  # an eager task
            self.scope.tasks.driver = asyncio.current_task()
        value: Any = None
        failure: BaseException | None = None
        try:
            value = await work
        except GeneratorExit:  # the event loop is closed, or the turn was abandoned
            if not self.events.abandoned:
                self._drop(values)
            raise
        except BaseException as error:  # the caller gets this error
            failure = error
        if self.events.abandoned:  # another task has finished the turn already
            return
        self.scope.finish(value, failure)
        failure = None  # its traceback holds this frame
        if values is not None:
            values.wake()

    def _abandon(self, values: EventBuffer | None) -> None:
        """Finish the turn if its task never started, or its cleanup does not finish."""
        scope, task = self.scope, self.scope.tasks.driver
        if task is None or task.done():
            self._drop(values)
            return
        notice = abandon_tasks(self, scope.tasks.cleanup_timeout, scope.tasks.running)
        clone = detach(self)
        scope.hand_to(clone._end_without_driver(notice, values), partial(clone._drop, values))

    async def _end_without_driver(self, notice: str, values: EventBuffer | None) -> None:
        """Finish the turn after its task was abandoned, with its `PostTurn`."""
        turn, error = self.bound, asyncio.CancelledError("the turn was abandoned")
        if turn is None:
            self._drop(values)
            return
        self.scope.adopt()
        raised = _caller_error(turn, self, error)
        with self.scope.cleanup():
            # Finished before `PostTurn`, whose hooks read the reason from the turn.
            turn.finish(_reason(turn, self, raised), self.config.clock.now(), None)
            await _report_end(turn, self, raised)
        raised.add_note(FailureNote(notice))
        self.end()
        turn.rest()
        self.scope.finish(None, raised)
        if values is not None:
            values.wake()

    def _drop(self, values: EventBuffer | None) -> None:
        """Finish the turn at once, without awaiting."""
        error: BaseException = asyncio.CancelledError("the turn was abandoned")
        if self.bound is not None:
            error = _caller_error(self.bound, self, error)
            self.bound.finish("interrupted", self.config.clock.now(), None)
            self.bound.rest()
        self.scope.finish(None, error)
        self.end()
        if values is not None:
            values.wake()

    @property
    def turn(self) -> TurnView | None:
        """The view of the turn for hooks."""
        return None if self.bound is None else self.bound.view

    def inject(self, messages: tuple[Msg, ...], keep: bool, source: str) -> None:
        """See `RunContext.inject`."""
        raise UsageError("context.inject: this turn runs without a model, so there is no conversation.")

    def compact(self, until: int, messages: tuple[Msg, ...]) -> Compaction:
        """See `RunContext.compact`."""
        raise UsageError("context.compact: this turn runs without a model, so there is no conversation.")

    async def complete(self, messages: tuple[Msg, ...], model: Any, source: str, options: ModelOptions) -> Msg:
        """See `RunContext.complete`."""
        if model is None and not self.config.model:
            raise UsageError(
                "context.complete: this turn belongs to no agent. Pass the model: complete(..., model=...)."
            )
        return await super().complete(messages, model, source, options)

    def end(self) -> None:
        """Break reference cycles after the turn."""
        self.release()
        self.settings.inherits = ()


async def _put(values: EventBuffer, event: Event) -> None:
    full = values.put(event)
    if full is not None:
        await full


class _TurnJournal(Journal):
    """The facts of a turn for its trace; there is no conversation."""

    __slots__ = ()

    def append(self, fact: Fact, *also: Fact, origin: Origin | None = None) -> None:
        """Record facts."""
        self.facts.extend((fact, *also))


class _TurnCall(ToolCall):
    """The tool call of a turn: its values and its exception are passed to the turn's caller."""

    error: Exception | None = None
    """The exception from which its result was made."""
    value: object = None
    """The value that its last attempt returned."""
    rendered: ToolResultBlock | None = None
    """That value as a result."""
    before_hooks: ToolResultBlock | None = None
    """Its result before the hooks of `PostActing` have changed it."""

    def __init__(self, turn: FullBoundTool, run: TurnRun, values: EventBuffer | None) -> None:
        super().__init__(run, ToolUseBlock(turn.id, turn.tool.name, turn.arguments), 0)
        if turn.tool.streaming:
            self.progress.consume = partial(run.deliver, turn, values=values)

    def key(self) -> str:
        return self.original.id  # the turn's id, since each run has another run id

    def _notice(self, error: Exception) -> None:
        self.error = error  # for the caller, so it is not logged

    def _rendered(self, value: object, checked: bool = True) -> ToolResultBlock:
        self.value = value
        self.rendered = rendered = super()._rendered(value, checked)
        return rendered

    def close(self) -> Awaitable[object] | None:
        self.before_hooks = self.result
        return super().close()

    def outcome(self) -> Any:
        """Return the turn's value after hooks.

        Raises:
            TurnDeniedError: It was denied.
            Exception: The exception of the tool.
        """
        name, result, verdict = self.use.name, self.result, self.verdict
        assert result is not None
        if self.effect.pending:
            raise TurnDeniedError(name, _missing(self.effect.pending))
        if isinstance(verdict, Deny):
            raise TurnDeniedError(name, verdict.reason)
        if result.state == "denied":
            raise TurnDeniedError(name, result.text)
        if self.error is not None and result.state != "success":
            try:
                raise self.error  # the caller gets the tool's own exception, not the text for a model
            finally:
                self.error = None  # its traceback holds this
        if result is not self.before_hooks:  # replaced by a hook of PostActing
            return self._read(result)
        if isinstance(verdict, Answer):
            return verdict.value.text if isinstance(verdict.value, ToolResultBlock) else verdict.value
        if self.rendered is not None and result.content is self.rendered.content:
            return self.value
        return self._read(result)  # replaced by a wrapping hook

    def _read(self, result: ToolResultBlock) -> object:
        tool = self.tool
        if tool is None or not isinstance(result.content, str):
            return result.text
        return read_back(result.content, return_hint(tool.function, {}))


def make_run(
    turn: FullBoundTool,
    config: LoopConfig,
    hooks: FullHookSet,
    deps: object,
    name: str,
    place: TurnPlace | None,
) -> TurnRun:
    """Return a run for a turn.

    Args:
        turn: The turn.
        config: The configuration of the agent, or a default one.
        hooks: The agent's hooks.
        deps: The tool's dependencies.
        name: The agent's name, for the source of nested runs.
        place: The tool call that started it, if there is one.
    """
    tool = full_tool(turn.tool).prepare()
    if turn.timeout != tool.timeout:
        tool = tool.limited(turn.timeout)
    process = config.process
    tags = config.tags | turn.tags
    scoped = hooks.inside(turn.hooks, process.matching(tags | tool.tags))
    # A tool with another limit or from another registry replaces the agent's tool of the same name, in this run only.
    tools = config.tools if config.tools.get(tool.name) is tool else {**config.tools, tool.name: tool}
    run = make_host(replace(config, tools=tools, tags=tags, system=None), scoped, deps, name, place)
    run.bound = turn
    if turn.approval is not None:
        decisions = {turn.id: turn.approval}
        # As if a suspended call had been resumed with the decision, so approvals need no path of their own.
        run.resumption = Resumption(decisions, decisions, EMPTY, True)
    return run


def make_host(config: LoopConfig, hooks: FullHookSet, deps: object, name: str, place: TurnPlace | None) -> TurnRun:
    """Return a run without a conversation; see `make_run`."""
    # A background task may outlive the run that started it: its turns then belong to no run.
    outer = None if place is None or place.run.finished else place
    parent = None if outer is None else outer.run
    source = ""
    if parent is not None:
        above = parent.settings.source
        source = f"{above}/{name}" if above and name else above or name
        hooks = hooks.with_hooks([hook for hook in parent.hooks if hook.scope == "tree"])
        if deps is None:
            deps = parent.settings.deps
    session = FullSession(fresh_id("session_"))
    run_id = config.new_id("run_")
    run = TurnRun(config, hooks, session, run_id, RunSettings(config.options, deps, None, source, parent))
    if outer is not None:
        run.scope.waits = Waits(config.clock.monotonic, outer.waits)
    run.journal = _TurnJournal(session, run.scope)
    run.stop = run.route = run.bound = run.last = None
    return run


async def run_turn(turn: FullBoundTool, run: TurnRun, values: EventBuffer | None) -> Any:
    """Run a turn from `PreTurn` to `PostTurn`, in the task of its run. Then call `run.hand_out` to pass the last value
    to the reader.

    Args:
        turn: The turn.
        run: A run from `make_run`.
        values: Receives its values; None: only the result is needed.

    Raises:
        SafeExecutionError: It is running.
        TurnDeniedError: It was denied.
        Exception: The exception of the tool or a hook.
    """
    try:
        turn.begin(run.config.clock.now())
    except BaseException:  # the turn never began
        run.end()
        raise
    try:
        try:
            value = await _perform(turn, run, values)
        except BaseException as error:  # every turn ends with PostTurn
            if run.events.abandoned:
                raise
            if isinstance(error, asyncio.CancelledError):
                run.scope.adopt()
            with run.scope.cleanup(error):
                raised = _caller_error(turn, run, error)
                turn.finish(_reason(turn, run, raised), run.config.clock.now(), None)
                await _report_end(turn, run, raised)
            try:
                if raised is error:
                    raise
                raise raised from error
            finally:
                del raised  # its traceback holds this frame
        if run.events.abandoned:
            raise GeneratorExit("the turn was abandoned")
        turn.finish("completed", run.config.clock.now(), value)
        try:
            await run.events.emit(PostTurn, (turn.view, None))
        except BaseException as error:  # the hooks of PostTurn failed, or were cancelled
            if not run.events.abandoned:
                turn.finish(_reason(turn, run, error), run.config.clock.now(), None)
            run.last = None
            raise
        return value
    finally:
        if not run.events.abandoned:
            run.end()
            # Last: the turn may be run again as soon as it does not count as running.
            turn.rest()


async def _perform(turn: FullBoundTool, run: TurnRun, values: EventBuffer | None) -> Any:
    """Emit `PreTurn`, make the tool call, and return the turn's value."""
    await run.events.emit(PreTurn, (turn.view,))
    call = _TurnCall(turn, run, values)
    await call.run_to_end()
    run.stop = call.effect.stop
    value = call.outcome()
    tool = call.tool  # a hook may have changed it
    streams = call.progress.consume is not None and tool is not None and tool.streaming
    if not streams or (call.rendered is None and not call.progress.delivered):  # or a verdict answered the turn
        await run.deliver_last(turn, value, values)
    return value


def _missing(pending: tuple[Pending, ...]) -> str:
    """Return the reason for which a turn is denied that needs a decision, since turns cannot wait for one."""
    wait = pending[0]
    if wait.within is not None:
        inner = "" if wait.tool_use is None else f" of {wait.tool_use.name!r}"
        return (
            f"its sub-agent {wait.source!r} waits for a decision on a call{inner}. Call that agent directly, and resume it "
            "with agent.resume(session, decisions)."
        )
    if wait.kind == "external":
        return "it must be answered from outside. Set turn.approval = Answer(value) and run it again."
    return "it needs approval. Set turn.approval = Approve() and run it again."


def _caller_error(turn: FullBoundTool, run: TurnRun, error: BaseException) -> BaseException:
    """Return the error for the caller: the error itself, or a `TurnDeniedError` for an interrupt, since an interrupt of
    the turn must not cancel its caller."""
    cause = run.scope.cause
    if cause is None or cause.kind != "interrupted" or not isinstance(error, asyncio.CancelledError):
        return error
    return TurnDeniedError(turn.tool.name, f"it was interrupted ({cause.reason})")


def _reason(turn: FullBoundTool, run: TurnRun, error: BaseException) -> StopReason:
    if isinstance(error, asyncio.CancelledError | KeyboardInterrupt | SystemExit):
        return "interrupted"
    if isinstance(error, TurnTimeoutError) and error.turn == turn.id:
        return "timeout"
    if isinstance(error, TurnDeniedError):
        cause = run.scope.cause
        return "interrupted" if cause is not None and cause.kind == "interrupted" else "denied"
    return "failed"


async def _report_end(turn: FullBoundTool, run: TurnRun, error: BaseException) -> None:
    """Emit `PostTurn` for a failed turn. Failures in its hooks are noted on the error."""
    with NotedOn(error, "turn"):
        await run.events.emit(PostTurn, (turn.view, error))
