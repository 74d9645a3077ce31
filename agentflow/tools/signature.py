"""The signature of a tool: which parameters the model fills, which the loop fills, and which are fixed.

Rules:

1. A signature is read on first use, not at decoration: decorating must be cheap, but reading the signature and building
   the validator takes 100 µs.
2. Names in annotations are looked up where the function is defined: in its module, its closure, and, for text annotations
   of a local function, the locals of the frames that decorate it. Only names that the annotations use are kept.
3. Every error names the tool, the parameter, and a valid alternative.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import inspect
import re
import typing
import warnings
from collections.abc import Callable, Iterator, Mapping
from types import FrameType, FunctionType, UnionType
from typing import Any, Final, Protocol, TypeAlias, cast

from pydantic.errors import PydanticSchemaGenerationError, PydanticUserError
from pydantic.warnings import PydanticExperimentalWarning
from pydantic_core import CoreSchema, SchemaValidator

from agentflow._support.annotations import annotations_of, signature_of
from agentflow._support.frames import frame_at
from agentflow._support.validation import adapter_of
from agentflow._support.values import frozen
from agentflow.errors import UsageError
from agentflow.tools.contracts import MISSING, return_annotation
from agentflow.tools.plain_types import plain_schemas
from agentflow.tools.tool_context import DepMark, ToolContext, ToolEmitter
from agentflow.vocabulary.context import RunContext

Fill: TypeAlias = Callable[[ToolContext], object]
"""Returns the value of an injected parameter."""

Check: TypeAlias = Callable[[str], tuple[Any, dict[str, Any] | None]]
"""Validates the JSON of arguments, and returns them by position and by name."""

Parameters: TypeAlias = dict[str, inspect.Parameter]

_INJECTED: Final[Mapping[object, Fill]] = {
    ToolContext: lambda context: context,
    ToolEmitter: lambda context: context.emitter,
    RunContext: lambda context: context.run,
}
# Linters move the imports of these names under TYPE_CHECKING, so the names might not exist at run time.
_KNOWN: Final[dict[str, object]] = {kind.__name__: kind for kind in (ToolContext, ToolEmitter, RunContext)}
_IDENTIFIER: Final = r"[^\W\d]\w*"
_MAX_FRAMES: Final = 12


class ArgumentsValidator(Protocol):
    """Validates arguments as the model wrote them."""

    def validate_json(self, data: str, /) -> Any:
        """Return the arguments by position and by name."""
        ...


@frozen
class ArgumentPlan:
    """The result of reading a signature.

    Attributes:
        core: Pydantic's schema of the arguments that the model fills.
        schema: The JSON schema of these arguments without descriptions; None if it must be generated from `core`.
        validator: Validates the arguments.
        aliases: Parameters that have another name for the model.
        fills: The function that fills each injected parameter.
        dep_types: The types that `deps=` must contain, by parameter.
        positional: Positional-only parameters.
    """

    core: CoreSchema
    schema: dict[str, Any] | None
    validator: ArgumentsValidator
    aliases: Mapping[str, str]
    fills: tuple[tuple[str, Fill], ...]
    dep_types: Mapping[str, type]
    positional: tuple[str, ...]

    def check_in(self, context: object) -> Check:
        """Return the function that validates arguments, in pydantic's validation context."""
        # Our own validators (`agentflow.tools.schema_arguments`) take no context.
        if context is None or not isinstance(self.validator, SchemaValidator):
            return self.validator.validate_json
        return functools.partial(self.validator.validate_json, context=context)


def plain_function(function: Callable[..., object]) -> FunctionType | None:
    """Return the Python function of a callable (method, partial, object with `__call__`), if there is one."""
    while True:
        if isinstance(function, FunctionType):
            return function
        if isinstance(function, functools.partial):
            function = cast("functools.partial[object]", function).func
        elif inspect.ismethod(function):
            function = function.__func__
        else:
            unwrapped = inspect.getattr_static(type(function), "__call__", None)
            return unwrapped if isinstance(unwrapped, FunctionType) else None


def local_names(function: FunctionType) -> Mapping[str, object]:
    """Return the values of the names in a local function's text annotations, found in the frames that decorate it."""
    unwrapped = cast("FunctionType", inspect.unwrap(function))
    wanted = {
        name
        for annotation in annotations_of(function).values()
        if isinstance(annotation, str)
        for name in re.findall(_IDENTIFIER, annotation)
    }
    found: dict[str, object] = {}
    if not wanted:  # annotations that were evaluated need no names
        return found
    # A class defined in the same function is only found in that function's frame, which ends after the decoration.
    for frame in _frames(unwrapped.__globals__):
        names = frame.f_locals
        found.update({name: names[name] for name in wanted if name in names and name not in found})
    return found


def _frames(of_globals: dict[str, Any]) -> Iterator[FrameType]:
    """Yield the frames that run code of one module, innermost first, up to its top level."""
    frame: FrameType | None = frame_at(2)  # the caller of `local_names`
    for _ in range(_MAX_FRAMES):
        if frame is None or frame.f_code.co_name == "<module>":
            return
        if frame.f_globals is of_globals:
            yield frame
        frame = frame.f_back


def read_plan(
    tool: str,
    function: Callable[..., object],
    *,
    is_method: bool,
    in_thread: bool,
    fixed: Mapping[str, object],
    names: Mapping[str, object],
) -> ArgumentPlan:
    """Read a tool's signature.

    Args:
        tool: The tool's name, for messages.
        function: The function.
        is_method: Whether the first parameter is `self`.
        in_thread: Whether the function runs in a thread, without `await`.
        fixed: Parameters with fixed values; hidden from the model.
        names: Names for text annotations, besides names in the module and the closure.

    Raises:
        UsageError: A parameter cannot be filled, or its type has no JSON form.
    """
    parameters = _parameters(tool, function, is_method)
    hints = _hints(tool, function, parameters, names)
    shown: Parameters = {}
    fills: list[tuple[str, Fill]] = []
    deps: dict[str, type] = {}
    for name, parameter in parameters.items():
        if name in fixed:
            continue
        kind, marked = _injected_kind(hints.get(name))
        # Checked first: these classes have no JSON form, so they would be taken for dependencies.
        if kind in _INJECTED:
            if in_thread and kind is ToolEmitter:
                raise UsageError(
                    f"Tool {tool!r} runs in a thread, in which its parameter {name!r} (ToolEmitter) cannot be awaited. "
                    "Make it an async def, or return the whole result."
                )
            fills.append((name, _INJECTED[kind]))
        elif isinstance(kind, type) and (marked or _is_dep(cast("type[object]", kind))):
            _check_dep(tool, name, kind)
            fills.append((name, functools.partial(_dep, name, kind, parameter.default)))
            if parameter.default is parameter.empty:  # with a default, the dependency is optional
                deps[name] = kind
        else:
            shown[name] = parameter
    core, schema = plain_schemas(shown.values(), hints) or (_core_schema(tool, shown, hints), None)
    return ArgumentPlan(
        core=core,
        schema=schema,
        validator=SchemaValidator(core),
        aliases=_aliases(core),
        fills=tuple(fills),
        dep_types=deps,
        positional=tuple(name for name, p in parameters.items() if p.kind is p.POSITIONAL_ONLY),
    )


def _parameters(tool: str, function: Callable[..., object], is_method: bool) -> Parameters:
    try:
        parameters = list(signature_of(function).parameters.values())
    except (ValueError, TypeError) as error:
        raise UsageError(
            f"Tool {tool!r}: Python cannot determine the signature of {function!r}. Wrap it in an async def with "
            "annotated parameters."
        ) from error
    if is_method:
        parameters = parameters[1:]
    for parameter in parameters:
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise UsageError(
                f"Tool {tool!r} takes {parameter}: a model can only pass named arguments. Name each parameter, or take a "
                f"list or dict parameter ({parameter.name}: list[str])."
            )
    return {parameter.name: parameter for parameter in parameters}


def _hints(
    tool: str, function: Callable[..., object], parameters: Parameters, names: Mapping[str, object]
) -> dict[str, Any]:
    """Evaluate only the parameters' annotations, since return annotations often use names that only type checkers know."""
    plain = plain_function(function)
    module, local = _known_names(plain, names)
    annotations: Mapping[str, Any] = {}
    try:
        if plain is not None:
            annotations = annotations_of(plain)
        stub = _stub({name: annotations[name] for name in parameters if name in annotations})
        return typing.get_type_hints(stub, module, local, include_extras=True)
    except NameError as error:
        name = error.name or ""
        culprit = next((p for p, text in annotations.items() if name in re.findall(_IDENTIFIER, str(text))), "?")
        raise UsageError(
            f"Tool {tool!r}: the annotation of parameter {culprit!r} names {name!r}, which does not exist at run time. "
            f"Import or define {name} before the tool, outside `if TYPE_CHECKING:`."
        ) from error


def return_hint(function: Callable[..., object], names: Mapping[str, object]) -> object:
    """Return a function's return annotation: a type, its text if evaluating it fails, or `MISSING`.

    Args:
        function: The function.
        names: Names for text annotations, besides those of the module and the closure.
    """
    plain = plain_function(function)
    raw = MISSING if plain is None else return_annotation(plain)
    if raw is MISSING:
        return raw
    try:
        return typing.get_type_hints(_stub({"return": raw}), *_known_names(plain, names), include_extras=True)["return"]
    except (NameError, TypeError, AttributeError, SyntaxError):  # a name that only type checkers know, or not a type
        return raw if isinstance(raw, str) else str(raw)


def _known_names(plain: FunctionType | None, names: Mapping[str, object]) -> tuple[dict[str, Any], dict[str, object]]:
    """Return the names for annotations: the module's, and the others."""
    unwrapped = inspect.unwrap(plain) if plain is not None else None
    module = cast("dict[str, Any]", getattr(unwrapped, "__globals__", {}))
    # A class of the module with one of these names has precedence.
    local = {name: value for name, value in _KNOWN.items() if name not in module} | dict(names)
    if isinstance(unwrapped, FunctionType):
        local |= _closure(unwrapped)
        local |= {kind.__name__: kind for kind in getattr(unwrapped, "__type_params__", ())}
    return module, local


def _closure(function: FunctionType) -> dict[str, object]:
    found: dict[str, object] = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            found[name] = cell.cell_contents
        except ValueError:  # the variable is not assigned (yet)
            continue
    return found


def _stub(annotations: dict[str, Any]) -> FunctionType:
    def stub() -> None: ...

    stub.__annotations__ = annotations
    return cast("FunctionType", stub)


def _injected_kind(hint: object) -> tuple[object, bool]:
    """Return the class of an annotation (`X`, `X | None`, `Dep[X]`), and whether `Dep` marks it."""
    marked = False
    while True:
        origin = typing.get_origin(hint)
        arguments = typing.get_args(hint)
        if origin is typing.Annotated:
            marked = marked or any(isinstance(mark, DepMark) for mark in arguments[1:])
            hint = arguments[0]
        elif origin in (typing.Union, UnionType):
            members = [member for member in arguments if member is not type(None)]
            if len(members) != 1:  # a union of several classes is not injected
                return None, marked
            hint = members[0]
        else:
            return (origin or hint) if marked else hint, marked


def _is_dep(kind: type[object]) -> bool:
    """Whether a class has no JSON form, so that only `deps=` can provide it."""
    # Cheap tests first, because building pydantic's schema takes about a millisecond.
    plain: type = kind
    if (
        kind.__module__ == "builtins"
        or dataclasses.is_dataclass(kind)
        or issubclass(plain, (enum.Enum, dict, list, tuple, str, int, float))
        or hasattr(kind, "__get_pydantic_core_schema__")
    ):
        return False
    return isinstance(_schema_error(kind), PydanticSchemaGenerationError)


def _schema_error(hint: Any) -> PydanticUserError | None:
    try:
        adapter_of(hint)
    except PydanticUserError as error:
        return error
    return None


def _check_dep(tool: str, name: str, kind: type) -> None:
    try:
        isinstance(None, kind)  # raises for a Protocol that is not checkable at run time
    except TypeError as error:
        raise UsageError(
            f"Tool {tool!r}: parameter {name!r} takes a {kind.__name__} from deps=, but isinstance() cannot check for it "
            f"({error}). Put @typing.runtime_checkable on the Protocol."
        ) from error


def _dep(name: str, kind: type[object], default: object, context: ToolContext) -> object:
    if default is not inspect.Parameter.empty and not context.run.has_dep(kind, name):
        return default
    return context.run.deps(kind, name)


def _core_schema(tool: str, shown: Parameters, hints: dict[str, Any]) -> CoreSchema:
    stub = _stub({name: hints[name] for name in shown if name in hints})
    # All arguments are keyword-only: pydantic returns them as one dict, to which injected arguments can be added.
    by_name = [
        inspect.Parameter(p.name, p.KEYWORD_ONLY, default=p.default, annotation=hints.get(p.name, p.empty))
        for p in shown.values()
    ]
    setattr(stub, "__signature__", inspect.Signature(by_name))  # noqa: B010 - functions have no such declared attribute
    with warnings.catch_warnings():  # pydantic 2.11 warns about each use
        warnings.simplefilter("ignore", PydanticExperimentalWarning)
        from pydantic.experimental.arguments_schema import generate_arguments_schema
    try:
        return generate_arguments_schema(stub)
    except PydanticUserError as error:
        name, problem = _culprit(hints, shown, error)
        raise UsageError(
            f"Tool {tool!r}: a model cannot fill parameter {name!r}: {problem}. Use types that JSON can describe "
            "(str, int, list[...], Literal, Enum, pydantic models, dataclasses, TypedDict, their unions), ToolContext, "
            "ToolEmitter, RunContext, and Dep[X] for objects from the call's deps=."
        ) from error


def _culprit(hints: dict[str, Any], shown: Parameters, error: PydanticUserError) -> tuple[str, str]:
    for name in shown:
        problem = _schema_error(hints.get(name, Any))
        if problem is not None:
            return name, _first_sentence(problem)
    return ", ".join(shown), _first_sentence(error)


def _first_sentence(error: PydanticUserError) -> str:
    return error.message.splitlines()[0].split(". ")[0].rstrip(".")


def _aliases(core: CoreSchema) -> dict[str, str]:
    inner = cast("Any", core)
    if inner["type"] == "definitions":  # the schema of a recursive type is wrapped
        inner = inner["schema"]
    parameters = cast("list[dict[str, Any]]", inner["arguments_schema"])
    return {p["name"]: p["alias"] for p in parameters if isinstance(p.get("alias"), str)}
