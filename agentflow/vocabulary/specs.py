"""Types that models, tools and clocks share: `Usage`, `ToolSpec`, `ModelOptions`, `Clock`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, replace
from operator import attrgetter
from types import UnionType
from typing import Any, Final, Literal, Protocol, TypeAlias, cast, get_args, runtime_checkable

from agentflow._support.frozen import EMPTY, deep_freeze, freeze
from agentflow._support.json_text import all_finite
from agentflow._support.values import field, frozen, maker
from agentflow.errors import UsageError
from agentflow.vocabulary.server_tools import ServerTool

__all__ = [
    "EFFORTS",
    "TOOL_ORDER",
    "WORKFLOW",
    "WORKFLOW_STEP",
    "AnyTool",
    "Clock",
    "Effort",
    "ModelOptions",
    "ToolChoice",
    "ToolSpec",
    "ToolType",
    "Usage",
    "checked_options",
    "is_seconds",
]

ToolType: TypeAlias = Literal[
    "research", "read", "write", "reasoning", "action", "memory_read", "memory_write", "completion_check"
]
"""The kind of a tool's work: it determines the tool's contract, and when a round runs the tool (`TOOL_ORDER`)."""

_WRITES: Final = 2

TOOL_ORDER: Final[Mapping[ToolType, int]] = {
    "research": 0,
    "read": 1,
    "reasoning": 1,
    "memory_read": 1,
    "write": _WRITES,
    "action": _WRITES,
    "memory_write": _WRITES,
    "completion_check": _WRITES,
}
"""The order in a round: first the research tools in parallel, then the readers in parallel, then the writers one by one."""

WORKFLOW: Final = "workflow"
"""The model name of a workflow: an agent that runs code instead of a model."""

WORKFLOW_STEP: Final = "workflow_step"
"""The name of the tool that runs the functions of a workflow's steps. No list of tools contains it."""

ToolChoice: TypeAlias = Literal["auto", "none", "required"] | str
"""`"auto"`, `"none"`, `"required"`, or the name of the tool that the model must call."""


Effort: TypeAlias = Literal["minimal", "low", "medium", "high", "xhigh", "max"]
"""How much a model should think, in the terms of the providers."""

EFFORTS: Final[tuple[Effort, ...]] = get_args(Effort)
"""All efforts, the smallest first."""


@frozen
class Usage:
    """The usage of model calls. Token counts are as the provider reports them; `cost` is in US dollars.

    Attributes:
        input_tokens: Prompt tokens, including cached ones.
        output_tokens: Completion tokens, including reasoning.
        cache_read_tokens: The part of the input that was read from a prompt cache.
        cache_write_tokens: The part of the input that was written to a prompt cache.
        reasoning_tokens: The part of the output that was reasoning.
        cost: Dollars; `None` if the price is unknown.
        model_calls: The number of model calls in these figures.

    Example:
        >>> (Usage(input_tokens=3, model_calls=1) + Usage(input_tokens=4, model_calls=1)).input_tokens
        7
    """

    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    reasoning_tokens: int = 0
    cost: float | None = None
    model_calls: int = 0

    @property
    def total_tokens(self) -> int:
        """The number of input and output tokens together."""
        return self.input_tokens + self.output_tokens

    def __add__(self, other: Usage) -> Usage:
        return self.total((self, other))

    @staticmethod
    def total(usages: Iterable[Usage]) -> Usage:
        """Return the sum of several usages; `cost` is the sum of the known prices.

        Example:
            >>> Usage.total([Usage(cost=0.5), Usage(model_calls=1), Usage(cost=0.25)]).cost
            0.75
        """
        added = [*usages]
        cost: float | None = None
        for usage in added:
            if usage.cost is not None:
                cost = usage.cost if cost is None else cost + usage.cost
        read, written, cached, cache_written, thought, calls = map(
            sum,
            zip(_NO_COUNTS, *map(_counts, added), strict=True),  # the first row, so that the sum of nothing is 0
        )
        return _usage(read, written, cached, cache_written, thought, cost, calls)


_counts = attrgetter(*[f.name for f in fields(Usage) if f.name != "cost"])
_NO_COUNTS = _counts(Usage())
_usage = maker(Usage, tuple(f.name for f in fields(Usage)))
_ONE_CALL = Usage(model_calls=1)


def one_call(usage: Usage | None) -> Usage:
    """Return the usage that a model reported, if any, with at least one call counted."""
    if usage is None:
        return _ONE_CALL
    if usage.model_calls:
        return usage
    return _usage(
        usage.input_tokens,
        usage.output_tokens,
        usage.cache_read_tokens,
        usage.cache_write_tokens,
        usage.reasoning_tokens,
        usage.cost,
        1,
    )


class ToolSpec:
    """A tool as a model and hooks see it.

    Args:
        name: The tool's name, `^[a-zA-Z_][a-zA-Z0-9_-]{0,63}$`.
        description: The description for the model, or a function that returns it, called on first access.
        parameters: The JSON schema of an object, or a function that returns it, called on first access (building a schema
            takes 50 µs).
        type: The kind of work, which determines when a round runs the tool.
        tags: Labels, for example for filters in hooks.
        requires_approval: Whether a call waits for a person.
        streaming: Whether the tool yields values while it works.
        native: The request's entry for each family of models that is trained on this tool; it replaces description and
            schema.
        native_only: Whether other models do not get the tool.

    Attributes:
        writes: Whether the tool can change something; a round then runs it alone.
    """

    __slots__ = (
        "_description",
        "_parameters",
        "name",
        "native",
        "native_only",
        "requires_approval",
        "streaming",
        "tags",
        "type",
        "writes",
    )

    def __init__(
        self,
        name: str,
        description: str | Callable[[], str] = "",
        parameters: Mapping[str, Any] | Callable[[], Mapping[str, Any]] | None = None,
        *,
        type: ToolType = "action",  # noqa: A002 - as in `tool`
        tags: frozenset[str] = frozenset(),
        requires_approval: bool = False,
        streaming: bool = False,
        native: Mapping[str, Mapping[str, Any]] = EMPTY,
        native_only: bool = False,
    ) -> None:
        self.name = name
        self.native = native
        self.native_only = native_only
        self._description = description
        self._parameters: Mapping[str, Any] | Callable[[], Mapping[str, Any]] = parameters or {
            "type": "object",
            "properties": {},
        }
        self.type: ToolType = type
        self.writes = TOOL_ORDER[type] == _WRITES
        self.tags = tags
        self.requires_approval = requires_approval
        self.streaming = streaming

    @property
    def description(self) -> str:
        """The description for the model."""
        if not isinstance(self._description, str):
            self._description = self._description()
        return self._description

    @property
    def parameters(self) -> Mapping[str, Any]:
        """The JSON schema of the arguments: an object."""
        parameters = self._parameters
        if callable(parameters):
            self._parameters = parameters = parameters()
        return parameters

    def __repr__(self) -> str:
        return f"ToolSpec({self.name!r}, type={self.type!r})"


class AnyTool(Protocol):
    """The part of a tool's interface that the vocabulary uses."""

    @property
    def name(self) -> str:
        """The name that the model uses."""
        ...

    @property
    def spec(self) -> ToolSpec:
        """The tool as the model sees it."""
        ...


@frozen(kw_only=True)
class ModelOptions:
    """Options of a model call. `None` means unset. A hook's options override the call's, which override the agent's.

    Attributes:
        temperature: Sampling temperature.
        max_tokens: The maximum number of tokens of one answer.
        top_p: Nucleus sampling.
        stop: Texts that end the answer.
        seed: The seed, for providers with repeatable sampling.
        tool_choice: `"auto"`, `"none"`, `"required"` or a tool's name.
        thinking: `True`, `False`, an effort or a budget in tokens. Every model accepts the efforts `"low"`, `"medium"`
            and `"high"`; models of OpenAI also accept `"minimal"` and `"xhigh"`, Claude `"xhigh"` and `"max"`.
        answer_schema: The JSON schema of an object that the answer must match, for models that have such a mode.
        cache: Whether to ask the provider to cache the part that requests begin with, if it does not do so anyway; `"1h"`
            caches it for an hour instead of the usual five minutes.
        server_tools: Tools that the provider runs; `()` for none.
        extra: Options that the provider's adapter passes on unchanged.

    Raises:
        UsageError: A number is of another type, NaN or infinite, which JSON cannot represent, or `thinking` or
            `server_tools` has a value not listed above, or the same tool twice.

    Example:
        >>> ModelOptions(temperature=0.0).merge(ModelOptions(max_tokens=50)).temperature
        0.0
    """

    temperature: float | None = None
    max_tokens: int | None = None
    top_p: float | None = None
    stop: tuple[str, ...] | None = None
    seed: int | None = None
    tool_choice: ToolChoice | None = None
    thinking: bool | int | Effort | None = None
    answer_schema: Mapping[str, Any] | None = None
    cache: bool | Literal["5m", "1h"] | None = None
    server_tools: tuple[ServerTool, ...] | None = None
    extra: Mapping[str, Any] = field(default_factory=lambda: EMPTY)

    def __post_init__(self) -> None:
        object.__setattr__(self, "extra", freeze(self.extra))
        if self.answer_schema is not None:
            object.__setattr__(self, "answer_schema", deep_freeze(self.answer_schema))
        # One check for all options: the name of the wrong one is only needed for the error.
        if not all_finite((self.temperature, self.max_tokens, self.top_p, self.seed, self.thinking, self.extra)):
            wrong = next(name for name in _OPTION_NAMES if not all_finite(getattr(self, name)))
            raise UsageError(
                f"ModelOptions({wrong}={getattr(self, wrong)!r}): a request is JSON, which allows only finite numbers. Leave "
                "it out for the provider's default."
            )
        if (
            self.temperature is not None
            or self.max_tokens is not None
            or self.top_p is not None
            or self.seed is not None
        ):
            _check_numbers(self)
        if self.thinking is not None:
            _check_thinking(self.thinking)
        if self.server_tools is not None:
            object.__setattr__(self, "server_tools", _checked_server_tools(self.server_tools))

    def merge(self, nearer: ModelOptions | None) -> ModelOptions:
        """Return these options, overridden by those that `nearer` sets; `extra` is merged key by key."""
        if nearer is None or checked_options(nearer) == _UNSET:  # usually nothing to merge
            return self
        if self == _UNSET:
            return nearer
        changes = {name: value for name in _OPTION_NAMES if (value := getattr(nearer, name)) is not None}
        if nearer.extra:
            changes["extra"] = {**self.extra, **nearer.extra}
        else:
            changes.pop("extra", None)  # unset, although it is not None
        return replace(self, **changes)


_NUMBERS: Final[tuple[tuple[str, type | UnionType, str], ...]] = (
    ("temperature", int | float, "a number"),
    ("top_p", int | float, "a number"),
    ("max_tokens", int, "a whole number"),
    ("seed", int, "a whole number"),
)


def _check_numbers(options: ModelOptions) -> None:
    for name, kinds, what in _NUMBERS:
        value: object = getattr(options, name)
        if value is not None and (isinstance(value, bool) or not isinstance(value, kinds)):
            raise UsageError(f"ModelOptions({name}={value!r:.60}): it must be {what}, not {type(value).__name__}.")


def _check_thinking(value: object) -> None:
    if isinstance(value, str):
        if value in EFFORTS:
            return
    elif isinstance(value, bool) or (isinstance(value, int) and value > 0):
        return
    raise UsageError(
        f"ModelOptions(thinking={value!r:.60}): it must be True, False (off), a budget in tokens above 0, or an effort: "
        "'low', 'medium', 'high' for every model; 'minimal', 'xhigh' for OpenAI's; 'xhigh', 'max' for Claude."
    )


def _checked_server_tools(value: object) -> tuple[ServerTool, ...]:
    tools = (value,) if isinstance(value, ServerTool) else tuple(cast("Iterable[object]", value))
    for tool in tools:
        if not isinstance(tool, ServerTool):
            raise UsageError(
                f"ModelOptions(server_tools=...) holds {tool!r:.60}, which is not a ServerTool. Write "
                "server_tools=(ServerTool.web_search(),); your own tools belong in the agent's tools=."
            )
    checked = cast("tuple[ServerTool, ...]", tools)
    # Several MCP servers differ by label, and several tool searches by their tools.
    keys = [(tool.name, tool.settings.get("label")) for tool in checked if tool.name != "tool_search"]
    if repeated := next((key for key in keys if keys.count(key) > 1), None):
        name = repeated[0] if repeated[1] is None else f"mcp {repeated[1]!r}"
        raise UsageError(
            f"ModelOptions(server_tools=...) has {name} twice, which providers refuse. Put all settings into one."
        )
    return checked


def checked_options(value: object) -> ModelOptions:
    """Return the value if it is a `ModelOptions`.

    Raises:
        UsageError: The value is not a `ModelOptions`; the error shows the options to write.

    Example:
        >>> checked_options({"temperature": 0.3})
        Traceback (most recent call last):
        agentflow.errors.UsageError: options={'temperature': 0.3} is a dict. Write options=ModelOptions(temperature=0.3).
    """
    if isinstance(value, ModelOptions):
        return value
    fix, kind = "", type(value).__name__
    if isinstance(value, Mapping):
        values = cast("Mapping[object, object]", value)
        known = [f"{name}={value!r}" for name, value in values.items() if name in _OPTION_NAMES]
        other = {name: value for name, value in values.items() if name not in _OPTION_NAMES}
        fix = ", ".join([*known, f"extra={other!r}"] if other else known)
    raise UsageError(f"options={value!r:.200} is a {kind}. Write options=ModelOptions({fix}).")


def is_seconds(value: object) -> bool:
    """Whether a value is a time limit in seconds: a number above 0.

    Example:
        >>> [is_seconds(value) for value in (0.5, 0, "1", True, float("nan"))]
        [True, False, False, False, False]
    """
    return isinstance(value, int | float) and not isinstance(value, bool) and value > 0


_OPTION_NAMES = tuple(f.name for f in fields(ModelOptions))
_UNSET = ModelOptions()


@runtime_checkable
class Clock(Protocol):
    """The source of time; replaced in tests (virtual time) and replays."""

    def now(self) -> float:
        """Return the seconds since the epoch."""
        ...

    def monotonic(self) -> float:
        """Return the seconds of a clock that is never set back, for durations."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        ...
