"""`@tool`: makes a tool of a coroutine function, an async generator, or (in a thread) a plain function.

Rules:

1. Decorating is cheap and refuses what can be seen at once; schema and validator are built on first use
   (`Tool.prepare` builds them now).
2. A tool never runs with arguments that did not pass validation: `start` returns work that has not begun, or raises.
3. A tool is shared by agents, so it cannot be changed; the function behind it stays callable through it.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping
from functools import partial
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any, Concatenate, Final, Generic, Literal, NoReturn, Protocol, Self, cast, overload

from pydantic.errors import PydanticInvalidForJsonSchema
from typing_extensions import ParamSpec, TypeVar

from agentflow.errors import ToolArgumentError, UsageError
from agentflow.specs import ToolSpec
from agentflow.tools.arguments import explain
from agentflow.tools.checks import OPTIONS, ToolType, check_kind, check_signature, checked_name, checked_type
from agentflow.tools.schema import json_schema, read_docstring
from agentflow.tools.signature import Plan, local_names, plain_function, read_plan

if TYPE_CHECKING:
    from agentflow.messages import ToolUseBlock
    from agentflow.specs import Lane
    from agentflow.tools.context import ToolContext

__all__ = ["Tool", "tool"]

Work = Coroutine[Any, Any, object] | AsyncIterator[object]

P = ParamSpec("P", default=...)
Q = ParamSpec("Q")
R = TypeVar("R", bound=Work, default=Any)
T = TypeVar("T")

_DEFAULT_TIMEOUT: Final = 60.0
_LAZY: Final = frozenset({"wants_context", "dep_types", "plan", "_check", "_adds"})


type_ = type  # `Tool` has an attribute of that name


class _Blueprint:
    """What a tool and its copies bound to objects share: the function, and what is read from it once."""

    __slots__ = ("_description", "_doc", "_plan", "_schema", "fixed", "function", "in_thread", "name", "names", "owner")

    def __init__(
        self,
        function: Callable[..., object],
        name: str,
        description: str | None,
        in_thread: bool,
        fixed: Mapping[str, object],
    ) -> None:
        self.function = function
        self.name = name
        self.in_thread = in_thread
        self.fixed = fixed
        self.owner: str | None = None
        self.names: Mapping[str, object] = {}
        self._description = description
        self._doc: tuple[str, dict[str, str]] | None = None
        self._plan: Plan | None = None
        self._schema: dict[str, Any] | None = None

    def plan(self) -> Plan:
        if self._plan is None:
            self._plan = read_plan(
                self.name,
                self.function,
                is_method=self.owner is not None,
                in_thread=self.in_thread,
                fixed=self.fixed,
                names=self.names,
            )
            self.names = {}  # lets go of the frame's values
        return self._plan

    def doc(self) -> tuple[str, dict[str, str]]:
        if self._doc is None:
            behind = self.function if isinstance(self.function, FunctionType) else plain_function(self.function)
            self._doc = read_docstring(behind.__doc__ if behind is not None else None)
        return self._doc

    def describe(self) -> str:
        return self._description if self._description is not None else self.doc()[0]

    def parameters(self) -> dict[str, Any]:
        if self._schema is None:
            plan = self.plan()
            said = {plan.aliases.get(name, name): text for name, text in self.doc()[1].items()}
            try:
                self._schema = json_schema(plan.core, said)
            except PydanticInvalidForJsonSchema as error:
                raise UsageError(
                    f"Tool {self.name!r}: no JSON schema can be made of its parameters ({error.message}). Use types "
                    "that JSON can describe, or Dep[X] for what the call's deps= holds."
                ) from error
        return self._schema

    def keys(self) -> list[tuple[str, bool]]:
        schema = self.parameters()
        required = schema.get("required", ())
        return [(name, name in required) for name in schema["properties"]]


class Tool(Generic[P, R]):
    """Something a model can ask for. Made by `@tool`.

    Calling it calls the function: `await add(1, 2)`, `async for piece in download(url)`.

    Attributes:
        name: What the model calls it.
        spec: What the model is told; description and schema are built on first reading.
        type: What it does.
        lane: How a round schedules it, from `type`.
        timeout: Seconds that one run may take; None is no limit.
        idempotent: Running it twice does no harm, so a recovery after a crash may.
        requires_approval: Whether a call waits for a person.
        tags: Free labels.
        streaming: It is an async generator; each value is a piece of its output.
        function: The function behind it.
        wants_context: Whether `start` needs a `ToolContext`.
        dep_types: What the call's `deps=` must hold.
    """

    name: str
    spec: ToolSpec
    type: ToolType
    lane: Lane
    timeout: float | None
    idempotent: bool
    requires_approval: bool
    tags: frozenset[str]
    streaming: bool
    function: Callable[..., Any]
    wants_context: bool
    dep_types: tuple[type, ...]
    plan: Plan
    _blueprint: _Blueprint
    _call: Callable[..., Any]
    _check: Callable[[str], tuple[Any, dict[str, Any] | None]]
    _adds: bool
    _bound: bool

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        name: str | None = None,
        description: str | None = None,
        type: ToolType | str = ToolType.ACTION,  # noqa: A002 - the option's name in the contract
        timeout: float | None = _DEFAULT_TIMEOUT,
        tags: Iterable[str] = (),
        idempotent: bool = False,
        requires_approval: bool = False,
        in_thread: bool = False,
        fixed: Mapping[str, object] | None = None,
    ) -> None:
        if isinstance(function, Tool):
            raise UsageError(
                f"{function!r} is a tool already; make another of its function: tool({function.name}.function)."
            )
        plain = plain_function(function)
        name = checked_name(name, function)
        flags = plain.__code__.co_flags if plain is not None else 0
        streaming = bool(flags & inspect.CO_ASYNC_GENERATOR)
        check_kind(name, function, in_thread, flags)
        if plain is not None:
            check_signature(name, plain, function, fixed)
        if timeout is not None and not timeout > 0:
            raise UsageError(f"Tool {name!r} has timeout={timeout!r}; legal are seconds above 0, or None for no limit.")
        blueprint = _Blueprint(function, name, description, in_thread, fixed or {})
        if plain is not None and "<locals>" in plain.__qualname__:
            blueprint.names = local_names(plain)
        kind = checked_type(name, type)
        labels = frozenset((tags,) if isinstance(tags, str) else tags)
        lane = kind.lane
        spec = ToolSpec(
            name, blueprint.describe, blueprint.parameters, lane=lane, tags=labels, requires_approval=requires_approval
        )
        self.__dict__.update(
            name=name,
            spec=spec,
            type=kind,
            lane=lane,
            timeout=timeout,
            idempotent=idempotent,
            requires_approval=requires_approval,
            tags=labels,
            streaming=streaming,
            function=function,
            _blueprint=blueprint,
            _call=partial(_in_thread, name, function) if in_thread else function,
            _bound=False,
            __wrapped__=function,
            __doc__=plain.__doc__ if plain is not None else None,
        )

    def prepare(self) -> Self:
        """Build schema and validator now.

        Raises:
            UsageError: The signature has something that no model and no `deps=` can fill.
        """
        blueprint = self._blueprint
        if blueprint.owner is not None and not self._bound:
            raise UsageError(
                f"Tool {self.name!r} is a method of {blueprint.owner} and no object is bound to it. Take it from an "
                f"instance: {blueprint.owner}(...).{getattr(self.function, '__name__', self.name)}."
            )
        if "plan" not in self.__dict__:
            plan = blueprint.plan()
            blueprint.parameters()
            self.__dict__.update(
                plan=plan,
                wants_context=bool(plan.fills),
                dep_types=plan.dep_types,
                _check=plan.validator.validate_json,
                _adds=bool(plan.fills or plan.positional or blueprint.fixed),
            )
        return self

    def start(self, tool_use: ToolUseBlock, context: ToolContext | None) -> Work:
        """Check the arguments and return the work, not yet begun: a coroutine, or an async generator if `streaming`.

        Args:
            tool_use: The call.
            context: Needed where `wants_context`.

        Raises:
            ToolArgumentError: The arguments do not fit; the text is written for the model.
            UsageError: The context is missing, or `deps=` does not hold what the tool asks for.
        """
        try:
            arguments = self._check(tool_use.raw)[1] or {}
        except ValueError:
            arguments = self._checked_again(tool_use)
        if self._adds:
            return self._call(*self._filled(arguments, context), **arguments)
        return self._call(**arguments)

    def validate(self, tool_use: ToolUseBlock) -> None:
        """Check the arguments only.

        Raises:
            ToolArgumentError: They do not fit.
        """
        try:
            self._check(tool_use.raw)
        except ValueError:
            self._checked_again(tool_use)

    def _checked_again(self, tool_use: ToolUseBlock) -> dict[str, Any]:
        """The slow way, for what the fast check refused: empty text means no arguments, the rest is explained."""
        raw = ""
        try:
            raw = tool_use.raw
            return self._check(raw if raw.strip() else "{}")[1] or {}
        except ValueError as error:
            text = explain(self.name, raw if raw.strip() else "{}", error, self._blueprint.keys())
            raise ToolArgumentError(text) from error

    def _filled(self, arguments: dict[str, Any], context: ToolContext | None) -> list[Any]:
        """Add what the model does not see; return what goes by position."""
        plan = self.plan
        if plan.fills:
            if context is None:
                raise UsageError(
                    f"Tool {self.name!r} was started without a ToolContext and asks for "
                    f"{', '.join(name for name, _ in plan.fills)}; pass start(tool_use, context)."
                )
            for name, fill in plan.fills:
                arguments[name] = fill(context)
        for name, value in self._blueprint.fixed.items():
            arguments[name] = _current(value)
        return [arguments.pop(name) for name in plan.positional]

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function; fixed arguments that are not given are filled in."""
        fixed = self._blueprint.fixed
        if not fixed:
            return self._call(*args, **kwargs)
        given = (
            inspect.signature(self.function).bind_partial(*((None,) if self._bound else ()), *args, **kwargs).arguments
        )
        return self._call(
            *args, **{name: _current(value) for name, value in fixed.items() if name not in given} | kwargs
        )

    def __set_name__(self, owner: type_[object], name: str) -> None:
        # A shared tool kept as a class attribute is not a method: only a function written in the class body is.
        if getattr(self.function, "__qualname__", "").rpartition(".")[0] == owner.__qualname__:
            self._blueprint.owner = owner.__name__

    @overload
    def __get__(self, instance: None, owner: type_[object]) -> Self: ...
    @overload
    def __get__(self: Tool[Concatenate[Any, Q], R], instance: object, owner: type_[object]) -> Tool[Q, R]: ...
    def __get__(self, instance: object, owner: type_[object]) -> Any:
        if instance is None or self._blueprint.owner is None:
            return self
        bound = object.__new__(Tool)
        call = self._call
        bound.__dict__.update(
            self.__dict__,
            _call=partial(call, instance) if isinstance(call, partial) else MethodType(call, instance),
            _bound=True,
        )
        return bound

    if not TYPE_CHECKING:  # a checker must see that an unknown attribute is one

        def __getattr__(self, name):
            if name in _LAZY:
                return self.prepare().__dict__[name]
            raise AttributeError(f"Tool {self.__dict__.get('name', '?')!r} has no attribute {name!r}")

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(
            f"Tool {self.name!r} is shared by the agents that have it, so {name} cannot be set; make another tool: "
            f"tool({self.name}.function, {name}=...)."
        )

    def __repr__(self) -> str:
        return f"Tool({self.name!r}, lane={self.lane!r})"


async def _in_thread(name: str, function: Callable[..., T], /, *args: Any, **kwargs: Any) -> T:
    def run() -> T:
        try:
            return function(*args, **kwargs)
        except StopIteration as error:  # a future cannot hold one: its waiter would hang
            raise RuntimeError(f"tool {name!r} raised StopIteration") from error

    return await asyncio.to_thread(run)


def _current(value: object) -> object:
    """A fixed value, or what a plain function or partial gives now."""
    make = cast("Callable[[], object]", value)
    return make() if isinstance(value, (FunctionType, partial)) else value


class _Decorator(Protocol):
    def __call__(self, function: Callable[Q, R], /) -> Tool[Q, R]: ...


class _ThreadDecorator(Protocol):
    def __call__(self, function: Callable[Q, T], /) -> Tool[Q, Coroutine[Any, Any, T]]: ...


@overload
def tool(function: Callable[Q, R], /, **options: object) -> Tool[Q, R]: ...
@overload
def tool(
    *,
    in_thread: Literal[True],
    name: str | None = None,
    description: str | None = None,
    type: ToolType | str = ...,
    timeout: float | None = ...,
    tags: Iterable[str] = (),
    idempotent: bool = False,
    requires_approval: bool = False,
    fixed: Mapping[str, object] | None = None,
    **fixed_arguments: object,
) -> _ThreadDecorator: ...
@overload
def tool(
    *,
    in_thread: Literal[False] = False,
    name: str | None = None,
    description: str | None = None,
    type: ToolType | str = ...,
    timeout: float | None = ...,
    tags: Iterable[str] = (),
    idempotent: bool = False,
    requires_approval: bool = False,
    fixed: Mapping[str, object] | None = None,
    **fixed_arguments: object,
) -> _Decorator: ...
def tool(function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """Make a tool of an async function.

    Each value that an async generator yields is a piece of the output, handed out as an `ActingChunk`. The model sees
    the parameters that are not injected (`ToolContext`, `ToolEmitter`, `RunContext`, dependencies) and not fixed.

    Args:
        function: A coroutine function or an async generator function; with `in_thread=True` a plain one.
        **options: See below; every other keyword fixes the parameter of that name. A fixed function or partial is
            called at each run, and gives the value.

    Keyword Args:
        name: What the model calls it; the function's name by default.
        description: What it does, for the model; the docstring by default.
        type: What it does (`ToolType` or its text), which decides how a round schedules it; `"action"` by default.
        timeout: Seconds that one run may take (60 by default); None is no limit.
        tags: Free labels.
        idempotent: Running it twice does no harm.
        requires_approval: A call waits for a person.
        in_thread: Run a plain function in a thread; it sees the context variables, and cannot be stopped once it runs.
        fixed: Fixed arguments whose names are options too.

    Raises:
        UsageError: The function or an option is not legal.

    Example:
        >>> @tool(type="read", unit="km")
        ... async def distance(start: str, end: str, unit: str) -> str:
        ...     return f"5 {unit}"
        >>> distance.lane, list(distance.spec.parameters["properties"])
        ('read', ['start', 'end'])
    """
    chosen = {key: options.pop(key) for key in OPTIONS if key in options}
    named: Mapping[str, object] = options.pop("fixed", None) or {}
    fixed = {**named, **options}
    if function is not None:
        return Tool(function, **chosen, fixed=fixed)
    return partial(_decorate, chosen, fixed)


def _decorate(options: dict[str, Any], fixed: dict[str, object], function: Callable[..., Any]) -> Tool:
    return Tool(function, **options, fixed=fixed)
