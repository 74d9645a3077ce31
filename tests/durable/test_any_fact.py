"""A request may be started again after any fact: recorded steps are not repeated, and the reply is the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agentflow import Agent, Approve, MemoryStore, RunContext, ToolUseBlock, on, tool
from agentflow.durable.execution import Host
from agentflow.durable.records import Request, decisions_out, result_in
from agentflow.testing import ScriptedModel
from agentflow.vocabulary.events import HookEvent, PostReasoning, PreActing, PreCall
from agentflow.vocabulary.facts import Fact, ToolFinished
from agentflow.vocabulary.messages import Msg, Reply
from agentflow.vocabulary.ports.model import ModelRequest
from agentflow.vocabulary.saving.codec import msg_from_dict


class Untold:
    """Discards events."""

    async def publish(self, event: HookEvent) -> None:
        """Discard the event."""

    async def catch_up(self, facts: Sequence[Fact]) -> None:
        """Discard the events."""


def answer(request: ModelRequest) -> Any:
    """Two notes at once, one approval, a text."""
    done = sum(msg.role == "tool" for msg in request.messages)
    rounds: list[Any] = [
        [ToolUseBlock("n1", "note"), ToolUseBlock("n2", "note")],
        [ToolUseBlock("p1", "pay"), ToolUseBlock("n3", "note")],
        "done",
    ]
    return rounds[done]


class Overtaken(MemoryStore):
    """A store into which another worker writes the rest of a call, between two reads."""

    def __init__(self, rest: Sequence[Fact]) -> None:
        super().__init__()
        self.rest = rest
        self.looks = 0

    def load(self, session_id: str) -> Any:
        """Return more facts the second time."""
        self.looks += 1
        if self.looks == 2:
            self.append(session_id, self.rest)
        return super().load(session_id)


class World:
    """An agent, and its effects."""

    def __init__(self, facts: Sequence[Fact] = (), store: MemoryStore | None = None) -> None:
        self.store = MemoryStore() if store is None else store
        if facts:
            self.store.append("s", facts)
        self.did: list[str] = []
        self.decided: list[str] = []

        @tool(idempotent=True)
        async def note(context: RunContext) -> str:
            """Note."""
            self.did.append("note")
            return "noted"

        @tool(idempotent=True, requires_approval=True)
        async def pay() -> str:
            """Pay."""
            self.did.append("pay")
            return "paid"

        @on(PreCall, PostReasoning, PreActing)
        def decide(event: HookEvent) -> None:
            what = event.tool_use.id if isinstance(event, PreActing) else event.iteration
            self.decided.append(f"{type(event).__name__} {what}")

        self.agent = Agent("a", ScriptedModel(answer), tools=[note, pay], hooks=[decide], store=self.store)
        self.host = Host(self.agent, self.store, None)

    async def run(self, workflow_id: str, request: Request) -> Reply:
        """Run a request."""
        result = result_in(workflow_id, "a", await self.host.run(workflow_id, request, 0.0, None, Untold()))
        assert isinstance(result, Reply)
        return result

    @property
    def facts(self) -> Sequence[Fact]:
        """The session's facts."""
        found = self.store.load("s")
        assert isinstance(found, Sequence)
        return found


CALL = Request("r", "a", "s", (Msg.user("go"),))


def said(reply: Reply) -> tuple[Any, ...]:
    """Return the parts of a reply that must be equal."""
    return reply.outcome, reply.run_id, reply.text, [waits.id for waits in reply.pending]


async def test_a_call_goes_on_after_any_of_its_facts() -> None:
    """Truncated after each fact of its first half and started again elsewhere, a call suspends with the same reply; a
    tool with a result does not run again, and a stored decision is not made again.
    """
    whole = World()
    first = await whole.run("r", CALL)
    assert said(first) == ("suspended", "r", "", ["p1"])
    assert whole.did == ["note", "note"]
    for cut in range(len(whole.facts) + 1):
        there = whole.facts[:cut]
        world = World(there)
        again = await world.run("r", Request.from_data("r", CALL.to_dict()))
        assert said(again) == said(first), there
        kinds = [type(fact).__name__ for fact in there]
        assert len(world.did) == 2 - kinds.count("ToolFinished"), there
        assert sum(one.startswith("PostReasoning") for one in world.decided) == 2 - kinds.count("Reasoned"), there
        assert sum(one.startswith("PreCall") for one in world.decided) == (1 if cut == 0 else 0), there


async def test_the_first_call_stays_suspended_when_the_run_has_continued() -> None:
    """Started again after the decision was carried out, it does nothing, and suspends as before."""
    whole = World()
    first = await whole.run("r", CALL)
    await whole.run("r/2", Request("r", "a", "s", (), decisions_out("r", {"p1": Approve()}, first.pending)))
    world = World(whole.facts)
    again = await world.run("r", Request.from_data("r", CALL.to_dict()))
    assert (again.outcome, [waits.id for waits in again.pending], world.did) == ("suspended", ["p1"], [])


async def test_a_decision_is_carried_through_after_any_fact() -> None:
    """Truncated after each fact of the second half, an approved call ends with the same reply, and has paid."""
    whole = World()
    first = await whole.run("r", CALL)
    before = len(whole.facts)
    approved = Request("r", "a", "s", (), decisions_out("r", {"p1": Approve()}, first.pending))
    last = await whole.run("r/2", approved)
    assert said(last) == ("completed", "r", "done", [])
    for cut in range(before, len(whole.facts) + 1):
        there = whole.facts[:cut]
        world = World(there)
        again = await world.run("r/2", Request.from_data("r/2", approved.to_dict()))
        assert said(again) == said(last), there
        finished = {fact.tool_use_id for fact in there if isinstance(fact, ToolFinished)}
        assert world.did == [name for use, name in (("p1", "pay"), ("n3", "note")) if use not in finished], there


async def test_a_lost_race_is_no_failure() -> None:
    """Another worker ends the call after this one has read its facts: nothing is left to do, and the reply is the
    other one's, even if it is suspended. Nothing runs here.
    """
    whole = World()
    first = await whole.run("r", CALL)
    half = whole.facts
    approved = Request("r", "a", "s", (), decisions_out("r", {"p1": Approve()}, first.pending))
    last = await whole.run("r/2", approved)
    for request, workflow_id, start, end, reply in (
        (CALL, "r", 1, len(half), first),
        (approved, "r/2", len(half) + 1, len(whole.facts), last),
    ):
        for cut in range(start, end):
            world = World(whole.facts[:cut], Overtaken(whole.facts[cut:end]))
            assert said(await world.run(workflow_id, request)) == said(reply), cut
            assert (world.did, world.decided) == ([], []), cut
            assert world.facts == whole.facts[:end]


async def test_messages_of_a_request_survive_the_way() -> None:
    """The user's messages arrive unchanged."""
    asked = Request("r", "a", "s", (Msg.user("hi", metadata={"from": "web"}),))
    (msg,) = Request.from_data("r", asked.to_dict()).messages
    assert (msg.text, dict(msg.metadata)) == ("hi", {"from": "web"})
    assert msg_from_dict(asked.to_dict()["messages"][0]) == asked.messages[0]
