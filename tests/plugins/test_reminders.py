"""`SystemReminder` and `DynamicContext`: in the request when they should be, and never in the history."""

import asyncio
import os
from collections.abc import Sequence
from datetime import timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from eventlog import history, streamed, use
from wired import Wired

from agentflow import Agent, Error, Msg, PreReasoning, on, tool
from agentflow.errors import UsageError
from agentflow.plugins.reminders import DynamicContext, FileContent, SystemReminder, current_time
from agentflow.testing.scripted import ScriptedModel
from agentflow.testing.wire import Say, UseTool


@tool(type="read")
async def look() -> str:
    """Look."""
    return "seen"


def rounds(count: int) -> ScriptedModel:
    """A model that looks so many times and then answers."""
    return ScriptedModel([*[use(f"t{n}", "look") for n in range(count)], "Done."])


def added(messages: Sequence[Msg], source: str = "reminder") -> list[str]:
    """What a hook has put into a request."""
    return [msg.text for msg in messages if msg.metadata.get("synthetic") == source]


PLAIN = ["user: Look.", "assistant: [t0:look()]", "tool: t0 success 'seen'", "assistant: Done."]


@pytest.mark.parametrize("how", ["call", "stream"])
@pytest.mark.parametrize("position", ["end", "system"])
async def test_additions_over_the_wire(wired: Wired, how: str, position: Any) -> None:
    """Each request has the reminder and the context once, the wire accepts it, and the history has neither."""
    turn = iter(range(9))
    hooks = [
        SystemReminder("Stay calm."),
        DynamicContext(lambda event: f"Round {event.iteration}, {next(turn)}.", position=position),
    ]
    async with wired.serve([UseTool("look"), Say("Done."), Say("Bye.")]) as server:
        agent = Agent("a", wired.model(server), system="Be brief.", tools=[look], hooks=hooks)
        if how == "call":
            await agent.call("Look.")
        else:
            async with agent.stream("Look.") as events:
                assert [event async for event in events][-1].outcome == "completed"
        await agent.call("Bye.")
    for index, (request, round_) in enumerate(zip(server.requests, [1, 2, 1], strict=True)):
        body = str(request.body)
        assert body.count("Stay calm.") == 1
        assert body.count("<context>") == 1
        assert f"Round {round_}, {index}." in body
        assert ("Round" in request.system) == (position == "system")
    stored = str(agent.session().messages)
    assert "calm" not in stored
    assert "Round" not in stored


async def test_a_reminder_stands_behind_the_last_message_in_its_tag() -> None:
    """The model reads it last, after the results of tools too; the history is that of an agent without it."""
    model = rounds(1)
    agent = Agent("a", model, tools=[look], hooks=[SystemReminder("Stay calm.")])
    await agent.call("Look.")
    assert [request.messages[-1].text for request in model.requests] == [
        "<system-reminder>\nStay calm.\n</system-reminder>"
    ] * 2
    assert history(agent.session()) == PLAIN


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [1, 2, 3, 4, 5, 6]),
        ({"every": 2}, [1, 3, 5]),
        ({"every": 4}, [1, 5]),
        ({"when": lambda event: event.iteration > 4}, [5, 6]),
        ({"every": 2, "when": lambda event: event.iteration > 2}, [3, 5]),
    ],
)
async def test_when_a_reminder_comes(options: dict[str, Any], expected: list[int]) -> None:
    """With the first model call and every so many after it, and only if the condition holds; call and stream agree."""
    for how in ("call", "stream"):
        model = rounds(5)
        agent = Agent("a", model, tools=[look], hooks=[SystemReminder("Stay calm.", **options)])
        await (agent.call("Look.") if how == "call" else streamed(agent))
        assert [n for n, request in enumerate(model.requests, 1) if added(request.messages)] == expected


async def test_a_reminder_may_be_a_function() -> None:
    """Plain or async, of the event; an empty return value adds nothing."""

    async def later(event: Any) -> str | None:
        await asyncio.sleep(0)
        return "Two." if event.iteration == 2 else None

    model = rounds(1)
    hooks = [
        SystemReminder(lambda event: f"{event.agent.name} {event.iteration}", tag=""),
        SystemReminder(later, tag=""),
    ]
    await Agent("a", model, tools=[look], hooks=hooks).call("Look.")
    assert [added(request.messages) for request in model.requests] == [["a 1"], ["a 2", "Two."]]


async def test_the_summary_has_its_context_and_no_reminder() -> None:
    """At the iteration limit there is no reminder; dynamic context is added there as well."""
    model = ScriptedModel([use("t1", "look"), "Summary."])
    hooks = [SystemReminder("Use the tool."), DynamicContext(lambda event: "It rains.")]
    await Agent("a", model, tools=[look], hooks=hooks, max_iterations=1).call("Look.")
    assert [len(added(request.messages)) for request in model.requests] == [1, 0]
    assert [len(added(request.messages, "context")) for request in model.requests] == [1, 1]


class At:
    """A clock that does not advance."""

    def __init__(self, at: float) -> None:
        self.at = at

    def now(self) -> float:
        return self.at

    def monotonic(self) -> float:
        return self.at

    async def sleep(self, seconds: float) -> None:
        self.at += seconds


async def test_the_time_is_the_runs_own() -> None:
    """The run's clock is read with each request, and shown in the configured zone."""
    model = ScriptedModel(["Noon.", "Later."])
    clock = At(1_000_000_000.0)
    hook = DynamicContext(current_time(timezone(timedelta(hours=2), "CEST")), tag="")
    agent = Agent("a", model, hooks=[hook], clock=clock)
    await agent.call("Time?")
    clock.at += 3600
    await agent.call("Time?")
    assert [added(request.messages, "context") for request in model.requests] == [
        ["It is Sunday, 09 September 2001, 03:46 CEST."],
        ["It is Sunday, 09 September 2001, 04:46 CEST."],
    ]


async def test_a_file_is_read_again_when_it_changes(tmp_path: Path) -> None:
    """A missing file adds nothing; a changed file is read again; an unchanged one is not."""
    path = tmp_path / "notes.txt"
    model = ScriptedModel(lambda request: "Fine.")
    agent = Agent("a", model, hooks=[DynamicContext(FileContent(path), tag="")])
    await agent.call("absent")
    path.write_text("milk\n")
    os.utime(path, ns=(1, 1))
    await agent.call("there")
    await agent.call("the same")
    path.write_text("mint\n")
    os.utime(path, ns=(2, 2))
    await agent.call("as long, and other")
    path.unlink()
    await agent.call("gone")
    told = [f'<file path="{path}">\n{text}\n</file>' for text in ("milk", "milk", "mint")]
    assert [added(request.messages, "context") for request in model.requests] == [[], *[[text] for text in told], []]


async def test_a_file_that_has_not_changed_is_not_read_again(tmp_path: Path) -> None:
    """The very text of the last reading is handed out."""
    path = tmp_path / "notes.txt"
    path.write_text("milk")
    content = FileContent(path)
    event = PreReasoning()
    assert await content(event) is await content(event)


async def test_a_long_file_is_cut_and_says_so(tmp_path: Path) -> None:
    """A large file does not overflow a request; invalid bytes are harmless."""
    path = tmp_path / "notes.txt"
    path.write_bytes(b"caf\xff" * 100)
    model = ScriptedModel(["Fine."])
    await Agent("a", model, hooks=[DynamicContext(FileContent(path, limit=4), tag="")]).call("Go")
    assert added(model.requests[0].messages, "context") == [
        f'<file path="{path}">\ncaf\ufffd\n(cut after 4 characters)\n</file>'
    ]


async def test_without_a_system_prompt_there_is_one_then() -> None:
    """`position="system"` makes a system message where the agent has none."""
    model = ScriptedModel(["Fine."])
    await Agent("a", model, hooks=[DynamicContext(lambda event: "It rains.", position="system", tag="")]).call("Go")
    assert [(msg.role, msg.text) for msg in model.requests[0].messages] == [("system", "It rains."), ("user", "Go")]


async def test_a_provider_that_fails_costs_its_addition_only() -> None:
    """The call continues without it, and an `Error` event fires."""
    told: list[str] = []

    @on
    def errors(event: Error) -> None:
        told.append(f"{event.hook}: {event.error}")

    def broken(event: Any) -> str:
        raise ConnectionError("no weather today")

    model = ScriptedModel(["Fine."])
    reply = await Agent("a", model, hooks=[DynamicContext(broken), SystemReminder("Stay calm."), errors]).call("Go")
    assert (reply.outcome, told) == ("completed", ["DynamicContext: no weather today"])
    assert len(added(model.requests[0].messages)) == 1


async def test_fifty_runs_share_one_instance() -> None:
    """Fifty concurrent runs on two agents: each reads its own values, and no history has them."""
    hook = DynamicContext(lambda event: event.session_id, tag="")
    agents = [
        Agent(name, ScriptedModel(lambda request: request.messages[-1].text), hooks=[hook]) for name in ("a", "b")
    ]
    replies = await asyncio.gather(*[agents[n % 2].call("Who?", session=f"s{n}") for n in range(50)])
    assert [reply.text for reply in replies] == [f"s{n}" for n in range(50)]
    assert {len(agents[n % 2].session(f"s{n}").messages) for n in range(50)} == {2}


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: SystemReminder("x", every=0),
        DynamicContext,
        lambda: DynamicContext("It rains."),  # type: ignore[arg-type]
        lambda: DynamicContext(current_time(), position="middle"),  # type: ignore[arg-type]
        lambda: FileContent("x", limit=0),
    ],
)
def test_options_that_mean_nothing_are_refused(wrong: Any) -> None:
    """When built, with the fix in the text."""
    with pytest.raises(UsageError):
        wrong()
