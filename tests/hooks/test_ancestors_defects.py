"""What users ran into with the libraries that this one learnt from; each test is named after what they would see.

D: the first hook system of the field that had this shape; W: its successor in Python; P: three smaller Python systems.

| Defect | What went wrong there | Test |
|---|---|---|
| D1, D2 | a rewritten tool result reached the stream and not the model | test_a_rewritten_result_is_what_the_model_reads |
| D3 | a stop at any tool but the last was ignored | agent/test_acceptance.py::test_a_stop_at_the_first_of_three_writes |
| D4 | an error in an error hook hid the real one | test_failure.py::test_a_failing_error_hook_leaves_the_original_error |
| D5 | a veto by exception broke the conversation | test_an_exception_before_a_tool_leaves_a_conversation_that_goes_on |
| D6 | some calls had no end event | loop/test_cancellation.py::test_cut_at_every_step |
| D7 | going back had no limit | agent/test_acceptance.py::test_a_hook_that_always_goes_back_ends_at_the_limit |
| D7 | a resume began the budget anew | loop/test_suspend.py::test_the_budget_continues |
| D8 | retries of a tool did not cover exceptions | test_a_tool_that_raises_is_tried_again |
| D8 | a timed-out attempt went on | test_an_attempt_that_timed_out_is_over |
| D9 | a hook that answered nothing made the reply null | test_a_hook_that_answers_nothing_changes_nothing |
| D10 | the list of hooks could be changed from outside | test_the_hooks_of_an_agent_cannot_be_changed_behind_its_back |
| D11 | hooks of chunks ran unawaited and out of order | agent/test_acceptance.py::test_chunk_hooks_keep_the_order |
| D11 | their errors were invisible | test_failure.py::test_a_failing_hook_is_skipped_and_disabled_on_a_notification |
| D12 | readers printed words twice | test_a_reader_prints_each_word_once |
| D13 | an edited reply and history went apart | test_an_edited_reply_or_call_is_the_same_everywhere |
| D14 | hooks saw no options, an override dropped the agent's | test_an_option_of_a_hook_is_laid_over_those_of_the_agent |
| D15 | an interrupt before the start was lost | test_an_interrupt_before_the_first_model_call_counts |
| D15, D16 | a running tool went on, the history had a hole | test_an_interrupt_ends_a_running_tool_and_the_next_call_works |
| D17 | results came in the order of completion | loop/test_rounds.py::test_results_in_call_order_delivered_as_they_finish |
| D18 | streaming tools did not stream | loop/test_tools_in_loop.py::test_a_streaming_tool |
| D19 | injected messages passed for the user's | test_an_injected_message_does_not_pass_for_the_users |
| D20 | whether a result was an error was read from its text | test_a_result_that_says_error_is_no_error |
| W1 | a failing wrapper raised an ExceptionGroup, calls stayed open | test_a_failing_wrapper_of_parallel_tools |
| W2 | a model failure ended the stream without a word | test_a_failing_model_is_reported_and_the_call_ended |
| W3 | a bug in an observer killed the reply | test_failure.py::test_a_failing_observer_harms_nothing |
| W4 | cleanup waited for the garbage collector | agent/test_acceptance.py::test_cleanup_has_run_when_aclose_returns |
| W5 | two calls at once mixed their messages | agent/test_sessions.py::test_an_overlapping_call_is_refused |
| W6 | rewritten arguments were neither checked nor judged | test_rewritten_arguments_are_checked_and_judged |
| W7 | a failure in mid-stream was not retried | test_around.py::test_retry_after_delivered_chunks_restarts |
| W7 | the fallback went under the first model's name | test_around.py::test_catch_with_another_model |
| W8 | no priorities, no observers | test_order.py::test_editors_then_guards_then_observers |
| W8 | inputs were untyped dicts, a missed key passed in silence | test_a_misspelt_field_is_refused |
| W9 | tools had no timeout | loop/test_tools_in_loop.py::test_a_tool_that_passes_its_limit |
| W10 | asking again broke other hooks' bookkeeping | test_asking_again_keeps_the_pairs_of_other_hooks |
| P | raising before a round left calls without results | test_an_exception_before_a_round_leaves_a_conversation_that_goes_on |
| P | arguments could be changed in place, but not replaced | test_arguments_are_replaced_and_never_changed_in_place |
| P | an async handler never ran, a plain one failed when it fired | test_async_and_plain_handlers_both_run |
| P | unknown tools passed unseen | test_an_unknown_tool_is_shown_to_hooks |
| P | error hooks fired for vetoes and never for the model | test_error_hooks_hear_of_failures_and_not_of_vetoes |
| P | a hook after the round fired after the final answer too | test_a_round_hook_fires_for_rounds_only |
| P | a hook at the end could call its own agent for ever | test_a_hook_that_calls_its_own_agent_is_told_so |
| P | a hook that raised at the end left the agent stuck | test_a_hook_that_raises_at_the_end_leaves_the_agent_usable |
| P | one function under two names fired twice for one | test_named.py::test_one_function_under_two_names_fires_for_both |
| P | the name of a handler's parameter mattered | test_a_handlers_parameter_may_have_any_name |
| P | an empty answer ended the call | agent/test_default_hooks.py::test_an_empty_answer_is_asked_for_once_more |
| P | a limit of 0 meant the default | agent/test_calls.py::test_what_is_no_limit |
| P | a stop rewrote results | loop/test_outcomes.py::test_stop_in_a_round_lets_running_siblings_finish |
| P | words beside tool calls were dropped | test_words_beside_tool_calls_are_kept |
| P | a signal in a tool left a call without a result | loop/test_tools_in_loop.py::test_signals_end_the_call |
| P | compaction cut between calls and results | test_compaction_cannot_cut_a_round |
| P | malformed arguments became no arguments | test_malformed_arguments_are_shown_as_such_and_the_tool_does_not_run |
| P | a tool's own TimeoutError passed for its limit | loop/test_tools_in_loop.py::test_a_tools_own_timeouterror_is_an_error |
| P | nobody waited for a slow reader | end_to_end/test_slow_reader.py::test_the_model_is_at_most_one_chunk_ahead |
"""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest
from eventlog import Recorder, history, streamed, use

from agentflow import (
    Again,
    Agent,
    CallEnded,
    Deny,
    Error,
    Hook,
    HookSet,
    ModelChunk,
    ModelError,
    ModelOptions,
    Mono,
    Msg,
    PostActing,
    PostCall,
    PostReasoning,
    PostToolRound,
    PreActing,
    PreCall,
    PreReasoning,
    PreToolRound,
    ReasoningChunk,
    Session,
    ToolUseDelta,
    UsageError,
    after_each_tool,
    after_llm,
    after_tool_round,
    after_user_input,
    before_each_tool,
    before_llm,
    before_tool_round,
    on,
    on_complete,
    on_error,
    tool,
)
from agentflow.testing import ScriptedModel
from agentflow.testing.clock import run_virtual

HERE = Path(__file__).parent


def test_every_defect_has_its_test() -> None:
    """Each row of this module's table names a test that exists, and D1 to D20 and W1 to W10 are all there."""
    rows = [row.split(" | ") for row in (__doc__ or "").splitlines() if row.startswith("| ")][1:]
    for row in rows:
        file, _, test = row[2].rstrip(" |").rpartition("::")
        place = HERE / "test_ancestors_defects.py" if not file else HERE.parent / file if "/" in file else HERE / file
        assert re.search(rf"^(async )?def {test}\(", place.read_text("utf-8"), re.MULTILINE), row
    named = {name.strip() for row in rows for name in row[0].strip("| ").split(",")}
    assert named == {*(f"D{n}" for n in range(1, 21)), *(f"W{n}" for n in range(1, 11)), "P"}


@tool(type="read")
async def add(a: int, b: int) -> int:
    """Add."""
    return a + b


@tool
async def delete(path: str) -> str:
    """Delete."""
    return f"{path} is gone"


def agent_of(script: list[Any], *hooks: Any, tools: Any = (add, delete), **options: Any) -> Agent:
    return Agent("a", ScriptedModel(script), tools=tools, hooks=hooks, **options)


def sent(agent: Agent, number: int) -> list[str]:
    """What the model was asked, one line for each message."""
    return history(agent.config.model.requests[number].messages)  # type: ignore[union-attr]


ONE = [use("t1", "add", a=1, b=2)]


async def test_a_rewritten_result_is_what_the_model_reads() -> None:
    """The model's next request, the stream and the history hold the new result; the old one is nowhere."""

    @after_each_tool
    def hide(event: PostActing) -> None:
        event.tool_result = type(event.tool_result)(event.tool_use.id, event.tool_use.name, "hidden")

    agent = agent_of([ONE, "end"], hide)
    lines = await streamed(agent)
    assert "PostActing t1 success 'hidden'" in lines
    assert sent(agent, 1)[-1] == history(agent.session())[2] == "tool: t1 success 'hidden'"
    assert not [line for line in [*lines, *sent(agent, 1)] if "'3'" in line]


async def test_an_exception_before_a_tool_leaves_a_conversation_that_goes_on() -> None:
    """The call fails with the hook's own exception; every call has a result, and the next call just works."""

    @before_each_tool
    def forbid(event: PreActing) -> None:
        raise PermissionError("forbidden")

    agent = agent_of([[*ONE, use("t2", "delete", path="x")], "Sorry."], forbid)
    with pytest.raises(PermissionError, match="forbidden"):
        await agent.call("go")
    results = agent.session().messages[2].tool_results
    assert [result.tool_use_id for result in results] == ["t1", "t2"]
    agent.remove_hook(forbid)
    assert (await agent.call("And now?")).text == "Sorry."


async def test_an_exception_before_a_round_leaves_a_conversation_that_goes_on() -> None:
    """The same for the whole round: nothing dangles."""

    @before_tool_round
    def cancelled(event: PreToolRound) -> None:
        raise RuntimeError("the user said no")

    agent = agent_of([ONE, "Sorry."], cancelled)
    with pytest.raises(RuntimeError, match="the user said no"):
        await agent.call("go")
    agent.remove_hook(cancelled)
    assert (await agent.call("And now?")).text == "Sorry."
    assert [line.split(":")[0] for line in sent(agent, 1)][:3] == ["user", "assistant", "tool"]


async def test_a_tool_that_raises_is_tried_again() -> None:
    """`@tool(retries=2)` covers exceptions; there is one result and one PostActing."""
    tries: list[int] = []

    @tool(type="read", retries=2)
    async def flaky() -> str:
        """Fail twice."""
        tries.append(1)
        if len(tries) < 3:
            raise ConnectionError("not yet")
        return "at last"

    lines = await streamed(agent_of([[use("t1", "flaky")], "end"], tools=[flaky]))
    assert [line for line in lines if line.startswith("PostActing")] == ["PostActing t1 success 'at last'"]
    assert len(tries) == 3


def test_an_attempt_that_timed_out_is_over() -> None:
    """A tool that passes its limit is cancelled, its cleanup awaited, before anything else happens."""
    ended: list[float] = []

    @tool(timeout=5)
    async def slow() -> str:
        """Take long."""
        try:
            await asyncio.sleep(100)
        finally:
            ended.append(asyncio.get_running_loop().time())
        return "late"

    seen: list[tuple[str, int]] = []

    @after_each_tool
    def note(event: PostActing) -> None:
        seen.append((event.tool_result.state, len(ended)))

    run_virtual(agent_of([[use("t1", "slow")], "end"], note, tools=[slow]).call("go"))
    assert (seen, ended) == ([("timeout", 1)], [5])


async def test_a_hook_that_answers_nothing_changes_nothing() -> None:
    """None, an empty Mono and an empty stream mean: go on."""
    plain = await streamed(agent_of([ONE, "end"]))
    for empty in (lambda event: None, lambda event: Mono.empty(), lambda event: Mono.empty().as_flux()):
        assert await streamed(agent_of([ONE, "end"], on(PreCall, PreActing, PostReasoning, PostCall)(empty))) == plain


async def test_the_hooks_of_an_agent_cannot_be_changed_behind_its_back() -> None:
    """What was passed may change later, the agent does not; what it shows is immutable and in order."""
    seen: list[str] = []
    late = on_complete(lambda event: seen.append("late"), priority=200)
    given: list[Any] = [late]
    agent = Agent("a", ScriptedModel(["1", "2"]), hooks=given, default_hooks=())
    given.append(on_complete(lambda event: seen.append("added")))
    await agent.call("go")
    assert seen == ["late"]
    assert isinstance(agent.hooks, HookSet)
    assert not {"append", "insert", "add", "__setitem__"} & set(dir(agent.hooks))
    with pytest.raises(AttributeError):
        agent.hooks = given  # type: ignore[misc]
    agent.on("on_complete", lambda event: seen.append("early"))
    await agent.call("go")
    assert seen == ["late", "early", "late"]


async def test_a_reader_prints_each_word_once() -> None:
    """Printing every chunk of a run with two rounds gives each word once; no event repeats them as chunks."""
    script = [[ModelChunk("Let me "), ModelChunk("see. "), *ONE], ["It is ", "3."]]
    printed: list[str] = []
    wholes: list[str] = []
    async for event in agent_of(script).stream("go"):
        if isinstance(event, ReasoningChunk):
            printed.append(event.incremental_chunk.text)
            wholes.append(event.accumulated_message.text)
    assert "".join(printed) == "Let me see. It is 3."
    assert [whole for whole in wholes if whole][-1] == "It is 3."
    assert wholes[1] == "Let me see. "


async def test_an_edited_reply_or_call_is_the_same_everywhere() -> None:
    """What `on_complete` makes of the reply is returned, shown and stored; what `before_each_tool` makes of a call runs,
    and the events say what it had been."""
    calls: list[Any] = []

    @before_each_tool
    def double(event: PreActing) -> None:
        event.tool_use = event.tool_use.replace(input={"a": 2, "b": 4})

    @after_each_tool
    def note(event: PostActing) -> None:
        calls.append((dict(event.original_tool_use.input), dict(event.tool_use.input), event.tool_result.text))

    @on_complete
    def sign(event: PostCall) -> None:
        event.final_message = Msg.assistant(event.final_message.text + " -- a")

    agent = agent_of([ONE, "Six."], double, note, sign)
    reply = await agent.call("go")
    assert reply.text == agent.session().messages[-1].text == "Six. -- a"
    assert calls == [({"a": 1, "b": 2}, {"a": 2, "b": 4}, "6")]


async def test_an_option_of_a_hook_is_laid_over_those_of_the_agent() -> None:
    """A hook sees the effective options, the tools, the model and the iteration; what it sets is merged, nothing is lost."""
    seen: list[Any] = []

    @before_llm
    def cool(event: PreReasoning) -> None:
        seen.append((event.options.max_tokens, [spec.name for spec in event.tools], event.model, event.iteration))
        event.options = ModelOptions(temperature=0.0)

    agent = agent_of([ONE, "end"], cool, options=ModelOptions(max_tokens=50, seed=1))
    await agent.call("go", options=ModelOptions(seed=2))
    assert seen == [(50, ["add", "delete"], "scripted", 1), (50, ["add", "delete"], "scripted", 2)]
    options = agent.config.model.requests[1].options  # type: ignore[union-attr]
    assert (options.temperature, options.max_tokens, options.seed) == (0.0, 50, 2)


async def test_an_interrupt_before_the_first_model_call_counts() -> None:
    """An interrupt at the very start ends the call; the user's words are kept, and the model is not asked."""

    @after_user_input
    def stop(event: PreCall) -> None:
        event.context.interrupt("changed my mind")

    agent = agent_of(["never"], stop)
    reply = await agent.call("go")
    assert (reply.outcome, agent.config.model.requests) == ("interrupted", [])  # type: ignore[union-attr]


def test_an_interrupt_ends_a_running_tool_and_the_next_call_works() -> None:
    """The tool is cancelled at once, its call answered `interrupted`, and the conversation goes on."""
    cleaned: list[float] = []

    @tool
    async def endless() -> str:
        """Never end."""
        try:
            await asyncio.Event().wait()
        finally:
            cleaned.append(asyncio.get_running_loop().time())
        return "never"

    async def main() -> None:
        agent = agent_of([[use("t1", "endless"), use("t2", "endless")], "Hello again."], tools=[endless])
        call = asyncio.create_task(agent.call("go"))
        await asyncio.sleep(3)
        assert agent.interrupt()
        assert (await call).outcome == "interrupted"
        assert cleaned == [3]
        assert [result.state for result in agent.session().messages[2].tool_results] == ["interrupted"] * 2
        assert (await agent.call("And now?")).text == "Hello again."

    run_virtual(main())


async def test_an_injected_message_does_not_pass_for_the_users() -> None:
    """A hook that looks for the user's last words can tell them from what other hooks put there."""
    found: list[str] = []

    @before_llm(priority=10)
    def remember(event: PreReasoning) -> None:
        event.context.inject("The user likes tea.", source="memory")

    @after_llm
    def look(event: PostReasoning) -> None:
        messages = event.context.agent.name and agent.session().messages
        own = [msg for msg in messages or () if msg.role == "user" and "synthetic" not in msg.metadata]
        found.append(own[-1].text)

    agent = agent_of(["Tea?"], remember, look)
    await agent.call("What shall I drink?")
    assert found == ["What shall I drink?"]
    assert [msg.metadata.get("synthetic") for msg in agent.session().messages][:2] == [None, "memory"]


async def test_a_result_that_says_error_is_no_error() -> None:
    """The state of a result is a field: a tool may return any text."""

    @tool(type="read")
    async def log_file() -> str:
        """Read."""
        return "[ERROR] disk full"

    states: list[str] = []
    note = after_each_tool(lambda event: states.append(event.tool_result.state))
    agent = agent_of([[use("t1", "log_file"), use("t2", "gone")], "end"], note, tools=[log_file])
    await agent.call("go")
    assert states == ["success", "not_found"]


async def test_a_failing_wrapper_of_parallel_tools() -> None:
    """A wrapper that fails for one of three parallel tools is that tool's failure: no ExceptionGroup, siblings run, each
    call has a result, one end."""

    class Breaks(Hook):
        def around(self, event: Any, source: Any) -> Any:
            if isinstance(event, PreActing) and event.tool_use.id == "t2":
                return source.map(lambda result: 1 // 0)
            return source

    calls = [use(f"t{n}", "add", a=n, b=n) for n in (1, 2, 3)]
    lines = await streamed(agent_of([calls, "end"], Breaks()))
    assert [line for line in lines if line.startswith(("PostToolRound", "CallEnded"))] == [
        "PostToolRound t1 success '2'; t2 error 'ZeroDivisionError: integer division or modulo by zero'; t3 success '6'",
        "CallEnded completed",
    ]


async def test_a_failing_model_is_reported_and_the_call_ended() -> None:
    """A model that fails in mid-stream: `Error` says where and that it ends the call, `CallEnded` is last, the caller gets the
    original exception."""
    down, recorder = ModelError("gone"), Recorder()
    agent = agent_of([["half", down], "Hello."], recorder)
    with pytest.raises(ModelError) as caught:
        await agent.stream("go").to_list()
    assert caught.value is down
    error, ended = recorder.seen[-2:]
    assert isinstance(error, Error)
    assert isinstance(ended, CallEnded)
    assert (error.phase.value, error.fatal, ended.outcome, ended.error) == ("reasoning", True, "failed", down)
    assert (await agent.call("Hi")).text == "Hello."


async def test_rewritten_arguments_are_checked_and_judged() -> None:
    """Arguments that a hook rewrote are validated again, and guards judge the rewritten ones."""
    seen: list[str] = []

    @before_each_tool
    def rewrite(event: PreActing) -> None:
        wrong = {"a": "many", "b": 2} if event.tool_use.name == "add" else {"path": "/etc"}
        event.tool_use = event.tool_use.replace(input=wrong)

    @before_each_tool(guard=True, tools=["delete"])
    def judge(event: PreActing) -> Deny | None:
        seen.append(event.tool_use.input["path"])
        return Deny("not there") if event.tool_use.input["path"] == "/etc" else None

    agent = agent_of([[*ONE, use("t2", "delete", path="/tmp/x")], "end"], rewrite, judge)
    await agent.call("go")
    first, second = agent.session().messages[2].tool_results
    assert (first.state, "a" in first.text, second.text, seen) == ("error", True, "Denied: not there", ["/etc"])


async def test_a_misspelt_field_is_refused() -> None:
    """Assigning a field that an event does not have fails where it is done, and names those that can be written."""

    @before_llm
    def typo(event: PreReasoning) -> None:
        event.input_mesages = []  # type: ignore[attr-defined]

    with pytest.raises(
        AttributeError, match=r"Writable fields of PreReasoning: input_messages, tools, model, options\."
    ):
        await agent_of(["never"], typo).call("go")


async def test_asking_again_keeps_the_pairs_of_other_hooks() -> None:
    """A hook that counts Pre against Post finds them paired when another one sends the model back."""
    depth: list[int] = []
    open_calls = 0

    @on(PreReasoning, PreToolRound, PreActing, priority=1)
    def opens(event: Any) -> None:
        nonlocal open_calls
        open_calls += 1

    @on(PostReasoning, PostToolRound, PostActing, priority=900)
    def closes(event: Any) -> None:
        nonlocal open_calls
        open_calls -= 1
        depth.append(open_calls)

    @after_llm
    def back(event: PostReasoning) -> Again | None:
        return Again("Look first.") if event.iteration == 1 else None

    agent = agent_of([ONE, [use("t2", "add", a=1, b=1)], "end"], opens, closes, back)
    assert (await agent.call("go")).text == "end"
    assert (depth, open_calls) == ([0, 0, 1, 0, 0], 0)


async def test_arguments_are_replaced_and_never_changed_in_place() -> None:
    """Changing the arguments in place is refused; assigning a changed call counts."""
    refused: list[str] = []

    @before_each_tool
    def change(event: PreActing) -> None:
        with pytest.raises(TypeError) as caught:
            event.tool_use.input["a"] = 5  # type: ignore[index]
        refused.append(type(caught.value).__name__)
        event.tool_use = event.tool_use.replace(input={**event.tool_use.input, "a": 5})

    agent = agent_of([ONE, "end"], change)
    await agent.call("go")
    assert (refused, agent.session().messages[2].tool_results[0].text) == (["TypeError"], "7")


async def test_async_and_plain_handlers_both_run() -> None:
    """The same two handlers, plain and `async`, by name, by decorator and by mapping: each runs, none is left unawaited."""
    seen: list[str] = []

    def plain(event: Any) -> None:
        seen.append("plain")

    async def later(event: Any) -> None:
        await asyncio.sleep(0)
        seen.append("async")

    hooks = [on_complete(plain, later), on("on_complete")(later), {"on_complete": [plain, later]}]
    await agent_of(["end"], *hooks).call("go")
    assert seen == ["plain", "async", "async", "plain", "async"]


async def test_an_unknown_tool_is_shown_to_hooks() -> None:
    """A call of a tool that does not exist fires before and after like any other, and can be answered."""
    seen: list[str] = []
    before = before_each_tool(lambda event: seen.append(f"before {event.tool_use.name}"))
    after = after_each_tool(lambda event: seen.append(f"after {event.tool_result.state}"))
    await agent_of([[use("t1", "fly")], "end"], before, after).call("go")
    assert seen == ["before fly", "after not_found"]


async def test_error_hooks_hear_of_failures_and_not_of_vetoes() -> None:
    """A tool that fails and a model that fails are errors; a veto is a decision, and none."""
    heard: list[str] = []

    @on_error
    def hear(event: Error) -> None:
        heard.append(f"{event.phase.value} {event.error}")

    @tool
    async def breaks() -> str:
        """Break."""
        raise ValueError("broken")

    veto = before_each_tool(lambda event: Deny("no"), tools=["delete"])
    script = [[use("t1", "breaks"), use("t2", "delete", path="x")], ModelError("down")]
    with pytest.raises(ModelError):
        await agent_of(script, hear, veto, tools=[breaks, delete]).call("go")
    assert heard == ["acting broken", "reasoning down"]


async def test_a_round_hook_fires_for_rounds_only() -> None:
    """Two rounds and a final answer: twice, not three times; and not at all for an answer without tools."""
    rounds: list[int] = []
    note = after_tool_round(lambda event: rounds.append(event.iteration))
    await agent_of([ONE, [use("t2", "add", a=1, b=1)], "end"], note).call("go")
    await agent_of(["end"], note).call("go")
    assert rounds == [1, 2]


async def test_a_hook_that_calls_its_own_agent_is_told_so() -> None:
    """Calling the agent again on the session that is busy is refused, with the way out; in a session of its own it works."""
    replies: list[str] = []

    @on_complete
    async def review(event: PostCall) -> None:
        if event.session_id != "a":
            return
        with pytest.raises(UsageError, match="session="):
            await agent.call("Review it.")
        replies.append((await agent.call("Review it.", session=Session.fresh())).text)

    agent = agent_of(["Draft.", "Looks good."], review)
    assert (await agent.call("Write.")).text == "Draft."
    assert replies == ["Looks good."]


async def test_a_hook_that_raises_at_the_end_leaves_the_agent_usable() -> None:
    """An exception in `on_complete` is the caller's; the call is over, and the next one works."""
    first = True

    @on_complete
    def once(event: PostCall) -> None:
        nonlocal first
        if first:
            first = False
            raise RuntimeError("at the end")

    agent = agent_of(["1", "2"], once)
    with pytest.raises(RuntimeError, match="at the end"):
        await agent.call("go")
    assert (await agent.call("go")).text == "2"


async def test_a_handlers_parameter_may_have_any_name() -> None:
    """Only their number counts; defaults and `*rest` are fine."""
    seen: list[str] = []

    def result(result: PostCall) -> None:
        seen.append("result")

    def extra(_: PostCall, more: int = 1) -> None:
        seen.append("extra")

    def rest(*everything: Any) -> None:
        seen.append(f"rest of {len(everything)}")

    await agent_of(["end"], on_complete(result, extra, rest)).call("go")
    assert seen == ["result", "extra", "rest of 1"]


async def test_words_beside_tool_calls_are_kept() -> None:
    """What the model says beside its calls is in the history and in its next request."""
    agent = agent_of([[ModelChunk("Let me add."), *ONE], "end"])
    await agent.call("go")
    assert sent(agent, 1)[1] == history(agent.session())[1] == "assistant: Let me add. [t1:add(a=1, b=2)]"


async def test_compaction_cannot_cut_a_round() -> None:
    """A cut between calls and their results is refused; at the border of a round it is made, and nothing is orphaned."""
    refused: list[str] = []

    @before_llm
    def compact(event: PreReasoning) -> None:
        if event.iteration == 2:
            with pytest.raises(UsageError) as caught:
                event.context.compact(2, "what was said")
            refused.append(str(caught.value))

    agent = agent_of([ONE, "end", "again"], compact)
    await agent.call("go")
    assert len(refused) == 1
    agent.on("after_user_input", lambda event: event.context.compact(3, "They added 1 and 2."))
    await agent.call("And now?")
    assert sent(agent, 2) == ["user: They added 1 and 2.", "assistant: end", "user: And now?"]


async def test_malformed_arguments_are_shown_as_such_and_the_tool_does_not_run() -> None:
    """A hook sees that the arguments could not be read; the model is told, and the tool does not run on no arguments."""
    ran: list[str] = []
    seen: list[bool] = []

    @tool
    async def wipe(path: str = "/") -> str:
        """Wipe."""
        ran.append(path)
        return "wiped"

    note = before_each_tool(lambda event: seen.append(bool(event.tool_use.input_error)))
    broken = ModelChunk(tool_uses=(ToolUseDelta(0, "t1", "wipe", '{"path": "/tm'),))
    agent = agent_of([[broken], "end"], note, tools=[wipe])
    assert (await agent.call("go")).text == "end"
    assert (ran, seen, agent.session().messages[2].tool_results[0].state) == ([], [True], "error")
