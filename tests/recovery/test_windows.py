"""Single instants at which a process can die, each with what must not happen afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from eventlog import history, use

from agentflow import (
    Agent,
    Answer,
    Approve,
    Deny,
    MemoryStore,
    PostActing,
    PostReasoning,
    PostToolRound,
    PreCall,
    PreToolRound,
    Reply,
    Stop,
    Suspend,
    ToolContext,
    on,
    tool,
)
from agentflow.errors import ToolError, UsageError
from agentflow.testing import ScriptedModel
from agentflow.vocabulary.facts import (
    CallClosed,
    CallResumed,
    Fact,
    RoundClosed,
    RoundSuspended,
    ToolFinished,
    ToolStarted,
)

SAVE = use("t1", "save", at="x")


class Journal(MemoryStore):
    """Stores facts that are written together one by one: a process dies between two writes, not within one."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[Sequence[Fact]] = []

    def append(self, session_id: str, facts: Sequence[Fact], *, expected: int | None = None) -> None:
        self.writes.append(facts)
        super().append(session_id, facts, expected=expected)


class World:
    """Runs an agent, and runs it again with a part of its facts."""

    def __init__(self, script: list[Any], *hooks: Any, **options: Any) -> None:
        self.ran: list[str] = []
        self.script = script
        self.hooks = hooks
        self.options = options
        self.facts: list[Fact] = []

    def tools(self, idempotent: bool) -> list[Any]:
        @tool(idempotent=idempotent)
        async def save(at: str, context: ToolContext) -> str:
            """Save."""
            self.ran.append(f"save {at} #{context.attempt}")
            return f"saved {at}"

        @tool(type="read", idempotent=idempotent)
        async def look(at: str) -> str:
            """Look."""
            await asyncio.sleep(0)
            self.ran.append(f"look {at}")
            return f"saw {at}"

        return [save, look]

    def agent(self, store: MemoryStore, script: list[Any], idempotent: bool = False) -> Agent:
        tools = self.tools(idempotent)
        return Agent("a", ScriptedModel(script), tools=tools, hooks=list(self.hooks), store=store, **self.options)

    async def first(self, *decisions: dict[str, Any]) -> Reply:
        """Run without a crash."""
        store = MemoryStore()
        agent = self.agent(store, self.script)
        reply = await agent.call("go", session="s")
        for decided in decisions:
            reply = await agent.resume("s", decided)
        self.facts = list(store.load("s"))  # type: ignore[arg-type]
        self.ran.clear()
        return reply

    def cut(self, behind: type, count: int = 1) -> MemoryStore:
        """Return the store as it was after the nth fact of a kind."""
        places = [n for n, fact in enumerate(self.facts, 1) if isinstance(fact, behind)]
        store = MemoryStore()
        store.append("s", self.facts[: places[count - 1]])
        return store

    def again(self, behind: type, script: list[Any], count: int = 1, idempotent: bool = False) -> Agent:
        """Return a new process on that store."""
        return self.agent(self.cut(behind, count), script, idempotent)


async def test_a_finished_session_has_nothing_to_resume() -> None:
    """After the last fact the call has ended, whether its caller has got the reply or not."""
    world = World(["done"])
    await world.first()
    with pytest.raises(UsageError, match="there is nothing to resume"):
        await world.again(CallClosed, []).resume("s")


async def test_a_tool_in_flight() -> None:
    """Started and not finished: run again if idempotent, as the next attempt; otherwise the model reads the unknown
    outcome.
    """
    world = World([SAVE, "done"])
    await world.first()
    agent = world.again(ToolStarted, ["done"], idempotent=True)
    await agent.resume("s")
    assert world.ran == ["save x #2"]
    agent = world.again(ToolStarted, ["done"])
    await agent.resume("s")
    assert world.ran == ["save x #2"]
    result = agent.session("s").messages[2].tool_results[0]
    assert (result.state, result.text[:15]) == ("error", "Outcome unknown")


@pytest.mark.parametrize(
    ("decision", "ran", "result"),
    [
        (Approve(), ["save x #2"], "saved x"),
        (Approve(input={"at": "y"}), ["save y #2"], "saved y"),
        (Answer("it was saved"), [], "it was saved"),
        (Deny("leave it"), [], "Denied: leave it"),
    ],
)
async def test_a_person_is_asked(decision: Any, ran: list[str], result: str) -> None:
    """`on_unknown_outcome="suspend"`: the call waits like an approval, and every answer is legal."""
    world = World([SAVE, "done"], on_unknown_outcome="suspend")
    await world.first()
    agent = world.again(ToolStarted, ["done"])
    reply = await agent.resume("s")
    assert (reply.outcome, world.ran) == ("suspended", [])
    assert [(waits.id, waits.kind, waits.hook, waits.request) for waits in reply.pending] == [
        (
            "t1",
            "approval",
            "on_unknown_outcome",
            {"outcome": "unknown", "tool": "save", "input": {"at": "x"}, "attempt": 1},
        )
    ]
    reply = await agent.resume("s", {"t1": decision})
    assert (reply.outcome, world.ran) == ("completed", ran)
    assert agent.session("s").messages[2].tool_results[0].text == result


async def test_a_persons_word_is_for_one_time() -> None:
    """Approved to run again, and the process died again: the person is asked again, because the tool may have had its
    effect.
    """
    world = World([SAVE, "done"], on_unknown_outcome="suspend")
    await world.first()
    agent = world.again(ToolStarted, ["done"])
    await agent.resume("s")
    await agent.resume("s", {"t1": Approve()})
    world.facts = list(agent._store.load("s"))  # type: ignore[union-attr,arg-type]
    world.ran.clear()
    reply = await world.again(ToolStarted, [], count=2).resume("s")
    assert (reply.outcome, reply.pending[0].request["attempt"], world.ran) == ("suspended", 2, [])
    reply = await world.again(CallResumed, ["done"], count=2).resume("s")  # the word was given, and not used
    assert (reply.outcome, world.ran) == ("completed", ["save x #2"])


async def test_an_approval_that_was_given_is_not_asked_for_again() -> None:
    """Decisions are facts: of two approved calls one ran before the crash, and the other one runs after it."""

    @on("before_each_tool")
    def ask(event: Any) -> Any:
        return Suspend("may it?")

    both = [use("t1", "look", at="x"), use("t2", "look", at="y")]
    world = World([both, "done"], ask)
    await world.first({"t1": Approve(), "t2": Approve(input={"at": "z"})})
    agent = world.again(ToolFinished, ["done"], idempotent=True)
    assert (await agent.resume("s")).outcome == "completed"
    assert world.ran == ["look z"]
    with pytest.raises(UsageError, match="no call"):
        await world.again(ToolFinished, []).resume("s", {"t1": Approve()})


@pytest.mark.parametrize("kind", [PostReasoning, PreToolRound])
async def test_no_crash_lets_a_round_pass_that_waits_for_approval(kind: type) -> None:
    """Wherever the process dies before the answer: no tool runs without it."""

    @on(kind)
    def ask(event: Any) -> Any:
        return Suspend("may they?") if getattr(event, "tool_uses", None) or event.reasoning_result.tool_uses else event

    world = World([SAVE, "done"], ask)
    journal = Journal()
    await world.agent(journal, world.script).call("go", session="s")
    for count in range(1, len(journal.writes)):
        store = MemoryStore()
        for facts in journal.writes[:count]:
            store.append("s", facts)
        agent = world.agent(store, [SAVE, "done"])
        if (await store.sessions())[0].status == "unfinished":
            assert (await agent.resume("s")).outcome == "suspended"
        assert world.ran == []


async def test_a_parked_session_does_not_let_the_next_round_pass() -> None:
    """Continuing a parked session answers nothing else: an approval that the next round needs is requested."""

    @on(PostToolRound, PreToolRound)
    def ask(event: Any) -> Any:
        if isinstance(event, PostToolRound):
            return Suspend("look at it") if event.iteration == 1 else event
        return Suspend("may they?") if event.iteration == 2 else event

    world = World([SAVE, use("t2", "save", at="y"), "done"], ask)
    store = MemoryStore()
    agent = world.agent(store, world.script)
    assert (await agent.call("go", session="s")).pending[0].kind == "parked"
    reply = await agent.resume("s")
    assert (reply.outcome, [waits.id for waits in reply.pending]) == ("suspended", ["t2"])
    assert world.ran == ["save x #1"]


async def test_a_park_is_a_part_of_the_fact() -> None:
    """There is no instant at which a round is closed, or a reply accepted, without its Suspend."""

    @on(PostToolRound)
    def park(event: Any) -> Any:
        return Suspend("look at it")

    journal = Journal()
    await World([SAVE], park).agent(journal, [SAVE]).call("go", session="s")
    assert [RoundClosed, RoundSuspended] in [[type(fact) for fact in facts] for facts in journal.writes]


async def test_an_answer_of_a_guard_stays_the_answer() -> None:
    """`Answer` on PreCall is a part of the first fact: after a crash then the input does not reach the model."""

    @on(PreCall)
    def guard(event: PreCall) -> Any:
        return Answer("I do not speak of that.")

    world = World([], guard)
    await world.first()
    store = MemoryStore()
    store.append("s", world.facts[:1])
    agent = world.agent(store, [])
    reply = await agent.resume("s")
    assert (reply.text, reply.outcome) == ("I do not speak of that.", "completed")
    assert history(agent.session("s")) == ["user: go", "assistant: I do not speak of that."]


async def test_a_stop_stays_a_stop() -> None:
    """A tool's Stop before the crash: running tools are ended, nothing else begins, and the outcome is `stopped`."""

    @on(PostActing)
    def enough(event: PostActing) -> Any:
        return Stop("enough") if event.tool_use.id == "t1" else event

    three = [use("t1", "look", at="x"), use("t2", "look", at="y"), use("t3", "save", at="z")]
    world = World([three], enough)
    whole = await world.first()
    assert whole.outcome == "stopped"
    for behind in (ToolFinished, RoundClosed):
        agent = world.again(behind, [], idempotent=True)
        reply = await agent.resume("s")
        assert (reply.outcome, reply.text) == ("stopped", "enough")
        assert history(agent.session("s"))[2:] == [
            "tool: t1 success 'saw x'; t2 success 'saw y'; t3 denied 'Not run: the call was stopped.'",
            "assistant: enough",
        ]


async def test_hooks_of_a_tool_see_its_result_behind_a_crash() -> None:
    """A decision from before the crash is not made again; the tool's own hooks still get its result."""
    seen: list[str] = []

    @on(PostActing)
    def note(event: PostActing) -> None:
        seen.append(event.tool_result.text)

    world = World([SAVE, "done"])
    await world.first()
    store = world.cut(ToolStarted)
    save, look = world.tools(True)
    save.hook(note)
    await Agent("a", ScriptedModel(["done"]), tools=[save, look], store=store).resume("s")
    assert seen == ["saved x"]


async def test_a_sub_agents_answer_is_not_asked_for_twice() -> None:
    """A tool that asks two agents, one after the other, dies after the first: only the second one is asked again."""
    store = MemoryStore()
    asked: list[str] = []

    def helper(name: str) -> Agent:
        def brain(request: Any) -> str:
            asked.append(name)
            if name == "second" and len(asked) == 2:
                raise ToolError("the first process ends here")
            return f"{name} says yes"

        return Agent(name, ScriptedModel(brain))

    first, second = helper("first"), helper("second")

    @tool(idempotent=True)
    async def poll(question: str) -> str:
        """Ask both."""
        return f"{await first.answer(question)}, {await second.answer(question)}"

    agent = Agent("a", ScriptedModel([use("t1", "poll", question="ok?"), "done"]), tools=[poll], store=store)
    await agent.call("go", session="s")
    facts: Any = store.load("s")
    cut = next(n for n, fact in enumerate(facts, 1) if isinstance(fact, ToolStarted))
    inner = {info.id: await store.export(info.id) for info in await store.sessions("s/")}
    await store.delete("s")
    store.append("s", facts[:cut])
    for session_id, data in inner.items():
        await store.import_(data, session_id)
    again = Agent("a", ScriptedModel(["done"]), tools=[poll], store=store)
    await again.resume("s")
    assert asked == ["first", "second", "second"]
    assert again.session("s").messages[2].tool_results[0].text == "first says yes, second says yes"
    assert sorted(info.id for info in await store.sessions()) == ["s", "s/t1", "s/t1/2"]


async def test_what_is_unfinished() -> None:
    """Open calls are listed; finished and waiting ones are not, nor are those of sub-agents and those that run here."""
    world = World([SAVE, "done"])
    await world.first()
    store = world.cut(ToolStarted)
    store.append("s/t1", world.facts[:2])
    await store.fork("s", "other")
    agent = world.agent(store, ["done", "hello"])
    await agent.call("hi", session="fine")
    assert sorted(info.id for info in await agent.unfinished()) == ["other", "s"]
    await agent.resume("other")
    assert [info.id for info in await agent.unfinished()] == ["s"]
    assert await Agent("b", ScriptedModel([])).unfinished() == []


async def test_a_wrong_option() -> None:
    """The option for unknown outcomes has two values; the builder has the same."""
    with pytest.raises(UsageError, match="'tell' or 'suspend'"):
        Agent("a", "m", on_unknown_outcome="ask")  # type: ignore[arg-type]
    made = Agent.builder().name("a").model("m").on_unknown_outcome("suspend").build()
    assert made.config.on_unknown_outcome == "suspend"
    assert Agent.from_dict(made.to_dict()).config.on_unknown_outcome == "suspend"
    assert made.branch("b").config.on_unknown_outcome == "suspend"
