"""The effects of verdicts: the table of events and the "Outcomes" of the contract, sentence by sentence, as whole
logs.
"""

import asyncio
from typing import Any

import pytest
from eventlog import Recorder, history, log, sent, streamed, use
from toolbox import add, look, looks

from agentflow import (
    Again,
    Agent,
    Answer,
    Deny,
    Hook,
    ModelChunk,
    Msg,
    Recover,
    Session,
    Stop,
    Suspend,
    ToolResultBlock,
    ToolUseBlock,
    Veto,
    on,
    tool,
)
from agentflow.errors import HookContractError, UsageError
from agentflow.testing import ScriptedModel
from agentflow.vocabulary.events import (
    EVENT_TYPES,
    Error,
    PostActing,
    PostCall,
    PostReasoning,
    PostToolRound,
    PreActing,
    PreCall,
    PreReasoning,
    PreToolRound,
)
from agentflow.vocabulary.specs import ModelOptions


class Says(Hook):
    """Answers one event class with one value, once."""

    def __init__(self, kind: type, answer: Any, *, times: int = 1) -> None:
        self.kind = kind
        self.answer = answer
        self.left = times

    def on_event(self, event: Any) -> Any:
        if isinstance(event, self.kind) and self.left:
            self.left -= 1
            return self.answer
        return event


@tool
async def write(text: str) -> str:
    """Write."""
    return f"wrote {text}"


@tool(type="read")
async def fail() -> str:
    """Fail."""
    raise ValueError("broken")


TOOLS = [add, write, fail]
ONE = [use("t1", "add", a=1, b=2)]
TWO = [use("t1", "add", a=1, b=2), use("t2", "write", text="x")]


def agent_of(script: list[Any], *hooks: Any, **options: Any) -> Agent:
    return Agent("a", ScriptedModel(script), tools=TOOLS, hooks=list(hooks), **options)


async def test_a_call_without_tools() -> None:
    """A call fires the call's events around one reply, and ends with CallEnded."""
    agent = agent_of([["Hel", "lo"]])
    assert await streamed(agent) == [
        "PreCall user: go",
        "PreReasoning 1 reason",
        "ReasoningChunk Hello",
        "PostReasoning Hello",
        "PostCall completed 'Hello'",
        "CallEnded completed",
    ]
    assert history(agent.session()) == ["user: go", "assistant: Hello"]


async def test_a_call_with_one_round() -> None:
    """A reply with calls opens a round; its results go to the model, which answers."""
    agent = agent_of([ONE, "3"])
    assert await streamed(agent) == [
        "PreCall user: go",
        "PreReasoning 1 reason",
        'ReasoningChunk [t1:add {"a":1,"b":2}]',
        "PostReasoning [t1:add(a=1, b=2)]",
        "PreToolRound t1:add(a=1, b=2)",
        "PreActing t1:add(a=1, b=2)",
        "PostActing t1 success '3'",
        "PostToolRound t1 success '3'",
        "PreReasoning 2 reason",
        "ReasoningChunk 3",
        "PostReasoning 3",
        "PostCall completed '3'",
        "CallEnded completed",
    ]
    assert history(agent.session()) == [
        "user: go",
        "assistant: [t1:add(a=1, b=2)]",
        "tool: t1 success '3'",
        "assistant: 3",
    ]


async def test_deny_on_precall_stores_nothing() -> None:
    """Deny on PreCall: nothing is stored, the reply carries the reason and the outcome `denied`."""
    agent = agent_of([], Says(PreCall, Deny("closed on Sundays")))
    assert await streamed(agent) == [
        "PreCall user: go -> Deny(Says)",
        "PostCall denied 'closed on Sundays'",
        "CallEnded denied",
    ]
    assert history(agent.session()) == []


async def test_an_edit_of_a_denied_reply_is_returned_only() -> None:
    """An edit in PostCall of a denied call reaches the caller and not the history."""

    class Edit(Hook):
        def on_event(self, event: Any) -> Any:
            if isinstance(event, PostCall):
                event.final_message = Msg.assistant("edited")
            return event

    agent = agent_of([], Says(PreCall, Deny("no")), Edit())
    reply = await agent.call("go")
    assert (reply.text, reply.outcome) == ("edited", "denied")
    assert history(agent.session()) == []


async def test_answer_on_precall_stores_input_and_answer() -> None:
    """Answer on PreCall: the model is not called; input and answer are stored."""
    agent = agent_of([], Says(PreCall, Answer(Msg.assistant("cached"))))
    assert await streamed(agent) == [
        "PreCall user: go -> Answer(Says)",
        "PostCall completed 'cached'",
        "CallEnded completed",
    ]
    assert history(agent.session()) == ["user: go", "assistant: cached"]


async def test_answer_on_prereasoning_becomes_one_chunk_and_its_tools_run() -> None:
    """Answer on PreReasoning is one chunk; PostReasoning fires with zero usage; its tool uses run."""
    recorder = Recorder()
    answer = Msg.assistant([use("t1", "add", a=1, b=2)])
    agent = agent_of(["3"], Says(PreReasoning, Answer(answer)), recorder)
    assert await streamed(agent) == [
        "PreCall user: go",
        "PreReasoning 1 reason -> Answer(Says)",
        "ReasoningChunk [t1:add(a=1, b=2)]",
        "PostReasoning [t1:add(a=1, b=2)]",
        "PreToolRound t1:add(a=1, b=2)",
        "PreActing t1:add(a=1, b=2)",
        "PostActing t1 success '3'",
        "PostToolRound t1 success '3'",
        "PreReasoning 2 reason",
        "ReasoningChunk 3",
        "PostReasoning 3",
        "PostCall completed '3'",
        "CallEnded completed",
    ]
    first = next(event for event in recorder.seen if isinstance(event, PostReasoning))
    assert (first.usage.model_calls, first.usage.total_tokens) == (0, 0)


async def test_answer_on_prereasoning_may_be_words() -> None:
    """The value of an Answer may be the text of a message."""
    agent = agent_of([], Says(PreReasoning, Answer("from the cache")))
    reply = await agent.call("go")
    assert (reply.text, reply.outcome, reply.usage.model_calls) == ("from the cache", "completed", 0)


@pytest.mark.parametrize(("verdict", "outcome"), [(Deny("no model"), "denied"), (Stop("no model"), "stopped")])
async def test_deny_or_stop_on_prereasoning_closes_the_history(verdict: Any, outcome: str) -> None:
    """Deny or Stop on PreReasoning: a synthetic assistant message with the reason closes the history."""
    agent = agent_of([], Says(PreReasoning, verdict))
    assert await streamed(agent) == [
        "PreCall user: go",
        f"PreReasoning 1 reason -> {type(verdict).__name__}(Says)",
        f"PostCall {outcome} 'no model'",
        f"CallEnded {outcome}",
    ]
    assert history(agent.session()) == ["user: go", "assistant: no model"]
    assert agent.session().messages[-1].metadata["synthetic"] == outcome


async def test_again_on_a_text_reply() -> None:
    """Again: the rejected reply is stored, then the messages; the model is called again within the same budget."""
    agent = agent_of(["bad", "good"], Says(PostReasoning, Again("better, please")))
    assert await streamed(agent) == [
        "PreCall user: go",
        "PreReasoning 1 reason",
        "ReasoningChunk bad",
        "PostReasoning bad -> Again(Says)",
        "MessagesAdded again user: better, please",
        "PreReasoning 2 reason",
        "ReasoningChunk good",
        "PostReasoning good",
        "PostCall completed 'good'",
        "CallEnded completed",
    ]
    assert history(agent.session()) == ["user: go", "assistant: bad", "user: better, please", "assistant: good"]


async def test_again_on_a_reply_with_calls_supersedes_them() -> None:
    """Again on a reply with calls: they do not run, their results say superseded, and the messages follow."""
    agent = agent_of([TWO, "good"], Says(PostReasoning, Again("no tools")))
    text = "'Not run: this reply was superseded.'"
    assert await streamed(agent) == [
        "PreCall user: go",
        "PreReasoning 1 reason",
        'ReasoningChunk [t1:add {"a":1,"b":2}][t2:write {"text":"x"}]',
        "PostReasoning [t1:add(a=1, b=2)] [t2:write(text='x')] -> Again(Says)",
        f"MessagesAdded superseded tool: t1 denied {text}; t2 denied {text}",
        "MessagesAdded again user: no tools",
        "PreReasoning 2 reason",
        "ReasoningChunk good",
        "PostReasoning good",
        "PostCall completed 'good'",
        "CallEnded completed",
    ]
    assert history(agent.session()) == [
        "user: go",
        "assistant: [t1:add(a=1, b=2)] [t2:write(text='x')]",
        f"tool: t1 denied {text}; t2 denied {text}",
        "user: no tools",
        "assistant: good",
    ]


async def test_stop_on_a_text_reply() -> None:
    """Stop on PostReasoning of a reply without calls: the call ends with that reply, outcome `stopped`."""
    agent = agent_of(["enough"], Says(PostReasoning, Stop("budget")))
    reply = await agent.call("go")
    assert (reply.text, reply.outcome) == ("enough", "stopped")
    assert history(agent.session()) == ["user: go", "assistant: enough"]


async def test_stop_on_a_reply_with_calls() -> None:
    """Stop on PostReasoning of a reply with calls: unstarted calls are answered, no model call follows."""
    agent = agent_of([TWO], Says(PostReasoning, Stop("budget")))
    reply = await agent.call("go")
    assert (reply.text, reply.outcome) == ("budget", "stopped")
    told = "'Not run: the call was stopped.'"
    assert history(agent.session()) == [
        "user: go",
        "assistant: [t1:add(a=1, b=2)] [t2:write(text='x')]",
        f"tool: t1 denied {told}; t2 denied {told}",
        "assistant: budget",
    ]


async def test_deny_on_a_round_has_no_per_tool_events() -> None:
    """Deny on PreToolRound: no per-tool events, denied results, and the model continues."""
    agent = agent_of([TWO, "understood"], Says(PreToolRound, Deny("not now")))
    lines = await streamed(agent)
    assert lines[4:] == [
        "PreToolRound t1:add(a=1, b=2), t2:write(text='x') -> Deny(Says)",
        "PostToolRound t1 denied 'Denied: not now'; t2 denied 'Denied: not now'",
        "PreReasoning 2 reason",
        "ReasoningChunk understood",
        "PostReasoning understood",
        "PostCall completed 'understood'",
        "CallEnded completed",
    ]


async def test_stop_on_a_round() -> None:
    """Stop on PreToolRound: nothing runs, PostToolRound fires, the reason is the final synthetic message."""
    agent = agent_of([TWO], Says(PreToolRound, Stop("that is all")))
    lines = await streamed(agent)
    assert lines[4:] == [
        "PreToolRound t1:add(a=1, b=2), t2:write(text='x') -> Stop(Says)",
        "PostToolRound t1 denied 'Not run: that is all'; t2 denied 'Not run: that is all'",
        "PostCall stopped 'that is all'",
        "CallEnded stopped",
    ]
    assert agent.session().messages[-1].metadata["synthetic"] == "stopped"


async def test_deny_on_a_call() -> None:
    """Deny on PreActing: the tool does not run, its result has the reason, PostActing fires, siblings run."""
    agent = agent_of([TWO, "ok"], Says(PreActing, Deny("no sums")))
    lines = await streamed(agent)
    assert lines[5:10] == [
        "PreActing t1:add(a=1, b=2) -> Deny(Says)",
        "PostActing t1 denied 'Denied: no sums'",
        "PreActing t2:write(text='x')",
        "PostActing t2 success 'wrote x'",
        "PostToolRound t1 denied 'Denied: no sums'; t2 success 'wrote x'",
    ]


@pytest.mark.parametrize(
    ("value", "result"),
    [
        (7, "t1 success '7'"),
        ("seven", "t1 success 'seven'"),
        (ToolResultBlock("any", "add", "seven", "error"), "t1 error 'seven'"),
    ],
)
async def test_answer_on_a_call(value: Any, result: str) -> None:
    """Answer on PreActing takes a value or a result; the tool does not run, the answer keeps the call's id."""
    agent = agent_of([ONE, "ok"], Says(PreActing, Answer(value)))
    lines = await streamed(agent)
    assert lines[5:8] == [
        "PreActing t1:add(a=1, b=2) -> Answer(Says)",
        f"PostActing {result}",
        f"PostToolRound {result}",
    ]


async def test_stop_in_a_round_lets_running_siblings_finish() -> None:
    """Stop on PostActing: running siblings finish, calls that have not started get a result, PostToolRound fires, no
    model call.
    """
    stopped, running = asyncio.Event(), asyncio.Event()

    @tool(type="read")
    async def slow() -> str:
        """Ends after the stop."""
        running.set()
        await stopped.wait()
        return "finished"

    @tool(type="read")
    async def quick() -> str:
        """Ends once slow runs."""
        await running.wait()
        return "quick"

    class Stops(Hook):
        def on_event(self, event: Any) -> Any:
            if isinstance(event, PostActing) and event.tool_use.name == "quick":
                stopped.set()
                return Stop("found it")
            return event

    calls = [use("t1", "slow"), use("t2", "quick"), use("t3", "write", text="x")]
    agent = Agent("a", ScriptedModel([calls]), tools=[slow, quick, write], hooks=[Stops()])
    lines = await streamed(agent)
    assert lines[5:9] == [
        "PreActing t1:slow()",
        "PreActing t2:quick()",
        "PostActing t2 success 'quick' -> Stop(Stops)",
        "PostActing t1 success 'finished'",
    ]
    told = "t3 denied 'Not run: the call was stopped.'"
    assert lines[9:] == [
        f"PostToolRound t1 success 'finished'; t2 success 'quick'; {told}",
        "PostCall stopped 'found it'",
        "CallEnded stopped",
    ]
    assert history(agent.session())[2:] == [
        f"tool: t1 success 'finished'; t2 success 'quick'; {told}",
        "assistant: found it",
    ]
    assert agent.session().messages[-1].metadata["synthetic"] == "stopped"


async def test_stop_after_a_round() -> None:
    """Stop on PostToolRound: the results are stored, the reason is the final message."""
    agent = agent_of([ONE], Says(PostToolRound, Stop("done here")))
    reply = await agent.call("go")
    assert (reply.text, reply.outcome) == ("done here", "stopped")
    assert history(agent.session())[2:] == ["tool: t1 success '3'", "assistant: done here"]


@pytest.mark.parametrize("kind", [PostReasoning, PreToolRound, PreActing, PostToolRound])
async def test_suspend_returns_a_reply(kind: type) -> None:
    """Suspend, wherever it is legal, returns a Reply with outcome `suspended` and its pending calls."""
    agent = agent_of([ONE], Says(kind, Suspend({"ask": "boss"})))
    reply = await agent.call("go")
    assert reply.outcome == "suspended"
    assert [pending.request for pending in reply.pending] == [{"ask": "boss"}]


async def test_the_strongest_verdict_counts_on_a_post_event() -> None:
    """On a Post event all hooks run and the strongest verdict counts: Suspend, then Stop, then Again."""
    order: list[str] = []

    class Named(Says):
        def __init__(self, name: str, answer: Any) -> None:
            super().__init__(PostReasoning, answer)
            self.label = name

        @property
        def name(self) -> str:
            return self.label

        def on_event(self, event: Any) -> Any:
            if isinstance(event, PostReasoning):
                order.append(self.label)
            return super().on_event(event)

    agent = agent_of(
        ["x"],
        Named("again", Again("m")),
        Named("stop", Stop("s")),
        Named("suspend", Suspend(1)),
        Named("stop2", Stop("t")),
    )
    lines = await streamed(agent)
    assert order == ["again", "stop", "suspend", "stop2"]
    assert lines[3] == "PostReasoning x -> Suspend(suspend)"


async def test_the_first_verdict_decides_on_a_pre_event() -> None:
    """On a Pre event the first verdict decides, and the rest of the chain is skipped, guards included."""
    later: list[str] = []

    class Late(Hook):
        def on_event(self, event: Any) -> Any:
            if isinstance(event, PreCall):
                later.append(self.name)

    class LateGuard(Late):
        guard = True

    agent = agent_of([], Says(PreCall, Deny("no")), Late(), LateGuard())
    await agent.call("go")
    assert later == []


async def test_recover_from_a_model_error() -> None:
    """Recover on a fatal REASONING error: its message is used as the reply."""
    agent = agent_of([ValueError("down")], Says(Error, Recover("plan B")))
    assert await streamed(agent) == [
        "PreCall user: go",
        "PreReasoning 1 reason",
        "Error reasoning fatal ValueError: down -> Recover(Says)",
        "PostReasoning plan B",
        "PostCall completed 'plan B'",
        "CallEnded completed",
    ]
    assert history(agent.session()) == ["user: go", "assistant: plan B"]


async def test_recover_from_a_failing_hook_skips_the_hook() -> None:
    """Recover on a fatal HOOK error: the hook is skipped and the call continues."""

    class Bad(Hook):
        def on_event(self, event: Any) -> Any:
            if isinstance(event, PreReasoning):
                raise ValueError("hook down")  # noqa: TRY004 - what a broken hook raises
            return event

    agent = agent_of(["fine"], Bad(), Says(Error, Recover()))
    assert await streamed(agent) == [
        "PreCall user: go",
        "Error hook fatal ValueError: hook down -> Recover(Says)",
        "PreReasoning 1 reason",
        "ReasoningChunk fine",
        "PostReasoning fine",
        "PostCall completed 'fine'",
        "CallEnded completed",
    ]


async def test_a_tool_that_fails_is_no_fatal_error() -> None:
    """A failing tool fires a non-fatal ACTING error and returns an error result; the loop continues."""
    agent = agent_of([[use("t1", "fail")], "ok"])
    lines = await streamed(agent)
    assert lines[5:9] == [
        "PreActing t1:fail()",
        "Error acting ValueError: broken",
        "PostActing t1 error 'ValueError: broken'",
        "PostToolRound t1 error 'ValueError: broken'",
    ]


async def test_a_failed_call_raises_after_callended() -> None:
    """A failed call raises the original error after Error and CallEnded; the user's input stays in the history."""
    recorder = Recorder()
    error = ValueError("down")
    agent = agent_of([error], recorder)
    with pytest.raises(ValueError, match="down") as caught:
        await agent.call("go")
    assert caught.value is error
    assert recorder.log == [
        "PreCall user: go",
        "PreReasoning 1 reason",
        "Error reasoning fatal ValueError: down",
        "CallEnded failed ValueError: down",
    ]
    assert history(agent.session()) == ["user: go"]


async def test_the_limit_gives_one_summary_without_calls() -> None:
    """max_iterations=N: N rounds of reasoning, then one summary that may call none of the tools; the outcome is `limited`."""
    model = ScriptedModel([[use("t1", "add", a=1, b=1)], [use("t2", "add", a=1, b=1)], "so far"])
    agent = Agent("a", model, tools=TOOLS, max_iterations=2)
    lines = await streamed(agent)
    assert [text for text in lines if text.startswith("PreReasoning")] == [
        "PreReasoning 1 reason",
        "PreReasoning 2 reason",
        "PreReasoning 3 summary",
    ]
    assert lines[-2:] == ["PostCall limited 'so far'", "CallEnded limited"]
    assert [len(request.tools) for request in model.requests] == [3, 3, 3]
    assert [request.options.tool_choice for request in model.requests] == [None, None, "none"]


async def test_no_hook_lets_the_summary_call() -> None:
    """A hook that forces tools on every request does not force them on the summary, which keeps the hook's other
    changes.
    """

    def force(event: PreReasoning) -> None:
        event.options = ModelOptions(tool_choice="required")
        event.tools = event.tools[:1]

    model = ScriptedModel([[use("t1", "add", a=1, b=1)], "so far"])
    agent = Agent("a", model, tools=TOOLS, hooks=[on(PreReasoning)(force)], max_iterations=1)
    assert (await agent.call("go")).outcome == "limited"
    assert [request.options.tool_choice for request in model.requests] == ["required", "none"]
    assert [len(request.tools) for request in model.requests] == [1, 1]


async def test_tool_uses_of_the_summary_are_dropped() -> None:
    """Tool uses in the summary are dropped; the call ends `limited`, and the history is legal."""
    agent = agent_of([ONE, ["words", use("t2", "add", a=1, b=1)]], max_iterations=1)
    reply = await agent.call("go")
    assert (reply.text, reply.outcome, reply.tool_uses) == ("words", "limited", ())
    assert history(agent.session())[-1] == "assistant: words"


async def test_a_summary_of_tool_uses_only() -> None:
    """A summary that consists of tool calls only leaves no blank message in the history."""
    agent = agent_of([ONE, [use("t2", "add", a=1, b=1)]], max_iterations=1)
    reply = await agent.call("go")
    assert reply.outcome == "limited"
    assert history(agent.session()) == ["user: go", "assistant: [t1:add(a=1, b=2)]", "tool: t1 success '3'"]


async def test_again_on_the_summary_is_illegal() -> None:
    """Again on the summary is a HookContractError; the call fails with a legal history."""

    class Nag(Hook):
        def on_event(self, event: Any) -> Any:
            if isinstance(event, PostReasoning) and event.purpose == "summary":
                return Again("more")
            return event

    agent = agent_of([ONE, "sum"], Nag(), max_iterations=1)
    with pytest.raises(HookContractError) as caught:
        await agent.call("go")
    assert str(caught.value) == (
        "Hook 'Nag (priority 100)' answered PostReasoning with Again (Again(messages='more')). Allowed answers: the event, "
        "a changed PostReasoning, None, or a verdict: Stop, Suspend (this is the summary)."
    )
    assert history(agent.session())[:3] == ["user: go", "assistant: [t1:add(a=1, b=2)]", "tool: t1 success '3'"]


@pytest.mark.parametrize(
    ("message", "got"),
    [
        (Msg("system", Msg.system("be brief").content), "Again with a system message"),
        (Msg.assistant([ToolUseBlock("t9", "add", {"a": 1})]), "Again with tool calls"),
    ],
)
async def test_again_with_an_illegal_message(message: Msg, got: str) -> None:
    """Again with a message that cannot follow a reply is a HookContractError, which names the legal messages."""
    agent = agent_of(["draft"], Says(PostReasoning, Again(message)))
    with pytest.raises(HookContractError) as caught:
        await agent.call("go")
    assert str(caught.value) == (
        f"Hook 'Says' answered PostReasoning with {got}. Allowed answers: Again with user messages, or with assistant "
        "messages without tool calls."
    )


@pytest.mark.parametrize("heard", [False, True])
async def test_a_verdict_on_the_summary_beats_the_limit(heard: bool) -> None:
    """A call that a verdict ends at its summary is stopped, denied or suspended, not limited."""

    class AtSummary(Hook):
        def __init__(self, kind: type, verdict: Any) -> None:
            self.kind, self.verdict = kind, verdict

        def on_event(self, event: Any) -> Any:
            return self.verdict if isinstance(event, self.kind) and event.purpose == "summary" else event

    cases: list[tuple[type, Any, str, str]] = [
        (PostReasoning, Stop("enough"), "stopped", "so far"),
        (PreReasoning, Stop("enough"), "stopped", "enough"),
        (PreReasoning, Deny("no"), "denied", "no"),
        (PostReasoning, Suspend(1), "suspended", "so far"),
        (PostReasoning, None, "limited", "so far"),
    ]
    for kind, verdict, outcome, text in cases:
        agent = agent_of([ONE, "so far"], AtSummary(kind, verdict), max_iterations=1)
        if heard:
            lines = await streamed(agent)
            assert lines[-2:] == [f"PostCall {outcome} {text!r}", f"CallEnded {outcome}"]
        else:
            reply = await agent.call("go")
            assert (reply.outcome, reply.text) == (outcome, text)


async def test_again_spends_the_budget() -> None:
    """A hook that always returns Again ends in the summary after max_iterations replies."""
    agent = agent_of(["1", "2", "3", "sum"], Says(PostReasoning, Again("again"), times=3), max_iterations=3)
    reply = await agent.call("go")
    assert (reply.text, reply.outcome, reply.usage.model_calls) == ("sum", "limited", 4)


LEGAL = {
    PreCall: (Deny, Answer),
    PreReasoning: (Deny, Answer, Stop),
    PostReasoning: (Again, Stop, Suspend),
    PreToolRound: (Deny, Stop, Suspend),
    PreActing: (Deny, Answer, Suspend),
    PostActing: (Stop,),
    PostToolRound: (Stop, Suspend),
    PostCall: (),
    Error: (Recover,),
}
VERDICTS = [Deny("r"), Answer("r"), Again("r"), Stop("r"), Suspend("r"), Recover("r")]


def test_the_table_of_verdicts() -> None:
    """Each event class names its legal verdicts, as the contract's table does; all others have none."""
    table = {kind: kind.verdicts for kind in EVENT_TYPES if kind.verdicts or kind in LEGAL}
    del table[next(kind for kind in table if kind.__name__ == "PrePut")]
    assert table == LEGAL


ILLEGAL = [(kind, verdict) for kind, legal in LEGAL.items() for verdict in VERDICTS if not isinstance(verdict, legal)]
FIELDS = [kind for kind in LEGAL if kind.writable]


@pytest.mark.parametrize(
    ("kind", "verdict"), ILLEGAL, ids=lambda value: getattr(value, "__name__", type(value).__name__)
)
async def test_an_illegal_verdict_is_a_contract_error(kind: type, verdict: Any) -> None:
    """A verdict that is not legal on its event aborts the call with an error that names hook, event and what is legal."""
    recorder = Recorder()
    hook = Says(kind, verdict)
    hook.on_failure = "abort"
    script: list[Any] = [ValueError("down")] if kind is Error else [ONE, "3"]
    agent = agent_of(script, hook, recorder)
    with pytest.raises((HookContractError, ValueError)) as caught:
        await agent.call("go")
    legal = ("the event, a changed " + kind.__name__ + ", None") if kind in FIELDS else "the event, None"
    if LEGAL[kind]:
        only = " (only while event.fatal)" if kind is Error else ""
        legal += f", or a verdict: {', '.join(v.__name__ for v in LEGAL[kind])}{only}"
    got = f"{type(verdict).__name__} ({verdict!r})"
    text = f"Hook 'Says (priority 100)' answered {kind.__name__} with {got}. Allowed answers: {legal}."
    if kind is Error:
        assert str(caught.value) == "down"
        assert any(text in note for note in caught.value.__notes__)
    else:
        assert str(caught.value) == text
        assert caught.value.__notes__ == [f"raised by hook Says (priority 100) on {kind.__name__}"]
    assert log(recorder.seen)[-1].startswith("CallEnded failed")


async def test_recover_is_illegal_where_an_error_is_not_fatal() -> None:
    """Recover on a non-fatal Error is refused like a failing notification hook: logged, and the run continues."""
    recorder = Recorder()
    agent = agent_of([[use("t1", "fail")], "ok"], Says(Error, Recover("x")), recorder)
    reply = await agent.call("go")
    assert reply.text == "ok"


@pytest.mark.parametrize("kind", [PreCall, PreReasoning, PreToolRound, PreActing])
async def test_veto_equals_deny(kind: type) -> None:
    """`raise Veto(reason)` equals returning `Deny(reason)` on every event where Deny is legal."""

    class Raises(Hook):
        done = False

        def on_event(self, event: Any) -> Any:
            if isinstance(event, kind) and not self.done:
                self.done = True
                raise Veto("no")
            return event

    class Returns(Raises):
        name = "Raises"  # pyright: ignore

        def on_event(self, event: Any) -> Any:
            if isinstance(event, kind) and not self.done:
                self.done = True
                return Deny("no")
            return event

    assert await streamed(agent_of([ONE, "3"], Raises())) == await streamed(agent_of([ONE, "3"], Returns()))


async def test_again_takes_messages() -> None:
    """Again takes a text, a message, or several; they are marked as synthetic in the history."""
    session = Session.fresh()
    agent = agent_of(["a", "b"], Says(PostReasoning, Again([Msg.user("one"), Msg.user("two")])))
    await agent.call("go", session=session)
    assert history(session) == ["user: go", "assistant: a", "user: one", "user: two", "assistant: b"]
    assert [msg.metadata.get("synthetic") for msg in session.messages] == [None, None, "again", "again", None]


async def test_a_stop_on_the_summary_is_told_as_stopped() -> None:
    """The limit was reached, and then a hook stopped the call: the last decision is the outcome."""

    @on(PostReasoning)
    def stop(event: PostReasoning) -> Stop | None:
        return Stop("enough") if event.purpose == "summary" else None

    agent = Agent("a", ScriptedModel([use("t1", "add", a=1, b=2), "sum"]), tools=[add], hooks=[stop], max_iterations=1)
    assert (await streamed(agent))[-1] == "CallEnded stopped"


@pytest.mark.parametrize(("kind", "until"), [(PostActing, 2), (PreActing, 2), (PostToolRound, 2), (PreReasoning, 2)])
async def test_a_compaction_never_cuts_between_calls_and_their_results(kind: type, until: int) -> None:
    """`context.compact` directly after a message that requests tools is refused, whether its round is open or closed;
    the messages before it can be removed.
    """
    refused: list[str] = []

    @on(kind)
    def compact(event: Any) -> None:
        if len(event.context.history) < until:
            return
        try:
            event.context.compact(until, "what was")
        except UsageError as error:
            refused.append(str(error))
        event.context.compact(until - 1, "what was")

    model = ScriptedModel([use("t1", "add", a=1, b=2), "end"])
    agent = Agent("a", model, tools=[add], hooks=[compact])
    assert (await agent.call("go")).text == "end"
    assert refused == ["compact(until=2) would separate tool calls from their results."]
    assert history(model.requests[1].messages)[-2:] == ["assistant: [t1:add(a=1, b=2)]", "tool: t1 success '3'"]


async def test_words_beside_tool_calls_are_kept() -> None:
    """Text of the model beside its tool calls is in the history and in its next request."""
    agent = agent_of([[ModelChunk("Let me add."), *ONE], "end"])
    await agent.call("go")
    assert sent(agent, 1)[1] == history(agent.session())[1] == "assistant: Let me add. [t1:add(a=1, b=2)]"


async def test_one_of_three_is_denied() -> None:
    """A parallel batch of three with the second denied: the others run, and every call is answered."""

    class Guard(Hook):
        def on_event(self, event: Any) -> Any:
            return Deny("no") if isinstance(event, PreActing) and event.tool_use.id == "t2" else event

    agent = Agent("a", ScriptedModel([looks("a", "b", "c"), "x"]), tools=[look], hooks=[Guard()])
    await agent.call("go")
    assert history(agent.session())[2] == "tool: t1 success 'saw a'; t2 denied 'Denied: no'; t3 success 'saw c'"


async def test_a_stop_at_the_first_of_three_writes() -> None:
    """Stop at the first of three sequential tools: the other two do not run."""
    ran: list[str] = []

    @tool
    async def write(text: str) -> str:
        """Write."""
        ran.append(text)
        return text

    class Enough(Hook):
        def on_event(self, event: Any) -> Any:
            return Stop("enough") if isinstance(event, PostActing) else event

    calls = [use(f"t{i}", "write", text=str(i)) for i in range(3)]
    agent = Agent("a", ScriptedModel([calls]), tools=[write], hooks=[Enough()])
    reply = await agent.call("go")
    assert (ran, reply.text, reply.outcome) == (["0"], "enough", "stopped")


async def test_a_model_that_fails_in_the_summary() -> None:
    """When the model fails in the summary the caller gets its error, and the results so far stay in the history."""
    recorder = Recorder()
    agent = Agent(
        "a", ScriptedModel([looks("a"), OSError("down"), "x"]), tools=[look], hooks=[recorder], max_iterations=1
    )
    with pytest.raises(OSError, match="down"):
        await agent.call("go")
    assert recorder.log[-3:] == [
        "PreReasoning 2 summary",
        "Error reasoning fatal OSError: down",
        "CallEnded failed OSError: down",
    ]
    assert history(agent.session())[2] == "tool: t1 success 'saw a'"
    assert (await agent.call("next")).text == "x"
