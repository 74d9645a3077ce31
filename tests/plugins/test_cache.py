"""`ToolCache` and `ModelCache`: equal work is done once, different work is done, and a hit looks like the work."""

import asyncio
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from clocks import LoopClock
from eventlog import Recorder, history, run, streamed, use
from wired import Wired, normal

from agentflow import Agent, Answer, Deny, Hook, ModelOptions, Msg, Turn, on, tool
from agentflow.errors import ModelError, UsageError
from agentflow.plugins.cache import CacheUse, ModelCache, ToolCache
from agentflow.plugins.fallback import ModelFallback
from agentflow.plugins.rate_limit import RateLimit
from agentflow.plugins.retry import ModelRetry
from agentflow.testing import ScriptedModel, run_virtual
from agentflow.testing.wire import Fault, Say, ScriptedCall, UseTool, WireReply
from agentflow.vocabulary.chunks import ModelChunk, ToolUseDelta
from agentflow.vocabulary.events import CallEnded, PostCall, PreActing, PreReasoning, ReasoningChunk
from agentflow.vocabulary.messages import DataBlock, TextBlock, ThinkingBlock, ToolUseBlock
from agentflow.vocabulary.specs import Usage

PATHS = ("call", "stream")


class Keep(Hook):
    """Records the hits, misses and shared results of each run."""

    observer = True
    events = (PostCall,)

    def __init__(self) -> None:
        self.uses: list[tuple[int, int, int]] = []

    def on_event(self, event: Any) -> None:
        found = event.context.state[CacheUse]
        self.uses.append((found.hits, found.misses, found.shared))


class Lookup:
    """A tool that only reads, and counts its runs."""

    def __init__(self, kind: str = "read", name: str = "look") -> None:
        self.runs: list[str] = []
        self.fails = 0

        @tool(type=kind, name=name)  # pyright: ignore[reportArgumentType, reportCallIssue]
        async def look(at: str = "", deep: bool = False) -> str:
            """Look."""
            self.runs.append(at)
            if self.fails:
                self.fails -= 1
                raise ConnectionError("reset")
            return f"seen {at}"

        self.tool = look


# ---- over the wire


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("where", ["memory", "disk"])
async def test_a_whole_run_is_given_again(wired: Wired, path: str, where: str, tmp_path: Path) -> None:
    """The second run calls neither model nor tool; its events, chunks and history are those of the first, without
    cost, and a strict provider accepts what follows.
    """
    lookup, keep = Lookup(), Keep()
    call = WireReply("Let me see.", calls=(ScriptedCall("look", {"at": "home"}),), chunk=4)
    script = [call, Say("You are at home.", chunk=4), Say("Bye.")]
    file = tmp_path / "cache.db" if where == "disk" else None
    caches = [ModelCache(path=file), ToolCache(path=file)]
    recorders = Recorder(), Recorder()
    async with wired.serve(script) as server:
        agents = [
            Agent("a", wired.model(server), tools=[lookup.tool], hooks=[*caches, keep, recorder])
            for recorder in recorders
        ]
        for agent in agents:
            await run(agent, path)
        assert len(server.requests) == 2
        first, second = recorders
        given = [event.incremental_chunk.text for event in first.seen if isinstance(event, ReasoningChunk)]
        again = [event.incremental_chunk.text for event in second.seen if isinstance(event, ReasoningChunk)]
        assert [text for text in again if text] == [text for text in given if text]
        assert len([text for text in again if text]) > 3
        assert normal(second.seen) == normal(first.seen)
        assert history(agents[1].session()) == history(agents[0].session())
        assert (await agents[1].call("Thanks")).text == "Bye."
    assert lookup.runs == ["home"]
    assert keep.uses == [(0, 3, 0), (3, 0, 0), (0, 1, 0)]
    ended = [event for event in second.seen if isinstance(event, PostCall)]
    assert (ended[0].usage.total_tokens, ended[0].usage.cost or 0) == (0, 0)


async def test_a_reply_that_was_torn_is_kept_whole(wired: Wired) -> None:
    """What is given again are the chunks of the attempt that came through, without a restart."""
    script = [Say("Half a sen", chunk=5, faults=Fault.cut("text")), Say("A whole sentence.", chunk=5)]
    cache, recorder = ModelCache(), Recorder()
    async with wired.serve(script) as server:
        hooks = [cache, ModelRetry(first_wait=0, jitter=0)]
        await Agent("a", wired.model(server, retries=0), hooks=hooks).call("go")
        await Agent("a", wired.model(server, retries=0), hooks=[*hooks, recorder]).call("go")
    assert normal(recorder.seen)[2] == "ReasoningChunk assistant: A whole sentence. (stop)"


async def test_a_failed_reply_is_not_kept(wired: Wired) -> None:
    """After an error the model is called again."""
    async with wired.serve([Fault.status(401), Say("Hello.")]) as server:
        agent = Agent("a", wired.model(server), hooks=[ModelCache()])
        with pytest.raises(ModelError):
            await agent.call("go", session="one")
        assert (await agent.call("go", session="two")).text == "Hello."


# ---- models


async def replies(cache: ModelCache, model: ScriptedModel, *calls: dict[str, Any], **options: Any) -> int:
    """Return the number of model calls, for calls with these differences."""
    for number, call in enumerate(calls):
        settings: dict[str, Any] = {**options, **call}
        text, asked = settings.pop("text", "go"), settings.pop("options", None)
        agent = Agent(settings.pop("name", f"a{number}"), settings.pop("model", model), hooks=[cache], **settings)
        await agent.call(text, options=asked)
    return len(model.requests)


@pytest.mark.parametrize(
    ("second", "asked"),
    [
        ({}, 1),
        ({"name": "another agent"}, 1),
        ({"text": Msg.user("go", id="another_id", metadata={"note": 1})}, 1),
        ({"text": "went"}, 2),
        ({"text": Msg.user("go", name="ann", id="msg_1")}, 2),
        ({"text": Msg.user(["go", DataBlock("image/png", data="aaaa")], id="msg_1")}, 2),
        ({"system": "Be brief."}, 2),
        ({"tools": [Lookup().tool]}, 2),
        ({"options": ModelOptions(temperature=0.5)}, 2),
        ({"options": ModelOptions(extra={"user": "u1"})}, 2),
    ],
    ids=str,
)
async def test_what_makes_two_requests_the_same(second: dict[str, Any], asked: int) -> None:
    """Messages, tools and options count; the agent, ids and metadata do not."""
    model = ScriptedModel(lambda request: "ok")
    assert await replies(ModelCache(), model, {}, second) == asked


async def test_another_model_is_another_request() -> None:
    """The name of the model counts."""
    one, two = ScriptedModel(["one"], name="one"), ScriptedModel(["two"], name="two")
    cache = ModelCache()
    assert [await replies(cache, model, {}, {}) for model in (one, two)] == [1, 1]


async def test_ids_of_calls_do_not_count() -> None:
    """Two runs in which the provider chose other ids for the calls continue with the same request."""

    @on(PreReasoning)
    def first_reply(event: PreReasoning) -> Answer | None:
        asked = use("chosen_otherwise", "look", at="x")
        return Answer(Msg.assistant([asked])) if event.iteration == 1 else None

    lookup, cache = Lookup(), ModelCache()
    await Agent("a", ScriptedModel([use("t1", "look", at="x"), "ok"]), tools=[lookup.tool], hooks=[cache]).call("go")
    agent = Agent("b", ScriptedModel([]), tools=[lookup.tool], hooks=[cache, first_reply])
    assert (await agent.call("go")).text == "ok"


async def test_what_was_injected_counts() -> None:
    """A message that a hook adds to this one request is part of the key."""
    model, cache = ScriptedModel(lambda request: f"{request.messages[-1].text}"), ModelCache()

    def telling(time: str) -> Hook:
        @on(PreReasoning)
        def tell(event: PreReasoning) -> None:
            event.context.inject(f"It is {time}.", keep=False)

        return tell

    said = [
        (await Agent("a", model, hooks=[cache, telling(time)]).call("go")).text for time in ("noon", "midnight", "noon")
    ]
    assert said == ["It is noon.", "It is midnight.", "It is noon."]
    assert len(model.requests) == 2


async def test_all_kinds_of_chunks_survive_the_disk(tmp_path: Path) -> None:
    """Thoughts, seals, call fragments, whole blocks and finish reasons come back as they were; usage does not."""
    call = ToolUseDelta(0, "t1", "look", '{"at": "x"}')
    line = [
        ModelChunk(thinking="Hm", model="m"),
        ModelChunk(signature="seal"),
        ModelChunk("Say"),
        ModelChunk(tool_uses=(call,)),
        ModelChunk(
            blocks=(DataBlock("image/png", data="aaaa"), TextBlock("under it"), ToolUseBlock("t2", "look", {"at": "y"}))
        ),
        ModelChunk(usage=Usage(input_tokens=5, output_tokens=7)),
        ModelChunk(finish_reason="tool_calls"),
    ]
    seen: list[list[ModelChunk]] = []
    for _ in range(2):
        agent = Agent(
            "a", ScriptedModel([line, "ok"]), tools=[Lookup().tool], hooks=[ModelCache(path=tmp_path / "c.db")]
        )
        events = [event async for event in agent.stream("go") if isinstance(event, ReasoningChunk)]
        seen.append([event.incremental_chunk for event in events if event.iteration == 1])
        first = agent.session().messages[1]
        assert [type(block).__name__ for block in first.content] == [
            *("ThinkingBlock", "TextBlock", "ToolUseBlock", "DataBlock", "TextBlock", "ToolUseBlock"),
        ]
        assert first.content[0] == ThinkingBlock("Hm", "seal", None, "m")
    assert seen[1] == [chunk for chunk in seen[0] if chunk.usage is None]


@pytest.mark.parametrize(
    "line",
    [
        [ModelChunk("Cut off"), ModelChunk(finish_reason="length")],
        [ModelChunk(finish_reason="stop")],
    ],
    ids=["cut off", "empty"],
)
async def test_poor_replies_are_not_kept(line: list[ModelChunk]) -> None:
    """A truncated or empty reply is requested again next time."""
    cache, model = ModelCache(), ScriptedModel([line, line, "Whole."])
    for _ in range(4):
        await Agent("a", model, hooks=[cache], default_hooks=()).call("go")
    assert len(model.requests) == 3  # what came whole at last is kept


async def test_a_hit_for_another_model_restarts_what_was_seen() -> None:
    """The first model breaks off within a sentence, and the second one's reply is cached: the reader gets a restart."""
    backup = ScriptedModel(["Whole."], name="backup")
    cache = ModelCache()
    for _ in range(2):
        main = ScriptedModel([["Half", ModelError("cut")]], name="main")
        agent = Agent("a", main, hooks=[ModelFallback(backup), cache])
        assert (await streamed(agent))[2:5] == [
            "ReasoningChunk Half",
            "ReasoningChunk attempt 2 Whole.",
            "PostReasoning Whole.",
        ]
    assert len(backup.requests) == 1


async def test_a_hit_needs_no_place_in_the_rate_limit() -> None:
    """A known reply is given without waiting for the budget."""
    cache, limit = ModelCache(), RateLimit(calls=1, per=3600, max_wait=0)
    for _ in range(3):
        agent = Agent("a", ScriptedModel(lambda request: "ok"), hooks=[limit, cache])
        assert (await agent.call("go")).text == "ok"


async def test_only_the_models_that_are_named() -> None:
    """models=: others are called each time."""
    model = ScriptedModel(["one", "two"], name="openai/gpt-5")
    cache = ModelCache(models=("anthropic/*",))
    assert await replies(cache, model, {}, {}) == 2


@pytest.mark.parametrize("priority", [120, 501])
async def test_a_plain_operator_of_another_hook_is_no_hindrance(priority: int) -> None:
    """Whether it is an inner or an outer wrapper, the cache has the request that the model gets."""

    class Mask(Hook):
        priority = 500

        def around(self, event: Any, source: Any) -> Any:
            return source.map(lambda chunk: chunk) if isinstance(event, PreReasoning) else source

    model = ScriptedModel(["ok"])
    agent = Agent("a", model, hooks=[Mask(), ModelCache(priority=priority)])
    said = [(await agent.call("go", session=name)).text for name in ("one", "two")]
    assert (said, len(model.requests)) == (["ok", "ok"], 1)


async def test_fifty_calls_at_once_share_one_model_cache() -> None:
    """Fifty calls with five questions: each gets the answer to its own."""
    cache, keep = ModelCache(), Keep()
    model = ScriptedModel(lambda request: f"answer {request.messages[-1].text}")
    agents = [Agent(name, model, hooks=[cache, keep]) for name in ("ann", "bob")]
    for warm in range(5):
        await agents[0].call(str(warm), session=f"w{warm}")
    calls = [agents[i % 2].call(str(i % 5), session=f"s{i}") for i in range(50)]
    assert [reply.text for reply in await asyncio.gather(*calls)] == [f"answer {i % 5}" for i in range(50)]
    assert keep.uses == [(0, 1, 0)] * 5 + [(1, 0, 0)] * 50


# ---- tools


async def looked(lookup: Lookup, cache: ToolCache, *uses: ToolUseBlock, hooks: tuple[Hook, ...] = ()) -> list[str]:
    """The results of a round of tool calls."""
    model = ScriptedModel([list(uses), "Done."])
    agent = Agent("a", model, tools=[lookup.tool], hooks=[cache, *hooks])
    await agent.call("go")
    return [f"{block.tool_use_id} {block.state} {block.text}" for block in agent.session().messages[2].tool_results]


async def test_arguments_in_another_order_are_the_same() -> None:
    """The arguments count, not how the model wrote them; each call gets its own result."""
    lookup = Lookup()
    first = ToolUseBlock.from_json("t1", "look", '{"at": "x", "deep": false}')
    second = ToolUseBlock.from_json("t2", "look", '{ "deep":false, "at":"\\u0078" }')
    results = await looked(lookup, ToolCache(single_flight=False), first)
    assert results == ["t1 success seen x"]
    cache = ToolCache()
    assert await looked(lookup, cache, first) == ["t1 success seen x"]
    assert await looked(lookup, cache, second, use("t3", "look", at="y")) == ["t2 success seen x", "t3 success seen y"]
    assert lookup.runs == ["x", "x", "y"]


@pytest.mark.parametrize("where", ["memory", "disk"])
async def test_long_arguments_are_told_apart_by_their_last_letter(where: str, tmp_path: Path) -> None:
    """The arguments count however long they are."""
    lookup, long = Lookup(), "x" * 1_000
    cache = ToolCache(path=tmp_path / "c.db" if where == "disk" else None)
    uses = [use(f"t{number}", "look", at=at) for number, at in enumerate([f"{long}a", f"{long}b", f"{long}a", "a"])]
    for one in uses:
        await looked(lookup, cache, one)
    assert lookup.runs == [f"{long}a", f"{long}b", "a"]


@pytest.mark.parametrize(
    ("kind", "options", "runs"),
    [
        ("read", {}, 1),
        ("research", {}, 1),
        ("write", {}, 2),
        ("write", {"tools": ("look",)}, 1),
        ("read", {"tools": ("lo*",)}, 1),
        ("read", {"tools": ("other",)}, 2),
    ],
)
async def test_which_tools_are_cached(kind: str, options: dict[str, Any], runs: int) -> None:
    """Tools that read; with patterns those that are named, whatever they do."""
    lookup, cache = Lookup(kind), ToolCache(**options)
    for _ in range(2):
        await looked(lookup, cache, use("t1", "look", at="x"))
    assert len(lookup.runs) == runs


async def test_failures_are_not_kept() -> None:
    """A tool that failed is run again; its success is kept."""
    lookup, cache = Lookup(), ToolCache()
    lookup.fails = 1
    results = [(await looked(lookup, cache, use("t1", "look", at="x")))[0] for _ in range(3)]
    assert results == ["t1 error ConnectionError: reset", "t1 success seen x", "t1 success seen x"]
    assert len(lookup.runs) == 2


async def test_a_denied_call_gets_nothing_from_the_cache() -> None:
    """A guard evaluates the call before the cache is read: a denied caller gets no cached result."""

    @on(PreActing, guard=True)
    def deny(event: PreActing) -> Deny:
        return Deny("not for you")

    lookup, cache = Lookup(), ToolCache()
    await looked(lookup, cache, use("t1", "look", at="x"))
    assert await looked(lookup, cache, use("t1", "look", at="x"), hooks=(deny,)) == ["t1 denied Denied: not for you"]


async def test_malformed_and_wrong_arguments_are_left_to_the_tool() -> None:
    """Arguments that cannot be read are never looked up, and their error is never kept."""
    lookup, cache = Lookup(), ToolCache()
    await looked(lookup, cache, use("t1", "look"))
    broken = await looked(lookup, cache, ToolUseBlock.from_json("t2", "look", '{"at": '))
    assert broken[0].startswith("t2 error")
    assert lookup.runs == [""]


async def test_what_else_a_result_depends_on() -> None:
    """vary=: each user has results of their own."""
    lookup = Lookup()
    cache = ToolCache(vary=lambda event: event.context.deps(str))
    for user in ("ann", "bob", "ann"):
        model = ScriptedModel([use("t1", "look", at="inbox"), "Done."])
        await Agent("a", model, tools=[lookup.tool], hooks=[cache]).call("go", deps=user)
    assert len(lookup.runs) == 2


async def test_tools_that_only_share_a_name() -> None:
    """Another agent's tool of the same name but another description has results of its own."""

    @tool(type="read", name="look")
    async def other(at: str) -> str:
        """Look elsewhere."""
        return "elsewhere"

    cache, lookup = ToolCache(), Lookup()
    await looked(lookup, cache, use("t1", "look", at="x"))
    agent = Agent("b", ScriptedModel([use("t1", "look", at="x"), "Done."]), tools=[other], hooks=[cache])
    await agent.call("go")
    assert history(agent.session())[2] == "tool: t1 success 'elsewhere'"


async def test_the_same_at_once_is_done_once() -> None:
    """Twice the same in one round, and in fifty calls at once: one run, and everyone has the result."""
    lookup, cache, keep = Lookup(), ToolCache(), Keep()

    def brain(request: Any) -> Any:
        done = request.messages[-1].role == "tool"
        return "Done." if done else [use("t1", "look", at="x"), use("t2", "look", at="x")]

    agents = [Agent(name, ScriptedModel(brain), tools=[lookup.tool], hooks=[cache, keep]) for name in ("ann", "bob")]
    await asyncio.gather(*(agents[i % 2].call("go", session=f"s{i}") for i in range(50)))
    assert lookup.runs == ["x"]
    assert (sum(one[0] for one in keep.uses), sum(one[1] for one in keep.uses)) == (99, 1)


def waiting(first_ends: str) -> tuple[list[str], int, float]:
    """Two agents run the same tool at once; the first one's run fails, or its call is cancelled, after ten seconds."""
    starts: list[float] = []

    @tool(type="read")
    async def slow() -> str:
        """Be slow."""
        starts.append(asyncio.get_running_loop().time())
        await asyncio.sleep(10 if len(starts) == 1 else 1)
        if len(starts) == 1 and first_ends == "fails":
            raise ConnectionError("reset")
        return "done"

    async def main() -> tuple[list[str], int, float]:
        cache = ToolCache()
        agents = [
            Agent(n, ScriptedModel([use("t1", "slow"), "ok"]), tools=[slow], hooks=[cache], clock=LoopClock())
            for n in ("ann", "bob")
        ]
        tasks = [asyncio.ensure_future(agent.call("go")) for agent in agents]
        await asyncio.sleep(5)
        if first_ends == "is cancelled":
            tasks[0].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        results = [block.text for msg in agents[1].session().messages for block in msg.tool_results]
        return results, len(starts), asyncio.get_running_loop().time()

    return run_virtual(main())


def test_the_others_failure_is_not_mine() -> None:
    """Whoever waited for a run that failed or was cancelled runs the tool itself."""
    assert waiting("fails") == (["done"], 2, 11)
    assert waiting("is cancelled") == (["done"], 2, 6)
    assert waiting("goes well") == (["done"], 1, 10)


@pytest.mark.parametrize("shared", [True, False])
def test_work_that_does_not_succeed_is_a_miss_too(shared: bool) -> None:
    """A run whose tool was cancelled, or failed, had to do the work as well."""
    uses: list[CacheUse] = []

    class Uses(Hook):
        observer = True
        events = (CallEnded,)

        def on_event(self, event: Any) -> None:
            uses.append(event.context.state[CacheUse])

    @tool(type="read")
    async def slow() -> str:
        """Be slow."""
        await asyncio.sleep(10)
        raise ConnectionError("reset")

    async def main() -> None:
        hooks = [ToolCache(single_flight=shared), Uses()]
        for limit in (5, None):
            agent = Agent("a", ScriptedModel([use("t1", "slow"), "ok"]), tools=[slow], hooks=hooks, clock=LoopClock())
            with suppress(TimeoutError):
                await agent.call("go", timeout=limit)

    run_virtual(main())
    assert uses == [CacheUse(misses=1)] * 2


async def test_a_tool_that_asks_for_itself_does_not_wait_for_itself() -> None:
    """An agent as a tool that runs the same tool with the same arguments inside is no deadlock."""
    cache = ToolCache()
    depth: list[int] = []

    @tool(type="read")
    async def ask() -> str:
        """Ask."""
        depth.append(1)
        if len(depth) == 2:
            return "bottom"
        inner = Agent("inner", ScriptedModel([use("t1", "ask"), "from below"]), tools=[ask], hooks=[cache])
        return (await inner.call("go")).text

    agent = Agent("outer", ScriptedModel([use("t1", "ask"), "Done."]), tools=[ask], hooks=[cache])
    async with asyncio.timeout(20):
        await agent.call("go")
    assert history(agent.session())[2] == "tool: t1 success 'from below'"


# ---- stores


@pytest.mark.parametrize("where", ["memory", "disk"])
def test_entries_grow_old(where: str, tmp_path: Path) -> None:
    """ttl=60: known for a minute, then done again."""

    async def main() -> list[float]:
        file = tmp_path / "c.db" if where == "disk" else None
        cache, lookup, seen = ToolCache(ttl=60, path=file), Lookup(), list[float]()
        for wait in (0, 59, 1, 59):
            await asyncio.sleep(wait)
            model = ScriptedModel([use("t1", "look", at="x"), "Done."])
            await Agent("a", model, tools=[lookup.tool], hooks=[cache], clock=LoopClock()).call("go")
            seen.append(len(lookup.runs))
        return seen

    assert run_virtual(main()) == [1, 1, 2, 2]


@pytest.mark.parametrize("where", ["memory", "disk"])
def test_the_least_recently_used_goes_first(where: str, tmp_path: Path) -> None:
    """size=2: a third entry replaces the one that was not used for longest."""

    async def main() -> list[str]:
        file = tmp_path / "c.db" if where == "disk" else None
        cache, lookup = ToolCache(ttl=None, size=2, path=file), Lookup()
        for at in ("a", "b", "a", "c", "a", "b"):
            await asyncio.sleep(1)
            model = ScriptedModel([use("t1", "look", at=at), "Done."])
            await Agent("a", model, tools=[lookup.tool], hooks=[cache], clock=LoopClock()).call("go")
        return lookup.runs

    assert run_virtual(main()) == ["a", "b", "c", "b"]


async def test_a_file_outlives_the_process(tmp_path: Path) -> None:
    """What another process has kept is known here."""
    program = f"""
import asyncio
from agentflow import Agent
from agentflow.plugins.cache import ModelCache
from agentflow.testing import ScriptedModel

agent = Agent("a", ScriptedModel(["From the other process."]), hooks=[ModelCache(path={str(tmp_path / "deep" / "c.db")!r})])
asyncio.run(agent.call("go"))
"""
    await asyncio.to_thread(subprocess.run, [sys.executable, "-W", "error", "-c", program], check=True)
    agent = Agent("a", ScriptedModel([]), hooks=[ModelCache(path=tmp_path / "deep" / "c.db")])
    assert (await agent.call("go")).text == "From the other process."


async def test_a_broken_file_costs_the_hit_not_the_call(tmp_path: Path) -> None:
    """A file that is no database, and an entry that makes no sense, are logged; the work is done."""
    (tmp_path / "c.db").write_text("this is no database, whatever its name says" * 100)
    assert (await Agent("a", ScriptedModel(["ok"]), hooks=[ModelCache(path=tmp_path / "c.db")]).call("go")).text == "ok"
    cache = ModelCache(path=tmp_path / "d.db")
    model = ScriptedModel(["first", "second"])
    await Agent("a", model, hooks=[cache]).call("go")
    connection = sqlite3.connect(tmp_path / "d.db")
    with connection:
        connection.execute("UPDATE entries SET text = '[{\"text\": 5}]'")
    connection.close()
    assert (await Agent("a", model, hooks=[cache]).call("go")).text == "second"
    assert (await Agent("a", model, hooks=[cache]).call("go")).text == "second"


@pytest.mark.parametrize("kind", [ToolCache, ModelCache])
def test_settings_that_cannot_be_meant(kind: Any) -> None:
    """A cache of nothing, or for no time, is refused."""
    for wrong in ({"size": 0}, {"ttl": 0}, {"ttl": -1}):
        with pytest.raises(UsageError, match="would keep nothing"):
            kind(**wrong)


async def test_cached_runs_are_cached_by_call_too(wired: Wired) -> None:
    """What a streamed call has learned serves a plain one."""
    lookup, cache = Lookup(), ToolCache()
    async with wired.serve(
        [UseTool("look", {"at": "x"}), Say("One."), UseTool("look", {"at": "x"}), Say("Two.")]
    ) as server:
        for path in ("stream", "call"):
            await run(Agent("a", wired.model(server), tools=[lookup.tool], hooks=[cache]), path)
    assert lookup.runs == ["x"]


# ---- turns


async def test_what_a_streaming_turn_gives_is_not_what_a_call_gives() -> None:
    """A reader of the turn has had its values, so the result is the last one: neither is kept, nor given to the other."""
    runs: list[int] = []

    @tool(type="read")
    async def count(to: int) -> AsyncIterator[int]:
        """Count."""
        runs.append(to)
        for number in range(to):
            yield number

    cache = ToolCache()
    agent = Agent("a", ScriptedModel([use("t1", "count", to=3), "Done."]), tools=[count], hooks=[cache])

    async def by_queue() -> list[object]:
        await agent.put(Turn(count, {"to": 3}))
        return [value async for _, value in agent.run()]

    async def by_hand() -> list[object]:
        return [value async for value in Turn(count, {"to": 3}, hooks=[cache]).yielding()]

    assert (await by_queue(), await by_hand()) == ([0, 1, 2], [0, 1, 2])
    await agent.call("Count")
    assert agent.session().messages[2].text == "[0,1,2]"
    assert (await by_queue(), await by_hand(), len(runs)) == ([0, 1, 2], [0, 1, 2], 5)


async def test_a_turn_that_is_answered_from_the_cache_keeps_its_type() -> None:
    """The stored text is converted to the tool's return type: a completion check still ends its queue."""
    runs: list[str] = []

    @tool(type="read")
    async def shelf(title: str) -> int:
        """Where it stands."""
        runs.append("shelf")
        return len(title)

    @tool(type="completion_check")
    async def enough() -> bool:
        """Whether it is enough."""
        runs.append("enough")
        return True

    @tool(type="read")
    async def code() -> str:
        """A text of digits."""
        runs.append("code")
        return "3"

    agent = Agent("a", ScriptedModel([]), tools=[shelf, enough, code], hooks=[ToolCache(tools=("*",))])

    async def once() -> list[object]:
        for turn in (Turn(shelf, {"title": "Faust"}), Turn(code), Turn(enough), Turn(code)):
            await agent.put(turn)
        return [value async for _, value in agent.run()]

    assert await once() == [5, "3", True]
    agent.queue.clear()
    assert (await once(), len(agent.queue)) == ([5, "3", True], 1)
    assert runs == ["shelf", "code", "enough"]
