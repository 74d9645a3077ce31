"""Runs a random program in virtual time and records everything that can be observed."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from itertools import count
from typing import Any, ClassVar, TypeVar

from clocks import LoopClock
from laws_programs import AroundPlan, HookPlan, Path, Piece, Program
from reactivex import operators as ops

from agentflow import Agent, Hook, Msg, ToolUseBlock, tool
from agentflow.errors import HookError, ModelError, UsageError, Veto
from agentflow.loop.schedule import ToolSchedule
from agentflow.loop.session import Session
from agentflow.loop.states import State
from agentflow.reactive import Flux, Mono, SourceTimeoutError
from agentflow.testing import ScriptedModel, VirtualClockLoop
from agentflow.tools.tool_context import ToolContext, ToolEmitter
from agentflow.vocabulary.chunks import ModelChunk, ToolUseDelta
from agentflow.vocabulary.context import RunContext
from agentflow.vocabulary.events import (
    Event,
    PostReasoning,
    PreActing,
    PreCall,
    PreReasoning,
    PreToolRound,
)
from agentflow.vocabulary.facts import Fact
from agentflow.vocabulary.messages import Reply, TextBlock, ThinkingBlock, ToolResultBlock
from agentflow.vocabulary.ports.memory_store import MemoryStore
from agentflow.vocabulary.ports.model import ModelRequest
from agentflow.vocabulary.specs import ModelOptions, Usage
from agentflow.vocabulary.verdicts import Again, Answer, Approve, Deny, Recover, Stop, Suspend

T = TypeVar("T")
FOREVER = 1_000_000.0
HANGS = 50_000.0


class Bang(BaseException):
    """A signal: no Exception, no cancellation."""


class PlantedError(Exception):
    """The error that hooks, tools and models of a program raise."""


class Stuck(AssertionError):  # noqa: N818 - a state of the run
    """The run waits for something that never happens."""


class SlowStore(MemoryStore):
    """Stores facts one turn of the loop later than requested."""

    def append(self, session_id: str, facts: Sequence[Any], *, expected: int | None = None) -> Any:
        async def later() -> None:
            await asyncio.sleep(0.01)
            MemoryStore.append(self, session_id, facts, expected=expected)

        return later()

    def load(self, session_id: str) -> Any:
        async def later() -> Sequence[Any]:
            await asyncio.sleep(0)
            return MemoryStore.load(self, session_id)

        return later()


# ---- running

SOAK = os.environ.get("AGENTFLOW_LAWS") == "soak"
"""Whether garbage is collected behind each run."""

REAL_SECONDS = int(os.environ.get("AGENTFLOW_LAWS_SECONDS", "30"))
"""Real time that a run may take; a machine that does much else needs more."""


def _closes_dropped(task: Any) -> bool:
    """The error of a call whose reader has gone can be reported to the loop only."""
    return isinstance(task, asyncio.Task) and task.get_name() == "agentflow: closing a dropped stream"


_RUNS = count(1)


def run(main: Callable[[], Coroutine[Any, Any, T]], seconds: int = REAL_SECONDS) -> T:
    """Run to the end in virtual time; fail if anything hangs or leaks."""
    if SOAK:
        if next(_RUNS) % 100 == 0:  # frozen objects are never collected: without this, all worlds and their tasks stay
            gc.unfreeze()
            gc.collect()
        gc.freeze()  # the collection after the run sees the run's objects only, not those of the generator of programs
    loop = VirtualClockLoop()
    loose: list[str] = []

    def report(_: object, context: dict[str, Any]) -> None:
        if not _closes_dropped(context.get("future")):
            loose.append(f"{context['message']}: {context.get('exception')!r}")

    loop.set_exception_handler(report)
    hook, sys.unraisablehook = sys.unraisablehook, lambda found: loose.append(f"unraisable: {found.exc_value!r}")

    def alarm(*_: object) -> None:
        raise Stuck(f"no end after {seconds} s of real time\n{_stacks(loop)}")

    before = signal.signal(signal.SIGALRM, alarm)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        result = loop.run_until_complete(main())
        loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        for task in asyncio.all_tasks(loop):
            task.cancel()
        if any(True for _ in asyncio.all_tasks(loop)):
            loop.run_until_complete(_turns(20))
        loop.close()
        if SOAK:
            gc.collect()
        sys.unraisablehook = hook
    assert not loose, f"reported to the loop or lost: {loose}"
    return result


async def _turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def _stacks(loop: asyncio.AbstractEventLoop | None = None) -> str:
    lines: list[str] = []
    for task in asyncio.all_tasks(loop):
        frames = [f"{f.f_code.co_filename.rpartition('/')[2]}:{f.f_lineno}" for f in task.get_stack()]
        coro: Any = task.get_coro()
        while coro is not None:
            frame = getattr(coro, "cr_frame", None) or getattr(coro, "ag_frame", None)
            if frame is not None:
                frames.append(f"{frame.f_code.co_qualname}:{frame.f_lineno}")
            coro = getattr(coro, "cr_await", None)
        lines.append(f"{task.get_name()}: {' > '.join(frames)}")
    return "\n".join(lines)


# ---- what was seen


class Seen:
    """The observable outcome of one call.

    Attributes:
        observed: The events of the first observer.
        last: The events of the last observer.
        read: The events of the reader.
        reply: The reply.
        error: The error that the call raised.
        left: Whether the call was ended from outside (and whether in time).
        seconds: Its duration in virtual time.
    """

    def __init__(self) -> None:
        self.observed: list[Event] = []
        self.last: list[Event] = []
        self.read: list[Event] = []
        self.unedited: dict[int, Msg] = {}
        self.reply: Reply | None = None
        self.error: BaseException | None = None
        self.left: str | None = None
        self.hooked_cancel = False
        self.seconds = 0.0


class Recorder(Hook):
    """The first observer: records each event as its chain left it."""

    observer = True
    priority = -1_000

    def __init__(self, world: World) -> None:
        self.world = world

    def on_event(self, event: Any) -> None:
        assert event.sealed
        assert event.source == "", event.source
        self.world.seen.observed.append(event)


class Last(Hook):
    """The last observer: sees what the first one saw, whatever the observers between them do."""

    observer = True
    priority = 1_000

    def __init__(self, world: World) -> None:
        self.world = world

    def on_event(self, event: Any) -> None:
        self.world.seen.last.append(event)


class First(Hook):
    """Sees the reply before any hook edits it."""

    priority = -1_000
    events = (PostReasoning,)

    def __init__(self, world: World) -> None:
        self.world = world

    def on_event(self, event: Any) -> None:
        self.world.seen.unedited[id(event)] = event.reasoning_result


class Beating(ScriptedModel):
    """A model whose cleanup awaits a task that it has cancelled."""

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelChunk]:
        """Stream the next line of the script."""
        beat = asyncio.ensure_future(asyncio.Event().wait())
        try:
            async with contextlib.aclosing(super().stream(request)) as chunks:
                async for chunk in chunks:
                    yield chunk
        finally:
            beat.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await beat


class Quiet(ScriptedModel):
    """A model whose stream ends normally when it is cancelled."""

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelChunk]:
        """Stream the next line of the script."""
        with contextlib.suppress(asyncio.CancelledError):
            async with contextlib.aclosing(super().stream(request)) as chunks:
                async for chunk in chunks:
                    yield chunk


_MODELS = {"plain": ScriptedModel, "beats": Beating, "quiet": Quiet}


class World:
    """An agent with a program's model, tools and hooks, and the program's way to call it.

    Attributes:
        given: Further arguments of the agent.
        named: The id of its session, if the program names one.
        patience: How long to wait for tasks that hooks have started.
    """

    given: ClassVar[dict[str, Any]] = {}
    named = "s"
    patience = FOREVER

    def __init__(self, program: Program, store: Any = None, record: bool = True) -> None:
        self.program = program
        self.armed = True
        self.seen = Seen()
        self.calls: list[Seen] = []
        self.ran: Counter[str] = Counter()
        self.acted: set[str] = set()
        self.said = 0
        self.ids: Counter[str] = Counter()
        self.model = self.make_model()
        self.store = store or (SlowStore() if program.store == "slow" else MemoryStore())
        self.fresh: Session | None = None
        self.closer: asyncio.Task[None] | None = None
        self.done = False
        self.kept: list[Any] = []
        self.spawned: list[asyncio.Task[Any]] = []
        hooks: list[Hook] = [Planned(self, plan) for plan in program.hooks]
        hooks += [Wrapping(self, plan) for plan in program.arounds]
        if record:
            hooks += [Recorder(self), First(self), Last(self)]
        self.agent = Agent(
            "agent",
            self.model,
            system="Be brief." if program.system else None,
            tools=self.make_tools(),
            **self.given,
            hooks=hooks,
            max_iterations=program.max_iterations,
            schedule=getattr(ToolSchedule, program.schedule).limit(3),
            store=self.store,
            clock=LoopClock(),
            new_id=self.new_id,
        )

    def make_model(self) -> Any:
        """Return the agent's model, which follows the program."""
        return _MODELS[self.program.cleanup](self._say)

    def make_tools(self) -> list[Any]:
        """Return the tools of the agent."""
        return make_tools(self)

    def new_id(self, prefix: str) -> str:
        self.ids[prefix] += 1
        return f"{prefix}{self.ids[prefix]}"

    @property
    def session_key(self) -> str | Session | None:
        kind = self.program.session
        if kind == "fresh":
            if self.fresh is None:
                self.fresh = Session.fresh([Msg.user("before"), Msg.assistant("yes")] if self.program.earlier else [])
            return self.fresh
        return self.named if kind == "named" else None

    @property
    def session(self) -> Session:
        key = self.session_key
        return key if isinstance(key, Session) else self.agent.session(key)

    @property
    def history(self) -> tuple[Msg, ...]:
        return tuple(self.session.messages)

    # -- the model

    def _say(self, request: ModelRequest) -> list[Any]:
        said, self.said = self.said, self.said + 1
        if not self.armed or said >= len(self.program.replies):
            return ["done"]
        pieces = self.program.replies[said]
        calls = 0
        line: list[Any] = []
        for piece in pieces:
            line.append(_piece(piece, calls))
            calls += piece.kind == "call"
        return line

    # -- calling

    async def call(self, words: str = "hi", *, resume: dict[str, Any] | None = None, path: Path | None = None) -> Seen:
        """Make one call in the program's way and wait until it has ended."""
        self.seen = seen = Seen()
        self.calls.append(seen)
        if resume is not None:
            self.acted.add("suspended and resumed")
        path = path or self.program.path
        loop = asyncio.get_running_loop()
        began = loop.time()
        bare = path.kind == "cancel-task" and resume is None
        where: dict[str, Any] = {"session": self.session_key, "timeout": path.timeout}
        body = self.agent.call(words, **where) if bare else self._body(seen, path, words, resume)
        task = loop.create_task(
            body, name="caller"
        )  # not kept: with it its traceback, and so a stream it reads, would be
        if path.kind.startswith("cancel"):
            self._later(path.at, lambda: self._cancel(task, seen))
        if path.second is not None:
            second = self._cancel if path.second == "cancel" else lambda _task, seen: self._interrupt(seen)
            self._later(path.at + path.again, lambda: second(task, seen))
        self.done = False
        done, _ = await asyncio.wait([task], timeout=FOREVER)
        self.done = True
        seen.seconds = loop.time() - began
        if self.closer is not None:
            closed, _ = await asyncio.wait([self.closer], timeout=FOREVER)
            if not closed:
                raise Stuck(f"aclose() never ends\n{_stacks()}")
            # A hook that cancels the task it runs in may have hit the one that closes, and a layer may just be failing.
            if self.closer.cancelled():
                excused = seen.hooked_cancel
            else:
                actions = {plan.action for plan in self.program.arounds}
                told = self.closer.exception()
                excused = (
                    isinstance(told, SourceTimeoutError) and not actions.isdisjoint(("timeout", "deadline"))
                ) or (isinstance(told, HookError) and "cancelled" in actions)
            if not excused:
                self.closer.result()
            self.closer = None
        if not done:
            raise Stuck(f"the call never ends\n{_stacks()}")
        if task.cancelled():
            seen.error = asyncio.CancelledError()
        elif task.exception() is not None:
            seen.error = task.exception()
        else:
            seen.reply = task.result()
        return seen

    def _cancel(self, task: asyncio.Task[Any], seen: Seen) -> None:
        if not task.done():
            over = any(type(e).__name__ == "CallEnded" for e in seen.observed)
            seen.left = "late" if over else "cancelled"
            task.cancel()

    def _later(self, turns: int, act: Callable[[], None]) -> None:
        loop = asyncio.get_running_loop()
        if turns <= 0:
            act()
        else:
            loop.call_later(0.1, self._later, turns - 10, act) if turns > 20 else loop.call_soon(
                self._later, turns - 1, act
            )

    async def _body(self, seen: Seen, path: Path, words: str, resume: dict[str, Any] | None) -> Reply | None:
        where: dict[str, Any] = {"session": self.session_key, "timeout": path.timeout}
        if path.kind == "interrupt":
            self._later(path.at, lambda: self._interrupt(seen))
        if path.kind in ("call", "cancel-call", "cancel-task", "interrupt"):
            if resume is None:
                return await self.agent.call(words, **where)
            return await self.agent.resume(decisions=resume, **where)
        flux = (
            self.agent.stream(words, **where) if resume is None else self.agent.resume_stream(decisions=resume, **where)
        )
        if path.kind == "break":
            events = flux.__aiter__()
            count = 0
            async for event in events:
                seen.read.append(event)
                count += 1
                if count > path.at:
                    break
            return None
        async with flux as events:
            if path.kind == "close-elsewhere":
                self.closer = self._closes(seen, events, path.at)
            try:
                async for event in events:
                    seen.read.append(event)
                    if path.slow_reader:
                        await asyncio.sleep(0.1)
                    if path.kind == "close" and len(seen.read) > path.at:
                        seen.left = "closed"
                        break
                    if path.kind == "throw" and len(seen.read) > path.at:
                        seen.left = "thrown"
                        raise PlantedError("the reader")
            except asyncio.CancelledError:
                if path.kind != "close-elsewhere" or path.second == "cancel":
                    raise
        return None

    def _interrupt(self, seen: Seen) -> None:
        if seen is self.seen and not self.done and self.agent.interrupt(self.session_key, "outside"):
            seen.left = seen.left or "interrupted"

    def _closes(self, seen: Seen, events: Any, at: int) -> asyncio.Task[None]:
        async def close() -> None:
            for _ in range(at):
                await asyncio.sleep(0 if at < 20 else 0.05)
            seen.left = "closed"
            await events.aclose()

        return asyncio.get_running_loop().create_task(close(), name="closer")

    async def settle(self) -> None:
        """Wait until abandoned streams are closed. Another test shows that this needs no garbage collector."""
        gc.collect()
        for _ in range(5):
            await asyncio.sleep(0)
        closing = [task for task in asyncio.all_tasks() if _closes_dropped(task)]
        if closing and (await asyncio.wait(closing, timeout=FOREVER))[1]:
            raise Stuck(f"a dropped stream is never closed\n{_stacks()}")
        await asyncio.sleep(1_000)

    def tasks(self) -> set[asyncio.Task[Any]]:
        """Return the tasks other than the current one."""
        return {task for task in asyncio.all_tasks() if task is not asyncio.current_task()}

    async def facts(self) -> list[Fact]:
        """Return the stored facts of the named session."""
        return list(MemoryStore.load(self.store, self.named))

    # -- what hooks do outside of their stage

    def spawn(self, source: Any, lag: float) -> None:
        """Subscribe to a source in a task of a hook's own."""

        async def later() -> None:
            await asyncio.sleep(lag)
            await (source.to_list() if isinstance(source, Flux) else source)

        self.spawned.append(asyncio.get_running_loop().create_task(later(), name="a hook's"))

    async def subscribe_late(self) -> None:
        """Subscribe to the sources that hooks have kept, and wait for their tasks: each subscription raises an error,
        without effect.
        """
        if self.spawned:
            _, waiting = await asyncio.wait(self.spawned, timeout=self.patience)
            for task in waiting:  # a race with what never comes, whose other side the stage has taken along
                task.cancel()
            await asyncio.gather(*self.spawned, return_exceptions=True)
        before = await self._state()
        for source in self.kept:
            try:
                await (source.to_list() if isinstance(source, Flux) else source)
            except UsageError:
                continue
            except (Exception, asyncio.CancelledError):
                pass
            assert len(self.program.arounds) > 1, "a source that was kept can be subscribed"  # (others' are their own)
        self.kept.clear()
        self.spawned.clear()
        assert await self._state() == before, "a source that was kept has done something behind its stage"

    async def _state(self) -> list[Any]:
        return [self.history, await self.facts(), self.said, dict(self.ran), len(self.seen.observed)]

    def save(self) -> None:
        """A waiting session can be saved and continued from there, also a session that belongs to the caller."""
        loaded = Session.from_json(self.session.to_json())
        assert tuple(loaded.messages) == self.history
        assert loaded.pending == self.session.pending
        if self.program.session == "fresh":
            self.fresh = loaded

    def decisions(self, kind: int = 0) -> dict[str, Any]:
        """Return decisions for all pending calls: another message for an agent used as a tool, another `x` for other
        tools.
        """
        made: dict[str, Any] = {}
        for n, waits in enumerate(self.session.pending):
            use = waits.tool_use
            edited = {"message": "Go on."} if use is not None and "message" in use.raw else {"x": 5}
            if waits.kind != "parked":
                made[waits.id] = (Approve(), Deny("no"), Answer("given"), Approve(input=edited))[(kind + n) % 4]
        return made


def _piece(piece: Piece, calls: int) -> Any:
    match piece.kind:
        case "text":
            return ModelChunk(piece.text)
        case "think":
            return ModelChunk(thinking=piece.text, signature="sig" if piece.text == "signed" else None, model="m")
        case "call":
            return ModelChunk(tool_uses=(ToolUseDelta(calls, piece.id, piece.name, piece.args),))
        case "sleep":
            return lambda: asyncio.sleep(1)
        case "usage":
            return ModelChunk(usage=Usage(input_tokens=3, output_tokens=2))
        case "finish":
            return ModelChunk(finish_reason="length")
        case "restart":
            return ModelChunk("again: ", restart=True)
        case "raise-base":
            return Bang("model")
        case _:
            return ModelError("the model broke", retryable=True)


# ---- tools


def make_tools(world: World) -> list[Any]:
    """Return one tool of each kind; all take `x`."""
    ran = world.ran

    def plain(
        name: str, kind: str, nap: float = 0.0, error: Callable[[], BaseException] | None = None, **more: Any
    ) -> Any:
        async def work(x: int = 0) -> str:
            ran[name] += 1
            if nap:
                await asyncio.sleep(nap)
            if error is not None:
                raise error()
            return f"{name} {x}"

        return tool(name=name, type=kind, **more)(work)

    async def flow(x: int = 0) -> AsyncIterator[str]:
        ran["flow"] += 1
        for piece in "abc":
            await asyncio.sleep(0.2)
            yield piece

    async def flow_bad(x: int = 0) -> AsyncIterator[int]:
        ran["flow_bad"] += 1
        yield 1
        raise PlantedError("in the midst of a flow")

    async def talk(emitter: ToolEmitter, context: ToolContext, x: int = 0) -> str:
        ran["talk"] += 1
        for n in range(3):
            await emitter.emit(n)
            await asyncio.sleep(0.1)
        return "talked"

    async def injects(context: RunContext, x: int = 0) -> str:
        ran["injects"] += 1
        context.inject("from a tool")
        context.inject("for once", keep=False)
        return "injected"

    async def cleans(x: int = 0) -> str:
        ran["cleans"] += 1
        try:
            await asyncio.sleep(50)
        finally:
            await asyncio.sleep(0.3)
        return "cleaned"

    async def recurses(x: int = 0) -> str:
        ran["recurses"] += 1
        return (await world.agent.call("of my own", session=world.session_key)).text

    async def halt(context: RunContext, x: int = 0) -> str:
        ran["halt"] += 1
        context.interrupt("a tool")
        return "halted"

    return [
        plain("look", "research"),
        plain("read", "read"),
        plain("save", "write"),
        plain("slow_look", "research", 1.0),
        plain("slow_read", "read", 2.0),
        plain("slow_save", "write", 1.5),
        plain("boom", "read", 0.1, lambda: PlantedError("tool")),
        plain("kick", "read", 0.0, lambda: asyncio.CancelledError("tool's own")),
        plain("bang", "write", 0.1, lambda: Bang("tool")),
        plain("lasts", "read", 100.0, timeout=1.0),
        tool(type="read")(flow),
        tool(type="write")(flow_bad),
        tool(type="read")(talk),
        tool(type="read")(injects),
        plain("ask", "write", requires_approval=True),
        plain("again", "write", 0.3, idempotent=True),
        tool(type="read", timeout=None)(cleans),
        tool(type="read", timeout=None)(recurses),
        tool(type="read")(halt),
        plain("denies", "read", 0.0, lambda: Veto("tool's own veto")),
    ]


# ---- hooks


class Planned(Hook):
    """Follows its plan."""

    def __init__(self, world: World, plan: HookPlan) -> None:
        self.world = world
        self.plan = plan
        self.count = 0
        self.guard = plan.role == "guard"
        self.observer = plan.role == "observer"
        self.on_failure = plan.on_failure
        self.priority = plan.priority
        self.serial = plan.serial

    @property
    def name(self) -> str:
        return f"{self.plan.role} {self.plan.event} {self.plan.action}"

    def on_event(self, event: Any) -> Any:
        plan = self.plan
        if type(event).__name__ != plan.event or not self.world.armed:
            return event
        self.count += 1
        if plan.nth and self.count != plan.nth:
            return event
        self.world.acted.add("hook acts")
        if plan.style == "async" or plan.action in _ASYNC:
            return self._async(event)
        if plan.style == "mono":
            return Mono.defer(lambda: Mono.just(self._act(event)))
        return self._act(event)

    async def _async(self, event: Any) -> Any:
        match self.plan.action:
            case "sleep":
                await asyncio.sleep(0.7)
            case "hang":
                await asyncio.sleep(HANGS)
            case "swallow":
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.sleep(3)
            case "complete":
                await event.context.complete("a side question")
            case "recurse":
                await self.world.agent.call("of my own", session=self.world.session_key)
            case _:
                await asyncio.sleep(0)
                return self._act(event)
        return event

    def _act(self, event: Any) -> Any:
        action = self.plan.action
        if ":" in action:
            return _edit(event, action)
        verdict = _VERDICTS.get(action)
        return verdict() if verdict is not None else self._misbehave(event, action)

    def _misbehave(self, event: Any, action: str) -> Any:
        context: RunContext = event.context
        match action:
            case "raise":
                raise PlantedError(f"hook on {self.plan.event}")
            case "raise-veto":
                raise Veto("hook's veto")
            case "raise-cancelled":
                raise asyncio.CancelledError("hook's own")
            case "raise-base":
                raise Bang("hook")
            case "raise-stop-iteration":
                raise StopAsyncIteration
            case "half-edit-raise":
                _edit(event, _HALF.get(self.plan.event, "options"))
                raise PlantedError("half-way")
            case "cancel":
                task = asyncio.current_task()
                assert task is not None
                self.world.seen.hooked_cancel = True
                task.cancel()
            case "interrupt":
                context.interrupt("a hook")
            case "inject-raise":
                context.inject("injected")
                raise PlantedError("behind an injection")
            case "inject-interrupt":
                context.inject("injected")
                context.interrupt("a hook")
            case "inject":
                context.inject("injected")
            case "inject-assistant":
                context.inject(Msg.assistant("a thought"))
            case "inject-transient":
                context.inject("once", keep=False)
            case "compact":
                context.compact(len(context.history) // 2, [Msg.assistant("what was")])
            case _:
                return 42
        return event


_ASYNC = ("sleep", "hang", "swallow", "complete", "recurse")
_HALF = {
    "PreCall": "messages:dup",
    "PreReasoning": "messages:drop",
    "PostReasoning": "calls:add",
    "PreActing": "use:rename",
    "PostActing": "result:text",
    "PostCall": "final:text",
}
_VERDICTS: dict[str, Callable[[], Any]] = {
    "Deny": lambda: Deny("not that"),
    "Answer": lambda: Answer("the answer"),
    "AnswerBad": lambda: Answer(42),
    "AnswerNone": lambda: Answer(None),
    "AnswerCalls": lambda: Answer(_asking()),
    "Again": lambda: Again("try again"),
    "AgainNothing": Again,
    "Stop": lambda: Stop("enough"),
    "Suspend": lambda: Suspend({"why": "wait"}),
    "Recover": lambda: Recover("recovered"),
    "RecoverBad": lambda: Recover(42),
    "RecoverCalls": lambda: Recover(_asking()),
}


def _asking() -> Msg:
    return Msg.assistant(["I look. ", ToolUseBlock("t1", "read", {"x": 1})])


def _edit(event: Any, action: str) -> Any:
    field, _, how = action.partition(":")
    if field == "messages":
        event.input_messages = _messages(list(event.input_messages), how)
    elif field == "tools":
        event.tools = ()
    elif field == "options":
        event.options = ModelOptions(temperature=0.5)
    elif field in ("calls", "reply"):
        event.reasoning_result = _reply(event, how)
    elif field == "use":
        return event.replace(tool_use=_use(event.tool_use, how))
    elif field == "result":
        result: ToolResultBlock = event.tool_result
        target = "foreign" if how == "foreign" else result.tool_use_id
        event.tool_result = ToolResultBlock(target, "other", "" if how == "empty" else "edited")
    else:
        made = {"text": [TextBlock("edited")], "blank": [TextBlock(" ")], "calls": [ToolUseBlock("z1", "save", {})]}
        return event.replace(final_message=Msg.assistant(made[how]))
    return event


def _messages(messages: list[Msg], how: str) -> list[Msg]:
    match how:
        case "drop":
            return messages[1:]
        case "dup":
            return messages + messages
        case "reverse":
            return messages[::-1]
        case "rotate":
            return messages[2:] + messages[:2]
        case "halve":
            return messages[len(messages) // 2 :]
        case "assistant":
            return [*messages, Msg.assistant("as I said")]
        case _:
            return [*messages, Msg.system("late orders")]


def _reply(event: Any, how: str) -> Msg:
    before: Msg = event.reasoning_result
    uses = before.tool_uses
    match how:
        case "drop":
            content: list[Any] = [b for b in before.content if not isinstance(b, ToolUseBlock)]
        case "dup":
            content = [*before.content, *uses]
        case "add":
            content = [*before.content, ToolUseBlock("added", "read", {"x": 9})]
        case "reuse":
            content = [*before.content, ToolUseBlock("t1", "save", {"x": 9})]
        case "text":
            content = [TextBlock("edited")]
        case "blank":
            content = [TextBlock("  ")]
        case _:
            content = [ThinkingBlock("thoughts only")]
    return Msg.assistant(content, usage=before.usage, finish_reason=before.finish_reason)


def _use(use: ToolUseBlock, how: str) -> ToolUseBlock:
    match how:
        case "rename":
            return use.replace(name="save")
        case "unknown":
            return use.replace(name="gone")
        case "input":
            return use.replace(input={"x": 7})
        case _:
            return use.replace(id="other")


class Wrapping(Hook):
    """Wraps a stage according to its plan."""

    def __init__(self, world: World, plan: AroundPlan) -> None:
        self.world = world
        self.plan = plan
        self.count = 0

    @property
    def name(self) -> str:
        return f"around {self.plan.stage} {self.plan.action}"

    def around(self, event: Any, source: Any) -> Any:
        plan = self.plan
        kinds = {"PreCall": PreCall, "PreReasoning": PreReasoning, "PreToolRound": PreToolRound, "PreActing": PreActing}
        if not isinstance(event, kinds[plan.stage]) or not self.world.armed:
            return source
        self.count += 1
        if plan.nth and self.count != plan.nth:
            return source
        self.world.acted.add("around acts")
        return self._common(event, source) or self._special(event, source)

    def _common(self, event: Any, source: Any) -> Any:
        flux = isinstance(source, Flux)
        match self.plan.action:
            case "raise":
                raise PlantedError("around")
            case "veto":
                raise Veto("around's veto")
            case "error":
                return Flux.error(PlantedError("around")) if flux else Mono.error(PlantedError("around"))
            case "cancelled":
                return Mono.error(asyncio.CancelledError("around's own")) if not flux else source.map(_cancelled)
            case "empty":
                return Flux.empty() if flux else Mono.empty()
            case "retry":
                return source.retry(2)
            case "catch":
                return source.catch(lambda _error, _source: _stand_in(event, flux))
            case "timeout":
                return source.timeout(0.5)
            case "deadline":
                return source.deadline(0.5)
            case "junk":
                return 42
            case "tap":
                return source.pipe(ops.map(lambda value: value))
            case _:
                return self._often(source, flux) or self._behind(event, source, flux)

    def _often(self, source: Any, flux: bool) -> Any:
        """Whether a source is subscribed to more than once, or in a task of an operator."""
        match self.plan.action:
            case "twice":
                return Flux.concat(source, source) if flux else source.then(source)
            case "at-once":
                return source.zip(source).map(lambda both: both[0])
            case "hedge":
                return source.amb(source.delay_subscription(self.plan.lag))
            case "race":
                # A hook that cancels its task ends the stage's side of the race: the other would be waited for for good.
                ends = any(hook.action == "cancel" for hook in self.world.program.hooks)
                return source if ends else source.amb(Flux.never() if flux else Mono.never())
            case "zip":
                return Flux.merge(source, Flux.empty()) if flux else source.zip(Mono.just(1)).map(lambda both: both[0])
            case "switch":
                return Flux.just(1).switch_map(lambda _: source) if flux else Mono.just(1).flat_map(lambda _: source)
            case _:
                return None

    def _behind(self, event: Any, source: Any, flux: bool) -> Any:
        """Whether a source is read outside of its stage, or a cancellation is hidden from it."""
        match self.plan.action:
            case "late":
                self.world.kept.append(source)
                return source.map(lambda value: value)
            case "beside":
                self.world.spawn(source, self.plan.lag)
                return source
            case "background":
                self.world.spawn(source, self.plan.lag)
                return _stand_in(event, flux)
            case "swallow":
                return Flux(lambda: _pulled(source)) if flux else Mono(lambda: _awaited(event, source))
            case _:
                return None

    def _special(self, event: Any, source: Any) -> Any:
        flux = isinstance(source, Flux)
        match self.plan.action:
            case "using":
                return source.using(input_messages=[Msg.assistant("odd"), *event.input_messages[1:]]).retry(1)
            case "map":
                return source.map(_changed)
            case "take1":
                return source.take(1)
            case "merge":
                return Flux.merge(Flux.empty(), source)
            case "chunks":
                return source.chunks(lambda pieces: pieces.map(lambda piece: f"{piece}."))
            case "drop":
                return source.map(lambda results: results[1:])
            case "dup":
                return source.map(lambda results: results + results)
            case "reverse":
                return source.map(lambda results: results[::-1])
            case "map-calls":
                return source.map(lambda _: _asking())
            case "just-calls":
                return Flux.just(ModelChunk.of(_asking())) if flux else Mono.just(_asking())
            case "then-error":
                return source.then(Mono.error(PlantedError("behind the rest of the call")))
            case _:
                return _stand_in(event, flux)


async def _pulled(source: Any) -> AsyncIterator[Any]:
    try:
        async for value in source:
            yield value
    except asyncio.CancelledError:
        yield ModelChunk("never mind")


async def _awaited(event: Any, source: Any) -> Any:
    try:
        return await source
    except asyncio.CancelledError:
        return await _stand_in(event, False)


def _cancelled(value: object) -> object:
    raise asyncio.CancelledError("around's own")


def _changed(value: Any) -> Any:
    if isinstance(value, ModelChunk) and value.text:
        return ModelChunk(value.text.upper())
    if isinstance(value, ToolResultBlock):
        return ToolResultBlock("elsewhere", value.name, "mapped")
    return Msg.assistant("mapped") if isinstance(value, Msg) else value


def _stand_in(event: Any, flux: bool) -> Any:
    if flux:
        return Flux.just(ModelChunk("stand-in", finish_reason="stop"))
    if isinstance(event, PreActing):
        return Mono.just(ToolResultBlock(event.tool_use.id, event.tool_use.name, "stand-in"))
    if isinstance(event, PreToolRound):
        return Mono.just(tuple(ToolResultBlock(u.id, u.name, "stand-in") for u in event.tool_uses))
    return Mono.just(Msg.assistant("stand-in"))


async def facts_of(program: Program) -> list[Fact]:
    """Return the facts of a program's first call and of its resumes."""
    world = World(program)
    await world.call()
    world.armed = False
    for _ in range(5):
        if world.session.machine.state is State.SUSPENDED:
            await world.call(resume=world.decisions(), path=Path("call"))
    return await world.facts()
