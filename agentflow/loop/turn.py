"""`Turn`: a tool bound to arguments, run by hand or by an agent's queue.

A call of the loop and a turn are one thing: both are an `Acting`, with the same verdicts, lock, retries, time limit,
pieces and cleanup. What differs is who asked for it, and so where its result goes: into a round, or to whoever awaits it.

Rules:

1. A turn runs once at a time. While it runs nothing but `metadata` can be assigned; when it is over it may run again.
2. Whatever happens, hooks that raise included, it ends: with a `stop_reason` and an `end_time`, and not "running".
3. `PreTurn` comes first and `PostTurn` last, on every path; the error that the caller gets is the original one.
4. A value is handed to the reader before the tool goes on; nothing is collected on the way.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Mapping
from dataclasses import replace
from enum import StrEnum
from typing import Any, Final, Generic, Literal, TypedDict, TypeVar, Unpack, cast, overload

from pydantic_core import PydanticSerializationError, to_jsonable_python

from agentflow.chunks import ModelChunk
from agentflow.errors import SafeExecutionError, TurnDeniedError, TurnTimeoutError, UsageError, WrongRunMethodError
from agentflow.events import HookEvent, PostTurn, PreTurn, TurnValue, TurnView
from agentflow.facts import Fact
from agentflow.frozen import FrozenDict
from agentflow.hooks.chain import HookSet
from agentflow.hooks.hook import Hook
from agentflow.hooks.scope import HookScope, ProcessHooks, Registered, process_hooks
from agentflow.ids import new_id
from agentflow.loop.acting import Acting
from agentflow.loop.pieces import Transform
from agentflow.loop.run import LoopConfig, RunBase, TurnPlace, current_turn
from agentflow.loop.schedule import ToolSchedule
from agentflow.loop.session import Session
from agentflow.loop.stream import EventStream, Port
from agentflow.loop.view import View
from agentflow.messages import Msg, ToolResultBlock, ToolUseBlock
from agentflow.ports.clock import SystemClock
from agentflow.reactive import CallMono, Flux
from agentflow.specs import Clock, ModelOptions
from agentflow.tools.registry import ToolRegistry, default_tools
from agentflow.tools.tool import Tool
from agentflow.verdicts import Answer, Deny, Resolution

__all__ = ["StopReason", "Turn", "TurnOptions", "TurnRun", "make_host", "make_run", "run_turn"]

T = TypeVar("T")
V = TypeVar("V")
_put = object.__setattr__
_CLOCK: Final[Clock] = SystemClock()
_OPTIONS: Final = ModelOptions()
_NO_TOOLS: Final[Mapping[str, Tool[..., Any]]] = {}


class StopReason(StrEnum):
    """How a turn ended."""

    COMPLETED = "completed"
    TIMEOUT = "timeout"
    ERROR = "error"
    CANCELLED = "cancelled"
    DENIED = "denied"


class TurnOptions(TypedDict, total=False):
    """The keywords of `Turn`."""

    timeout: float | None
    """Seconds for the await or the whole stream of one attempt; the tool's own by default (60), None is no limit."""
    tags: Iterable[str]
    """Labels; process-wide hooks are chosen by them."""
    hooks: Iterable[Hook]
    """Hooks of this turn alone."""
    metadata: Mapping[str, Any]
    """Anything that shall travel with it; the only thing that may change while it runs."""
    deps: object
    """What the tool asks for by type."""
    approval: Resolution | None
    """The decision on a tool that needs an approval."""
    tools: ToolRegistry
    """Where a tool given by name is looked up; `default_tools` by default."""
    process_hooks: ProcessHooks
    """The process-wide hooks; the default ones by default."""
    id: str
    """Its id; a fresh one by default."""


class Turn(Generic[T]):
    """A tool bound to arguments.

    Args:
        tool: The tool, or its name in a registry.
        arguments: By name. They are data, as a model would send them (pydantic models, dates and enums are turned into
            it); what is not data, such as a connection, goes into `deps`.
        options: See `TurnOptions`.

    Attributes:
        id: Its id.
        tool: The tool.
        arguments: The arguments, frozen.
        timeout: Seconds that one attempt may take.
        tags: Its labels.
        metadata: Free data; may change at any time.
        deps: What the tool asks for by type.
        approval: The decision on a tool that needs an approval.
        sender: The agent that sent it, and the run it was sent from.
        start_time: When it last began, in seconds since the epoch; None: never.
        end_time: When it last ended; None: never, or it runs.
        stop_reason: How it last ended; None: never, or it runs.
        output: What the tool returned; of a stream the last value.

    Raises:
        UsageError: No such tool, arguments that are no data, an option that cannot hold.

    Example:
        >>> @tool
        ... async def add(a: int, b: int) -> int:
        ...     return a + b
        >>> turn = Turn(add, {"a": 1, "b": 2})
        >>> await turn.returning()
        3
        >>> turn.stop_reason
        <StopReason.COMPLETED: 'completed'>
    """

    id: str
    tool: Tool[..., Any]
    arguments: Mapping[str, Any]
    timeout: float | None
    tags: frozenset[str]
    metadata: dict[str, Any]
    deps: object
    approval: Resolution | None
    sender: str
    sender_run: str
    start_time: float | None
    end_time: float | None
    stop_reason: StopReason | None
    output: T | None
    _scope: HookScope
    _process: ProcessHooks
    _running: bool
    _queued: str

    @overload
    def __init__(
        self: Turn[V],
        tool: Tool[..., Coroutine[Any, Any, V]],
        arguments: Mapping[str, Any] | None = None,
        /,
        **options: Unpack[TurnOptions],
    ) -> None: ...
    @overload
    def __init__(
        self: Turn[V],
        tool: Tool[..., AsyncIterator[V]],
        arguments: Mapping[str, Any] | None = None,
        /,
        **options: Unpack[TurnOptions],
    ) -> None: ...
    @overload
    def __init__(
        self: Turn[Any], tool: str, arguments: Mapping[str, Any] | None = None, /, **options: Unpack[TurnOptions]
    ) -> None: ...
    def __init__(
        self, tool: Any, arguments: Mapping[str, Any] | None = None, /, **options: Unpack[TurnOptions]
    ) -> None:
        unknown = options.keys() - TurnOptions.__annotations__.keys()
        if unknown:
            raise UsageError(
                f"Turn({tool!r:.40}, ...) got {', '.join(sorted(unknown))}; options are "
                f"{', '.join(TurnOptions.__annotations__)}. The tool's arguments are one mapping: Turn(tool, {{'a': 1}})."
            )
        found = options.get("tools", default_tools)[tool] if isinstance(tool, str) else tool
        if not isinstance(found, Tool):
            raise UsageError(f"Turn(...) takes a tool or its registered name, not {type(tool).__name__} ({tool!r:.60}).")
        put = self.__dict__
        put.update(_running=False, _queued="")
        put["_process"] = options.get("process_hooks", process_hooks)
        put["_scope"] = HookScope()
        self.id = options.get("id") or new_id("turn_")
        self.tool = cast("Tool[..., Any]", found)
        self.arguments = arguments or {}
        self.timeout = options.get("timeout", found.timeout)
        self.tags = cast("frozenset[str]", options.get("tags", ()))
        self.metadata = dict(options.get("metadata", {}))
        self.deps = options.get("deps")
        self.approval = options.get("approval")
        put.update(sender="", sender_run="", start_time=None, end_time=None, stop_reason=None, output=None)
        for hook in options.get("hooks", ()):
            self._scope.add(hook)

    def __setattr__(self, name: str, value: object) -> None:
        if name == "metadata":
            value = dict(cast("Mapping[str, Any]", value))
        elif self._running:
            raise SafeExecutionError(
                f"Turn {self.id!r} of tool {self.tool.name!r} is running, so {name} cannot be assigned; wait for its end. "
                "Only metadata may change meanwhile."
            )
        elif name == "arguments":
            value = _as_data(self.tool.name, cast("Mapping[str, Any]", value))
        elif name == "timeout" and value is not None and not cast("float", value) > 0:
            raise UsageError(f"Turn of {self.tool.name!r}: timeout={value!r}; legal are seconds above 0, or None.")
        elif name == "tags":
            value = frozenset((value,) if isinstance(value, str) else cast("Iterable[str]", value))
        _put(self, name, value)

    @property
    def running(self) -> bool:
        """Whether it runs now."""
        return self._running

    @property
    def queued(self) -> str:
        """The agent whose queue it waits in; empty where it does not."""
        return self._queued

    def enter(self, agent: str) -> None:
        """It is in an agent's queue from here."""
        self.__dict__["_queued"] = agent

    def leave(self) -> None:
        """It is in no queue any more."""
        self.__dict__["_queued"] = ""

    @property
    def hooks(self) -> tuple[Hook, ...]:
        """The hooks of this turn alone."""
        return self._scope.hooks

    def hook(self, hook: Hook) -> Registered:
        """Register a hook on this turn; returns a disposable that takes it off.

        Raises:
            SafeExecutionError: The turn is running.
        """
        self._check_idle("a hook cannot be registered on it")
        return self._scope.add(hook)

    def on(self, *targets: Any, **options: Any) -> Any:
        """Register a function on this turn: `@turn.on(PostTurn)`; arguments as in `agentflow.on`."""
        self._check_idle("a hook cannot be registered on it")
        return self._scope.on(*targets, **options)

    @property
    def view(self) -> TurnView:
        """What hooks may know of it."""
        use = ToolUseBlock(self.id, self.tool.name, self.arguments)
        return TurnView(
            id=self.id,
            tool_use=use,
            timeout=self.timeout,
            stop_reason=self.stop_reason,
            tags=self.tags,
            sender=self.sender,
            sender_run=self.sender_run,
        )

    def returning(self) -> CallMono[T]:
        """Run a tool that returns one value.

        Returns:
            A Mono of the value: await it. Each await is a run of its own.

        Raises:
            WrongRunMethodError: The tool is an async generator: use `yielding()`.
            SafeExecutionError: The turn is running.
            TurnTimeoutError: It passed its time limit, and was cancelled.
            TurnDeniedError: A hook refused it, or it needs an approval.
            Exception: What the tool raised.
        """
        self.check_method("returning")
        return CallMono(self._returning, "turn.returning()")

    def yielding(self) -> Flux[T]:
        """Run a tool that is an async generator.

        Returns:
            A Flux of its values. The tool makes one when the reader asks for it; closing the Flux runs the tool's
            cleanup, once, before `aclose()` returns (after a bare `break`: at the next turn of the event loop).

        Raises:
            WrongRunMethodError: The tool returns one value: use `returning()`.
            SafeExecutionError: The turn is running.
        """
        self.check_method("yielding")

        async def start(port: Port) -> None:
            run = _by_hand(self, port)
            port.run = run
            await run_turn(self, run, port)

        return cast("Flux[T]", Flux[HookEvent](lambda: EventStream(start)).map(_value_of))

    def check_method(self, method: Literal["returning", "yielding"]) -> None:
        """Refuse the method that is not the tool's, and a turn that is running.

        Raises:
            WrongRunMethodError: The other one is.
            SafeExecutionError: The turn is running.
        """
        if self.tool.streaming is (method == "returning"):
            kind = "an async generator" if self.tool.streaming else "a coroutine function"
            right = "yielding" if self.tool.streaming else "returning"
            raise WrongRunMethodError(
                f"Turn.{method}() on tool {self.tool.name!r}, which is {kind}; nothing was run. Use {right}()."
            )
        self._check_idle("it cannot be run a second time meanwhile")

    def _check_idle(self, what: str) -> None:
        if self._running:
            raise SafeExecutionError(
                f"Turn {self.id!r} of tool {self.tool.name!r} is running: {what}. Wait for its end, or make another turn."
            )

    async def _returning(self) -> T:
        return await run_turn(self, _by_hand(self, None), None)

    def copy(self) -> Turn[T]:
        """Another turn of the same tool, arguments, options and hooks, that has not run."""
        made = Turn[T].__new__(Turn)
        made.__dict__.update(self.__dict__)
        made.__dict__.update(
            id=new_id("turn_"),
            metadata=dict(self.metadata),
            _scope=HookScope(self._scope.hooks),
            _running=False,
            _queued="",
            start_time=None,
            end_time=None,
            stop_reason=None,
            output=None,
        )
        return made

    def send_by(self, agent: str, run_id: str) -> None:
        """Note who sent it."""
        self._check_idle("it cannot be sent")
        self.__dict__.update(sender=agent, sender_run=run_id)

    def begin(self, now: float) -> None:
        """It runs from here.

        Raises:
            SafeExecutionError: It does already.
        """
        self._check_idle("it cannot be run a second time meanwhile")
        self.__dict__.update(_running=True, start_time=now, end_time=None, stop_reason=None, output=None)

    def finish(self, reason: StopReason, now: float, output: object) -> None:
        """It is over; hooks of `PostTurn` are told, and then it is not running any more."""
        self.__dict__.update(stop_reason=reason, end_time=now, output=output)

    def rest(self) -> None:
        """It is not running any more."""
        self.__dict__["_running"] = False

    def __repr__(self) -> str:
        state = "running" if self._running else self.stop_reason.value if self.stop_reason else "not run"
        return f"Turn({self.tool.name!r}, {dict(self.arguments)!r:.60}, {state})"


def _as_data(tool: str, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    if not isinstance(arguments, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance] - input from outside
        raise UsageError(
            f"Turn of {tool!r}: the arguments are a mapping by name, not {type(arguments).__name__}: Turn(tool, {{'a': 1}})."
        )
    plain: dict[str, Any] = {}
    for name, value in arguments.items():
        try:
            plain[name] = to_jsonable_python(value)
        except PydanticSerializationError as error:
            raise UsageError(
                f"Turn of {tool!r}: argument {name!r} is {type(value).__name__}, which is no data ({error}). Live objects "
                "are dependencies: annotate the parameter with their class and pass Turn(..., deps=...)."
            ) from error
    return FrozenDict(plain)


def _value_of(event: HookEvent) -> object:
    assert isinstance(event, TurnValue)
    return event.value


class TurnRun(RunBase):
    """What runs a turn that no model asked for: no conversation, nothing stored; events, hooks, context and cost as ever."""

    stop: str | None = None
    """A hook of `PostActing` wants the queue to end."""
    route: Callable[[Turn[Any]], Awaitable[object]] | None = None
    """Where turns go that a tool returns or yields; None: to the caller, like any value."""

    async def give(self, turn: Turn[Any], value: object, port: Port | None) -> None:
        """Hand a value of a turn to hooks and reader; a turn is routed."""
        route = self.route if isinstance(value, Turn) else None
        await self.fire(TurnValue, port if route is None else None, turn.view, value)
        if route is not None:
            await route(cast("Turn[Any]", value))

    def note(self, fact: Fact, origin: Any = "injected") -> None:
        """There is no session to keep it; the trace reads it."""
        self.fact_list.append(fact)

    def inject(self, messages: tuple[Msg, ...], keep: bool, source: str) -> None:
        """See `RunContext.inject`."""
        raise UsageError("context.inject: this turn was run without a model, so there is no conversation to add to.")

    def compact(self, until: int, messages: tuple[Msg, ...]) -> None:
        """See `RunContext.compact`."""
        raise UsageError("context.compact: this turn was run without a model, so there is no conversation.")

    async def complete(self, messages: tuple[Msg, ...], model: Any, source: str) -> Msg:
        """See `RunContext.complete`."""
        if model is None and not self.config.model:
            raise UsageError("context.complete: this turn belongs to no agent, so name the model: complete(..., model=...).")
        return await super().complete(messages, model, source)

    def passes_suspend(self, event: object) -> bool:
        """An approval answers a `Suspend`."""
        return self.resuming

    def cut(self) -> None:
        """Nothing can be awaited any more."""
        self.over = True


class _TurnActing(Acting):
    """The acting of a turn: its limit is the turn's, its values go to whoever runs it."""

    __slots__ = ("made", "produced", "turn")

    def __init__(self, turn: Turn[Any], run: TurnRun, port: Port | None) -> None:
        super().__init__(run, ToolUseBlock(turn.id, turn.tool.name, turn.arguments), 0, None)
        self.turn = turn
        self.made: ToolResultBlock | None = None
        self.produced: ToolResultBlock | None = None
        if turn.tool.streaming:

            async def hand_out(value: object) -> None:
                await run.give(turn, value, port)

            self.tap = hand_out

    def limit_of(self, tool: Tool[..., Any]) -> float | None:
        return self.turn.timeout if tool is self.turn.tool else tool.timeout

    async def work(self, transform: Transform | None) -> ToolResultBlock:
        self.made = made = await super().work(transform)
        return made

    async def close(self) -> None:
        self.produced = self.result
        await super().close()

    def outcome(self) -> Any:
        """The turn's value, as hooks left it.

        Raises:
            TurnDeniedError: It was refused.
            Exception: What the tool raised.
        """
        name, result, verdict = self.use.name, self.result, self.verdict
        assert result is not None
        if self.pending:
            raise TurnDeniedError(name, "it needs an approval. Set turn.approval = Approve() and run it again.")
        if isinstance(verdict, Deny):
            raise TurnDeniedError(name, verdict.reason)
        if result.state == "denied":
            raise TurnDeniedError(name, result.text)
        if self.failure is not None and result.state != "success":
            raise self.failure
        if result is not self.produced:  # a hook of PostActing has replaced it
            return result.text
        if isinstance(verdict, Answer):
            return verdict.value.text if isinstance(verdict.value, ToolResultBlock) else verdict.value
        if self.made is not None and result.content is self.made.content:
            return self.value
        return result.text  # a wrapping hook has


def _by_hand(turn: Turn[Any], port: Port | None) -> TurnRun:
    view = View("", "", (turn.tool.spec,), "")
    config = LoopConfig(
        view, "", None, _NO_TOOLS, (), (), _OPTIONS, 1, ToolSchedule.BY_TYPE, _CLOCK, new_id, process=turn._process
    )
    return make_run(turn, config, HookSet(), turn.deps, "", current_turn.get(), port)


def make_run(
    turn: Turn[Any],
    config: LoopConfig,
    hooks: HookSet,
    deps: object,
    name: str,
    place: TurnPlace | None,
    port: Port | None,
) -> TurnRun:
    """What runs a turn.

    Args:
        turn: The turn.
        config: Of the agent whose queue it is in, or of nobody.
        hooks: That agent's.
        deps: For the tool.
        name: The agent's name, for the source of what runs within another run.
        place: Where it was asked for: in which tool call of which run.
        port: The reader of its values.
    """
    tool = turn.tool.prepare()
    process = config.process
    tags = config.tags | turn.tags
    scoped = hooks.inside(turn.hooks, process.matching(tags | tool.tags))
    tools = config.tools if config.tools.get(tool.name) is tool else {**config.tools, tool.name: tool}
    run = make_host(replace(config, tools=tools, tags=tags, system=None), scoped, deps, name, place, port)
    if turn.approval is not None:
        run.resuming = True
        run.decisions = {turn.id: turn.approval}
    return run


def make_host(
    config: LoopConfig, hooks: HookSet, deps: object, name: str, place: TurnPlace | None, port: Port | None
) -> TurnRun:
    """A run without a conversation; see `make_run`."""
    parent = None if place is None or place.run.over else place.run
    source = ""
    if parent is not None:
        above = parent.frame.source
        source = f"{above}/{name}" if above and name else above or name
        hooks = hooks.with_hooks([hook for hook in parent.hooks if hook.scope == "tree"])
        if deps is None:
            deps = parent.deps
    session = Session.fresh()
    run_id = config.new_id("run_")
    run = TurnRun(config, hooks, session, run_id, config.options, deps, None, source, parent, port, False)
    run.port = None  # only values go to the reader
    return run


async def run_turn(turn: Turn[T], run: TurnRun, port: Port | None) -> T:
    """Run a turn from `PreTurn` to `PostTurn`.

    Args:
        turn: The turn.
        run: Made by `make_run`.
        port: Where its values go; None: only the result counts.

    Raises:
        SafeExecutionError: It is running.
        TurnDeniedError: It was refused.
        Exception: What the tool, or a hook, raised.
    """
    turn.begin(run.now())
    run.task = task = asyncio.current_task()
    if run.reader is None and task is not None:
        run.base = task.cancelling()
    try:
        try:
            value = await _performed(turn, run, port)
        except GeneratorExit:
            turn.finish(StopReason.CANCELLED, run.now(), None)
            raise
        except BaseException as error:
            run.absorb(error)
            shown = _shown(turn, run, error)
            turn.finish(_reason(turn, run, shown), run.now(), None)
            await _told(turn, run, shown)
            if shown is not error:
                raise shown from error
            raise
        turn.finish(StopReason.COMPLETED, run.now(), value)
        try:
            await run.fire(PostTurn, None, turn.view, None)
        except BaseException as error:
            turn.finish(_reason(turn, run, error), run.now(), None)
            raise
        return value
    finally:
        run.over = True
        run._context = run._frame = None
        turn.rest()


async def _performed(turn: Turn[Any], run: TurnRun, port: Port | None) -> Any:
    await run.fire(PreTurn, None, turn.view)
    acting = _TurnActing(turn, run, port)
    await acting.whole()
    run.stop = acting.stop
    value = acting.outcome()
    if not turn.tool.streaming:
        await run.give(turn, value, port)
    return value


def _shown(turn: Turn[Any], run: TurnRun, error: BaseException) -> BaseException:
    """What the caller gets: the error itself, but for an interrupt, which is no cancellation of the caller."""
    reason = run.interrupted()
    if reason is None or not isinstance(error, asyncio.CancelledError):
        return error
    return TurnDeniedError(turn.tool.name, f"it was interrupted ({reason})")


def _reason(turn: Turn[Any], run: TurnRun, error: BaseException) -> StopReason:
    if isinstance(error, asyncio.CancelledError):
        return StopReason.CANCELLED
    if isinstance(error, TurnTimeoutError) and error.turn == turn.id:
        return StopReason.TIMEOUT
    if isinstance(error, TurnDeniedError):
        return StopReason.CANCELLED if run.interrupting is not None else StopReason.DENIED
    return StopReason.ERROR


async def _told(turn: Turn[Any], run: TurnRun, error: BaseException) -> None:
    """Fire `PostTurn` for a turn that failed; what fails there is noted on the error."""
    try:
        await run.fire(PostTurn, None, turn.view, error)
    except GeneratorExit:
        raise
    except BaseException as problem:
        run.absorb(problem)
        error.add_note(f"while the turn was being closed: {type(problem).__name__}: {problem}")
