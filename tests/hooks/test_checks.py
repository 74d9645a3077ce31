"""No hook is silently useless: one that could not work is refused at registration, with what to write."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from eventlog import streamed, use
from toolbox import delete

from agentflow import (
    Agent,
    Deny,
    Hook,
    Mono,
    PostActing,
    PostReasoning,
    PreActing,
    PreReasoning,
    Turn,
    after_llm,
    before_each_tool,
    before_llm,
    on,
)
from agentflow.errors import HookContractError, TurnDeniedError, UsageError
from agentflow.hooks import ProcessHooks
from agentflow.hooks.recording import ChangeListener
from agentflow.testing import ScriptedModel, check_hook


def _model() -> ScriptedModel:
    return ScriptedModel([use("t1", "delete", path="/etc"), "end"])


async def _result(agent: Agent) -> str:
    lines = await streamed(agent)
    return next(line for line in lines if line.startswith("PostActing")).removeprefix("PostActing t1 ")


def guard(event: PreActing) -> Deny:
    """A guard that must not be lost."""
    return Deny("no")


# ---- `on` as a call


async def test_on_with_a_function_registers_it() -> None:
    """`x.on(event, f)` registers f on an agent, a turn and the process, and returns a disposable that removes it."""
    process = ProcessHooks()
    agent = Agent("a", _model(), tools=[delete])
    agents = [(agent.on(PreActing, guard), agent), (process.on(PreActing, guard), None)]
    for registered, one in agents:
        there = one or Agent("a", _model(), tools=[delete], process_hooks=process)
        assert await _result(there) == "denied 'Denied: no'"
        registered.dispose()
    for one in (Agent("a", _model(), tools=[delete], process_hooks=process), agent.branch("b")):
        one.on("before_llm", lambda event: None)
        assert not [hook for hook in one.hooks if hook.name == "guard"]

    turn = Turn(delete, {"path": "/etc"})
    registered = turn.on(PreActing, guard)
    with pytest.raises(TurnDeniedError):
        await turn.returning()
    registered.dispose()
    assert (turn.hooks, await turn.returning()) == ((), "/etc is gone")


def test_on_takes_options_and_several_events_with_a_function() -> None:
    """The call takes the arguments of the decorator."""
    process = ProcessHooks()
    process.on(PreActing, "after_llm", guard_of_any, priority=3, guard=True)
    process.on(noted, priority=4)
    assert [(h.name, h.events, h.priority, h.guard) for h in process] == [
        ("guard_of_any", (PreActing, PostReasoning), 3, True),
        ("noted", (PreReasoning,), 4, False),
    ]


def guard_of_any(event: Any) -> None:
    """A function of any event."""


def noted(event: PreReasoning) -> None:
    """Annotated."""


@pytest.mark.parametrize(
    "register",
    [
        lambda: ProcessHooks().on(PreActing, None),
        lambda: ProcessHooks().on(PreActing, Hook()),
        lambda: ProcessHooks().on(before_llm(noted), priority=3),
        lambda: ProcessHooks().on(PreActing, noted),
        lambda: Agent("a", "m/x").on(PreActing, noted),
        lambda: Agent("a", "m/x", default_hooks=print),
    ],
)
def test_what_cannot_be_registered_is_refused(register: Callable[[], Any]) -> None:
    """Nothing is ignored silently: neither a value that is no function of the event, nor options for a hook that has
    its own.
    """
    with pytest.raises(UsageError):
        register()


async def test_what_a_decorator_made_is_removed_with_what_stood_below_it() -> None:
    """`remove` removes all hooks that decorators have made of a function; a second time there are none."""
    """`agent.off` takes the function or the hook made of it, by name or class; of one hook for several events it says so."""
    seen: list[str] = []

    @after_llm
    def made(event: PostReasoning) -> None:
        seen.append("made")

    @before_llm
    @after_llm
    def twice(event: Any) -> None:
        seen.append(type(event).__name__)

    @on(PreReasoning, PostReasoning)
    def one(event: Any) -> None:
        seen.append("one")

    agent = Agent("a", ScriptedModel(lambda request: "ok"), hooks=[made, twice, one])
    await agent.call("go")
    assert seen == ["PreReasoning", "one", "made", "PostReasoning", "one"]
    seen.clear()
    assert agent.remove(made)
    assert not agent.remove(made)
    assert agent.remove(twice)
    assert agent.remove(one.handler)
    assert not agent.remove([one, twice, {"after_llm": made.handler}])
    await agent.call("go")
    assert seen == []


# ---- options by their type


class Named(Hook):
    """A hook that answers everything with the event."""

    def __init__(self, **options: Any) -> None:
        for name, value in options.items():
            setattr(self, name, value)

    def on_event(self, event: Any) -> Any:
        return event


OPTIONS = (
    *("priority", "on_failure", "timeout", "guard", "observer", "scope", "serial", "shadow", "in_thread", "tags"),
    *("only_tools", "events", "wraps", "name"),
)


def test_every_option_is_checked() -> None:
    """No option of `Hook` is left out of these tests."""
    assert {*OPTIONS} == {*Hook.__annotations__, "name"}


@pytest.mark.parametrize("option", OPTIONS)
def test_a_method_is_no_option(option: str) -> None:
    """A method with an option's name would be taken for its value: it is refused, with the name."""
    hook = type("Named", (Hook,), {option: lambda self: None, "on_event": lambda self, event: event})()
    with pytest.raises(UsageError) as caught:
        Agent("a", _model(), hooks=[hook])
    assert str(caught.value).startswith(f"Hook 'Named': {option} is a method, but it must be ")
    assert str(caught.value).endswith(f"Every hook has this option; rename your attribute {option!r}.")
    with pytest.raises(UsageError):
        check_hook(lambda: hook)


@pytest.mark.parametrize("flag", ["guard", "observer", "serial", "shadow", "in_thread"])
@pytest.mark.parametrize("value", ["no", 1, None, print, ...], ids=repr)
def test_a_flag_is_true_or_false(flag: str, value: Any) -> None:
    """A flag is never evaluated by its truth value: a callback stored as `observer` must not disarm a guard."""
    with pytest.raises(UsageError, match=rf"'Named': {flag}.*it must be True or False"):
        Agent("a", _model(), hooks=[Named(**{flag: value})])
    if value is not None:  # (an option that is not given)
        with pytest.raises(UsageError, match=rf"'guard': {flag}.*it must be True or False"):
            before_each_tool(guard, **{flag: value})


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (
            {"priority": float("nan")},
            "priority=nan, but it must be a number, lower runs earlier, such as priority = 10.",
        ),
        ({"priority": True}, "priority=True, but it must be a number"),
        ({"priority": "10"}, "priority='10', but it must be a number"),
        ({"timeout": "2", "in_thread": True}, "timeout='2', but it must be seconds, or None, such as timeout = 2.5."),
        ({"timeout": float("nan"), "in_thread": True}, "timeout=nan, but it must be above 0 seconds"),
        ({"tags": "money"}, "tags='money', but it must be a frozenset of str, such as tags = frozenset({'money'})."),
        ({"tags": {1}}, "tags={1}, but it must be a frozenset of str"),
        (
            {"only_tools": "delete_*"},
            "only_tools='delete_*', but it must be a tuple of patterns, such as only_tools = ('delete_*',).",
        ),
        ({"events": PreActing}, "such as events = (PreActing,)."),
        ({"wraps": (PostActing,)}, "such as wraps = (PreReasoning,)."),
        ({"name": 5}, "name=5, but it must be a str."),
        ({"observer": True, "on_failure": "deny"}, "an observer cannot refuse anything"),
    ],
    ids=repr,
)
def test_an_option_of_the_wrong_type_is_refused(options: dict[str, Any], says: str) -> None:
    """The error names the hook, the option, its value and what to write, for a class and for an object."""
    for hook in (_class(options)(), *([Named(**options)] if "name" not in options else [])):
        with pytest.raises(UsageError, match="Named") as caught:
            Agent("a", _model(), hooks=[hook])
        assert says in str(caught.value)


def _class(options: dict[str, Any]) -> type[Hook]:
    return type("Named", (Hook,), {**options, "on_event": lambda self, event: event})


@pytest.mark.parametrize(
    "options", [{"tags": 5}, {"tools": 5}, {"tags": [1]}, {"priority": "x"}, {"timeout": "x"}], ids=repr
)
def test_options_of_a_function_are_checked_alike(options: dict[str, Any]) -> None:
    """A decorator's options are the same options."""
    with pytest.raises(UsageError, match="guard"):
        before_each_tool(guard, **options)


async def test_a_property_and_an_assignment_are_options_too() -> None:
    """The value counts: a property, a class attribute and an assignment are equal, for each object separately."""

    class Chosen(Named):
        def __init__(self, chosen: Any, **options: Any) -> None:
            super().__init__(**options)
            self.chosen = chosen

        @property
        def priority(self) -> Any:  # type: ignore[override]
            return self.chosen

    agent = Agent("a", _model(), hooks=[Chosen(30), Chosen(20, tags={"a"}), Named(priority=25)], default_hooks=())
    assert [hook.priority for hook in agent.hooks] == [20, 25, 30]
    with pytest.raises(UsageError, match="priority='high'"):
        await agent.call("go", hooks=[Chosen("high")])
    with pytest.raises(UsageError, match="priority='low'"):
        await agent.call("go", hooks=[Named(priority="low")])


async def test_what_a_hook_keeps_for_itself_is_its_own() -> None:
    """Only options have a meaning: `handler`, `also`, `spec` or `scope_of` are ordinary attributes."""

    class Keeps(Hook):
        def __init__(self) -> None:
            self.handler = print
            self.also = ("x",)
            self.event = None

        def on_event(self, event: Any) -> Any:
            return Deny("no") if isinstance(event, PreActing) else event

    hook = Keeps()
    agent = Agent("a", _model(), tools=[delete], hooks=[hook])
    assert await _result(agent) == "denied 'Denied: no'"
    assert Turn(delete, {"path": "x"}, hooks=[hook]).to_dict()["hooks"] == ["Keeps"]
    assert agent.remove(hook)


# ---- methods by their signature


def _hook(**body: Any) -> Hook:
    return type("Made", (Hook,), body)()


async def _async_generator(self: Any, event: Any = None) -> AsyncIterator[Any]:
    yield event


def _generator(self: Any, event: Any) -> Any:
    yield event


async def _async_around(self: Any, event: Any, source: Any) -> Any:
    return source


async def _chunks(self: Any, event: Any, source: Any) -> AsyncIterator[Any]:
    async for chunk in source:
        yield chunk


async def _concerned(self: Any, reply: Any) -> bool:
    return False


PASSES = {"on_event": lambda self, event: event}


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (
            {"on_event": lambda self, e, agent: e},
            "on_event(e, agent) is called with event; write def on_event(self, event).",
        ),
        ({"on_event": lambda self: None}, "on_event() is called with event; write def on_event(self, event)."),
        ({"on_event": lambda self, e, *, agent: e}, "on_event(e, *, agent) is called with event"),
        ({"on_event": 5}, "on_event=5 must be a method: def on_event(self, event)."),
        ({"on_event": _generator}, "on_event is a generator, so a call would not run its body."),
        ({"on_event": _async_generator}, "on_event is a generator"),
        (
            {"around": lambda self, source: source},
            "around(source) is called with event and source; write def around(self, event",
        ),
        (
            {"around": _async_around},
            "around is `async def`, but it is never awaited. Write def around(self, event, source), and return",
        ),
        (
            {"around": _chunks},
            "around is a generator, so a call would not run its body. Move the loop to another",
        ),
        (
            {**PASSES, "concerns": lambda self: True},
            "concerns() is called with reply; write def concerns(self, reply).",
        ),
        ({**PASSES, "concerns": _concerned}, "concerns is `async def`, but it is never awaited."),
        ({"tools": lambda self, agent: ()}, "tools(agent) is called with no arguments; write def tools(self)."),
        ({"tools": _async_generator}, "tools is a generator"),
        ({"onEvent": lambda self, event: event}, "has 'onEvent', which is never used. Did you mean 'on_event'?"),
        ({**PASSES, "onFailure": "deny"}, "has 'onFailure', which is never used. Did you mean 'on_failure'?"),
        (
            {"on_evnet": lambda self, event: event},
            "or tools(self). Did you mean 'on_event' by 'on_evnet'?",
        ),
        (
            {"handle": lambda self, event: event},
            "would never be called: it should define on_event(self, event), around(self, event, source) or tools",
        ),
        ({"on_call": lambda self, call: None}, "would never be called: it should define"),
        ({"concerns": lambda self, reply: True}, "would never be called: it should define"),
        ({}, "would never be called: it should define"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, dict) else "",
)
def test_methods_are_checked_at_registration(body: dict[str, Any], says: str) -> None:
    """A method that could not be called, and a hook that would never be called, are refused, also by `check_hook`."""
    for register in (
        lambda hook: Agent("a", _model(), hooks=[hook]),
        delete.hook,
        lambda hook: check_hook(lambda: hook),
    ):
        with pytest.raises(UsageError, match="Made") as caught:
            register(_hook(**body))
        assert says in str(caught.value)


def test_a_bare_hook_is_refused() -> None:
    """`Hook()` itself does nothing, and neither does a bare listener."""
    for bare in (Hook(), ChangeListener()):
        with pytest.raises(UsageError, match=r"A plain \w+ does nothing. Subclass it"):
            Agent("a", _model(), hooks=[bare])


def test_a_method_assigned_to_the_object_is_refused() -> None:
    """Only methods of the class are called: an `on_event` assigned to an object beside an `around` would be ignored."""
    hook = _hook(around=lambda self, event, source: source)
    cast_: Any = hook
    cast_.on_event = guard
    with pytest.raises(UsageError, match="on_event was assigned to the instance"):
        Agent("a", _model(), hooks=[hook])
    cast_ = _hook(**PASSES)
    cast_.inThread = True
    with pytest.raises(UsageError, match="has 'inThread', which is never used\\. Did you mean 'in_thread'"):
        Agent("a", _model(), hooks=[cast_])


@pytest.mark.parametrize(
    "body",
    [
        {"on_event": lambda self, event, *more: event},
        {"on_event": lambda self, event, limit=3: event},
        {"on_event": lambda *arguments: arguments[1]},
        {"on_event": staticmethod(lambda event: event)},
        {"on_event": classmethod(lambda cls, event: event)},
        {"around": lambda self, event, source, **more: source},
        {"tools": lambda self: ()},
        {**PASSES, "TIMEOUT": 3, "_onEvent": 1, "Events": int, "events_seen": 2},
    ],
    ids=" ".join,
)
async def test_whatever_can_be_called_is_legal(body: dict[str, Any]) -> None:
    """A method may take its arguments in any way, and have any name that only resembles ours."""
    assert await _result(Agent("a", _model(), tools=[delete], hooks=[_hook(**body)])) == "success '/etc is gone'"


# ---- a forgotten return


async def test_a_forgotten_return_in_around_is_an_error() -> None:
    """`around` that returns nothing is a contract error that mentions the missing `return`, with a listener too."""

    class Patience(Hook):
        def around(self, event: Any, source: Any) -> Any:
            if isinstance(event, PreReasoning):
                source.timeout(0.05)
                return None
            return source

    class Listens(ChangeListener):
        events = ()

        def on_call(self, call: Any) -> None: ...

    for hooks in ([Patience()], [Patience(), Listens()]):
        with pytest.raises(HookContractError) as caught:
            await Agent("a", ScriptedModel(["x"]), hooks=hooks).call("go")
        assert str(caught.value) == (
            "Hook 'Patience.around' answered PreReasoning with None (is a `return` missing? to change nothing, "
            "`return source`). Allowed answers: the source, or any Mono, Flux or Observable."
        )


async def test_a_hook_made_by_a_decorator_calls_the_function_itself() -> None:
    """The chain calls the function, so its own form decides: async, in a thread, a Mono."""
    seen: list[str] = []

    async def later(event: PreActing) -> None:
        await asyncio.sleep(0)
        seen.append("async")

    def reactive(event: PreActing) -> Mono[Any]:
        return Mono.from_callable(lambda: seen.append("mono"))

    hooks = [before_each_tool(later, timeout=5), before_each_tool(reactive, timeout=5)]
    await _result(Agent("a", _model(), tools=[delete], hooks=hooks))
    assert seen == ["async", "mono"]


def test_a_hook_needs_one_method_that_is_called() -> None:
    """Any of the methods; `concerns` alone is never called."""

    class Calls(ChangeListener):
        def on_call(self, call: Any) -> None: ...

    class Layers(ChangeListener):
        def on_layer(self, layer: Any) -> None: ...

    class Offers(Hook):
        def tools(self) -> Any:
            return ()

    class Concerns(Hook):
        def concerns(self, reply: Any) -> bool:
            return True

    for kind in (Calls, Layers, Offers):
        Agent("a", _model(), hooks=[kind()])
    with pytest.raises(UsageError, match="would never be called"):
        Agent("a", _model(), hooks=[Concerns()])


def test_only_hooks_are_checked_for_misspelt_names() -> None:
    """A base class that is no hook keeps its own names."""

    class Mixin:
        def onevent(self, event: Any) -> None: ...

    class Mixed(Mixin, Hook):
        def on_event(self, event: Any) -> Any:
            return event

    class Misspelt(Mixed):
        def onevent(self, event: Any) -> None: ...

    Agent("a", _model(), hooks=[Mixed()])
    with pytest.raises(UsageError, match="onevent"):
        Agent("a", _model(), hooks=[Misspelt()])
