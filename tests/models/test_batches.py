"""Batches of providers, over their wires: agents whose requests are submitted together, and every failure of that."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import pytest
from nursery import Nursery

from agentflow import Agent, ModelOptions, Reply
from agentflow.agent.orchestration import batch
from agentflow.errors import ModelError, UsageError
from agentflow.models import AnthropicBatch, AnthropicWire, OpenAIBatch, OpenAIWire
from agentflow.models.http import loaded
from agentflow.models.listing import batch_prices, price
from agentflow.plugins import UsageLimits
from agentflow.testing.wire import (
    BatchPlan,
    Cite,
    Fault,
    Say,
    ScriptedCall,
    ServerCall,
    WireReply,
    WireRequest,
    WireServer,
    WireUsage,
)
from agentflow.tools import ToolContext, computer_tool, tool
from agentflow.vocabulary import ServerTool
from agentflow.vocabulary.chunks import fold
from agentflow.vocabulary.messages import Msg
from agentflow.vocabulary.ports.model import ModelRequest
from agentflow.vocabulary.specs import ToolSpec, Usage

WIRES = ("openai", "responses", "anthropic")
wires = pytest.mark.parametrize("wire", WIRES)
vendors = pytest.mark.parametrize("wire", ["openai", "anthropic"])
WINDOW = 3.25
FULL = 3600.0
NAMES = {"openai": "gpt-5-mini", "responses": "responses/gpt-5-mini", "anthropic": "claude-haiku-4-5"}


@pytest.fixture(autouse=True)
def _closed(closed_clients: None) -> None:
    """Each test leaves no open connection."""


async def until(holds: Callable[[], bool]) -> None:
    """Wait for another process, or for a batch of this one."""
    async with asyncio.timeout(60):
        while not holds():  # noqa: ASYNC110 - the condition is that of a server
            await asyncio.sleep(0.01)


class Desk:
    """A provider, and models that use its batches."""

    def __init__(self, wire: str, folder: Path, script: Any, plan: BatchPlan | None = None) -> None:
        self.wire = wire
        serve = WireServer.anthropic if wire == "anthropic" else WireServer.openai
        self.server = serve(script, batches=plan)
        self.path = folder / "job.db"
        self.sleeps: list[float] = []

    async def __aenter__(self) -> Desk:
        await self.server.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.server.stop()

    def model(self, **options: Any) -> OpenAIBatch | AnthropicBatch:
        made: Callable[..., Any] = AnthropicBatch if self.wire == "anthropic" else OpenAIBatch
        given: dict[str, Any] = {"window": WINDOW, "sleep": self.sleep, "path": self.path}
        return made(NAMES[self.wire], api_base=self.server.base_url, api_key="k", **(given | options))

    async def sleep(self, seconds: float) -> None:
        """Sleep: a window passes when all requests of this loop have joined; every other wait is recorded and passes
        at once.
        """
        if seconds == FULL:
            await asyncio.Event().wait()  # the batch is submitted when it is full
        if seconds != WINDOW:
            self.sleeps.append(seconds)
        for _ in range(100 if seconds == WINDOW else 1):
            await asyncio.sleep(0)

    @property
    def sizes(self) -> list[int]:
        return [len(one.requests) for one in self.server.batches]


def shout(request: WireRequest) -> WireReply:
    return WireReply(request.user_text.upper(), usage=WireUsage(input=1_000_000, output=0))


async def ready(model: Any) -> None:
    """Load what a first request loads in threads, so that all requests join in a few steps of the loop."""
    await loaded()
    await model.answer_modes()


async def asked(model: Any, *texts: str) -> list[str]:
    """Return the texts, or the failures, of one request for each text, at the same time."""

    async def ask(text: str) -> str:
        request = ModelRequest([Msg.user(text)], (), ModelOptions(), model.name)
        try:
            return "".join([chunk.text or "" async for chunk in model.stream(request)])
        except ModelError as error:
            return f"{'again' if error.retryable else 'never'} {error.status}: {error}"

    await ready(model)
    return list(await asyncio.gather(*map(ask, texts)))


@wires
async def test_agents_share_batches(wire: str, tmp_path: Path) -> None:
    """All first rounds are one batch, and all second ones the next; tools, typed answers and the history work as
    usual, and the cost is that of a batch.
    """

    @tool
    async def double(n: int) -> int:
        """Double a number."""
        return 2 * n

    def think(request: WireRequest) -> WireReply:
        usage = WireUsage(input=500_000, output=100_000)
        if request.results:
            return WireReply(f'{{"answer": {request.results[0].text}}}', usage=usage)
        return WireReply("", calls=(ScriptedCall("double", {"n": int(request.user_text)}),), usage=usage)

    async with Desk(wire, tmp_path, think, BatchPlan(polls=3)) as desk:
        agent = Agent("doubler", desk.model(max_requests=3, window=FULL), tools=[double], default_hooks=())
        results = await batch(agent, ["1", "2", "3"], output=int)
    replies = [result for result in results if isinstance(result, Reply)]
    price = 0.325 if wire != "anthropic" else 1.0
    assert [(reply.output, reply.usage.cost) for reply in replies] == [(2 * n, pytest.approx(price)) for n in (1, 2, 3)]
    assert desk.sizes == [3, 3]
    assert {request.refused for request in desk.server.requests} == {None}
    assert desk.sleeps == [5.0, 10.0, 5.0, 10.0]


async def test_a_batch_requests_the_betas_of_its_tools(tmp_path: Path) -> None:
    """Its requests have no headers: those of the batch hold for all."""

    async def press(action: dict[str, Any], context: ToolContext) -> str:
        return "done"

    async with Desk("anthropic", tmp_path, ["Hi.", "Hi."]) as desk:
        model = desk.model(max_requests=2, window=FULL, headers={"anthropic-beta": "mine"})
        tools = [computer_tool(press, width=1024, height=768)]
        options = ModelOptions(server_tools=(ServerTool.mcp("docs", "https://mcp.example.com"),))
        agent = Agent("a", model, tools=tools, options=options, default_hooks=())
        results = await batch(agent, ["1", "2"])
    assert [isinstance(result, Reply) for result in results] == [True, True]
    assert {request.refused for request in desk.server.requests} == {None}
    betas = {request.headers["anthropic-beta"] for request in desk.server.requests}
    assert betas == {"mine,computer-use-2025-01-24,mcp-client-2025-11-20"}


@vendors
async def test_every_outcome_of_a_request(wire: str, tmp_path: Path) -> None:
    """Refused, failed, expired, cancelled, missing and repeated results are distinguished, in any order."""

    def answer(request: WireRequest) -> Any:
        faults = {"two": Fault.status(400, message="Bad."), "three": Fault.status(500, message="Oops.")}
        return faults.get(request.user_text) or Say(request.user_text)

    plan = BatchPlan(expired=[3], cancelled=[4], missing=[5], repeated=[6])
    async with Desk(wire, tmp_path, answer, plan) as desk:
        said = await asked(desk.model(retries=0), "one", "two", "three", "four", "five", "six", "seven")
    name = f"{wire}/{NAMES[wire]}"
    again, missing = "Try again: it is sent in another batch", "ended without a result for"
    if wire == "openai":
        missing = "expired before"  # what an expired batch does not say of a request
    assert [said[0], said[1][:9], said[2][:5], *said[3:6], said[6]] == [
        "one",
        "never 400",
        "again",
        f"again None: {name}: the batch expired before this request was answered. {again}.",
        f"never None: {name}: the batch was cancelled at the provider. Start the program again to send it in another batch.",
        f"again None: {name}: the batch {missing} this request{' was answered' * (wire == 'openai')}. {again}.",
        "seven",
    ]
    assert [word in text for word, text in (("Bad.", said[1]), ("Oops.", said[2]))] == [True, True]


@vendors
async def test_a_failed_request_is_retried_in_the_next_batch(wire: str, tmp_path: Path) -> None:
    """An expired request is sent again; an answered one is not."""
    async with Desk(wire, tmp_path, shout, BatchPlan(expired=[1])) as desk:
        said = await asked(desk.model(), "a", "b")
        model = desk.model(path=tmp_path / "other.db", retries=0)
        failed = await asked(model, "c", "d")
        model.close()
        later = await asked(desk.model(path=tmp_path / "other.db", retries=0), "c", "d")
    assert (said, failed[0], later, desk.sizes) == (["A", "B"], "C", ["C", "D"], [2, 1, 2, 1])


@vendors
async def test_a_request_that_the_provider_failed_is_sent_again(wire: str, tmp_path: Path) -> None:
    """Its failure is not kept: a later attempt is a request of another batch; a reply is kept, even an unusable one."""

    def answer(request: WireRequest) -> Any:
        return failures.pop(request.user_text, None) or shout(request)

    failures = {"a": Fault.status(500, message="Oops."), "b": Fault.status(400, message="Bad.")}
    async with Desk(wire, tmp_path, answer) as desk:
        model = desk.model(retries=0)
        first = await asked(model, "a", "b", "c")
        model.close()
        second = await asked(desk.model(retries=0), "a", "b", "c")
    assert ([text[:5] for text in first], second) == (["again", "never", "C"], ["A", "B", "C"])
    assert desk.sizes == [3, 2]


async def test_a_batch_that_is_not_accepted(tmp_path: Path) -> None:
    """Its runs get the provider's reason; a full queue is retryable."""
    found: list[str] = []
    for code in ("mismatched_model", "token_limit_exceeded"):
        async with Desk("openai", tmp_path, shout, BatchPlan(invalid=code)) as desk:
            model = desk.model(retries=0)
            found += [text[:9] + ("…" + code) * (code in text) for text in await asked(model, "a")]
            model.close()
    assert found == ["never 400…mismatched_model", "again 429…token_limit_exceeded"]


@vendors
async def test_results_that_break_off(wire: str, tmp_path: Path) -> None:
    """They are read again, also if they end properly; results that are still missing are failures after three
    downloads.
    """
    async with Desk(wire, tmp_path, shout, BatchPlan(truncated=2, incomplete=4)) as desk:
        said = await asked(desk.model(), *"abc")
    assert (said, desk.server.batches[0].downloads) == (["A", "B", "C"], 5)
    async with Desk(wire, tmp_path, shout, BatchPlan(missing=[1])) as desk:
        said = await asked(desk.model(path=tmp_path / "other.db", retries=0), "a", "b")
    assert (said[0], said[1][-39:], desk.server.batches[0].downloads) == (
        "A",
        "Try again: it is sent in another batch.",
        3,
    )


@vendors
async def test_an_answer_that_is_lost_makes_no_second_batch(wire: str, tmp_path: Path) -> None:
    """If it is unknown whether a batch was created, it is found at the provider, on any page, among others like it."""
    async with Desk(wire, tmp_path, shout, BatchPlan(dropped=2, page=1)) as desk:
        other = desk.model(path=tmp_path / "other.db")
        said = await asyncio.gather(asked(other, "x", "y"), asked(desk.model(), "a", "b"))
    assert (said, desk.sizes) == ([["X", "Y"], ["A", "B"]], [2, 2])


@vendors
async def test_a_batch_whose_failure_passes_is_continued(wire: str, tmp_path: Path) -> None:
    """If looking at a batch fails, its runs get the error, and the next ones continue with the same batch."""
    created = [200] if wire == "anthropic" else [200, 200]
    async with Desk(wire, tmp_path, shout, BatchPlan(statuses=[*created, 401])) as desk:
        model = desk.model()
        said = await asked(model, "a", "b") + await asked(model, "a", "b")
    assert ([text[:9] for text in said], desk.sizes) == (["never 401", "never 401", "A", "B"], [2])


@vendors
async def test_equal_requests_have_their_own_answers(wire: str, tmp_path: Path) -> None:
    """Within a process each request is sent once; the next model on the same file gets all answers again."""
    said = iter("abcdef")

    def give(request: WireRequest) -> WireReply:
        return Say(next(said))

    async with Desk(wire, tmp_path, give) as desk:
        model = desk.model()
        first = await asked(model, "letter", "letter")
        second = await asked(model, "letter")
        with pytest.raises(UsageError, match="another process or model uses it"):
            await asked(desk.model(), "letter")
        model.close()
        again = await asked(desk.model(), "letter", "letter", "letter")
    assert (sorted(first), second, sorted(again), desk.sizes) == (["a", "b"], ["c"], ["a", "b", "c"], [2, 1])


@vendors
async def test_full_batches(wire: str, tmp_path: Path) -> None:
    """A full batch is submitted at once, by number or by size; one request that is too large is refused."""
    async with Desk(wire, tmp_path, shout) as desk:
        model = desk.model(max_requests=2)
        said = await asked(model, *"abcde")
    assert (said, desk.sizes) == ([*"ABCDE"], [2, 2, 1])


async def test_a_size_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The size of a batch counts all its lines."""
    monkeypatch.setattr(OpenAIBatch, "_most_bytes", 1_000)
    async with Desk("openai", tmp_path, shout) as desk:
        said = await asked(desk.model(), "a" * 300, "b" * 300, "c" * 900)
    assert [text[:9] for text in said] == ["AAAAAAAAA", "BBBBBBBBB", "never 413"]
    assert desk.sizes == [1, 1]


@pytest.mark.ci
@vendors
async def test_cancelled_runs(wire: str, tmp_path: Path) -> None:
    """A cancelled one does not affect the others; the last one cancels the batch at the provider, unless it should be
    kept.
    """
    found: list[Any] = []
    for keep in (False, True):
        async with Desk(wire, tmp_path, shout, BatchPlan(polls=10**6)) as desk:
            model = desk.model(keep_cancelled=keep, path=tmp_path / f"{keep}.db")
            await ready(model)
            runs = [asyncio.create_task(asked(model, text)) for text in "ab"]
            await until(lambda: bool(desk.server.batches) and desk.server.batches[0].polls > 0)
            runs[0].cancel()
            await asyncio.wait(runs[:1])
            found.append(desk.server.batches[0].status)
            runs[1].cancel()
            await asyncio.wait(runs)
            found.append(desk.server.batches[0].status)
            polls = desk.server.batches[0].polls
            again = asyncio.create_task(asked(model, "a"))
            await until(lambda polls=polls: len(desk.server.batches) == 2 or desk.server.batches[0].polls > polls)
            again.cancel()
            await asyncio.wait([again])
            found.append(len(desk.server.batches))
    assert found == ["in_progress", "cancelled", 2, "in_progress", "in_progress", 1]


async def test_nothing_is_sent_if_all_are_cancelled_in_the_window(tmp_path: Path) -> None:
    """A batch without runs is not submitted, and the next request begins another one."""
    async with Desk("openai", tmp_path, shout) as desk:
        model = desk.model()
        await ready(model)
        run = asyncio.create_task(asked(model, "a"))
        for _ in range(10):
            await asyncio.sleep(0)
        with pytest.raises(UsageError, match="are waiting"):
            model.close()
        run.cancel()
        await asyncio.wait([run])
        said = await asked(model, "b")
    assert (said, desk.sizes) == (["B"], [1])


@vendors
async def test_a_cost_limit_counts_the_price_of_batches(wire: str, tmp_path: Path) -> None:
    """`UsageLimits(cost=)` ends the run after the round that exceeds it."""

    @tool
    async def more() -> str:
        """Continue."""
        return "more"

    def think(request: WireRequest) -> WireReply:
        return WireReply("", calls=(ScriptedCall("more", {}),), usage=WireUsage(input=1_000_000, output=0))

    one = 0.5 if wire == "anthropic" else 0.125
    async with Desk(wire, tmp_path, think) as desk:
        agent = Agent("a", desk.model(), tools=[more], hooks=[UsageLimits(cost=one * 1.5)], default_hooks=())
        reply = await agent.call("Go.")
    assert (reply.outcome, reply.usage.cost, desk.sizes) == ("stopped", pytest.approx(2 * one), [1, 1])


@vendors
async def test_wrong_settings(wire: str, tmp_path: Path) -> None:
    """Headers of one request, wrong numbers and files that cannot be opened are refused."""
    async with Desk(wire, tmp_path, shout) as desk:
        for wrong in ({"window": -1}, {"poll": 0}, {"max_requests": 10**6}):
            with pytest.raises(UsageError):
                desk.model(**wrong)
        model = desk.model(path=tmp_path / "none" / "job.db")
        with pytest.raises(UsageError, match="cannot be opened"):
            await asked(model, "a")
        options = ModelOptions(extra={"extra_headers": {"x": "y"}})
        with pytest.raises(UsageError, match="no headers"):
            async for _ in desk.model().stream(ModelRequest([Msg.user("a")], (), options, "m")):
                pass
    assert desk.server.batches == []


PROGRAM = '''
import asyncio, sys
from agentflow import Agent
from agentflow.agent.orchestration import batch
from agentflow.models import AnthropicBatch, OpenAIBatch
from agentflow.tools import ToolContext, computer_tool, tool

@tool
async def double(n: int) -> int:
    """Double a number."""
    return 2 * n

async def main() -> None:
    wire, name, base, path = sys.argv[1:]
    made = AnthropicBatch if wire == "anthropic" else OpenAIBatch
    model = made(name, api_base=base, api_key="k", window=60, max_requests=3, poll=0.02, path=path)
    agent = Agent("doubler", model, tools=[double], default_hooks=())
    replies = await batch(agent, ["1", "2", "3"])
    print([reply.text for reply in replies], sum(reply.usage.cost for reply in replies))

asyncio.run(main())
'''


@pytest.mark.parametrize(
    ("wire", "moment"),
    [
        ("openai", "submitted"),
        ("openai", "created without an answer"),
        ("anthropic", "created without an answer"),
        ("responses", "second round"),
    ],
)
async def test_a_killed_process_is_continued_without_a_second_bill(
    wire: str, moment: str, tmp_path: Path, commands: Nursery
) -> None:
    """`kill -9` at three moments: the next start makes the same requests, and finds the batches that were submitted."""

    def think(request: WireRequest) -> WireReply:
        usage = WireUsage(input=1_000_000, output=0)
        if request.results:
            return WireReply(request.results[0].text, usage=usage)
        return WireReply("", calls=(ScriptedCall("double", {"n": int(request.user_text)}),), usage=usage)

    silent = moment == "created without an answer"
    plan = BatchPlan(polls=1 if silent else 10**6, unanswered=silent)
    program = tmp_path / "doubler.py"
    program.write_text(PROGRAM)
    with TemporaryFile() as printed:
        async with Desk(wire, tmp_path, think, plan) as desk:
            batches = desk.server.batches

            def start() -> int:
                arguments = (wire, NAMES[wire], desk.server.base_url, str(desk.path))
                return commands.start([str(program), *arguments], dict(os.environ), {1: printed.fileno()})

            async def submitted(number: int) -> None:
                await until(lambda: len(batches) == number and (silent or batches[-1].polls > 0))

            killed = start()
            await submitted(1)
            if moment == "second round":
                batches[0].polls = plan.polls
                await submitted(2)
            os.kill(killed, signal.SIGKILL)
            assert await asyncio.to_thread(commands.code, killed) == -signal.SIGKILL
            batches[-1].polls = plan.polls
            again = start()
            await until(lambda: len(batches) == 2)
            batches[-1].polls = plan.polls
            assert await asyncio.to_thread(commands.code, again) == 0
            printed.seek(0)
            said = printed.read()
    price = 3 * 2 * (0.5 if wire == "anthropic" else 0.125)
    assert (said.decode().strip(), desk.sizes) == (f"['2', '4', '6'] {price}", [3, 3])


@wires
async def test_a_reply_is_that_of_a_single_request(wire: str, tmp_path: Path) -> None:
    """Text, thoughts, calls, citations and the work of the vendor's tools are read from a complete reply as from a
    stream.
    """
    searched = wire != "openai"
    found = [{"type": "web_search_result", "url": "https://a.example", "title": "A", "encrypted_content": "x"}]
    reply = WireReply(
        "Sunny.",
        thinking="It is warm.",
        calls=(ScriptedCall("a", {"x": 1}, id="call_a"), ScriptedCall("b", {}, id="call_b")),
        cites=(Cite("https://a.example", "A", "sun"),) * searched,
        server=(ServerCall("web_search", {"query": "sun"}, found),) * searched,
        usage=WireUsage(input=10, output=5, cache_read=3),
    )
    tools = tuple([ToolSpec(name, "Does it.", {"type": "object", "properties": {}}) for name in "ab"])
    options = ModelOptions(server_tools=(ServerTool.web_search(),) if searched else None, thinking="low")
    async with Desk(wire, tmp_path, [reply, reply]) as desk:
        direct: Any = AnthropicWire if wire == "anthropic" else OpenAIWire
        models = [direct(NAMES[wire], api_base=desk.server.base_url, api_key="k"), desk.model()]
        request = ModelRequest([Msg.user("How is it?")], tools, options, "m")
        one, two = [fold([chunk async for chunk in model.stream(request)]) for model in models]
    assert plain(two) == plain(one)
    assert len(one.content) >= 4


def plain(message: Msg) -> str:
    """Return a message without its price, and without the number that the server gives each request."""
    fields = message.to_dict()
    fields["id"] = fields["usage"]["cost"] = None
    return re.sub(r"_wire_\d+", "_wire", str(fields))


@vendors
async def test_a_provider_that_is_not_there_for_a_while(wire: str, tmp_path: Path) -> None:
    """Failed polls are repeated, with growing waits; the batch is created once, even if the first answers are errors."""
    create = [429, 503, 200, 200] if wire == "anthropic" else [503, 200, 429, 503, 200, 200, 200]
    async with Desk(wire, tmp_path, shout, BatchPlan(statuses=[*create, *[500] * 30])) as desk:
        said = await asked(desk.model(retries=5), "a")
    assert (said, desk.sizes) == (["A"], [1])


@vendors
async def test_a_refused_batch_is_not_recorded(wire: str, tmp_path: Path) -> None:
    """After a refusal the next request makes a new batch, and does not look for the refused one."""
    async with Desk(wire, tmp_path, shout, BatchPlan(statuses=[401])) as desk:
        model = desk.model()
        said = await asked(model, "a") + await asked(model, "a")
    assert [text[:9] for text in said] == ["never 401", "A"]
    assert len(desk.server.other_requests) == (4 if wire == "anthropic" else 5)  # no list of batches


@vendors
async def test_a_batch_that_the_provider_deleted(wire: str, tmp_path: Path) -> None:
    """Its runs get an error; the next start sends the requests again."""
    async with Desk(wire, tmp_path, shout, BatchPlan(polls=10**6)) as desk:
        model = desk.model(keep_cancelled=True)
        run = asyncio.create_task(asked(model, "a"))
        await until(lambda: bool(desk.server.batches) and desk.server.batches[0].polls > 0)
        run.cancel()
        await asyncio.wait([run])
        desk.server.batches.clear()
        said = await asked(model, "a")
        again = asyncio.create_task(asked(model, "a"))
        await until(lambda: bool(desk.server.batches))
        desk.server.batches[0].polls = 10**6
        said += await again
    gone = "the provider no longer has the batch. Start the program again to send it in another batch."
    assert said == [f"never None: {wire}/{NAMES[wire]}: {gone}", "A"]


@vendors
async def test_two_event_loops(wire: str, tmp_path: Path) -> None:
    """A model may be used in one loop after another, but not in two at once; an open one cannot be closed."""
    async with Desk(wire, tmp_path, shout, BatchPlan(polls=10**6)) as desk:
        model = desk.model()
        run = asyncio.create_task(asked(model, "a"))
        await until(lambda: bool(desk.server.batches))
        with pytest.raises(UsageError, match="two event loops"):
            await asyncio.to_thread(asyncio.run, asked(model, "b"))
        with pytest.raises(UsageError, match="are waiting"):
            model.close()
        run.cancel()
        await asyncio.wait([run])
        desk.server.batches.clear()
        later = asyncio.create_task(asyncio.to_thread(asyncio.run, asked(model, "b")))
        await until(lambda: bool(desk.server.batches))
        desk.server.batches[0].polls = 10**6
        assert await later == ["B"]


def test_prices_of_batches() -> None:
    """The list's own prices, else half; tokens from a cache without a price of their own count as other input."""
    usage = Usage(input_tokens=300, cache_read_tokens=100, cache_write_tokens=100, output_tokens=100)
    single = {
        "input_cost_per_token": 4.0,
        "output_cost_per_token": 8.0,
        "cache_read_input_token_cost": 1.0,
        "cache_creation_input_token_cost": 6.0,
    }
    own = {"input_cost_per_token_batches": 3.0, "cache_read_input_token_cost_batches": 0.5}
    assert price(batch_prices(single), usage) == 100 * 2.0 + 100 * 2.0 + 100 * 3.0 + 100 * 4.0
    assert price(batch_prices(single | own), usage) == 100 * 3.0 + 100 * 0.5 + 100 * 3.0 + 100 * 4.0
    assert price(batch_prices({}), usage) is None
