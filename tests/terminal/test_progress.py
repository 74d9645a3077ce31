"""The lines of what runs: models, tools, sub-agents as a tree, waits with their countdown, and what it has cost so far."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Callable
from typing import Any

import pytest

from agentflow import (
    ActingChunk,
    Agent,
    Console,
    Error,
    ModelChunk,
    PreActing,
    PreReasoning,
    ReasoningChunk,
    ToolUseBlock,
    Usage,
    on,
    tool,
)
from agentflow.errors import ModelError
from agentflow.plugins import ModelRetry, RateLimit
from agentflow.terminal.progress import ProgressLines
from agentflow.testing import ScriptedModel, run_virtual
from agentflow.vocabulary.events import HookEvent
from agentflow.vocabulary.ports.retry import RetryPolicy
from agentflow.vocabulary.ports.waits import Wait, on_wait


class Watch:
    """A progress, and a clock that only the test moves."""

    def __init__(self) -> None:
        self.time = 0.0
        self.progress = ProgressLines(lambda: self.time)

    def lines(self, width: int = 100, height: int = 30, ascii_only: bool = False) -> list[str]:
        return [line.plain for line in self.progress.lines(width, height, ascii_only=ascii_only)]

    async def follow(self, agent: Agent, at: Callable[[HookEvent], bool]) -> list[list[str]]:
        """The lines after each event; a second passes with each event, and the run is never ahead."""
        seen: list[list[str]] = []
        async with agent.stream("Go", children=True, buffer=0) as events:
            async for event in events:
                self.time += 1
                self.progress.process(event)
                if at(event):
                    seen.append(self.lines(ascii_only=True))
                    assert bool(self.progress) is bool(seen[-1])
        assert not self.progress
        return seen


@tool(type="read")
async def count(to: int):
    """Count."""
    for number in range(to):
        yield f"{number + 1} of {to}\nand the last\n" if number + 1 == to else f"{number + 1} of {to}"


@tool(type="read")
async def wide(what: str):
    """Wide."""
    yield what
    await asyncio.Event().wait()


def used(tokens: int, cost: float) -> ModelChunk:
    return ModelChunk(usage=Usage(input_tokens=tokens, cost=cost))


def without_frames(rows: list[str]) -> list[str]:
    """Without the sign that turns."""
    return ["".join(" " if sign in "|/-\\" else sign for sign in row).strip().replace("`", "`-") for row in rows]


async def test_a_tool_has_a_line_with_its_last_piece() -> None:
    """Elapsed time, the last line of its text, tokens and cost so far; no line once it has ended."""
    watch = Watch()
    model = ScriptedModel([[ToolUseBlock("t1", "count", {"to": 2}), used(1200, 0.0024)], "Done."], name="m")
    agent = Agent("a", model, tools=[count])
    waiting, *pieces = await watch.follow(agent, lambda event: isinstance(event, PreReasoning | ActingChunk))
    assert without_frames(waiting) == ["waiting for m  0 s", "round 1 · 1 s"]
    assert [without_frames(rows) for rows in pieces[:2]] == [
        ["count(to=2)  1 s  1 of 2", "round 1 · 1,200 tokens · $0.0024 · 8 s"],
        ["count(to=2)  2 s  and the last", "round 1 · 1,200 tokens · $0.0024 · 9 s"],
    ]


async def test_a_model_has_a_line_that_says_what_it_writes() -> None:
    """Thoughts, text, a tool call; of text, its end."""
    watch = Watch()
    chunks = [ModelChunk(thinking="Hm, "), "Let me ", "count.", ToolUseBlock("t1", "count", {"to": 1})]
    agent = Agent("a", ScriptedModel([chunks, "Done."]), tools=[count])
    seen = await watch.follow(agent, lambda event: isinstance(event, ReasoningChunk) and event.iteration == 1)
    assert [without_frames(rows)[0].split("  ")[::2] for rows in seen[:4]] == [
        ["a thinks", "Hm,"],
        ["a writes", "Hm, Let me"],
        ["a writes", "Hm, Let me count."],
        ["the model is writing a call of count"],
    ]


async def test_of_a_long_text_the_end_is_shown() -> None:
    """As much as the line has room for."""
    watch = Watch()
    agent = Agent("a", ScriptedModel(["word " * 60 + "at last"]))
    (row, *_), *_ = await watch.follow(agent, lambda event: isinstance(event, ReasoningChunk))
    assert row.endswith(" word word at last")
    assert 90 < len(row) < 100


async def test_sub_agents_are_a_tree() -> None:
    """Each below the call that asks it, however deep, side by side too, and with the cost of all."""
    leaf = Agent("leaf", ScriptedModel(lambda r: "Leaf." if r.messages[-1].role == "tool" else use("c", "count", to=1)))
    leaf = Agent("leaf", leaf.config.model, tools=[count], description="Leaf.")
    model = ScriptedModel(lambda r: "Mid." if r.messages[-1].role == "tool" else use("l", "leaf", message="go"))
    middle = Agent("middle", model, tools=[leaf], description="Middle.")
    both = [ToolUseBlock("m1", "middle", {"message": "one"}), ToolUseBlock("m2", "middle", {"message": "two"})]
    top = Agent("top", ScriptedModel([both, "Top."]), tools=[middle])
    watch = Watch()
    deepest: list[str] = []
    for rows in await watch.follow(top, lambda event: isinstance(event, ActingChunk) and event.source == "middle/leaf"):
        deepest = max(deepest, rows, key=len)
    shape = [(len(row) - len(row.lstrip(" `-|/\\")), row.lstrip(" `-|/\\").split("(")[0]) for row in deepest[:-1]]
    depths = {name: depth for depth, name in shape}
    assert [name for _, name in shape].count("middle") == 2
    assert depths["middle"] < depths["leaf"] < depths["count"]


async def test_an_agent_that_a_tool_calls_in_another_session_is_below_the_tool() -> None:
    """Also if the session's name does not say which call it belongs to."""
    helper = Agent("helper", ScriptedModel(["Yes."]))

    @tool
    async def ask(what: str) -> str:
        return (await helper.call(what, session="own")).text

    agent = Agent("a", ScriptedModel([use("t1", "ask", what="x"), "Done."]), tools=[ask])
    watch = Watch()
    (rows,) = await watch.follow(agent, lambda event: isinstance(event, ReasoningChunk) and event.source == "helper")
    assert [row.split("  ")[0] for row in without_frames(rows)] == ["ask(what='x')", "`-", "round 1 · 8 s"]


def use(id: str, name: str, **arguments: Any) -> ToolUseBlock:  # noqa: A002
    return ToolUseBlock(id, name, arguments)


async def test_many_lines_are_cut_to_the_screen() -> None:
    """Lines without room are counted; no line is wider than the terminal, wide characters counted as two."""
    watch = Watch()
    calls = [ToolUseBlock(f"t{n}", "wide", {"what": "界" * 300}) for n in range(15)]
    agent = Agent("a", ScriptedModel([calls]), tools=[wide])
    async with agent.stream("Go") as events:
        async for event in events:
            watch.progress.process(event)
            if isinstance(event, PreActing) and event.tool_use.id == "t14":
                break
    lines = watch.progress.lines(40, 12)
    assert max(line.cell_len for line in lines) < 40
    assert len(lines) == 10
    assert [line.plain for line in lines[-2:]] == ["  and 7 more", "  round 1 · 0 s · 15 tools running"]


def test_a_wait_counts_down() -> None:
    """Whole seconds that are left; over, it has no line."""
    watch = Watch()
    over = watch.progress.wait(Wait(who="ModelRetry", seconds=12, reason="ModelError: busy", attempt=2))
    assert watch.lines(ascii_only=True)[0] == "  ~ ModelRetry: attempt 3 in 12 s  ModelError: busy"
    watch.time = 8.4
    assert "in 4 s" in watch.lines()[0]
    watch.time = 60
    assert "in 0 s" in watch.lines()[0]
    over()
    over()
    assert watch.lines() == []


# ---- sources of waits


def noted(waits: list[tuple[str, float, int]]) -> Callable[[Wait], Callable[[], object]]:
    def listen(wait: Wait) -> Callable[[], object]:
        waits.append((wait.who, wait.seconds, wait.attempt))
        return lambda: waits.append(("over", 0, 0))

    return listen


async def waits_of(agent: Agent) -> list[tuple[str, float, int]]:
    waits: list[tuple[str, float, int]] = []
    token = on_wait.set(noted(waits))
    try:
        await agent.call("Hi")
        await agent.call("Hi again")
    finally:
        on_wait.reset(token)
    return waits


def test_retries_and_rate_limits_tell_of_their_waits() -> None:
    """The source, the duration, the attempt; and that the wait has ended."""
    busy = ModelError("busy", retryable=True, retry_after=5.0)

    def retried() -> Agent:
        return Agent("a", ScriptedModel([busy, "Here.", "There."]), hooks=[ModelRetry()])

    assert run_virtual(waits_of(retried())) == [("ModelRetry", 5.0, 1), ("over", 0, 0)]

    limited = Agent("a", ScriptedModel(["Here.", "There."]), hooks=[RateLimit(calls=1, per=30)])
    (who, seconds, attempt), over = run_virtual(waits_of(limited))
    assert (who, round(seconds), attempt) == ("RateLimit", 30, 0)
    assert over == ("over", 0, 0)


def test_tools_that_retry_tell_of_it_too() -> None:
    """`@tool(retries=)` asks the same policy."""
    tries: list[int] = []

    @tool(type="read", retries=1)
    async def flaky() -> str:
        """Flaky."""
        tries.append(1)
        if len(tries) == 1:
            raise ConnectionError
        return "fine"

    agent = Agent("a", ScriptedModel([ToolUseBlock("t", "flaky", {}), "Done.", "Done."]), tools=[flaky])
    told = run_virtual(waits_of(agent))
    assert [(who, attempt) for who, _, attempt in told] == [("Tool 'flaky'", 1), ("over", 0)]


async def test_a_listener_that_fails_holds_up_nobody() -> None:
    """The retry continues without it."""

    def broken(wait: Wait) -> Callable[[], object]:
        raise RuntimeError("no screen")

    token = on_wait.set(broken)
    try:
        assert await RetryPolicy(first_wait=0, jitter=0).start().another(ConnectionError())
    finally:
        on_wait.reset(token)


@pytest.mark.parametrize(("seconds", "said"), [(0.2, "200 ms"), (30.0, "30.0 s")])
def test_a_retry_has_a_line_in_a_pipe(seconds: float, said: str) -> None:
    """A wait before another attempt is printed once, as text, however short it is."""
    failed: list[Any] = []

    @on(Error)
    def note(event: Error) -> None:
        failed.append(event.error)

    async def main() -> str:
        model = ScriptedModel([ModelError("busy", retryable=True, retry_after=seconds), "Here."])
        file = io.StringIO()
        await Console(Agent("a", model, hooks=[ModelRetry(), note]).stream("Hi"), file=file)
        return file.getvalue()

    text = run_virtual(main())
    assert text.count("↻") == 1
    assert f"  ↻ attempt 1 failed; ModelRetry retries in {said}: ModelError: busy\n" in text
