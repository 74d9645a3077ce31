"""A durable agent with its worker in the same process: limits, failures, and what is refused."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, closing
from datetime import timedelta
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
from loguru import logger
from sqlalchemy import create_engine, text

from agentflow import Agent, Approve, Deny, MemoryStore, Msg, PreActing, Suspend, ToolUseBlock, on, tool
from agentflow.durable.agent import DurableAgent
from agentflow.durable.client import DurableClient
from agentflow.durable.records import Request, RunEvent, RunFailedError
from agentflow.durable.tables import Tables
from agentflow.durable.worker import QueueLimits
from agentflow.errors import CallTimeoutError, StoreError, UsageError
from agentflow.state.sql import SqlStore
from agentflow.testing import ScriptedModel
from agentflow.vocabulary.events import PreCall
from agentflow.vocabulary.facts import Injected


@asynccontextmanager
async def durable_agent(url: str, model: Any, **given: Any) -> AsyncIterator[DurableAgent]:
    """An agent named `a` on a database."""
    async with SqlStore(url) as store, DurableAgent(Agent("a", model, store=store, **given), url, poll=0.02) as made:
        yield made


@pytest.fixture
def file_url(tmp_path: Path) -> str:
    """A SQLite file."""
    return f"sqlite:///{tmp_path / 'runs.db'}"


async def test_one_id_is_one_run(url: str) -> None:
    """Submitted twice under one id, a call runs once; another call under that id is refused."""
    async with durable_agent(url, ScriptedModel(["once", "twice"])) as durable:
        await durable.submit("Hi", session="s", run_id="r")
        async with durable.worker(poll=0.02):
            first = await durable.call("Hi", session="s", run_id="r")
            again = await durable.call("Hi", session="s", run_id="r")
            with pytest.raises(UsageError, match="'r' was already submitted with other arguments"):
                await durable.submit("Bye", session="s", run_id="r")
            other = await durable.call("Hi", session="s")
    assert (first.text, again.text, other.text) == ("once", "once", "twice")


@pytest.mark.parametrize(("limits", "most"), [(QueueLimits(2), 2), (QueueLimits(4, everywhere=3), 3)])
async def test_no_more_calls_run_at_once_than_allowed(url: str, limits: QueueLimits, most: int) -> None:
    """With a limit for a worker or for all of them, the others wait, and all run; here each waits for the calls that
    run with it.
    """
    running = highest = 0
    full = asyncio.Event()

    @tool
    async def meet() -> str:
        """Wait until as many calls have arrived as may run."""
        nonlocal running, highest
        running += 1
        highest = max(highest, running)
        if running == most:
            full.set()
        await full.wait()
        await asyncio.sleep(0.1)  # a fifth one would come now
        running -= 1
        return "met"

    def answer(request: Any) -> Any:
        return "done" if request.messages[-1].role == "tool" else [ToolUseBlock("t", "meet")]

    async with durable_agent(url, ScriptedModel(answer), tools=[meet]) as durable:
        runs = [await durable.submit("Hi") for _ in range(2 * most)]
        async with durable.worker(limits=limits, poll=0.02), asyncio.timeout(30):
            replies = await asyncio.gather(*[durable.result(run_id) for run_id in runs])
    assert [reply.text for reply in replies] == ["done"] * 2 * most
    assert highest == most


async def test_no_more_calls_are_begun_in_a_period_than_allowed(file_url: str) -> None:
    """Two an hour: the third one stays in the queue, even after the first two have ended."""
    async with durable_agent(file_url, ScriptedModel(lambda request: "ok")) as durable:
        runs = [await durable.submit("Hi", run_id=f"r{n}") for n in range(3)]
        async with durable.worker(limits=QueueLimits(rate=(2, 3600.0)), poll=0.02), asyncio.timeout(30):
            done = [asyncio.ensure_future(durable.result(run_id)) for run_id in runs]
            ended: set[Any] = set()
            while len(ended) < 2:
                ended, _ = await asyncio.wait(done, return_when=asyncio.FIRST_COMPLETED, timeout=0.1)
            await asyncio.sleep(0.3)  # many polls
            assert sorted(info.status for info in await durable.runs()) == ["ended", "ended", "queued"]
            for waiting in done:
                waiting.cancel()


async def test_a_failed_call_raises_where_it_is_waited_for(file_url: str) -> None:
    """The worker continues, the caller gets the error's class and text, and the session takes the next call."""
    model = ScriptedModel([ValueError("out of paper"), "fine"])
    async with durable_agent(file_url, model) as durable, durable.worker(poll=0.02):
        with pytest.raises(RunFailedError, match="Run 'r' failed with ValueError: out of paper"):
            await durable.call("Hi", session="s", run_id="r")
        assert (await durable.call("Hi", session="s")).text == "fine"
        assert [(info.status, info.outcome) for info in await durable.runs()] == [
            ("ended", "completed"),
            ("ended", "failed"),
        ]


async def test_a_failure_is_passed_on_with_its_notes(file_url: str) -> None:
    """Such as the name of the hook that has failed."""

    @on(PreCall)
    def broken(event: PreCall) -> None:
        raise ValueError("no ink")

    async with durable_agent(file_url, ScriptedModel([]), hooks=[broken]) as durable, durable.worker(poll=0.02):
        with pytest.raises(RunFailedError) as caught:
            await durable.call("Hi", run_id="r")
    assert str(caught.value).startswith(
        "Run 'r' failed with ValueError: no ink (raised by hook broken (priority 100) on"
    )


async def test_a_denied_call_stores_nothing(file_url: str) -> None:
    """The reply has the reason; the session does not exist."""

    @on(PreCall)
    def refuse(event: PreCall) -> Deny:
        return Deny("closed today")

    async with durable_agent(file_url, ScriptedModel([]), hooks=[refuse]) as durable, durable.worker(poll=0.02):
        reply = await durable.call("Hi", session="s")
        assert (reply.outcome, reply.text) == ("denied", "closed today")


async def test_a_second_worker_starts_where_the_first_one_ended(file_url: str) -> None:
    """Workers may follow each other in a process; two at the same time are refused."""
    async with durable_agent(file_url, ScriptedModel(["1", "2"])) as durable:
        async with durable.worker(poll=0.02):
            assert (await durable.call("Hi", session="s")).text == "1"
            with pytest.raises(UsageError, match="This process has a worker already"):
                await durable.worker().__aenter__()
        async with durable.worker(poll=0.02):
            assert (await durable.call("Hi", session="s")).text == "2"


async def test_what_cannot_be_is_refused_with_what_can(tmp_path: Path, file_url: str) -> None:
    """Each error has the correction."""
    agent = Agent("a", ScriptedModel([]))
    with pytest.raises(UsageError, match=r"Agent\(..., store=SqlStore\(database_url\)\)"):
        DurableAgent(agent, file_url)
    with pytest.raises(UsageError, match="needs a store that all workers share"):
        DurableAgent(agent, file_url, store=MemoryStore())
    with pytest.raises(StoreError, match=r"'agentflow\.db' is not a database URL"):
        DurableClient("agentflow.db")  # before it is opened, and so before anything depends on it
    for wrong in ("nonsense", "sqlite://", "mysql://h/d"):
        with pytest.raises(StoreError, match=r"'sqlite:///agentflow\.db'"):
            await DurableClient(wrong).runs()
    with pytest.raises(StoreError, match="The folder must exist"):
        await DurableClient(f"sqlite:///{tmp_path / 'no' / 'where.db'}").runs()
    async with DurableClient(file_url) as client:
        with pytest.raises(UsageError, match="There is no run 'x' in this database"):
            await client.result("x")
        with pytest.raises(UsageError, match="and no slash"):
            await client.submit("a", "Hi", run_id="a/2")
        with pytest.raises(UsageError, match="The input is empty"):
            await client.submit("a", " ")
        with pytest.raises(UsageError, match="timeout=0"):
            await client.submit("a", "Hi", timeout=0)


async def test_tables_of_a_newer_agentflow_are_left_alone(file_url: str) -> None:
    """The error asks to upgrade an older client."""
    async with DurableClient(file_url) as client:
        assert await client.runs() == []
    engine = create_engine(file_url)
    with engine.begin() as connection:
        connection.execute(text("UPDATE agentflow_durable_schema SET version = 99"))
    engine.dispose()
    with pytest.raises(StoreError, match="have version 99; this agentflow supports versions up to 1"):
        await DurableClient(file_url).runs()


async def test_a_call_whose_session_was_written_by_somebody_else_goes_on_from_the_facts(file_url: str) -> None:
    """The store refuses the call's next fact; the worker reads the facts again and continues, and running tools have
    an unknown outcome.
    """
    runs = 0

    @tool
    async def meddle() -> str:
        """Write to the session as another process would."""
        nonlocal runs
        runs += 1
        async with SqlStore(file_url) as other:
            await other.append("s", [Injected("r", (Msg.user("psst"),))])
        return "done"

    def answer(request: Any) -> Any:
        results = [result for msg in request.messages for result in msg.tool_results]
        return results[0].text if results else [ToolUseBlock("t", "meddle")]

    async with durable_agent(file_url, ScriptedModel(answer), tools=[meddle]) as durable, durable.worker(poll=0.02):
        reply = await durable.call("Hi", session="s", run_id="r")
    assert (reply.outcome, runs) == ("completed", 1)
    assert "unknown" in reply.text.lower()


async def test_a_store_that_is_busy_for_long_fails_no_run(
    file_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store's file is locked by another process for longer than some attempts take: the run is tried until it is
    free.
    """
    monkeypatch.setattr("agentflow.durable.serving.MAX_PAUSE", 0.01)
    file = tmp_path / "store.db"
    tries: list[str] = []
    often = asyncio.Event()

    def count(said: str) -> None:
        tries.append(said)
        if len([one for one in tries if "retrying run" in one or "is retried" in one]) == 6:
            often.set()

    handler = logger.add(count, filter="agentflow.durable.serving", format="{level} {message}", level="TRACE")
    try:
        async with SqlStore(f"sqlite:///{file}", timeout=0.05) as store:
            await store.sessions()
            agent = Agent("a", ScriptedModel(["fine"]), store=store)
            with closing(sqlite3.connect(file, isolation_level=None)) as other:
                other.execute("BEGIN EXCLUSIVE")
                async with DurableAgent(agent, file_url, poll=0.02) as durable, durable.worker(poll=0.02):
                    await durable.submit("Hi", session="s", run_id="r")
                    await asyncio.wait_for(often.wait(), 30)
                    assert (await durable.client.run("r")).status == "running"
                    other.execute("ROLLBACK")
                    assert (await durable.result("r")).text == "fine"
    finally:
        logger.remove(handler)
    *failed, again = tries
    assert all("database is locked" in said for said in failed)
    assert [said for said in tries if not said.startswith("TRACE")] == [failed[0], again]
    assert failed[0].startswith("WARNING the store of agent 'a' cannot be used; it is retried")
    assert again.startswith("INFO the store of agent 'a' can be used again")


async def test_a_run_that_was_given_up_can_be_put_back(file_url: str) -> None:
    """A run with which too many workers have died is `lost`; its result says so, until it is resumed."""
    async with durable_agent(file_url, ScriptedModel(["found"])) as durable:
        await durable.submit("Hi", run_id="r")
        engine = create_engine(file_url)
        with engine.begin() as connection:  # what DBOS does after many deaths
            connection.execute(text("UPDATE workflow_status SET status = 'MAX_RECOVERY_ATTEMPTS_EXCEEDED'"))
        engine.dispose()
        assert [info.status for info in await durable.runs()] == ["lost"]
        with pytest.raises(RunFailedError, match="its workflow is MAX_RECOVERY_ATTEMPTS_EXCEEDED"):
            await durable.result("r")
        assert await durable.client.resume("r")
        async with durable.worker(poll=0.02):
            assert (await durable.result("r")).text == "found"
        assert not await durable.client.resume("r")


async def test_a_run_whose_workflow_failed_has_ended(file_url: str) -> None:
    """It is not `lost`, since it cannot be put back; it is deleted like other runs that have ended."""
    async with durable_agent(file_url, ScriptedModel([])) as durable:
        await durable.submit("Hi", run_id="r")
        engine = create_engine(file_url)
        with engine.begin() as connection:
            connection.execute(text("UPDATE workflow_status SET status = 'ERROR', updated_at = 0"))
        engine.dispose()
        assert [(info.status, info.outcome) for info in await durable.runs()] == [("ended", "failed")]
        with pytest.raises(RunFailedError, match="its workflow is ERROR"):
            await durable.result("r")
        assert not await durable.client.resume("r")
        assert (await durable.client.prune(older_than=timedelta(days=1))).runs == ["r"]


async def test_a_worker_with_nothing_to_report_logs_no_warning(file_url: str) -> None:
    """Its heartbeats, its search for dead workers and its shutdown succeed: a failure would only be logged."""
    warnings: list[Any] = []
    number = logger.add(warnings.append, level="WARNING", format="{message}")
    try:
        async with durable_agent(file_url, ScriptedModel(["Hello."])) as durable, durable.worker(poll=0.02):
            await durable.call("Hi")
    finally:
        logger.remove(number)
    assert warnings == []


async def test_a_call_with_a_time_limit(file_url: str) -> None:
    """It ends within the limit: completed, or with an error that names the limit."""

    @tool
    async def wait() -> str:
        await asyncio.Event().wait()
        return "never"

    model = ScriptedModel(["Hello.", ToolUseBlock("t1", "wait")])
    async with durable_agent(file_url, model, tools=[wait]) as durable, durable.worker(poll=0.02):
        assert (await durable.call("Hi", timeout=600)).text == "Hello."
        async with asyncio.timeout(60):
            with pytest.raises(CallTimeoutError, match=r"timeout=1\.2 s"):
                await durable.call("Wait", timeout=1.2)


async def test_a_call_that_is_cancelled_in_a_tool_has_the_reason_as_its_reply(file_url: str) -> None:
    """The model is not called after the tool."""
    begun = asyncio.Event()

    @tool
    async def wait() -> str:
        begun.set()
        await asyncio.Event().wait()
        return "never"

    model = ScriptedModel([ToolUseBlock("t1", "wait")])
    async with durable_agent(file_url, model, tools=[wait]) as durable, durable.worker(poll=0.02):
        await durable.submit("Wait", run_id="r")
        await begun.wait()
        assert await durable.cancel("r", "enough")
        reply = await durable.result("r")
    assert (reply.outcome, reply.text) == ("interrupted", "(interrupted: enough)")


async def test_a_decision_with_a_time_limit(file_url: str) -> None:
    """The limit counts from the decision: a call that is decided in time is completed."""

    @tool(requires_approval=True)
    async def pay() -> str:
        return "paid"

    model = ScriptedModel([ToolUseBlock("t1", "pay"), "Done."])
    async with durable_agent(file_url, model, tools=[pay]) as durable, durable.worker(poll=0.02):
        waits = await durable.call("Pay", run_id="r")
        assert waits.outcome == "suspended"
        await durable.decide("r", {waits.pending[0].id: Approve()}, timeout=600)
        reply = await durable.result("r")
    assert (reply.outcome, reply.text) == ("completed", "Done.")


async def test_a_run_may_wait_several_times_and_is_closed_for_its_readers_if_it_is_cancelled_then(
    file_url: str,
) -> None:
    """Each call of the run follows the one before: the stream ends, and the reply has the reason."""

    @tool(requires_approval=True)
    async def pay() -> str:
        return "paid"

    model = ScriptedModel([ToolUseBlock(f"t{n}", "pay") for n in range(3)])
    async with durable_agent(file_url, model, tools=[pay]) as durable, durable.worker(poll=0.02), asyncio.timeout(60):
        waits = await durable.call("Pay", run_id="r")
        for n in range(2):
            assert [pending.id for pending in waits.pending] == [f"t{n}"]
            await durable.decide("r", {f"t{n}": Approve()})
            waits = await durable.result("r")
        assert waits.outcome == "suspended"
        assert await durable.cancel("r", "enough")
        reply = await durable.result("r")
        calls = {event.data["call"]: None async for event in durable.stream("r") if "call" in event.data}
    assert (reply.outcome, reply.text) == ("interrupted", "(interrupted: enough)")
    assert list(calls) == ["r", "r/2", "r/3", "r/4"]


async def test_a_run_that_is_decided_while_it_is_cancelled_is_cancelled(
    file_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The decision's call takes the place of the call that would close the run, and ends without running the tool."""
    loop, cancel = asyncio.get_running_loop(), Tables.cancel

    @tool(requires_approval=True)
    async def pay() -> str:
        raise AssertionError

    def decided_first(tables: Tables, run_id: str, reason: str) -> None:
        asyncio.run_coroutine_threadsafe(durable.decide("r", {"t1": Approve()}), loop).result(60)
        cancel(tables, run_id, reason)

    monkeypatch.setattr(Tables, "cancel", decided_first)
    async with durable_agent(file_url, ScriptedModel([ToolUseBlock("t1", "pay")]), tools=[pay]) as durable:
        async with durable.worker(poll=0.02):
            await durable.call("Pay", run_id="r")
        assert await durable.cancel("r", "enough")
        async with durable.worker(poll=0.02):
            reply = await durable.result("r")
    assert (reply.outcome, reply.text) == ("interrupted", "(interrupted: enough)")


async def test_the_list_of_runs_does_not_depend_on_the_number_of_their_calls(file_url: str) -> None:
    """A run that was resumed many times hides no other run, and is listed with the time at which it was submitted."""

    @tool(requires_approval=True)
    async def pay() -> str:
        return "paid"

    model = ScriptedModel(["Hello.", *[ToolUseBlock(f"t{n}", "pay") for n in range(4)], "Done."])
    async with durable_agent(file_url, model, tools=[pay]) as durable, durable.worker(poll=0.02), asyncio.timeout(60):
        await durable.call("Hi", run_id="greeting")
        await durable.call("Pay", run_id="r")
        for n in range(4):
            await durable.decide("r", {f"t{n}": Approve()})
            await durable.result("r")
        both = [await durable.client.run(run_id) for run_id in ("r", "greeting")]
        assert await durable.runs(limit=1) == both[:1]
        assert await durable.runs(limit=2) == both
        assert await durable.runs() == both


async def test_a_run_that_is_cancelled_just_before_it_suspends_does_not_wait(file_url: str) -> None:
    """Its worker has not noticed the cancellation when the call suspends."""

    @tool
    async def pay() -> str:
        return "paid"

    @on(PreActing)
    async def ask(event: PreActing) -> Suspend:
        await durable.cancel("r", "enough")
        return Suspend("Pay?")

    model = ScriptedModel([ToolUseBlock("t1", "pay")])
    async with durable_agent(file_url, model, tools=[pay], hooks=[ask]) as durable, durable.worker(poll=5):
        reply = await durable.call("Pay", run_id="r")
    assert (reply.outcome, reply.text) == ("interrupted", "(interrupted: enough)")


async def test_a_worker_lets_its_calls_finish_within_the_grace(file_url: str) -> None:
    """They are completed when it has closed; no other worker has to repeat them."""
    begun = asyncio.Event()

    @tool
    async def work() -> str:
        begun.set()
        await asyncio.sleep(0.5)
        return "worked"

    model = ScriptedModel([ToolUseBlock("t1", "work"), "Done."])
    async with durable_agent(file_url, model, tools=[work]) as durable:
        async with durable.worker(poll=0.02, grace=4):
            await durable.submit("Work", run_id="r")
            await begun.wait()
        async with asyncio.timeout(20):
            assert (await durable.result("r")).text == "Done."


def test_an_agent_and_its_client_have_the_same_defaults() -> None:
    """Both do the same in the same way; for example they stream a run's events from the first."""
    compared = 0
    for name, of_client in vars(DurableClient).items():
        of_agent = getattr(DurableAgent, name, None)
        if name.startswith("_") or of_agent is None:
            continue
        defaults = [
            {one.name: one.default for one in signature(method).parameters.values() if one.default is not one.empty}
            for method in (of_client, of_agent)
        ]
        for option in defaults[0].keys() & defaults[1].keys():
            assert defaults[0][option] == defaults[1][option], (name, option)
            compared += 1
    assert compared >= 4
    assert signature(DurableClient.stream).parameters["since"].default == 0
    assert [signature(made).parameters["poll"].default for made in (DurableClient, DurableAgent)] == [0.1, 0.1]


def test_a_session_has_one_queue(url: str) -> None:
    """Each call, also a simultaneous one, gets the next number, once; other sessions have their own numbers."""
    tables = Tables(url)
    try:
        with ThreadPoolExecutor(4) as threads:
            numbers = list(threads.map(lambda _: tables.next_position("s"), range(12)))
        assert sorted(numbers) == [*range(1, 13)]
        assert [tables.next_position("other"), tables.next_position("s")] == [1, 13]
    finally:
        tables.dispose()


def test_a_worker_is_alive_until_its_time_is_over_or_it_leaves(url: str) -> None:
    """The time counts from each heartbeat."""
    tables = Tables(url)
    try:
        assert tables.alive() == frozenset()
        tables.beat("one", 60.0)
        tables.beat("other", 60.0)
        tables.beat("dead", -1.0)
        assert tables.alive() == {"one", "other"}
        tables.beat("dead", 60.0)
        tables.beat("one", -1.0)
        assert tables.alive() == {"other", "dead"}
        tables.leave("other")
        assert tables.alive() == {"dead"}
    finally:
        tables.dispose()


def test_a_run_keeps_the_first_reason_for_which_it_was_cancelled(url: str) -> None:
    """Also if many clients cancel it at the same time: no request fails."""
    tables = Tables(url)
    try:
        tables.cancel("r", "first")
        tables.cancel("r", "second")
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(tables.cancel, ["s"] * 8, ["same"] * 8))
        assert tables.cancelled(["r", "s", "t"]) == {"r": "first", "s": "same"}
    finally:
        tables.dispose()


@pytest.mark.parametrize("other", ["a", "z"])
def test_a_request_of_another_run_is_damaged(other: str) -> None:
    """Whichever name comes first."""
    stored = Request(other, "agent", "s").to_dict()
    assert Request.from_data(other, stored).run_id == other
    with pytest.raises(StoreError, match=f"'m' is damaged: it belongs to run '{other}'"):
        Request.from_data("m", stored)


@pytest.mark.parametrize("kind", ["ReasoningChunk", "ActingChunk", "PostReasoning", "ZChunk"])
def test_the_text_of_an_event_is_what_the_model_streams(kind: str) -> None:
    """Other events have none, whatever they contain."""
    event = RunEvent("r", 1, kind, {"incremental_chunk": {"text": "Hel"}})
    assert event.text == ("Hel" if kind == "ReasoningChunk" else "")


async def test_a_worker_can_be_started_again(file_url: str) -> None:
    """After it was stopped, it takes calls as before."""
    async with durable_agent(file_url, ScriptedModel(["one", "two"])) as durable:
        worker = durable.worker(poll=0.02)
        for text in ("one", "two"):
            async with worker:
                assert (await durable.call("Hi", session=text)).text == text


async def test_a_worker_that_was_started_again_notices_cancellations(file_url: str) -> None:
    """It watches the database as at its first start."""
    begun = asyncio.Event()

    @tool
    async def wait() -> str:
        begun.set()
        await asyncio.Event().wait()
        return "never"

    model = ScriptedModel(["one", ToolUseBlock("t1", "wait")])
    async with durable_agent(file_url, model, tools=[wait]) as durable:
        worker = durable.worker(poll=0.02)
        async with worker:
            assert (await durable.call("Hi")).text == "one"
        async with worker, asyncio.timeout(30):
            await durable.submit("Wait", run_id="r")
            await begun.wait()
            assert await durable.cancel("r", "enough")
            assert (await durable.result("r")).text == "(interrupted: enough)"
