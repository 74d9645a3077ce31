"""`@tool`: makes a tool from a coroutine function, an async generator, or (in a thread) a plain function.

Rules:

1. Decorating is cheap and refuses visible mistakes. Schema and validator are built on first use, or earlier by
   `Tool.prepare`.
2. A tool never runs with arguments that failed validation: `start` returns work that has not begun, or raises.
3. Some types of tools have a contract (`agentflow.tools.contracts`), which is checked when the tool is created, prepared
   and run.
4. A tool is immutable, since several agents may share it. Calling a tool calls its function.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping
from copy import copy
from functools import partial
from types import FunctionType, MethodType
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Concatenate,
    Final,
    Generic,
    Literal,
    NoReturn,
    Protocol,
    Self,
    cast,
    overload,
)

from typing_extensions import ParamSpec, TypeVar

from agentflow._support.annotations import signature_of
from agentflow._support.facade import objects_of
from agentflow._support.json_text import check_numbers, scan_numbers
from agentflow._support.locks import FairLock
from agentflow.errors import ToolArgumentError, UsageError
from agentflow.hooks.registering import hint_for
from agentflow.tools.blueprint import Blueprint, SchemaBlueprint
from agentflow.tools.contracts import Contract, contract_of
from agentflow.tools.schema_arguments import Outside, WithSchema
from agentflow.tools.signature import ArgumentPlan, Check, local_names, plain_function
from agentflow.tools.tool_checks import (
    check_external,
    check_kind,
    check_limits,
    check_signature,
    checked_name,
    checked_type,
)
from agentflow.tools.tool_hooks import HookedTool
from agentflow.vocabulary.specs import ToolSpec

if TYPE_CHECKING:
    from agentflow.tools.tool_context import ToolContext
    from agentflow.vocabulary.context import RunContext
    from agentflow.vocabulary.messages import ToolUseBlock
    from agentflow.vocabulary.specs import ToolType

Work = Coroutine[Any, Any, object] | AsyncIterator[object]

P = ParamSpec("P", default=...)
Q = ParamSpec("Q")
R_co = TypeVar("R_co", bound=Work, default=Any, covariant=True)
T = TypeVar("T")

DEFAULT_TIMEOUT: Final = 60.0
_LAZY: Final = frozenset({"wants_context", "dep_types", "plan", "_check", "_adds"})  # set by `_read`


type_ = type  # `Tool` has an attribute of that name


class Tool(HookedTool, Generic[P, R_co]):
    """A function that a model can call. Created by `@tool`.

    Calling a tool calls the function: `await add(1, 2)`, `async for chunk in download(url)`.

    Attributes:
        name: The name for the model.
        spec: The tool as the model sees it; description and schema are built when they are first read.
        type: The kind of work, which determines when a round runs the tool.
        timeout: Seconds for one attempt; None means no limit.
        lock: Held while the tool runs, so that calls run one at a time; shared with its copies. None if it has no lock.
        retries: How often the tool is retried after an exception or a timeout.
        idempotent: Whether the tool can safely run twice; if so, a recovery after a crash runs it again.
        requires_approval: Whether a call waits for a person.
        external: Whether the tool never runs, because its calls wait for an answer from outside.
        tags: Free labels.
        streaming: Whether the function is an async generator, each value of which is a chunk of the output.
        function: The wrapped function.
    """

    name: str
    spec: ToolSpec
    type: ToolType
    timeout: float | None
    lock: FairLock | None
    retries: int
    idempotent: bool
    requires_approval: bool
    external: bool
    tags: frozenset[str]
    streaming: bool
    function: Callable[..., Any]
    _blueprint: Blueprint  # pyright: ignore[reportIncompatibleVariableOverride] - set once
    _call: Callable[..., Any]
    _check: Check
    _validation_context: object
    _adds: bool
    _scans: bool
    _bound: bool

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        name: str | None = None,
        description: str | None = None,
        type: ToolType = "action",  # noqa: A002 - public name
        timeout: float | None = DEFAULT_TIMEOUT,
        lock: bool = False,
        retries: int = 0,
        tags: Iterable[str] = (),
        idempotent: bool = False,
        requires_approval: bool = False,
        in_thread: bool = False,
        external: bool = False,
        fixed: Mapping[str, object] | None = None,
        validation_context: Callable[[RunContext], Any] | object = None,
    ) -> None:
        _check_no_tool(function)
        plain = plain_function(function)
        name = checked_name(name, function)
        flags = plain.__code__.co_flags if plain is not None else 0
        streaming = bool(flags & inspect.CO_ASYNC_GENERATOR)
        check_kind(name, function, in_thread, flags)
        if plain is not None:
            check_signature(name, plain, function, fixed, _OPTIONS)
        check_limits(name, timeout, retries)
        external = external or isinstance(function, Outside)
        if external:
            # `is`, so that an explicit 60.0 is recognised as set
            limited = timeout is not None and timeout is not DEFAULT_TIMEOUT
            in_run = callable(validation_context)
            check_external(name, in_thread, lock, retries, requires_approval, streaming, limited, in_run, fixed)
            timeout = None
        kind = checked_type(name, type)
        callable_: object = function
        if isinstance(callable_, WithSchema):
            contract = contract_of(name, kind, None, streaming, None)
            blueprint = SchemaBlueprint(callable_, name, description, external, contract)
        else:
            contract = contract_of(name, kind, plain, streaming, fixed)
            blueprint = Blueprint(function, name, description, in_thread, external, fixed or {}, contract)
        if plain is not None and "<locals>" in plain.__qualname__:
            blueprint.names = local_names(plain)
        labels = frozenset((tags,) if isinstance(tags, str) else tags)
        self.__dict__.update(  # `__setattr__` refuses every attribute
            name=name,
            spec=blueprint.spec(kind, labels, requires_approval=requires_approval, streaming=streaming),
            type=kind,
            timeout=timeout,
            lock=FairLock() if lock else None,
            retries=retries,
            idempotent=idempotent,
            requires_approval=requires_approval,
            external=external,
            contract=contract if contract is not None and contract.runs else None,
            tags=labels,
            streaming=streaming,
            function=function,
            _blueprint=blueprint,
            _call=_call_of(blueprint),
            _validation_context=validation_context,
            _bound=False,
            __wrapped__=function,
            __doc__=plain.__doc__ if plain is not None else None,
        )

    def prepare(self) -> Self:
        """Build the schema and the validator now.

        Raises:
            UsageError: Neither a model nor `deps=` can fill a parameter.
        """
        self._read()
        self._blueprint.parameters()
        return self

    def _read(self) -> None:
        """Read the signature and build the validator. The schema is built when a model needs it."""
        blueprint = self._blueprint
        if blueprint.owner is not None and not self._bound:
            raise UsageError(
                f"Tool {self.name!r} is a method of {blueprint.owner} and no object is bound to it. Take it from an "
                f"instance: {blueprint.owner}(...).{getattr(self.function, '__name__', self.name)}."
            )
        if "plan" not in self.__dict__:  # `self.plan` would call `__getattr__`, and so this method
            plan, context = blueprint.plan(), self._validation_context
            self.__dict__.update(
                plan=plan,
                wants_context=bool(plan.fills) or self.streaming or callable(context),
                dep_types=plan.dep_types,
                _check=_unchecked if callable(context) else plan.check_in(context),
                _adds=bool(plan.fills or plan.positional or blueprint.fixed),
            )

    def validate(self, tool_use: ToolUseBlock) -> None:
        """Validate the arguments only. Checks that need a run's context are made when the tool runs.

        Raises:
            ToolArgumentError: The arguments do not fit.
        """
        try:
            raw = tool_use.raw
            self._check(raw)
            if self._scans:  # pydantic accepts NaN, and 1e999 as infinity
                scan_numbers(raw, raw.find("{"))
        except ValueError:
            if self._check is not _unchecked:  # otherwise the validation needs a run
                self._checked_again(tool_use, self._check)

    def _checked_again(self, tool_use: ToolUseBlock, check: Check) -> dict[str, Any]:
        """Validate arguments that the fast check refused. Empty text means no arguments; other problems are explained."""
        raw = ""
        try:
            raw = arguments_text(tool_use)
            arguments = check(raw)[1] or {}
            check_numbers(raw)
        except ValueError as error:
            raise ToolArgumentError(self._blueprint.explain(self.name, raw, error)) from error
        return arguments

    def renamed(self, name: str) -> Self:
        """Return the same tool under another name. Both share function, options, lock and hooks.

        Args:
            name: The new name for the model.

        Raises:
            UsageError: The name is not legal.

        Example:
            >>> add.renamed("plus").name
            'plus'
        """
        checked_name(name, self.function)
        spec = copy(self.spec)  # shallow: both keep the functions that build description and schema later
        spec.name = name
        same = object.__new__(type_(self))  # `__init__` would check the function again, and make another lock
        same.__dict__.update(self.__dict__, name=name, spec=spec)
        return same

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        """Call the function; fixed arguments are filled in unless they are passed."""
        fixed = self._blueprint.fixed
        if not fixed:
            return self._call(*args, **kwargs)
        arguments = (
            signature_of(self.function).bind_partial(*((None,) if self._bound else ()), *args, **kwargs).arguments
        )
        return self._call(
            *args, **{name: _current(value) for name, value in fixed.items() if name not in arguments} | kwargs
        )

    def __set_name__(self, owner: type_[object], name: str) -> None:
        # Only a function written in the class body is a method, not a shared tool that is stored as a class attribute.
        if getattr(self.function, "__qualname__", "").rpartition(".")[0] == owner.__qualname__:
            self._blueprint.owner = owner.__name__

    @overload
    def __get__(self, instance: None, owner: type_[object]) -> Self: ...
    @overload
    def __get__(self: Tool[Concatenate[Any, Q], R_co], instance: object, owner: type_[object]) -> Tool[Q, R_co]: ...
    def __get__(self, instance: object, owner: type_[object]) -> Any:
        if instance is None or self._blueprint.owner is None:  # a shared tool as a class attribute
            return self
        bound = object.__new__(type_(self))
        call = self._call
        bound.__dict__.update(
            self.__dict__,
            _call=partial(call, instance) if isinstance(call, partial) else MethodType(call, instance),
            _bound=True,
        )
        return bound

    if not TYPE_CHECKING:  # so that type checkers still report unknown attributes

        def __getattr__(self, name):
            if name == "_scans":
                found = self.__dict__[name] = self.external or self._blueprint.may_read_floats()
                return found
            if name in _LAZY:
                self._read()
                return self.__dict__[name]
            raise AttributeError(f"Tool {self.__dict__.get('name', '?')!r} has no attribute {name!r}{hint_for(name)}")

    def __setattr__(self, name: str, value: object) -> NoReturn:
        fixes = f"create another tool: tool({self.name}.function, {name}=...)"
        if name == "hooks":
            fixes = f"register them: {self.name}.hook(h)"
        elif name not in _OPTIONS:
            fixes = f"create another tool with {', '.join(_OPTIONS)}: tool({self.name}.function, ...)"
        raise AttributeError(
            f"Tool {self.name!r} is shared by its agents, so {name} cannot be set. Instead, {fixes}.",
            name=name,
            obj=self,
        )

    def __repr__(self) -> str:
        return f"Tool({self.name!r}, type={self.type!r})"


_OPTIONS: Final = tuple(Tool.__init__.__kwdefaults__ or ())
"""The keywords of `@tool`; every other keyword fixes a parameter."""


@objects_of(Tool)
class FullTool(Tool[P, R_co]):
    """A tool, with the members that the loop uses.

    Attributes:
        contract: The contract of its type; None if there is none.
        wants_context: Whether it runs with a `ToolContext`, because it needs one or may emit chunks.
        dep_types: The types that the call's `deps=` must contain, by parameter.
        plan: How arguments are validated and filled in.
    """

    contract: Contract | None
    wants_context: bool
    dep_types: Mapping[str, type]
    plan: ArgumentPlan

    expected_errors: ClassVar[tuple[type_[Exception], ...]] = ()
    """Exceptions besides `ToolError` with which a tool rejects the model's answer; they do not count as bugs."""

    @property
    def lacks_self(self) -> str | None:
        """The class of a method that was taken from its class instead of an object; None for other tools."""
        owner = self._blueprint.owner
        if owner is None or self._bound or next(iter(signature_of(self.function).parameters), "") != "self":
            return None
        return owner

    def limited(self, timeout: float | None) -> Self:
        """Return the same tool with another time limit. Both share everything else."""
        same = object.__new__(type_(self))
        same.__dict__.update(self.__dict__, timeout=timeout)
        return same

    def start(self, tool_use: ToolUseBlock, context: ToolContext | None) -> Work:
        """Validate the arguments and return the work, not yet begun: a coroutine, or an async generator if `streaming`.

        Args:
            tool_use: The call.
            context: Required if `wants_context`.

        Raises:
            ToolArgumentError: The arguments do not fit; the message is written for the model.
            UsageError: The context is missing, `deps=` lacks an object that the tool needs, or the tool is external.
        """
        try:
            raw = tool_use.raw
            arguments = self._check(raw)[1] or {}  # by name: the plan makes all arguments keyword-only
            if self._scans:
                scan_numbers(raw, raw.find("{"))
        except ValueError:
            arguments = self._checked_again(tool_use, self._check_in(context))
        if self._adds:
            return self._call(*self._fill(arguments, context), **arguments)
        return self._call(**arguments)

    def in_context(self, context: object) -> Self:
        """Return a copy that validates its arguments in pydantic's validation context; None keeps the tool's own."""
        same = object.__new__(type_(self))
        same.__dict__.update(self.__dict__, _check=self._check if context is None else self.plan.check_in(context))
        return same

    def _check_in(self, context: ToolContext | None) -> Check:
        """Return the validator, with the validation context of a run if the tool needs one."""
        if self._check is not _unchecked:
            return self._check
        if context is None:
            raise UsageError(
                f"Tool {self.name!r} was started without a ToolContext, but its validation_context= is a function of the "
                "RunContext; pass start(tool_use, context)."
            )
        return self.plan.check_in(cast("Callable[[RunContext], object]", self._validation_context)(context.run))

    def checked(self, value: object) -> object:
        """Return a value of the tool (for a streaming tool, one of its values) after checking it against the contract.

        Raises:
            ToolContractError: The value breaks the contract.
        """
        if self.contract is not None:
            self.contract.check(self.name, value)
        return value

    def _fill(self, arguments: dict[str, Any], context: ToolContext | None) -> list[Any]:
        """Add the arguments that the model does not see. Return the positional arguments."""
        plan = self.plan
        if plan.fills:
            if context is None:
                raise UsageError(
                    f"Tool {self.name!r} was started without a ToolContext, but needs "
                    f"{', '.join(name for name, _ in plan.fills)}; pass start(tool_use, context)."
                )
            for name, fill in plan.fills:  # after the validation, so a model cannot pass them
                arguments[name] = fill(context)
        for name, value in self._blueprint.fixed.items():
            arguments[name] = _current(value)
        return [arguments.pop(name) for name in plan.positional]


def _unchecked(_raw: str) -> NoReturn:
    """Refuse all arguments: if `validation_context` is a function, they can be validated only in a run."""
    raise ValueError


def arguments_text(tool_use: ToolUseBlock) -> str:
    """Return the arguments of a call as the model wrote them; empty text, which some providers send, means no arguments."""
    raw = tool_use.raw
    return raw if raw.strip() else "{}"


def full_tool(tool: Tool[Q, R_co]) -> FullTool[Q, R_co]:
    """Return the tool, with the members that the loop uses."""
    assert isinstance(tool, FullTool)  # every `Tool` is a `FullTool`
    return tool


def _check_no_tool(function: object) -> None:
    if isinstance(function, Tool):
        raise UsageError(
            f"{function!r} is a tool already. To make another tool, use its function: tool({function.name}.function)."
        )


def _call_of(blueprint: Blueprint) -> Callable[..., Any]:
    """Return the function that a call of the tool runs."""
    if blueprint.in_thread:
        return partial(_in_thread, blueprint.name, blueprint.function)
    return partial(_never_runs, blueprint.name) if blueprint.external else blueprint.function


async def _in_thread(name: str, function: Callable[Q, T], /, *args: Q.args, **kwargs: Q.kwargs) -> T:
    def run() -> T:
        try:
            return function(*args, **kwargs)
        except StopIteration as error:  # a future cannot hold this exception: its waiter would hang
            raise RuntimeError(f"tool {name!r} raised StopIteration") from error

    return await asyncio.to_thread(run)


def _never_runs(name: str, /, *_args: object, **_kwargs: object) -> NoReturn:
    raise UsageError(
        f"Tool {name!r} is external: it cannot run, since its calls are answered from outside. Check arguments with "
        "validate(tool_use); for a function that runs, leave out external=True."
    )


def _current(value: object) -> object:
    """Return a fixed value; if it is a plain function or a partial, call it and return its result."""
    make = cast("Callable[[], object]", value)
    return make() if isinstance(value, (FunctionType, partial)) else value


class _Decorator(Protocol):
    def __call__(self, function: Callable[Q, R_co], /) -> Tool[Q, R_co]: ...


class _ThreadDecorator(Protocol):
    def __call__(self, function: Callable[Q, T], /) -> Tool[Q, Coroutine[Any, Any, T]]: ...


@overload
def tool(
    function: Callable[Q, T],
    /,
    *,
    in_thread: Literal[True],
    name: str | None = None,
    description: str | None = None,
    type: ToolType = ...,
    timeout: float | None = ...,
    lock: bool = False,
    retries: int = 0,
    tags: Iterable[str] = (),
    idempotent: bool = False,
    requires_approval: bool = False,
    fixed: Mapping[str, object] | None = None,
    validation_context: Callable[[RunContext], Any] | object = None,
    **fixed_arguments: object,
) -> Tool[Q, Coroutine[Any, Any, T]]: ...
@overload
def tool(
    function: Callable[Q, R_co],
    /,
    *,
    in_thread: Literal[False] = False,
    name: str | None = None,
    description: str | None = None,
    type: ToolType = ...,
    timeout: float | None = ...,
    lock: bool = False,
    retries: int = 0,
    tags: Iterable[str] = (),
    idempotent: bool = False,
    requires_approval: bool = False,
    external: bool = False,
    fixed: Mapping[str, object] | None = None,
    validation_context: Callable[[RunContext], Any] | object = None,
    **fixed_arguments: object,
) -> Tool[Q, R_co]: ...
@overload
def tool(
    *,
    in_thread: Literal[True],
    name: str | None = None,
    description: str | None = None,
    type: ToolType = ...,
    timeout: float | None = ...,
    lock: bool = False,
    retries: int = 0,
    tags: Iterable[str] = (),
    idempotent: bool = False,
    requires_approval: bool = False,
    fixed: Mapping[str, object] | None = None,
    validation_context: Callable[[RunContext], Any] | object = None,
    **fixed_arguments: object,
) -> _ThreadDecorator: ...
@overload
def tool(
    *,
    in_thread: Literal[False] = False,
    name: str | None = None,
    description: str | None = None,
    type: ToolType = ...,
    timeout: float | None = ...,
    lock: bool = False,
    retries: int = 0,
    tags: Iterable[str] = (),
    idempotent: bool = False,
    requires_approval: bool = False,
    external: bool = False,
    fixed: Mapping[str, object] | None = None,
    validation_context: Callable[[RunContext], Any] | object = None,
    **fixed_arguments: object,
) -> _Decorator: ...
def tool(function: Callable[..., Any] | None = None, /, **options: object) -> Any:
    """Make a tool from an async function.

    Each value that an async generator yields is a chunk of the output, delivered as an `ActingChunk`. The model sees
    the parameters that are neither injected (`ToolContext`, `ToolEmitter`, `RunContext`, dependencies) nor fixed.

    Args:
        function: A coroutine function or an async generator function; with `in_thread=True` a plain function.
        **options: See below; every other keyword fixes the parameter of that name. If the value is a function or partial,
            each run calls it and uses its result.

    Keyword Args:
        name: The name for the model; the function's name by default.
        description: The description for the model; the docstring by default.
        type: The kind of work (a `ToolType`), which determines when a round runs the tool; `"action"` by default.
        timeout: Seconds for one attempt (60 by default); None means no limit. Waiting for the lock does not count.
        lock: Whether calls run one at a time, in order of arrival, across agents, event loops and threads.
        retries: How often the tool is retried after an exception or a timeout, but never after a cancellation or invalid
            arguments. A tool that writes should be retried only if it can safely run twice.
        tags: Free labels.
        idempotent: Whether it can safely run twice.
        requires_approval: Whether a call waits for a person.
        external: Whether the function is only read for its signature and docstring, and never runs: a call waits for an
            answer from outside (see `external_tool` for a tool without a function).
        in_thread: Whether to run a plain function in a thread. The function sees the context variables, and cannot be
            stopped once it runs.
        fixed: Fixed arguments for parameters that have the name of an option.
        validation_context: Pydantic's validation context for the arguments (`info.context` in validators), or a function
            that returns it for the `RunContext`.

    Raises:
        UsageError: The function or an option is not legal.

    Example:
        >>> @tool(type="read", unit="km")
        ... async def distance(start: str, end: str, unit: str) -> str:
        ...     return f"5 {unit}"
        >>> distance.type, list(distance.spec.parameters["properties"])
        ('read', ['start', 'end'])
    """
    chosen: dict[str, Any] = {key: options.pop(key) for key in _OPTIONS if key in options}
    chosen["fixed"] = {**(chosen.get("fixed") or {}), **options}
    return partial(Tool, **chosen) if function is None else Tool(function, **chosen)
