"""Toolsets that an agent opens and closes."""

from __future__ import annotations

import asyncio
import gc
from typing import Any
from weakref import WeakSet

import pytest

from agentflow import Agent, PostActing, PreReasoning, PreToolRound, ToolUseBlock, on, tool
from agentflow.agent import shutdown
from agentflow.errors import ToolError, UsageError
from agentflow.loop.output import Output
from agentflow.testing import ScriptedModel
from agentflow.tools import LiveToolset, Tool


@tool(type="read")
async def look(at: str) -> str:
    """Look at something."""
    return f"saw {at}"


@tool(type="read")
async def listen(to: str) -> str:
    """Listen to something."""
    return f"heard {to}"


class Desk(LiveToolset):
    """Opens after a moment; usable only in the event loop in which it was opened first."""

    def __init__(self, *tools: Tool[..., Any], name: str = "desk", fails: bool = False) -> None:
        self.name = name
        self.log: list[str] = []
        self.fails = fails
        self._offered: tuple[Tool[..., Any], ...] = tools
        self._tools: tuple[Tool[..., Any], ...] = ()
        self._users: WeakSet[Any] = WeakSet()
        self._opening = asyncio.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def tools(self) -> tuple[Tool[..., Any], ...]:
        return self._tools

    async def open(self, by: object) -> None:
        loop = asyncio.get_running_loop()
        if self._loop not in (None, loop):
            raise UsageError(f"{self.name} is open in another event loop")
        async with self._opening:
            if not self._users:
                await asyncio.sleep(0)
                if self.fails:
                    raise ToolError(f"{self.name} is locked")
                self.log.append("open")
                self._loop, self._tools = loop, self._offered
            self._users.add(by)

    async def close(self, by: object | None = None) -> None:
        self._users.discard(by)
        if (by is None or not self._users) and self._loop is not None:
            self.log.append("closed")
            self._loop = None

    def offer(self, *tools: Tool[..., Any]) -> None:
        self._tools = self._offered = tools
        self.changed()


LOOK = ToolUseBlock("t1", "look", {"at": "stars"})
LISTEN = ToolUseBlock("t2", "listen", {"to": "rain"})


async def test_it_is_opened_by_the_first_call_and_closed_with_the_agent() -> None:
    """Building an agent opens nothing; the first call does, later ones find it open; leaving the block closes it."""
    desk = Desk(look)
    agent = Agent("a", ScriptedModel([LOOK, "Stars.", "Still."]), tools=[desk])
    assert (desk.log, agent.tools) == ([], ())
    assert (await agent.call("Look")).text == "Stars."
    assert [t.name for t in agent.tools] == ["look"]
    await agent.call("Again")
    assert desk.log == ["open"]
    async with agent:
        pass
    assert desk.log == ["open", "closed"]
    assert agent.session().messages[2].text == "saw stars"


async def test_parallel_calls_wait_for_one_opening() -> None:
    """Calls that begin together open it once, and each has its tools."""
    desk = Desk(look)
    agent = Agent(
        "a", ScriptedModel(lambda request: "done" if request.messages[-1].role == "tool" else LOOK), tools=[desk]
    )
    replies = await asyncio.gather(*[agent.call("Look", session=f"s{i}") for i in range(5)])
    assert [reply.text for reply in replies] == ["done"] * 5
    assert desk.log == ["open"]


async def test_what_changes_is_seen_by_the_next_round() -> None:
    """A tool that is added during a call is in the next request, and can be called; a removed one is not found."""
    desk = Desk(look)
    seen: list[tuple[tuple[str, ...], tuple[str, ...]]] = []

    @on
    def requests(event: PreReasoning) -> None:
        seen.append((tuple(spec.name for spec in event.tools), tuple(spec.name for spec in event.agent.tools)))

    @on
    def change(event: PostActing) -> None:
        if event.tool_use.name == "look":
            desk.offer(listen)

    model = ScriptedModel([LOOK, [LISTEN, ToolUseBlock("t3", "look", {"at": "sun"})], "Rain."])
    agent = Agent("a", model, tools=[desk], hooks=[requests, change])
    await agent.call("Look")
    assert seen == [(("look",),) * 2, (("listen",),) * 2, (("listen",),) * 2]
    heard, gone = agent.session().messages[4].tool_results
    assert (heard.state, heard.text, gone.state) == ("success", "heard rain", "not_found")


async def test_a_typed_call_sees_what_changes_too(quiet: None) -> None:
    """Its final tool stays; a new tool with the final tool's name is ignored while it runs."""
    desk = Desk(look)
    final = Output(int, via="tool").tool.name

    @tool(name=final)
    async def impostor() -> str:
        return "ha"

    @on
    def change(event: PostActing) -> None:
        if event.tool_use.name == "look":
            desk.offer(listen)
        elif event.tool_use.name == "listen":
            desk.offer(listen, impostor)

    script = [LOOK, LISTEN, ToolUseBlock("t3", final, {"answer": 3})]
    agent = Agent("a", ScriptedModel(script), tools=[desk], hooks=[change])
    reply = await agent.call("Look", output=Output(int, via="tool"))
    assert (reply.output, [t.state for m in agent.session().messages for t in m.tool_results][:2]) == (
        3,
        ["success"] * 2,
    )


async def test_what_cannot_be_opened_refuses_the_call_before_its_first_event() -> None:
    """The call raises and stores nothing; the next one tries again."""
    desk = Desk(look, fails=True)
    told: list[str] = []

    @on
    def every(event: PreReasoning) -> None:
        told.append(type(event).__name__)

    agent = Agent("a", ScriptedModel(["Hello."]), tools=[desk], hooks=[every])
    with pytest.raises(ToolError, match="desk is locked"):
        await agent.call("Look")
    assert (told, list(agent.session().messages)) == ([], [])
    desk.fails = False
    assert (await agent.call("Look")).text == "Hello."


async def test_agents_share_one_and_the_last_closes_it() -> None:
    """It is closed when all agents that opened it are closed."""
    desk = Desk(look)
    one, two = (Agent(name, ScriptedModel(["Hi."]), tools=[desk]) for name in ("one", "two"))
    async with one:
        async with two:
            assert desk.log == ["open"]
        assert desk.log == ["open"]
    assert desk.log == ["open", "closed"]


async def test_own_tools_keep_their_names(quiet: None) -> None:
    """A toolset's tool with a name that the agent has already is left out; so is one of a second toolset."""

    @tool(name="look")
    async def other(at: str) -> str:
        return "from elsewhere"

    first, second = Desk(other, listen, name="first"), Desk(listen.renamed("listen"), name="second")
    agent = Agent("a", ScriptedModel([LOOK, "Stars."]), tools=[look, first, second])
    await agent.call("Look")
    assert [t.name for t in agent.tools] == ["look", "listen"]
    assert agent.session().messages[2].text == "saw stars"


def test_another_event_loop_is_refused_with_its_reason() -> None:
    """A toolset that cannot be open in two event loops raises an error; the call is refused."""
    desk = Desk(look)
    agent = Agent("a", ScriptedModel(["Hi.", "Hi."]), tools=[desk])
    with asyncio.Runner() as first, asyncio.Runner() as second:
        first.run(agent.open())
        with pytest.raises(UsageError, match="open in another event loop"):
            second.run(agent.open())
        first.run(agent.close())
        second.run(agent.open())
    assert desk.log == ["open", "closed", "open"]


async def test_a_shutdown_closes_it_behind_the_last_call() -> None:
    """The running call stops first."""
    desk = Desk(look)
    agent = Agent("a", ScriptedModel(["Hi."]), tools=[desk])
    await agent.call("Hi")
    await shutdown(agent)
    assert desk.log == ["open", "closed"]


async def test_copies_and_sub_agents() -> None:
    """A branch has the same toolsets; used as a tool, the agent counts as a write; saving it is refused."""
    desk = Desk(look)
    agent = Agent("a", ScriptedModel([LOOK, "Stars."]), tools=[desk, listen])
    other = agent.branch("b")
    assert other.live_toolsets == (desk,)
    await other.call("Look")
    assert [t.name for t in other.tools] == ["listen", "look"]
    assert agent.as_tool().type == "write"
    with pytest.raises(UsageError, match=r"has live toolsets \(desk\)"):
        agent.to_dict()


async def test_every_watcher_is_notified_and_none_is_kept_alive() -> None:
    """All registered watchers, in any order, until they are removed; a failing one does not stop the others."""

    class Watcher:
        def __init__(self, name: str, fails: bool = False) -> None:
            self.name, self.fails = name, fails

        def changed(self) -> None:
            seen.append(self.name)
            if self.fails:
                raise RuntimeError("watching failed")

    seen: list[str] = []
    desk = Desk(look)
    watchers = [Watcher("first"), Watcher("fails", fails=True), Watcher("last")]
    for watcher in watchers:
        desk.watch(watcher.changed)
    desk.offer(listen)
    assert seen == ["first", "fails", "last"]
    del watchers[0], watcher
    gc.collect()
    late = Watcher("late")
    desk.watch(late.changed)
    desk.offer(look)
    assert seen[3:] == ["fails", "last", "late"]


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize(
    ("later", "outcome", "results"),
    [
        ("guarded", "suspended", []),
        ("none", "completed", ["There is no tool named 'look'."]),
        ("new", "completed", ["new"]),
    ],
)
async def test_a_round_has_the_tools_of_its_start_after_its_hooks(
    count: int, later: str, outcome: str, results: list[str]
) -> None:
    """A hook of the round waits, for a person for instance, and meanwhile the toolset changes."""

    @tool(name="look", requires_approval=True)
    async def guarded(at: str) -> str:
        """Look at something, if a person agrees."""
        return at

    @tool(name="look")
    async def new(at: str) -> str:
        """Look at something else."""
        return "new"

    desk = Desk(look)

    @on(PreToolRound)
    async def waits(event: PreToolRound) -> None:
        await asyncio.sleep(0)
        desk.offer(*{"guarded": (guarded,), "none": (), "new": (new,)}[later])

    calls = [ToolUseBlock(f"t{n}", "look", {"at": "stars"}) for n in range(count)]
    model = ScriptedModel([calls, "done"])
    reply = await Agent("a", model, tools=[desk], hooks=[waits]).call("go")
    found = [one.text.partition(" Known")[0] for one in model.requests[-1].messages[-1].tool_results]
    assert (reply.outcome, found) == (outcome, results * count)
