"""The arguments of `@tool`, legal and illegal, and the behaviour of a started tool."""

import asyncio
import contextvars
import functools
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol, get_args, runtime_checkable

import pytest

from agentflow.errors import ToolArgumentError, UsageError
from agentflow.hooks.named import before_each_tool
from agentflow.tools import Dep, Tool, ToolContext, ToolEmitter, ToolType, tool
from agentflow.vocabulary.context import RunContext
from agentflow.vocabulary.messages import ToolUseBlock
from agentflow.vocabulary.specs import TOOL_ORDER, ToolSpec
from agentflow.vocabulary.typed_state import StateMap


class Quiet:
    """A port of a call in which nothing happens."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"a tool asked the call for {name}")


def context(*deps: object, pieces: list[object] | None = None) -> ToolContext:
    async def send(value: object) -> None:
        assert pieces is not None
        pieces.append(value)

    nobody: Any = Quiet()
    run = RunContext(nobody, "run", "call", "session", "", nobody, nobody, nobody, deps, StateMap())
    return ToolContext(ToolUseBlock("t1", "x"), run, 1, "run:t1", ToolEmitter(send))


def use(made: Tool, **arguments: object) -> ToolUseBlock:
    return ToolUseBlock("t1", made.name, arguments)


async def run(made: Tool, _context: ToolContext | None = None, **arguments: object) -> object:
    work: Any = made.start(use(made, **arguments), _context)
    return await work


@tool
async def add(a: int, b: int = 2) -> int:
    """Add two numbers."""
    return a + b


@tool(type="read", timeout=None, tags=["slow", "web"], idempotent=True, requires_approval=True, name="count-up")
async def count(to: int) -> AsyncIterator[int]:
    for n in range(to):
        yield n


def test_defaults_and_options_are_attributes() -> None:
    """A tool's options can be read, on it and on its spec."""
    assert (add.name, add.type, add.timeout, add.tags) == ("add", "action", 60.0, frozenset())
    assert (add.idempotent, add.requires_approval, add.streaming) == (False, False, False)
    assert (count.name, count.type, count.timeout, count.tags) == ("count-up", "read", None, {"slow", "web"})
    assert (count.idempotent, count.requires_approval, count.streaming) == (True, True, True)
    assert (count.spec.name, count.spec.type, count.spec.tags) == ("count-up", "read", {"slow", "web"})
    assert count.spec.requires_approval
    assert repr(add) == "Tool('add', type='action')"
    assert add.__doc__ == "Add two numbers."


def test_every_type_has_its_place_in_a_round() -> None:
    """Whatever may change something, or must see what changed, comes last and runs alone."""
    places = {kind: (TOOL_ORDER[kind], ToolSpec("a", type=kind).writes) for kind in get_args(ToolType)}
    assert places == {
        "research": (0, False),
        "read": (1, False),
        "write": (2, True),
        "reasoning": (1, False),
        "action": (2, True),
        "memory_read": (1, False),
        "memory_write": (2, True),
        "completion_check": (2, True),
    }


async def test_the_function_stays_callable() -> None:
    """A tool called directly is its function: nothing is checked."""
    assert await add(1, b=3) == 4
    assert [n async for n in count(3)] == [0, 1, 2]


async def test_start_returns_work_that_has_not_begun() -> None:
    """The loop decides when it runs; dropping it runs nothing."""
    began: list[str] = []

    @tool
    async def begin() -> None:
        began.append("begun")

    work: Any = begin.start(use(begin), None)
    assert began == []
    await work
    assert began == ["begun"]
    stream: Any = count.start(use(count, to="2"), None)
    assert [n async for n in stream] == [0, 1]


async def test_a_thread_tool_sees_context_variables_and_not_the_event_loop() -> None:
    """A plain function runs beside the event loop, with the caller's context variables."""
    variable = contextvars.ContextVar("variable", default="unset")

    @tool(in_thread=True)
    def look(a: int) -> tuple[int, str, bool]:
        return a, variable.get(), threading.current_thread() is threading.main_thread()

    variable.set("set")
    assert await run(look, a="1") == (1, "set", False)
    assert await look(2) == (2, "set", False)
    assert not look.streaming


async def test_stop_iteration_in_a_thread_is_an_error_not_a_hang() -> None:
    """A future cannot carry a StopIteration."""

    @tool(in_thread=True)
    def first(items: list[int]) -> int:
        return next(iter(items))

    with pytest.raises(RuntimeError, match=r"^tool 'first' raised StopIteration$"):
        await run(first, items=[])


async def test_what_a_tool_raises_is_left_as_it_is() -> None:
    """Words for the model are the loop's business."""

    @tool(in_thread=True)
    def fail() -> None:
        raise FileNotFoundError("no a.txt")

    with pytest.raises(FileNotFoundError, match=r"^no a\.txt$"):
        await run(fail)


def plain(a: int) -> int:
    return a


def numbers() -> Iterator[int]:
    yield 1


async def variadic(*args: int) -> None: ...
async def keywords(**kwargs: int) -> None: ...
async def one(a: int) -> None: ...


CASES: list[tuple[Callable[[], object], str]] = [
    (
        lambda: tool(plain),  # type: ignore[type-var]
        (
            "Tool 'plain' is a plain def, which would block the event loop. Make it an `async def`, or run it in a "
            "thread: @tool(in_thread=True)."
        ),
    ),
    (
        lambda: tool(in_thread=True)(one),
        "Tool 'one' is an async def, which runs in the event loop. Remove in_thread=True.",
    ),
    (
        lambda: tool(in_thread=True)(numbers),
        "Tool 'numbers' is a plain generator; make it an async generator: `async def` with `yield`.",
    ),
    (
        lambda: tool(variadic),
        (
            "Tool 'variadic' takes *args or **kwargs, but a model passes named arguments only. Name each parameter, or "
            "take a list or a dict."
        ),
    ),
    (
        lambda: tool(keywords),
        (
            "Tool 'keywords' takes *args or **kwargs, but a model passes named arguments only. Name each parameter, or "
            "take a list or a dict."
        ),
    ),
    (
        lambda: tool(name="read file")(one),
        (
            "A tool cannot be named 'read file': providers require a letter or _ first, then letters, digits, _ or -, 64 "
            'at most. Name it: @tool(name="...").'
        ),
    ),
    (
        lambda: tool(functools.partial(one, 1)),
        '@tool got a partial, which has no name. Pass a name: tool(..., name="...").',
    ),
    (
        lambda: tool(timout=3)(one),
        (
            "@tool on 'one' got timout, which is neither an option (name, description, type, timeout, lock, "
            "retries, tags, idempotent, requires_approval, in_thread, external, fixed, "
            "validation_context) nor a parameter that can be fixed (a)."
        ),
    ),
    (
        lambda: tool(type="reed")(one),
        (
            "Tool 'one' has type='reed'; use one of 'research', 'read', 'reasoning', 'memory_read', 'write', 'action', "
            "'memory_write', 'completion_check'."
        ),
    ),
    (
        lambda: tool(timeout=0)(one),
        "Tool 'one' has timeout=0; use a number of seconds above 0, or None for no limit.",
    ),
    (
        lambda: tool(add),  # type: ignore[type-var]
        "Tool('add', type='action') is a tool already. To make another tool, use its function: tool(add.function).",
    ),
    (
        lambda: tool(staticmethod(one)),
        (
            "@tool was applied to a staticmethod. Put @tool below @staticmethod, next to the function; for a class "
            "method, wrap the bound method: tool(TheClass.the_method)."
        ),
    ),
    (lambda: tool(3), "@tool takes a function, not int (3)."),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("make", "text"), CASES)
def test_what_cannot_be_a_tool_is_refused_with_the_fix(make: Callable[[], object], text: str) -> None:
    """Found when it is decorated, where the reader is."""
    with pytest.raises(UsageError) as caught:
        make()
    assert str(caught.value) == text


def test_hooks_are_no_option_of_a_tool() -> None:
    """The error says where they are registered, and that works."""
    with pytest.raises(UsageError, match=r"Hooks are registered on the tool: add\.hook\(h\)\.$"):
        tool(add.function, hooks=[])  # pyright: ignore[reportCallIssue, reportUnknownVariableType]
    made = tool(add.function)
    hook = before_each_tool(lambda event: None)
    with made.hook(hook):
        assert made.hooks == (hook,)


def test_a_tool_cannot_be_changed() -> None:
    """Agents share it."""
    with pytest.raises(AttributeError) as caught:
        add.timeout = 3
    assert str(caught.value) == (
        "Tool 'add' is shared by its agents, so timeout cannot be set. Instead, create another tool: "
        "tool(add.function, timeout=...)."
    )
    with pytest.raises(AttributeError) as caught:
        setattr(add, "hooks", [])  # noqa: B010 - a name that no checker would let pass
    assert str(caught.value) == (
        "Tool 'add' is shared by its agents, so hooks cannot be set. Instead, register them: add.hook(h)."
    )
    with pytest.raises(AttributeError) as caught:
        setattr(add, "timout", 3)  # noqa: B010
    assert str(caught.value) == (
        "Tool 'add' is shared by its agents, so timout cannot be set. Instead, create another tool with "
        "name, description, type, timeout, lock, retries, tags, idempotent, requires_approval, in_thread, external, fixed, "
        "validation_context: "
        "tool(add.function, ...)."
    )
    with pytest.raises(AttributeError, match=r"^Tool 'add' has no attribute 'timout'$"):
        _ = getattr(add, "timout")  # noqa: B009 - a name that no checker would let pass
    assert tool(add.function, timeout=3).timeout == 3


# Injection


class Database:
    async def find(self, key: str) -> str:
        return f"row {key}"


class Cache:
    pass


@runtime_checkable
class Finder(Protocol):
    async def find(self, key: str) -> str: ...


class Closed(Protocol):
    def close(self) -> None: ...


@tool
async def lookup(
    key: str, db: Database, tool_context: ToolContext, run_context: RunContext | None, emitter: ToolEmitter
) -> str:
    await emitter.emit(f"looking for {key}")
    assert run_context is tool_context.run
    return f"{await db.find(key)} ({tool_context.idempotency_key})"


async def test_injected_parameters_are_filled() -> None:
    """By type, in any position, and separate from the model's."""
    pieces: list[object] = []
    assert lookup.wants_context
    assert lookup.dep_types == {"db": Database}
    assert await run(lookup, context(Database(), pieces=pieces), key="7") == "row 7 (run:t1)"
    assert pieces == ["looking for 7"]
    assert (add.wants_context, add.dep_types) == (False, {})


async def test_a_missing_context_or_dependency_is_the_callers_mistake() -> None:
    """Neither is reported as the model's."""
    with pytest.raises(UsageError) as caught:
        await run(lookup, None, key="7")
    assert str(caught.value) == (
        "Tool 'lookup' was started without a ToolContext, but needs db, tool_context, run_context, emitter; pass "
        "start(tool_use, context)."
    )
    with pytest.raises(UsageError, match=r"^A dependency of type Database is needed"):
        await run(lookup, context(), key="7")


async def test_a_model_injects_nothing() -> None:
    """An argument with the name of an injected parameter is unknown."""
    with pytest.raises(ToolArgumentError, match="- db: is not known here"):
        await run(lookup, context(Database()), key="7", db={})


async def test_dep_marks_what_json_could_describe() -> None:
    """A dataclass or model is the model's to fill unless `Dep` marks it; a default replaces a missing one."""

    @dataclass
    class Settings:
        unit: str

    fallback = Cache()

    @tool
    async def measure(n: int, settings: Dep[Settings], finder: Finder, cache: Cache = fallback) -> list[object]:
        return [f"{n} {settings.unit}", finder, cache]

    database, cache = Database(), Cache()
    assert measure.dep_types == {"settings": Settings, "finder": Finder}
    assert list(measure.spec.parameters["properties"]) == ["n"]
    assert await run(measure, context(Settings("km"), database), n=5) == ["5 km", database, fallback]
    assert await run(measure, context(Settings("km"), database, cache), n=5) == ["5 km", database, cache]


def test_a_protocol_that_isinstance_refuses_cannot_be_a_dependency() -> None:
    """Said when the tool is prepared, with the fix."""

    @tool
    async def end(what: Closed) -> None: ...

    with pytest.raises(UsageError) as caught:
        end.prepare()
    assert str(caught.value) == (
        "Tool 'end': parameter 'what' takes a Closed from deps=, but isinstance() cannot check for it (Instance and "
        "class checks can only be used with @runtime_checkable protocols). Put @typing.runtime_checkable on the "
        "Protocol."
    )


def test_a_thread_cannot_await_the_emitter() -> None:
    """Said when the tool is prepared."""

    @tool(in_thread=True)
    def emit(emitter: ToolEmitter) -> None: ...

    with pytest.raises(UsageError) as caught:
        emit.prepare()
    assert str(caught.value) == (
        "Tool 'emit' runs in a thread, in which its parameter 'emitter' (ToolEmitter) cannot be awaited. Make it an async "
        "def, or return the whole result."
    )


async def test_fixed_arguments_are_filled_and_functions_among_them_called_each_time() -> None:
    """In a run and in a direct call; an argument of a direct call overrides; `fixed=` takes names that are options."""
    tokens = iter(["one", "two", "three"])

    @tool(key="secret", token=lambda: next(tokens), fixed={"name": "me"})
    async def search(query: str, key: str, token: str, name: str) -> tuple[str, ...]:
        return query, key, token, name

    assert await run(search, query="q") == ("q", "secret", "one", "me")
    assert await search("q", key="mine", name="you") == ("q", "mine", "two", "you")  # type: ignore[call-arg]
    assert await search("q", "positional") == ("q", "positional", "three", "me")  # type: ignore[call-arg]


async def test_parameters_by_position_only_are_filled_too() -> None:
    """The model names them, Python does not."""

    @tool(scale=10)
    async def scaled(n: int, scale: int, /, emitter: ToolEmitter, *, plus: int = 1) -> int:
        return n * scale + plus

    assert await run(scaled, context(), n=2) == 21


# Methods and other callables


class Store:
    def __init__(self, name: str) -> None:
        self.name = name

    @tool
    async def read(self, key: str) -> str:
        """Read.

        Args:
            key: The key.
        """
        return f"{self.name}/{key}"

    @tool(in_thread=True, prefix="p")
    def sync(self, key: str, prefix: str) -> str:
        return f"{self.name}/{prefix}{key}"

    @tool
    async def stream(self) -> AsyncIterator[str]:
        yield self.name

    @staticmethod
    @tool
    async def static(key: str) -> str:
        return key

    @classmethod
    async def of_class(cls, key: str) -> str:
        return f"{cls.__name__}/{key}"

    shared = add


async def test_a_method_is_bound_to_the_object_it_is_taken_from() -> None:
    """Each instance has its own; `self` is not the model's to fill."""
    one_store, other = Store("one"), Store("other")
    assert list(one_store.read.spec.parameters["properties"]) == ["key"]
    assert await run(one_store.read, key="a") == "one/a"
    assert await run(other.read, key="a") == "other/a"
    assert await other.read("b") == "other/b"
    assert await run(one_store.sync, key="a") == "one/pa"
    assert await one_store.sync("a", "q") == "one/qa"
    assert [piece async for piece in one_store.stream()] == ["one"]
    assert await run(one_store.static, key="a") == "a"
    assert await run(tool(Store.of_class), key="a") == "Store/a"


async def test_a_tool_kept_as_a_class_attribute_is_no_method() -> None:
    """Only a function written in the class body is one."""
    assert Store("one").shared is add
    assert await run(add, a=1) == 3


def test_an_unbound_method_is_refused() -> None:
    """The message shows where to take it from."""
    with pytest.raises(UsageError) as caught:
        Store.read.prepare()
    assert str(caught.value) == (
        "Tool 'read' is a method of Store and no object is bound to it. Take it from an instance: Store(...).read."
    )
    with pytest.raises(UsageError):
        Store.read.validate(use(Store.read, key="a"))


async def test_partials_wrapped_functions_and_callable_objects() -> None:
    """What Python can call and await can be a tool."""

    class Greeter:
        async def __call__(self, name: str) -> str:
            return f"hello {name}"

    def logged(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        async def wrapper(*args: Any, **kwargs: Any) -> Any:
            return await function(*args, **kwargs)

        return wrapper

    @tool
    @logged
    async def double(n: int) -> int:
        """Double it."""
        return 2 * n

    increment = tool(functools.partial(add.function, b=1), name="increment", b=1)
    assert await run(tool(Greeter(), name="greet"), name="Ann") == "hello Ann"
    assert await run(double, n="4") == 8
    assert double.name == "double"
    assert double.spec.description == "Double it."
    assert await run(increment, a=1) == 2
    assert list(increment.spec.parameters["properties"]) == ["a"]


def test_preparing_twice_builds_once() -> None:
    """Schema and validator are built on first use, and shared by bound copies."""
    store = Store("one")
    assert store.read.prepare().plan is store.read.prepare().plan
    assert add.prepare() is add
    assert add.spec.parameters is add.spec.parameters


async def test_cancelling_a_thread_tool_stops_the_waiting_only() -> None:
    """The thread continues to its end, and its result is discarded."""
    started, release, ended = threading.Event(), threading.Event(), threading.Event()

    @tool(in_thread=True)
    def block() -> None:
        started.set()
        release.wait(10)
        ended.set()

    work: Any = block.start(use(block), None)
    task = asyncio.ensure_future(work)
    await asyncio.to_thread(started.wait, 10)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not ended.is_set()
    release.set()
    assert await asyncio.to_thread(ended.wait, 10)
