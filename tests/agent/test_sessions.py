"""Sessions: the implicit conversation, named sessions that queue, fresh ones, and many at a time."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from eventlog import Recorder, history, use

from agentflow import (
    Agent,
    Approve,
    CallEnded,
    MemoryStore,
    ModelRequest,
    Msg,
    PreReasoning,
    ReasoningChunk,
    Session,
    ToolUseBlock,
    on,
    tool,
)
from agentflow.errors import StoreError, UsageError
from agentflow.testing import ScriptedModel
from agentflow.testing.faults import Crash, ProcessDied


async def test_the_implicit_session_continues() -> None:
    """Calls without session= are one conversation."""
    model = ScriptedModel(["one", "two"])
    agent = Agent("a", model)
    await agent.call("1")
    await agent.call("2")
    assert [msg.text for msg in model.requests[1].messages] == ["1", "one", "2"]
    assert history(agent.session()) == ["user: 1", "assistant: one", "user: 2", "assistant: two"]


async def test_an_overlapping_call_is_refused() -> None:
    """A second call on the implicit session while one runs is a UsageError that names session=; nothing is fired."""
    gate = asyncio.Event()
    agent = Agent("a", ScriptedModel([[opened(gate), "one"]]))
    first = asyncio.create_task(_call(agent, "1"))
    await asyncio.sleep(0)
    with pytest.raises(UsageError) as caught:
        await agent.call("2")
    assert str(caught.value) == (
        "A call on agent 'a' overlaps with another one on its implicit session, which is one conversation. Await the "
        "first call, or use a separate session for each call: session='some-id' or session=Session.fresh()."
    )
    gate.set()
    assert await first == "one"


async def test_a_branch_goes_on_with_the_conversation() -> None:
    """It has a copy of its own, so calls on both do not overlap. It has the agent's current hooks."""
    gate, recorder = asyncio.Event(), Recorder()
    agent = Agent("a", ScriptedModel(["one", "two", [opened(gate), "three"]]))
    await agent.call("1")
    agent.hook(recorder)
    twin = agent.branch("b")
    await twin.call("2")
    assert history(agent.session()) == ["user: 1", "assistant: one"]
    assert history(twin.session()) == ["user: 1", "assistant: one", "user: 2", "assistant: two"]
    assert {event.session_id for event in recorder.seen} == {"b"}
    third = asyncio.create_task(_call(twin, "3"))
    await asyncio.sleep(0)
    with pytest.raises(UsageError, match="agent 'b' overlaps"):
        await asyncio.wait_for(twin.call("4"), 5)
    gate.set()
    assert await third == "three"


def opened(gate: asyncio.Event) -> Callable[[], Awaitable[None]]:
    """A line of a script that waits for a gate."""

    async def wait() -> None:
        await gate.wait()

    return wait


async def _call(agent: Agent, text: str, **options: Any) -> str:
    return (await agent.call(text, **options)).text


async def test_a_named_session_queues_first_come() -> None:
    """Calls in a named session run one after the other, in order of arrival."""
    agent = Agent("a", ScriptedModel(lambda request: request.messages[-1].text))
    tasks = [asyncio.create_task(_call(agent, str(i), session="s")) for i in range(5)]
    assert await asyncio.gather(*tasks) == list("01234")
    assert [msg.text for msg in agent.session("s").messages] == [c for i in range(5) for c in (str(i), str(i))]


async def test_a_cancelled_waiter_lets_the_next_one_in() -> None:
    """A call that is cancelled while it waits for its session is skipped; later ones run."""
    gate = asyncio.Event()
    script: list[Any] = [[opened(gate), "first"], "third"]
    agent = Agent("a", ScriptedModel(script))
    tasks = [asyncio.create_task(_call(agent, str(i), session="s")) for i in range(3)]
    await asyncio.sleep(0)
    tasks[1].cancel()
    await asyncio.sleep(0)
    gate.set()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert [results[0], type(results[1]), results[2]] == ["first", asyncio.CancelledError, "third"]
    assert history(agent.session("s")) == ["user: 0", "assistant: first", "user: 2", "assistant: third"]


async def test_sessions_run_in_parallel() -> None:
    """Calls in two sessions of one agent run at the same time."""
    inside: set[str] = set()
    both = asyncio.Event()

    @tool
    async def meet(who: str) -> str:
        """Wait for the other."""
        inside.add(who)
        if len(inside) == 2:
            both.set()
        await both.wait()
        return who

    def brain(request: Any) -> Any:
        last = request.messages[-1]
        return use("t1", "meet", who=last.text) if last.role == "user" else last.text

    agent = Agent("a", ScriptedModel(brain), tools=[meet])
    assert await asyncio.gather(_call(agent, "x", session="x"), _call(agent, "y", session="y")) == ["x", "y"]


async def test_fresh_sessions() -> None:
    """`Session.fresh()` shares nothing; `messages=` is its beginning."""
    model = ScriptedModel(["one", "two"])
    agent = Agent("a", model)
    await agent.call("1", session=Session.fresh())
    await agent.call("2", session=Session.fresh(messages=[Msg.user("before"), Msg.assistant("yes?")]))
    assert [[msg.text for msg in request.messages] for request in model.requests] == [["1"], ["before", "yes?", "2"]]
    assert history(agent.session()) == []


async def test_no_cross_talk() -> None:
    """50 concurrent streams on one agent, with tools and chunks: each has its own events only."""

    @tool(type="read")
    async def echo(text: str) -> str:
        """Echo."""
        await asyncio.sleep(0)
        return text

    def brain(request: Any) -> Any:
        last = request.messages[-1]
        if last.role == "user":
            return [use("t1", "echo", text=last.text), use("t2", "echo", text=last.text)]
        return [*last.tool_results[0].text, ""]

    agent = Agent("a", ScriptedModel(brain), tools=[echo])

    async def one(number: int) -> None:
        word = f"word{number}"
        said, ids, ended = "", set(), 0
        async with agent.stream(word, session=Session.fresh()) as events:
            async for event in events:
                ids.add((event.run_id, event.session_id))
                if isinstance(event, ReasoningChunk):
                    said += event.incremental_chunk.text
                    await asyncio.sleep(0)
                ended += isinstance(event, CallEnded)
        assert (said, len(ids), ended) == (word, 1, 1)

    await asyncio.gather(*(one(number) for number in range(50)))


@pytest.mark.parametrize("session", [None, "named"])
async def test_after_a_bare_break_the_next_call_waits(session: str | None) -> None:
    """After a bare break the next call on the session waits for the cleanup, and then works."""
    cleaned: list[str] = []

    @tool
    async def slow() -> str:
        """Never ends by itself."""
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            cleaned.append("tool")
        return ""

    agent = Agent("a", ScriptedModel([["x", use("t1", "slow")], "next"]), tools=[slow])

    async def reads() -> None:
        async for event in agent.stream("go", session=session):
            if type(event).__name__ == "PreActing":
                break

    await reads()
    async with asyncio.timeout(5):
        reply = await agent.call("again", session=session)
    assert reply.text == "next"
    assert history(agent.session(session))[2] == "tool: t1 interrupted 'Interrupted.'"


async def test_a_stream_that_is_never_iterated_does_nothing() -> None:
    """`agent.stream(...)` is cold: no call begins until it is read."""
    agent = Agent("a", ScriptedModel(["x"]))
    agent.stream("go")
    assert (await agent.call("go")).text == "x"


async def test_a_second_reader_is_refused() -> None:
    """Two tasks read one stream at the same time: the second one gets a UsageError, the first continues."""
    gate = asyncio.Event()
    agent = Agent("a", ScriptedModel([[opened(gate), "x"]]))
    stream = aiter(agent.stream("go"))
    await anext(stream)
    await anext(stream)
    first = asyncio.ensure_future(anext(stream))
    await asyncio.sleep(0)
    with pytest.raises(UsageError, match="one reader at a time"):
        await anext(stream)
    gate.set()
    assert isinstance(await first, ReasoningChunk)
    await stream.aclose()


async def test_sessions_of_a_store() -> None:
    """Another agent with the same store continues a named conversation."""
    store = MemoryStore()
    await Agent("a", ScriptedModel(["one"]), store=store).call("1", session="s")
    model = ScriptedModel(["two"])
    agent = Agent("a", model, store=store)
    await agent.call("2", session="s")
    assert [msg.text for msg in model.requests[0].messages] == ["1", "one", "2"]


@pytest.mark.parametrize("bad", [3, b"x", object()])
async def test_what_is_no_session(bad: Any) -> None:
    """session= takes an id or a Session."""
    with pytest.raises(UsageError, match="an id or a Session"):
        await Agent("a", ScriptedModel([])).call("go", session=bad)


@pytest.mark.parametrize("store", [None, MemoryStore()])
async def test_an_empty_id_is_refused(store: MemoryStore | None) -> None:
    """A missing id would let unrelated callers share a conversation."""
    agent = Agent("a", ScriptedModel(["one"]), store=store)
    with pytest.raises(UsageError, match="cannot be empty"):
        await agent.call("go", session="")
    assert (await agent.call("go")).text == "one"


async def test_a_forgotten_session_begins_anew() -> None:
    """`forget` removes a session from memory; a store's sessions are loaded again."""
    agent = Agent("a", ScriptedModel(["one", "two", "three"]))
    await agent.call("hi", session="s")
    assert agent.forget("s")
    assert not agent.forget("s")
    assert list(agent.session("s").messages) == []
    kept = Agent("a", ScriptedModel(["one"]), store=MemoryStore())
    await kept.call("hi", session="s")
    kept.forget("s")
    await kept.session("s").acquire("a")
    assert [m.text for m in kept.session("s").messages] == ["hi", "one"]


class SlowStore(MemoryStore):
    """Loads when it is released."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = asyncio.Event()
        self.go = asyncio.Event()
        self.broken = False

    async def load(self, session_id: str) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        self.asked.set()
        await self.go.wait()
        if self.broken:
            raise StoreError("the disk is gone")
        return super().load(session_id)


@pytest.mark.parametrize("read", [False, True], ids=["call", "stream"])
async def test_an_interrupt_that_comes_before_the_call_has_begun_is_kept_for_it(read: bool) -> None:
    """A call can be interrupted while its session is loaded: it begins, fires its events, calls no model and ends.
    The user's input is stored, and the next call is not interrupted.
    """
    store, recorder, model = SlowStore(), Recorder(), ScriptedModel(["answer"])
    agent = Agent("a", model, store=store, hooks=[recorder])
    call = agent.stream("go", session="s").to_list() if read else agent.call("go", session="s")
    task = asyncio.create_task(call)
    await store.asked.wait()
    assert agent.interrupt("s", "stop pressed")
    assert recorder.seen == []
    store.go.set()
    await task
    assert recorder.log == ["PreCall user: go", "CallEnded interrupted"]
    assert model.requests == []
    assert history(agent.session("s")) == ["user: go"]
    assert (await agent.call("again", session="s")).outcome == "completed"


async def test_an_interrupt_that_nobody_waits_for_is_not_kept() -> None:
    """Without a running or waiting call nothing is interrupted, now or later; nor is the next call if the waiting one
    has failed to begin.
    """
    store = SlowStore()
    agent = Agent("a", ScriptedModel(["one", "two"]), store=store)
    assert not agent.interrupt("s")
    task = asyncio.create_task(_call(agent, "go", session="s"))
    await store.asked.wait()
    assert agent.interrupt("s")
    store.broken = True
    store.go.set()
    with pytest.raises(StoreError, match="the disk is gone"):
        await task
    store.broken = False
    assert not agent.interrupt("s")
    assert (await agent.call("go", session="s")).text == "one"
    assert not agent.interrupt("s")
    assert (await agent.call("go", session="s")).text == "two"


async def test_a_call_that_is_cancelled_before_its_first_step_takes_no_session() -> None:
    """Nothing has begun, so nothing is held, and there is no warning of a dropped call: the next call runs."""
    agent = Agent("a", ScriptedModel(["hello"]))
    task = asyncio.create_task(agent.call("never", session="s"))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    del task
    assert not agent.session("s").busy
    assert (await agent.call("go", session="s")).text == "hello"


async def test_a_session_says_where_it_is() -> None:
    """Ready, running, suspended until a decision, and unfinished after a crash during its call."""
    seen: list[str] = []

    @on
    def look(event: PreReasoning) -> None:
        seen.append(agent.session("s").status)

    @tool(requires_approval=True)
    async def pay() -> str:
        """Pay."""
        return "paid"

    store = MemoryStore()
    agent = Agent("a", ScriptedModel([ToolUseBlock("t", "pay"), "ok"]), tools=[pay], hooks=[look], store=store)
    with pytest.raises(UsageError, match="status is"):
        _ = agent.session("s").status
    await agent.history("s")
    statuses = [agent.session("s").status]
    await agent.call("go", session="s")
    statuses.append(agent.session("s").status)
    await agent.resume("s", {"t": Approve()})
    statuses.append(agent.session("s").status)
    assert (statuses, seen) == (["idle", "suspended", "idle"], ["running", "running"])

    crash = Crash(at=3)
    cut = Agent("a", crash.model(ScriptedModel(["ok"])), store=crash.store(store))
    with pytest.raises(ProcessDied):
        await cut.call("go", session="cut")
    later = Agent("a", ScriptedModel(["ok"]), store=store)
    await later.history("cut")
    assert later.session("cut").status == "unfinished"
    await later.resume("cut")
    assert later.session("cut").status == "idle"


async def test_only_sub_agents_that_wait_are_saved_with_a_session() -> None:
    """Each is resumed from the saved session; those that have finished are not kept in it."""

    @tool(requires_approval=True)
    async def pay() -> str:
        """Pay."""
        return "paid"

    def asks(name: str, **arguments: Any) -> ScriptedModel:
        def say(request: ModelRequest) -> Any:
            if request.messages[-1].role == "tool":
                return "Done."
            return ToolUseBlock(f"{name}{len(request.messages)}", name, arguments)

        return ScriptedModel(say)

    def boss() -> Agent[Any]:
        clerk = Agent("clerk", asks("pay"), tools=[pay])
        return Agent("boss", asks("clerk", message="go"), tools=[clerk])

    saved = list[Any]()
    session = Session.fresh()
    for _ in range(2):
        reply = await boss().call("Go", session=session)
        saved.append(list(session.to_dict()["inner"]))
        session = Session.from_json(session.to_json())
        done = await boss().resume(session, decisions={reply.pending[0].id: Approve()})
        saved.append((done.text, "inner" in session.to_dict()))
    uses = [call.id for msg in session.messages for call in msg.tool_uses]
    assert saved == [uses[:1], ("Done.", False), uses[1:], ("Done.", False)]
