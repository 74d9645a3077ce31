"""Facts that are written together: whatever a hook, a tool, a model or a reader sees is stored by then."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

import agentflow
from agentflow import Agent, Hook, HookEvent, MemoryStore, PreActing, ToolUseBlock, after_tool_round, tool
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
    """

    def __init__(self, fails_at: int | None = None) -> None:
        super().__init__()
        self.written: list[list[str]] = []
        self.fails_at = fails_at

    def append(self, session_id: str, facts: Sequence[Fact], **known: Any) -> Awaitable[None] | None:
        """Record the kinds, and append the facts."""
        if len(self.written) == self.fails_at:
            self.fails_at = None
            raise StoreError("The disk is full.")
        self.written.append([type(fact).__name__ for fact in facts])
        return super().append(session_id, facts, **known)


class Program:
    """An agent whose model and tools check, whenever they run, that everything is stored."""

    def __init__(self, *uses: str, hooks: Any = (), input: str = '{"n": 1}', fails_at: int | None = None) -> None:  # noqa: A002
        self.store = Writes(fails_at)
        self.looks = 0

        @tool
        async def look(n: int) -> str:
            """Look."""
            self.check()
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


async def test_the_reader_sees_what_is_stored() -> None:
    """A reader gets no decision that a crash could undo."""
    program = Program("look")
    async with program.agent.stream("go", session="s", buffer=0) as events:
        async for _ in events:
            program.check()
    assert program.store.written == [BEGIN, [REPLY], [DECISION, START], [RESULT], [ROUND], [REPLY], ["CallClosed"]]


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
