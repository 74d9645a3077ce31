"""The named decorators, around functions, with options; what is refused, and the text that says what to do."""

from __future__ import annotations

import functools
import re
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from eventlog import Recorder, use

from agentflow import (
    Agent,
    Deny,
    Error,
    Hook,
    HookEvent,
    Mono,
    Msg,
    PostActing,
    PostReasoning,
    PreActing,
    PreReasoning,
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
from agentflow.errors import UsageError
from agentflow.hooks.event_names import EVENT_NAMES
from agentflow.testing import ScriptedModel

NAMED = {
    "after_user_input": after_user_input,
    "before_llm": before_llm,
    "after_llm": after_llm,
    "before_tool_round": before_tool_round,
    "before_each_tool": before_each_tool,
    "after_each_tool": after_each_tool,
    "after_tool_round": after_tool_round,
    "on_complete": on_complete,
    "on_error": on_error,
}


@tool
async def add(a: int, b: int) -> int:
    """Add."""
    return a + b


@tool
async def delete_all() -> str:
    """Delete."""
    return "deleted"


@tool
async def fail() -> str:
    """Fail."""
    raise ValueError("broken")


def agent_of(*hooks: Any) -> Agent:
    script = [[use("t1", "add", a=1, b=2), use("t2", "delete_all"), use("t3", "fail")], "done"]
    return Agent("a", ScriptedModel(script), tools=[add, delete_all, fail], hooks=hooks)


ORDER = [
    "after_user_input",
    "before_llm",
    "after_llm",
    "before_tool_round",
    "before_each_tool",
    "after_each_tool",
    "before_each_tool",
    "after_each_tool",
    "before_each_tool",
    "on_error",
    "after_each_tool",
    "after_tool_round",
    "before_llm",
    "after_llm",
    "on_complete",
]
"""When each name fires in a run of `agent_of`: three tools in one round, the last of which fails, then an answer."""


async def test_each_name_as_a_plain_decorator() -> None:
    """`@after_llm` and its eight siblings handle their events: `each` once per tool, `round` once per round."""
    seen: list[str] = []
    hooks: list[Any] = []
    for name, decorate in NAMED.items():

        @decorate
        def handler(event: Any, name: str = name) -> None:
            assert isinstance(event, EVENT_NAMES[name])
            seen.append(name)

        hooks.append(handler)
    await agent_of(*hooks).call("go")
    assert seen == ORDER


async def test_each_name_around_several_functions() -> None:
    """`after_llm(f, g)` is a list of hooks, in order, and can be used in `hooks=[...]` like a plugin; of one function
    it is one hook.
    """
    seen: list[str] = []

    def first(event: Any) -> None:
        seen.append(f"first {type(event).__name__}")

    async def second(event: Any) -> None:
        seen.append(f"second {type(event).__name__}")

    hooks = [decorate(first, second) for decorate in NAMED.values()]
    await agent_of(*hooks).call("go")
    kinds = [EVENT_NAMES[name].__name__ for name in ORDER]
    assert seen == [f"{which} {kind}" for kind in kinds for which in ("first", "second")]
    assert isinstance(after_llm(first), Hook)
    assert [hook.priority for hook in after_llm(first, second, priority=7)] == [7, 7]


async def test_options_stand_in_the_decorator() -> None:
    """All options of a hook, and `tools=`, are options of the decorator."""

    @before_each_tool(priority=10, tools=["delete_*"], timeout=2, on_failure="deny", tags=["safety"], serial=True)
    async def careful(event: PreActing) -> Deny:
        return Deny(f"not {event.tool_use.name}")

    assert (careful.priority, careful.only_tools, careful.timeout) == (10, ("delete_*",), 2)
    assert (careful.on_failure, careful.tags, careful.serial) == ("deny", {"safety"}, True)
    agent = agent_of(careful)
    await agent.call("go")
    states = [result.state for result in agent.session().messages[2].tool_results]
    assert states == ["success", "denied", "error"]
    others = on_complete(shadow=True, guard=True, scope="tree", in_thread=True, tags="one", timeout=1)(print)
    assert (others.shadow, others.guard, others.scope, others.in_thread, others.tags) == (
        True,
        True,
        "tree",
        True,
        {"one"},
    )
    assert on_error(observer=True, tools="delete_*")(print).only_tools == ("delete_*",)


async def test_one_function_under_two_names_fires_for_both() -> None:
    """A function is not marked: `before_llm(f)` and `after_llm(f)` are two hooks."""
    seen: list[str] = []

    def both(event: HookEvent) -> None:
        seen.append(type(event).__name__)

    await agent_of(before_llm(both), after_llm(both)).call("go")
    assert seen == ["PreReasoning", "PostReasoning"] * 2


@pytest.mark.parametrize("how", ["alone", "both", "in a plugin"])
async def test_stacked_decorators_fire_for_both(how: str) -> None:
    """A decorator above a decorator adds its event. Each keeps its own options, and nothing fires twice, however the
    two are passed.
    """
    seen: list[str] = []

    @after_llm(priority=5)
    def inner(event: HookEvent) -> None:
        seen.append(type(event).__name__)

    outer = before_each_tool(tools=["add"])(inner)
    hooks = {"alone": [outer], "both": [inner, outer], "in a plugin": [[inner], [outer, inner]]}[how]
    await agent_of(*hooks).call("go")
    assert seen == ["PostReasoning", "PreActing", "PostReasoning"]
    assert (inner.priority, outer.priority) == (5, 100)


def _later(value: Any) -> Any:
    async def give() -> Any:
        return value

    return give()


@pytest.mark.parametrize(
    "answer",
    [lambda v: v, _later, Mono.just, lambda v: Mono.just(v).as_flux(), lambda v: Mono.defer(lambda: Mono.just(v))],
    ids=["sync", "async", "Mono.just", "Flux", "Mono.defer"],
)
async def test_a_handler_may_answer_now_or_later(answer: Callable[[Any], Any]) -> None:
    """Plain, `async`, Mono and Observable handlers are equivalent, and so are partials of them."""

    def judge(reason: str, event: PreActing) -> Any:
        return answer(Deny(reason) if event.tool_use.name == "delete_all" else event)

    agent = agent_of(before_each_tool(functools.partial(judge, "no")))
    await agent.call("go")
    assert [result.text for result in agent.session().messages[2].tool_results][:2] == ["3", "Denied: no"]


def test_a_partial_is_called_by_its_functions_name() -> None:
    """Errors and `describe()` name the function of a partial, and the class of a callable object."""

    class Judge:
        async def __call__(self, event: PreReasoning) -> None: ...

    def judge(reason: str, event: PreActing) -> None: ...

    assert before_each_tool(functools.partial(judge, "x")).name == "judge"
    assert before_llm(Judge()).name == "Judge"


# ---- what is refused


async def _async(event: Any) -> None: ...


async def _generator(event: Any) -> Any:
    yield event


def _wrong(event: PreActing) -> None: ...


def _two(data: Any, agent: Any) -> None: ...


def _two_kinds(event: PreActing | PreReasoning) -> None: ...


class _Class(Hook):
    def method(self, event: Any) -> None: ...


REFUSED: list[tuple[str, Callable[[], Any], str]] = [
    (
        "a coroutine object",
        lambda: after_llm(_async(1)),  # type: ignore[call-overload]
        (
            "_async(...) is a coroutine object, which would run at most once instead of for each event. Pass the "
            "function itself: _async, without parentheses."
        ),
    ),
    (
        "an async generator",
        lambda: after_llm(_generator),
        (
            "Hook function _generator is a generator, so calling it would not run its body. Return the event or a verdict; to "
            "wrap a stream, use `around` of a Hook."
        ),
    ),
    (
        "two arguments",
        lambda: after_llm(_two),  # type: ignore[call-overload]
        (
            "Hook function _two(data: 'Any', agent: 'Any') -> 'None' must take one argument, the event: def _two(event). Read "
            "anything else from event.agent and event.context."
        ),
    ),
    (
        "a method without its object",
        lambda: after_llm(_Class.method),  # type: ignore[call-overload]
        (
            "Hook function method(self, event: 'Any') -> 'None' must take one argument, the event: pass the bound "
            "method: instance.method."
        ),
    ),
    (
        "an argument annotated for another event",
        lambda: after_llm(_wrong),  # type: ignore[call-overload]
        (
            "Hook function _wrong takes PreActing, but would receive PostReasoning, the event of 'after_llm'. "
            "Register it for the annotated events, or write _wrong(event: PostReasoning)."
        ),
    ),
    (
        "an argument annotated for some of the events only",
        lambda: on(PreActing, PreReasoning, PostActing)(_two_kinds),
        (
            "Hook function _two_kinds takes PreActing | PreReasoning, but would receive PostActing, the event of "
            "'after_each_tool'. Register it for the annotated events, or write _two_kinds(event: PostActing)."
        ),
    ),
    (
        "async in a thread",
        lambda: after_llm(functools.partial(_async), in_thread=True),
        (
            "Hook function '_async' is `async def` with in_thread=True, but a thread runs a plain `def`. Remove in_thread=True "
            "or `async`."
        ),
    ),
    (
        "a class",
        lambda: after_llm(_Class),  # type: ignore[call-overload]
        "_Class is a class, not a function; pass an instance: hooks=[_Class()].",
    ),
    (
        "a hook that says itself what it is for",
        lambda: after_llm(_Class()),  # type: ignore[call-overload]
        "'_Class' is a hook already and defines its events itself. Register it with hooks=[...].",
    ),
    (
        "a tool",
        lambda: after_llm(add),  # type: ignore[call-overload]
        "'add' is a tool, not a hook function. Pass it as tools=[add].",
    ),
    (
        "a list",
        lambda: after_llm([print]),  # type: ignore[call-overload]
        (
            "[<built-in function print>] is not a function but a list. Pass a function that takes one event; several functions "
            "are separate arguments: after_llm(f, g)."
        ),
    ),
    (
        "the same name twice",
        lambda: after_llm(after_llm(_async)),
        (
            "Hook function '_async' handles PostReasoning already. A decorator above another one should add other events: "
            "@before_llm above @after_llm. Or use one decorator: @on(PreReasoning, PostReasoning)."
        ),
    ),
    (
        "a filter by tools where there is none",
        lambda: after_llm(tools=["add"])(print),
        (
            "Hook function 'print': tools=['add'] selects events by their tool, but PostReasoning has no tool. Events with "
            "a tool: before_each_tool, after_each_tool, on_error, ActingChunk, and events of turns such as PreTurn. For a "
            "round, check event.tool_uses in the function."
        ),
    ),
    (
        "a misspelt option",
        lambda: after_llm(priorty=5),  # type: ignore[call-overload]
        (
            "A hook has no option 'priorty'. Did you mean 'priority'? Options: guard, in_thread, observer, on_failure, "
            "priority, scope, serial, shadow, tags, timeout, tools."
        ),
    ),
    (
        "a timeout that could not interrupt",
        lambda: after_llm(timeout=3)(print),
        (
            "Hook 'print' has a timeout but is synchronous, so it cannot be interrupted. Make it `async def`, or set "
            "in_thread=True."
        ),
    ),
    (
        "an unmarked function among hooks",
        lambda: agent_of(lambda event: None),
        (
            "<lambda> is a plain function without an event. Decorate it with @after_llm (or another of "
            "after_user_input, before_llm, after_llm, before_tool_round, before_each_tool, after_each_tool, "
            "after_tool_round, on_complete, on_error, before_put, after_put, before_turn, on_turn_value, after_turn, "
            "on_pause, on_resume), or annotate its argument: def <lambda>(event: PostReasoning)."
        ),
    ),
    (
        "a hook's class among hooks",
        lambda: agent_of(_Class),
        "_Class is a hook class. Pass an instance: _Class().",
    ),
    (
        "another class among hooks",
        lambda: agent_of(dict),
        "dict is a class, not a hook. Subclass Hook, and pass an instance.",
    ),
    ("a tool among hooks", lambda: agent_of(add), "'add' is a tool, not a hook. Pass it as tools=[add]."),
    (
        "a hook among tools",
        lambda: Agent("a", "m/x", tools=[after_llm(print)]),  # type: ignore[list-item]
        "'print' is a hook, not a tool; hooks are passed as hooks=[...].",
    ),
    (
        "an empty decorator",
        lambda: agent_of(after_llm),
        "after_llm is a decorator without a function. Pass after_llm(my_function).",
    ),
    (
        "a text",
        lambda: agent_of("after_llm"),
        "'after_llm' is a str, not a hook. To register a function by name, pass hooks={'after_llm': my_function}.",
    ),
    (
        "a number",
        lambda: agent_of(3),
        "A hook is a Hook, a function decorated with @on or @after_llm, or a list of these, not int.",
    ),
    (
        "a hook in a mapping",
        lambda: agent_of({"after_llm": [on_complete(print)]}),
        "hooks={'after_llm': ...} takes plain functions, but 'print' is a hook already. Pass it in a list: hooks=[...].",
    ),
    (
        "a wrong function in a mapping",
        lambda: agent_of({"after_llm": _wrong}),
        (
            "Hook function _wrong takes PreActing, but would receive PostReasoning, the event of 'after_llm'. "
            "Register it for the annotated events, or write _wrong(event: PostReasoning)."
        ),
    ),
    (
        "a hook on a living agent",
        lambda: agent_of().on("after_llm", on_complete(print)),
        "'print' is a hook already and defines its events itself. Register it with hooks=[...].",
    ),
]


@pytest.mark.parametrize(("make", "text"), [pytest.param(make, text, id=what) for what, make, text in REFUSED])
def test_what_cannot_work_is_refused_at_registration(make: Callable[[], Any], text: str) -> None:
    """Each mistake is refused where it is made, and the text names the correction."""
    with pytest.raises(UsageError) as caught:
        make()
    assert str(caught.value) == text


NAMES = ", ".join(EVENT_NAMES)


@pytest.mark.parametrize(
    ("name", "could"),
    [
        ("after_tool", "it could mean 'after_each_tool' or 'after_tool_round'"),
        ("before_tool", "it could mean 'before_tool_round' or 'before_each_tool'"),
        ("after_tools", "it could mean 'after_each_tool' or 'after_tool_round'"),
        ("after-llm", "it could mean 'after_llm'"),
        ("After LLM", "it could mean 'after_llm'"),
        ("after_lm", "it could mean 'after_llm'"),
        ("befor_each_tool", "it could mean 'before_each_tool'"),
        ("PreCall", "it could mean 'after_user_input'"),
        ("PostActingEvent", "it could mean 'after_each_tool'"),
        ("on_tool_error", "it could mean 'on_error'"),
        ("startup", f"the names are {NAMES}"),
    ],
)
@pytest.mark.parametrize(
    "register",
    [
        on,
        lambda name: agent_of({name: print}),
        lambda name: agent_of().on(name, print),
    ],
    ids=["on", "mapping", "agent.on"],
)
def test_an_unknown_or_ambiguous_name_is_refused_with_what_it_could_mean(
    name: str, could: str, register: Callable[[str], Any]
) -> None:
    """There are no aliases: an unknown name is refused in every form, with the likely ones."""
    with pytest.raises(UsageError) as caught:
        register(name)
    assert str(caught.value) == f"There is no event named {name!r}; {could}."


# ---- the table of data


PAGE = (Path(__file__).parents[2] / "docs" / "hook-data.md").read_text("utf-8")


def rows() -> list[Any]:
    """Return each row of the page's table, once for each name in it."""
    table = PAGE.partition("| Data | On | Attribute |\n|---|---|---|\n")[2].partition("\n\n")[0]
    made: list[Any] = []
    for row in table.splitlines():
        what, names, expression = (cell.strip() for cell in row.strip("|").split("|"))
        chosen = ORDER if names == "all" else re.findall(r"`(\w+)`", names)
        made.extend(pytest.param(name, expression.strip("`"), id=f"{what}-{name}") for name in chosen)
    return made


def expected(name: str, expression: str) -> list[Any]:
    """Return the values of the table's expressions in the run of `agent_of`, event by event."""
    calls = [("t1", "add", {"a": 1, "b": 2}), ("t2", "delete_all", {}), ("t3", "fail", {})]
    texts = ["3", "deleted", "ValueError: broken"]
    rounds = {"before_llm": [1, 2], "after_llm": [1, 2], "after_user_input": [0], "on_complete": [2]}
    failed = name == "on_error"
    of_calls = calls[2:] if failed else calls
    trace = {"after_user_input": [0], "before_llm": [0, 3], "after_llm": [0, 3], "on_complete": [3], "on_error": [2]}
    trace |= {"before_tool_round": [0], "before_each_tool": [0, 1, 2], "after_each_tool": [1, 2, 3]}
    table: dict[str, list[Any]] = {
        "event.input_messages": [["user"], ["user", "assistant", "tool"]] if name == "before_llm" else [["user"]],
        "event.history": [[]],
        "event.tools": [["add", "delete_all", "fail"]] * 2,
        "event.model": ["scripted"] * 2,
        "event.iteration": rounds.get(name, [1] * (1 if failed or "round" in name else 3)),
        "event.reasoning_result": ["", "done"],
        "event.reasoning_result.tool_uses": [[c[0] for c in calls], []],
        "event.usage": [1, 1] if name == "after_llm" else [2],
        "event.duration_ms": [True] * {"after_llm": 2, "after_each_tool": 3, "on_complete": 1}.get(name, 0),
        "event.tool_use.name": [call[1] for call in of_calls],
        "event.tool_use.input": [call[2] for call in of_calls],
        "event.tool_use.id": [call[0] for call in of_calls],
        "event.tool_result.text": texts,
        "event.tool_result.state": ["success", "success", "error"],
        "event.tool_uses": [["t1", "t2", "t3"]],
        "event.tool_results": [["success", "success", "error"]],
        "event.final_message": ["done"],
        "event.outcome": ["completed"],
        "event.error": ["broken"],
        "event.phase": ["acting"],
        "event.context.trace.turns": trace.get(name, [3]),
        "event.context.usage": {"on_complete": [2]}.get(name, []),
        "event.agent.name": ["a"] * ORDER.count(name),
        "event.session_id": ["a"] * ORDER.count(name),
    }
    return table[expression]


def plain(expression: str, value: Any) -> Any:
    """Return a value in a comparable form."""
    match expression.rpartition(".")[2]:
        case "input_messages" | "history":
            return [msg.role for msg in value]
        case "tools":
            return [spec.name for spec in value]
        case "reasoning_result" | "final_message":
            return value.text
        case "tool_uses":
            return [block.id for block in value]
        case "tool_results":
            return [block.state for block in value]
        case "usage":
            return value.model_calls
        case "duration_ms":
            return type(value) is float and value > 0
        case "turns":
            return len(value)
        case "error":
            return str(value)
        case "phase":
            return value.value
        case "input":
            return dict(value)
        case _:
            return value


@pytest.mark.parametrize(("name", "expression"), rows())
async def test_the_data_is_where_the_docs_say(name: str, expression: str) -> None:
    """Each row of the table in docs/hook-data.md, read in a hook of a real run, has the stated value."""
    found: list[Any] = []

    def read(event: Any) -> None:
        found.append(plain(expression, eval(expression, {"event": event})))

    agent = agent_of({name: read})
    await agent.call("go")
    wanted = expected(name, expression)
    if expression == "event.context.usage":
        assert len(found) == ORDER.count(name)
        assert found == sorted(found)  # it only grows
    else:
        assert found == wanted


def test_the_table_names_all_that_a_hook_may_ask_for() -> None:
    """The table has the data that hooks of other libraries get, by the same words."""
    words = {row.id.rpartition("-")[0] for row in rows()}
    needed = ["the messages", "the tools", "the iteration, from 1", "the response", "the usage", "the timing"]
    needed += ["the tool's name", "its arguments", "its id", "its result", "its status", "the trace"]
    assert [word for word in needed if word not in words] == []


async def test_the_trace_holds_what_each_turn_was() -> None:
    """`event.context.trace.turns` has name, arguments, status, result and duration of each tool call so far."""
    recorder = Recorder()
    await agent_of(recorder).call("go")
    turns = recorder.seen[-1].context.trace.turns
    assert [(t.tool_use_id, t.name, dict(t.arguments), t.status, t.result) for t in turns] == [
        ("t1", "add", {"a": 1, "b": 2}, "success", "3"),
        ("t2", "delete_all", {}, "success", "deleted"),
        ("t3", "fail", {}, "error", "ValueError: broken"),
    ]
    assert all(turn.duration_ms > 0 for turn in turns)


async def test_on_error_tells_of_a_tool_and_of_a_model() -> None:
    """`on_error` has the phase, and whether the failure ends the call."""
    seen: list[tuple[str, bool, str]] = []

    @on_error
    async def note(event: Error) -> None:
        seen.append((event.phase.value, event.fatal, event.tool_use.name if event.tool_use else ""))

    await agent_of(note).call("go")
    with pytest.raises(ConnectionError):
        await Agent("b", ScriptedModel([ConnectionError("down")]), hooks=[note]).call("go")
    assert seen == [("acting", False, "fail"), ("reasoning", True, "")]


async def test_edits_of_a_named_hook_count() -> None:
    """What a named hook assigns reaches the model, the history and the caller."""

    @before_llm
    def brief(event: PreReasoning) -> None:
        event.input_messages = [*event.input_messages, Msg.user("Be brief.")]

    @after_llm
    def loud(event: PostReasoning) -> Mono[PostReasoning]:
        said = event.reasoning_result.text.upper()
        return Mono.just(event.replace(reasoning_result=Msg.assistant(said)) if said else event)

    @after_each_tool(tools="add")
    async def twice(event: PostActing) -> None:
        event.tool_result = replace(event.tool_result, content=event.tool_result.text * 2)

    model = ScriptedModel([use("t1", "add", a=1, b=2), "hello"])
    waiting: Awaitable[Any] = Agent("a", model, tools=[add], hooks=[brief, loud, twice]).call("go")
    assert (await waiting).text == "HELLO"
    assert [result.text for msg in model.requests[1].messages for result in msg.tool_results] == ["33"]
    assert model.requests[0].messages[-1].text == "Be brief."
