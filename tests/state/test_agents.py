"""Agents on a store: conversations that continue elsewhere, concurrent writers, and state that is kept."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, TypeAlias

import pytest
from eventlog import history, use
from loguru import logger
from nursery import Nursery
from pydantic import BaseModel

from agentflow import Agent, Approve, MemoryStore, Msg, RunContext, Session, on, tool
from agentflow.agent import sessions
from agentflow.errors import SessionConflictError, StoreError, UsageError
from agentflow.loop.history import fold_facts
from agentflow.state.sql import SqlStore
from agentflow.testing import ScriptedModel
from agentflow.vocabulary.events import PostCall, PreActing, PreReasoning
from agentflow.vocabulary.facts import CallOpened, CallResumed, Fact, turns_of
from agentflow.vocabulary.ports.store import SessionStore
from agentflow.vocabulary.saving.codec import fact_to_json

OpenStore: TypeAlias = Callable[..., SqlStore]


def echo(store: SessionStore | None, name: str = "a", **options: Any) -> Agent:
    """An agent that answers with the number of messages in its request."""
    return Agent(name, ScriptedModel(lambda request: f"{len(request.messages)}"), store=store, **options)


async def test_a_conversation_goes_on_elsewhere(store: SessionStore) -> None:
    """Another agent object with the same store continues the session, tool rounds included."""

    @tool
    async def add(a: int, b: int) -> int:
        """Add."""
        return a + b

    first = Agent("a", ScriptedModel([use("t1", "add", a=1, b=2), "3"]), tools=[add], store=store)
    await first.call("1 + 2?", session="s")
    second = echo(store)
    assert (await second.call("Sure?", session="s")).text == "5"
    assert history(second.session("s")) == [
        "user: 1 + 2?",
        "assistant: [t1:add(a=1, b=2)]",
        "tool: t1 success '3'",
        "assistant: 3",
        "user: Sure?",
        "assistant: 5",
    ]


async def test_two_agents_that_write_one_session(store: SessionStore) -> None:
    """An agent that has not seen what the other wrote gets a SessionConflictError, and nothing of that call is
    stored; its next call has loaded the session again.
    """
    one, two = echo(store, "one"), echo(store, "two")
    await one.call("1", session="s")
    await two.call("2", session="s")
    with pytest.raises(SessionConflictError, match="3 facts were known here, it has 6 facts now"):
        await one.call("3", session="s")
    await one.call("4", session="s")
    assert [m.text for m in one.session("s").messages] == ["1", "1", "2", "3", "4", "5"]
    assert await stored(store, "s") == ["1", "1", "2", "3", "4", "5"]


async def test_a_reader_that_leaves_a_suspended_call_takes_nothing_from_who_resumes_it(store: SessionStore) -> None:
    """The pending calls are stored when `PostCall` is delivered: after a cancellation then, `resume` continues."""

    @tool(requires_approval=True)
    async def delete(path: str) -> str:
        """Delete."""
        return f"deleted {path}"

    agent = Agent("a", ScriptedModel([use("t1", "delete", path="x"), "done"]), tools=[delete], store=store)
    async with agent.stream("delete x", session="s") as events:
        async for event in events:
            if isinstance(event, PostCall):
                break
    assert [waits.id for waits in agent.session("s").pending] == ["t1"]
    reply = await agent.resume("s", {"t1": Approve()})
    assert (reply.text, reply.outcome) == ("done", "completed")
    assert history(agent.session("s"))[2] == "tool: t1 success 'deleted x'"


async def stored(store: SessionStore, session_id: str) -> list[str]:
    data = await store.export(session_id)
    return [msg.text for msg in Session.from_dict(data).messages]


async def test_a_conflict_in_the_middle_of_a_call(store: SessionStore) -> None:
    """A concurrent writer is noticed at the next fact: the call fails, and only the other one's messages are stored."""
    other = echo(store, "other")

    @on(PreReasoning)
    async def meanwhile(event: PreReasoning) -> None:
        kept = store.append("s", [CallResumed("nobody", "x")])
        if kept is not None:
            await kept

    agent = echo(store, hooks=[meanwhile])
    with pytest.raises(SessionConflictError):
        await agent.call("1", session="s")
    with pytest.raises(UsageError, match=r"has an unfinished call .*agent\.resume"):
        await other.call("2", session="s")
    assert (await other.resume("s")).outcome == "completed"
    assert await stored(store, "s") == ["1", "1"]


async def test_sessions_of_two_stores_are_two(tmp_path: Path) -> None:
    """A session's id has a meaning within its store only."""
    async with SqlStore(f"sqlite:///{tmp_path / 'a.db'}") as a, SqlStore(f"sqlite:///{tmp_path / 'b.db'}") as b:
        await echo(a).call("1", session="s")
        assert (await echo(b).call("2", session="s")).text == "1"


async def test_calls_that_wait_for_each_other(open_store: OpenStore) -> None:
    """With on_conflict="wait" calls of several agents on one session run one after the other; none fails, and none is
    lost.
    """
    agents = [echo(open_store(on_conflict="wait"), f"a{n}") for n in range(3)]
    replies = await asyncio.gather(*[agent.call(f"{n}", session="s") for n in range(4) for agent in agents])
    assert sorted(int(reply.text) for reply in replies) == list(range(1, 25, 2))
    await agents[0].call("last", session="s")
    assert len(agents[0].session("s").messages) == 26


WRITER = """
import asyncio, sys
from agentflow import Agent
from agentflow.errors import SessionConflictError
from agentflow.state.sql import SqlStore
from agentflow.testing import ScriptedModel

async def main(url, name, on_conflict, calls):
    async with SqlStore(url, on_conflict=on_conflict) as store:
        agent = Agent(name, ScriptedModel(lambda request: f"re {request.messages[-1].text}"), store=store)
        conflicts = 0
        for n in range(int(calls)):
            while True:
                try:
                    await agent.call(f"{name}{n}", session="s")
                    break
                except SessionConflictError:
                    conflicts += 1
    print(conflicts)

asyncio.run(main(*sys.argv[1:]))
"""


async def test_processes_that_write_one_session(
    url: str, open_store: OpenStore, tmp_path: Path, commands: Nursery
) -> None:
    """Three processes with on_conflict="wait": every call is answered once, completely, and the facts of two calls
    are never mixed.
    """
    program = tmp_path / "writer.py"
    program.write_text(WRITER)
    with TemporaryFile() as printed:
        writers = [
            commands.start([str(program), url, name, "wait", "4"], dict(os.environ), {1: printed.fileno()})
            for name in ("x", "y", "z")
        ]
        assert [await asyncio.to_thread(commands.code, writer) for writer in writers] == [0, 0, 0]
        printed.seek(0)
        assert printed.read().split() == [b"0", b"0", b"0"]
    messages = [msg.text for msg in fold_facts(await open_store().load("s"))]
    asked = messages[::2]
    assert sorted(asked) == [f"{name}{n}" for name in "xyz" for n in range(4)]
    assert messages[1::2] == [f"re {text}" for text in asked]


async def test_parallel_tools_write_one_after_the_other(store: SessionStore) -> None:
    """Facts of parallel tools are written one after another; if another writer comes in between, the later ones are
    not written.
    """

    @tool(type="read")
    async def look(n: int) -> str:
        """Look."""
        return f"seen {n}"

    calls = [use(f"t{n}", "look", n=n) for n in range(8)]
    agent = Agent("a", ScriptedModel([calls, "ok"]), tools=[look], store=store)
    assert (await agent.call("Go", session="s")).text == "ok"
    assert await stored(store, "s") == ["Go", "", "".join(f"seen {n}" for n in range(8)), "ok"]

    @on(PreActing)
    async def meanwhile(event: PreActing) -> None:
        if event.tool_use.id == "t3":
            kept = store.append("t", [CallResumed("nobody", "x"), CallResumed("nobody", "y")])
            if kept is not None:
                await kept

    agent = Agent("a", ScriptedModel([calls, "ok"]), tools=[look], store=store, hooks=[meanwhile])
    with pytest.raises(SessionConflictError):
        await agent.call("Go", session="t")
    data = await store.export("t")
    kinds = [fact["kind"] for fact in data["facts"]]
    assert kinds[-2:] == ["call_resumed", "call_resumed"], kinds


async def test_an_approval_is_given_in_another_process(open_store: OpenStore) -> None:
    """A suspended session is resumed by another agent with another store object: finished tools do not run again."""
    ran: list[str] = []

    @tool(requires_approval=True)
    async def pay(cents: int) -> str:
        """Pay."""
        ran.append(f"pay {cents}")
        return "paid"

    @tool(type="read")
    async def balance() -> int:
        """Balance."""
        ran.append("balance")
        return 900

    first = open_store()
    model = ScriptedModel([[use("t1", "pay", cents=5), use("t2", "balance")]])
    reply = await Agent("a", model, tools=[pay, balance], store=first).call("Pay", session="s")
    assert reply.outcome == "suspended"
    await first.close()
    second = open_store()
    assert [(info.id, info.status) for info in await second.sessions()] == [("s", "suspended")]
    agent = Agent("a", ScriptedModel(["Done."]), tools=[pay, balance], store=second)
    reply = await agent.resume("s", {"t1": Approve()})
    assert (reply.text, reply.run_id, ran) == ("Done.", reply.run_id, ["balance", "pay 5"])
    assert [turn.name for turn in turns_of(await second.load("s"))] == ["balance", "pay"]


async def test_a_fork_within_a_round_is_resumed(store: SessionStore) -> None:
    """A fork that ends after a model's reply is a legal session: resume runs the round, and the original is
    unchanged.
    """

    @tool(type="read")
    async def look() -> str:
        """Look."""
        return "seen"

    agent = Agent("a", ScriptedModel([use("t1", "look"), "first"]), tools=[look], store=store)
    await agent.call("Go", session="s")
    await store.fork("s", "again", at=2)
    other = Agent("b", ScriptedModel(["second"]), tools=[look], store=store)
    assert (await other.resume("again")).text == "second"
    assert await stored(store, "again") == ["Go", "", "seen", "second"]
    assert await stored(store, "s") == ["Go", "", "seen", "first"]


# ---- typed state


@dataclass
class Cart:
    items: list[str] = field(default_factory=list)


class Profile(BaseModel):
    name: str = ""
    visits: int = 0


class Handle:
    """A value that JSON cannot hold."""


@on(PreReasoning)
def shopping(event: PreReasoning) -> None:
    event.context.session_state[Cart].items.append(f"item {len(event.input_messages)}")
    event.context.session_state[Profile].visits += 1


async def test_state_stays_with_its_session(store: SessionStore) -> None:
    """Dataclasses and pydantic models in `session_state` are there when another process continues."""
    await echo(store, hooks=[shopping]).call("1", session="s")
    agent = echo(store, hooks=[shopping])
    await agent.call("2", session="s")
    state = agent.session("s").state
    assert (state[Cart], state[Profile]) == (Cart(["item 1", "item 3"]), Profile(visits=2))


async def test_a_fork_has_the_state_of_its_point(store: SessionStore) -> None:
    """State is stored with the facts: a fork has the state of its last fact."""
    agent = echo(store, hooks=[shopping])
    reply = await agent.call("1", session="s")
    await agent.call("2", session="s")
    await store.fork("s", "earlier", at=reply.run_id)
    other = echo(store)
    await other.call("x", session="earlier")
    assert other.session("earlier").state[Profile] == Profile(visits=1)


async def test_state_that_does_not_change_is_written_once(store: SessionStore) -> None:
    """State is written if it has changed, not with each call."""
    agent = echo(store)
    agent.session("s").state[Profile] = Profile(name="Ada")
    await agent.call("1", session="s")
    await agent.call("2", session="s")
    data = await store.export("s")
    assert [fact["kind"] for fact in data["facts"]].count("state_kept") == 1


async def test_state_that_cannot_be_written(store: SessionStore) -> None:
    """A warning names it, once; the rest is stored and the call continues."""
    said: list[str] = []
    sink = logger.add(lambda message: said.append(message.record["message"]), level="WARNING")
    logger.enable("agentflow")
    agent = echo(store)
    state = agent.session("s").state
    state[Handle] = Handle()
    state[Profile].name = "Ada"
    await agent.call("1", session="s")
    await agent.call("2", session="s")
    logger.remove(sink)
    assert said == [
        (
            f"The state {__name__}:Handle of session 's' is not stored: pydantic cannot serialize it. Use dataclasses or "
            "pydantic models."
        )
    ]
    other = echo(store)
    await other.call("3", session="s")
    assert (other.session("s").state[Profile].name, Handle in other.session("s").state) == ("Ada", False)


async def test_state_whose_class_has_changed(store: SessionStore) -> None:
    """Stored state that does not fit its class is a StoreError when it is read."""
    agent = echo(store)
    agent.session("s").state[Profile] = Profile(name="Ada")
    await agent.call("1", session="s")
    data = json.loads(json.dumps(await store.export("s")).replace('"visits": 0', '"visits": "many"'))
    session = Session.from_dict(data)
    with pytest.raises(StoreError, match=r"state of .*:Profile no longer fits the class"):
        session.state[Profile]


# ---- a session as data


async def test_a_session_there_and_back() -> None:
    """Messages, compaction and state of a session without a store survive JSON text."""
    agent = echo(None, hooks=[shopping])
    session = Session.fresh([Msg.user("before"), Msg.assistant("yes")], id="s")
    await agent.call("1", session=session)
    again = Session.from_json(session.to_json())
    assert (again.id, list(again.messages), again.pending) == ("s", list(session.messages), ())
    assert again.state[Cart] == Cart(["item 3"])
    assert (await echo(None).call("2", session=again)).text == "5"


async def test_a_compacted_session_there_and_back() -> None:
    """The replacement of the first messages is used after loading too."""

    @on(PostCall)
    def compact(event: PostCall) -> None:
        event.context.compact(2, "the summary")

    agent = echo(None, hooks=[compact])
    session = Session.fresh([Msg.user("a"), Msg.assistant("b")])
    await agent.call("c", session=session)
    model = ScriptedModel(["ok"])
    await Agent("b", model).call("d", session=Session.from_dict(session.to_dict()))
    assert [msg.text for msg in model.requests[0].messages] == ["the summary", "c", "3", "d"]


@dataclass
class Seen:
    calls: int = 0


async def test_a_suspended_session_is_resumed_from_a_file(tmp_path: Path) -> None:
    """Saved in one process, resumed in another: finished tools do not run again, and budget, trace and run state
    continue.
    """
    ran: list[str] = []

    @tool(requires_approval=True)
    async def pay(cents: int, context: RunContext) -> str:
        """Pay."""
        ran.append(f"pay {cents}")
        return f"{context.state[Seen].calls} {[turn.name for turn in context.trace.turns]}"

    @tool(type="read")
    async def look() -> str:
        """Look."""
        ran.append("look")
        return "seen"

    @on(PreActing)
    def count(event: PreActing) -> None:
        event.context.state[Seen].calls += 1

    script = [[use("t1", "pay", cents=5), use("t2", "look")]]
    agent = Agent("a", ScriptedModel(script), tools=[pay, look], hooks=[count])
    session = Session.fresh([Msg.user("before"), Msg.assistant("hm")], id="s")
    reply = await agent.call("Pay", session=session)
    path = tmp_path / "session.json"
    path.write_text(session.to_json())

    loaded = Session.from_json(path.read_text())
    assert loaded.pending == session.pending
    again = Agent("a", ScriptedModel(["Done."]), tools=[pay, look], hooks=[count], max_iterations=5)
    resumed = await again.resume(loaded, {"t1": Approve(input={"cents": 4})})
    assert (resumed.text, resumed.run_id, ran) == ("Done.", reply.run_id, ["look", "pay 4"])
    assert history(loaded) == [
        "user: before",
        "assistant: hm",
        "user: Pay",
        "assistant: [t1:pay(cents=5)] [t2:look()]",
        "tool: t1 success \"3 ['look']\"; t2 success 'seen'",
        "assistant: Done.",
    ]


async def test_a_saved_session_moves_into_a_store(store: SessionStore) -> None:
    """`store.import_(session.to_dict())`: an agent with that store continues, suspended or not."""

    @tool(requires_approval=True)
    async def pay() -> str:
        """Pay."""
        return "paid"

    session = Session.fresh([Msg.user("before"), Msg.assistant("hm")], id="s")
    session.state[Profile] = Profile(name="Ada")
    await Agent("a", ScriptedModel([use("t1", "pay")]), tools=[pay]).call("Pay", session=session)
    assert await store.import_(session.to_dict()) == "s"
    agent = Agent("a", ScriptedModel(["Done."]), tools=[pay], store=store)
    assert (await agent.resume("s", {"t1": Approve()})).text == "Done."
    assert await stored(store, "s") == ["before", "hm", "Pay", "", "paid", "Done."]
    assert agent.session("s").state[Profile].name == "Ada"


async def test_what_cannot_be_saved() -> None:
    """A running session, and state that JSON cannot hold, are refused with the remedy."""
    gate = asyncio.Event()

    async def wait() -> None:
        await gate.wait()

    agent = Agent("a", ScriptedModel([["x", wait, "y"]]))
    running = asyncio.ensure_future(_text(agent, "s"))
    await asyncio.sleep(0)
    with pytest.raises(UsageError, match=r"Session 's' is running a call\. Save it after the call has ended"):
        agent.session("s").to_dict()
    gate.set()
    await running
    agent.session("s").state[Handle] = Handle()
    with pytest.raises(UsageError, match=r"pydantic cannot serialize .*:Handle"):
        agent.session("s").to_dict()
    with pytest.raises(
        UsageError, match=r"has not been loaded from its store yet\. Save it there: await store\.export"
    ):
        echo(MemoryStore()).session("s").to_dict()


async def _text(agent: Agent, session: str) -> str:
    return (await agent.call("go", session=session)).text


def test_what_is_no_saved_session() -> None:
    """Text that is not JSON, and facts that do not fit together, are StoreErrors."""
    with pytest.raises(StoreError, match="it is not JSON"):
        Session.from_json("{")
    data = Session.fresh(id="s").to_dict()
    twice: list[Fact] = [CallOpened("r", "c", (Msg.user("q"),), 1)] * 2
    data["facts"] = [json.loads(fact_to_json(fact)) for fact in twice]
    with pytest.raises(StoreError, match=r"The saved session 's' is inconsistent: A fact CallOpened is not legal"):
        Session.from_dict(data)


async def test_stored_facts_that_do_not_fit_together(store: SessionStore) -> None:
    """The session is refused, with how to save its valid part; the store's other sessions work."""
    kept = store.append("s", [CallOpened("r", "c", (Msg.user("q"),), 1), CallOpened("r", "d", (Msg.user("q"),), 1)])
    if kept is not None:
        await kept
    agent = echo(store)
    with pytest.raises(StoreError, match=r"facts of session 's' are inconsistent: .*store\.fork\('s', 'new-id', at="):
        await agent.call("1", session="s")
    assert (await agent.call("1", session="t")).text == "1"


async def test_a_sub_agent_that_waits_comes_along(store: SessionStore) -> None:
    """Fork, export, import and rename include the session of a waiting sub-agent: resumed, it continues where it was.
    Delete includes it too.
    """
    paid: list[int] = []

    @tool(requires_approval=True)
    async def pay(cents: int) -> str:
        """Pay."""
        paid.append(cents)
        return "paid"

    def agents(*, begun: bool) -> Agent:
        inner: list[Any] = ["It is paid."] if begun else [use("i1", "pay", cents=5), "It is paid."]
        outer: list[Any] = ["All done."] if begun else [use("t1", "clerk", message="pay 5"), "All done."]
        clerk = Agent("clerk", ScriptedModel(inner), tools=[pay], store=store)
        return Agent("boss", ScriptedModel(outer), tools=[clerk.as_tool()], store=store)

    reply = await agents(begun=False).call("Pay", session="s")
    assert [waits.id for waits in reply.pending] == ["t1/i1"]
    await store.fork("s", "fork")
    await store.import_(json.loads(json.dumps(await store.export("s"))), "copy")
    await store.rename("copy", "renamed")
    for session in ("fork", "renamed", "s"):
        assert (await agents(begun=True).resume(session, {"t1/i1": Approve()})).text == "All done."
    assert paid == [5, 5, 5]
    assert await store.delete("s")
    assert sorted(info.id for info in await store.sessions()) == ["fork", "fork/t1", "renamed", "renamed/t1"]


async def test_sessions_of_sub_agents_at_all_depths_are_renamed_and_deleted(store: SessionStore) -> None:
    """Those of finished calls too; a session of a user stays, whose id only begins like one of them."""

    def agent(name: str, *script: Any, tools: Sequence[Any] = ()) -> Agent:
        return Agent(name, ScriptedModel(lambda request: script[len(request.messages) > 1]), tools=tools, store=store)

    low = agent("low", "Low.", "Low.")
    middle = agent("middle", use("m1", "low", message="?"), "Middle.", tools=[low.as_tool()])
    top = agent("top", use("t1", "middle", message="?"), "Top.", tools=[middle.as_tool()])
    await top.call("Go", session="s")
    for session in ("s/x", "s/t10", "S/t1"):
        await low.call("Go", session=session)
    others = ["S/t1", "s/t10", "s/x"]
    await store.rename("s", "new")
    assert sorted(info.id for info in await store.sessions()) == ["S/t1", "new", "new/t1", "new/t1/m1", *others[1:]]
    await low.call("Go", session="s")
    with pytest.raises(StoreError, match="exists already"):
        await store.rename("new", "s")
    assert await store.delete("new")
    assert sorted(info.id for info in await store.sessions()) == ["S/t1", "s", *others[1:]]


async def test_a_rename_overwrites_no_session_of_a_sub_agent(store: SessionStore) -> None:
    """It is refused as a whole."""
    low = echo(store, "low")
    top = Agent("top", ScriptedModel([use("t1", "low", message="?"), "ok"]), tools=[low.as_tool()], store=store)
    await top.call("Go", session="s")
    await low.call("Go", session="new/t1")
    with pytest.raises(StoreError, match="exists already"):
        await store.rename("s", "new")
    assert sorted(info.id for info in await store.sessions()) == ["new/t1", "s", "s/t1"]


# ---- what is held in memory


async def test_a_stored_history_is_read(store: SessionStore) -> None:
    """`history` returns the stored messages, also those that others wrote since; a session that is not loaded does
    not seem empty.
    """
    first, second = echo(store), echo(store)
    await first.call("a", session="s")
    for read in (lambda: second.session("s").messages, lambda: second.session("s").pending):
        with pytest.raises(
            UsageError, match=r"'s' has not been loaded from its store yet.*await agent\.history\('s'\)"
        ):
            read()
    assert [msg.text for msg in await second.history("s")] == ["a", "1"]
    assert [msg.text for msg in second.session("s").messages] == ["a", "1"]
    await first.call("b", session="s")
    assert [msg.text for msg in await second.history(second.session("s"))] == ["a", "1", "b", "3"]
    assert (await second.call("c", session="s")).text == "5"
    assert await second.history("nobody") == ()
    assert len(second.session("nobody").messages) == 0
    assert await echo(None).history() == ()


async def test_a_history_while_a_call_runs(store: SessionStore) -> None:
    """It returns what the call knows; a call that begins while the implicit conversation is read waits for that."""
    seen: list[list[str]] = []

    @tool
    async def look() -> str:
        """Look."""
        seen.append([msg.text for msg in await agent.history()])
        return "seen"

    agent = Agent("a", ScriptedModel([use("t1", "look"), "over", "again"]), tools=[look], store=store)
    await agent.call("go")
    assert seen == [["go", ""]]
    other = Agent("a", ScriptedModel(["more"]), store=store)
    found, reply = await asyncio.gather(other.history(), other.call("and?"))
    assert ([msg.text for msg in found], reply.text) == (["go", "", "seen", "over"], "more")


async def test_what_a_stored_session_waits_for(store: SessionStore) -> None:
    """In the next process `history` loads it, and it can be answered."""

    @tool(requires_approval=True)
    async def pay() -> str:
        """Pay."""
        return "paid"

    await Agent("a", ScriptedModel([use("t1", "pay")]), tools=[pay], store=store).call("go", session="s")
    agent = Agent("a", ScriptedModel(["over"]), tools=[pay], store=store)
    await agent.history("s")
    assert [waits.id for waits in agent.session("s").pending] == ["t1"]
    assert (await agent.resume("s", {"t1": Approve()})).text == "over"


async def test_state_of_a_waiting_run_outlives_reading(store: SessionStore) -> None:
    """The run's own state, which no store has, is still there after the history of a waiting session was read."""

    @dataclass
    class Seen:
        words: list[str] = field(default_factory=list)

    @on("before_each_tool")
    def note(event: PreActing) -> None:
        event.context.state[Seen].words.append("tool")

    @tool(requires_approval=True)
    async def pay(context: RunContext) -> str:
        """Pay."""
        return str(context.state[Seen].words)

    agent = Agent("a", ScriptedModel([use("t1", "pay"), "over"]), tools=[pay], hooks=[note], store=store)
    await agent.call("go", session="s")
    await agent.history("s")
    await agent.resume("s", {"t1": Approve()})
    assert agent.session("s").messages[2].text == "['tool', 'tool']"


@pytest.fixture
def limit(monkeypatch: pytest.MonkeyPatch) -> int:
    """How many sessions an agent holds: fewer than usual."""
    monkeypatch.setattr(sessions, "HELD", 64)
    return sessions.HELD


async def test_idle_sessions_are_let_go(store: SessionStore, limit: int) -> None:
    """An agent with a store holds the sessions that were used last; others continue from the store; without a store
    none is dropped.
    """
    agent, alone = echo(store), echo(None)
    for n in range(limit + 20):
        await agent.call("hi", session=f"s{n}")
        await alone.call("hi", session=f"s{n}")
    await agent.call("hi", session="s25")
    for n in range(10):
        await agent.call("hi", session=f"more{n}")
    gc.collect()
    held = [n for n in range(limit + 20) if agent.forget(f"s{n}")]
    assert held == [25, *range(31, limit + 20)]
    assert (await agent.call("hi", session="s0")).text == "3"
    assert all(len(alone.session(f"s{n}").messages) == 2 for n in range(limit + 20))


async def test_sessions_that_somebody_needs_are_not_let_go(store: SessionStore, limit: int) -> None:
    """A session that runs a call, one that waits for a decision, and one with other references stay the same object."""
    begun, go = asyncio.Event(), asyncio.Event()

    @tool(requires_approval=True)
    async def pay() -> str:
        """Pay."""
        return "paid"

    @tool
    async def rest() -> str:
        """Rest."""
        begun.set()
        await go.wait()
        return "rested"

    def brain(request: Any) -> Any:
        text = request.messages[-1].text
        return {"pay": use("t1", "pay"), "rest": use("t2", "rest")}.get(text, "over")

    agent = Agent("a", ScriptedModel(brain), tools=[pay, rest], store=store)
    held = agent.session("held")
    waits = weakref.ref(agent.session("waits"))
    await agent.call("pay", session="waits")
    running = asyncio.create_task(agent.call("rest", session="runs"))
    await begun.wait()
    for n in range(limit + 1):
        await agent.call("hi", session=f"s{n}")
    gc.collect()
    assert agent.session("held") is held
    assert agent.session("waits") is waits()
    assert agent.session("runs").busy
    assert agent.interrupt("runs")
    assert (await running).outcome == "interrupted"
    assert (await agent.resume("waits", {"t1": Approve()})).text == "over"
