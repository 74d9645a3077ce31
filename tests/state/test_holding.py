"""Facts that are written together: whatever a hook, a tool, a model or a reader sees is stored by then."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import pytest

import agentflow
from agentflow import (
    ActingChunk,
    Agent,
    Hook,
    HookEvent,
    MemoryStore,
    PreActing,
    ReasoningChunk,
    ToolUseBlock,
    after_tool_round,
    tool,
)
from agentflow.errors import StoreError
from agentflow.loop.session import full_session
from agentflow.testing import ScriptedModel
from agentflow.vocabulary.facts import Fact

BEGIN = ["CallOpened"]
REPLY, DECISION, START = "Reasoned", "ToolDecided", "ToolStarted"
RESULT, ROUND = "ToolFinished", "RoundClosed"
END = [REPLY, "CallClosed"]


class Writes(MemoryStore):
    """Records what was written together.

    Args:
        fails_at: The number of the write that fails.
        slow: Whether a write lets other tasks run first.
    """

    def __init__(self, fails_at: int | None = None, slow: bool = False) -> None:
        super().__init__()
        self.written: list[list[str]] = []
        self.fails_at = fails_at
        self.slow = slow

    def append(self, session_id: str, facts: Sequence[Fact], **known: Any) -> Awaitable[None] | None:
        """Record the kinds, and append the facts."""
        return self.append_slowly(session_id, facts, known) if self.slow else self.append_now(session_id, facts, known)

    async def append_slowly(self, session_id: str, facts: Sequence[Fact], known: dict[str, Any]) -> None:
        """Let other tasks run, such as the reader, before the facts are appended."""
        for _ in range(3):
            await asyncio.sleep(0)
        self.append_now(session_id, facts, known)

    def append_now(self, session_id: str, facts: Sequence[Fact], known: dict[str, Any]) -> Awaitable[None] | None:
        """Append the facts at once."""
        if len(self.written) == self.fails_at:
            self.fails_at = None
            raise StoreError("The disk is full.")
        self.written.append([type(fact).__name__ for fact in facts])
        return MemoryStore.append(self, session_id, facts, **known)


class Program:
    """An agent whose model and tools check, whenever they run, that everything is stored."""

    def __init__(
        self,
        *uses: str,
        hooks: Any = (),
        input: str = '{"n": 1}',  # noqa: A002
        fails_at: int | None = None,
        slow: bool = False,
    ) -> None:
        self.store = Writes(fails_at, slow)
        self.looks = 0
        self.before_look: Callable[[Any], Awaitable[None]] | None = None

        @tool
        async def look(n: int) -> str:
            """Look."""
            self.check()
            if self.before_look is not None:
                await self.before_look(n)
            self.looks += 1
            return "seen"

        @tool(lock=True)
        async def lock(n: int) -> str:
            """Look alone."""
            return await look.function(n)

        calls = [ToolUseBlock.from_json(f"c{n}", use, input) for n, use in enumerate(uses)]

        def brain(request: Any) -> Any:
            self.check()
            return "done" if request.messages[-1].role == "tool" else calls

        model = ScriptedModel(brain)
        self.agent = Agent("a", model, tools=[look, lock], hooks=hooks, store=self.store, default_hooks=())

    def check(self, *_: object) -> None:
        """Check that everything is stored."""
        link = full_session(self.agent.session("s")).link
        assert link is not None
        assert link.held == ()
        assert link.version == len(self.store.load("s"))

    async def call(self) -> list[list[str]]:
        """Run it, and return the kinds that were written together."""
        assert (await self.agent.call("go", session="s")).text == "done"
        return self.store.written


async def test_a_round_is_written_twice() -> None:
    """Before the effect: the reply, the decision and the start. After it: the result and the round's end."""
    assert await Program("look").call() == [BEGIN, [REPLY, DECISION, START], [RESULT, ROUND], END]


async def test_nothing_that_waits_is_held() -> None:
    """A tool that waits for its lock, an unknown tool, and parallel calls."""
    assert await Program("lock").call() == [BEGIN, [REPLY], [DECISION], [START], [RESULT, ROUND], END]
    assert await Program("none").call() == [BEGIN, [REPLY], [DECISION], [RESULT, ROUND], END]
    both = [[REPLY], [DECISION, START], [RESULT], [DECISION, START], [RESULT], [ROUND]]
    assert sorted(await Program("look", "look").call()) == sorted([BEGIN, *both, END])


async def test_arguments_that_do_not_fit() -> None:
    """The decision is stored before hooks get the error."""
    assert await Program("look", input="{}").call() == [BEGIN, [REPLY, DECISION], [RESULT, ROUND], END]


class Checks(Hook):
    """Checks at every event of some kinds."""

    def __init__(self, *kinds: Any) -> None:
        self.events = kinds
        self.seen = 0
        self.check: Callable[[], None] = lambda: None

    def on_event(self, event: HookEvent) -> HookEvent:
        """Check, unless a fact is being decided."""
        self.seen += 1
        self.check()
        return event


@pytest.mark.parametrize(
    "name", ["PreToolRound", "PreActing", "PostActing", "PostToolRound", "PostCall", "Error", "CallEnded"]
)
@pytest.mark.parametrize("tool_input", ['{"n": 1}', "{}"])
async def test_hooks_see_what_is_stored(name: str, tool_input: str) -> None:
    """Whichever event a hook handles, the facts before it are stored."""
    hook = Checks(getattr(agentflow, name))
    program = Program("look", hooks=[hook], input=tool_input)
    hook.check = program.check
    await program.call()
    assert hook.seen or (name == "Error" and tool_input != "{}")


FACTS = {"PostReasoning": REPLY, "PostActing": RESULT, "PostToolRound": ROUND, "PostCall": "CallClosed"}
"""The fact that a Post event shows."""


async def test_in_lock_step_each_fact_is_written_before_its_event() -> None:
    """With `buffer=0` the run stops at each event, so no fact waits for the next one."""
    program = Program("look")
    async with program.agent.stream("go", session="s", buffer=0) as events:
        async for _ in events:
            program.check()
    assert program.store.written == [BEGIN, [REPLY], [DECISION, START], [RESULT], [ROUND], [REPLY], ["CallClosed"]]


@pytest.mark.parametrize("slow", [False, True])
@pytest.mark.parametrize("buffer", [1, 2, 8])
async def test_a_reader_sees_only_what_is_stored(buffer: int, slow: bool) -> None:
    """A streamed round is written as often as one without a reader. The reader gets all events, in order, each after its
    fact is stored.
    """
    program = Program("look", "look" if buffer == 2 else "lock", slow=slow)
    plain = Program("look", slow=slow)
    seen: list[HookEvent] = []
    async with plain.agent.stream("go", session="s", buffer=buffer) as events:
        async for event in events:
            seen.append(event)
            fact = FACTS.get(type(event).__name__)
            shown = sum(FACTS.get(type(one).__name__) == fact for one in seen)
            assert fact is None or sum(kinds.count(fact) for kinds in plain.store.written) >= shown
    assert plain.store.written == [BEGIN, [REPLY, DECISION, START], [RESULT, ROUND], END]
    assert [event.seq for event in seen] == list(range(1, len(seen) + 1))
    # Several calls at once.
    assert [event.seq async for event in program.agent.stream("go", session="s", buffer=buffer)][-1] > len(seen)
    program.check()


@pytest.mark.parametrize("slow", [False, True])
@pytest.mark.parametrize("input", ['{"n": 1}', "{}"])  # with the second, the tool does not start
async def test_the_reader_gets_events_as_soon_as_they_are_stored(slow: bool, input: str) -> None:  # noqa: A002
    """While a tool or a hook runs, the reader has the events before it."""
    shown, waited = asyncio.Event(), 0
    program = Program("look", slow=slow, input=input)

    async def wait(_: Any) -> None:
        nonlocal waited
        async with asyncio.timeout(5):
            await shown.wait()
        waited += 1

    program.agent.on("on_error", wait)
    program.before_look = wait
    async with program.agent.stream("go", session="s") as events:
        async for event in events:
            if isinstance(event, PreActing):
                shown.set()
    assert waited == 1


async def test_parallel_calls_reach_the_reader_while_another_is_written() -> None:
    """While the store does not answer one call of a round, the reader gets the chunks of another."""
    produced, written_at = 0, 101
    streaming, shown = asyncio.Event(), asyncio.Event()

    class Hangs(Writes):
        """Does not write the second start before the reader has a later chunk of the first call."""

        async def append_slowly(self, session_id: str, facts: Sequence[Fact], known: dict[str, Any]) -> None:
            """Wait for the reader at the second start."""
            nonlocal written_at
            if START in [type(fact).__name__ for fact in facts] and any(START in kinds for kinds in self.written):
                written_at = produced
                async with asyncio.timeout(5):
                    await shown.wait()
            self.append_now(session_id, facts, known)

    @tool(type="read")
    async def streams(n: int) -> AsyncIterator[str]:
        """Stream."""
        nonlocal produced
        for _ in range(100):
            produced += 1
            streaming.set()
            await asyncio.sleep(0)
            yield f"{produced} "

    async def second_later(event: PreActing) -> None:
        if event.tool_use.id == "c1":
            await streaming.wait()

    calls = [ToolUseBlock.from_json(f"c{n}", "streams", '{"n": 1}') for n in range(2)]
    model = ScriptedModel([calls, "done"])
    agent = Agent("a", model, tools=[streams], hooks=[second_later], store=Hangs(slow=True), default_hooks=())
    async with agent.stream("go", session="s") as events:
        async for event in events:
            if isinstance(event, ActingChunk) and int(str(event.chunk)) > written_at:
                shown.set()
        assert (await events.reply()).text == "done"
    assert shown.is_set()


ASKED = ["PreCall", "PreReasoning", "PostReasoning", "PreToolRound", "PreActing"]
ACTED = [*ASKED, "PostActing", "PostToolRound", "PreReasoning", "PostReasoning"]
FAILED = {
    0: ["Error", "CallEnded"],
    1: [*ASKED, "Error", "PostToolRound", "CallEnded"],
    2: [*ASKED, "PostActing", "Error", "CallEnded"],
    3: [*ACTED, "Error", "CallEnded"],
}
"""The events of a call, by the number of the write that fails. The event whose own fact is missing is not shown."""


@pytest.mark.parametrize("slow", [False, True])
@pytest.mark.parametrize("at", FAILED)
async def test_the_reader_of_a_call_whose_write_fails(at: int, slow: bool) -> None:
    """The reader gets the events before the failure, the error and the last event."""
    program = Program("look", fails_at=at, slow=slow)
    seen: list[str] = []

    async def read() -> None:
        async for event in program.agent.stream("go", session="s"):
            seen.extend([type(event).__name__][isinstance(event, ReasoningChunk) :])

    with pytest.raises(StoreError, match="disk is full"):
        await read()
    assert seen == FAILED[at]


@pytest.mark.parametrize("slow", [False, True])
async def test_a_stream_that_is_closed_while_its_facts_are_written(slow: bool) -> None:
    """At whatever event the reader closes the stream, the next call finds a legal history."""
    for stop in range(1, 12):
        program = Program("look", slow=slow)
        async with program.agent.stream("go", session="s") as events:
            async for event in events:
                if event.seq == stop:
                    break
        program.check()
        assert (await program.agent.call("again", session="s")).text == "done"
        program.check()


class Around(Hook):
    """Wraps tools, and checks before and after them."""

    events = ()
    wraps = (PreActing,)
    check: Callable[..., None]

    def around(self, event: Any, source: Any) -> Any:
        """Check on both sides."""
        self.check()
        return source.tap(self.check)


async def test_a_wrapped_tool() -> None:
    """The decision is stored before a wrapping hook runs."""
    hook = Around()
    program = Program("look", hooks=[hook])
    hook.check = program.check
    assert await program.call() == [BEGIN, [REPLY], [DECISION], [START], [RESULT, ROUND], END]


@pytest.mark.parametrize("at", range(4))
async def test_a_write_that_fails(at: int) -> None:
    """The call fails, no tool runs whose start is not stored, and the next call continues from the store."""
    program = Program("look", fails_at=at)
    with pytest.raises(StoreError, match="disk is full"):
        await program.agent.call("go", session="s")
    assert program.looks == (at > 1)
    facts = len(program.store.load("s"))
    link = full_session(program.agent.session("s")).link
    assert link is not None
    assert not link.loaded
    if at:
        assert (await program.agent.resume(session="s")).outcome == "completed"
    else:
        assert (await program.agent.call("go", session="s")).text == "done"
    program.check()
    assert len(program.store.load("s")) > facts


async def test_a_hook_of_the_rounds_end() -> None:
    """With such a hook the result is stored before it, and the round's end after it."""
    program = Program("look", hooks=[after_tool_round(lambda event: program.check())])
    assert await program.call() == [BEGIN, [REPLY, DECISION, START], [RESULT], [ROUND], END]
