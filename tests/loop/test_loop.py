"""The loop: no tool ends it, whatever it returns or raises; a reply without tool calls ends it, or control from
outside.
"""

from __future__ import annotations

import asyncio
from typing import Any, get_args

import pytest
from eventlog import history, streamed, use
from toolbox import submit
from turnlog import Log

from agentflow import (
    Agent,
    CallEnded,
    Deny,
    PostActing,
    PostCall,
    PostReasoning,
    PostToolRound,
    PreActing,
    PreReasoning,
    PreToolRound,
    Session,
    Stop,
    on,
    tool,
)
from agentflow.loop.states import State
from agentflow.testing.scripted import ScriptedModel
from agentflow.tools import ToolType


def one_of(kind: str) -> Any:
    """A tool of each type."""
    if kind == "completion_check":

        @tool(type=kind, name=kind)
        async def complete() -> bool:
            return True

        return complete

    @tool(type=kind, name=kind)
    async def made(text: str = "") -> str:
        return text

    return made


def agent_of(*script: Any, tools: Any = (submit,), **more: Any) -> Agent:
    return Agent("a", ScriptedModel(script), tools=tools, **more)


@pytest.mark.parametrize("kind", get_args(ToolType))
async def test_tool_dispatch_never_ends_the_loop(kind: str) -> None:
    """After a tool of any type, even one that reports completion, the model is called again."""
    agent = agent_of(use("t1", kind), "the answer", tools=[one_of(kind)])
    assert (await agent.call("go")).text == "the answer"


async def test_each_iteration_is_request_dispatch_response() -> None:
    """The model is called, its tools run, and it is called again with their results."""
    agent = agent_of(use("t1", "submit", summary="x"), "done")
    await agent.call("go")
    model: Any = agent.config.model
    assert [[msg.role for msg in request.messages] for request in model.requests] == [
        ["user"],
        ["user", "assistant", "tool"],
    ]


async def test_dispatch_executes_the_tools_and_records_their_results() -> None:
    """One result for each call, in call order, directly after it."""
    agent = agent_of([use("t1", "submit", summary="a"), use("t2", "submit", summary="b")], "done")
    await agent.call("go")
    assert history(agent.session())[2] == "tool: t1 success 'Submitted: a'; t2 success 'Submitted: b'"


async def test_dispatch_moves_the_state_machine() -> None:
    """From the reply, through the tools, to the response: hooks see the state at each point."""
    seen: list[tuple[str, str]] = []
    session = Session.fresh()

    @on(PreReasoning, PostReasoning, PreToolRound, PreActing, PostActing, PostToolRound, PostCall)
    def look(event: Any) -> None:
        seen.append((type(event).__name__, session.machine.state.name))

    await agent_of(use("t1", "submit"), "done", hooks=[look]).call("go", session=session)
    assert seen == [
        ("PreReasoning", "ASSISTANT"),
        ("PostReasoning", "ASSISTANT"),
        ("PreToolRound", "TOOL_EXECUTION"),
        ("PreActing", "TOOL_EXECUTION"),
        ("PostActing", "TOOL_EXECUTION"),
        ("PostToolRound", "TOOL_EXECUTION"),
        ("PreReasoning", "ASSISTANT"),
        ("PostReasoning", "ASSISTANT"),
        ("PostCall", "RESPONSE"),
    ]
    assert session.machine.state is State.USER_INPUT


async def test_dispatch_has_no_flag_to_set() -> None:
    """The return value of a tool decides nothing: a result with the text "stop" is a result."""

    @tool
    async def done() -> dict[str, Any]:
        return {"task_completed": True, "stop": True}

    agent = agent_of(use("t1", "done"), use("t2", "done"), "still here", tools=[done])
    assert (await agent.call("go")).text == "still here"


@pytest.mark.parametrize(
    "error", [ValueError("x"), TimeoutError("x"), StopAsyncIteration("x"), asyncio.CancelledError()]
)
async def test_dispatch_does_not_break_the_loop_when_a_tool_fails(error: BaseException) -> None:
    """Whatever the tool raises, the model reads it and answers."""

    @tool
    async def fails() -> str:
        raise error

    agent = agent_of(use("t1", "fails"), "I see", tools=[fails])
    reply = await agent.call("go")
    assert (reply.text, agent.session().messages[2].tool_results[0].state) == ("I see", "error")


async def test_a_round_in_which_everything_fails_is_answered() -> None:
    """Denied, failed, unknown and malformed calls together: the model answers."""

    @on(PreActing)
    def deny(event: PreActing) -> Deny | None:
        return Deny("no") if event.tool_use.id == "t1" else None

    calls = [use("t1", "submit"), use("t2", "nothing"), use("t3", "submit", summary=7)]
    agent = agent_of(calls, "I see", hooks=[deny])
    assert (await agent.call("go")).text == "I see"
    assert [result.state for result in agent.session().messages[2].tool_results] == ["denied", "not_found", "error"]


async def test_submit_returns_a_confirmation() -> None:
    """A string, which the model reads."""
    assert await submit("all") == "Submitted: all"


async def test_submit_has_no_side_effects() -> None:
    """The same events, and the same states, as for any other tool."""

    @tool(type="read", name="submit")
    async def other(summary: str = "") -> str:
        return f"Submitted: {summary}"

    script: list[Any] = [use("t1", "submit", summary="x"), "done"]
    assert await streamed(agent_of(*script)) == await streamed(agent_of(*script, tools=[other]))


async def test_work_goes_on_after_submit() -> None:
    """A model that has called submit may call more tools, submit included."""
    agent = agent_of(use("t1", "submit"), use("t2", "submit"), "really done")
    assert (await agent.call("go")).text == "really done"


async def test_agent_responds_after_submit() -> None:
    """Text after submit, and a natural end."""
    agent = agent_of(use("t1", "submit", summary="x"), "Here is what I did.")
    lines = await streamed(agent)
    assert lines[-3:] == [
        "PostReasoning Here is what I did.",
        "PostCall completed 'Here is what I did.'",
        "CallEnded completed",
    ]
    assert lines.index("PostActing t1 success 'Submitted: x'") < lines.index("PreReasoning 2 reason")


async def test_the_loop_ends_with_a_reply_without_calls() -> None:
    """No other output of the model ends it; the outcome is completed."""
    agent = agent_of(*[use(f"t{i}", "submit") for i in range(5)], "the end", "never asked")
    reply = await agent.call("go")
    assert (reply.text, reply.outcome) == ("the end", "completed")
    assert len(agent.config.model.requests) == 6  # type: ignore[union-attr]


async def test_only_control_from_outside_ends_a_loop_early() -> None:
    """A Stop of a hook, an interrupt and a limit have their own outcomes, which are not completed."""

    @on(PostActing)
    def enough(event: PostActing) -> Stop:
        return Stop("enough")

    @on(PreActing)
    def interrupts(event: PreActing) -> None:
        event.context.interrupt("from outside")

    calls = [use("t1", "submit"), use("t2", "submit"), "summary"]
    outcomes = [
        (await agent_of(*calls, hooks=[enough]).call("go")).outcome,
        (await agent_of(*calls, hooks=[interrupts]).call("go")).outcome,
        (await agent_of(calls[0], calls[2], max_iterations=1).call("go")).outcome,
        (await agent_of(calls[0], calls[2]).call("go")).outcome,
    ]
    assert outcomes == ["stopped", "interrupted", "limited", "completed"]


@pytest.mark.parametrize("n", [1, 2, 5])
async def test_n_iterations_are_n_model_calls(n: int) -> None:
    """They are followed by one summary; no more and no fewer."""
    agent = agent_of(*[use(f"t{i}", "submit") for i in range(n)], "summary", "never asked", max_iterations=n)
    reply = await agent.call("go")
    assert (reply.outcome, len(agent.config.model.requests)) == ("limited", n + 1)  # type: ignore[union-attr]


@pytest.mark.parametrize("end", ["completed", "stopped", "limited", "denied", "interrupted", "failed"])
async def test_what_fires_at_each_end(end: str) -> None:
    """`CallEnded` fires once, last, at each end; `PostCall` at each end except those that cancel the call."""
    seen = Log()

    def act(event: Any) -> Any:
        if end == "interrupted":
            event.context.interrupt("now")
        if end == "failed":
            raise ValueError("hook")
        return Stop("enough") if end == "stopped" else Deny("no") if end == "denied" else None

    hook = on(PreReasoning)(act) if end in ("stopped", "denied", "interrupted", "failed") else None
    script = [use("t1", "submit"), "done"]
    agent = agent_of(*script, hooks=[seen, *([hook] if hook else [])], max_iterations=1 if end == "limited" else 9)
    try:
        await agent.call("go")
    except ValueError:
        assert end == "failed"
    kinds = [type(event) for event in seen.seen]
    last = seen.seen[-1]
    assert isinstance(last, CallEnded)
    assert (kinds.count(CallEnded), last.outcome) == (1, end)
    assert kinds.count(PostCall) == (0 if end in ("failed", "interrupted") else 1)


async def test_the_states_can_loop_back() -> None:
    """After a response to tools the model may call tools again, round after round."""
    seen: list[str] = []
    session = Session.fresh()

    @on(PreActing, PostCall)
    def look(event: Any) -> None:
        seen.append(session.machine.state.name)

    agent = agent_of(use("t1", "submit"), use("t2", "submit"), "done", hooks=[look])
    await agent.call("go", session=session)
    assert seen == ["TOOL_EXECUTION", "TOOL_EXECUTION", "RESPONSE"]


async def test_the_state_says_where_and_not_whether() -> None:
    """After a call has ended in any way, the next one can begin."""

    @on(PreToolRound)
    def deny(event: PreToolRound) -> Deny:
        return Deny("no")

    for hooks in ([], [deny]):
        session = Session.fresh()
        await agent_of(use("t1", "submit"), "done", hooks=hooks).call("go", session=session)
        assert session.machine.state is State.USER_INPUT
