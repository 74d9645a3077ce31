"""What a hook changes is seen by everything that follows: later hooks, the model, tools, the reader, the history."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from eventlog import Recorder, history, sent, streamed, use
from toolbox import ONE, agent_of, look, looks

from agentflow import (
    Agent,
    Deny,
    Hook,
    ModelOptions,
    Msg,
    PostActing,
    PostCall,
    PostReasoning,
    PreActing,
    PreReasoning,
    ReasoningChunk,
    ToolResultBlock,
    ToolUseBlock,
    after_each_tool,
    after_llm,
    before_each_tool,
    before_llm,
    on_complete,
)
from agentflow.errors import UsageError
from agentflow.testing import ScriptedModel

ANSWER = Msg.tool([ToolResultBlock("t9", "add", "3")])


async def test_a_rewritten_result_is_what_the_model_reads() -> None:
    """The model's next request, the stream and the history have the new result; the old one is nowhere."""

    @after_each_tool
    def hide(event: PostActing) -> None:
        event.tool_result = type(event.tool_result)(event.tool_use.id, event.tool_use.name, "hidden")

    agent = agent_of([ONE, "end"], hide)
    lines = await streamed(agent)
    assert "PostActing t1 success 'hidden'" in lines
    assert sent(agent, 1)[-1] == history(agent.session())[2] == "tool: t1 success 'hidden'"
    assert not [line for line in [*lines, *sent(agent, 1)] if "'3'" in line]


async def test_an_edited_reply_or_call_is_the_same_everywhere() -> None:
    """An edit of `on_complete` is returned, shown and stored; the call that `before_each_tool` edited runs, and the
    events have the original.
    """
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


async def test_rewritten_arguments_are_checked_and_judged() -> None:
    """Arguments that a hook rewrote are validated again, and guards evaluate the rewritten ones."""
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


async def test_a_misspelt_field_is_refused() -> None:
    """Assigning a field that an event does not have fails at once, and the error names the writable fields."""

    @before_llm
    def typo(event: PreReasoning) -> None:
        event.input_mesages = []  # type: ignore[attr-defined]

    with pytest.raises(
        AttributeError, match=r"Writable fields of PreReasoning: input_messages, tools, model, options\."
    ):
        await agent_of(["never"], typo).call("go")


async def test_an_option_of_a_hook_is_laid_over_those_of_the_agent() -> None:
    """A hook sees the effective options, the tools, the model and the iteration; what it sets is merged."""
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


async def test_an_injected_message_does_not_pass_for_the_users() -> None:
    """A hook that looks for the user's last message can tell it from messages injected by other hooks."""
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


@pytest.mark.parametrize("wrong", [Msg.system("Be rude."), ANSWER, Msg.assistant([ToolUseBlock("t9", "add", {})])])
@pytest.mark.parametrize("first", [(), (Msg.user("note"),)])
async def test_what_cannot_be_injected(first: tuple[Msg, ...], wrong: Msg) -> None:
    """Only messages of the user, and of the assistant without tool calls. If one is refused, none is injected."""

    @before_llm
    def add(event: PreReasoning) -> None:
        with pytest.raises(UsageError, match=f"without tool calls, not {wrong.role!r}"):
            event.context.inject(*first, wrong)

    agent = agent_of(["end"], add)
    await agent.call("go")
    assert history(agent.session()) == ["user: go", "assistant: end"]


async def test_compaction_cannot_cut_a_round() -> None:
    """A compaction between calls and their results is refused; at the border of a round it works, and no call or
    result is orphaned.
    """
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


@pytest.mark.parametrize("acts", list(product(("inject", "compact"), repeat=3)))
async def test_what_is_injected_while_a_reply_streams_is_stored_after_it(acts: tuple[str, ...]) -> None:
    """Messages that a hook injects between the chunks of a reply follow it in the history, in their order, also if the
    hook compacts the history in between.
    """
    expected: list[str] = []

    def change(event: ReasoningChunk) -> None:
        for number, act in enumerate(acts):
            if act == "compact":
                event.context.compact(0, "what was")
            else:
                event.context.inject(f"note {number}")
                expected.append(f"user: note {number}")

    agent = agent_of(["end"])
    agent.on(ReasoningChunk, change)
    await agent.call("go")
    assert history(agent.session()) == ["user: go", "assistant: end", *expected]


async def test_an_edit_is_seen_by_later_hooks_the_model_and_the_reader() -> None:
    """An edit of PreReasoning reaches later hooks and the model; a reader of the stream gets the edited event."""
    seen: list[str] = []

    class Edit(Hook):
        priority = 1

        def on_event(self, event: Any) -> Any:
            if isinstance(event, PreReasoning):
                event.input_messages = [*event.input_messages[:-1], Msg.user("edited")]
            return event

    class Later(Hook):
        def on_event(self, event: Any) -> Any:
            if isinstance(event, PreReasoning):
                seen.append(event.input_messages[-1].text)

    model = ScriptedModel(["x"])
    agent = Agent("a", model, hooks=[Later(), Edit()])
    async for event in agent.stream("original"):
        if isinstance(event, PreReasoning):
            seen.append(event.input_messages[-1].text)  # noqa: PERF401 - the hook appends to the same list
    assert seen == ["edited", "edited"]
    assert model.requests[0].messages[-1].text == "edited"
    assert history(agent.session())[0] == "user: original"


async def test_a_rewritten_result_leaves_no_trace_of_the_original() -> None:
    """After a PostActing edit the original text is in no later request, no later event, and no history."""

    class Redact(Hook):
        def on_event(self, event: Any) -> Any:
            if isinstance(event, PostActing):
                event.tool_result = ToolResultBlock(event.tool_use.id, event.tool_use.name, "***")
            return event

    recorder = Recorder()
    model = ScriptedModel([looks("secret place"), "x"])
    agent = Agent("a", model, tools=[look], hooks=[Redact(), recorder])
    await agent.call("go")
    assert "saw secret" not in "".join(recorder.log)
    assert model.requests[1].messages[-1].text == "***"
    assert "saw secret" not in "".join(history(agent.session()))
    assert all("saw secret" not in turn.result for turn in recorder.seen[-1].context.trace.turns)
