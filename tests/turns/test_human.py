"""Human in the loop: calls that wait for a decision from outside, and the possible decisions."""

from __future__ import annotations

import json
from typing import Any

import pytest
from eventlog import history, use
from pydantic import TypeAdapter

from agentflow import (
    Agent,
    Answer,
    Approve,
    Deny,
    PreActing,
    Reply,
    Session,
    Suspend,
    ToolUseBlock,
    external_tool,
    on,
    tool,
)
from agentflow._support.ids import inner_session_id
from agentflow.agent import AgentRegistry
from agentflow.errors import StoreError, UsageError
from agentflow.testing.scripted import ScriptedModel
from agentflow.vocabulary.messages import Pending
from agentflow.vocabulary.ports.memory_store import MemoryStore

ask_user = external_tool(
    "ask_user",
    "Ask the user.",
    {"type": "object", "properties": {"question": {"type": "string"}}, "required": ["question"]},
)


class Office:
    """Tools that record their effects."""

    def __init__(self) -> None:
        self.did: list[str] = []

        @tool(type="read")
        async def look(at: str) -> str:
            """Look."""
            self.did.append(f"look {at}")
            return f"saw {at}"

        @tool(requires_approval=True)
        async def delete(path: str) -> str:
            """Delete."""
            self.did.append(f"delete {path}")
            return f"deleted {path}"

        self.tools = [look, delete, ask_user]

    def agent(self, *script: Any, name: str = "a", **more: Any) -> Agent:
        return Agent(name, ScriptedModel(script), tools=self.tools, **more)


ROUND = [
    use("t1", "look", at="x"),
    use("t2", "delete", path="a"),
    use("t3", "ask_user", question="Which?"),
    use("t4", "delete", path="b"),
]


# ---- one round of all kinds


async def test_a_round_in_which_approvals_and_answers_are_missing_together() -> None:
    """A write waits for those before it, so decisions are requested for one write at a time; a finished tool never
    runs again.
    """
    office = Office()
    agent = office.agent(ROUND, "done")
    asked: list[list[tuple[str, str]]] = []
    reply = await agent.call("go")
    answers: dict[str, Any] = {"t2": Approve(), "t3": Answer("the red one"), "t4": Deny("keep it")}
    while reply.outcome == "suspended":
        asked.append([(waits.id, waits.kind) for waits in reply.pending])
        reply = await agent.resume(None, {waits.id: answers[waits.id] for waits in reply.pending})
    assert asked == [[("t2", "approval")], [("t3", "external")], [("t4", "approval")]]
    assert office.did == ["look x", "delete a"]
    assert history(agent.session())[2:] == [
        "tool: t1 success 'saw x'; t2 success 'deleted a'; t3 success 'the red one'; t4 denied 'Denied: keep it'",
        "assistant: done",
    ]


async def test_read_tools_wait_together() -> None:
    """Calls that may run in parallel are pending in one reply, in call order."""
    look = tool(requires_approval=True, type="read", name="look")(Office().tools[0].function)
    question = external_tool("question", "Ask.", {"type": "object", "properties": {}}, type="read")
    script = [[use("t1", "look", at="x"), use("t2", "question"), use("t3", "look", at="y")], "done"]
    agent = Agent("a", ScriptedModel(script), tools=[look, question])
    reply = await agent.call("go")
    assert [(waits.id, waits.kind, waits.hook) for waits in reply.pending] == [
        ("t1", "approval", "requires_approval"),
        ("t2", "external", "external"),
        ("t3", "approval", "requires_approval"),
    ]
    reply = await agent.resume(None, {"t3": Deny("no"), "t1": Approve(), "t2": Answer(42)})
    assert history(agent.session())[2] == "tool: t1 success 'saw x'; t2 success '42'; t3 denied 'Denied: no'"
    assert reply.text == "done"


async def test_pending_is_typed_and_json() -> None:
    """The pending entries, and the whole reply, survive JSON and are equal."""
    agent = Office().agent(use("t2", "delete", path="a"))
    reply = await agent.call("go")
    [waits] = reply.pending
    assert waits.tool_use is not None
    assert (waits.tool_use.name, dict(waits.tool_use.input)) == ("delete", {"path": "a"})
    for form, value in ((TypeAdapter(Pending), waits), (TypeAdapter(Reply), reply)):
        again: Any = form.validate_json(form.dump_json(value))  # type: ignore[attr-defined]
        assert again == value


async def test_arguments_that_do_not_fit_are_asked_about_by_nobody() -> None:
    """The model reads the error at once, and may try again; no person is asked."""
    office = Office()
    agent = office.agent([use("t1", "delete"), use("t2", "ask_user", question=7)], "sorry")
    reply = await agent.call("go")
    assert reply.outcome == "completed"
    assert [result.state for result in agent.session().messages[2].tool_results] == ["error", "error"]


# ---- decisions


@pytest.mark.parametrize(
    ("decision", "did", "result"),
    [
        (Approve(), ["delete a"], "t1 success 'deleted a'"),
        (Approve(input={"path": "b"}), ["delete b"], "t1 success 'deleted b'"),
        (Deny("too risky"), [], "t1 denied 'Denied: too risky'"),
        (Answer("did it myself"), [], "t1 success 'did it myself'"),
    ],
    ids=["approve", "edited", "deny", "answer"],
)
@pytest.mark.parametrize("as_json", [False, True], ids=["here", "elsewhere"])
async def test_each_decision(decision: Any, did: list[str], result: str, as_json: bool) -> None:
    """Approve, approve with other arguments, deny, answer; in the same process or in another one."""
    office = Office()
    agent = office.agent(use("t1", "delete", path="a"), "done")
    session = agent.session("s")
    await agent.call("go", session=session)
    if as_json:
        session = Session.from_json(session.to_json())
        agent = office.agent("done")
    reply = await agent.resume(session, {"t1": decision})
    assert (reply.text, office.did) == ("done", did)
    assert history(session)[2] == f"tool: {result}"


async def test_edited_arguments_pass_the_whole_chain_again() -> None:
    """Hooks get the call with the person's changes, may edit it further, and may still deny it."""
    seen: list[Any] = []

    @on(PreActing)
    def normal(event: PreActing) -> None:
        seen.append(event.tool_use.input["path"])
        event.tool_use = event.tool_use.replace(input={"path": str(event.tool_use.input["path"]).lower()})

    @on(PreActing, guard=True)
    def guard(event: PreActing) -> Deny | None:
        return Deny("never") if event.tool_use.input["path"] == "root" else None

    office = Office()
    script = [use("t1", "delete", path="A"), use("t2", "delete", path="C"), "done"]
    agent = office.agent(*script, hooks=[normal, guard])
    await agent.call("go")
    await agent.resume(None, {"t1": Approve(input={"path": "B"})})
    reply = await agent.resume(None, {"t2": Approve(input={"path": "ROOT"})})
    assert (office.did, seen) == (["delete b"], ["A", "B", "C", "ROOT"])
    assert history(agent.session())[4] == "tool: t2 denied 'Denied: never'"
    assert reply.text == "done"


async def test_a_suspended_external_call_that_is_approved_still_waits_for_its_answer() -> None:
    """A hook suspends it for approval; once approved, the external call itself waits."""

    @on(PreActing)
    def asks(event: PreActing) -> Suspend:
        return Suspend("may the user be disturbed?")

    agent = Office().agent(use("t1", "ask_user", question="Which?"), "done", hooks=[asks])
    first = await agent.call("go")
    second = await agent.resume(None, {"t1": Approve()})
    third = await agent.resume(None, {"t1": Answer("red")})
    assert [(reply.outcome, [waits.kind for waits in reply.pending]) for reply in (first, second, third)] == [
        ("suspended", ["approval"]),
        ("suspended", ["external"]),
        ("completed", []),
    ]


PAIR = [
    use("t1", "ask_freely", question="Which?"),
    use("t2", "look_carefully", at="x"),
]


def pair_agent() -> tuple[list[str], Agent]:
    did: list[str] = []

    @tool(requires_approval=True, type="read")
    async def look_carefully(at: str) -> str:
        did.append(at)
        return at

    schema = {"type": "object", "properties": {"question": {"type": "string"}}}
    freely = external_tool("ask_freely", "Ask.", schema, type="read")
    return did, Agent("a", ScriptedModel([PAIR, "done"]), tools=[look_carefully, freely])


@pytest.mark.parametrize(
    ("decisions", "says"),
    [
        ({}, "Session 's': decisions are missing for ['t1', 't2']. Pass one for each pending call."),
        ({"t1": Answer(1)}, "Session 's': decisions are missing for ['t2']. Pass one for each pending call."),
        (
            {"t1": Answer(1), "t2": Approve(), "t9": Deny(), "t8": Deny()},
            "Session 's': no call ['t9', 't8'] waits for a decision; waiting: ['t1', 't2'].",
        ),
        (
            [("t1", Answer(1)), ("t2", Approve()), ("t2", Deny())],
            "Session 's': there are two decisions for 't2'. Pass only one.",
        ),
        (
            {"t1": Answer(1), "t2": "yes"},
            "The decision for 't2' is 'yes'; use Approve(), Approve(input=...), Deny(reason), Answer(value).",
        ),
        (
            {"t1": Answer(1), "t2": Suspend()},
            (
                "The decision for 't2' is Suspend(request=None); use Approve(), Approve(input=...), Deny(reason), "
                "Answer(value)."
            ),
        ),
        (
            {"t1": Approve(), "t2": Approve()},
            (
                "Session 's': 't1' is a call of an external tool, so it cannot be approved. Use "
                "Answer(value) with its result, or Deny(reason)."
            ),
        ),
        (
            {"t1": Answer(1), "t2": Approve(input={"at": 7})},
            (
                "Session 's': the edited arguments for 't2' are invalid, so nothing was resumed. Tool 'look_carefully' was "
                "not run: its arguments do not fit.\n- at: should be a valid string; got 7"
            ),
        ),
    ],
    ids=["none", "partial", "unknown", "duplicate", "no decision", "wrong verdict", "approved external", "wrong edit"],
)
async def test_decisions_that_do_not_fit(decisions: Any, says: str) -> None:
    """Each is refused with the exact reason; nothing has run, and the session still waits for the same decisions."""
    did, agent = pair_agent()
    reply = await agent.call("go", session="s")
    with pytest.raises(UsageError) as caught:
        await agent.resume("s", decisions)
    assert str(caught.value) == says
    assert (did, agent.session("s").pending) == ([], reply.pending)
    assert (await agent.resume("s", {"t1": Answer(1), "t2": Approve()})).text == "done"


async def test_resuming_twice() -> None:
    """The second time nothing can be resumed, and nothing runs again."""
    office = Office()
    agent = office.agent(use("t1", "delete", path="a"), "done")
    await agent.call("go")
    await agent.resume(None, {"t1": Approve()})
    with pytest.raises(UsageError, match=r"is not suspended.*there is nothing to resume"):
        await agent.resume(None, {"t1": Approve()})
    assert office.did == ["delete a"]


async def test_the_iteration_budget_goes_on() -> None:
    """Resumes use the budget of their run: with two rounds of reasoning, the third reply is the summary."""
    office = Office()
    agent = office.agent(use("t1", "delete", path="a"), use("t2", "delete", path="b"), "sum", max_iterations=2)
    session = Session.fresh()
    await agent.call("go", session=session)
    session = Session.from_json(session.to_json())
    await agent.resume(session, {"t1": Approve()})
    session = Session.from_json(session.to_json())
    reply = await agent.resume(session, {"t2": Approve()})
    assert (reply.text, reply.outcome) == ("sum", "limited")


# ---- sub-agents


class Company:
    """A boss that asks a manager that asks a clerk, who deletes."""

    def __init__(self) -> None:
        self.office = Office()

    def boss(self, resumed: bool = False) -> Agent:
        done = {"clerk": ["clerk done"], "manager": ["manager done"], "boss": ["boss done"]}
        asks = {
            "clerk": [use("c1", "look", at="x"), use("c2", "delete", path="a")],
            "manager": [use("m1", "clerk", message="delete a")],
            "boss": [use("b1", "manager", message="see to it")],
        }
        scripts = {name: done[name] if resumed else [asks[name], *done[name]] for name in done}
        clerk = self.office.agent(*scripts["clerk"], name="clerk")
        manager = Agent("manager", ScriptedModel(scripts["manager"]), tools=[clerk])
        return Agent("boss", ScriptedModel(scripts["boss"]), tools=[manager])


@pytest.mark.parametrize("as_json", [False, True], ids=["here", "elsewhere"])
@pytest.mark.parametrize(
    ("decision", "did"),
    [
        (Approve(), ["look x", "delete a"]),
        (Approve(input={"path": "b"}), ["look x", "delete b"]),
        (Deny("no"), ["look x"]),
        (Answer("gone already"), ["look x"]),
    ],
    ids=["approve", "edited", "deny", "answer"],
)
async def test_two_levels_of_sub_agents(as_json: bool, decision: Any, did: list[str]) -> None:
    """The clerk's suspension suspends the boss, is answered through it, and every level continues where it was, once."""
    company = Company()
    boss = company.boss()
    session = Session.fresh()
    reply = await boss.call("go", session=session)
    [waits] = reply.pending
    assert (reply.outcome, waits.id, waits.kind, waits.source) == (
        "suspended",
        "b1/m1/c2",
        "approval",
        "manager/clerk",
    )
    assert waits.tool_use is not None
    assert dict(waits.tool_use.input) == {"path": "a"}
    if as_json:
        session = Session.from_json(session.to_json())
        boss = company.boss(resumed=True)
    reply = await boss.resume(session, {"b1/m1/c2": decision})
    assert (reply.text, reply.outcome) == ("boss done", "completed")
    assert history(session)[2] == "tool: b1 success 'manager done'"
    assert company.office.did == did


@pytest.mark.parametrize(
    "decisions",
    [{}, {"b1": Approve()}, {"m1/c2": Approve()}, {"b1/m1/c2": True}, {"b1/m1/c2": Approve(input={"path": 7})}],
    ids=["none", "outer key", "half a key", "no decision", "wrong edit"],
)
async def test_wrong_decisions_for_a_sub_agent_lose_nothing(decisions: Any) -> None:
    """They are refused before anything runs at any level; the right ones still work."""
    company = Company()
    boss = company.boss()
    await boss.call("go", session="s")
    with pytest.raises(UsageError):
        await boss.resume("s", decisions)
    assert company.office.did == ["look x"]
    reply = await boss.resume("s", {"b1/m1/c2": Approve()})
    assert (reply.text, company.office.did) == ("boss done", ["look x", "delete a"])


async def test_a_sub_agent_that_suspends_twice() -> None:
    """Each time the caller waits again, under the new key."""
    office = Office()
    script = [use("c1", "delete", path="a"), use("c2", "delete", path="b"), "clerk done"]
    clerk = office.agent(*script, name="clerk")
    boss = Agent("boss", ScriptedModel([use("b1", "clerk", message="go"), "boss done"]), tools=[clerk])
    keys: list[str] = []
    reply = await boss.call("go")
    while reply.outcome == "suspended":
        keys.extend(waits.id for waits in reply.pending)
        reply = await boss.resume(None, {waits.id: Approve() for waits in reply.pending})
    assert (keys, office.did, reply.text) == (["b1/c1", "b1/c2"], ["delete a", "delete b"], "boss done")


async def test_two_sub_agents_wait_in_one_round() -> None:
    """Their keys differ, although both call their own call `c1`."""
    office = Office()
    clerks = [office.agent(use("c1", "delete", path=name), f"{name} done", name=name) for name in ("ann", "bob")]
    made = [tool(type="read", name=c.name, timeout=None)(c.as_tool().function) for c in clerks]
    round_ = [use("b1", "ann", message="go"), use("b2", "bob", message="go")]
    boss = Agent("boss", ScriptedModel([round_, "boss done"]), tools=made)
    reply = await boss.call("go")
    assert [waits.id for waits in reply.pending] == ["b1/c1", "b2/c1"]
    reply = await boss.resume(None, {"b1/c1": Deny("no"), "b2/c1": Approve()})
    assert (reply.text, office.did) == ("boss done", ["delete bob"])
    assert history(boss.session())[2] == "tool: b1 success 'ann done'; b2 success 'bob done'"


async def test_the_cost_of_a_suspended_sub_agent_is_the_callers() -> None:
    """The usage before and after the suspension is billed to the calls that caused it."""
    company = Company()
    boss = company.boss()
    first = await boss.call("go")
    second = await boss.resume(None, {"b1/m1/c2": Approve()})
    assert first.usage is not None
    assert second.usage is not None
    assert (first.usage.model_calls, second.usage.model_calls) == (3, 3)


@tool(requires_approval=True)
async def pay(euros: int) -> str:
    """Pay."""
    return f"paid {euros}"


async def test_a_question_without_a_session_can_be_answered(agents: AgentRegistry) -> None:
    """The reply has the conversation's id, and the agent keeps the conversation until it has the answer."""
    model = ScriptedModel([ToolUseBlock("t1", "pay", {"euros": 4}), "Paid.", "Hello."])
    treasurer = agents.register(Agent("treasurer", model, tools=[pay], agents=agents))
    clerk = Agent("clerk", ScriptedModel([]), agents=agents)
    reply = await clerk.ask("treasurer", "Pay Ann")
    assert reply.outcome == "suspended"
    assert treasurer.session(reply.session_id).pending == reply.pending
    done = await treasurer.resume(reply.session_id, {"t1": Approve()})
    assert (done.text, done.session_id) == ("Paid.", reply.session_id)
    assert treasurer.session(reply.session_id).messages == ()  # answered, so the session was removed


@pytest.mark.parametrize("kind", ["implicit", "named", "fresh"])
@pytest.mark.parametrize("way", ["call", "stream"])
async def test_every_suspended_reply_is_resumed_by_its_session_id(kind: str, way: str) -> None:
    """Whatever created the session."""
    agent = Agent("a", ScriptedModel([ToolUseBlock("t1", "pay", {"euros": 4}), "Paid."]), tools=[pay])
    session = {"implicit": None, "named": "s", "fresh": Session.fresh()}[kind]
    if way == "call":
        session_id = (await agent.call("Pay", session=session)).session_id
    else:
        session_id = [event.session_id async for event in agent.stream("Pay", session=session)][-1]
    assert (await agent.resume(session_id, {"t1": Answer("no need")})).text == "Paid."


async def test_a_suspended_conversation_can_be_forgotten() -> None:
    """It no longer waits then."""
    agent = Agent("a", ScriptedModel([ToolUseBlock("t1", "pay", {"euros": 4})]), tools=[pay])
    reply = await agent.call("Pay", session=Session.fresh())
    assert (agent.forget(reply.session_id), agent.forget(reply.session_id)) == (True, False)
    with pytest.raises(UsageError, match="is not suspended"):
        await agent.resume(reply.session_id, {"t1": Approve()})


async def test_what_waits_is_json_by_itself() -> None:
    """`Pending.to_dict` and `from_dict`; other data is refused."""
    agent = Agent("a", ScriptedModel([ToolUseBlock("t1", "pay", {"euros": 4})]), tools=[pay])
    [waits] = (await agent.call("Pay")).pending
    assert Pending.from_dict(json.loads(json.dumps(waits.to_dict()))) == waits
    assert Pending("call", "parked", object()).to_dict()["request"].startswith("<object object")
    with pytest.raises(StoreError, match=r"This is not a saved Pending: id: Field required\."):
        Pending.from_dict({})


@pytest.mark.parametrize("use_id", ["t" * 5000, "a\x00b", "\ud800", "", "t1"])
@pytest.mark.parametrize("session_id", ["s", "s" * 255])
def test_the_id_of_an_inner_session_fits_every_store(use_id: str, session_id: str) -> None:
    """A provider's ids may be long, or not printable; different ids stay different."""
    made = inner_session_id(session_id, use_id)
    assert (0 < len(made) <= 255, made.isprintable()) == (True, True)
    assert made == inner_session_id(session_id, use_id) != inner_session_id(session_id, use_id + "x")
    assert (made == f"{session_id}/{use_id}") is (use_id == "t1" and session_id == "s")


async def test_a_sub_agent_of_a_session_with_a_long_id_suspends_and_goes_on_from_another_store() -> None:
    """The agent, the store that exports it and the one that imports it give the inner session the same id."""
    long, call = "s" * 250, "t" * 40

    def build(store: MemoryStore, *replies: Any) -> Agent:
        inner = ScriptedModel([ToolUseBlock("s1", "pay", {"euros": 4}), "Paid."] if len(replies) > 1 else ["Paid."])
        treasurer = Agent("treasurer", inner, tools=[pay])
        return Agent("boss", ScriptedModel(replies), tools=[treasurer], store=store)

    store, other = MemoryStore(), MemoryStore()
    boss = build(store, ToolUseBlock(call, "treasurer", {"message": "Pay"}), "Done.")
    reply = await boss.call("Pay Ann", session=long)
    assert reply.outcome == "suspended"
    assert {info.id for info in await store.sessions()} == {long, inner_session_id(long, call)}
    await other.import_(await store.export(long))
    reply = await build(other, "Done.").resume(long, {waits.id: Approve() for waits in reply.pending})
    assert reply.text == "Done."
