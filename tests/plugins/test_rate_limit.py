"""`RateLimit`: the budget is shared, the wait is fair, can be cancelled, and counts for no time limit."""

import asyncio
import threading
from typing import Any

import pytest
from clocks import JumpingClock, LoopClock
from eventlog import Recorder, history, use
from wired import Wired

from agentflow import Agent, Hook, Model, tool
from agentflow.errors import ModelError, UsageError
from agentflow.plugins.fallback import ModelFallback
from agentflow.plugins.rate_limit import RateLimit, RateLimitWaits, estimated_tokens
from agentflow.plugins.retry import ModelRetry
from agentflow.testing import ScriptedModel, run_virtual
from agentflow.testing.wire import Fault, Say, UseTool, WireReply, WireUsage
from agentflow.vocabulary.chunks import ModelChunk
from agentflow.vocabulary.events import PostCall, PreReasoning
from agentflow.vocabulary.messages import Msg, ThinkingBlock, ToolUseBlock
from agentflow.vocabulary.ports.model import ModelRequest
from agentflow.vocabulary.specs import ModelOptions, Usage

PATHS = ("call", "stream")


class Keep(Hook):
    """Records the waits of runs."""

    observer = True
    events = (PostCall,)

    def __init__(self) -> None:
        self.waits: list[tuple[int, float]] = []

    def on_event(self, event: Any) -> None:
        waits = event.context.state[RateLimitWaits]
        self.waits.append((waits.count, waits.seconds))


class Stamped:
    """A model that records the time of each request, and reports the usage of each answer."""

    def __init__(self, *costs: int, name: str = "stamped") -> None:
        self.name = name
        self.times: list[float] = []
        self._costs = list(costs)

    async def stream(self, request: ModelRequest) -> Any:
        self.times.append(asyncio.get_running_loop().time())
        yield ModelChunk("ok", finish_reason="stop")
        if self._costs:
            yield ModelChunk(usage=Usage(input_tokens=self._costs.pop(0)))


def agent_of(model: Model, *hooks: Hook, **options: Any) -> Agent:
    return Agent("a", model, hooks=list(hooks), clock=LoopClock(), **options)


# ---- over the wire


@pytest.mark.parametrize("path", PATHS)
async def test_a_whole_run_keeps_to_the_budget(wired: Wired, path: str) -> None:
    """Two agents share two calls a minute: the third model call of the run waits, a retried one has to wait too, and nothing
    of it is seen in events or history."""

    @tool(type="read")
    async def look() -> str:
        """Look."""
        return "seen"

    clock, recorder, keep = JumpingClock(), Recorder(), Keep()
    hooks = [RateLimit(calls=2, per=60), ModelRetry(first_wait=1, jitter=0), recorder, keep]
    async with wired.serve([Say("Hello."), UseTool("look"), Fault.status(503), Say("Done.")]) as server:
        other, agent = (
            Agent(name, wired.model(server, retries=0), tools=[look], hooks=hooks, clock=clock)
            for name in ("ann", "bob")
        )
        await other.call("hi")
        recorder.seen.clear()
        if path == "call":
            await agent.call("go")
        else:
            async with agent.stream("go") as events:
                async for _ in events:
                    pass
    kinds = [type(event).__name__ for event in recorder.seen if type(event).__name__ != "ReasoningChunk"]
    assert kinds == [
        *("PreCall", "PreReasoning", "PostReasoning", "PreToolRound", "PreActing", "PostActing", "PostToolRound"),
        *("PreReasoning", "PostReasoning", "PostCall", "CallEnded"),
    ]
    # Free, free, a bucket's refill, the retry's own second, the rest of the next refill.
    assert clock.sleeps == pytest.approx([30, 1, 29])
    assert keep.waits == [(0, 0.0), (2, pytest.approx(59))]


async def test_tokens_are_settled_by_what_the_wire_reports(wired: Wired) -> None:
    """A reply that cost more than the budget of the minute makes the next call wait until that is made good."""
    clock = JumpingClock()
    expensive = WireReply("Long.", usage=WireUsage(input=1000, output=1000))
    async with wired.serve([expensive, Say("Short.")]) as server:
        hooks = [RateLimit(tokens=1000, per=60, estimate=lambda request: 100)]
        agent = Agent("a", wired.model(server), hooks=hooks, clock=clock)
        await agent.call("go")
        assert clock.sleeps == []
        await agent.call("go")
    # 2,000 spent and 100 more wanted of 1,000, at 1,000 a minute.
    assert clock.sleeps == pytest.approx([66], abs=0.01)


# ---- in virtual time


def times(limit: RateLimit, calls: int, model: Any = None) -> list[float]:
    """When each of some concurrent calls reached the model."""
    asked = model or Stamped()

    async def main() -> list[float]:
        agents = [agent_of(asked, limit) for _ in range(2)]
        await asyncio.gather(*(agents[i % 2].call("go", session=f"s{i}") for i in range(calls)))
        return asked.times

    return run_virtual(main())


def test_a_burst_and_then_evenly() -> None:
    """calls=3, per=60: three at once, then one every twenty seconds."""
    assert times(RateLimit(calls=3, per=60), 6) == pytest.approx([0, 0, 0, 20, 40, 60], abs=0.01)


def test_evenly_from_the_start() -> None:
    """burst=1 spaces them from the first on."""
    assert times(RateLimit(calls=3, per=60, burst=1), 4) == pytest.approx([0, 20, 40, 60], abs=0.01)


def test_fifty_calls_of_two_agents_share_the_budget() -> None:
    """Fifty at once on two agents: ten go out, the others follow one a second, in the order in which they came."""
    order: list[str] = []

    def brain(request: ModelRequest) -> str:
        order.append(request.messages[-1].text)
        return "ok"

    async def main() -> float:
        limit = RateLimit(calls=10, per=10)
        agents = [agent_of(ScriptedModel(brain), limit) for _ in range(2)]
        await asyncio.gather(*(agents[i % 2].call(f"{i:02}", session=f"s{i}") for i in range(50)))
        return asyncio.get_running_loop().time()

    assert run_virtual(main()) == pytest.approx(40, abs=0.01)
    assert order == sorted(order)


def test_unused_time_does_not_pile_up() -> None:
    """After an hour of silence the bucket is full, not fuller."""
    limit, model = RateLimit(calls=2, per=60), Stamped()

    async def main() -> list[float]:
        agent = agent_of(model, limit)
        await asyncio.sleep(3600)
        await asyncio.gather(*(agent.call("go", session=f"s{i}") for i in range(3)))
        return model.times

    assert run_virtual(main()) == pytest.approx([3600, 3600, 3630], abs=0.01)


def test_a_cancelled_wait_gives_its_place_back() -> None:
    """A call waits for a minute and gives up; the next one waits no longer than without it."""
    limit, model = RateLimit(calls=1, per=60), Stamped()

    async def main() -> list[float]:
        agent = agent_of(model, limit)
        await agent.call("go")
        waiting = asyncio.ensure_future(agent.call("go", session="impatient"))
        await asyncio.sleep(10)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await agent.call("go")
        return model.times

    assert run_virtual(main()) == pytest.approx([0, 60], abs=0.01)


def test_the_wait_is_not_the_models_time() -> None:
    """A limit on the model's own time, in a hook further in, does not count the wait for the budget."""

    class Patience(Hook):
        priority = 400

        def around(self, event: Any, source: Any) -> Any:
            return source.deadline(5) if isinstance(event, PreReasoning) else source

    async def main() -> list[float]:
        model = Stamped()
        agent = agent_of(model, RateLimit(calls=1, per=60), Patience())
        for _ in range(2):
            await agent.call("go")
        return model.times

    assert run_virtual(main()) == pytest.approx([0, 60], abs=0.01)


def test_tokens_are_booked_by_the_estimate_and_settled_in_both_directions() -> None:
    """Two replies that cost half and double of the estimate: the third call waits for exactly the missing tokens."""
    limit = RateLimit(tokens=100, per=100, estimate=lambda request: 40)

    async def main() -> list[float]:
        model = Stamped(20, 80)
        agent = agent_of(model, limit)
        for _ in range(3):
            await agent.call("go")
        return model.times

    # 20 + 80 are spent, 40 are wanted: forty seconds at a token a second.
    assert run_virtual(main()) == pytest.approx([0, 0, 40], abs=0.01)


def test_a_request_beyond_the_whole_budget_is_late_not_impossible() -> None:
    """A request of 250 tokens on 100 a minute waits until the part that does not fit has been earned."""
    model = Stamped(name="huge")
    assert times(RateLimit(tokens=100, per=60, estimate=lambda request: 250), 1, model) == pytest.approx([90], abs=0.01)


def test_without_a_report_the_estimate_stands() -> None:
    """A model that reports no usage costs the estimate."""
    limit = RateLimit(tokens=100, per=100, estimate=lambda request: 100)
    assert times(limit, 2) == pytest.approx([0, 100], abs=0.01)


def test_an_attempt_that_broke_off_is_settled_too() -> None:
    """If a reply fails after its usage was reported, that usage counts, and the new attempt is booked separately."""
    costly = [ModelChunk("a"), ModelChunk(usage=Usage(input_tokens=90)), ModelError("cut", retryable=True)]
    model = ScriptedModel([costly, "Whole.", "Next."])

    async def main() -> float:
        limit = RateLimit(tokens=100, per=100, estimate=lambda request: 10)
        agent = agent_of(model, limit, ModelRetry(first_wait=0, jitter=0))
        for _ in range(2):
            await agent.call("go")
        return asyncio.get_running_loop().time()

    assert run_virtual(main()) == pytest.approx(10, abs=0.01)


def test_longer_than_wanted_is_an_error_that_says_when() -> None:
    """max_wait=5: a wait of a minute is refused at once, retryably, and books nothing."""
    limit, model = RateLimit(calls=1, per=60, max_wait=5), Stamped()

    async def main() -> list[float]:
        agent = agent_of(model, limit)
        await agent.call("go")
        for _ in range(3):
            with pytest.raises(ModelError, match=r"is used up for another 60\.0 s") as caught:
                await agent.call("go")
            assert caught.value.retryable
            assert caught.value.retry_after == pytest.approx(60, abs=0.01)
        await asyncio.sleep(60)
        await agent.call("go")
        return model.times

    assert run_virtual(main()) == pytest.approx([0, 60], abs=0.01)


def test_a_budget_for_one_provider_only() -> None:
    """models=: the budget is for these models; calls of another one, also as a fallback, are free."""
    main, backup = ScriptedModel([*[ModelError("down")] * 2], name="openai/x"), Stamped(name="anthropic/y")
    limit = RateLimit(calls=1, per=60, models=("openai/*",), max_wait=0)

    async def run() -> float:
        agent = agent_of(main, limit, ModelFallback(backup))
        for _ in range(3):
            await agent.call("go")
        return asyncio.get_running_loop().time()

    assert run_virtual(run()) == 0
    assert (len(main.requests), len(backup.times)) == (1, 3)


def test_tools_by_pattern() -> None:
    """tools=: their runs share a budget of their own; other tools and model calls are free."""
    runs: list[tuple[str, float]] = []

    def tool_named(name: str) -> Any:
        @tool(name=name, type="read")
        async def probe() -> str:
            """Probe."""
            runs.append((name, asyncio.get_running_loop().time()))
            return name

        return probe

    calls = [use(f"t{i}", name) for i, name in enumerate(["search_web", "search_mail", "look", "search_web"])]

    async def main() -> None:
        tools = [tool_named(name) for name in ("search_web", "search_mail", "look")]
        agent = agent_of(ScriptedModel([calls, "Done."]), RateLimit(calls=2, per=10, tools=("search_*",)), tools=tools)
        await agent.call("go")

    run_virtual(main())
    assert runs == [("search_web", 0), ("search_mail", 0), ("look", 0), ("search_web", pytest.approx(5, abs=0.01))]


def test_a_tool_without_room_tells_the_model() -> None:
    """max_wait with tools: the model reads when to retry, and the run continues."""

    @tool(type="read")
    async def look() -> str:
        """Look."""
        return "seen"

    async def main() -> list[str]:
        model = ScriptedModel([[use("t1", "look"), use("t2", "look")], "Done."])
        agent = agent_of(model, RateLimit(calls=1, per=10, tools=("*",), max_wait=0), tools=[look])
        await agent.call("go")
        return history(agent.session())

    assert run_virtual(main())[2] == (
        "tool: t1 success 'seen'; t2 error \"Tool 'look' was not run: its rate limit is used up for another "
        '10.0 s. Try again then, or continue without it."'
    )


def test_one_budget_over_threads_and_loops() -> None:
    """Four threads, each with an event loop of its own, share one budget: together they get what it has."""
    limit = RateLimit(calls=10, per=36_000, max_wait=0)
    got: list[str] = []
    ready = threading.Barrier(4)

    def work() -> None:
        async def main() -> None:
            agent = Agent("a", ScriptedModel(lambda request: "ok"), hooks=[limit])
            ready.wait(timeout=10)
            for i in range(5):
                try:
                    got.append((await agent.call("go", session=f"s{i}")).text)
                except ModelError:
                    got.append("full")

        asyncio.run(main())

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(got) == ["full"] * 10 + ["ok"] * 10


def test_the_estimate_reads_all_that_is_sent() -> None:
    """Words, thoughts, arguments and results count, four characters a token."""
    call = ToolUseBlock.from_json("t1", "f", '{"a": "' + "x" * 31 + '"}')
    said = Msg.assistant(["a" * 20, ThinkingBlock("b" * 20), call])
    assert estimated_tokens(ModelRequest([said], (), ModelOptions(), "m")) == 20


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({}, "limits nothing"),
        ({"calls": 0}, "1 or more"),
        ({"tokens": -5}, "1 or more"),
        ({"calls": 1, "per": 0}, "per above 0"),
        ({"tokens": 5, "burst": 1}, "burst limits calls"),
        ({"tokens": 5, "tools": ("*",)}, "tools cost no tokens"),
    ],
)
def test_settings_that_cannot_be_meant(wrong: dict[str, Any], said: str) -> None:
    """Empty budgets are refused, with the legal values."""
    with pytest.raises(UsageError, match=said):
        RateLimit(**wrong)
