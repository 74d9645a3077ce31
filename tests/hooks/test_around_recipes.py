"""The recipes of docs/around.md, taken from the page: each is short, and works with `call` and with `stream`."""

from __future__ import annotations

import ast
import asyncio
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from eventlog import use

from agentflow import (
    ActingChunk,
    Agent,
    CallEnded,
    Error,
    Hook,
    ModelChunk,
    Msg,
    PostActing,
    PreActing,
    ReasoningChunk,
    Session,
    ToolUseBlock,
    Veto,
    tool,
)
from agentflow._support.virtual_time import run_virtual
from agentflow.errors import ModelError
from agentflow.testing import ScriptedModel
from agentflow.vocabulary.chunks import ToolUseDelta

PAGE = Path(__file__).parents[2] / "docs" / "around.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
DEFINES = (ast.Import, ast.ImportFrom, ast.ClassDef)


def _recipes() -> dict[str, tuple[ast.ClassDef, str]]:
    return {
        node.name: (node, block) for block in BLOCKS for node in ast.parse(block).body if isinstance(node, ast.ClassDef)
    }


RECIPES = _recipes()


def recipe(name: str) -> Any:
    """Return a class of the page, with the imports and constants of its block."""
    block = RECIPES[name][1]
    names: dict[str, Any] = {}
    for node in ast.parse(block).body:
        constant = (
            isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id.isupper()
        )
        if constant or isinstance(node, DEFINES):
            exec(compile(ast.Module([node], []), str(PAGE), "exec"), names)
    return names[name]


class Run:
    """The outcome of a call: the reply or the error, the chunks that a reader gets, and all its events."""

    def __init__(self, agent: Agent) -> None:
        self.agent = agent
        self.events: list[Any] = []
        self.text = ""
        self.outcome = ""
        self.error: BaseException | None = None

    @property
    def chunks(self) -> list[str]:
        return [
            e.incremental_chunk.text for e in self.events if isinstance(e, ReasoningChunk) and e.incremental_chunk.text
        ]


class _Watch(Hook):
    observer = True
    priority = 1000

    def __init__(self, events: list[Any]) -> None:
        self.seen = events

    def on_event(self, event: Any) -> None:
        self.seen.append(event)


@pytest.fixture(params=["call", "stream"])
def path(request: pytest.FixtureRequest) -> str:
    """With and without a stream."""
    return str(request.param)


async def go(path: str, agent: Agent, text: str = "go", session: Session | None = None) -> Run:
    run = Run(agent)
    try:
        if path == "call":
            await agent.call(text, session=session, hooks=[_Watch(run.events)])
        else:
            async with agent.stream(text, session=session) as events:
                async for event in events:
                    run.events.append(event)
    except Exception as error:
        run.error = error
    ended = run.events[-1]
    assert isinstance(ended, CallEnded)
    run.outcome = ended.outcome
    run.text = (session or agent.session()).messages[-1].text
    return run


async def _hang() -> None:
    await asyncio.sleep(3600)


def sleeps(seconds: float) -> Callable[[], Any]:
    return lambda: asyncio.sleep(seconds)


DOWN = ModelError("overloaded", retryable=True)


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_is_ten_lines_or_fewer(name: str) -> None:
    """Without blank lines, each hook of the page has at most ten lines."""
    node, block = RECIPES[name]
    lines = block.splitlines()[node.lineno - 1 : node.end_lineno]
    assert len([line for line in lines if line.strip()]) <= 10
    assert max(map(len, lines)) <= 120


async def test_retry(path: str) -> None:
    """Two failures, one in the middle of a sentence; the reader gets a restart."""
    model = ScriptedModel([DOWN, ["half ", DOWN], ["who", "le"]])
    run = await go(path, Agent("a", model, hooks=[recipe("Retry")()]))
    assert (run.text, run.chunks) == ("whole", ["half ", "who", "le"])
    restarts = [e.incremental_chunk.text for e in run.events if isinstance(e, ReasoningChunk) and e.restart]
    assert restarts == ["who"]


async def test_retry_gives_up(path: str) -> None:
    """The third failure is raised to the caller, after three attempts."""
    model = ScriptedModel([DOWN, DOWN, DOWN, "never"])
    run = await go(path, Agent("a", model, hooks=[recipe("Retry")()]))
    assert (run.error, run.outcome, len(model.requests)) == (DOWN, "failed", 3)


@pytest.mark.parametrize(
    ("script", "text"),
    [
        (["a", sleeps(4), "b"], "ab"),
        (["a", sleeps(6), "b"], None),
        (["a", *[sleeps(4), "b"] * 8], None),
    ],
    ids=["in time", "a gap", "altogether"],
)
def test_patience(path: str, script: list[Any], text: str | None) -> None:
    """Five seconds for a chunk and thirty in total: the call fails with a TimeoutError, and the model's stream is
    closed.
    """

    async def main() -> None:
        model = ScriptedModel([script])
        run = await go(path, Agent("a", model, hooks=[recipe("Patience")(5, 30)]))
        assert isinstance(run.error, TimeoutError) is (text is None)
        assert text is None or run.text == text
        assert model.open_streams == 0

    run_virtual(main())


async def test_fallback(path: str) -> None:
    """The backup starts again; the text of the first model is void."""
    backup = ScriptedModel([["spare ", "answer"]], name="backup")
    run = await go(path, Agent("a", ScriptedModel([["half", DOWN]]), hooks=[recipe("Fallback")(backup)]))
    assert (run.text, run.chunks) == ("spare answer", ["half", "spare ", "answer"])
    assert not [event for event in run.events if isinstance(event, Error)]


async def test_cache_of_results(path: str) -> None:
    """An equal call of a tool runs once; failures are not cached, and each call has its own answer."""
    runs: list[str] = []

    @tool(type="read")
    async def look(at: str) -> str:
        """Look."""
        runs.append(at)
        if at == "bad":
            raise ValueError("no")
        return f"saw {at}"

    looks = [use(f"t{n}", "look", at=at) for n, at in enumerate(["a", "bad"])]
    again = [use(f"u{n}", "look", at=at) for n, at in enumerate(["a", "bad", "b"])]
    run = await go(path, Agent("a", ScriptedModel([looks, again, "end"]), tools=[look], hooks=[recipe("Cache")()]))
    assert sorted(runs) == ["a", "b", "bad", "bad"]
    answers = {e.tool_result.tool_use_id: e.tool_result.text for e in run.events if isinstance(e, PostActing)}
    assert (answers["t0"], answers["u0"], answers["u2"]) == ("saw a", "saw a", "saw b")
    assert answers["t1"] == answers["u1"]


@pytest.mark.parametrize(
    ("first", "text", "asked"),
    [
        ([sleeps(1), "first"], "first", 0),
        ([sleeps(3), "first"], "spare", 1),
        (["begun ", sleeps(30), "and done"], "begun and done", 0),
    ],
    ids=["fast", "slow", "slow later"],
)
def test_hedge(path: str, first: list[Any], text: str, asked: int) -> None:
    """A second attempt begins after two seconds of silence; the first to answer is the reply, and the other is
    cancelled.
    """

    async def main() -> None:
        model, spare = ScriptedModel([first]), ScriptedModel(["spare"], name="spare")
        run = await go(path, Agent("a", model, hooks=[recipe("Hedge")(2, spare)]))
        assert (run.text, len(spare.requests), model.open_streams, spare.open_streams) == (text, asked, 0, 0)
        assert not [event for event in run.events if isinstance(event, ReasoningChunk) and event.restart]

    run_virtual(main())


def test_at_once(path: str) -> None:
    """Five calls, two at a time; a call that is cancelled while it waits or works releases its slot."""

    async def main() -> None:
        model = ScriptedModel(lambda request: [sleeps(10), "done"])
        most = 0

        class Counts(Hook):
            priority = 200

            def around(self, event: Any, source: Any) -> Any:
                nonlocal most
                return source.tap(lambda _: None).finally_action(lambda: None)

        slots = recipe("AtOnce")(2)
        agent = Agent("a", model, hooks=[slots, Counts()])
        calls = [asyncio.create_task(go(path, agent, session=Session.fresh())) for _ in range(5)]
        for _ in range(3):
            await asyncio.sleep(5)
            most = max(most, model.open_streams)
        calls[3].cancel()
        calls[4].cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        loop = asyncio.get_running_loop()
        began = loop.time()
        await asyncio.gather(*(go(path, agent, session=Session.fresh()) for _ in range(4)))
        assert (most, loop.time() - began, model.open_streams) == (2, 20, 0)

    run_virtual(main())


SPLITS = [
    (["The se", "cr", "et is 42"], "The *** is 42"),
    (["s", "e", "c", "r", "e", "t"], "***"),
    (["a secret, two sec", "", "rets"], "a ***, two ***s"),
    (["a secon", "d of sec"], "a second of sec"),
    (["sesecret", "secr", "esecret"], "se***secre***"),
    (["nothing"], "nothing"),
]


@pytest.mark.parametrize(("pieces", "text"), SPLITS)
async def test_redact_over_chunk_borders(path: str, pieces: list[str], text: str) -> None:
    """A word that is split over chunks is masked before a reader sees a part of it; a text that only began like it
    passes.
    """
    run = await go(path, Agent("a", ScriptedModel([pieces]), hooks=[recipe("Redact")()]))
    assert (run.text, "".join(run.chunks)) == (text, text)
    seen = ""
    for chunk in run.chunks:  # at no moment had the reader more than the masked text
        seen += chunk
        assert text.startswith(seen)
    assert "secret" not in repr(run.events)


async def test_redact_before_a_tool_call_and_after_a_restart(path: str) -> None:
    """Held text is released before a tool call, so the reply keeps its order; a restart drops it."""
    call = ModelChunk(tool_uses=(ToolUseDelta(0, "t1", "nothing", "{}"),))
    script = [[ModelChunk("go sec"), call], ["the sec", DOWN], ["the sec", "ond"]]
    hooks = [recipe("Redact")(), recipe("Retry")()]
    hooks[1].priority = 200  # inside: the mask sees both attempts
    agent = Agent("a", ScriptedModel(script), hooks=hooks)
    run = await go(path, agent)
    assert [block.type for block in agent.session().messages[1].content] == ["text", "tool_use"]
    assert agent.session().messages[1].text == "go sec"
    assert run.text == "the second"


async def test_mask_of_a_tools_pieces(path: str) -> None:
    """The chunks of a tool are changed before the reader gets them, and so is its result."""

    @tool
    async def read() -> Any:
        """Read."""
        yield "a secret "
        yield "line"

    agent = Agent("a", ScriptedModel([use("t1", "read"), "end"]), tools=[read], hooks=[recipe("Mask")()])
    run = await go(path, agent)
    assert [event.chunk for event in run.events if isinstance(event, ActingChunk)] == ["a *** ", "line"]
    assert agent.session().messages[2].tool_results[0].text == "a *** line"


@pytest.mark.parametrize("name", ["Moderate", "ModerateFirst"])
def test_a_check_that_races_the_model(path: str, name: str) -> None:
    """A check that refuses cancels the model, one that passes leaves the reply unchanged, and a failing model cancels
    the check. With `ModerateFirst` no chunk is seen before the check has finished.
    """

    class Slow(recipe(name)):  # type: ignore[misc]
        cancelled = 0

        async def check(self, text: str) -> None:
            try:
                await asyncio.sleep(5)
            except asyncio.CancelledError:
                Slow.cancelled += 1
                raise
            if text == "bad":
                raise Veto("no")

    async def main() -> None:
        model = ScriptedModel([["half ", _hang], ["a", "b"], ["half", DOWN]])
        agent = Agent("a", model, hooks=[Slow()])
        first = await go(path, agent, "bad", Session.fresh())
        assert (first.text, first.outcome, model.open_streams) == ("no", "denied", 0)
        assert first.chunks == (["half "] if name == "Moderate" else [])
        second = await go(path, agent, "good", Session.fresh())
        assert (second.text, second.chunks) == ("ab", ["a", "b"])
        third = await go(path, agent, "good", Session.fresh())
        assert (third.error, Slow.cancelled) == (DOWN, 1)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    run_virtual(main())


async def test_retry_of_a_tool(path: str) -> None:
    """The tool runs three times, and there is one PreActing and one PostActing."""
    tries: list[int] = []

    @tool(type="read")
    async def fetch_page() -> str:
        """Fail twice."""
        tries.append(1)
        if len(tries) < 3:
            raise ConnectionError("not yet")
        return "page"

    agent = Agent(
        "a", ScriptedModel([use("t1", "fetch_page"), "end"]), tools=[fetch_page], hooks=[recipe("RetryTool")()]
    )
    run = await go(path, agent)
    kinds = [type(event) for event in run.events if isinstance(event, PreActing | PostActing)]
    assert (kinds, len(tries)) == ([PreActing, PostActing], 3)
    assert agent.session().messages[2].tool_results[0].text == "page"


async def test_only_tools_applies_to_around(path: str) -> None:
    """A hook with `only_tools` wraps the work of those tools only. It wraps all other stages, which do not concern
    one tool.
    """
    wrapped: list[str] = []

    class Wraps(Hook):
        only_tools = ("delete_*",)

        def around(self, event: Any, source: Any) -> Any:
            wrapped.append(event.tool_use.name if isinstance(event, PreActing) else type(event).__name__)
            return source

    @tool(type="read")
    async def delete_it() -> str:
        """Delete."""
        return "deleted"

    @tool(type="read")
    async def keep_it() -> str:
        """Keep."""
        return "kept"

    calls = [ToolUseBlock("t1", "delete_it"), ToolUseBlock("t2", "keep_it")]
    run = await go(path, Agent("a", ScriptedModel([calls, "end"]), tools=[delete_it, keep_it], hooks=[Wraps()]))
    assert run.text == "end"
    assert wrapped == ["PreCall", "PreReasoning", "PreToolRound", "delete_it", "PreReasoning"]


async def test_timing(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The whole call is timed, even if it fails."""
    agent = Agent("a", ScriptedModel(["fine", DOWN]), hooks=[recipe("Timing")()])
    await go(path, agent)
    await go(path, agent)
    assert re.fullmatch(r"(took \d+\.\d{3} s\n){2}", capsys.readouterr().out)


async def test_wrappers_of_several_hooks_nest_by_priority(path: str) -> None:
    """Retry outside, mask inside: the mask starts again with each attempt."""
    retry, redact = recipe("Retry")(), recipe("Redact")()
    retry.priority, redact.priority = 10, 50
    model = ScriptedModel([["a sec", DOWN], ["a sec", "ret"]])
    agent = Agent("a", model, hooks=[redact, retry])
    run = await go(path, agent)
    assert (run.text, "".join(run.chunks)) == ("a ***", "a a ***")


def test_a_chunk_is_copied_whole() -> None:
    """The recipes rely on this: `dataclasses.replace` keeps the other fields of a chunk."""
    chunk = ModelChunk("a", finish_reason="stop")
    assert (replace(chunk, text="b").finish_reason, Msg.assistant("x").text) == ("stop", "x")
