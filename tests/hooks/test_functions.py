"""Functions as hooks: the forms of `@on`, names, mappings, and what is refused."""

import asyncio
from typing import Any

import pytest
from toolbox import agent_of

from agentflow import (
    Agent,
    CallEnded,
    Deny,
    Error,
    Hook,
    PostActing,
    PostCall,
    PostReasoning,
    PreActing,
    PreCall,
    on,
    on_complete,
)
from agentflow.errors import UsageError
from agentflow.hooks.event_names import EVENT_NAMES
from agentflow.testing import ScriptedModel
from agentflow.vocabulary.events import ActingEvent, HookEvent, PostToolRound, PreToolRound


@on
def annotated(event: PreCall | CallEnded) -> None:
    """Annotated."""
    SEEN.append(type(event).__name__)


@on
async def denied(event: PreCall) -> Deny:
    """Annotated, async."""
    return Deny("no")


SEEN: list[str] = []


async def test_on_alone_reads_the_annotation_unions_too() -> None:
    """`@on` without arguments uses the annotation of the parameter."""
    SEEN.clear()
    await Agent("a", ScriptedModel(["x"]), hooks=[annotated]).call("go")
    assert SEEN == ["PreCall", "CallEnded"]
    assert (await Agent("a", ScriptedModel([]), hooks=[denied]).call("go")).outcome == "denied"


async def test_on_with_classes() -> None:
    """`@on(A, B)` handles both, even without an annotation."""
    seen: list[str] = []

    @on(PreCall, PostReasoning)
    def both(event):  # type: ignore[no-untyped-def]
        seen.append(type(event).__name__)

    await Agent("a", ScriptedModel(["x"]), hooks=[both]).call("go")
    assert seen == ["PreCall", "PostReasoning"]


def test_on_with_a_base_class_means_the_whole_phase() -> None:
    """`@on(ActingEvent)` handles all events of the phase."""

    @on(ActingEvent)
    def acting(event: Any) -> None: ...

    assert acting.events is not None
    assert {PreToolRound, PreActing, PostActing, PostToolRound} < set(acting.events)
    assert PreCall not in acting.events


@pytest.mark.parametrize(("name", "kind"), EVENT_NAMES.items())
def test_on_with_a_name(name: str, kind: type) -> None:
    """`@on("name")` handles the event of that name."""

    @on(name)  # type: ignore[arg-type]
    def named(event: Any) -> None: ...

    assert named.events == (kind,)


def test_the_names() -> None:
    """There are nine names for events of calls and seven for those of turns, and no aliases."""
    assert {name: kind.__name__ for name, kind in EVENT_NAMES.items()} == {
        "after_user_input": "PreCall",
        "before_llm": "PreReasoning",
        "after_llm": "PostReasoning",
        "before_tool_round": "PreToolRound",
        "before_each_tool": "PreActing",
        "after_each_tool": "PostActing",
        "after_tool_round": "PostToolRound",
        "on_complete": "PostCall",
        "on_error": "Error",
        "before_put": "PrePut",
        "after_put": "PostPut",
        "before_turn": "PreTurn",
        "on_turn_value": "TurnValue",
        "after_turn": "PostTurn",
        "on_pause": "Paused",
        "on_resume": "Resumed",
    }


def test_an_ambiguous_name_is_refused_with_what_it_could_mean() -> None:
    """`after_tool` could be after each tool or after the round: the error names both."""
    with pytest.raises(UsageError) as caught:
        on("after_tool")  # type: ignore[call-overload]
    text = str(caught.value)
    assert "'after_tool'" in text
    assert "'after_each_tool'" in text
    assert "'after_tool_round'" in text


def a_number(event: int) -> None: ...


def a_number_or_an_event(event: PreCall | int) -> None: ...


@pytest.mark.parametrize(
    "make",
    [
        lambda: on("before_tools"),  # type: ignore[call-overload]
        lambda: on("PreCall"),  # type: ignore[call-overload]
        lambda: on(int),  # type: ignore[call-overload]
        lambda: on(3),  # type: ignore[call-overload]
        lambda: on(PreCall)(lambda: None),
        lambda: on(PreCall)(lambda a, b: None),
        lambda: on(lambda event: None),
        lambda: on(PreCall)(on(PreCall)(lambda event: None)),
        lambda: on(PreCall, priorty=3)(lambda event: None),  # type: ignore[call-overload]
        lambda: on(PreCall, timeout=1)(lambda event: None),
        lambda: Agent("a", "m/x", hooks=[lambda event: None]),
        lambda: Agent("a", "m/x", hooks=[Hook]),
        lambda: Agent("a", "m/x", hooks=["after_llm"]),
        lambda: Agent("a", "m/x", hooks=[3]),
        lambda: Agent("a", "m/x", hooks={"after_tool": print}),
        lambda: Agent("a", "m/x", hooks={"after_llm": annotated}),
        lambda: Agent("a", "m/x").on("after_tool", print),  # type: ignore[arg-type]
    ],
)
def test_what_is_refused(make: Any) -> None:
    """Unknown names, wrong targets, functions that do not take one argument, unmarked functions, classes, and misspelt
    options are refused when they are registered."""
    with pytest.raises(UsageError):
        make()


@pytest.mark.parametrize("function", [a_number, a_number_or_an_event])
def test_an_annotation_of_another_class_is_named(function: Any) -> None:
    """The error names the part of the annotation that is no event."""
    with pytest.raises(UsageError, match="is annotated with <class 'int'>, which is not an event class"):
        on(function)


async def test_options_of_a_function() -> None:
    """Options sit in the decorator; the function stays callable."""

    @on(PreActing, priority=10, timeout=2, on_failure="deny", guard=True)
    async def check(event: PreActing) -> Deny:
        return Deny("x")

    assert (check.priority, check.timeout, check.on_failure, check.guard) == (10, 2, "deny", True)
    assert isinstance(check, Hook)
    assert check.name == "check"


def test_a_wrapped_function_can_still_be_called() -> None:
    """A marked function is called like any function."""

    @on(PreCall)
    def plain(event: HookEvent) -> str:
        return "called"

    assert plain(PreCall()) == "called"


async def test_methods_can_be_registered_at_run_time() -> None:
    """`agent.on(name, f)` applies from the next call on and returns a disposable; `agent.remove(f)` removes it."""
    seen: list[str] = []

    def hook(event: Any) -> None:
        seen.append(type(event).__name__)

    agent = Agent("a", ScriptedModel(["1", "2", "3", "4"]))
    registered = agent.on("after_llm", hook)
    await agent.call("go")
    registered.dispose()
    await agent.call("go")
    assert seen == ["PostReasoning"]
    agent.on("after_llm", hook)
    assert agent.remove(hook)
    assert not agent.remove(hook)
    await agent.call("go")
    assert seen == ["PostReasoning"]

    @agent.on("on_complete")
    def complete(event: Any) -> None:
        seen.append("complete")

    await agent.call("go")
    assert seen == ["PostReasoning", "complete"]


async def test_a_run_keeps_the_chain_it_began_with() -> None:
    """`on` during a run applies to later runs."""
    seen: list[str] = []
    agent = Agent("a", ScriptedModel(["1", "2"]))

    def adds(event: Any) -> None:
        agent.on("on_complete", lambda event: seen.append("added"))

    agent.on("after_user_input", adds)
    await agent.call("go")
    assert seen == []
    await agent.call("go")
    assert seen == ["added"]


async def test_mappings_and_nested_lists() -> None:
    """`hooks=` takes hooks, marked functions, lists of lists, and mappings from names to functions."""
    seen: list[str] = []

    @on(PreCall)
    def one(event: PreCall) -> None:
        seen.append("one")

    class Two(Hook):
        def on_event(self, event: Any) -> Any:
            if isinstance(event, PreCall):
                seen.append("two")

    hooks = [one, [[Two()]], {"after_llm": [lambda event: seen.append("three")], "on_complete": print_to(seen)}]
    await Agent("a", ScriptedModel(["x"]), hooks=hooks).call("go")
    assert seen == ["one", "two", "three", "complete"]


def print_to(seen: list[str]) -> Any:
    def complete(event: Any) -> None:
        seen.append("complete")

    return complete


async def test_on_error_gets_errors() -> None:
    """`on_error` gets Error events."""
    seen: list[Any] = []

    @on("on_error")
    def failed(event: Error) -> None:
        seen.append(str(event.error))

    with pytest.raises(ValueError, match="down"):
        await Agent("a", ScriptedModel([ValueError("down")]), hooks=[failed]).call("go")
    assert seen == ["down"]


async def test_tools_option_limits_a_function_to_tools() -> None:
    """`@before_each_tool(tools=["delete_*"])` (and `on(...)` likewise) handles those tools only."""
    from eventlog import use

    from agentflow import tool

    @tool
    async def delete_it() -> str:
        """Delete."""
        return "deleted"

    @tool
    async def keep_it() -> str:
        """Keep."""
        return "kept"

    @on(PreActing, tools=["delete_*"])  # type: ignore[call-overload]
    def check(event: PreActing) -> Deny:
        return Deny("no")

    model = ScriptedModel([[use("t1", "delete_it"), use("t2", "keep_it")], "end"])
    agent = Agent("a", model, tools=[delete_it, keep_it], hooks=[check])
    await agent.call("go")
    assert [result.state for result in agent.session().messages[2].tool_results] == ["denied", "success"]


async def test_async_and_plain_handlers_both_run() -> None:
    """The same two handlers, plain and `async`, by name, by decorator and by mapping: each runs, and none is left
    unawaited.
    """
    seen: list[str] = []

    def plain(event: Any) -> None:
        seen.append("plain")

    async def later(event: Any) -> None:
        await asyncio.sleep(0)
        seen.append("async")

    hooks = [on_complete(plain, later), on("on_complete")(later), {"on_complete": [plain, later]}]
    await agent_of(["end"], *hooks).call("go")
    assert seen == ["plain", "async", "async", "plain", "async"]


async def test_a_handlers_parameter_may_have_any_name() -> None:
    """Only the number of required parameters counts; defaults and `*rest` are allowed."""
    seen: list[str] = []

    def result(result: PostCall) -> None:
        seen.append("result")

    def extra(_: PostCall, more: int = 1) -> None:
        seen.append("extra")

    def rest(*everything: Any) -> None:
        seen.append(f"rest of {len(everything)}")

    await agent_of(["end"], on_complete(result, extra, rest)).call("go")
    assert seen == ["result", "extra", "rest of 1"]
