"""An `App` over durable agents: any process starts a run, any worker runs it, and any process streams its events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from postgres import Postgres
from serve_client import LIMIT, Client, Gate, Sent, connected, sent_by, served
from starlette.requests import Request

from agentflow import Agent, ToolUseBlock, tool
from agentflow.durable.agent import DurableAgent
from agentflow.durable.publishing import EventPublisher
from agentflow.durable.tables import StoredMessage, Tables
from agentflow.errors import UsageError
from agentflow.serve import App, Limits, View
from agentflow.state.sql import SqlStore
from agentflow.testing import ScriptedModel
from agentflow.vocabulary.facts import Fact, Reasoned, ToolDecided, ToolFinished
from agentflow.vocabulary.messages import Msg, ToolResultBlock
from agentflow.vocabulary.ports.model import ModelRequest
from agentflow.vocabulary.specs import Usage
from benchmarks import serve_kills


@tool(requires_approval=True)
async def pay(euros: int) -> str:
    """Pay."""
    return f"paid {euros}"


def brain(request: ModelRequest) -> Any:
    """Greet, or pay."""
    last = request.messages[-1]
    if last.role == "tool":
        return ["done: ", last.tool_results[0].text]
    return ToolUseBlock("t1", "pay", {"euros": 3}) if "pay" in last.text else ["Hello ", last.text]


async def auth(request: Request) -> str | None:
    """Trust the header."""
    return request.headers["x-user"]


class Site:
    """Durable agents on one database, and the web processes (here: applications) that serve them."""

    def __init__(self, url: str, model: Any = brain) -> None:
        self.url = url
        self._model = model

    def agent(self) -> DurableAgent:
        """The agent, as a process makes it."""
        model = ScriptedModel(self._model)
        return DurableAgent(Agent("a", model, tools=[pay], store=SqlStore(self.url)), self.url, poll=0.02)

    @asynccontextmanager
    async def clients(self, *users: str, **limits: Any) -> AsyncIterator[list[Client]]:
        """A client for each user, each of another process."""
        async with AsyncExitStack() as opened:
            found: list[Client] = []
            for user in users:
                app = App(self.agent(), auth=auth if user else None, limits=Limits(**limits))
                place = await opened.enter_async_context(served(app))
                found.append(await opened.enter_async_context(connected(place, **{"X-User": user})))
            yield found

    @asynccontextmanager
    async def worker(self) -> AsyncIterator[None]:
        """A worker."""
        durable = self.agent()
        async with durable, durable.worker(poll=0.02, grace=1):
            yield


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """A site on SQLite."""
    return Site(f"sqlite:///{tmp_path / 'site.db'}")


def shown(events: list[Sent]) -> list[tuple[str, Any]]:
    """What is compared of events."""
    values = {"run": "run", "text": "text", "reply": "text", "tool": "state", "end": "outcome", "gap": "type"}
    return [(event.type, event.data[values[event.type]]) for event in events]


async def test_a_run_is_read_from_any_process_and_position(site: Site) -> None:
    """It waits for decisions, and continues under the same id; from each position another process sends what follows it."""
    async with site.worker(), site.clients("ada", "ada") as (one, two), asyncio.timeout(LIMIT):
        run = (await one.started("pay", session="s1"))["id"]
        asked = await two.events(run)
        body = {"action": "approve", "input": {"euros": 5}}
        again = await two.good("POST", "/agents/a/sessions/s1/resume", {"decisions": {"t1": body}})
        rest = await one.events(run, asked[-1].id)
        whole = await two.events(run)
        parts = [await one.events(run, event.id) for event in whole[:-1]]
        nothing = await two.ask("GET", f"/runs/{run}/events", last_event_id=whole[-1].id)
        history = await one.good("GET", "/agents/a/sessions/s1")
        listed = await two.good("GET", "/runs")
    assert shown(whole) == [
        ("run", run),
        ("tool", "running"),
        ("tool", "suspended"),
        ("end", "suspended"),
        ("run", run),
        ("tool", "running"),
        ("tool", "success"),
        ("text", "done: "),
        ("text", "paid 5"),
        ("reply", "done: paid 5"),
        ("end", "completed"),
    ]
    assert (asked, rest, again["id"]) == (whole[:4], whole[4:], run)
    assert parts == [whole[n + 1 :] for n in range(len(whole) - 1)]
    assert nothing == (204, None)
    assert (history["status"], history["messages"][-1]["text"]) == ("idle", "done: paid 5")
    assert [(one["id"], one["end"]["text"]) for one in listed] == [(run, "done: paid 5")]


async def test_a_request_that_is_repeated_starts_one_run(site: Site) -> None:
    """A client whose process died before its answer sends the same `Idempotency-Key` to another one."""
    async with site.clients("ada", "ada", "eve") as (one, two, eve), asyncio.timeout(LIMIT):
        first = await one.ask("POST", "/agents/a/runs", {"input": "Hi"}, Idempotency_Key="k")
        second = await two.ask("POST", "/agents/a/runs", {"input": "Hi"}, Idempotency_Key="k")
        other = await two.ask("POST", "/agents/a/runs", {"input": "Other"}, Idempotency_Key="k")
        foreign = await eve.ask("POST", "/agents/a/runs", {"input": "Hi"}, Idempotency_Key="k")
        listed = await one.good("GET", "/runs")
        async with site.worker():
            asks = [await one.ask("POST", "/agents/a/runs", {"input": "pay"}, Idempotency_Key="p")]
            await one.events(asks[0][1]["id"])  # it waits for a decision now
            asks.append(await two.ask("POST", "/agents/a/runs", {"input": "pay"}, Idempotency_Key="p"))
            plain = await two.ask("POST", "/agents/a/runs", {"input": "pay", "session": asks[0][1]["session"]})
    assert [(status, body["id"]) for status, body in asks] == [(202, asks[0][1]["id"])] * 2
    assert (plain[0], plain[1]["error"]["code"]) == (409, "suspended")
    assert first == second
    assert (first[0], other[0], other[1]["error"]["code"]) == (202, 409, "key_in_use")
    assert foreign[1]["id"] != first[1]["id"]
    assert [run["id"] for run in listed] == [first[1]["id"]]


async def test_limits_hold_for_all_processes_together(site: Site) -> None:
    """The runs of a user, of all, and of a session are counted in the database; no worker is there, so all are queued."""
    limits = {"runs": 2, "runs_per_user": 1}
    async with site.clients("ada", "ada", "bob", "eve", **limits) as (one, two, bob, eve), asyncio.timeout(LIMIT):
        run = (await one.started("Hi", session="s1"))["id"]
        refused = [await two.ask("POST", "/agents/a/runs", {"input": "Hi", "session": name}) for name in ("s1", "s2")]
        await bob.started("Hi")
        refused.append(await eve.ask("POST", "/agents/a/runs", {"input": "Hi"}))
        foreign = [
            await eve.ask("GET", f"/runs/{run}"),
            await eve.ask("GET", f"/runs/{run}/events"),
            await eve.ask("POST", f"/runs/{run}/interrupt", {}),
        ]
        others = [
            await one.ask("GET", f"/runs/{run}/events", last_event_id="nonsense"),
            await one.ask("GET", "/runs/%25"),
            await one.ask("POST", f"/runs/{run}/steer", {"text": "Stop"}),
            await one.ask(
                "POST", "/v1/chat/completions", {"model": "a", "messages": [{"role": "user", "content": "x"}]}
            ),
        ]
        listed = await eve.good("GET", "/runs")
    assert [(status, body["error"]["code"]) for status, body in refused] == [
        (409, "session_busy"),
        (429, "too_many_runs"),
        (503, "overloaded"),
    ]
    assert [status for status, _ in foreign] == [404] * 3
    assert [status for status, _ in others] == [400, 404, 202, 429]
    assert listed == []


async def test_a_run_is_ended_from_another_process(site: Site) -> None:
    """A running one is interrupted, a queued one does not run; a client that calls and disconnects interrupts its run."""
    gate = Gate()
    site = Site(site.url, lambda request: ["Hel", gate])
    async with site.clients("ada", "ada") as (one, two), asyncio.timeout(LIMIT):
        queued = (await one.started("Hi"))["id"]
        interrupted = await two.good("POST", f"/runs/{queued}/interrupt", {})
        async with site.worker():
            ends = [(await one.events(queued))[-1].data["outcome"]]
            headers = {"Accept": "text/event-stream"}
            async with one.http.post(f"{one.url}/agents/a/call", json={"input": "Hi"}, headers=headers) as response:
                events = sent_by(response)
                run = (await anext(events)).data["run"]
                await gate.reached.wait()
            ends.append((await two.events(run))[-1].data["outcome"])
    assert interrupted == {"interrupted": True}
    assert ends == ["interrupted", "interrupted"]


async def test_a_stream_ends_at_a_shutdown_and_continues_at_another_process(site: Site) -> None:
    """The process that stops ends its streams at once, without an end of the run."""
    gate = Gate()
    site = Site(site.url, lambda request: ["Hel", gate, "lo"])
    app = App(site.agent())
    async with site.worker(), site.clients("") as (two,), asyncio.timeout(LIMIT):
        async with served(app) as place, connected(place) as one:
            run = (await one.started("Hi"))["id"]
            async with one.stream(f"/runs/{run}/events") as response:
                first = []
                async for event in sent_by(response):
                    first.append(event)
                    if event.type == "text":
                        assert app._shutdown is not None
                        app._shutdown.begin()
            refused = await one.ask("POST", "/agents/a/runs", {"input": "Hi"})
        gate.open.set()
        rest = await two.events(run, first[-1].id)
        whole = await two.events(run)
    assert shown(first) == [("run", run), ("text", "Hel")]
    assert (refused[0], [*first, *rest], whole[-1].data["text"]) == (503, whole, "Helopened lo")


USE = ToolUseBlock("t1", "pay", {"euros": 3})
FACTS: list[Fact] = [
    Reasoned("r", 1, Msg("assistant", (USE,), id="m1"), Usage(), 1.0),
    ToolDecided("r", "t1", USE, None),
    ToolFinished("r", "t1", USE, ToolResultBlock("t1", "pay", [], "success"), 1.0),
    Reasoned("r", 2, Msg.assistant("Done."), Usage(), 1.0),
]


@pytest.mark.parametrize("written", range(len(FACTS) + 1))
async def test_the_next_attempt_writes_the_events_of_facts_that_have_none(site: Site, written: int) -> None:
    """However many events the worker that died had written, each fact has one event afterwards."""
    tables = Tables(site.url)
    for worker, facts in (("w1", FACTS[:written]), ("w2", FACTS), ("w3", FACTS)):
        async with EventPublisher(tables, "r", "r", worker) as publisher:
            await publisher.catch_up(facts)
    tables.dispose()
    async with site.agent() as durable:
        batches = await durable.client.batches("r", 0)
        batches = [*batches, *await durable.client.batches("r", batches[-1].last)]
    text = "".join(batch.body for batch in batches)
    kinds = ("RunTaken", "PostReasoning", "PreActing", "PostActing")
    assert [text.count(f'"type":"{kind}"') + text.count(f'"type": "{kind}"') for kind in kinds] == [3, 2, 1, 1]


@pytest.mark.ci
async def test_processes_are_killed_and_every_client_gets_its_whole_reply_once(postgres: Postgres) -> None:
    """Two web processes and two workers over PostgreSQL, killed with SIGKILL at random: each client has, over all its
    connections, the events of one connection that was never broken, and the replies of the history."""
    nursery = serve_kills.open_nursery()
    with postgres.database() as url:
        processes = serve_kills.Processes(url, 2.0, serve_kills.starter(nursery))
        try:
            effort = serve_kills.Effort(clients=10, seconds=5.0, lease=2.0, pause=(0.3, 0.8), dropped=0.05)
            report = await serve_kills.measure(processes, effort)
        finally:
            processes.end()
            nursery.end()
    assert (report.wrong, report.runs >= 10, processes.killed.total() >= 4) == ([], True, True)


def test_state_that_no_worker_publishes_is_refused(site: Site) -> None:
    """The error names the class and the argument that publishes it."""
    with pytest.raises(UsageError, match=r"has \['Site'\], which agent 'a' does not publish"):
        App(site.agent(), view=View(state=[Site]))


async def test_a_damaged_message_to_a_session_is_skipped(site: Site) -> None:
    """The run continues, and gets the others; a repeated message is not delivered twice."""
    tables = Tables(site.url)
    async with site.agent() as durable:
        await durable.client.submit("a", "Hi", session="s")
        sent = [await durable.client.send("s", Msg.user(text, id=key)) for text, key in (("one", "m1"), ("two", "m1"))]
        tables.send(StoredMessage("s", "m2", "{"))
        async with site.worker(), asyncio.timeout(LIMIT):
            await durable.call("Bye", session="s")
            history = await durable.agent.history(durable.agent.session("s"))
    tables.dispose()
    assert sent == [True, False]
    assert [msg.text for msg in history] == ["one", "Hi", "Hello Hi", "Bye", "Hello Bye"]
