"""What a hook can learn about its call: the trace so far, which model answered, and the purpose of a failed call."""

import asyncio
from typing import Any

import pytest
from eventlog import use

from agentflow import (
    Agent,
    Answer,
    Error,
    Flux,
    Hook,
    ModelChunk,
    PostReasoning,
    PreReasoning,
    Recover,
    Reply,
    after_each_tool,
    after_llm,
    before_llm,
    on,
    on_complete,
    tool,
)
from agentflow.errors import ModelError
from agentflow.testing import ScriptedModel
from agentflow.vocabulary.events import PostActing


@tool(type="read")
async def look(at: str) -> str:
    """Look."""
    return f"saw {at}"


@tool
async def write(at: str) -> str:
    """Write."""
    return f"wrote {at}"


class Named(ScriptedModel):
    """A scripted model with a name."""

    def __init__(self, name: str, *script: Any) -> None:
        super().__init__(list(script))
        self.name = name


def down() -> ModelError:
    return ModelError("down", retryable=True, model="first")


# ---- the trace


@pytest.mark.parametrize("how", [{}, {"observer": True}, {"guard": True}], ids=str)
async def test_in_after_each_tool_the_last_turn_of_the_trace_is_its_own(how: Any) -> None:
    """The tool that has just ended is `trace.turns[-1]`; each is listed once, then and later."""
    seen: list[Any] = []

    @after_each_tool(**how)
    def each(event: PostActing) -> None:
        seen.append([(turn.tool_use_id, turn.name, turn.status, turn.result) for turn in event.context.trace.turns])

    @on_complete
    def end(event: Any) -> None:
        seen.append([turn.tool_use_id for turn in event.context.trace.turns])

    script = [[use("1", "write", at="a"), use("2", "nope"), use("3", "write", at="b")], "ok"]
    await Agent("a", ScriptedModel(script), tools=[write], hooks=[each, end]).call("go")
    first = ("1", "write", "success", "wrote a")
    assert seen[0] == [first]
    assert seen[1][0] == first
    assert seen[1][-1][:3] == ("2", "nope", "not_found")
    assert seen[2][-1] == ("3", "write", "success", "wrote b")
    assert seen[3] == ["1", "2", "3"]


async def test_of_calls_that_end_together_each_sees_itself_last() -> None:
    """While the hooks of a parallel round wait for each other, each one's own call is the last, after those of the
    others.
    """
    all_in = asyncio.Barrier(3)
    seen: dict[str, list[str]] = {}

    @after_each_tool
    async def each(event: PostActing) -> None:
        await all_in.wait()
        seen[event.tool_use.id] = [turn.tool_use_id for turn in event.context.trace.turns]
        await all_in.wait()

    script = [[use(n, "look", at=n) for n in "123"], "ok"]
    await Agent("a", ScriptedModel(script), tools=[look], hooks=[each]).call("go")
    assert {call: (turns[-1], sorted(turns)) for call, turns in seen.items()} == {
        n: (n, ["1", "2", "3"]) for n in "123"
    }


async def test_the_trace_shows_what_the_hooks_before_have_made_of_it() -> None:
    """The turn in the trace equals the one in the later history, where it is settled."""
    seen: list[str] = []

    @after_each_tool(priority=1)
    def mask(event: PostActing) -> None:
        result = event.tool_result
        event.tool_result = type(result)(result.tool_use_id, result.name, "(masked)", result.state)

    @after_each_tool(priority=2)
    def note(event: PostActing) -> None:
        seen.append(event.context.trace.turns[-1].result)

    await Agent("a", ScriptedModel([use("1", "look", at="a"), "ok"]), tools=[look], hooks=[mask, note]).call("go")
    assert seen == ["(masked)"]


async def test_a_turn_stands_in_the_trace_once_when_its_hook_fails() -> None:
    """A hook that fails on the end of a tool removes nothing from the trace, and adds nothing."""
    seen: list[list[str]] = []

    @after_each_tool
    def fails(event: PostActing) -> None:
        raise ValueError("hook broke")

    @on(Error)
    def told(event: Error) -> None:
        seen.append([turn.tool_use_id for turn in event.context.trace.turns])

    agent = Agent("a", ScriptedModel([use("1", "look", at="a"), "ok"]), tools=[look], hooks=[fails, told])
    with pytest.raises(ValueError, match="hook broke"):
        await agent.call("go")
    assert seen == [["1"]]


async def test_in_after_llm_the_last_model_call_of_the_trace_is_its_own() -> None:
    """As with tools: there are as many model calls as `usage` counts."""
    seen: list[Any] = []

    @after_llm
    def each(event: PostReasoning) -> None:
        calls = event.context.trace.model_calls
        seen.append((event.context.usage.model_calls, [call.iteration for call in calls], calls[-1].model))

    await Agent("a", Named("m", use("1", "look", at="a"), "ok"), tools=[look], hooks=[each]).call("go")
    assert seen == [(1, [1], "m"), (2, [1, 2], "m")]


# ---- what a model can do


@pytest.mark.parametrize("searches", [True, False])
@pytest.mark.parametrize("name", ["a", "z", None])
async def test_whether_a_model_searches_tools(name: str | None, searches: bool) -> None:
    """It is known of the agent's own model, an object or a name, and of each other one; of an unknown name, that it
    does not.
    """
    new, old = "anthropic/claude-sonnet-4-5", "anthropic/claude-sonnet-4-20250514"
    own: Any = (new if searches else old) if name is None else Named(name)
    if name is not None:
        own.searches_tools = searches
    found: list[bool] = []

    @before_llm
    def ask(event: PreReasoning) -> Answer:
        found.extend(event.context.searches_tools(model) for model in (event.model, new, old, "nobody"))
        return Answer("ok")

    await Agent("a", own, hooks=[ask]).call("go")
    assert found == [searches, True, False, False]


# ---- which model answered


async def answered(agent: Agent) -> tuple[Reply, list[str], list[str]]:
    """Return a call, the model that `after_llm` reported, and those in the trace at the end."""
    told: list[str] = []
    traced: list[str] = []

    @after_llm
    def each(event: PostReasoning) -> None:
        told.append(event.model)

    @on_complete
    def end(event: Any) -> None:
        traced.extend(call.model for call in event.context.trace.model_calls)

    reply = await agent.call("go", hooks=[each, end])
    return reply, told, traced


class FallsBack(Hook):
    """Calls a second model if the first one fails."""

    def around(self, event: Any, source: Any) -> Any:
        if isinstance(event, PreReasoning):
            return source.catch(lambda _error, _source: source.using(model=Named("second", "from the second")))
        return source


class Races(Hook):
    """Calls a second model at once, and takes the first answer."""

    def around(self, event: Any, source: Any) -> Any:
        if isinstance(event, PreReasoning):
            return source.delay_subscription(60).amb(source.using(model=Named("second", "from the second")))
        return source


class Cached(Hook):
    """Calls no model."""

    def around(self, event: Any, source: Any) -> Any:
        return Flux.of(ModelChunk(text="cached")) if isinstance(event, PreReasoning) else source


@pytest.mark.parametrize(
    ("script", "hooks", "text", "model"),
    [
        (["hi"], [], "hi", "first"),
        (["hi"], [on(PreReasoning)(lambda _: Answer("given"))], "given", ""),
        ([down()], [FallsBack()], "from the second", "second"),
        (["hi"], [FallsBack()], "hi", "first"),
        (["hi"], [Races()], "from the second", "second"),
        (["hi"], [Cached()], "cached", ""),
        ([down()], [on(Error)(lambda _: Recover("recovered"))], "recovered", ""),
    ],
    ids=[
        "plain",
        "answered by a hook",
        "after a fallback",
        "without need of it",
        "after a race",
        "cached",
        "recovered",
    ],
)
async def test_which_model_answered(script: list[Any], hooks: list[Any], text: str, model: str) -> None:
    """`PostReasoning.model` and the trace name the model that wrote the reply, and none if a hook supplied it."""
    reply, told, traced = await answered(Agent("a", Named("first", *script), hooks=hooks))
    assert (reply.text, told, traced) == (text, [model], [model])


# ---- what a failed model call was for


@pytest.mark.parametrize(("limit", "purpose"), [(1, "summary"), (2, "reason")])
async def test_an_error_says_what_the_failed_model_call_was_for(limit: int, purpose: str) -> None:
    """`Error.purpose` distinguishes a failed summary from a failed reasoning; an error of a tool has none."""
    seen: list[Any] = []

    @on(Error)
    def told(event: Error) -> None:
        seen.append((event.phase.value, event.purpose))

    @tool
    async def fails() -> None:
        """Fail."""
        raise ValueError("broken")

    agent = Agent("a", ScriptedModel([use("1", "fails"), down()]), tools=[fails], hooks=[told], max_iterations=limit)
    with pytest.raises(ModelError):
        await agent.call("go")
    assert seen == [("acting", None), ("reasoning", purpose)]
