"""A source belongs to its stage: read late, twice or on another loop it raises, and its work ends with the stage."""

import asyncio
import contextlib
import gc
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import pytest
from clocks import in_virtual_time
from eventlog import Recorder, history, log, streamed, use
from toolbox import add

from agentflow import Agent, Flux, Hook, MemoryStore, Mono, Msg, Recover, Session, on, tool
from agentflow._support.virtual_time import run_virtual
from agentflow.errors import (
    CallTimeoutError,
    HookContractError,
    HookError,
    ModelError,
    StoreError,
    TranscriptError,
    UsageError,
)
from agentflow.loop.history import fold_facts
from agentflow.reactive import SourceTimeoutError
from agentflow.testing import ScriptedModel
from agentflow.vocabulary.chunks import ModelChunk
from agentflow.vocabulary.events import (
    CallEnded,
    ErrorPhase,
    PostReasoning,
    PreActing,
    PreCall,
    PreReasoning,
    PreToolRound,
    ReasoningChunk,
)
from agentflow.vocabulary.messages import ToolResultBlock
from agentflow.vocabulary.saving.codec import msg_to_dict
from agentflow.vocabulary.verdicts import Answer

STAGES = (PreCall, PreReasoning, PreToolRound, PreActing)
ONE = use("t1", "add", a=1, b=2)


class Around(Hook):
    """Wraps the work that follows one event class, the first time."""

    def __init__(self, kind: type, wrap: Callable[[Any, Any], Any]) -> None:
        self.kind = kind
        self.wrap = wrap

    def around(self, event: Any, source: Any) -> Any:
        if not isinstance(event, self.kind):
            return source
        self.kind = type(None)
        return self.wrap(event, source)


def stored(store: MemoryStore) -> list[str]:
    """Return the kinds of the facts, which form a legal sequence."""
    facts = store.load("s")
    assert isinstance(facts, Sequence)
    fold_facts(facts)
    return [type(fact).__name__ for fact in facts]


def value_of(source: Any) -> Any:
    return source.to_list() if hasattr(source, "to_list") else source


async def usable(store: MemoryStore) -> None:
    """Another process loads the session and continues it."""
    other = Agent("b", ScriptedModel(["fine"]), tools=[add], store=store)
    assert (await other.call("and now?", session="s")).text == "fine"


PLAIN = [
    "CallOpened",
    "Reasoned",
    "ToolDecided",
    "ToolStarted",
    "ToolFinished",
    "RoundClosed",
    "Reasoned",
    "CallClosed",
]


@pytest.mark.parametrize("kind", STAGES)
async def test_a_source_that_is_kept_for_later_raises(kind: type) -> None:
    """Subscribed to after the call, it runs nothing, and adds nothing to the session or the events."""
    kept: list[Any] = []

    def keep(_: Any, source: Any) -> Any:
        kept.append(source)
        return source

    store, recorder = MemoryStore(), Recorder()
    model = ScriptedModel([ONE, "end"])
    await Agent("a", model, tools=[add], hooks=[Around(kind, keep), recorder], store=store).call("go", session="s")
    seen = len(recorder.seen)
    with pytest.raises(UsageError, match=f"source of {kind.__name__} was used after its stage had ended"):
        await value_of(kept[0])
    assert (len(model.requests), len(recorder.seen), stored(store)) == (2, seen, PLAIN)
    await usable(store)


@pytest.mark.parametrize("kind", STAGES)
async def test_a_source_that_was_kept_where_the_next_hook_fails_raises(kind: type) -> None:
    """A stage that ends before its work began has ended too."""
    kept: list[Any] = []

    def keep(_: Any, source: Any) -> Any:
        kept.append(source)
        return source

    def fail(_: Any, source: Any) -> Any:
        raise RuntimeError("broken")

    store, recorder = MemoryStore(), Recorder()
    hooks = [Around(kind, fail), Around(kind, keep), recorder]  # the last is the innermost
    agent = Agent("a", ScriptedModel([ONE, "end"]), tools=[add], hooks=hooks, store=store)
    with contextlib.suppress(RuntimeError):
        await agent.call("go", session="s")
    before = len(recorder.seen), stored(store)
    with pytest.raises(UsageError, match=f"source of {kind.__name__} was used after its stage had ended"):
        await value_of(kept[0])
    assert (len(recorder.seen), stored(store)) == before
    await usable(store)


class Streams(ScriptedModel):
    """Reports when its stream is closed."""

    def __init__(self, told: list[str]) -> None:
        super().__init__([["one", "two", "three"]])
        self.told = told

    async def stream(self, request: Any) -> AsyncIterator[ModelChunk]:
        try:
            async for chunk in super().stream(request):
                yield chunk
        finally:
            self.told.append("model")


def leaves(told: list[str], name: str, made: Callable[[Any], Any], chunks: int) -> Callable[[Any, Any], Any]:
    """A wrapper that ends after so many chunks, and leaves its source open."""

    async def layer(source: Any) -> AsyncIterator[ModelChunk]:
        try:
            left = chunks
            async for chunk in made(source):
                yield chunk if isinstance(chunk, ModelChunk) else chunk[0]
                left -= 1
                if not left:
                    break
        finally:
            told.append(name)

    return lambda _, source: Flux(lambda: layer(source))


WAYS = {
    "plain": lambda source: source,
    "map": lambda source: source.map(lambda chunk: chunk),
    "zip": lambda source: Flux.zip(source, Flux.of(1, 2, 3, 4)),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("end", ["leaves", "fails", "cut"])
async def test_what_a_layer_leaves_open_is_closed_with_the_stage(way: str, end: str) -> None:
    """Neither an inner wrapper nor the model waits for the garbage collector, however the stage ends."""
    told: list[str] = []

    @on(ReasoningChunk, on_failure="abort")
    async def second(event: ReasoningChunk) -> None:
        if end == "leaves" or event.incremental_chunk.text == "one":
            return
        if end == "fails":
            raise ValueError("broken")
        agent.interrupt("s")

    @on(PostReasoning, CallEnded, observer=True)
    def then(event: Any) -> None:
        told.append(type(event).__name__)

    chunks = 1 if end == "leaves" else 3
    around = [Around(PreReasoning, leaves(told, name, WAYS[way], chunks)) for name in ("outer", "inner")]
    agent = Agent("a", Streams(told), hooks=[*around, second, then])
    gc.disable()
    try:
        with contextlib.suppress(ValueError):
            async with asyncio.timeout(10):
                await agent.call("go", session="s")
    finally:
        gc.enable()
    if (
        end == "leaves"
    ):  # the inner layer was dropped: Python closes that at once, and what the model does is waited for
        for _ in range(5):
            await asyncio.sleep(0)
        assert (told[0], told.count("inner"), told.count("model")) == ("outer", 1, 1)
        assert told.index("model") < told.index("PostReasoning") < told.index("CallEnded")
    else:
        assert (told[0], sorted(told[1:3]), told[3:]) == ("outer", ["inner", "model"], ["CallEnded"])


def streaming(make: Callable[[], AsyncIterator[ModelChunk]]) -> Any:
    """A model that streams what a function makes."""

    class Model(ScriptedModel):
        def stream(self, request: Any) -> AsyncIterator[ModelChunk]:
            return make()

    return Model([])


def ends(agent: Agent, **options: Any) -> str:
    """Return the outcome of a call; one that never ends fails, in virtual time."""

    async def main() -> str:
        async with asyncio.timeout(100):
            return (await agent.call("go", **options)).text

    return run_virtual(main())


@pytest.mark.parametrize("way", WAYS)
def test_a_stream_that_is_held_for_good_is_closed(way: str) -> None:
    """It is closed whatever operator is in between."""
    told: list[str] = []
    held: list[Any] = []

    async def inner(source: Any) -> AsyncIterator[ModelChunk]:
        try:
            async for chunk in source:
                yield chunk
        finally:
            told.append("inner")

    async def outer(source: Any) -> AsyncIterator[ModelChunk]:
        held.append(aiter(WAYS[way](source)))
        chunk = await anext(held[0])
        yield chunk if isinstance(chunk, ModelChunk) else chunk[0]

    hooks = [Around(PreReasoning, lambda _, source, made=made: Flux(lambda: made(source))) for made in (outer, inner)]
    assert ends(Agent("a", Streams(told), hooks=hooks)) == "one"
    assert sorted(told) == ["inner", "model"]


@pytest.mark.parametrize("error", [asyncio.CancelledError("its own"), ValueError("broken")])
def test_a_cleanup_that_fails_loses_no_reply(error: BaseException) -> None:
    """The error of an inner wrapper while the stage closes it is logged; the reply was complete already."""
    held: list[Any] = []

    async def inner(source: Any) -> AsyncIterator[ModelChunk]:
        try:
            async for chunk in source:
                yield chunk
        finally:
            raise error

    async def outer(source: Any) -> AsyncIterator[ModelChunk]:
        held.append(aiter(source))
        yield await anext(held[0])

    hooks = [Around(PreReasoning, lambda _, source, made=made: Flux(lambda: made(source))) for made in (outer, inner)]
    assert ends(Agent("a", ScriptedModel([["one", "two"]]), hooks=hooks)) == "one"


async def test_a_cancellation_while_the_stage_closes_a_stream_counts() -> None:
    """A wrapper has failed, and its open source is slow to end: a cancellation of the call then cancels it."""
    cleaning = asyncio.Event()
    held: list[Any] = []

    async def chunks() -> AsyncIterator[ModelChunk]:
        try:
            yield ModelChunk("one")
        finally:
            cleaning.set()
            await asyncio.Event().wait()

    async def layer(source: Any) -> AsyncIterator[ModelChunk]:
        held.append(aiter(source))
        yield await anext(held[0])
        raise ValueError("broken")

    agent = Agent("a", streaming(chunks), hooks=[Around(PreReasoning, lambda _, source: Flux(lambda: layer(source)))])
    call = asyncio.ensure_future(agent.call("go"))
    await cleaning.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call


async def test_a_call_that_is_dropped_in_a_stage_is_dropped_at_once() -> None:
    """Closed by hand, as the interpreter does at its exit: nothing can be awaited then, whatever a wrapper has left
    open.
    """
    held: list[Any] = []

    async def layer(source: Any) -> AsyncIterator[ModelChunk]:
        held.append(asyncio.ensure_future(source.to_list()))
        await asyncio.Event().wait()
        yield ModelChunk("never")

    async def chunks() -> AsyncIterator[ModelChunk]:
        await asyncio.Event().wait()
        yield ModelChunk("never")

    agent = Agent("a", streaming(chunks), hooks=[Around(PreReasoning, lambda _, source: Flux(lambda: layer(source)))])
    driven = agent.call("go").__await__()
    next(driven)
    await asyncio.sleep(0)
    driven.close()
    held[0].cancel()
    await asyncio.wait(held)
    assert (held[0].cancelled(), [msg.text for msg in agent.session().messages]) == (True, ["go"])


@pytest.mark.parametrize("way", ["call", "stream"])
def test_a_time_limit_around_the_call_is_no_cancellation_of_it(way: str) -> None:
    """The error of a later hook of `CallEnded` is that hook's failure, and the call raises the limit's error."""

    @on(CallEnded, on_failure="skip")
    async def cancels(event: CallEnded) -> None:
        raise asyncio.CancelledError("a hook's own")

    hooks = [Around(PreCall, lambda _, source: source.timeout(1)), cancels]
    agent = Agent("a", ScriptedModel([lambda _: asyncio.sleep(5)]), hooks=hooks)

    async def main() -> None:
        if way == "call":
            await agent.call("go")
        async with agent.stream("go") as events:
            async for _ in events:
                pass

    with pytest.raises(SourceTimeoutError):
        run_virtual(main())


async def test_a_refresh_in_the_background_is_refused() -> None:
    """`around` answers a tool from a cache, and passes the source to a task: the task gets an error, wherever the
    call is then.
    """
    for moment in ("next reply", "call over"):
        go_on = asyncio.Event()
        tasks: list[asyncio.Task[Any]] = []

        def cached(event: Any, source: Any, go_on: asyncio.Event = go_on, tasks: list[Any] = tasks) -> Any:
            async def refresh() -> Any:
                await go_on.wait()
                return await source

            tasks.append(asyncio.ensure_future(refresh()))
            return Mono.just("cached")

        async def meanwhile(go_on: asyncio.Event = go_on, tasks: list[Any] = tasks) -> None:
            go_on.set()
            await asyncio.wait(tasks)

        store = MemoryStore()
        script = [[meanwhile, "end"] if moment == "next reply" else "end"]
        agent = Agent("a", ScriptedModel([ONE, *script]), tools=[add], hooks=[Around(PreActing, cached)], store=store)
        assert (await agent.call("go", session="s")).text == "end"
        go_on.set()
        with pytest.raises(UsageError, match=r"read in task|after its stage had ended"):
            await tasks[0]
        assert stored(store) == [name for name in PLAIN if name != "ToolStarted"]
        await usable(store)


@pytest.mark.parametrize("how", ["amb", "zip", "then", "task", "handed back"])
def test_the_rest_of_a_call_runs_once(how: str) -> None:
    """A second subscription to the source of PreCall raises, also while the first one runs; the session stays whole."""
    run_virtual(check_once(how))


async def check_once(how: str) -> None:
    tasks: list[asyncio.Task[Any]] = []

    def twice(_: Any, source: Any) -> Any:
        if how == "amb":
            return source.amb(source.delay_subscription(0.005))
        if how == "zip":
            return Mono.zip(source, source).map(lambda both: both[0])
        if how == "then":
            return source.then(source)
        tasks.append(asyncio.ensure_future(source.resolve()))
        return source if how == "handed back" else source.map(lambda msg: msg)

    store = MemoryStore()

    async def slow() -> None:
        await asyncio.sleep(0.02)

    agent = Agent("a", ScriptedModel(lambda _: [slow, "answer"]), hooks=[Around(PreCall, twice)], store=store)
    if how in ("task", "handed back"):
        assert (await agent.call("go", session="s")).text == "answer"
        with pytest.raises(UsageError, match=r"read in task|after its stage had ended"):
            await tasks[0]
        assert stored(store) == ["CallOpened", "Reasoned", "CallClosed"]
    else:
        with pytest.raises(UsageError, match=r"subscribed (only once|while it is running)"):
            await agent.call("go", session="s")
        assert stored(store)[-1] == "CallClosed"
    await usable(store)


def test_a_round_runs_once_at_a_time() -> None:
    """A second subscription to the source of PreToolRound raises while the first one runs; no tool runs twice."""
    runs: list[int] = []

    @tool(type="read")
    async def slow(n: int) -> int:
        """Take a moment."""
        runs.append(n)
        await asyncio.sleep(1)
        return n

    async def main() -> None:
        store = MemoryStore()
        both = Around(PreToolRound, lambda _, source: Mono.zip(source, source).map(lambda rows: rows[0]))
        agent = Agent("a", ScriptedModel([use("t1", "slow", n=1)]), tools=[slow], hooks=[both], store=store)
        with pytest.raises(UsageError, match="source of PreToolRound was subscribed while it is running"):
            await agent.call("go", session="s")
        assert len(runs) <= 1
        await usable(store)

    run_virtual(main())


@pytest.mark.parametrize("watched", [False, True])
async def test_a_round_that_waits_for_a_person_is_not_run_again(watched: bool) -> None:
    """Subscribing again runs only calls without an outcome: a suspended one has one PostActing."""

    @tool(requires_approval=True)
    async def pay() -> str:
        """Pay."""
        return "paid"

    recorder = Recorder()
    twice = Around(PreToolRound, lambda _, source: source.then(source))
    agent = Agent("a", ScriptedModel([use("t1", "pay")]), tools=[pay], hooks=[twice, recorder])
    if watched:
        await streamed(agent)
    else:
        await agent.call("go")
    assert [line for line in log(recorder.seen) if "Acting" in line] == [
        "PreActing t1:pay()",
        "PostActing t1 suspended 'Suspended: waits for a decision.'",
    ]


@pytest.mark.parametrize("second", ["cancel", "interrupt"])
@pytest.mark.parametrize("how", ["plain", "timeout", "amb", "zip"])
@pytest.mark.parametrize("kind", [PreCall, PreToolRound, PreActing])
def test_cut_once_more_while_it_cleans_up(kind: type, how: str, second: str) -> None:
    """A second cancellation during the cleanup of the first, inside an operator that runs the source in a task of its
    own: the call ends after its inner work, CallEnded is last, and the session can be loaded.
    """
    ways: dict[str, Callable[[Any], Any]] = {
        "plain": lambda source: source.map(lambda value: value),
        "timeout": lambda source: source.timeout(60),
        "amb": lambda source: source.amb(Mono.never()),
        "zip": lambda source: Mono.zip(source, Mono.just(1)).map(lambda both: both[0]),
    }
    open_tools = 0

    @tool(type="read")
    async def slow() -> str:
        """Work for long, and take a moment to end."""
        nonlocal open_tools
        open_tools += 1
        begun.set()
        try:
            await asyncio.sleep(3600)
        finally:
            try:
                await asyncio.sleep(2)
            finally:
                open_tools -= 1
        return "never"

    begun = asyncio.Event()

    async def main() -> None:
        store, recorder = MemoryStore(), Recorder()
        hooks = [Around(kind, lambda _, source: ways[how](source)), recorder]
        agent = Agent("a", ScriptedModel([use("t1", "slow"), "next"]), tools=[slow], hooks=hooks, store=store)
        task = asyncio.ensure_future(agent.call("go", session="s"))
        await begun.wait()
        task.cancel()
        await asyncio.sleep(1)
        if second == "cancel":
            task.cancel()
        else:
            agent.interrupt("s")
        await asyncio.wait([task])
        assert task.cancelled()
        assert open_tools == 0
        seen = len(recorder.seen)
        *_, tool_end, round_end, end = log(recorder.seen)
        assert tool_end == "PostActing t1 interrupted 'Interrupted.'"
        assert round_end == "PostToolRound t1 interrupted 'Interrupted.'"
        assert end.startswith("CallEnded interrupted CancelledError")
        await asyncio.sleep(10)
        assert len(recorder.seen) == seen
        assert stored(store)[-3:] == ["ToolFinished", "RoundClosed", "CallClosed"]
        await usable(store)

    run_virtual(main())


async def test_a_source_runs_on_its_calls_own_loop() -> None:
    """On another thread's loop it raises, and does not run there."""
    found: list[BaseException] = []

    def elsewhere(_: Any, source: Any) -> Any:
        def thread() -> None:
            try:
                asyncio.run(source)
            except UsageError as error:
                found.append(error)

        async def joined() -> str:
            other = threading.Thread(target=thread)
            other.start()
            await asyncio.get_running_loop().run_in_executor(None, other.join)
            return "here"

        return Mono(joined)

    agent = Agent("a", ScriptedModel([ONE, "end"]), tools=[add], hooks=[Around(PreActing, elsewhere)])
    assert (await agent.call("go")).text == "end"
    assert "was read in task" in str(found[0])


async def in_a_future(source: Flux[ModelChunk]) -> AsyncIterator[ModelChunk]:
    for chunk in await asyncio.ensure_future(source.to_list()):
        yield chunk


async def in_a_group(source: Flux[ModelChunk]) -> AsyncIterator[ModelChunk]:
    chunks: list[ModelChunk] = []
    async with asyncio.TaskGroup() as group:
        group.create_task(_into(source, chunks))
    for chunk in chunks:
        yield chunk


async def _into(source: Flux[ModelChunk], chunks: list[ModelChunk]) -> None:
    chunks.extend([chunk async for chunk in source])


async def a_task_for_each_chunk(source: Flux[ModelChunk]) -> AsyncIterator[ModelChunk]:
    async with source as chunks:
        while True:
            try:
                yield await asyncio.ensure_future(anext(chunks))
            except StopAsyncIteration:
                return


async def handed_over(source: Flux[ModelChunk]) -> AsyncIterator[ModelChunk]:
    """Opened in the hook's task, and read further in another one."""
    async with source as chunks:
        yield await anext(chunks)
        for chunk in await asyncio.ensure_future(_rest(chunks)):
            yield chunk


async def _rest(chunks: Any) -> list[ModelChunk]:
    return [chunk async for chunk in chunks]


@pytest.mark.parametrize(
    "way", [in_a_future, in_a_group, a_task_for_each_chunk, handed_over], ids=lambda way: way.__name__
)
async def test_a_source_that_is_read_in_a_task_of_a_hooks_own_is_refused(way: Any) -> None:
    """The call fails at once, with an error that names the event and the code to write; nothing is left open."""
    store, model = MemoryStore(), ScriptedModel([["one ", "two ", "three"]])
    hooks = [Around(PreReasoning, lambda _, source: Flux(lambda: way(source)))]
    with pytest.raises((UsageError, ExceptionGroup)) as caught:
        await Agent("a", model, hooks=hooks, store=store).call("go", session="s")
    error = caught.value.exceptions[0] if isinstance(caught.value, ExceptionGroup) else caught.value
    assert "The source of PreReasoning was read in task" in str(error)
    assert "use source.timeout(seconds)" in str(error)
    assert model.open_streams == 0
    assert stored(store)[-1] == "CallClosed"
    await usable(store)


# ---- a call's last message asks for no tools


CALLS = Msg.assistant(["c ", ONE])


class Rescue(Hook):
    """Recovers each error with a message that requests tools."""

    def on_event(self, event: Any) -> Any:
        return Recover(CALLS) if getattr(event, "fatal", False) and event.phase is ErrorPhase.CALL else event


@pytest.mark.parametrize(
    ("hooks", "error", "text"),
    [
        ([Around(PreCall, lambda _, source: Mono.just(CALLS))], HookContractError, "around"),
        ([Around(PreCall, lambda _, source: source.map(lambda _: CALLS))], HookContractError, "around"),
        ([Rescue(), Around(PreCall, lambda _, source: Mono.error(RuntimeError("first")))], RuntimeError, "first"),
    ],
    ids=["around instead", "around map", "recover"],
)
async def test_a_reply_that_ends_a_call_asks_for_no_tools(hooks: list[Hook], error: Any, text: str) -> None:
    """Nothing would run them: the value is refused, and the session continues."""
    store = MemoryStore()
    agent = Agent("a", ScriptedModel(lambda _: "real"), tools=[add], hooks=hooks, store=store)
    with pytest.raises(error, match=text):
        await agent.call("go", session="s")
    assert (await agent.call("again", session="s")).text == "real"
    await usable(store)


@pytest.mark.parametrize("value", [CALLS, None, 42], ids=["calls", "None", "number"])
async def test_an_answer_on_precall_is_a_reply(value: Any) -> None:
    """Otherwise the chain refuses it like any other illegal answer: nothing is stored, and reader and observer agree."""

    class Canned(Hook):
        def on_event(self, event: Any) -> Any:
            return Answer(value) if isinstance(event, PreCall) else event

    recorder = Recorder()
    agent = Agent("a", ScriptedModel(["real"]), tools=[add], hooks=[Canned(), recorder])
    read: list[Any] = []
    with pytest.raises(HookContractError, match="Canned"):
        await agent.stream("go").tap(read.append).to_list()
    assert [type(event).__name__ for event in read] == ["Error", "PreCall", "CallEnded"]
    assert log(read) == log(recorder.seen)
    assert history(agent.session()) == []


# ---- sessions that begin


async def test_a_session_does_not_begin_with_open_calls() -> None:
    """Nothing would answer them: the messages are refused at once, and so is a stored beginning."""
    with pytest.raises(TranscriptError, match=r"cannot start with open calls: \['t1'\] have no results"):
        Session.fresh(messages=[Msg.user("go"), CALLS])
    data = Session.fresh(messages=[Msg.user("go"), Msg.assistant("c")], id="s").to_dict()
    data["messages"][1] = msg_to_dict(CALLS)
    with pytest.raises(StoreError, match="cannot start with open calls"):
        Session.from_dict(data)
    with pytest.raises(StoreError, match="open calls"):
        await MemoryStore().import_(data)
    answered = [Msg.user("go"), CALLS, Msg("tool", (ToolResultBlock("t1", "add", "3"),)), Msg.assistant("three")]
    assert history(Session.fresh(messages=answered))[2] == "tool: t1 success '3'"


# ---- strays


@pytest.mark.parametrize("kind", STAGES)
async def test_a_hook_around_that_raises_cancelled_error_itself_fails(kind: type) -> None:
    """It is a failing hook, as in a chain: nothing was cancelled, so nothing reports a cancellation."""

    async def stray() -> Any:
        raise asyncio.CancelledError("mine")

    agent = Agent("a", ScriptedModel([ONE, "end"]), tools=[add], hooks=[Around(kind, lambda _, __: Mono(stray))])
    if kind is PreActing:  # as a tool that does so
        await agent.call("go")
        assert history(agent.session())[2].startswith("tool: t1 error")
        return
    with pytest.raises(HookError, match=f"wraps {kind.__name__} raised CancelledError") as caught:
        await agent.call("go")
    assert isinstance(caught.value.__cause__, asyncio.CancelledError)
    hook = Around(kind, lambda _, __: Mono(stray))
    other = Agent("a", ScriptedModel([ONE, "end"]), tools=[add], hooks=[hook])

    async def in_a_group() -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(other.call("go"))

    with pytest.raises(ExceptionGroup) as group:
        await in_a_group()
    assert [type(error) for error in group.value.exceptions] == [HookError]


async def test_a_model_that_raises_cancelled_error_itself_fails() -> None:
    """It is a failing model: the error is reported, and a hook may recover."""

    class Stray:
        name = "stray"

        async def stream(self, request: Any) -> Any:
            raise asyncio.CancelledError("mine")
            yield

    with pytest.raises(ModelError, match="'stray' raised CancelledError"):
        await Agent("a", Stray()).call("go")


class Delegates:
    """A foreign iterator: it has no weak references, delegates attributes, and closing it fails."""

    __slots__ = ("_chunks",)

    def __init__(self, chunks: Any) -> None:
        self._chunks = aiter(chunks)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._chunks, name)

    async def __anext__(self) -> Any:
        return await anext(self._chunks)

    async def aclose(self) -> None:
        raise RuntimeError("closed already")


async def test_a_layer_may_be_any_iterator() -> None:
    """An iterator that delegates attributes is not taken for a generator, and one that has ended is not closed."""

    class Passes(Hook):
        def around(self, event: Any, source: Any) -> Any:
            return Flux(lambda: Delegates(source)) if isinstance(event, PreReasoning) else source

    reply = await Agent("a", ScriptedModel([["one ", "two"]]), hooks=[Passes(), Passes()]).call("go")
    assert reply.text == "one two"


@pytest.mark.parametrize("way", ["timeout", "cancel"])
@in_virtual_time
async def test_a_stream_that_a_layer_has_dropped_does_not_hold_up_a_call_that_is_cut(way: str) -> None:
    """Its cleanup never ends, and the one cancellation goes to what the wrapper waits for: the call ends all the
    same.
    """
    waits = asyncio.Event()

    class Slow:
        name = "slow"

        async def stream(self, request: Any) -> Any:
            try:
                yield ModelChunk("one")
            finally:
                await asyncio.Event().wait()

    class Leaves(Hook):
        def around(self, event: Any, source: Any) -> Any:
            return Flux(lambda: self.layer(source)) if isinstance(event, PreReasoning) else source

        async def layer(self, source: Any) -> Any:
            async for _ in source:
                break
            waits.set()
            await asyncio.Event().wait()
            yield ModelChunk("two")

    agent = Agent("a", Slow(), hooks=[Leaves()])
    task = asyncio.ensure_future(agent.call("go", timeout=0.01 if way == "timeout" else None))
    await waits.wait()
    if way == "cancel":
        task.cancel()
    assert (await asyncio.wait([task], timeout=10))[0]
    assert isinstance(task.exception(), CallTimeoutError) if way == "timeout" else task.cancelled()
