"""A job dies before and after each of its effects, and is resumed by new objects on the same file.

The job has what runs have: parallel tools, hooks that edit, deny, ask again and inject, two levels of sub-agents, an
approval
of its own and one inside a sub-agent.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from eventlog import history, use
from laws_checks import check_history, check_request, check_wires

from agentflow import (
    Again,
    Agent,
    Approve,
    Deny,
    Hook,
    PostActing,
    PostReasoning,
    PostToolRound,
    PreActing,
    PreReasoning,
    PreToolRound,
    ToolContext,
    tool,
)
from agentflow.errors import StoreError, UsageError
from agentflow.loop.history import fold_facts
from agentflow.state.sql import SqlStore
from agentflow.testing import ScriptedModel
from agentflow.testing.faults import Crash, ProcessDied
from agentflow.vocabulary.messages import Msg
from agentflow.vocabulary.ports.store import SessionInfo, SessionStore

BOSS = [
    [use("a1", "look", at="x"), use("a2", "look", at="y"), use("a3", "save", at="z"), use("a4", "forbidden", at="w")],
    [use("b1", "helper", message="dig"), use("b2", "look", at="v")],
    [use("c1", "pay", at="shop"), use("c2", "save", at="u")],
]
HELPER = [[use("h1", "digger", message="deeper")], [use("h2", "save", at="h")]]
DIGGER = [[use("d1", "save", at="d")], [use("d2", "pay", at="bone"), use("d3", "look", at="hole")]]


def script(rounds: Sequence[Any], last: Sequence[str]) -> ScriptedModel:
    """A model whose reply depends on the conversation only, as a new process needs; each request must be legal."""

    def brain(request: Any) -> Any:
        check_request(request.messages)
        check_wires(request.messages, request.tools)
        done = sum(msg.role == "tool" for msg in request.messages)
        if done < len(rounds):
            return rounds[done]
        said = sum(msg.role == "assistant" and not msg.tool_uses for msg in request.messages)
        return last[min(said, len(last) - 1)]

    return ScriptedModel(brain)


class Meddler(Hook):
    """Edits, denies, asks again, and injects."""

    def on_event(self, event: Any) -> Any:
        match event:
            case PreReasoning(iteration=2):
                event.context.inject(Msg.user("Remember the milk."))
            case PostReasoning() if event.reasoning_result.text == "draft":
                return Again("Not a draft.")
            case PreToolRound(iteration=1):
                event.context.inject(Msg.user("A round begins."))
            case PreActing() if event.tool_use.name == "forbidden":
                return Deny("never")
            case PreActing() if event.tool_use.input.get("at") == "y":
                event.tool_use = event.tool_use.replace(input={"at": "Y"})
            case PostActing() if event.tool_use.id == "a2":
                event.context.inject(Msg.user("Y was seen."))
            case PostToolRound(iteration=1):
                event.context.inject(Msg.user("A round ends."))
            case _:
                pass
        return event


class Job:
    """The world that outlives processes, and the parts of a process."""

    def __init__(self, folder: Path, idempotent: bool) -> None:
        self.url = f"sqlite:///{folder / 'job.db'}"
        self.idempotent = idempotent
        self.effects: list[str] = []

    def tools(self, crash: Crash) -> list[Any]:
        effects, idempotent = self.effects, self.idempotent

        @tool(type="read", idempotent=idempotent)
        async def look(at: str, context: ToolContext) -> str:
            """Look."""
            await asyncio.sleep(0)
            effects.append(f"look {at} {context.idempotency_key}")
            return f"saw {at}"

        @tool(idempotent=idempotent)
        async def save(at: str, context: ToolContext) -> str:
            """Save."""
            effects.append(f"save {at} {context.idempotency_key}")
            return f"saved {at}"

        @tool(idempotent=idempotent, requires_approval=True)
        async def pay(at: str, context: ToolContext) -> str:
            """Pay."""
            effects.append(f"pay {at} {context.idempotency_key}")
            return f"paid {at}"

        @tool(idempotent=idempotent)
        async def forbidden(at: str) -> str:
            """Forbidden."""
            effects.append(f"forbidden {at}")
            return "done"

        return [crash.tool(made) for made in (look, save, pay, forbidden)]

    def agent(self, crash: Crash, store: SessionStore, **options: Any) -> Agent:
        tools = self.tools(crash)
        ask: dict[str, Any] = {"default_hooks": (), **options}
        digger = Agent("digger", crash.model(script(DIGGER, ["dug"])), tools=tools, **ask)
        helper = Agent("helper", crash.model(script(HELPER, ["helped"])), tools=[*tools, digger.as_tool()], **ask)
        boss = crash.model(script(BOSS, ["draft", "done"]))
        return Agent("boss", boss, tools=[*tools, helper.as_tool()], hooks=[Meddler()], store=crash.store(store), **ask)

    async def process(self, crash: Crash, **options: Any) -> None:
        """Run one process: it continues from the stored state, until the job is done or it dies."""
        async with SqlStore(self.url, power_safe=False) as store:
            agent = self.agent(crash, store, **options)
            while True:
                status = {info.id: info.status for info in await store.sessions()}.get("s")
                await self.check(store)
                if status is None:
                    await agent.call("Do it", session="s")
                elif status == "unfinished":
                    assert [info.id for info in await agent.unfinished()] == ["s"]
                    with pytest.raises(UsageError, match=r"agent\.resume\(session\)"):
                        await agent.call("Hello?", session="s")
                    await agent.resume("s")
                elif status == "suspended":
                    session = agent.session("s")
                    await session.acquire("test")  # loads it
                    session.release()
                    await agent.resume("s", {waits.id: Approve() for waits in session.pending})
                else:
                    return

    async def dies(self, crash: Crash) -> None:
        """Run one process that dies, unless the job is done before."""
        try:
            await self.process(crash)
        except (ProcessDied, StoreError):  # of several tools that ran at once, one died, and the others could not store
            assert crash.dead

    async def check(self, store: SessionStore) -> None:
        """Check that every stored history is legal."""
        for info in await store.sessions():
            messages = await self.messages(store, info)
            check_history(messages, open_round=bool(messages) and bool(messages[-1].tool_uses))

    async def messages(self, store: SessionStore, info: SessionInfo) -> tuple[Msg, ...]:
        facts: Any = store.load(info.id)
        return fold_facts(await facts)

    async def histories(self) -> dict[str, list[str]]:
        """Return the final histories of all sessions."""
        async with SqlStore(self.url) as store:
            return {info.id: history(await self.messages(store, info)) for info in await store.sessions()}


async def undisturbed(folder: Path, **options: Any) -> tuple[list[str], dict[str, list[str]], Counter[str]]:
    """Return the points of the job, its histories, and its effects without the run ids in their keys."""
    job, crash = Job(folder, idempotent=True), Crash()
    await job.process(crash, **options)
    return crash.points, await job.histories(), effects_of(job)


def effects_of(job: Job) -> Counter[str]:
    """Return how often each effect happened."""
    return Counter(" ".join((*effect.split()[:2], effect.rpartition(":")[2])) for effect in job.effects)


async def test_the_job_without_a_crash(tmp_path: Path) -> None:
    """The whole job: the reference of the tests below."""
    points, histories, effects = await undisturbed(tmp_path)
    assert sorted(histories) == ["s", "s/b1", "s/b1/h1"]
    assert list(effects.values()) == [1] * 10
    assert len(points) > 80


@pytest.mark.ci
@pytest.mark.parametrize(
    ("again", "step"),
    [
        pytest.param(None, 17, id="once"),
        pytest.param(5, 41, id="twice"),
        pytest.param(None, 1, id="every", marks=pytest.mark.ci),
    ],
)
async def test_idempotent_tools_die_at_every_point(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, again: int | None, step: int
) -> None:
    """Wherever the process dies (even twice): the same histories at the end, and every effect under one key."""
    points, expected, effects = await undisturbed(tmp_path)
    for at, name in list(enumerate(points, 1))[::step]:
        job = Job(tmp_path_factory.mktemp("job"), idempotent=True)
        await job.dies(Crash(at))
        if again is not None:
            await job.dies(Crash(again))
        await job.process(Crash())
        assert await job.histories() == expected, f"{at}: {name}"
        assert set(effects_of(job)) == set(effects), f"{at}: {name}"
        assert len({effect.rpartition(":")[2] for effect in job.effects}) == len({*job.effects}), f"{at}: {name}"


@pytest.mark.parametrize("step", [29, pytest.param(3, marks=pytest.mark.ci)])
async def test_other_tools_die_at_every_point(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, step: int
) -> None:
    """Without `idempotent=True` no effect happens twice; for an interrupted tool the model reads "Outcome unknown"."""
    points, expected, effects = await undisturbed(tmp_path)
    for at, name in list(enumerate(points, 1))[::step]:
        job = Job(tmp_path_factory.mktemp("job"), idempotent=False)
        await job.dies(Crash(at))
        await job.process(Crash())
        done = effects_of(job)
        assert max(done.values()) == 1, f"{at}: {name}: {job.effects}"
        histories = await job.histories()
        told = [line for lines in histories.values() for line in lines if "Outcome unknown" in line]
        lost = set(effects) - set(done)
        assert len(lost) <= sum(line.count("Outcome unknown") for line in told), f"{at}: {name}: {lost} {told}"
        if not told:
            assert histories == expected, f"{at}: {name}"
