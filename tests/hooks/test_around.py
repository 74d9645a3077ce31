"""`around`: the work that follows a sealed Pre event, as a cold Mono or Flux."""

import asyncio
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from eventlog import Recorder, history, streamed, use
from toolbox import add

from agentflow import (
    Agent,
    Approve,
    Flux,
    Hook,
    HookEvent,
    ModelChunk,
    ModelOptions,
    Mono,
    Msg,
    ToolEmitter,
    ToolResultBlock,
    ToolSchedule,
    Turn,
    Usage,
    Veto,
    on,
    tool,
)
from agentflow._support.virtual_time import run_virtual
from agentflow.errors import HookContractError, HookError, UsageError
from agentflow.hooks import ModelSource, ToolSource
from agentflow.testing import ScriptedModel
from agentflow.vocabulary.events import (
    Error,
    PostToolRound,
    PreActing,
    PreCall,
    PreReasoning,
    PreToolRound,
    ReasoningChunk,
)


class Around(Hook):
    """Wraps the work that follows one event class."""

    def __init__(self, kind: type, wrap: Callable[[Any, Any], Any]) -> None:
        self.kind = kind
        self.wrap = wrap

    def around(self, event: Any, source: Any) -> Any:
        return self.wrap(event, source) if isinstance(event, self.kind) else source


def agent_of(script: list[Any], *hooks: Hook, tools: Any = (add,)) -> Agent:
    return Agent("a", ScriptedModel(script), tools=tools, hooks=hooks)


ONE = [use("t1", "add", a=1, b=2)]
DOWN = ConnectionError("down")


async def test_source_itself_changes_nothing() -> None:
    """A hook that returns the source does not change the log."""
    plain = await streamed(agent_of([ONE, ["e", "nd"]]))
    kinds = (PreCall, PreReasoning, PreToolRound, PreActing)
    assert (
        await streamed(agent_of([ONE, ["e", "nd"]], *(Around(kind, lambda _, source: source) for kind in kinds)))
        == plain
    )
    mapped = [Around(kind, lambda _, source: source.map(lambda value: value)) for kind in kinds]
    assert await streamed(agent_of([ONE, ["e", "nd"]], *mapped)) == plain


async def test_layers_of_plain_operators_are_one_loop() -> None:
    """Hooks that map, filter or tap the model's chunks need no async generator. If one of them observes the end, all
    of them together need one, however many they are.
    """

    async def generators(*hooks: Hook) -> int:
        begun = 0
        before = sys.get_asyncgen_hooks()

        def first(generator: Any) -> None:
            nonlocal begun
            begun += 1
            assert before.firstiter is not None
            before.firstiter(generator)

        sys.set_asyncgen_hooks(firstiter=first)
        try:
            assert (await agent_of([["e", "nd"]], *hooks).call("go")).text == "end"
        finally:
            sys.set_asyncgen_hooks(*before)
        return begun

    def one(verb: str) -> Hook:
        return Around(PreReasoning, lambda _, source: getattr(source, verb)(lambda value: value))

    def watching() -> Hook:
        return Around(PreReasoning, lambda _, source: source.tap(on_completed=lambda: None))

    assert await generators(one("map"), one("filter"), one("tap"), one("map")) == await generators()
    single = await generators(watching())
    assert single > await generators()
    assert await generators(one("map"), one("filter"), one("tap"), watching(), one("map"), watching()) == single


@pytest.mark.parametrize(
    ("kind", "raised", "reported"),
    [
        (PreReasoning, asyncio.CancelledError, HookError),
        (PreReasoning, StopAsyncIteration, RuntimeError),
        (PreReasoning, KeyError, KeyError),
        (PreActing, asyncio.CancelledError, HookError),
    ],
)
async def test_a_plain_operator_that_raises(
    kind: type[Any], raised: type[BaseException], reported: type[Exception]
) -> None:
    """A cancellation that a plain operator raises itself is reported as the hook's failure, the end of a stream as an
    error.
    """

    def failing(_: object) -> Any:
        raise raised("no")

    recorder = Recorder()
    agent = agent_of([ONE, "end"], Around(kind, lambda _, source: source.map(failing)), recorder)
    with suppress(Exception):
        await agent.call("go")
    errors = [event.error for event in recorder.seen if isinstance(event, Error)]
    assert [type(error) for error in errors] == [reported]


async def test_plain_operators_drop_chunks() -> None:
    """A chunk that `filter` drops is not part of the reply, and later operators do not get it."""
    seen: list[str] = []
    around = Around(
        PreReasoning,
        lambda _, source: source.filter(lambda chunk: chunk.text != "b").tap(lambda chunk: seen.append(chunk.text)),
    )
    reply = await agent_of([["a", "b", "c"]], around).call("go")
    assert (reply.text, "".join(seen)) == ("ac", "ac")


async def test_retry_before_any_chunk() -> None:
    """`source.retry(3)` repeats the model call; the chunks of the successful attempt have its `attempt` number, and
    are no restarts.
    """
    recorder = Recorder()
    agent = agent_of([DOWN, DOWN, "fine"], Around(PreReasoning, lambda _, source: source.retry(3)), recorder)
    assert (await agent.call("go")).text == "fine"
    chunk = next(event for event in recorder.seen if isinstance(event, ReasoningChunk))
    assert (chunk.attempt, chunk.restart) == (3, False)


async def test_retry_after_delivered_chunks_restarts() -> None:
    """If chunks were delivered, the next one has restart=True and attempt=2, and the fold starts again."""
    agent = agent_of([["half ", DOWN], ["who", "le"]], Around(PreReasoning, lambda _, source: source.retry(2)))
    assert await streamed(agent) == [
        "PreCall user: go",
        "PreReasoning 1 reason",
        "ReasoningChunk half",
        "ReasoningChunk attempt 2 whole",
        "PostReasoning whole",
        "PostCall completed 'whole'",
        "CallEnded completed",
    ]
    assert history(agent.session()) == ["user: go", "assistant: whole"]


async def test_attempts_and_restarts_of_every_chunk() -> None:
    """Only the first chunk after a failure is a restart; all chunks of an attempt have its number."""
    recorder = Recorder()
    script = [["a", DOWN], ["b", DOWN], ["c", "d"]]
    await agent_of(script, Around(PreReasoning, lambda _, source: source.retry(3)), recorder).call("go")
    chunks = [event for event in recorder.seen if isinstance(event, ReasoningChunk)]
    seen = [(chunk.incremental_chunk.text, chunk.attempt, chunk.restart) for chunk in chunks]
    assert seen == [("a", 1, False), ("b", 2, True), ("c", 3, True), ("d", 3, False), ("", 3, False)]
    assert chunks[-1].accumulated_message.text == "cd"


async def test_retry_that_gives_up_raises_the_last_error() -> None:
    """When all attempts fail the model's own error comes out."""
    with pytest.raises(ConnectionError) as caught:
        await agent_of([["a", DOWN], DOWN], Around(PreReasoning, lambda _, source: source.retry(2))).call("go")
    assert caught.value is DOWN


async def _hang() -> None:
    await asyncio.sleep(3600)


def test_timeout_limits_the_gap_between_items() -> None:
    """`source.timeout(5)`: a model that pauses too long fails, and its stream is closed."""
    model = ScriptedModel([["a", _hang, "b"]])
    agent = Agent("a", model, hooks=[Around(PreReasoning, lambda _, source: source.timeout(5))])
    with pytest.raises(TimeoutError):
        run_virtual(agent.call("go"))
    assert model.open_streams == 0


def test_deadline_limits_the_working_time() -> None:
    """`source.deadline(30)` limits the source's own working time, and a retry gets the full time again."""

    async def ten() -> None:
        await asyncio.sleep(10)

    script = [["a", ten, "b", ten, "c", ten, "d", ten], ["fast"]]
    agent = agent_of(script, Around(PreReasoning, lambda _, source: source.deadline(30).retry(2)))
    assert run_virtual(agent.call("go")).text == "fast"


def test_a_slow_hook_does_not_count_for_the_deadline() -> None:
    """The deadline counts the source's working time, not that of later hooks and readers."""

    class Slow(Hook):
        async def on_event(self, event: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
            if isinstance(event, ReasoningChunk):
                await asyncio.sleep(100)
            return event

    agent = agent_of([["a", "b"]], Around(PreReasoning, lambda _, source: source.deadline(30)), Slow())
    assert run_virtual(agent.call("go")).text == "ab"


async def test_catch_with_another_model() -> None:
    """`source.catch(lambda e, _: source.using(model=...))` calls another model with the same request."""
    spare = ScriptedModel(["spare answer"], name="spare")
    agent = agent_of(
        [["half", DOWN]], Around(PreReasoning, lambda _, s: s.catch(lambda error, _: s.using(model=spare)))
    )
    lines = await streamed(agent)
    assert lines[2:4] == ["ReasoningChunk half", "ReasoningChunk attempt 2 spare answer"]
    assert spare.requests[0].model == "spare"
    assert [msg.text for msg in spare.requests[0].messages] == ["go"]
    assert [spec.name for spec in spare.requests[0].tools] == ["add"]


async def test_using_other_messages_and_options() -> None:
    """`using(input_messages=, options=)` is the same cold stream with another request; options merge."""
    model = ScriptedModel(["ok"])

    def wrap(event: Any, source: Any) -> Any:
        return source.using(input_messages=[Msg.user("other")], options=ModelOptions(seed=7))

    agent = Agent("a", model, hooks=[Around(PreReasoning, wrap)], options=ModelOptions(temperature=0.5))
    await agent.call("go")
    request = model.requests[0]
    assert [msg.text for msg in request.messages] == ["other"]
    assert (request.options.temperature, request.options.seed) == (0.5, 7)


async def test_map_over_chunks_reaches_consumer_and_history() -> None:
    """Redaction is a map over chunks: consumer, PostReasoning, history and reply all have the mapped text."""

    def mask(chunk: Any) -> Any:
        return replace(chunk, text=chunk.text.replace("secret", "***"))

    agent = agent_of([["a ", "secret", " b"]], Around(PreReasoning, lambda _, source: source.map(mask)))
    lines = await streamed(agent)
    assert lines[2:5] == ["ReasoningChunk a *** b", "PostReasoning a *** b", "PostCall completed 'a *** b'"]
    assert history(agent.session()) == ["user: go", "assistant: a *** b"]


async def test_chunks_of_a_tool() -> None:
    """`source.chunks(f)` changes a tool's chunks before ActingChunk, and the result of a streaming tool."""

    @tool
    async def stream() -> Any:
        """Stream."""
        yield "a"
        yield "b"

    @tool
    async def emits(emitter: ToolEmitter) -> str:
        """Emit."""
        await emitter.emit("c")
        await emitter.emit("d")
        return "emitted"

    upper = Around(PreActing, lambda _, source: source.chunks(lambda pieces: pieces.map(str.upper)))
    agent = agent_of([[use("t1", "stream"), use("t2", "emits")], "end"], upper, tools=[stream, emits])
    lines = await streamed(agent)
    assert [text for text in lines if text.startswith(("ActingChunk", "PostActing"))] == [
        "ActingChunk t1 'A'",
        "ActingChunk t1 'B'",
        "PostActing t1 success 'AB'",
        "ActingChunk t2 'C'",
        "ActingChunk t2 'D'",
        "PostActing t2 success 'emitted'",
    ]


async def test_a_guard_that_races_the_model() -> None:
    """`Flux.merge(check.ignore_elements(), source)`: a check that vetoes while the model streams cancels the model,
    and equals Deny: the reply is the reason.
    """
    talking = asyncio.Event()

    async def check() -> None:
        await talking.wait()
        raise Veto("caught in the act")

    async def hang() -> None:
        talking.set()
        await asyncio.Event().wait()

    model = ScriptedModel([["half ", hang]])
    race = Around(PreReasoning, lambda _, source: Flux.merge(Mono(check).ignore_elements(), source))
    agent = Agent("a", model, hooks=[race])
    reply = await agent.call("go")
    assert reply.text == "caught in the act"
    assert reply.outcome == "denied"
    assert model.open_streams == 0
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert history(agent.session()) == ["user: go", "assistant: caught in the act"]


async def test_a_guard_that_passes_while_the_model_talks() -> None:
    """A racing check that passes leaves the model's reply unchanged."""

    async def check() -> None:
        await asyncio.sleep(0)

    race = Around(PreReasoning, lambda _, source: Flux.merge(Mono(check).ignore_elements(), source))
    assert (await agent_of([["a", "b"]], race).call("go")).text == "ab"


async def test_the_source_behind_precall_runs_once() -> None:
    """The source of PreCall is the rest of the call; a second subscription is a UsageError."""

    def twice(event: Any, source: Any) -> Any:
        return source.then(source)

    with pytest.raises(UsageError, match="can be subscribed only once"):
        await agent_of(["a", "b"], Around(PreCall, twice)).call("go")


async def test_around_precall_changes_the_reply() -> None:
    """The message that `around` yields on PreCall is the call's reply; it is returned and stored."""
    shout = Around(PreCall, lambda _, source: source.map(lambda msg: Msg.assistant(msg.text.upper())))
    agent = agent_of(["quiet"], shout)
    assert (await agent.call("go")).text == "QUIET"
    assert history(agent.session()) == ["user: go", "assistant: QUIET"]
    assert (await streamed(agent_of(["quiet"], shout)))[-2:] == ["PostCall completed 'QUIET'", "CallEnded completed"]


async def test_around_precall_answers_from_a_cache() -> None:
    """A hook that does not subscribe to the source answers the call without the model."""
    agent = agent_of([], Around(PreCall, lambda _, source: Mono.just(Msg.assistant("cached"))))
    assert (await agent.call("go")).text == "cached"
    assert history(agent.session()) == ["user: go", "assistant: cached"]


async def test_around_a_tool() -> None:
    """On PreActing: retry runs the tool again, with one PostActing; a fallback answers; Veto denies."""
    tries: list[int] = []

    @tool(type="read")
    async def flaky() -> str:
        """Fail twice."""
        tries.append(1)
        if len(tries) < 3:
            raise ConnectionError("flaky")
        return "third time"

    lines = await streamed(
        agent_of([[use("t1", "flaky")], "end"], Around(PreActing, lambda _, source: source.retry(3)), tools=[flaky])
    )
    assert lines[5:8] == [
        "PreActing t1:flaky()",
        "PostActing t1 success 'third time'",
        "PostToolRound t1 success 'third time'",
    ]
    assert len(tries) == 3

    def veto(event: Any, source: Any) -> Any:
        raise Veto("not today")

    lines = await streamed(agent_of([ONE, "end"], Around(PreActing, veto)))
    assert lines[6] == "PostActing t1 denied 'Denied: not today'"
    lines = await streamed(agent_of([ONE, "end"], Around(PreActing, lambda _, source: Mono.just("instead"))))
    assert lines[6] == "PostActing t1 success 'instead'"
    lines = await streamed(agent_of([ONE, "end"], Around(PreActing, lambda _, source: Mono.error(Veto("later")))))
    assert lines[6] == "PostActing t1 denied 'Denied: later'"


async def test_veto_in_around_equals_deny_on_every_stage() -> None:
    """Veto raised inside `around` equals Deny on that stage."""

    def veto(event: Any, source: Any) -> Any:
        raise Veto("no")

    reply = await agent_of([ONE, "end"], Around(PreCall, veto)).call("go")
    assert (reply.text, reply.outcome) == ("no", "denied")
    reply = await agent_of([ONE, "end"], Around(PreReasoning, veto)).call("go")
    assert (reply.text, reply.outcome) == ("no", "denied")
    agent = agent_of([ONE, "end"], Around(PreToolRound, veto))
    assert (await agent.call("go")).text == "end"
    assert history(agent.session())[2] == "tool: t1 denied 'Denied: no'"


async def test_around_a_round_does_not_run_finished_calls_again() -> None:
    """On PreToolRound: subscribing again runs only the calls without a result."""
    runs: list[str] = []

    @tool(type="read")
    async def look(at: str) -> str:
        """Look."""
        runs.append(at)
        return at

    agent = agent_of(
        [[use("t1", "look", at="a"), use("t2", "look", at="b")], "end"],
        Around(PreToolRound, lambda _, source: source.then(source)),
        tools=[look],
    )
    assert (await agent.call("go")).text == "end"
    assert sorted(runs) == ["a", "b"]
    assert history(agent.session())[2] == "tool: t1 success 'a'; t2 success 'b'"


async def test_around_a_round_may_rewrite_results() -> None:
    """The results that `around` yields on PreToolRound are those of the round."""

    def rewrite(results: Any) -> Any:
        return tuple(type(result)(result.tool_use_id, result.name, "rewritten") for result in results)

    agent = agent_of([ONE, "end"], Around(PreToolRound, lambda _, source: source.map(rewrite)))
    await agent.call("go")
    assert history(agent.session())[2] == "tool: t1 success 'rewritten'"


@pytest.mark.parametrize("answered", [(), ("t1",), ("t2",), ("t1", "t2"), ("t3",), ("t1", "t2", "t3")])
async def test_a_round_waits_for_what_around_leaves_unanswered(answered: tuple[str, ...]) -> None:
    """Two calls wait for a person, one does not. A call that `around` answers no longer waits: event, reply and
    session agree. A waiting call runs when it is approved, and its result counts unless `around` answers it.
    """
    ran: list[str] = []
    rounds: list[dict[str, str]] = []

    @tool(requires_approval=True)
    async def pay(who: str) -> str:
        ran.append(who)
        return f"paid {who}"

    @tool(type="research")
    async def look() -> str:
        return "seen"

    def answer(results: Sequence[ToolResultBlock]) -> tuple[ToolResultBlock, ...]:
        return tuple(
            [
                ToolResultBlock(result.tool_use_id, result.name, "mine") if result.tool_use_id in answered else result
                for result in results
            ]
        )

    @on(observer=True)
    def watch(event: PostToolRound) -> None:
        rounds.append({result.tool_use_id: result.state for result in event.tool_results})

    calls = [use("t1", "pay", who="ann"), use("t2", "pay", who="bob"), use("t3", "look")]
    agent = Agent(
        "a",
        ScriptedModel([calls, "end"]),
        tools=[pay, look],
        hooks=[Around(PreToolRound, lambda _, source: source.map(answer)), watch],
        schedule=ToolSchedule.PARALLEL,
    )
    reply = await agent.call("go")
    waiting = [name for name in ("t1", "t2") if name not in answered]
    assert [waits.id for waits in reply.pending] == [waits.id for waits in agent.session().pending] == waiting
    assert [name for name, state in rounds[-1].items() if state == "suspended"] == waiting
    assert ran == []
    if waiting:
        reply = await agent.resume(None, {name: Approve() for name in waiting})
    assert (reply.outcome, reply.text) == ("completed", "end")
    assert set(ran) == {{"t1": "ann", "t2": "bob"}[name] for name in waiting}
    expected = {"t1": "paid ann", "t2": "paid bob", "t3": "seen"} | dict.fromkeys(answered, "mine")
    [results] = [msg.tool_results for msg in agent.session().messages if msg.role == "tool"]
    assert {result.tool_use_id: result.text for result in results} == expected


async def test_a_veto_around_a_round_denies_what_waits() -> None:
    """`around` raises Veto after calls have suspended: no call waits, and event and session agree."""

    @tool(requires_approval=True)
    async def pay() -> str:
        return "paid"

    def refuse(results: object) -> object:
        raise Veto("not in this house")

    reply = await (
        agent := agent_of(
            [[use("t1", "pay")], "end"], Around(PreToolRound, lambda _, source: source.map(refuse)), tools=[pay]
        )
    ).call("go")
    assert (reply.outcome, agent.session().pending) == ("completed", ())
    assert history(agent.session())[2] == "tool: t1 denied 'Denied: not in this house'"


async def test_what_around_may_not_return() -> None:
    """A value that cannot be subscribed to is a contract error that names hook and event."""
    with pytest.raises(HookContractError) as caught:
        await agent_of(["x"], Around(PreReasoning, lambda _, source: "text")).call("go")
    assert str(caught.value) == (
        "Hook 'Around.around' answered PreReasoning with str. Allowed answers: the source, or any Mono, Flux or Observable."
    )


async def test_the_event_is_sealed_in_around() -> None:
    """`around` gets the sealed event, which cannot be assigned."""
    sealed: list[bool] = []

    def wrap(event: Any, source: Any) -> Any:
        sealed.append(event.sealed)
        return source

    kinds = (PreCall, PreReasoning, PreToolRound, PreActing)
    await agent_of([ONE, "end"], *(Around(kind, wrap) for kind in kinds)).call("go")
    assert sealed == [True] * 5


async def test_a_failing_around_names_its_hook() -> None:
    """An exception raised by `around` itself ends the call with a note that names hook, priority and event."""

    def broken(event: Any, source: Any) -> Any:
        raise ValueError("around broke")

    with pytest.raises(ValueError, match="around broke") as caught:
        await agent_of(["x"], Around(PreReasoning, broken)).call("go")
    assert caught.value.__notes__ == ["raised by hook Around (priority 100) on PreReasoning"]


async def test_an_attempt_that_came_to_nothing_is_billed() -> None:
    """The usage that a provider reported for a broken attempt is part of the call's usage."""

    class Retry(Hook):
        def around(self, event: Any, source: Any) -> Any:
            return source.retry(2) if isinstance(event, PreReasoning) else source

    broken = [ModelChunk("half"), ModelChunk(usage=Usage(input_tokens=7, output_tokens=1)), OSError("cut")]
    whole = [ModelChunk("whole"), ModelChunk(usage=Usage(input_tokens=7, output_tokens=2))]
    reply = await Agent("a", ScriptedModel([broken, whole]), hooks=[Retry()]).call("go")
    assert reply.text == "whole"
    assert (reply.usage.input_tokens, reply.usage.output_tokens, reply.usage.model_calls) == (14, 3, 2)


class Typed(Hook):
    """Wraps a model call and a tool call by the typed forms, and the other stages by `around`."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def around(self, event: HookEvent, source: Any) -> Any:
        self.seen.append(f"around {type(event).__name__}")
        return source

    def around_model(self, event: PreReasoning, source: ModelSource) -> Flux[ModelChunk]:
        self.seen.append(f"model {source.request.model}")
        return source.map(lambda chunk: replace(chunk, text=chunk.text.upper()))

    def around_tool(self, event: PreActing, source: ToolSource) -> Mono[ToolResultBlock]:
        self.seen.append(f"tool {event.tool_use.name}")
        return source.map(lambda result: replace(result, content=f"{result.content}!"))


async def test_the_typed_forms_take_the_place_of_around() -> None:
    """`around_model` and `around_tool` are called for their stage and `around` for the others; their return values
    count.
    """
    hook = Typed()
    agent = Agent("a", ScriptedModel([use("t1", "add", a=1, b=2), "done"]), tools=[add], hooks=[hook])
    reply = await agent.call("go")
    assert (reply.text, agent.session().messages[2].text) == ("DONE", "3!")
    assert hook.seen == [
        "around PreCall",
        "model scripted",
        "around PreToolRound",
        "tool add",
        "model scripted",
    ]


class OneForm(Hook):
    """Wraps tools only."""

    def around_tool(self, event: PreActing, source: ToolSource) -> Mono[ToolResultBlock]:
        return source.map(lambda result: replace(result, content="wrapped"))


async def test_a_typed_form_alone_wraps_its_stage_and_no_other() -> None:
    """A hook with `around_tool` alone is in the table of tools, and works on a tool and on a turn, but not in shadow
    mode.
    """
    described = Agent("a", ScriptedModel([]), hooks=[OneForm()], default_hooks=()).hooks.describe()
    assert described == "PreActing\n  around     100  OneForm"
    fresh = tool(add.function)
    fresh.hook(OneForm())
    assert await Turn(fresh, {"a": 1, "b": 2}).returning() == "wrapped"
    shadow = OneForm()
    shadow.shadow = True
    assert await Turn(tool(add.function), {"a": 1, "b": 2}, hooks=shadow).returning() == 3
