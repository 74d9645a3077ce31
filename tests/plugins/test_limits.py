"""`UsageLimits`: nothing begins that would pass a limit; attempts, sub-agents, sessions and parallel runs are counted."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from eventlog import Recorder, history, streamed, use
from pydantic import TypeAdapter
from wired import Wired

from agentflow import Agent, Approve, CallEnded, Hook, ModelChunk, PreActing, PreReasoning, Suspend, Usage, on, tool
from agentflow._support.virtual_time import run_virtual
from agentflow.errors import ModelError, UsageError
from agentflow.plugins.fallback import ModelFallback
from agentflow.plugins.limits import SessionSpent, Spent, UsageLimits
from agentflow.testing.scripted import ScriptedModel
from agentflow.testing.wire import Say, UseTool, WireUsage


@tool(type="read")
async def look(place: int = 0) -> str:
    """Look at a place."""
    return f"place {place}"


def costing(text: str | Any, tokens: int = 10, cost: float | None = None) -> list[Any]:
    """A reply with its usage: as many input as output tokens."""
    usage = Usage(input_tokens=tokens, output_tokens=tokens, cost=cost)
    return [text, ModelChunk(usage=usage, finish_reason="stop" if isinstance(text, str) else "tool_calls")]


def looks(count: int, **cost: Any) -> list[Any]:
    """Rounds of one look each."""
    return [costing(use(f"t{n}", "look", place=n), **cost) for n in range(count)]


@pytest.mark.parametrize("how", ["call", "stream"])
async def test_tokens_end_a_run_over_the_wire(wired: Wired, how: str) -> None:
    """Two rounds spend the tokens: the third request is never sent, and the reply says which limit was reached and where."""
    usage = WireUsage(input=100, output=50)
    async with wired.serve([UseTool("look", {"place": n}, usage=usage) for n in (1, 2)]) as server:
        agent = Agent("a", wired.model(server), tools=[look], hooks=[UsageLimits(tokens=300)])
        if how == "call":
            await agent.call("Look around.")
        else:
            async with agent.stream("Look around.") as events:
                assert [event async for event in events][-1].outcome == "stopped"
    assert history(agent.session())[-1] == "assistant: Usage limit reached: 300 of 300 tokens are used in this run."


async def test_the_conversation_goes_on_after_a_limit(wired: Wired) -> None:
    """A limit is for one run: the next call on the session starts from nothing, with a history the wire accepts."""
    async with wired.serve([UseTool("look"), Say("Seen.")]) as server:
        agent = Agent("a", wired.model(server), tools=[look], hooks=[UsageLimits(model_calls=1)])
        first = await agent.call("Look.")
        second = await agent.call("And?")
    assert (first.outcome, second.outcome, second.text) == ("stopped", "completed", "Seen.")


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        ({"input_tokens": 20}, "20 of 20 input tokens are used in this run."),
        ({"output_tokens": 15}, "20 of 15 output tokens are used in this run."),
        ({"tokens": 40}, "40 of 40 tokens are used in this run."),
        ({"cost": 0.5}, "$0.5000 of $0.5000 are used in this run."),
        ({"model_calls": 2}, "2 of 2 model calls are used in this run."),
    ],
)
async def test_each_limit_of_a_model_call(limits: dict[str, Any], reason: str) -> None:
    """Two calls are made and the third is not, whatever is counted; call and stream agree."""
    for how in ("call", "stream"):
        model = ScriptedModel(looks(2, cost=0.25))
        agent = Agent("a", model, tools=[look], hooks=[UsageLimits(**limits)])
        log = await streamed(agent) if how == "stream" else [*await _recorded(agent)]
        assert log[-3:] == [
            "PreReasoning 3 reason -> Stop(UsageLimits)",
            f"PostCall stopped 'Usage limit reached: {reason}'",
            "CallEnded stopped",
        ]
        model.assert_done()


async def _recorded(agent: Agent) -> list[str]:
    recorder = Recorder()
    await agent.call("go", hooks=[recorder])
    return recorder.log


async def test_a_tool_too_many_is_denied_and_the_model_answers() -> None:
    """The limit on tools leaves the model a word: it reads why its second look was denied."""
    model = ScriptedModel([[use("t1", "look", place=1), use("t2", "look", place=2)], "One place."])
    agent = Agent("a", model, tools=[look], hooks=[UsageLimits(tool_calls=1)])
    reply = await agent.call("Look twice.")
    assert (reply.outcome, reply.text) == ("completed", "One place.")
    assert history(agent.session())[2] == (
        "tool: t1 success 'place 1'; t2 denied 'Denied: Usage limit reached: 1 of 1 tool calls are used in this run.'"
    )


class Retry(Hook):
    def around(self, event: Any, source: Any) -> Any:
        return source.retry(5) if isinstance(event, PreReasoning) else source


async def test_attempts_of_a_retry_are_counted() -> None:
    """A retry gets no third attempt, although it wraps from outside and within one round."""
    model = ScriptedModel([ModelError("busy", retryable=True)] * 2)
    agent = Agent("a", model, hooks=[UsageLimits(model_calls=2), Retry()])
    reply = await agent.call("Go")
    assert (reply.outcome, reply.text) == (
        "denied",
        "Usage limit reached: 2 of 2 model calls are used in this run.",
    )
    model.assert_done()


@pytest.mark.parametrize(("most", "text"), [(2, "From the backup."), (1, "1 of 1 model calls are used in this run.")])
async def test_a_fallback_is_counted(most: int, text: str) -> None:
    """The other model's call counts for the same run: with one allowed it is not called."""
    backup = ScriptedModel(["From the backup."] if most == 2 else [], name="backup")
    model = ScriptedModel([ModelError("gone", retryable=True)])
    agent = Agent("a", model, hooks=[ModelFallback(backup), UsageLimits(model_calls=most)])
    assert (await agent.call("Go")).text.endswith(text)
    backup.assert_done()


async def test_what_a_torn_attempt_cost_is_counted_once() -> None:
    """An attempt that reported its cost and then failed counts as one call and its tokens, next to the one that succeeded."""
    torn = [*costing("Half a sen")[:1], ModelChunk(usage=Usage(5, 5)), ModelError("gone", retryable=True)]
    limits = UsageLimits(tokens=1_000, per="hook")
    await Agent("a", ScriptedModel([torn, costing("Whole.")]), hooks=[limits, Retry()]).call("Go")
    assert replace(limits.spent, seconds=0) == Spent(input_tokens=15, output_tokens=15, model_calls=2)


async def test_side_calls_are_counted() -> None:
    """A hook's own model call is a model call: with it two are used, and the second round is not begun."""

    class Side(Hook):
        async def on_event(self, event: Any) -> Any:
            if isinstance(event, PreReasoning):
                await event.context.complete("What do you think?")

    model = ScriptedModel([costing("Good."), costing(use("t1", "look")), costing("Fine.")])
    limits = UsageLimits(model_calls=2, per="hook")
    reply = await Agent("a", model, tools=[look], hooks=[Side(), limits]).call("Go")
    assert (reply.outcome, limits.spent.model_calls) == ("stopped", 3)


def family(limits: UsageLimits, replies: int) -> tuple[Agent, ScriptedModel]:
    """A boss that asks a helper, who works until it is stopped."""
    inner = ScriptedModel(looks(replies))
    helper = Agent("helper", inner, tools=[look], description="Helps.")
    boss = Agent(
        "boss", ScriptedModel([costing(use("b1", "helper", message="Look")), "Over."]), tools=[helper], hooks=[limits]
    )
    return boss, inner


async def test_a_sub_agent_spends_from_the_same_account() -> None:
    """The helper is stopped when boss and helper together have used the tokens; then so is the boss."""
    boss, inner = family(UsageLimits(tokens=60), 2)
    reply = await boss.call("Go")
    inner.assert_done()
    assert reply.outcome == "stopped"
    assert reply.text == "Usage limit reached: 60 of 60 tokens are used in this run."
    assert history(boss.session())[2] == f"tool: b1 success '{reply.text}'"


async def test_calls_of_a_sub_agent_are_counted() -> None:
    """Model calls and tools of the helper are the boss's; the helper as a tool is one tool call."""
    limits = UsageLimits(model_calls=3, per="hook")
    boss, inner = family(limits, 2)
    assert (await boss.call("Go")).outcome == "stopped"
    inner.assert_done()
    assert (limits.spent.model_calls, limits.spent.tool_calls) == (3, 3)


async def test_a_session_has_one_account() -> None:
    """Per session: the second call on it is stopped, another session is not; the account can be read."""
    limits = UsageLimits(tokens=20, per="session", key="daily")
    agent = Agent("a", ScriptedModel(lambda request: costing("Fine.")), hooks=[limits])
    outcomes = [(await agent.call("Go", session=name)).outcome for name in ("ada", "ada", "bob")]
    assert outcomes == ["completed", "stopped", "completed"]
    spent = agent.session("ada").state[SessionSpent].by_key
    assert {key: replace(value, seconds=0) for key, value in spent.items()} == {"daily": Spent(10, 10, 0.0, 1)}


async def test_fifty_runs_share_one_account() -> None:
    """Per hook: of fifty concurrent runs exactly thirty get their model call, on two agents, and all get the same
    reason.
    """
    limits = UsageLimits(model_calls=30, per="hook")

    async def slowly(request: Any) -> str:
        await asyncio.sleep(0)
        return "Fine."

    agents = [Agent(name, ScriptedModel(slowly), hooks=[limits]) for name in ("a", "b")]
    replies = await asyncio.gather(*[agents[n % 2].call("Go", session=f"s{n}") for n in range(50)])
    assert sorted(reply.outcome for reply in replies).count("completed") == 30
    assert {reply.text for reply in replies} == {
        "Fine.",
        "Usage limit reached: 30 of 30 model calls are used in all runs together.",
    }
    assert limits.spent.model_calls == 30


async def test_fifty_runs_have_an_account_each() -> None:
    """Per run: fifty runs at once of one agent do not see each other's calls."""
    agent = Agent(
        "a", ScriptedModel(lambda request: costing(use("t", "look"))), tools=[look], hooks=[UsageLimits(model_calls=2)]
    )
    replies = await asyncio.gather(*[agent.call("Go", session=f"s{n}") for n in range(50)])
    assert {(reply.text, reply.usage.model_calls) for reply in replies} == {
        ("Usage limit reached: 2 of 2 model calls are used in this run.", 2)
    }


def words(text: str, model: str) -> int:
    """A counter of words."""
    del model
    return len(text.split())


async def test_the_next_request_is_counted_before_it_is_sent() -> None:
    """With a counter, a request that does not fit is not sent at all, and the reason says how big it is."""
    model = ScriptedModel([])
    agent = Agent("a", model, hooks=[UsageLimits(input_tokens=5, count=words)])
    reply = await agent.call("one two three four five six")
    assert model.requests == []
    assert reply.text == (
        "Usage limit reached: 0 of 5 input tokens are used in this run, and the next request needs about 7 more."
    )


async def test_requests_under_way_are_counted_too() -> None:
    """Per hook, with a counter: requests of other runs use the budget until they are billed, and no longer."""
    sent, go = asyncio.Event(), asyncio.Event()

    async def wait(request: Any) -> list[Any]:
        if not sent.is_set():
            sent.set()
            await go.wait()
        return costing("Fine.", tokens=4)

    limits = UsageLimits(input_tokens=9, count=words, per="hook")
    agent = Agent("a", ScriptedModel(wait), hooks=[limits])
    first = asyncio.ensure_future(agent.call("one two three", session="1"))
    await sent.wait()
    second = await agent.call("one two three four five", session="2")
    go.set()
    outcomes = [(await first).outcome, second.outcome, (await agent.call("one two three", session="3")).outcome]
    assert outcomes == ["completed", "stopped", "completed"]


def test_litellm_counts_where_no_counter_is_given() -> None:
    """`count_input=True` needs no counter of one's own."""
    agent = Agent("a", ScriptedModel([], name="gpt-4o"), hooks=[UsageLimits(tokens=50, count_input=True)])
    assert "the next request needs about" in agent.call("many words " * 50).block().text


def test_working_time_is_limited() -> None:
    """The model takes ten seconds a reply, twenty-five are allowed: three are made, by the run's own clock."""

    class LoopClock:
        def now(self) -> float:
            return self.monotonic()

        def monotonic(self) -> float:
            return asyncio.get_running_loop().time()

        async def sleep(self, seconds: float) -> None:
            await asyncio.sleep(seconds)

    async def slow(request: Any) -> Any:
        await asyncio.sleep(10)
        return use(f"t{len(request.messages)}", "look")

    async def main() -> None:
        agent = Agent("a", ScriptedModel(slow), tools=[look], hooks=[UsageLimits(seconds=25)], clock=LoopClock())
        reply = await agent.call("Go")
        assert reply.text == "Usage limit reached: 30.0 of 25 seconds are used in this run."
        assert reply.usage.model_calls == 3

    run_virtual(main())


def test_the_time_before_a_resume_is_not_work() -> None:
    """A call that waits an hour for a person has not worked an hour; its calls before and after are one run's."""

    class Hands:
        at = 0.0

        def now(self) -> float:
            return self.at

        def monotonic(self) -> float:
            return self.at

        async def sleep(self, seconds: float) -> None:
            self.at += seconds

    @on(PreActing)
    def ask(event: PreActing) -> Suspend:
        return Suspend("May I?")

    async def main() -> None:
        clock = Hands()
        limits = [UsageLimits(seconds=60), UsageLimits(model_calls=2)]
        model = ScriptedModel([use("t1", "look"), use("t2", "look")])
        agent = Agent("a", model, tools=[look], hooks=[ask, *limits], clock=clock)
        reply = await agent.call("Go")
        assert reply.outcome == "suspended"
        clock.at += 3600
        reply = await agent.resume(decisions={"t1": Approve()})
        assert reply.outcome == "suspended"
        reply = await agent.resume(decisions={"t2": Approve()})
        assert reply.text == "Usage limit reached: 2 of 2 model calls are used in this run."

    asyncio.run(main())


@pytest.mark.parametrize("how", ["call", "stream"])
async def test_a_limit_on_costs_without_a_price_is_refused_at_the_first_bill(how: str) -> None:
    """The first reply without a price fails the call; the error has the remedy, and the reply is billed."""
    ended: list[Usage] = []
    model = ScriptedModel([costing(use("t1", "look")), costing("Fine.")], name="openai+http://my/llama")
    agent = Agent("a", model, tools=[look], hooks=[UsageLimits(cost=1.0)])
    agent.on(CallEnded, lambda event: ended.append(event.usage))
    with pytest.raises(
        UsageError, match=r"prices=\{'openai\+http://my/llama': \(0.20, 0.80\)\}.*unknown_price='ignore'"
    ):
        await (agent.call("Go") if how == "call" else streamed(agent))
    assert (len(model.requests), [usage.total_tokens for usage in ended]) == (1, [20])


async def test_a_reply_that_reports_no_usage_has_no_price() -> None:
    """A reply without usage cannot be billed: a limit on costs refuses it too."""
    agent = Agent("a", ScriptedModel(["Fine."]), hooks=[UsageLimits(cost=1.0)])
    with pytest.raises(UsageError, match="no price is known for the model 'scripted'"):
        await agent.call("Go")


@pytest.mark.parametrize(
    ("prices", "outcome", "spent"),
    [({"scr*": (2.0, 4.0)}, "stopped", 0.0006), ({"other": (1, 1), "*": (0, 0)}, "completed", 0.0)],
)
async def test_prices_of_ones_own_are_counted(prices: Any, outcome: str, spent: float) -> None:
    """Dollars for a million tokens of input and output, by the model's name; a price from the provider stays."""
    limits = UsageLimits(cost=0.0005, prices=prices, per="hook")
    model = ScriptedModel([*looks(1, tokens=100), costing("Fine.", 1, cost=0.0)])
    reply = await Agent("a", model, tools=[look], hooks=[limits]).call("Go")
    assert reply.outcome == outcome
    assert limits.spent.cost == pytest.approx(spent)


async def test_an_unknown_price_may_be_ignored() -> None:
    """The limit then counts only replies with a price."""
    limits = UsageLimits(cost=0.5, unknown_price="ignore")
    model = ScriptedModel([*looks(1), *looks(1, cost=0.5)])
    assert (await Agent("a", model, tools=[look], hooks=[limits]).call("Go")).text.startswith(
        "Usage limit reached: $0.5"
    )


@pytest.mark.parametrize("where", ["fallback", "side", "sub-agent", "torn"])
async def test_one_reply_without_a_price_is_enough(where: str) -> None:
    """Beside priced replies too: that of a fallback, of a side call, of a sub-agent, of an attempt that broke off."""
    unpriced = ScriptedModel(lambda request: costing("Fine."), name="backup")
    limits, hooks, tools = UsageLimits(cost=1.0), list[Any](), [look]
    script: list[Any] = [costing(use("t1", "look"), cost=0.1), costing("Done.", cost=0.1)]
    if where == "fallback":
        script = [ModelError("gone", retryable=True)]
        hooks = [ModelFallback(unpriced)]
    elif where == "side":

        @on(PreActing)
        async def judge(event: PreActing) -> None:
            await event.context.complete("Is it fine?", model=unpriced)

        hooks = [judge]
    elif where == "sub-agent":
        tools = [Agent("helper", unpriced)]
        script = [costing(use("t1", "helper", message="go"), cost=0.1), costing("Done.", cost=0.1)]
    else:
        script = [[ModelChunk(usage=Usage(5, 5)), ModelError("gone", retryable=True)], costing("Done.", cost=0.1)]
        hooks = [Retry()]
    agent = Agent("a", ScriptedModel(script), tools=tools, hooks=[*hooks, limits])
    with pytest.raises(UsageError, match=f"the model '{'scripted' if where == 'torn' else 'backup'}'"):
        await agent.call("Go")


async def test_what_a_torn_side_call_cost_is_billed() -> None:
    """What the provider reported of a side call before it failed is part of the run's usage."""
    side = ScriptedModel([[ModelChunk(usage=Usage(7, 3, cost=0.2)), ModelError("gone")]])

    @on("before_llm", on_failure="skip")
    async def judge(event: PreReasoning) -> None:
        await event.context.complete("Is it fine?", model=side)

    reply = await Agent("a", ScriptedModel([costing("Fine.", cost=0.1)]), hooks=[judge]).call("Go")
    assert (reply.usage.total_tokens, reply.usage.model_calls) == (30, 2)
    assert reply.usage.cost == pytest.approx(0.3)


async def test_tokens_that_are_not_reported_are_estimated() -> None:
    """A limit on tokens means something for a provider that reports none: four characters count as a token."""
    limits = UsageLimits(tokens=60, per="hook")
    model = ScriptedModel([[use(f"t{n}", "look", place=n), "x" * 40] for n in range(9)])
    reply = await Agent("a", model, tools=[look], hooks=[limits]).call("y" * 40)
    assert (reply.outcome, len(model.requests)) == ("stopped", 3)
    assert (limits.spent.input_tokens, limits.spent.output_tokens) == (10 + 25 + 41, 3 * 12)


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"tokens": -1},
        {"tokens": 1, "per": "day"},
        {"cost": 1, "unknown_price": "maybe"},
        {"tokens": 1, "unknown_price": "ignore"},
        {"tokens": 1, "prices": {"*": (1, 1)}},
        {"cost": 1, "prices": {"*": 1}},
        {"cost": 1, "prices": {"*": (1, -1)}},
    ],
)
def test_limits_that_mean_nothing_are_refused(wrong: dict[str, Any]) -> None:
    """No limit, a negative one, an unknown span: refused when built."""
    with pytest.raises(UsageError):
        UsageLimits(**wrong)


def test_accounts_can_be_stored_with_a_session() -> None:
    """What is kept in a session's state is plain data: it comes back from JSON as it was."""
    kept = SessionSpent({"daily": Spent(10, 5, 0.25, 2, 1, 3.5)})
    adapter = TypeAdapter(SessionSpent)
    assert adapter.validate_json(adapter.dump_json(kept)) == kept


@pytest.mark.parametrize("option", ["prices", "unknown_price", "per", "count_input", "tokens", "key"])
def test_a_misspelt_option_is_recognised(option: str) -> None:
    """Each option is suggested for its misspelling."""
    with pytest.raises(UsageError, match=f"did you mean {option}="):
        UsageLimits(tokens=1, **{f"{option}x": 1})  # type: ignore[arg-type]
