"""Suspending and resuming: what waits, what runs, and what is refused."""

from typing import Any

import pytest
from eventlog import Recorder, history, log, sent, use
from toolbox import look

from agentflow import (
    Agent,
    Answer,
    Approve,
    Deny,
    Hook,
    MemoryStore,
    PostCall,
    PostReasoning,
    PostToolRound,
    PreActing,
    PreToolRound,
    RunContext,
    Session,
    Suspend,
    on,
    tool,
)
from agentflow.errors import SuspendedError, UsageError
from agentflow.testing import ScriptedModel


class Asks(Hook):
    """Suspends an event class, for calls of a tool if one is named."""

    def __init__(self, kind: type, name: str | None = None) -> None:
        self.kind = kind
        self.tool = name
        self.asked: list[str] = []

    def on_event(self, event: Any) -> Any:
        if isinstance(event, self.kind) and (self.tool is None or event.tool_use.name == self.tool):
            self.asked.append(event.call_id)
            return Suspend({"why": "check"})
        return event


class Lab:
    """Tools that record their runs."""

    def __init__(self) -> None:
        self.ran: list[str] = []

        @tool(type="read")
        async def look(at: str) -> str:
            """Look."""
            self.ran.append(f"look {at}")
            return f"saw {at}"

        @tool
        async def write(text: str) -> str:
            """Write."""
            self.ran.append(f"write {text}")
            return f"wrote {text}"

        @tool(requires_approval=True)
        async def delete(path: str) -> str:
            """Delete."""
            self.ran.append(f"delete {path}")
            return f"deleted {path}"

        self.tools = [look, write, delete]


def lab_agent(script: list[Any], *hooks: Any, **options: Any) -> tuple[Lab, Agent]:
    lab = Lab()
    return lab, Agent("a", ScriptedModel(script), tools=lab.tools, hooks=list(hooks), **options)


WAITS = "Suspended: waits for a decision."
ROUND = [
    use("t1", "look", at="x"),
    use("t2", "delete", path="/tmp/x"),
    use("t3", "write", text="y"),
]


async def test_requires_approval_suspends_and_resumes() -> None:
    """A tool that requires approval suspends: siblings finish, later writes wait unvetted, the round stays open; resume is
    a new call of the same run that runs the unfinished calls only."""
    recorder = Recorder()
    lab, agent = lab_agent([ROUND, "done"], recorder)
    reply = await agent.call("go")
    assert (reply.outcome, lab.ran) == ("suspended", ["look x"])
    assert [(p.id, p.kind, p.hook, p.request) for p in reply.pending] == [
        ("t2", "approval", "requires_approval", {"tool": "delete", "input": {"path": "/tmp/x"}})
    ]
    waits = "suspended 'Suspended: waits for a decision.'"
    assert recorder.log[4:] == [
        "PreToolRound t1:look(at='x'), t2:delete(path='/tmp/x'), t3:write(text='y')",
        "PreActing t1:look(at='x')",
        "PostActing t1 success 'saw x'",
        "PreActing t2:delete(path='/tmp/x')",
        f"PostActing t2 {waits}",
        f"PostToolRound t1 success 'saw x'; t2 {waits}; t3 {waits}",
        "PostCall suspended ''",
        "CallEnded suspended",
    ]
    first = recorder.seen[0]
    recorder.seen.clear()
    reply = await agent.resume(None, {"t2": Approve()})
    assert (reply.text, reply.outcome) == ("done", "completed")
    assert lab.ran == ["look x", "delete /tmp/x", "write y"]
    assert recorder.log == [
        "PreToolRound t2:delete(path='/tmp/x'), t3:write(text='y')",
        "PreActing t2:delete(path='/tmp/x') Approve",
        "PostActing t2 success 'deleted /tmp/x'",
        "PreActing t3:write(text='y')",
        "PostActing t3 success 'wrote y'",
        "PostToolRound t1 success 'saw x'; t2 success 'deleted /tmp/x'; t3 success 'wrote y'",
        "PreReasoning 2 reason",
        "ReasoningChunk done",
        "PostReasoning done",
        "PostCall completed 'done'",
        "CallEnded completed",
    ]
    second = recorder.seen[0]
    assert second.run_id == first.run_id
    assert second.call_id != first.call_id
    assert history(agent.session()) == [
        "user: go",
        "assistant: [t1:look(at='x')] [t2:delete(path='/tmp/x')] [t3:write(text='y')]",
        "tool: t1 success 'saw x'; t2 success 'deleted /tmp/x'; t3 success 'wrote y'",
        "assistant: done",
    ]


@pytest.mark.parametrize(
    ("decision", "result"),
    [
        (Approve(), "t1 success 'wrote x'"),
        (Approve(input={"text": "edited"}), "t1 success 'wrote edited'"),
        (Deny("too risky"), "t1 denied 'Denied: too risky'"),
        (Answer("by hand"), "t1 success 'by hand'"),
    ],
)
@pytest.mark.parametrize("kind", [PreActing, PreToolRound, PostReasoning])
async def test_decisions(decision: Any, result: str, kind: type) -> None:
    """Approve runs the call, with edited input if any; Deny refuses it; Answer supplies the result."""
    asks = Asks(kind)
    _, agent = lab_agent([[use("t1", "write", text="x")], "done"], asks)
    assert (await agent.call("go")).outcome == "suspended"
    if kind is PostReasoning:
        asks.kind = type(None)
    reply = await agent.resume(None, {"t1": decision})
    assert (reply.text, reply.outcome) == ("done", "completed")
    assert history(agent.session())[2] == f"tool: {result}"


async def test_edited_input_is_validated_again() -> None:
    """An approved edit that does not fit the tool is refused before anything runs; the call still waits."""
    lab, agent = lab_agent([[use("t1", "write", text="x")], "done"], Asks(PreActing))
    await agent.call("go")
    with pytest.raises(UsageError, match=r"edited arguments for 't1' are invalid, so nothing was resumed\."):
        await agent.resume(None, {"t1": Approve(input={"text": 3, "more": 1})})
    assert (lab.ran, [p.id for p in agent.session().pending]) == ([], ["t1"])
    assert (await agent.resume(None, {"t1": Approve(input={"text": "y"})})).text == "done"
    assert lab.ran == ["write y"]


async def test_the_whole_chain_runs_again_on_resume() -> None:
    """On resume the whole PreActing chain runs with event.approval set: a guard may still deny what a person approved."""

    class Guard(Hook):
        guard = True

        def on_event(self, event: Any) -> Any:
            if isinstance(event, PreActing) and event.approval is not None and event.tool_use.input["text"] == "bad":
                return Deny("never")
            return event

    lab, agent = lab_agent([[use("t1", "write", text="x")], "done"], Asks(PreActing), Guard())
    await agent.call("go")
    await agent.resume(None, {"t1": Approve(input={"text": "bad"})})
    assert lab.ran == []
    assert history(agent.session())[2] == "tool: t1 denied 'Denied: never'"


async def test_suspend_on_post_tool_round_parks_the_session() -> None:
    """Suspend without an open call parks the session: the results are stored, resume needs no decision."""
    asks = Asks(PostToolRound)
    lab, agent = lab_agent([[use("t1", "look", at="x")], "done"], asks)
    reply = await agent.call("go")
    assert (reply.outcome, [(p.id, p.kind) for p in reply.pending]) == ("suspended", [("call", "parked")])
    assert history(agent.session())[2] == "tool: t1 success 'saw x'"
    asks.tool = "nothing"
    asks.kind = type(None)
    assert (await agent.resume()).text == "done"
    assert lab.ran == ["look x"]


async def test_suspend_on_a_reply_without_calls_parks_the_session() -> None:
    """Suspend on PostReasoning of a reply without calls: resume accepts the reply, and the model is not asked again."""
    _, agent = lab_agent(["answer"], Asks(PostReasoning))
    reply = await agent.call("go")
    assert (reply.text, reply.outcome) == ("answer", "suspended")
    reply = await agent.resume()
    assert (reply.text, reply.outcome) == ("answer", "completed")
    assert history(agent.session()) == ["user: go", "assistant: answer"]


async def test_suspend_twice_in_one_run() -> None:
    """A later round may suspend again; each has its own resume, all of one run."""
    script = [[use("t1", "delete", path="a")], [use("t2", "delete", path="b")], "done"]
    lab, agent = lab_agent(script)
    first = await agent.call("go")
    second = await agent.resume(None, {"t1": Approve()})
    assert (second.outcome, [p.id for p in second.pending]) == ("suspended", ["t2"])
    third = await agent.resume(None, {"t2": Approve()})
    assert (third.text, {first.run_id, second.run_id, third.run_id}) == ("done", {first.run_id})
    assert lab.ran == ["delete a", "delete b"]


async def test_the_budget_continues() -> None:
    """Resumes use the budget of their run: two rounds of two, then the summary."""
    script = [[use("t1", "delete", path="a")], [use("t2", "delete", path="b")], "sum"]
    _, agent = lab_agent(script, max_iterations=2)
    await agent.call("go")
    await agent.resume(None, {"t1": Approve()})
    reply = await agent.resume(None, {"t2": Approve()})
    assert (reply.text, reply.outcome) == ("sum", "limited")


async def test_several_calls_wait_at_once() -> None:
    """Parallel calls that suspend all wait; all of them need a decision."""
    calls = [use("t1", "look", at="a"), use("t2", "look", at="b")]
    lab, agent = lab_agent([calls, "done"], Asks(PreActing))
    reply = await agent.call("go")
    assert [p.id for p in reply.pending] == ["t1", "t2"]
    await agent.resume(None, {"t2": Approve(), "t1": Deny("no")})
    assert lab.ran == ["look b"]
    assert history(agent.session())[2] == "tool: t1 denied 'Denied: no'; t2 success 'saw b'"


async def _suspended() -> Agent:
    _, agent = lab_agent([[use("t1", "delete", path="a"), use("t2", "write", text="x")], "done"])
    await agent.call("go", session="s")
    return agent


@pytest.mark.parametrize(
    ("decisions", "text"),
    [
        ({}, "Session 's': decisions are missing for ['t1']. Pass one for each pending call."),
        (
            {"t1": Approve(), "t9": Approve()},
            "Session 's': no call ['t9'] waits for a decision; waiting: ['t1'].",
        ),
        (
            {"t1": True},
            "The decision for 't1' is True; use Approve(), Approve(input=...), Deny(reason), Answer(value).",
        ),
    ],
)
async def test_wrong_decisions(decisions: Any, text: str) -> None:
    """Missing, unknown and wrong decisions are refused with their ids; the session stays suspended and can be resumed."""
    agent = await _suspended()
    with pytest.raises(UsageError) as caught:
        await agent.resume("s", decisions)
    assert str(caught.value) == text
    assert (await agent.resume("s", {"t1": Approve()})).text == "done"


async def test_resume_on_a_session_that_is_not_suspended() -> None:
    """Resuming what is not suspended is a UsageError; the session stays usable."""
    _, agent = lab_agent(["x"])
    with pytest.raises(UsageError) as caught:
        await agent.resume("s")
    assert (
        str(caught.value) == "Session 's' is not suspended, so there is nothing to resume. Use agent.call(...) instead."
    )
    assert (await agent.call("go", session="s")).text == "x"


async def test_a_plain_call_on_a_suspended_session() -> None:
    """A plain call on an open round raises SuspendedError, fires nothing, and changes nothing."""
    agent = await _suspended()
    recorder = Recorder()
    with pytest.raises(SuspendedError) as caught:
        await agent.call("more", session="s", hooks=[recorder])
    assert str(caught.value) == (
        "Session 's' is suspended and waits for t1. Answer with agent.resume('s', {id: Approve() | Deny(reason) | "
        "Answer(value)}) before the next plain call."
    )
    assert (caught.value.pending, recorder.seen) == (("t1",), [])


async def test_resume_stream() -> None:
    """`resume_stream` yields the events of the resume."""
    agent = await _suspended()
    async with agent.resume_stream("s", {"t1": Deny("no")}) as events:
        lines = log([event async for event in events])
    assert lines[1:3] == ["PreActing t1:delete(path='a') Deny", "PostActing t1 denied 'Denied: no'"]
    assert lines[-1] == "CallEnded completed"


async def test_the_next_call_after_a_resume() -> None:
    """After the resume the session takes plain calls again, over a legal history."""
    agent = await _suspended()
    await agent.resume("s", {"t1": Approve()})
    agent.config.model._lines.append("next")  # type: ignore[union-attr]
    assert (await agent.call("more", session="s")).text == "next"


@pytest.mark.parametrize("kind", [PreActing, PreToolRound, PostToolRound])
@pytest.mark.parametrize("stored", [False, True])
async def test_what_the_system_prompt_injects_on_resume_reaches_the_model(kind: type, stored: bool) -> None:
    """A message injected by the function that makes the system prompt is part of the next request, in a first and in a
    resumed call, directly after the round that was suspended.
    """
    calls = iter("12")

    def system(context: RunContext) -> str:
        context.inject(f"note {next(calls)}")
        return "Be brief."

    model = ScriptedModel([[use("t1", "look", at="x")], "done"])
    agent = Agent("a", model, system=system, tools=[look], hooks=[Asks(kind)], store=MemoryStore() if stored else None)
    reply = await agent.call("go")
    assert reply.outcome == "suspended"
    await agent.resume(None, {wait.id: Approve() for wait in reply.pending})
    assert sent(agent, 1)[-1] == "user: note 2"
    assert history(agent.session())[-2:] == ["user: note 2", "assistant: done"]


async def test_a_cancelled_resume_leaves_a_legal_history() -> None:
    """A resume that fails closes the round: finished results are kept, and the others are marked."""

    class Fails(Hook):
        def on_event(self, event: Any) -> Any:
            if isinstance(event, PreActing) and event.approval is not None:
                raise ValueError("hook down")
            return event

    session = Session.fresh()
    _, agent = lab_agent([ROUND, "next"], Fails())
    await agent.call("go", session=session)
    with pytest.raises(ValueError, match="hook down"):
        await agent.resume(session, {"t2": Approve()})
    states = [result.state for result in session.messages[2].tool_results]
    assert states == ["success", "interrupted", "interrupted"]
    assert (await agent.call("more", session=session)).text == "next"


async def test_state_trace_and_seq_go_on_over_a_resume() -> None:
    """A run is a call and its resumes: typed state, the trace and the numbering of events belong to the run."""

    class Count:
        n = 0

    @tool
    async def add(a: int, b: int) -> int:
        """Add."""
        return a + b

    seen: list[tuple[str, int, int, int]] = []

    @on(PreActing, PostCall)
    def count(event: Any) -> Any:
        state = event.context.state[Count]
        state.n += 1
        seen.append((type(event).__name__, event.seq, state.n, len(event.context.trace.model_calls)))
        return Suspend("ask") if isinstance(event, PreActing) and event.approval is None else event

    agent = Agent("a", ScriptedModel([use("t1", "add", a=1, b=2), "3"]), tools=[add], hooks=[count])
    await agent.call("go")
    await agent.resume(decisions={"t1": Approve()})
    numbers = [row[1] for row in seen]
    assert numbers == sorted(set(numbers))
    assert [(name, n, calls) for name, _, n, calls in seen] == [
        ("PreActing", 1, 1),
        ("PostCall", 2, 1),
        ("PreActing", 3, 1),
        ("PostCall", 4, 2),
    ]


@pytest.mark.parametrize("stored", [False, True], ids=["in memory", "loaded anew"])
async def test_a_renamed_call_that_waited_is_vetted_again(stored: bool) -> None:
    """A hook has turned a call into a write, which waits after a suspended one. On resume its whole chain runs again,
    under its new name, and it does not run if it has been forbidden meanwhile.
    """
    allowed = True

    @on(PreActing)
    def rename(event: PreActing) -> None:
        if event.tool_use.name == "look":
            event.tool_use = event.tool_use.replace(name="write", input={"text": "y"})

    @on(PreActing, guard=True)
    def guard(event: PreActing) -> Deny | None:
        return Deny("not today") if event.tool_use.name == "write" and not allowed else None

    @tool(type="read", requires_approval=True)
    async def ask() -> str:
        """Ask."""
        return "asked"

    lab, store, recorder = Lab(), MemoryStore(), Recorder()

    def agent_of(script: list[Any]) -> Agent:
        tools = [*lab.tools, ask]
        return Agent("a", ScriptedModel(script), tools=tools, hooks=[rename, guard, recorder], store=store)

    agent = agent_of([[use("t1", "look", at="x"), use("t2", "ask")], "end"])
    reply = await agent.call("go", session="s")
    assert [waits.id for waits in reply.pending] == ["t2"]
    assert (lab.ran, log(recorder.seen)[-8:]) == (
        [],
        [
            "PreToolRound t1:look(at='x'), t2:ask()",
            "PreActing t1:write(text='y')",
            "PreActing t2:ask()",
            f"PostActing t2 suspended {WAITS!r}",
            f"PostActing t1 suspended {WAITS!r}",
            f"PostToolRound t1 suspended {WAITS!r}; t2 suspended {WAITS!r}",
            "PostCall suspended ''",
            "CallEnded suspended",
        ],
    )
    allowed = False
    recorder.seen.clear()
    if stored:
        agent = agent_of(["end"])
    assert (await agent.resume("s", {"t2": Approve()})).text == "end"
    assert lab.ran == []
    assert [line for line in log(recorder.seen) if "Acting" in line] == [
        "PreActing t1:write(text='y') -> Deny(guard)",
        "PostActing t1 denied 'Denied: not today'",
        "PreActing t2:ask() Approve",
        "PostActing t2 success 'asked'",
    ]
    assert history(agent.session("s"))[2] == "tool: t1 denied 'Denied: not today'; t2 success 'asked'"


async def test_a_suspended_call_goes_on_in_another_agent() -> None:
    """Suspended in one agent, resumed in another over the same store: the tool runs once, the budget continues."""
    ran: list[str] = []

    class Asks(Hook):
        def on_event(self, event: Any) -> Any:
            return Suspend("sure?") if isinstance(event, PreActing) and event.tool_use.name == "act" else event

    @tool
    async def act(at: str) -> str:
        """Act."""
        ran.append(at)
        return "acted"

    def made(script: list[Any]) -> Agent:
        return Agent("a", ScriptedModel(script), tools=[look, act], hooks=[Asks()], store=store, max_iterations=1)

    store = MemoryStore()
    calls = [use("t1", "look", at="a"), use("t2", "act", at="b")]
    assert (await made([calls]).call("go", session="s")).outcome == "suspended"
    other = made(["sum"])
    reply = await other.resume("s", {"t2": Approve()})
    assert (reply.text, reply.outcome, ran) == ("sum", "limited", ["b"])
    assert history(other.session("s"))[2] == "tool: t1 success 'saw a'; t2 success 'acted'"
