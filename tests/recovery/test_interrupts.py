"""A call on a real store is cancelled in every way; the stored result is the same each time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from eventlog import Recorder, history, use
from laws_checks import check_history

from agentflow import Agent, ToolEmitter, on, tool
from agentflow.errors import CallTimeoutError
from agentflow.loop.history import fold_facts
from agentflow.state.sql import SqlStore
from agentflow.testing import ScriptedModel
from agentflow.vocabulary.events import ActingChunk, ReasoningChunk


class Scene:
    """An agent that hangs, in the model's text or in its tools; `hanging` selects which."""

    def __init__(self, store: SqlStore, where: str) -> None:
        self.hanging = asyncio.Event()
        self.recorder = Recorder()
        self.closed: list[str] = []

        @tool(type="read")
        async def quick() -> str:
            """Quick."""
            return "done"

        @tool(type="read", timeout=None)
        async def stubborn(emitter: ToolEmitter) -> str:
            """Ignores its end, and returns a result when it must."""
            await asyncio.sleep(0)
            await emitter.emit("begun")
            try:
                await self.hang()
            except asyncio.CancelledError:
                self.closed.append("stubborn")
            return "late"

        @tool(timeout=None)
        async def never() -> str:
            """Comes after the others."""
            return "never"

        calls = [use("t1", "quick"), use("t2", "stubborn"), use("t3", "never")]
        model = ScriptedModel([["Let me ", self.speak, "see."] if where == "model" else calls, "usable"])
        self.model = model
        tools = [quick, stubborn, never]
        self.agent = Agent("a", model, tools=tools, hooks=[self.recorder], store=store)

    async def speak(self) -> None:
        try:
            await self.hang()
        finally:
            self.closed.append("model")

    async def hang(self) -> None:
        self.hanging.set()
        await asyncio.Event().wait()


Cut = Callable[[Scene], Awaitable[None]]


async def by_interrupt(scene: Scene) -> None:
    """agent.interrupt()"""
    task = asyncio.ensure_future(asyncio.create_task(_call(scene)))
    await scene.hanging.wait()
    assert scene.agent.interrupt("s", "enough")
    assert (await task).outcome == "interrupted"


async def by_cancel(scene: Scene) -> None:
    """task.cancel()"""
    task = asyncio.create_task(_call(scene))
    await scene.hanging.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def by_dispose(scene: Scene) -> None:
    """subscription.dispose()"""
    subscription = scene.agent.call("go", session="s").subscribe(lambda reply: None)
    await scene.hanging.wait()
    subscription.dispose()
    await subscription.closed()


async def by_closing(scene: Scene) -> None:
    """aclose() of the stream"""
    stream = aiter(scene.agent.stream("go", session="s"))

    async def read() -> None:
        async for _ in stream:
            pass

    task = asyncio.create_task(read())
    await scene.hanging.wait()
    await stream.aclose()
    await asyncio.wait([task])


async def by_timeout(scene: Scene) -> None:
    """timeout="""
    with pytest.raises(CallTimeoutError):
        await scene.agent.call("go", session="s", timeout=1.0)
    assert scene.hanging.is_set()


async def _call(scene: Scene) -> Any:
    return await scene.agent.call("go", session="s")


@pytest.mark.parametrize(
    "cut", [by_interrupt, by_cancel, by_dispose, by_closing, by_timeout], ids=lambda cut: cut.__name__
)
@pytest.mark.parametrize("where", ["model", "tools"])
async def test_every_way_takes_one_path(tmp_path: Path, cut: Cut, where: str) -> None:
    """The model is closed, tools are cancelled, open calls answered `interrupted`, partial text stored and marked,
    and CallEnded fires once. Late results are not stored; the user's input is; another process reads the same, and
    continues.
    """
    url = f"sqlite:///{tmp_path / 's.db'}"
    async with SqlStore(url) as store:
        scene = Scene(store, where)
        await cut(scene)
        assert scene.model.open_streams == 0
        assert [line for line in scene.recorder.log if line.startswith("CallEnded")] == [scene.recorder.log[-1]]
        assert scene.recorder.log[-1].startswith("CallEnded interrupted")
        assert [info.status for info in await store.sessions()] == ["idle"]
        kept = history(scene.agent.session("s"))
    async with SqlStore(url) as store:
        messages = fold_facts(await store.load("s"))
        check_history(messages)
        assert history(messages) == kept
        if where == "model":
            assert scene.closed == ["model"]
            assert kept == ["user: go", "assistant: Let me "]
            assert messages[1].metadata["interrupted"] is True
        else:
            assert scene.closed == ["stubborn"]
            results = messages[2].tool_results
            assert [(result.tool_use_id, result.state) for result in results] == [
                ("t1", "success"),
                ("t2", "interrupted"),
                ("t3", "interrupted"),
            ]
            assert "late" not in str(messages)
        agent = Agent("a", ScriptedModel(["usable"]), store=store)
        assert (await agent.call("next", session="s")).text == "usable"


async def test_an_interrupt_by_a_hook(tmp_path: Path) -> None:
    """A hook of the call itself may interrupt it, during the text and during a tool; the store has the text until
    then.
    """
    async with SqlStore(f"sqlite:///{tmp_path / 's.db'}") as store:
        for session, kind in (("words", ReasoningChunk), ("tools", ActingChunk)):

            @on(kind)
            def stop(event: Any) -> None:
                event.context.interrupt("seen enough")

            scene = Scene(store, "model" if kind is ReasoningChunk else "tools")
            reply = await scene.agent.call("go", session=session, hooks=[stop])
            assert reply.outcome == "interrupted"
            facts = await store.load(session)
            assert history(fold_facts(facts)) == history(scene.agent.session(session))
