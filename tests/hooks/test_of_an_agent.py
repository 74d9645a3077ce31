"""The hooks of an agent: set when it is built, added and removed later, and otherwise never changed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from agentflow import (
    Agent,
    Hook,
    HookEvent,
    PostActing,
    PostReasoning,
    PreActing,
    PreReasoning,
    Turn,
    after_llm,
    on,
    on_complete,
    tool,
)
from agentflow.errors import UsageError
from agentflow.hooks import HookSet, ProcessHooks
from agentflow.hooks.hook_set import FullHookSet
from agentflow.hooks.registered import Registered
from agentflow.testing import ScriptedModel


async def test_the_hooks_of_an_agent_cannot_be_changed_behind_its_back() -> None:
    """What was passed may change later, the agent's hooks do not; what it shows is immutable and in order."""
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


@tool
async def look(where: str) -> str:
    """Look."""
    return f"nothing in {where}"


def scripted(**options: Any) -> Agent:
    return Agent("a", ScriptedModel(lambda request: "Hello."), **options)


class Notes(Hook):
    """Records the events that it gets."""

    events = (PreReasoning, PostReasoning)

    def __init__(self) -> None:
        self.seen: list[str] = []

    def on_event(self, event: HookEvent) -> HookEvent:
        self.seen.append(type(event).__name__)
        return event


async def test_a_hook_is_added_to_an_agent_that_exists() -> None:
    """It applies to calls that begin later, until its handle is disposed; registered twice it is still one hook."""
    agent, notes = scripted(), Notes()
    await agent.call("Hi")
    handle = agent.hook(notes)
    agent.hook(notes)
    await agent.call("Hi")
    assert notes.seen == ["PreReasoning", "PostReasoning"]
    handle.dispose()
    await agent.call("Hi")
    assert notes.seen == ["PreReasoning", "PostReasoning"]
    assert notes not in agent.hooks


async def test_whatever_the_constructor_takes_as_hooks_can_be_added() -> None:
    """It takes marked functions, lists of them, and functions by name; the handle removes all of them."""
    seen: list[str] = []
    agent = scripted()
    with agent.hook([after_llm(lambda event: seen.append("a")), [on(PreReasoning)(lambda event: seen.append("b"))]]):
        with agent.hook({"on_complete": lambda event: seen.append("c")}):
            await agent.call("Hi")
        await agent.call("Hi")
    await agent.call("Hi")
    assert seen == ["b", "a", "c", "b", "a"]


async def test_a_call_that_runs_keeps_the_hooks_it_began_with() -> None:
    """A hook that is added meanwhile applies from the next call on."""
    notes = Notes()

    def meanwhile() -> None:
        agent.hook(notes)

    agent = Agent("a", ScriptedModel([["Hel", meanwhile, "lo."], "Hello."]))
    await agent.call("Hi")
    assert notes.seen == []
    await agent.call("Hi")
    assert notes.seen == ["PreReasoning", "PostReasoning"]


def test_what_cannot_be_added_is_refused() -> None:
    """A value that is no hook, a hook whose tools would be lost, and a hook where `on` expects an event are refused."""

    class Brings(Hook):
        def tools(self) -> list[Any]:
            return [look]

    agent = scripted()
    with pytest.raises(UsageError, match="not int"):
        agent.hook(5)  # pyright: ignore[reportArgumentType]
    with pytest.raises(UsageError) as caught:
        agent.hook(Brings())
    assert str(caught.value) == (
        "Hook 'Brings' brings tools, but the tools of agent 'a' are fixed. Build an agent with it: Agent(..., hooks=[...])."
    )
    with pytest.raises(UsageError) as caught:
        agent.on(Notes())  # pyright: ignore[reportCallIssue, reportArgumentType]
    assert str(caught.value) == (
        "'Notes' is a hook already and defines its events itself. Register it with hooks=[...]."
    )
    assert len(agent.hooks) == len(scripted().hooks)


# ---- one way at every scope


def a_turn() -> Turn[Any]:
    return Turn(tool(look.function), {"where": "here"})


PLACES: dict[str, Callable[[], Any]] = {
    "tool": lambda: tool(look.function),
    "turn": a_turn,
    "agent": lambda: Agent("a", ScriptedModel([]), default_hooks=(), process_hooks=ProcessHooks()),
    "process": ProcessHooks,
}


def noted(event: PreActing) -> None:
    """A function whose annotation names its event."""


@pytest.mark.parametrize("place", PLACES)
def test_every_scope_registers_in_the_same_ways(place: str) -> None:
    """A hook, a function for a class or a name, an annotated one, by class in a mapping, as call and as decorator:
    each is registered, and removed with its handle, or by the passed object.
    """
    where = PLACES[place]()
    hook = on(PreActing)(print)
    ways: dict[str, tuple[Callable[[], Any], Any]] = {
        "hook": (lambda: where.hook(hook), hook),
        "annotated": (lambda: where.hook(noted), noted),
        "by class": (lambda: where.hook({PreActing: noted}), {PreActing: noted}),
        "by name": (lambda: where.hook({"before_each_tool": [noted]}), {"before_each_tool": [noted]}),
        "list": (lambda: where.hook([[hook], None, noted]), [[hook], noted]),
        "on, class": (lambda: where.on(PreActing, noted), noted),
        "on, name": (lambda: where.on("before_each_tool", noted, priority=3), noted),
        "on, annotation": (lambda: where.on(noted), noted),
        "decorator": (lambda: where.on(PreActing, guard=True)(noted), noted),
    }
    for way, (register, given) in ways.items():
        handle = register()
        assert isinstance(handle, Registered), way
        assert list(where.hooks) == list(handle.hooks), way
        handle.dispose()
        assert list(where.hooks) == [], way
        register()
        assert (where.remove(given), where.remove(given), list(where.hooks)) == (True, False, []), way
        handle = register()
        assert (where.remove(handle), where.remove(handle), list(where.hooks)) == (True, False, []), way
    assert where.hook(None).hooks == ()
    assert not where.remove(None)
    with pytest.raises(UsageError, match="or a return value of hook"):
        where.remove(5)


@pytest.mark.parametrize("place", PLACES)
def test_a_decorated_function_can_still_be_called_and_taken_off(place: str) -> None:
    """The decorated name is the handle, which calls the function; decorators above it add to it."""
    where = PLACES[place]()

    @where.on(PostActing)
    @where.on(PreActing)
    def both(event: Any) -> str:
        """Said."""
        return f"seen {event}"

    assert (both("it"), both.__name__, both.__doc__) == ("seen it", "both", "Said.")
    assert [hook.events for hook in where.hooks] == [(PreActing,), (PostActing,)]
    assert where.remove(both)
    assert list(where.hooks) == []
    with pytest.raises(TypeError, match="not as a function"):
        where.hook(on(PreActing)(print))("event")


class BringsTools(Hook):
    """A hook with a tool."""

    def on_event(self, event: Any) -> None: ...

    def tools(self) -> list[Any]:
        return [look]


@pytest.mark.parametrize("place", PLACES)
def test_tools_of_a_hook_are_never_lost_in_silence(place: str) -> None:
    """Only an agent that is built with the hook gets its tools: all other registrations are refused."""
    where = PLACES[place]()
    with pytest.raises(UsageError, match=r"Hook 'BringsTools' brings tools, but the tools of .* are fixed"):
        where.hook(BringsTools())
    assert list(where.hooks) == []


async def test_a_call_refuses_a_hook_that_brings_tools() -> None:
    """The same holds for `hooks=` of a call: it is refused before anything happens."""
    agent = Agent("a", ScriptedModel([]))
    with pytest.raises(UsageError, match="brings tools"):
        await agent.call("Hi", hooks=[BringsTools()])


async def test_turns_have_names_too() -> None:
    """`before_turn`, `on_turn_value` and `after_turn` on a turn; `before_put` and `after_put` on an agent."""
    seen: list[str] = []

    def note(event: HookEvent) -> None:
        seen.append(type(event).__name__)

    turn = a_turn()
    for name in ("before_turn", "on_turn_value", "after_turn"):
        turn.on(name, note)
    await turn.returning()
    agent = Agent("a", ScriptedModel([]), tools=[look], hooks={"before_put": note, "after_put": note})
    await agent.put(Turn(look, {"where": "here"}))
    assert seen == ["PreTurn", "TurnValue", "PostTurn", "PrePut", "PostPut"]


def test_a_set_without_a_hook_has_all_others() -> None:
    """Of its own and of the process; the hook is found by identity, not by equality."""

    class Equal(Notes):
        def __eq__(self, other: object) -> bool:
            return isinstance(other, Equal)

        __hash__ = None  # type: ignore[assignment]

    own, process = [Equal(), Equal()], [Equal(), Equal()]
    hooks = FullHookSet(own, process)
    for gone in (*own, *process):
        left = hooks.without(gone)
        for before, after in ((own, left.own), (process, left.process)):
            assert [id(hook) for hook in after] == [id(hook) for hook in before if hook is not gone]
