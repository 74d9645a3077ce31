"""Four scopes of one pipeline: hooks of a tool, of a turn, of an agent, and of the process."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from eventlog import use
from turnlog import Log, add, worker

from agentflow import (
    ActingChunk,
    Agent,
    Deny,
    Error,
    Hook,
    PostActing,
    PostCall,
    PreActing,
    PreReasoning,
    Turn,
    on,
    tool,
)
from agentflow.errors import SafeExecutionError, TurnDeniedError, UsageError
from agentflow.hooks import ProcessHooks
from agentflow.testing.scripted import ScriptedModel
from agentflow.tools import Tool
from agentflow.vocabulary.events import ActingEvent, PostTurn, PreTurn, TurnEvent


def adder(**options: Any) -> Tool[..., Any]:
    """Return a tool of the test's own."""

    async def add(a: int, b: int) -> int:
        """Add."""
        return a + b

    return tool(**options)(add)


def counter(**options: Any) -> Tool[..., Any]:
    async def count(n: int) -> AsyncIterator[int]:
        """Count."""
        for i in range(n):
            yield i

    return tool(**options)(count)


class Names(Hook):
    """Records its name for each event."""

    def __init__(self, name: str, order: list[str], kind: type = PreActing, **options: Any) -> None:
        self.label = name
        self.order = order
        self.events = (kind,)
        for option, value in options.items():
            setattr(self, option, value)

    def on_event(self, event: Any) -> None:
        self.order.append(self.label)


async def in_queue(agent: Agent, turn: Turn[Any]) -> list[Any]:
    await agent.put(turn)
    return [value async for _, value in agent.run()]


async def called(agent: Agent, streamed: bool = False) -> None:
    if streamed:
        async with agent.stream("go") as events:
            async for _ in events:
                pass
    else:
        await agent.call("go")


ADD = use("t1", "add", a=1, b=2)


# ---- order


async def test_the_narrower_scope_comes_first_in_a_tie(process: ProcessHooks) -> None:
    """Tool, turn, agent, process, in any order of registration."""
    order: list[str] = []
    process.hook(Names("process", order))
    add = adder()
    agent = Agent("a", ScriptedModel([]), tools=[add], hooks=[Names("agent", order)], process_hooks=process)
    turn = Turn(add, {"a": 1, "b": 2}, hooks=[Names("turn", order)])
    add.hook(Names("tool", order))
    await in_queue(agent, turn)
    assert order == ["tool", "turn", "agent", "process"]


async def test_priority_comes_before_scope(process: ProcessHooks) -> None:
    """A process-wide hook with a lower number is earlier than a tool's."""
    order: list[str] = []
    process.hook(Names("process", order, priority=1))
    add = adder()
    add.hook(Names("tool", order, priority=50))
    agent = Agent(
        "a", ScriptedModel([]), tools=[add], hooks=[Names("agent", order, priority=10)], process_hooks=process
    )
    await in_queue(agent, Turn(add, {"a": 1, "b": 2}, hooks=[Names("turn", order, priority=20)]))
    assert order == ["process", "agent", "turn", "tool"]


async def test_class_comes_before_priority(process: ProcessHooks) -> None:
    """Editing hooks of any scope, then guards, then observers."""
    order: list[str] = []
    process.hook(Names("process edits", order, priority=900))
    add = adder()
    add.hook(Names("tool observes", order, observer=True, priority=1))
    hooks = [Names("agent guards", order, guard=True, priority=5)]
    agent = Agent("a", ScriptedModel([ADD, "3"]), tools=[add], hooks=hooks, process_hooks=process)
    await called(agent)
    assert order == ["process edits", "agent guards", "tool observes"]


async def test_the_same_hook_in_several_scopes_fires_once(process: ProcessHooks) -> None:
    """It fires once per event, at its narrowest scope."""
    order: list[str] = []
    same = Names("same", order)
    process.hook(same)
    add = adder()
    add.hook(same)
    add.hook(same)
    hooks = [Names("agent", order), same]
    agent = Agent("a", ScriptedModel([ADD, "3"]), tools=[add], hooks=hooks, process_hooks=process)
    await called(agent)
    await in_queue(agent, Turn(add, {"a": 1, "b": 2}, hooks=[same]))
    assert order == ["same", "agent", "same", "agent"]


async def test_the_same_hook_on_two_tools_fires_for_each(process: ProcessHooks) -> None:
    """It fires once for each of their calls."""
    order: list[str] = []
    add, count = adder(), counter()
    for each in (add, count):
        each.hook(Names("h", order))
    agent = Agent("a", ScriptedModel([[ADD, use("t2", "count", n=1)], "ok"]), tools=[add, count], process_hooks=process)
    await called(agent)
    assert order == ["h", "h"]


# ---- tags


@pytest.mark.parametrize(
    ("agent_tags", "turn_tags", "tool_tags", "fires"),
    [
        ((), (), (), False),
        (("x",), (), (), False),
        (("db",), (), (), True),
        ((), ("web",), (), True),
        ((), (), ("db", "x"), True),
        (("x",), ("y",), ("z",), False),
        (("db",), ("web",), ("db",), True),
    ],
)
async def test_tags(agent_tags: Any, turn_tags: Any, tool_tags: Any, fires: bool, process: ProcessHooks) -> None:
    """One tag of the hook on agent, turn or tool is enough; an object without tags never matches a hook that has
    some.
    """
    order: list[str] = []
    process.hook([Names("tagged", order, tags=frozenset({"db", "web"})), Names("all", order)])
    add = adder(tags=tool_tags)
    agent = Agent("a", ScriptedModel([]), tools=[add], tags=agent_tags, process_hooks=process)
    await in_queue(agent, Turn(add, {"a": 1, "b": 2}, tags=turn_tags))
    assert order == (["tagged", "all"] if fires else ["all"])


async def test_tags_of_a_tool_concern_its_calls_alone(process: ProcessHooks) -> None:
    """Other tools of the same agent do not match."""
    seen: list[str] = []

    @process.on(PreActing, tags=["db"])
    def note(event: PreActing) -> None:
        seen.append(event.tool_use.name)

    tools = [adder(tags=["db"]), counter()]
    agent = Agent("a", ScriptedModel([[ADD, use("t2", "count", n=1)], "ok"]), tools=tools, process_hooks=process)
    await called(agent)
    assert seen == ["add"]


async def test_hooks_of_an_object_ignore_tags(process: ProcessHooks) -> None:
    """They were registered on the object itself."""
    order: list[str] = []
    add = adder()
    add.hook(Names("tool", order, tags=frozenset({"x"})))
    hooks = [Names("turn", order, tags=frozenset({"y"}))]
    await Turn(add, {"a": 1, "b": 2}, hooks=hooks, process_hooks=process).returning()
    assert order == ["tool", "turn"]


# ---- process-wide


async def test_process_hooks_concern_calls_that_begin_later(process: ProcessHooks) -> None:
    """A running call keeps the hooks with which it began; the next one has the new hook; removed, it is gone."""
    order: list[str] = []
    add = adder()

    @on(PreActing)
    def registers(event: PreActing) -> None:
        process.hook(late)

    late = Names("late", order, PostActing)
    agent = Agent("a", ScriptedModel([ADD, "3"] * 3), tools=[add], hooks=[registers], process_hooks=process)
    await called(agent)
    assert order == []
    await called(agent)
    assert order == ["late"]
    agent.remove(registers)
    process.remove(late)
    await called(agent)
    assert order == ["late"]


async def test_a_registration_is_a_context_manager(process: ProcessHooks) -> None:
    """At the end of the block the hook is removed."""
    order: list[str] = []
    add = adder()
    registered = process.hook(Names("within", order))
    with registered:
        await Turn(add, {"a": 1, "b": 2}, process_hooks=process).returning()
    await Turn(add, {"a": 1, "b": 2}, process_hooks=process).returning()
    assert order == ["within"]


async def test_default_process_hooks_are_separate(process: ProcessHooks) -> None:
    """A separate registry does not apply to agents that use another one."""
    order: list[str] = []
    process.hook(Names("mine", order))
    await Turn(adder(), {"a": 1, "b": 2}).returning()
    assert order == []


# ---- tools


async def test_the_hooks_of_a_tool() -> None:
    """Before, each chunk, after, and an error: for calls, queues and turns by hand."""
    order: list[str] = []
    count = counter()
    count.on(PreActing, lambda event: order.append(f"before {dict(event.tool_use.input)}"))
    count.on(ActingChunk, lambda event: order.append(f"piece {event.chunk}"))
    count.on(PostActing, lambda event: order.append(f"after {event.tool_result.state}"))
    count.on(Error, lambda event: order.append(f"error {type(event.error).__name__}"))
    await called(Agent("a", ScriptedModel([use("t1", "count", n=1), "ok"]), tools=[count]))
    await called(Agent("a", ScriptedModel([use("t1", "count", n="x"), "ok"]), tools=[count]))
    assert order == [
        "before {'n': 1}",
        "piece 0",
        "after success",
        "before {'n': 'x'}",
        "error ToolArgumentError",
        "after error",
    ]


async def test_hooks_of_a_tool_see_nothing_else() -> None:
    """They get neither other tools nor other events of the call."""
    log = Log()
    add, count = adder(), counter()
    add.hook(log)
    await called(Agent("a", ScriptedModel([[ADD, use("t2", "count", n=1)], "ok"]), tools=[add, count]))
    assert log.names == ["PreActing", "PostActing"]


async def test_a_renamed_call_is_judged_by_the_new_tools_hooks() -> None:
    """Renaming a call does not bypass the guard of the new tool."""
    denied: list[str] = []

    async def remove(a: int, b: int) -> str:
        raise AssertionError("never")

    dangerous = tool(remove)

    @dangerous.on(PreActing, guard=True)
    def guard(event: PreActing) -> Deny:
        denied.append(event.tool_use.name)
        return Deny("never")

    @on(PreActing)
    def rename(event: PreActing) -> None:
        event.tool_use = event.tool_use.replace(name="remove")

    agent = Agent("a", ScriptedModel([ADD, "ok"]), tools=[adder(), dangerous], hooks=[rename])
    await called(agent)
    assert (denied, agent.session().messages[2].tool_results[0].text) == (["remove"], "Denied: never")


async def test_an_alias_shares_the_hooks() -> None:
    """A tool under another name is the same tool."""
    order: list[str] = []
    add = adder()
    alias = add.renamed("plus")
    add.hook(Names("h", order))
    assert await Turn(alias, {"a": 1, "b": 2}).returning() == 3
    assert order == ["h"]


async def test_a_tool_that_is_a_method() -> None:
    """Its hooks get the calls of every object to which it is bound."""
    order: list[str] = []

    class Desk:
        def __init__(self, name: str) -> None:
            self.name = name

        @tool
        async def who(self) -> str:
            """Say who."""
            return self.name

    Desk.who.hook(Names("class", order))
    one, two = Desk("one"), Desk("two")
    one.who.hook(Names("object", order))
    assert [await Turn(one.who).returning(), await Turn(two.who).returning()] == ["one", "two"]
    assert order == ["class", "object"] * 2


class Doubles(Hook):
    """Wraps a tool and doubles its text."""

    def around(self, event: Any, source: Any) -> Any:
        return source.map(lambda result: f"{result.text}{result.text}") if isinstance(event, PreActing) else source


async def test_a_hook_of_a_tool_may_wrap_it() -> None:
    """In calls and turns of that tool only; the text is converted to the tool's return type, an int."""
    add = adder()
    add.hook(Doubles())
    agent = Agent("a", ScriptedModel([[ADD, use("t2", "other")], "ok"]), tools=[add, tool(name="other")(_other)])
    await called(agent)
    assert [result.text for result in agent.session().messages[2].tool_results] == ["33", "other"]
    assert await Turn(add, {"a": 1, "b": 2}).returning() == 33


async def _other() -> str:
    """Return "other"."""
    return "other"


@pytest.mark.parametrize("streamed", [False, True], ids=["called", "streamed"])
async def test_scopes_in_a_parallel_round(streamed: bool, process: ProcessHooks) -> None:
    """Each call has the hooks of its own tool, streamed or not."""
    seen: list[str] = []

    def note(event: Any) -> None:
        seen.append(f"{type(event).__name__} {event.tool_use.id}")

    quiet = tool(type="read", name="quiet")(_other)
    loud = counter(type="read", name="loud", tags=["loud"])
    quiet.on(PreActing, note)
    loud.on(ActingChunk, note)
    process.on(PostActing, tags=["loud"])(note)
    calls = [use("q1", "quiet"), use("l1", "loud", n=2), use("q2", "quiet"), use("l2", "loud", n=1)]
    await called(Agent("a", ScriptedModel([calls, "ok"]), tools=[quiet, loud], process_hooks=process), streamed)
    assert sorted(seen) == [
        "ActingChunk l1",
        "ActingChunk l1",
        "ActingChunk l2",
        "PostActing l1",
        "PostActing l2",
        "PreActing q1",
        "PreActing q2",
    ]


# ---- failures


async def test_a_tools_hook_that_fails_on_a_notification_is_skipped_from_then_on() -> None:
    """It is disabled for the rest of the run; the tool is unaffected, and the failure is reported once."""
    log, tries = Log(), list[int]()
    count = counter()

    @count.on(ActingChunk)
    def fail(event: ActingChunk) -> None:
        tries.append(1)
        raise ValueError("logger down")

    agent = Agent("a", ScriptedModel([use("t1", "count", n=3), "ok"] * 2), tools=[count], hooks=[log])
    await called(agent)
    assert (len(tries), [event.hook for event in log.seen if isinstance(event, Error)]) == (1, ["fail"])
    await called(agent)
    assert len(tries) == 2


async def test_a_tools_hook_that_fails_on_a_decision_fails_the_call() -> None:
    """The call fails, as with any decision hook; `on_failure` overrides that."""
    add = adder()

    @add.on(PreActing)
    def fail(event: PreActing) -> None:
        raise ValueError("check down")

    agent = Agent("a", ScriptedModel([ADD, "ok"]), tools=[add])
    with pytest.raises(ValueError, match="check down"):
        await called(agent)
    add.remove(fail)

    @add.on(PreActing, on_failure="deny")
    def closed(event: PreActing) -> None:
        raise ValueError("check down")

    with pytest.raises(TurnDeniedError):
        await Turn(add, {"a": 1, "b": 2}).returning()


# ---- registering


async def test_hooks_of_a_turn_travel_with_its_copies() -> None:
    """Registering on the copy does not change the original."""
    order: list[str] = []
    turn = Turn(adder(), {"a": 1, "b": 2}, hooks=[Names("first", order, PreTurn)])
    copy = turn.copy()
    copy.hook(Names("copy", order, PreTurn))
    await turn.returning()
    await copy.returning()
    assert order == ["first", "first", "copy"]


async def test_a_hook_cannot_be_registered_on_a_turn_that_runs() -> None:
    """It would miss the earlier events."""
    errors: list[str] = []

    async def meddle() -> None:
        try:
            turn.on("after_turn", print)
        except SafeExecutionError as error:
            errors.append(str(error))

    turn = Turn(tool(meddle))
    await turn.returning()
    assert len(errors) == 1


@pytest.mark.parametrize("scope", ["tool", "turn", "process"])
def test_what_is_no_hook_is_refused_at_every_scope(scope: str, process: ProcessHooks) -> None:
    """It is refused at registration, and not at its first call."""
    add = adder()
    register: dict[str, Any] = {"tool": add.hook, "turn": Turn(add, {}).hook, "process": process.hook}
    with pytest.raises(UsageError):
        register[scope](print)
    with pytest.raises(UsageError):
        register[scope](Names("x", [], PostCall, priority="high"))


@tool
async def delete_file(path: str) -> str:
    """Delete."""
    return f"deleted {path}"


def test_the_scopes_take_hooks_as_an_agent_does(process: ProcessHooks) -> None:
    """One hook, nested lists, functions by name; a plain function and a class get the agent's errors."""
    log = Log()
    turn = Turn(add, {"a": 1, "b": 2}, hooks=log)
    more = turn.hook([[Log()], {"before_each_tool": print}])
    process.hook([[log], log])
    assert [hook.name for hook in turn.hooks] == ["Log", "Log", "print"]
    assert process.hooks == (log,)
    more.dispose()
    assert turn.hooks == (log,)

    plain: Any = lambda event: event  # noqa: E731 - what users write
    for wrong, said in ((plain, "is a plain function without an event"), (Log, "Pass an instance: Log()")):
        for refused in (
            lambda wrong=wrong: Turn(add, hooks=[wrong]),
            lambda wrong=wrong: turn.hook(wrong),
            lambda wrong=wrong: process.hook(wrong),
            lambda wrong=wrong: add.hook(wrong),
        ):
            with pytest.raises(UsageError) as caught:
                refused()
            assert said in str(caught.value)
    assert (turn.hooks, process.hooks, add.hooks) == ((log,), (log,), ())


def test_a_hook_that_would_never_fire_is_refused() -> None:
    """A tool and a turn have their own events only; one of several is enough, and a hook of all events is accepted."""

    @tool
    async def own() -> str:
        return "done"

    def see(event: Any) -> None: ...

    turn = Turn(own)
    with pytest.raises(UsageError) as of_tool:
        own.hook(on(PreReasoning)(see))
    with pytest.raises(UsageError):
        own.hook(on(PreTurn)(see))
    with pytest.raises(UsageError) as of_turn:
        turn.on(PreReasoning)(see)
    assert str(of_tool.value) == (
        "Hook 'see' handles PreReasoning, but hooks of tool 'own' only receive PreActing, ActingChunk, "
        "PostActing, Error. Register it on the agent instead."
    )
    assert "but hooks of a turn of 'own' only receive PrePut, PostPut, PreTurn," in str(of_turn.value)
    assert (own.hooks, turn.hooks) == ((), ())
    own.hook(on(PreReasoning, PreActing)(see))
    own.hook(Log())
    turn.hook(on(TurnEvent, ActingEvent)(see))

    class Wraps(Hook):
        events = (PreReasoning,)

        def around(self, event: Any, source: Any) -> Any:
            return source

    own.hook(Wraps())
    assert (len(own.hooks), len(turn.hooks), len(turn.copy().hooks)) == (3, 1, 1)


async def test_tools_can_be_chosen_where_an_event_is_about_a_turn() -> None:
    """`tools=` filters by the turn's tool."""
    seen: list[str] = []

    @on(PreTurn, PostTurn, PreActing, tools=["delete_*"])
    def show(event: PreTurn | PostTurn | PreActing) -> None:
        seen.append(type(event).__name__)

    agent = worker(add, delete_file, hooks=[show])
    await agent.put(Turn(add, {"a": 1, "b": 2}))
    await agent.put(Turn(delete_file, {"path": "a"}))
    assert [value async for _, value in agent.run()] == [3, "deleted a"]
    assert seen == ["PreTurn", "PreActing", "PostTurn"]
