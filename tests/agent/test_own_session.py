"""A tool or a hook that calls its own agent on its own session would wait for itself: it gets an error, and nothing
hangs.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from loguru import logger
from toolbox import agent_of

from agentflow import (
    Agent,
    CallEnded,
    Hook,
    Mono,
    PostCall,
    PostReasoning,
    PreActing,
    PreCall,
    PreReasoning,
    PreToolRound,
    Session,
    ToolUseBlock,
    on,
    on_complete,
    tool,
)
from agentflow.errors import UsageError
from agentflow.testing.scripted import ScriptedModel
from agentflow.vocabulary.ports.memory_store import MemoryStore

REFUSED = (
    "on session 's' was made by a tool or a hook of a call on that same session, so they would deadlock. "
    "Make the new call in a separate conversation (session=Session.fresh()) or after the running call has ended, or add a "
    "message to the running call (context.inject(...))."
)


def asks(count: int) -> list[ToolUseBlock]:
    return [ToolUseBlock(f"t{number}", "ask", {}) for number in range(count)]


async def patiently(awaited: Any) -> Any:
    return await asyncio.wait_for(awaited, 20)


async def read(agent: Agent, session: str | Session) -> None:
    async for _ in agent.stream("go", session=session):
        pass


@pytest.mark.parametrize("how", ["called", "streamed"])
@pytest.mark.parametrize("count", [1, 2], ids=["alone", "in a parallel round"])
async def test_a_tool_that_calls_its_own_session(how: str, count: int) -> None:
    """The model reads the reason, and continues."""

    @tool(type="read", timeout=None)
    async def ask() -> str:
        return (await agent.call("inner", session="s")).text

    agent = Agent("a", ScriptedModel([asks(count), "end"]), tools=[ask])
    await patiently(agent.call("go", session="s") if how == "called" else read(agent, "s"))
    session = agent.session("s")
    assert session.messages[-1].text == "end"
    assert all(REFUSED in result.text for result in session.messages[2].tool_results)


@pytest.mark.parametrize("count", [1, 2], ids=["alone", "in a parallel round"])
async def test_a_tool_that_calls_its_agent_again(count: int) -> None:
    """The same holds for the implicit session; a call in a session of its own works."""

    @tool(type="read", timeout=None)
    async def ask() -> str:
        return (await agent.call("inner")).text

    @tool(type="read", timeout=None)
    async def ask_apart() -> str:
        return (await agent.call("inner", session=Session.fresh())).text

    rounds = [asks(count), [ToolUseBlock("u1", "ask_apart", {})], "apart", "end"]
    agent = Agent("a", ScriptedModel(rounds), tools=[ask, ask_apart])
    await patiently(agent.call("go"))
    results = [result.text for msg in agent.session().messages for result in msg.tool_results]
    assert all(REFUSED.replace("'s'", "'a'") in text for text in results[:count])
    assert results[count:] == ["apart"]


@pytest.mark.parametrize("kind", [PreCall, PreToolRound, PreActing])
async def test_a_tool_that_an_operator_runs_in_a_task_of_its_own(kind: type[Any]) -> None:
    """The task belongs to the call: nothing created in it outlives the call."""

    class Races(Hook):
        def around(self, event: Any, source: Any) -> Any:
            return source.amb(Mono.never()) if isinstance(event, kind) else source

    @tool(timeout=None)
    async def ask() -> str:
        return (await agent.call("inner", session="s")).text

    agent = Agent("a", ScriptedModel([asks(1), "end"]), tools=[ask], hooks=[Races()])
    await patiently(agent.call("go", session="s"))
    assert REFUSED in agent.session("s").messages[2].tool_results[0].text


async def test_a_hook_within_a_task_of_an_operator() -> None:
    """It gets the same error as a hook in the call's own task."""

    class Races(Hook):
        def around(self, event: Any, source: Any) -> Any:
            return source.amb(Mono.never()) if isinstance(event, PreCall) else source

    agents: list[Agent] = []
    agents.append(Agent("a", ScriptedModel(["end"]), hooks=[Races(), asking_hook(False, agents)]))
    with pytest.raises(UsageError) as caught:
        await patiently(agents[0].call("go", session="s"))
    assert REFUSED in str(caught.value)


async def test_a_hook_of_the_last_event_that_calls_its_own_session() -> None:
    """The session is free after that event, and not before."""
    told: list[str] = []

    @on(CallEnded)
    async def ask(event: CallEnded) -> None:
        with pytest.raises(UsageError) as caught:
            await agent.call("inner", session="s")
        told.append(str(caught.value))

    agent = Agent("a", ScriptedModel(["one"]), hooks=[ask])
    assert (await patiently(agent.call("go", session="s"))).text == "one"
    assert [REFUSED in text for text in told] == [True]


async def test_a_tool_that_resumes_or_streams_its_own_session() -> None:
    """Each entry point of the session is guarded."""
    told: list[str] = []

    @tool(timeout=None)
    async def ask() -> None:
        for way in (lambda: agent.resume("s"), lambda: agent.stream("x", session="s").to_list()):
            with pytest.raises(UsageError) as caught:
                await way()
            told.append(str(caught.value))

    agent = Agent("a", ScriptedModel([asks(1), "end"]), tools=[ask])
    await patiently(agent.call("go", session="s"))
    assert [REFUSED in text for text in told] == [True, True]


async def test_a_tool_in_a_thread_that_calls_its_own_session() -> None:
    """With `block()` the call waits for the thread, and so for itself."""

    @tool(in_thread=True, timeout=None)
    def ask() -> str:
        return agent.call("inner", session="s").block().text

    agent = Agent("a", ScriptedModel([asks(1), "end"]), tools=[ask])
    await patiently(agent.call("go", session="s"))
    assert REFUSED in agent.session("s").messages[2].tool_results[0].text


async def test_a_sub_agents_tool_that_calls_the_callers_session() -> None:
    """A waiting caller is found at any depth."""

    @tool(timeout=None)
    async def ask() -> str:
        return (await top.call("inner", session="s")).text

    low = Agent("low", ScriptedModel([asks(1), "low end"]), tools=[ask])
    middle = Agent("middle", ScriptedModel([ToolUseBlock("m", "low", {"message": "go"}), "middle end"]), tools=[low])
    top = Agent("top", ScriptedModel([ToolUseBlock("u", "middle", {"message": "go"}), "end"]), tools=[middle])
    reply = await patiently(top.call("go", session="s"))
    assert reply.text == "end"
    assert REFUSED in low.config.model.requests[1].messages[-1].text  # type: ignore[union-attr]


async def test_another_agent_on_the_same_stored_session() -> None:
    """A session belongs to the store: its holder there would have to end first."""

    class Waits(MemoryStore):
        pass

    store = Waits()

    @tool(timeout=None)
    async def ask() -> str:
        return (await other.call("inner", session=Session("s", store=store))).text

    other = Agent("other", ScriptedModel(["other's"]), store=store)
    agent = Agent("a", ScriptedModel([asks(1), "end"]), tools=[ask], store=store)
    await patiently(agent.call("go", session="s"))
    assert REFUSED in agent.session("s").messages[2].tool_results[0].text


def asking_hook(in_thread: bool, agents: list[Agent]) -> Hook:
    @on(PreReasoning)
    async def ask(event: PreReasoning) -> None:
        await agents[0].call("inner", session="s")

    @on(PreReasoning, in_thread=True)
    def ask_blocking(event: PreReasoning) -> None:
        agents[0].call("inner", session="s").block()

    return ask_blocking if in_thread else ask


@pytest.mark.parametrize("how", ["called", "streamed"])
@pytest.mark.parametrize("in_thread", [False, True], ids=["in the loop", "in a thread"])
async def test_a_hook_that_calls_its_own_session(how: str, in_thread: bool) -> None:
    """The call fails with the reason, as with any error of a decision hook."""
    agents: list[Agent] = []
    agents.append(Agent("a", ScriptedModel(["end"]), hooks=[asking_hook(in_thread, agents)]))
    with pytest.raises(UsageError) as caught:
        await patiently(agents[0].call("go", session="s") if how == "called" else read(agents[0], "s"))
    assert REFUSED in str(caught.value)
    assert not agents[0].session("s").busy


async def test_a_call_that_a_tool_leaves_behind_waits_its_turn() -> None:
    """In a task of its own it is unknown whether the tool waits for it: a warning is logged, and it runs when the
    session is free.
    """
    lines: list[str] = []
    later: list[asyncio.Task[Any]] = []

    @tool
    async def ask() -> None:
        async def follow_up() -> str:
            return (await agent.call("and now?", session="s")).text

        later.append(asyncio.create_task(follow_up()))
        await asyncio.sleep(0)

    agent = Agent("a", ScriptedModel([asks(1), "first", "second"]), tools=[ask])
    sink = logger.add(lambda line: lines.append(str(line)), level="WARNING", format="{message}")
    try:
        assert (await patiently(agent.call("go", session="s"))).text == "first"
        assert await patiently(later[0]) == "second"
    finally:
        logger.remove(sink)
    assert [line.split(";")[0] for line in lines] == [
        "a call of agent a on session s waits for the call that started it"
    ]


async def test_other_sessions_and_later_calls_are_free() -> None:
    """From a tool: a fresh session, another id; from a hook: the same. A call after the call has the session."""
    texts: list[str] = []

    @tool
    async def ask() -> None:
        texts.append((await agent.call("inner", session=Session.fresh())).text)
        texts.append((await agent.call("inner", session="t")).text)

    @on(PostReasoning)
    async def hook(event: PostReasoning) -> None:
        if event.context.session_id == "s" and event.iteration == 2:
            texts.append((await agent.call("inner", session="t")).text)

    agent = Agent("a", ScriptedModel([asks(1), "1", "2", "end", "3", "4"]), tools=[ask], hooks=[hook])
    assert (await patiently(agent.call("go", session="s"))).text == "end"
    assert (await patiently(agent.call("again", session="s"))).text == "4"
    assert texts == ["1", "2", "3"]


async def test_a_hook_that_calls_its_own_agent_is_told_so() -> None:
    """Calling the agent again on the busy session is refused, with the alternative; a session of its own works."""
    replies: list[str] = []

    @on_complete
    async def review(event: PostCall) -> None:
        if event.session_id != "a":
            return
        with pytest.raises(UsageError, match="session="):
            await agent.call("Review it.")
        replies.append((await agent.call("Review it.", session=Session.fresh())).text)

    agent = agent_of(["Draft.", "Looks good."], review)
    assert (await agent.call("Write.")).text == "Draft."
    assert replies == ["Looks good."]
