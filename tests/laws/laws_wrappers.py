"""Random programs of wrappers: up to three `around` hooks over a model or tool that misbehaves, cancelled at a random
place.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import AsyncIterator, Callable, Sequence, Set
from dataclasses import dataclass
from typing import Any, Final

from hypothesis import strategies as st
from laws_checks import check_history

from agentflow import Agent, Flux, Hook, ModelChunk, Mono, PreActing, PreReasoning, tool
from agentflow.errors import CallTimeoutError, HookError, UsageError
from agentflow.loop.history import fold_events, fold_facts
from agentflow.reactive.signals import EMPTY
from agentflow.testing import ScriptedModel
from agentflow.vocabulary.chunks import ToolUseDelta
from agentflow.vocabulary.events import CallEnded, Event, PostActing, PostToolRound, PreToolRound
from agentflow.vocabulary.messages import ToolResultBlock
from agentflow.vocabulary.ports.memory_store import MemoryStore
from agentflow.vocabulary.ports.model import ModelRequest

FOREVER: Final = 1e6
BACKSTOP: Final = 50_000.0
"""The time limit of a call that nothing else ends."""
CLEANUP: Final = 5.0
LIMIT: Final = 3.0
"""The time limits that wrappers have; models that stream and calls that are read at once stay below it."""
SLOW_CLEANUP: Final = 2.0
PARTS: Final = ("a ", "b ", "c ", "d")
FULL: Final = "".join(PARTS)


class PlantedError(Exception):
    """The error that models, tools and wrappers of a program raise."""


@dataclass(frozen=True)
class Program:
    """A random program.

    Attributes:
        place: What is wrapped: the `model`, a `tool`, or the `chunks` of a tool.
        wrappers: Kinds of wrappers, the outermost first.
        source: How the model or tool behaves.
        faults: The number of attempts with this behaviour; later ones stream everything.
        cut: How the call is ended early.
        events: After how many events.
        seconds: And so much time.
        turns: And so many turns of the event loop.
        buffer: How many events the call is ahead of its reader.
        pause: Seconds that the reader takes for each event.
    """

    place: str
    wrappers: tuple[str, ...]
    source: str = "streams"
    faults: int = 1
    cut: str = "none"
    events: int = 0
    seconds: float = 0.0
    turns: int = 0
    buffer: int = 8
    pause: float = 0.0


# ---- models and tools


class World:
    """What a program observes and counts during its run.

    Attributes:
        open: How many models and tools are at work.
        attempts: How often one was started.
        cached: The replies that caches have kept, as text, with the position of the wrapper.
        foreign: How often a task of a wrapper's own could read a source.
        wrong: What the reader noticed that must not happen.
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        self.armed = True
        self.open = 0
        self.attempts = 0
        self.cached: list[tuple[int, str]] = []
        self.foreign: list[int] = []
        self.kept: list[Any] = []
        self.wrong: list[str] = []
        self.seen: list[Event] = []
        self.ended_at: float | None = None
        self.cut_at: float | None = None

    def limit(self, kind: str) -> asyncio.Timeout:
        """The time limit that a model or tool holds open over its `yield`."""
        return asyncio.timeout(LIMIT if kind == "limited" and self.armed else None)

    async def parts(self, kind: str) -> AsyncIterator[str]:
        """Return the parts of one reply or tool result, as its kind produces them."""
        self.open += 1
        try:
            async with contextlib.aclosing(self._parts(kind)) as parts:
                async for part in parts:
                    yield part
        finally:
            self.open -= 1

    async def _parts(self, kind: str) -> AsyncIterator[str]:
        self.attempts += 1
        if not self.armed or self.attempts > self.program.faults:
            kind = "streams"
        behaviour = SOURCES[kind]
        async with contextlib.aclosing(behaviour()) as parts:
            async for part in parts:
                yield part


async def _at_once() -> AsyncIterator[str]:
    for part in PARTS:
        yield part


async def _streams() -> AsyncIterator[str]:
    for part in PARTS:
        await asyncio.sleep(0.1)
        yield part


async def _hangs() -> AsyncIterator[str]:
    yield PARTS[0]
    await asyncio.sleep(0.1)
    yield PARTS[1]
    await asyncio.sleep(FOREVER)


async def _never_begins() -> AsyncIterator[str]:
    await asyncio.sleep(FOREVER)
    yield FULL


async def _ends_quietly() -> AsyncIterator[str]:
    with contextlib.suppress(asyncio.CancelledError):
        async with contextlib.aclosing(_hangs()) as parts:
            async for part in parts:
                yield part


async def _cleans_up_slowly() -> AsyncIterator[str]:
    try:
        async with contextlib.aclosing(_streams()) as parts:
            async for part in parts:
                yield part
        await asyncio.sleep(1)
    finally:
        await asyncio.sleep(SLOW_CLEANUP)


async def _cleanup_hangs() -> AsyncIterator[str]:
    yield PARTS[0]
    try:
        await asyncio.sleep(FOREVER)
    finally:
        await asyncio.sleep(FOREVER)


async def _swallows(times: int) -> AsyncIterator[str]:
    """Swallows cancellations and continues to the end."""
    for part in PARTS:
        yield part
        if part == PARTS[1]:
            for _ in range(times):
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.sleep(FOREVER)


async def _fails() -> AsyncIterator[str]:
    yield PARTS[0]
    await asyncio.sleep(0.1)
    yield PARTS[1]
    raise PlantedError("midway")


async def _fails_in_cleanup() -> AsyncIterator[str]:
    try:
        async with contextlib.aclosing(_streams()) as parts:
            async for part in parts:
                yield part
        await asyncio.sleep(1)
    except BaseException as error:
        raise PlantedError("cleanup") from error


async def _grouped() -> AsyncIterator[str]:
    async with asyncio.TaskGroup() as group:
        group.create_task(asyncio.sleep(1))
        async with contextlib.aclosing(_streams()) as parts:
            async for part in parts:
                yield part


SOURCES: Final[dict[str, Callable[[], AsyncIterator[str]]]] = {
    "at-once": _at_once,
    "streams": _streams,
    "hangs": _hangs,
    "never-begins": _never_begins,
    "ends-quietly": _ends_quietly,
    "slow-cleanup": _cleans_up_slowly,
    "hanging-cleanup": _cleanup_hangs,
    "swallows": lambda: _swallows(1),
    "swallows-five": lambda: _swallows(5),
    "fails": _fails,
    "failing-cleanup": _fails_in_cleanup,
    "limited": _streams,  # and `World.limit`
    "grouped": _grouped,
}


class WorldModel(ScriptedModel):
    """Behaves as the program says, or first calls the tool if that is wrapped."""

    def __init__(self, world: World, kind: str, name: str) -> None:
        super().__init__([], name=name)
        self.world = world
        self.kind = kind

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelChunk]:
        """Stream a reply."""
        world = self.world
        if world.program.place != "model" and world.armed:
            if request.messages[-1].role != "tool":
                yield ModelChunk(tool_uses=(ToolUseDelta(0, "t1", "work", "{}"),), finish_reason="tool_calls")
            else:
                yield ModelChunk("done", finish_reason="stop")
            return
        async with world.limit(self.kind), contextlib.aclosing(world.parts(self.kind)) as parts:
            async for part in parts:
                yield ModelChunk(part)


# ---- wrappers


@dataclass(frozen=True)
class Wrapping:
    """The data of one wrapper.

    Attributes:
        index: Its position, 0 the outermost.
        again: Gives another source of the same kind.
        text: The text of one of its items.
    """

    world: World
    index: int
    again: Callable[[], Any]
    text: Callable[[Any], str]


Made = Callable[[Wrapping, Any], Any]


async def passes(_: Wrapping, source: Any) -> AsyncIterator[Any]:
    async for item in source:
        yield item


async def holds(at: Wrapping, source: Any) -> AsyncIterator[Any]:
    """Opens a stream, never closes it, and reads another one."""
    held = aiter(source)
    at.world.kept.append(held)
    with contextlib.suppress(StopAsyncIteration):
        await anext(held)
    async for item in source:
        yield item


async def drops(_: Wrapping, source: Any) -> AsyncIterator[Any]:
    async for item in source:
        yield item
        break


async def reads_twice(_: Wrapping, source: Any) -> AsyncIterator[Any]:
    async for _item in source:
        pass
    async for item in source:
        yield item


async def time_limit(_: Wrapping, source: Any) -> AsyncIterator[Any]:
    async with asyncio.timeout(LIMIT):
        async for item in source:
            yield item


async def task_group(_: Wrapping, source: Any) -> AsyncIterator[Any]:
    async with asyncio.TaskGroup() as group:
        group.create_task(asyncio.sleep(0.5))
        async for item in source:
            yield item


async def failing_group(_: Wrapping, source: Any) -> AsyncIterator[Any]:
    """Other work in the task group fails, which cancels the reading."""

    async def fail() -> None:
        await asyncio.sleep(0.25)
        raise PlantedError("group")

    async with asyncio.TaskGroup() as group:
        group.create_task(fail())
        async for item in source:
            yield item


async def suppresses(_: Wrapping, source: Any) -> AsyncIterator[Any]:
    with contextlib.suppress(Exception):
        async for item in source:
            yield item


async def swallows(_: Wrapping, source: Any) -> AsyncIterator[Any]:
    with contextlib.suppress(asyncio.CancelledError):
        async for item in source:
            yield item


async def swallows_five(_: Wrapping, source: Any) -> AsyncIterator[Any]:
    try:
        async for item in source:
            yield item
    except asyncio.CancelledError:
        for _n in range(4):
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(FOREVER)


async def slow_cleanup(_: Wrapping, source: Any) -> AsyncIterator[Any]:
    try:
        async for item in source:
            yield item
    finally:
        await asyncio.sleep(SLOW_CLEANUP)


async def hanging_cleanup(_: Wrapping, source: Any) -> AsyncIterator[Any]:
    try:
        async for item in source:
            yield item
    finally:
        await asyncio.sleep(FOREVER)


async def failing_cleanup(_: Wrapping, source: Any) -> AsyncIterator[Any]:
    try:
        async for item in source:
            yield item
    finally:
        raise PlantedError("cleanup")


async def raises_cancelled(_: Wrapping, source: Any) -> AsyncIterator[Any]:
    async for item in source:
        yield item
        raise asyncio.CancelledError


async def caches(at: Wrapping, source: Any) -> AsyncIterator[Any]:
    """Caches a complete reply, as `ModelCache` does."""
    items: list[Any] = []
    async for item in source:
        items.append(item)
        yield item
    if items:
        at.world.cached.append((at.index, whole(at, items)))


async def own_task(at: Wrapping, source: Any) -> AsyncIterator[Any]:
    """Reads in a task of its own, which is refused."""

    async def read() -> list[Any]:
        return [item async for item in source]

    items = await asyncio.get_running_loop().create_task(read())
    at.world.foreign.append(at.index)
    for item in items:
        yield item


def whole(at: Wrapping, items: Sequence[Any]) -> str:
    """Return the text of a reply's chunks, those of the last attempt."""
    begin = max((n for n, item in enumerate(items) if getattr(item, "restart", False)), default=0)
    return "".join(at.text(item) for item in items[begin:])


def generator(function: Callable[[Wrapping, Any], AsyncIterator[Any]]) -> Made:
    """Return a wrapper written as an async generator."""
    return lambda at, source: Flux(lambda: function(at, source))


async def _looks() -> None:
    await asyncio.sleep(0.2)


def _collected(_: Wrapping, source: Any) -> Any:
    return Mono.zip(Mono(_looks).then(Mono.just(None)), source.to_list()).flat_map_many(
        lambda both: Flux.from_iterable(both[1])
    )


WRAPPERS: Final[dict[str, Made]] = {
    "map": lambda _, source: source.map(lambda item: item),
    "scan": lambda _, source: source.scan(lambda _before, item: item),
    "timeout": lambda _, source: source.timeout(LIMIT),
    "deadline": lambda _, source: source.deadline(LIMIT),
    "retry": lambda _, source: source.retry(2),
    "catch": lambda at, source: source.catch(lambda _error, _failed: at.again()),
    "amb": lambda at, source: source.amb(at.again().delay_subscription(1)),
    "merge": lambda _, source: Flux.merge(Mono(_looks).ignore_elements(), source),
    "zip": _collected,
    "buffer": lambda _, source: source.buffer_with_count(2).concat_map(Flux.from_iterable),
    "switch_map": lambda _, source: source.switch_map(Flux.just),
    "take": lambda _, source: source.take(2),
    "concat": lambda _, source: source.concat(Flux.empty()),
    "delay_subscription": lambda _, source: source.delay_subscription(0.5),
    "passes": generator(passes),
    "holds": generator(holds),
    "drops": generator(drops),
    "reads-twice": generator(reads_twice),
    "time-limit": generator(time_limit),
    "task-group": generator(task_group),
    "failing-group": generator(failing_group),
    "suppresses": generator(suppresses),
    "swallows": generator(swallows),
    "swallows-five": generator(swallows_five),
    "slow-cleanup": generator(slow_cleanup),
    "hanging-cleanup": generator(hanging_cleanup),
    "failing-cleanup": generator(failing_cleanup),
    "raises-cancelled": generator(raises_cancelled),
    "caches": generator(caches),
    "own-task": generator(own_task),
}
CUTS: Final = ("none", "interrupt", "timeout", "cancel", "close", "break", "slow")
SHORTENS: Final = frozenset({"take", "drops", "switch_map", "suppresses"})
"""Wrappers that make a shorter reply of a whole one, or a whole one of a failed one: that is what they say."""
SWALLOWS: Final = frozenset({"swallows", "swallows-five"})
"""Wrappers that end quietly when they are cancelled, or a wrapper inside them raises `CancelledError` itself."""
OWN_TASKS: Final = frozenset({"merge", "amb", "timeout", "deadline", "zip", "switch_map"})
"""Operators that read in tasks of their own. A time limit two streams further in that passes between two items cancels that
task and ends the stage with a `UsageError`, since an operator does not know which streams are inside the one it reads."""
REPLACES: Final = frozenset({"catch", "amb", "suppresses"})
"""Wrappers that continue without a source that is refused."""
ENDS_OTHERWISE: Final = frozenset(
    {"raises-cancelled", "failing-cleanup", "failing-group", "hanging-cleanup", "time-limit", "own-task"}
)
KEEPS_ALL: Final = frozenset(WRAPPERS) - SHORTENS - ENDS_OTHERWISE - {"holds", "reads-twice"}
"""Wrappers that let a reply through that is made at once."""


class Wrapper(Hook):
    """One wrapper of a program."""

    def __init__(self, world: World, index: int, backup: WorldModel) -> None:
        self.world = world
        self.index = index
        self.priority = index
        self.backup = backup

    def around(self, event: Any, source: Any) -> Any:
        """Wrap the stages that the program names."""
        world, program = self.world, self.world.program
        kind = PreReasoning if program.place == "model" else PreActing
        if not world.armed or not isinstance(event, kind):
            return source
        make = WRAPPERS[program.wrappers[self.index]]
        if program.place == "model":
            at = Wrapping(world, self.index, lambda: source.using(model=self.backup), lambda chunk: chunk.text)
            return make(at, source)
        if program.place == "chunks":
            at = Wrapping(world, self.index, lambda: Flux.just(FULL), str)
            return source.chunks(lambda pieces: make(at, pieces))
        other = ToolResultBlock(event.tool_use.id, "work", FULL)
        at = Wrapping(world, self.index, lambda: Flux.just(other), lambda block: block.text)
        return Mono(lambda: _last(make(at, source.as_flux())))


async def _last(flux: Flux[Any]) -> Any:
    last: Any = EMPTY
    async for item in flux:
        last = item
    return last


class Watch(Hook):
    """Records the events, and starts the cancellation."""

    observer = True
    priority = 1_000

    def __init__(self, world: World, cut: Callable[[], None] | None) -> None:
        self.world = world
        self.cut = cut

    def on_event(self, event: Any) -> None:
        """Record the event."""
        world = self.world
        world.seen.append(event)
        if isinstance(event, CallEnded):
            world.ended_at = asyncio.get_running_loop().time()
        if self.cut is not None and world.armed and len(world.seen) == world.program.events + 1:
            asyncio.get_running_loop().call_later(world.program.seconds, self._turn, world.program.turns)

    def _turn(self, left: int) -> None:
        if left:
            asyncio.get_running_loop().call_soon(self._turn, left - 1)
        elif self.cut is not None:
            self.cut()


# ---- running one


class Stuck(AssertionError):  # noqa: N818 - a state of the run
    """The program waits for something that never happens."""


async def check_wrappers(program: Program) -> str:
    """Run a program and check the law.

    Returns:
        How its call ended.
    """
    world = World(program)
    loop = asyncio.get_running_loop()
    model = WorldModel(world, program.source, "first")
    backup = WorldModel(world, program.source, "backup")
    store = MemoryStore()

    @tool(name="work", timeout=None, type="read")
    async def work() -> AsyncIterator[str]:
        """Work."""
        async with world.limit(program.source), contextlib.aclosing(world.parts(program.source)) as parts:
            async for part in parts:
                yield part

    callers: list[asyncio.Task[Any]] = []

    def cut() -> None:
        if world.ended_at is not None or world.cut_at is not None:
            return
        world.cut_at = loop.time()
        if program.cut == "interrupt":
            agent.interrupt("s")
        else:
            callers[0].cancel()

    watch = Watch(world, cut if program.cut in ("interrupt", "cancel") else None)
    wrappers = [Wrapper(world, n, backup) for n in range(len(program.wrappers))]
    agent = Agent("agent", model, tools=[work], hooks=[*wrappers, watch], store=store, cleanup_timeout=CLEANUP)
    timeout = program.seconds + 0.01 if program.cut == "timeout" else BACKSTOP

    async def reader() -> Any:
        mine = asyncio.current_task()
        assert mine is not None

        async def pauses(seconds: float) -> None:
            began = loop.time()
            await asyncio.sleep(seconds)
            if abs(loop.time() - began - seconds) > 1e-6:
                world.wrong.append(f"the reader's sleep of {seconds} s took {loop.time() - began} s")
            if mine.cancelling():
                world.wrong.append("the reader's task is cancelled")

        stream = agent.stream("go", session="s", timeout=timeout, buffer=program.buffer)
        pause = 100.0 if program.cut == "slow" else program.pause
        count = 0
        try:
            if program.cut == "break":
                async for _ in stream:
                    await pauses(pause)
                    count += 1
                    if count > program.events:
                        world.cut_at = loop.time()
                        return None
                return None
            async with stream as events:
                async for _ in events:
                    await pauses(pause)
                    count += 1
                    if program.cut == "close" and count > program.events:
                        world.cut_at = loop.time()
                        return None
                return await events.reply()
        finally:
            if mine.cancelling():
                world.wrong.append("the reader's task is cancelled at the end")

    call = agent.call("go", session="s", timeout=timeout) if program.cut == "cancel" else reader()
    task = loop.create_task(call)  # type: ignore[arg-type]
    callers.append(task)
    done, _ = await asyncio.wait([task], timeout=10 * BACKSTOP)
    if not done:
        raise Stuck("the call never ends")
    if program.cut == "break":  # the iterator went with the reader's frame
        del call
        gc.collect()
    outcome = _outcome(task)
    reply = None if task.cancelled() or task.exception() is not None else task.result()
    error = None if task.cancelled() else task.exception()
    callers.clear()
    del task, done
    if agent.session("s").busy:
        await asyncio.sleep(3 * CLEANUP)
    _check(world, program, outcome, reply, error, timeout)
    left = {one for one in asyncio.all_tasks() if one is not asyncio.current_task()}
    assert not left, f"tasks are left: {left}"
    assert (world.open, model.open_streams, backup.open_streams) == (0, 0, 0), "a model or tool is left at work"
    session = agent.session("s")
    assert not session.busy, "the session is left busy"
    messages = tuple(session.messages)
    check_history(messages)
    events = fold_events(world.seen)
    assert [(m.role, m.content) for m in events] == [(m.role, m.content) for m in messages], (events, messages)
    facts: Any = MemoryStore.load(store, "s")
    assert fold_facts(facts) == messages, "the facts tell another history"
    count, world.armed = len(world.seen), False
    following = await agent.call("and now?", session="s")
    assert following.text == FULL, f"the next call said {following.text!r}"
    _pairs(world.seen[count:])
    return outcome


def _outcome(task: asyncio.Task[Any]) -> str:
    if task.cancelled():
        return "cancelled"
    error = task.exception()
    if error is not None:
        return type(error).__name__
    return "left" if task.result() is None else task.result().outcome


def _check(
    world: World, program: Program, outcome: str, reply: Any, error: BaseException | None, timeout: float
) -> None:
    assert not world.wrong, world.wrong
    _pairs(world.seen)
    ended = world.ended_at
    assert ended is not None
    limit = min(timeout, BACKSTOP if world.cut_at is None else world.cut_at) + CLEANUP * 1.2 + 0.1
    assert ended <= limit, f"CallEnded at {ended}, expected until {limit}"
    if program.cut == "cancel" and world.cut_at is not None:
        assert outcome == "cancelled" or world.cut_at >= ended - 1e-9, outcome
    if error is not None and program.cut == "timeout" and isinstance(error, CallTimeoutError):
        assert ended >= timeout - 1e-6
    inner_of = {n: set(program.wrappers[n + 1 :]) for n in range(len(program.wrappers))}
    for index in world.foreign:
        assert inner_of[index] & REPLACES, "a task of a wrapper's own has read a source"
    for index, text in world.cached:
        if not _shortens(program, inner_of[index]):
            assert text == FULL, f"half a reply was cached: {text!r}"
    kinds = set(program.wrappers)
    if (
        reply is not None
        and reply.outcome == "completed"
        and program.place == "model"
        and not _shortens(program, kinds)
    ):
        assert reply.text == FULL, f"half a reply was given for a whole one: {reply.text!r}"
    # An operator that a slow reader makes late cancels what it reads, and waits for its cleanup, which has no limit of its own.
    hangs = program.cut == "slow" and "swallows-five" in kinds and bool(kinds & OWN_TASKS)
    # The cleanup of what an operator reads counts for its limit: two of them take longer together.
    late = any(
        kind in ("timeout", "deadline") and program.wrappers[n + 1 :].count("slow-cleanup") * SLOW_CLEANUP >= LIMIT
        for n, kind in enumerate(program.wrappers)
    )
    if (
        program.cut in ("none", "slow")
        and program.source in ("at-once", "streams")
        and kinds <= KEEPS_ALL
        and not hangs
        and not late
    ):
        assert outcome == "completed", f"{outcome}: {error!r}"
    if isinstance(error, HookError):
        assert kinds & (OWN_TASKS | {"raises-cancelled", "holds", "drops", "take"}), f"unexpected: {error!r}"
    if isinstance(error, UsageError):
        limited = program.source in ("limited", "grouped") or kinds & {"time-limit", "failing-group"}
        assert kinds & {"own-task", "reads-twice", "holds", "retry"} or (limited and kinds & OWN_TASKS), repr(error)


def _shortens(program: Program, kinds: Set[str]) -> bool:
    """Whether wrappers change a reply's text on purpose. The chunks of a tool do not show where another attempt
    begins.
    """
    if program.place == "chunks" and set(program.wrappers) & {"catch", "retry", "holds", "reads-twice"}:
        return True
    return bool(kinds & SHORTENS) or ("raises-cancelled" in kinds and bool(kinds & SWALLOWS))


def _pairs(seen: Sequence[Event]) -> None:
    """L2: `CallEnded` fires once, last; every Pre event has its Post event."""
    ends = [n for n, event in enumerate(seen) if isinstance(event, CallEnded)]
    assert ends == [len(seen) - 1], f"CallEnded at {ends} of {len(seen)} events: {[type(e).__name__ for e in seen]}"
    for pre, post in ((PreActing, PostActing), (PreToolRound, PostToolRound)):
        before = sum(isinstance(event, pre) for event in seen)
        after = sum(isinstance(event, post) for event in seen)
        assert before == after, f"{before} {pre.__name__}, {after} {post.__name__}"


# ---- drawing one


def draw_program(choose: Callable[[Sequence[Any]], Any]) -> Program:
    """Draw a program.

    Args:
        choose: Chooses one of several.
    """
    kinds = tuple(WRAPPERS)
    return Program(
        place=choose(("model", "model", "tool", "chunks")),
        wrappers=tuple(choose(kinds) for _ in range(choose((1, 2, 3)))),
        source=choose(tuple(SOURCES)),
        faults=choose((1, 2, 99)),
        cut=choose(CUTS),
        events=choose(range(12)),
        seconds=choose((0.0, 0.05, 0.1, 0.15, 0.25, 0.4, 1.0, 1.1, LIMIT, LIMIT + 0.1, 6.0)),
        turns=choose(range(6)),
        buffer=choose((0, 1, 8)),
        pause=choose((0.0, 0.0, 0.3)),
    )


@st.composite
def wrapped_programs(draw: st.DrawFn) -> Program:
    """Random programs."""
    return draw_program(lambda values: draw(st.sampled_from(values)))
