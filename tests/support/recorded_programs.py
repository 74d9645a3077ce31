"""Programs that are recorded and replayed: one for each way in which ids are made and agents are nested.

As a program, `python recorded_programs.py record|replay FOLDER`: so that one Python replays what another one recorded.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentflow import Agent, Approve, Deny, Msg, RunContext, ToolSchedule, ToolUseBlock, tool
from agentflow.agent.orchestration import ask, gather, handoffs, use, workflow
from agentflow.mcp import MCPServer
from agentflow.recording import RunLog
from agentflow.recording.entries import ChunksEntry, MarkEntry, PiecesEntry
from agentflow.recording.recorder import Recorder
from agentflow.recording.replay import Replay, ReplayOptions, ReplayResult
from agentflow.testing import ScriptedModel

__all__ = ["PROGRAMS", "RAN", "Recorded", "file_of", "kinds"]

RAN: list[str] = []
"""The tools that really ran."""


@dataclass(frozen=True)
class Recorded:
    """A program: how its agent is made, and what it is called with."""

    make: Callable[..., Agent[Any]]
    asked: ReplayOptions | None = None

    async def record(self, recorder: Recorder) -> None:
        """Make the call, and resume it if it waits."""
        output = (self.asked or {}).get("output")
        async with self.make(recorder) as agent:
            reply = await agent.call("Go on", session="ada", output=output)
            while reply.pending:
                reply = await agent.resume("ada", decisions=_decided([waits.id for waits in reply.pending]))

    async def replay(self, run: RunLog | Path) -> ReplayResult:
        """Replay what was recorded."""
        async with self.make() as agent:
            return await Replay(run).arun(agent, **(self.asked or {}))


def kinds(log: RunLog) -> Counter[str]:
    """The number of a log's entries of each kind; without those whose number depends on real time: marks and chunks."""
    free = MarkEntry | ChunksEntry | PiecesEntry
    return Counter(type(entry).__name__ for entry in log.entries if not isinstance(entry, free))


def _decided(ids: list[str]) -> dict[str, Any]:
    """Decide in another order than that of the questions."""
    return {id: Approve() if n else Deny("no") for n, id in enumerate(reversed(ids))}  # noqa: A001


@dataclass
class Invoice:
    total: int


@tool(type="read")
async def look(q: str = "") -> str:
    """Look."""
    RAN.append("look")
    return f"saw {q}"


@tool(type="read")
async def nap() -> str:
    """Sleep a while."""
    RAN.append("nap")
    await asyncio.sleep(0.001)
    return "rested"


@tool(type="write")
async def add(a: int, b: int) -> int:
    """Add."""
    RAN.append("add")
    return a + b


@tool(type="read", timeout=0.001)
async def lasts() -> str:
    """Take too long."""
    RAN.append("lasts")
    await asyncio.sleep(60)
    return "late"


@tool(requires_approval=True)
async def pay(cents: int = 1) -> str:
    """Pay."""
    RAN.append("pay")
    return f"paid {cents}"


@tool(type="read")
async def tags(context: RunContext) -> str:
    """Give something a tag of its own."""
    return f"the tag of {context.new_id('tag_')} in {context.run_id}"


async def give(a: int) -> str:
    """Give."""
    RAN.append("give")
    return f"value {a}"


def _scripted(lines: list[Any], **more: Any) -> Callable[..., Agent[Any]]:
    def make(*hooks: Any) -> Agent[Any]:
        return Agent("a", ScriptedModel(lines), tools=[add, look, pay, tags, lasts], hooks=hooks, **more)

    return make


def _call(id: str, name: str) -> ToolUseBlock:  # noqa: A002
    return ToolUseBlock(id, name, {"a": 1, "b": 2} if name == "add" else {"q": "x"} if name == "look" else {})


def _team(schedule: ToolSchedule, *names: str) -> Callable[..., Agent[Any]]:
    """Sub-agents beside tools in one round."""

    def make(*hooks: Any) -> Agent[Any]:
        model = ScriptedModel(lambda q: "Helped." if q.messages[-1].role == "tool" else [ToolUseBlock("", "look", {})])
        helper = Agent("helper", model, tools=[look], description="Helps.")
        uses = [ToolUseBlock("", name, {"message": "go"} if name == "helper" else {}) for name in names]
        tools = [look, nap, helper.as_tool(type="read")]
        return Agent("a", ScriptedModel([uses, uses[:1], "Done."]), tools=tools, hooks=hooks, schedule=schedule)

    return make


def _desk(*hooks: Any) -> Agent[Any]:
    transfer = ToolUseBlock("t1", "transfer_to_billing", {"reason": "asks about an invoice"})
    triage = Agent("triage", ScriptedModel([transfer]), system="Find out who can help.")
    billing = Agent("billing", ScriptedModel([ToolUseBlock("t1", "look", {}), "It is paid."]), tools=[look])
    return handoffs(triage, billing, hooks=hooks)


def _flow(*hooks: Any) -> Agent[Any]:
    ann = Agent("ann", ScriptedModel(lambda q: f"I hear {q.messages[-1].text}"), tools=[look])
    numbers = Agent("numbers", ScriptedModel(['{"total": 3}']))

    @workflow(ann, numbers, look, add, hooks=hooks)
    async def flow(q: str) -> str:
        one, two, seen = await gather(ask(ann, q), ask(ann, [Msg.user("And you?")]), use(look, q=q))
        total = (await ask(numbers, "How much?", output=Invoice)).output.total
        return f"{one.text}, {two.text}, {seen}, {await use(add, a=total, b=1)}"

    return flow


def _mcp(*hooks: Any) -> Agent[Any]:
    from mcp.server import MCPServer as Server

    server = Server("demo")

    @server.tool()
    def double(n: int) -> int:
        """Double a number."""
        RAN.append("double")
        return 2 * n

    script = [[ToolUseBlock("", "double", {"n": 2}), ToolUseBlock("", "look", {})], "Four."]
    return Agent("a", ScriptedModel(script), tools=[MCPServer.in_memory(server), look], hooks=hooks)


def _counting() -> Callable[[str], str]:
    numbers = itertools.count(1)
    return lambda kind: f"{kind}own-{next(numbers)}"


PROGRAMS: dict[str, Recorded] = {
    "an id in two rounds": Recorded(_scripted([[_call("call_0", "add")], [_call("call_0", "look")], "Done."])),
    "an id twice in one round": Recorded(_scripted([[_call("call_0", "add"), _call("call_0", "look")], "Done."])),
    "no id": Recorded(_scripted([[_call("", "add")], "Done."])),
    "a timeout without an id": Recorded(_scripted([[_call("", "lasts")], "Done."])),
    "two without an id": Recorded(_scripted([[_call("", "add"), _call("", "look")], "Done."])),
    "an illegal id": Recorded(_scripted([[_call("call 0", "add")], "Done."])),
    "a long id": Recorded(_scripted([[_call("x" * 51, "add")], "Done."])),
    "ids in texts": Recorded(_scripted([[_call("", "tags")], [_call("", "tags")], "Done."])),
    "ids of its own": Recorded(_scripted([[_call("", "add")], "Done."], new_id=_counting())),
    "decisions on calls without an id": Recorded(_scripted([[_call("", "pay"), _call("", "pay")], "Done."])),
    "sub-agents in parallel": Recorded(_team(ToolSchedule.PARALLEL, "helper", "look", "helper", "nap")),
    "sub-agents by type": Recorded(_team(ToolSchedule.BY_TYPE, "nap", "helper", "helper", "look")),
    "a handoff": Recorded(_desk),
    "a workflow": Recorded(_flow),
    "an agent's typed answer": Recorded(_scripted(['{"total": 3}'], output=Invoice)),
    "a call's typed answer": Recorded(_scripted(['{"total": 3}']), {"output": Invoice}),
    "a function that is answered in text": Recorded(_scripted(['{"a": 5}'], output=give)),
    "an MCP tool": Recorded(_mcp),
}


def file_of(folder: Path, name: str) -> Path:
    """Where the log of a program is."""
    return folder / f"{name.replace(' ', '-').replace(chr(39), '')}.jsonl"


async def _record(folder: Path) -> None:
    for name, program in PROGRAMS.items():
        recorder = Recorder(file_of(folder, name))
        await program.record(recorder)
        recorder.close()


async def _replay(folder: Path) -> None:
    for name, program in PROGRAMS.items():
        print(f"{name}: {await program.replay(file_of(folder, name))}")


if __name__ == "__main__":
    asyncio.run({"record": _record, "replay": _replay}[sys.argv[1]](Path(sys.argv[2])))
