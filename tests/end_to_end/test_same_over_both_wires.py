"""The same agent, hooks and tools over both wires and every adapter, called and streamed: one event log, one history."""

import asyncio
from typing import Any

import pytest
from eventlog import Recorder
from wired import EVERY, Wired, normal, normal_history, tokens

from agentflow import Agent, Deny, Hook, ModelOptions, tool
from agentflow.loop.history import fold_events
from agentflow.testing.wire import ScriptedCall, WireReply, WireRequest, WireUsage
from agentflow.testing.wire.request import answers_in
from agentflow.vocabulary.events import PostActing, PostToolRound, PreActing
from agentflow.vocabulary.messages import ToolResultBlock

SCRIPT = [
    WireReply(
        "Let me look around.",
        thinking="Two rooms, then a note.",
        calls=(
            ScriptedCall("look", {"at": "attic"}, "t1"),
            ScriptedCall("look", {"at": "cellar"}, "t2"),
            ScriptedCall("note", {"text": "rooms seen"}, "t3"),
        ),
        usage=WireUsage(input=100, output=20),
    ),
    WireReply(
        thinking="Now something foolish.",
        calls=(
            ScriptedCall("delete", {"path": "/"}, "t4"),
            ScriptedCall("fly", {"to": "moon"}, "t5"),
            ScriptedCall("look", {"at": [1]}, "t6"),
            ScriptedCall("look", '{"at": "att', "t7"),
        ),
        usage=WireUsage(input=150, output=30),
        chunk=3,
    ),
    WireReply("Nothing in the cellar.", thinking="That will do.", usage=WireUsage(input=200, output=10)),
]


class Guard(Hook):
    guard = True

    def on_event(self, event: Any) -> Any:
        return Deny("not here") if isinstance(event, PreActing) and event.tool_use.name == "delete" else event


class Edits(Hook):
    def on_event(self, event: Any) -> Any:
        match event:
            case PostActing() if "gold" in event.tool_result.text:
                event.tool_result = ToolResultBlock(event.tool_use.id, event.tool_use.name, "saw dust in cellar")
            case PostToolRound(iteration=1):
                event.context.inject("Mind the time.")
            case _:
                pass
        return event


def tools() -> list[Any]:
    cellar_seen = asyncio.Event()

    @tool(type="read")
    async def look(at: str) -> str:
        """Look at a room."""
        if at == "attic":
            await cellar_seen.wait()
        else:
            cellar_seen.set()
        return f"saw gold in {at}" if at == "cellar" else f"saw {at}"

    @tool
    async def note(text: str) -> Any:
        """Write a note."""
        yield "writing "
        yield text

    @tool
    async def delete(path: str) -> str:
        """Delete."""
        return f"deleted {path}"

    return [look, note, delete]


CALLS_1 = "[t1:look(at='attic')] [t2:look(at='cellar')] [t3:note(text='rooms seen')]"
CALLS_2 = "[t4:delete(path='/')] [t5:fly(to='moon')] [t6:look(at=[1])] [t7:look()]"
UNKNOWN = "There is no tool named 'fly'. Known tools: look, note, delete."
UNFIT = "Tool 'look' was not run: its arguments do not fit.\n- at: should be a valid string; got [1]"
TORN = (
    "Tool 'look' was not run: its arguments are not valid JSON (EOF while parsing a string at line 1 column 11). The "
    "arguments must be a JSON object with the keys at."
)
RESULTS_1 = "t1 success 'saw attic'; t2 success 'saw dust in cellar'; t3 success 'writing rooms seen'"
RESULTS_2 = f"t4 denied 'Denied: not here'; t5 not_found {UNKNOWN!r}; t6 error {UNFIT!r}; t7 error {TORN!r}"
SAID_1 = f"<Two rooms, then a note.> assistant: Let me look around. {CALLS_1} (tool_calls)"
SAID_2 = f"<Now something foolish.> assistant: {CALLS_2} (tool_calls)"
SAID_3 = "<That will do.> assistant: Nothing in the cellar. (stop)"
ANSWERS_1 = [("t1", "saw attic"), ("t2", "saw dust in cellar"), ("t3", "writing rooms seen")]
ANSWERS_2 = [("t4", "Denied: not here"), ("t5", UNKNOWN), ("t6", UNFIT), ("t7", TORN)]

SAME = {
    "log": [
        "PreCall user: Look around.",
        "PreReasoning 1 reason",
        f"ReasoningChunk {SAID_1}",
        f"PostReasoning Let me look around. {CALLS_1} <Two rooms, then a note.>",
        f"PreToolRound {CALLS_1.replace('] [', ', ').strip('[]')}",
        "PreActing t1:look(at='attic')",
        "PreActing t2:look(at='cellar')",
        "PostActing t2 success 'saw dust in cellar'",
        "PostActing t1 success 'saw attic'",
        "PreActing t3:note(text='rooms seen')",
        "ActingChunk t3 'writing '",
        "ActingChunk t3 'rooms seen'",
        "PostActing t3 success 'writing rooms seen'",
        f"PostToolRound {RESULTS_1}",
        "MessagesAdded injected user: Mind the time.",
        "PreReasoning 2 reason",
        f"ReasoningChunk {SAID_2}",
        f"PostReasoning {CALLS_2} <Now something foolish.>",
        "PreToolRound t4:delete(path='/'), t5:fly(to='moon'), t6:look(at=[1]), t7:look()",
        "PreActing t6:look(at=[1])",
        f"Error acting ToolArgumentError: {UNFIT}",
        f"PostActing t6 error {UNFIT!r}",
        "PreActing t7:look()",
        f"Error acting ToolArgumentError: {TORN}",
        f"PostActing t7 error {TORN!r}",
        "PreActing t4:delete(path='/') -> Deny(Guard)",
        "PostActing t4 denied 'Denied: not here'",
        "PreActing t5:fly(to='moon')",
        f"Error acting ToolNotFoundError: {UNKNOWN}",
        f"PostActing t5 not_found {UNKNOWN!r}",
        f"PostToolRound {RESULTS_2}",
        "PreReasoning 3 reason",
        f"ReasoningChunk {SAID_3}",
        "PostReasoning Nothing in the cellar. <That will do.>",
        "PostCall completed 'Nothing in the cellar.'",
        "CallEnded completed",
    ],
    "history": [
        "user: Look around.",
        SAID_1,
        f"tool: {RESULTS_1}",
        "user: Mind the time.",
        SAID_2,
        f"tool: {RESULTS_2}",
        SAID_3,
    ],
    "tokens": [(100, 20), (150, 30), (200, 10)],
    "answers": [[], ANSWERS_1, ANSWERS_1 + ANSWERS_2],
    "said": ["Look around.", "Mind the time.", "Mind the time."],
}


def answers(request: WireRequest) -> list[tuple[str, str]]:
    """All tool results that a request carries, in order."""
    return [(answer.id, answer.text) for message in request.messages for answer in answers_in(message)]


async def run(wire: str, adapter: str, how: str) -> dict[str, Any]:
    """One run of the program, as everything that is compared."""
    wired, recorder = Wired(wire, adapter), Recorder()
    async with wired.serve(SCRIPT) as server:
        agent = Agent(
            "a",
            wired.model(server),
            system="You look around.",
            tools=tools(),
            hooks=[Guard(), Edits(), recorder],
            options=ModelOptions(thinking=True),
        )
        events: list[Any] = recorder.seen
        if how == "stream":
            async with agent.stream("Look around.") as stream:
                events = [event async for event in stream]
            assert normal(events) == normal(recorder.seen)
        else:
            await agent.call("Look around.")
    messages = agent.session().messages
    assert fold_events(recorder.seen) == messages
    if wire == "anthropic":
        assert all(request.thinking_on for request in server.requests)
    assert [request.system for request in server.requests] == ["You look around."] * 3
    return {
        "log": normal(events),
        "history": normal_history(messages),
        "tokens": tokens(events),
        "answers": [answers(request) for request in server.requests],
        "said": [request.user_text for request in server.requests],
    }


@pytest.mark.parametrize("how", ["call", "stream"])
@pytest.mark.parametrize(("wire", "adapter"), EVERY)
async def test_one_program_over_both_wires(wire: str, adapter: str, how: str) -> None:
    """Thinking, parallel reads, a write, a veto, a rewrite, an unknown tool, bad arguments and an injection: the log,
    the history and the server's requests are the same on both wires, over LiteLLM and without it, called and streamed.
    """
    assert await run(wire, adapter, how) == SAME
