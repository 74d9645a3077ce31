"""Random teams: nested agents, workflows, handoff desks and typed answers, with ids of any kind.

A team is made from a number; recording and replay make it from the same one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from clocks import LoopClock

from agentflow import Agent, Approve, Deny, Hook, RunContext, ToolSchedule, ToolUseBlock, tool
from agentflow.agent.orchestration import StepError, ask, gather, handoffs, race, use, workflow
from agentflow.mcp import MCPServer
from agentflow.testing import ScriptedModel
from agentflow.tools.tool_context import ToolEmitter
from agentflow.vocabulary.messages import Msg

__all__ = ["KINDS", "Team", "called"]

KINDS = ("agent", "agent", "agent", "workflow", "workflow", "desk", "typed", "mcp")
_IDS = ("", "", "t1", "t1", "t2", "call_0", "t 7!", "x" * 51)
_SCHEDULES = ("BY_TYPE", "IN_CALL_ORDER", "SEQUENTIAL", "PARALLEL")


@dataclass
class Bill:
    total: int


class Dawdles(Hook):
    """Delays some events and injects messages at some, always the same for an equal event."""

    def __init__(self, number: int) -> None:
        random = Random(number)
        self._number = number
        self.observer = random.random() < 0.4
        self.priority = random.choice([10, 100, 200])
        self.serial = random.random() < 0.2

    async def on_event(self, event: Any) -> None:
        kind, use = type(event).__name__, getattr(event, "tool_use", None)
        about = (self._number, event.source, kind, event.iteration, "" if use is None else use.name)
        random = Random(repr(about))
        match random.randrange(12):
            case 0:
                await asyncio.sleep(random.choice([0, 0, 0.05, 0.7]))
            case 1:
                for _ in range(random.randrange(4)):
                    await asyncio.sleep(0)
            case 2 if kind in ("PreReasoning", "PostActing", "ActingChunk", "PostToolRound"):
                event.context.inject(f"Mind {event.context.new_id('note_')}.", keep=random.random() < 0.5)
            case 3 if kind in ("PostReasoning", "PostActing"):
                await event.context.complete("a side question", model=ScriptedModel(["aside"]))
            case _:
                pass


def _says(lines: list[Any]) -> ScriptedModel:
    """Return a model that says these lines, and then always that it is done."""
    left = iter(lines)
    return ScriptedModel(lambda _: next(left, "Done."))


class Team:
    """An agent made from a number, and the way to call it.

    Args:
        number: The number.

    Attributes:
        ran: The tools that really ran.
    """

    def __init__(self, number: int) -> None:
        self._random = Random(number)
        self.ran: list[str] = []
        self._names = 0
        self.kind = self._random.choice(KINDS)
        self.server: MCPServer | None = None
        self.output: Any = None
        self._hooks = [Dawdles(number + n) for n in range(self._random.choice([0, 0, 1, 2]))]
        self.streamed = self._random.random() < 0.5
        self.agent: Agent[Any] = self._make(self.kind, 2)

    def _name(self, base: str) -> str:
        self._names += 1
        return f"{base}{self._names}"

    def _tools(self) -> list[Any]:
        ran, random = self.ran, self._random

        def made(name: str, kind: Any, nap: float, fails: bool = False, **more: Any) -> Any:
            async def work(x: int = 0) -> str:
                ran.append(name)
                if nap:
                    await asyncio.sleep(nap)
                if fails:
                    raise ValueError(f"{name} is broken")
                return f"{name} {x}"

            return tool(name=name, type=kind, **more)(work)

        @tool(type="read")
        async def talk(emitter: ToolEmitter, context: RunContext) -> str:
            ran.append("talk")
            for n in range(2):
                await emitter.emit(f"{n} {context.new_id('piece_')}")
                await asyncio.sleep(0.1)
            context.inject("from a tool", keep=random.random() < 0.5)
            return f"talked in {context.run_id}"

        return [
            made("look", "research", 0.0),
            made("read", "read", random.choice([0.0, 0.3])),
            made("save", "write", random.choice([0.0, 0.2])),
            made("boom", "read", 0.1, True),
            made("lasts", "read", 50.0, timeout=1.0),
            made("pay", "write", 0.0, requires_approval=True),
            talk,
        ]

    def _script(self, names: list[str], inner: set[str]) -> list[Any]:
        random = self._random
        lines: list[Any] = []
        for _ in range(random.randrange(1, 4)):
            uses = [
                ToolUseBlock(random.choice(_IDS), name, {"message": "go"} if name in inner else {})
                for name in random.choices([*names, "nosuchtool"], k=random.randrange(1, 5))
            ]
            lines.append([random.choice(["", "I look. "]), *uses] if random.random() < 0.5 else uses)
        return [*lines, "Done."]

    def _make(self, kind: str, depth: int) -> Agent[Any]:
        hooks = self._hooks if depth == 2 or self._random.random() < 0.3 else []
        match kind:
            case "workflow":
                return self._workflow(hooks, depth)
            case "desk":
                return self._desk(hooks)
            case "typed":
                self.output = Bill if depth == 2 and self._random.random() < 0.5 else None
                lines = [[ToolUseBlock("", "look", {})], '{"total": "many"}', '{"total": 3}']
                model = _says(lines[self._random.randrange(2) :])
                own = None if self.output is not None else Bill
                return Agent(
                    self._name("typed"), model, tools=self._tools(), hooks=hooks, output=own, clock=LoopClock()
                )
            case _:
                return self._plain(hooks, depth, kind == "mcp")

    def _plain(self, hooks: list[Any], depth: int, mcp: bool = False) -> Agent[Any]:
        random, tools = self._random, self._tools()
        helpers = [self._make(random.choice(KINDS[:-1]), depth - 1) for _ in range(random.randrange(3) if depth else 0)]
        tools += [helper.as_tool(type=random.choice(["read", "write"])) for helper in helpers]
        names = [one.name for one in tools]
        if mcp:
            from mcp.server import MCPServer as Server

            server = Server("demo")

            @server.tool()
            def double(n: int = 2) -> int:
                """Double a number."""
                self.ran.append("double")
                return 2 * n

            self.server = MCPServer.in_memory(server)
            tools.append(self.server)
            names += ["double", "double"]
        return Agent(
            self._name("agent"),
            _says(self._script(names, {helper.name for helper in helpers})),
            tools=tools,
            hooks=hooks,
            schedule=getattr(ToolSchedule, random.choice(_SCHEDULES)).limit(random.choice([2, 16])),
            max_iterations=random.choice([2, 4, 8]),
            clock=LoopClock(),
        )

    def _workflow(self, hooks: list[Any], depth: int) -> Agent[Any]:
        random = self._random
        agents = [self._plain([], 0) for _ in range(2)]
        look, read, *_ = self._tools()
        steps = ["ask", "use", "gather", "several", "race"]
        plan = [random.choice(steps) for _ in range(random.randrange(1, 4))]

        @workflow(*agents, look, read, name=self._name("flow"), hooks=hooks, clock=LoopClock())
        async def flow(q: str) -> str:
            said: list[str] = []
            for n, step in enumerate(plan):
                one, other = agents
                try:
                    match step:
                        case "ask":
                            said.append((await ask(one, [Msg.user(f"{q} {n}")])).text)
                        case "use":
                            said.append(await use(look, x=n))
                        case "gather":
                            both = await gather(ask(one, f"{q} {n}"), use(read, x=n))
                            said += [both[0].text, both[1]]
                        case "race":
                            said.append((await race(ask(one, q), ask(other, q))).text)
                        case _:
                            said += [reply.text for reply in await gather(ask(one, q), ask(other, f"{n}"))]
                except StepError as error:
                    said.append(f"{error.step} {error.state}")
            return ", ".join(said) or "nothing"

        return flow

    def _desk(self, hooks: list[Any]) -> Agent[Any]:
        name = self._name("billing")
        transfer = ToolUseBlock(self._random.choice(_IDS), f"transfer_to_{name}", {"reason": "an invoice"})
        triage = Agent(self._name("triage"), _says([["Hm. ", transfer]]), clock=LoopClock())
        billing = self._plain([], 0)
        tools = self._tools()
        lines = self._script([one.name for one in tools if one.name != "pay"], set())
        billing = Agent(name, _says(lines), tools=tools, clock=LoopClock())
        return handoffs(triage, billing, name=self._name("desk"), hooks=hooks, clock=LoopClock())


async def called(team: Team, *hooks: Any) -> None:
    """Call a team, and decide its pending calls. Whatever it raises belongs to its run."""
    agent: Agent[Any] = team.agent
    for hook in hooks:
        agent.hook(hook)
    decided: Callable[[int], Any] = lambda n: Approve() if n % 2 else Deny("no")  # noqa: E731
    async with agent:
        try:
            if team.streamed:
                async with agent.stream("Go on", session="ada", output=team.output) as events:
                    async for _ in events:
                        pass
                    reply = await events.reply()
            else:
                reply = await agent.call("Go on", session="ada", output=team.output)
            for _ in range(4):
                if not reply.pending:
                    break
                answers = {waits.id: decided(n) for n, waits in enumerate(reply.pending)}
                reply = await agent.resume("ada", decisions=answers, output=team.output)
        except Exception:
            pass
