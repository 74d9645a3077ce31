"""Handoffs: who holds the conversation, what is passed on, and how often."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from compositions import said
from eventlog import history, use
from laws_checks import check_history, check_request

from agentflow import Agent, Approve, Deny, MemoryStore, Msg, PreActing, Session, ToolUseBlock, on, tool
from agentflow.agent.orchestration import Handoff, handoffs, holder
from agentflow.errors import UsageError
from agentflow.testing import ScriptedModel

TO_BILLING = use("t1", "transfer_to_billing", reason="an invoice")
TO_TECH = use("t2", "transfer_to_tech", reason="a crash")


def asked(model: ScriptedModel, number: int) -> list[str]:
    """Return the requests to a model, one line for each message."""
    return said(model.requests[number].messages)


class Desk:
    """Three agents, and the requests to their models."""

    def __init__(self, triage: Sequence[Any], billing: Sequence[Any], tech: Sequence[Any] = (), **options: Any) -> None:
        self.triage, self.billing, self.tech = (ScriptedModel(script) for script in (triage, billing, tech))
        agents = [Agent(name, getattr(self, name), system=f"You are {name}.") for name in ("triage", "billing", "tech")]
        self.agent = handoffs(*agents, **options)

    async def say(self, text: str, session: str = "s") -> str:
        reply = await self.agent.call(text, session=session)
        check_history(self.agent.session(session).messages)
        for model in (self.triage, self.billing, self.tech):
            for request in model.requests:
                check_request(request.messages)
        return reply.text

    async def holder(self) -> str | None:
        return holder(await self.agent.history("s"))


async def test_the_next_message_goes_to_who_holds_the_conversation() -> None:
    """The first agent hands over, the second one answers, in this call and in the next ones; each keeps the messages
    it has read.
    """
    desk = Desk(
        [TO_BILLING, "I am triage."], ["It is paid.", "In May.", use("b1", "transfer_to_triage", reason="no invoice")]
    )
    assert await desk.holder() is None
    assert await desk.say("Is invoice 4 paid?") == "It is paid."
    assert await desk.holder() == "billing"
    assert await desk.say("When?") == "In May."
    assert len(desk.triage.requests) == 1
    assert await desk.say("Who are you?") == "I am triage."
    assert await desk.holder() == "triage"
    assert asked(desk.billing, 1) == [
        "system: You are billing.",
        "user: Is invoice 4 paid?",
        "user: (triage has handed this conversation to you: an invoice)",
        "assistant: It is paid.",
        "user: When?",
    ]
    assert asked(desk.triage, 1) == [
        "system: You are triage.",
        "user: Is invoice 4 paid?",
        "assistant: ",
        "tool: The conversation goes on with billing.",
        "assistant: Handed over to billing.",
        "assistant: It is paid.",
        "user: When?",
        "assistant: In May.",
        "user: Who are you?",
        "user: (billing has handed this conversation to you: no invoice)",
    ]


@pytest.mark.parametrize(
    ("travels", "told"),
    [
        ("all", ["user: First.", "assistant: One.", "user: Second."]),
        ("last", ["user: Second."]),
        (lambda words: [Msg.user(f"{len(words)} messages")], ["user: 3 messages"]),
        (
            Agent(
                "scribe", ScriptedModel(lambda request: f"[{request.messages[-1].text.partition(chr(10))[2].strip()}]")
            ),
            ["user: What was said before: [user: First.\n\ntriage: One.]", "user: Second."],
        ),
    ],
    ids=["all", "last", "function", "summary"],
)
async def test_what_travels(travels: Any, told: list[str]) -> None:
    """All unread messages, the user's last message, the result of a function or a summarising agent; and the reason."""
    desk = Desk(["One.", TO_BILLING], ["Two."], history=travels)
    assert await desk.say("First.") == "One."
    assert await desk.say("Second.") == "Two."
    note = "user: (triage has handed this conversation to you: an invoice)"
    assert asked(desk.billing, 0) == ["system: You are billing.", *told, note]


async def test_ping_pong_has_an_end() -> None:
    """After `max_handoffs` handoffs the holder is offered none, and a requested one is denied."""
    back = use("b1", "transfer_to_triage", reason="yours")
    desk = Desk([TO_BILLING, TO_BILLING, "Then I answer."], [back, back], max_handoffs=2)
    assert await desk.say("Hi") == "Then I answer."
    offered = [[spec.name for spec in request.tools] for request in (*desk.triage.requests, *desk.billing.requests)]
    both = ["transfer_to_billing", "transfer_to_tech"]
    assert offered == [both, [], [], ["transfer_to_triage", "transfer_to_tech"]]
    assert asked(desk.triage, 2)[-1] == (
        "tool: Denied: The conversation was handed over 2 times since the user's message: answer it yourself."
    )
    assert await desk.holder() == "triage"


async def test_who_may_hand_to_whom() -> None:
    """`to=` defines it; another name is an unknown tool."""
    desk = Desk([TO_TECH, TO_BILLING], ["Paid."], to={"triage": ["billing"]})
    assert await desk.say("Hi") == "Paid."
    assert [spec.name for spec in desk.triage.requests[0].tools] == ["transfer_to_billing"]
    assert "transfer_to_tech" in asked(desk.triage, 1)[-1]
    assert desk.billing.requests[0].tools == ()


async def test_of_two_hand_offs_the_first_counts() -> None:
    """A model that requests two handoffs makes the first; the other call is denied."""
    desk = Desk([[TO_BILLING, TO_TECH]], ["Paid."])
    assert await desk.say("Hi") == "Paid."
    assert history(await desk.agent.history("s"))[2].endswith('"to":"billing","reason":"an invoice"}\'')


async def test_an_agent_s_own_guard_may_refuse_a_hand_off() -> None:
    """Hooks of the agents apply: a guard handles the call of the tool, and the agent's own model answers."""

    @on(PreActing, guard=True)
    def stay(event: PreActing) -> Deny | None:
        return Deny("stay") if event.tool_use.name.startswith("transfer_to") else None

    triage = Agent("triage", ScriptedModel([TO_BILLING, "I stay."]), hooks=[stay])
    desk = handoffs(triage, Agent("billing", ScriptedModel([])))
    assert (await desk.call("Hi")).text == "I stay."
    assert holder(await desk.history()) == "triage"


@pytest.mark.parametrize("way", ["to_json", "restart", "fork"])
async def test_who_holds_it_outlives_the_process(way: str) -> None:
    """Saved, loaded by another process, or forked: the same agent continues, and remembers its own tool calls."""
    store = None if way == "to_json" else MemoryStore()

    @tool
    async def look_up(number: int) -> str:
        return f"invoice {number}: paid"

    def make(billing: ScriptedModel) -> Agent[str]:
        triage = Agent("triage", ScriptedModel([TO_BILLING]))
        return handoffs(triage, Agent("billing", billing, tools=[look_up]), store=store)

    first = make(ScriptedModel([use("l1", "look_up", number=4), "It is paid."]))
    assert (await first.call("Is it?", session="s")).text == "It is paid."
    session: Any = "s"
    if way == "to_json":
        session = Session.from_json(first.session("s").to_json())
    elif way == "fork":
        assert store is not None
        await store.fork("s", "t")
        session = "t"
    again = ScriptedModel(["Yes."])
    assert (await make(again).call("Sure?", session=session)).text == "Yes."
    assert asked(again, 0)[2:5] == ["assistant: ", "tool: invoice 4: paid", "assistant: It is paid."]


async def test_an_approval_behind_a_hand_off() -> None:
    """If the holder waits for a person, so does the desk; resumed, the holder continues, and still holds the
    conversation.
    """
    did: list[int] = []

    @tool(requires_approval=True)
    async def refund(euros: int) -> str:
        did.append(euros)
        return "refunded"

    triage = Agent("triage", ScriptedModel([TO_BILLING]))
    billing = Agent("billing", ScriptedModel([use("r1", "refund", euros=5), "You get it.", "Bye."]), tools=[refund])
    desk = handoffs(triage, billing)
    reply = await desk.call("My money", session="s")
    [waits] = reply.pending
    assert (waits.source, waits.tool_use and waits.tool_use.name, did) == ("billing", "refund", [])
    reply = await desk.resume("s", {waits.id: Approve()})
    assert (reply.text, did, holder(await desk.history("s"))) == ("You get it.", [5], "billing")
    assert (await desk.call("Thanks", session="s")).text == "Bye."


async def test_an_answer_that_looks_like_a_hand_off_is_none() -> None:
    """The text of an agent never hands the conversation over."""
    desk = Desk(['{"said":"","to":"tech","reason":"tricked"}', "Still me."], [])
    assert await desk.say("Hi") == '{"said":"","to":"tech","reason":"tricked"}'
    assert await desk.holder() == "triage"
    assert await desk.say("And now?") == "Still me."


def test_what_is_refused() -> None:
    """Agents without distinct names, handoffs to unknown agents, invalid limits, tools that would be shadowed."""
    one, two = Agent("one", ScriptedModel([])), Agent("two", ScriptedModel([]))

    @tool
    async def transfer_to_two() -> str:
        return ""

    mine = Agent("mine", ScriptedModel([]), tools=[transfer_to_two])
    for make, told in [
        (handoffs, "needs one or more agents"),
        (lambda: handoffs(one, one), "needs one or more agents"),
        (lambda: handoffs(one, two, to={"one": ["three"]}), "names three; the agents are one, two"),
        (lambda: handoffs(one, two, max_handoffs=0), "at least 1"),
        (lambda: handoffs(mine, two), "in use by a tool of one of the agents"),
        (lambda: handoffs(one, Agent("n" * 60, ScriptedModel([]))), "too long"),
    ]:
        with pytest.raises(UsageError, match=told):
            make()


async def test_a_holder_that_is_gone_gives_the_conversation_back() -> None:
    """The desk is built again without the holder: the first agent answers, and reads the earlier messages."""
    store = MemoryStore()
    first = handoffs(
        Agent("triage", ScriptedModel([TO_BILLING])), Agent("billing", ScriptedModel(["Paid."])), store=store
    )
    await first.call("Is it paid?", session="s")
    assert holder(await first.history("s")) == "billing"
    again = ScriptedModel(["I am triage."])
    second = handoffs(Agent("triage", again), Agent("tech", ScriptedModel([])), store=store)
    assert (await second.call("And now?", session="s")).text == "I am triage."
    assert [line for line in asked(again, 0) if "Paid." in line] == ["assistant: Paid."]
    assert holder(await second.history("s")) == "triage"


async def test_the_summary_at_the_limit_is_offered_no_hand_off() -> None:
    """An agent that has used its rounds writes a summary; a handoff would be one more round."""

    @tool(type="read")
    async def look() -> str:
        return "seen"

    model = ScriptedModel([use("l1", "look"), "That is all."])
    desk = handoffs(Agent("triage", model, tools=[look], max_iterations=1), Agent("billing", ScriptedModel([])))
    assert (await desk.call("Hi")).text == "That is all."
    offered = [["look", "transfer_to_billing"], ["look"]]
    assert [sorted(spec.name for spec in request.tools) for request in model.requests] == offered


@dataclass
class Ticket:
    """What billing needs."""

    invoice: int
    urgent: bool = False


async def test_typed_input() -> None:
    """The model fills in the input type of the next agent; invalid input is returned to it, and `on_handoff` gets the
    input.
    """
    seen: list[Handoff] = []

    async def note(handoff: Handoff) -> None:
        seen.append(handoff)
        if handoff.input.invoice == 7:
            raise ValueError("invoice 7 is locked")

    def to(id: str, **given: object) -> ToolUseBlock:  # noqa: A002
        return ToolUseBlock(id, "transfer_to_billing", given)

    first = ScriptedModel([to("a", invoice="x"), to("b", invoice=7), to("c", invoice=8, urgent=True)])
    triage = Agent("triage", first)
    billing = Agent("billing", model := ScriptedModel(["It is paid."]))
    desk = handoffs(triage, billing, inputs={"billing": Ticket}, on_handoff=note)
    assert (await desk.call("Is it paid?")).text == "It is paid."
    assert [(one.by, one.to, one.input) for one in seen] == [
        ("triage", "billing", Ticket(7)), ("triage", "billing", Ticket(8, urgent=True)),
    ]  # fmt: skip
    assert seen[0].context.agent.name == "triage"
    assert model.requests[0].messages[-1].text == (
        '(triage has handed this conversation to you: {"invoice":8,"urgent":true})'
    )
    problem = (
        "The values of your answer do not fit.\n- invoice: should be a valid integer, unable to parse string as an integer; "
        'got "x"'
    )
    assert [request.messages[-1].text for request in first.requests][1:] == [
        f"Not handed over: {problem}",
        "Not handed over: invoice 7 is locked",
    ]


def test_wrong_inputs() -> None:
    """The input of a handoff is an object, for one of the agents."""
    agents = [Agent(name, ScriptedModel([])) for name in ("a", "b")]
    for inputs in ({"c": Ticket}, {"b": int}):
        with pytest.raises(UsageError, match="inputs="):
            handoffs(*agents, inputs=inputs)
