"""`Turn`: a tool bound to arguments, run directly or from an agent's queue, and saved as data.

Rules:

1. A turn runs once at a time; when it has finished, it may run again.
2. A run method that does not match the kind of tool is refused before anything runs.
3. Saved data contains the names of the tool and hooks. Saving refuses code that cannot be found by a name.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Coroutine, Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Final, Generic, Literal, TypeVar, Unpack, cast, overload

from pydantic_core import to_json, to_jsonable_python
from typing_extensions import TypedDict

from agentflow._support.facade import objects_of
from agentflow._support.ids import new_id
from agentflow._support.json_text import all_finite
from agentflow._support.validation import Above, Check, closed
from agentflow.errors import SafeExecutionError, UsageError, WrongRunMethodError
from agentflow.hooks.hook import Hook
from agentflow.hooks.hook_set import FullHookSet
from agentflow.loop.bound_tool import BoundTool, FullBoundTool, StopReason, TurnOptions
from agentflow.loop.config import FrozenAgentView, LoopConfig
from agentflow.loop.run import current_turn
from agentflow.loop.schedule import ToolSchedule
from agentflow.loop.stream import EventBuffer, EventStream
from agentflow.loop.turn_run import TurnRun, make_run, run_turn
from agentflow.reactive import CallMono, Flux
from agentflow.tools.code_names import Finder, hook_names, named_function
from agentflow.tools.tool import FullTool, Tool
from agentflow.tools.tool_registry import ToolRegistry
from agentflow.vocabulary.events import HookEvent, TurnValue
from agentflow.vocabulary.ports.clock import SystemClock
from agentflow.vocabulary.saving.codec import CODEC_VERSION, resolution_from_dict, verdict_to_dict
from agentflow.vocabulary.saving.forms import check_form, not_saved
from agentflow.vocabulary.saving.plain import as_data, read_json
from agentflow.vocabulary.specs import Clock, ModelOptions
from agentflow.vocabulary.verdicts import Resolution

__all__ = ["FullTurn", "StopReason", "Turn", "TurnOptions", "full_turn", "turn_from_dict"]

T_co = TypeVar("T_co", covariant=True)
V = TypeVar("V")
_CLOCK: Final[Clock] = SystemClock()
_OPTIONS: Final = ModelOptions()
_NO_TOOLS: Final[Mapping[str, FullTool[..., Any]]] = {}


class Turn(BoundTool, Generic[T_co]):
    """A tool bound to arguments.

    Args:
        tool: The tool, or its name in a registry.
        arguments: The arguments by name. They are data, as a model would send them (pydantic models, dates and enums
            are converted); pass other objects, such as a connection, in `deps`.
        options: See `TurnOptions`.

    Attributes:
        id: The turn's id.
        tool: The tool to run.
        arguments: The arguments, frozen.
        timeout: The time limit of one attempt in seconds.
        tags: The turn's labels.
        metadata: Any data; may change at any time.
        deps: The dependencies that the tool requests by type.
        approval: The decision on the call; see `TurnOptions`. It also applies to later runs.
        sender: The agent that sent it, and the run from which it was sent.
        start_time: Start time of the last run, in seconds since the epoch; None if it has not run.
        end_time: End time of the last run; None if it has not run, or is running.
        stop_reason: How the last run ended; None if it has not run, or is running.
        output: The tool's return value, or the last value of a stream.

    Raises:
        UsageError: The tool is unknown, the arguments are not data, or an option is invalid.

    Example:
        >>> @tool
        ... async def add(a: int, b: int) -> int:
        ...     return a + b
        >>> turn = Turn(add, {"a": 1, "b": 2})
        >>> await turn.returning()
        3
        >>> turn.stop_reason
        'completed'
    """

    if TYPE_CHECKING:

        @property
        def output(self) -> T_co | None:
            """The tool's return value, or the last value of a stream."""

        @overload
        def __init__(
            self: Turn[V],
            tool: Tool[..., Coroutine[Any, Any, V]],
            arguments: Mapping[str, Any] | None = None,
            /,
            **options: Unpack[TurnOptions],
        ) -> None: ...
        @overload
        def __init__(
            self: Turn[V],
            tool: Tool[..., AsyncIterator[V]],
            arguments: Mapping[str, Any] | None = None,
            /,
            **options: Unpack[TurnOptions],
        ) -> None: ...
        @overload
        def __init__(
            self: Turn[Any], tool: str, arguments: Mapping[str, Any] | None = None, /, **options: Unpack[TurnOptions]
        ) -> None: ...
        def __init__(
            self, tool: Any, arguments: Mapping[str, Any] | None = None, /, **options: Unpack[TurnOptions]
        ) -> None: ...

    def returning(self) -> CallMono[T_co]:
        """Run a tool that returns one value.

        Returns:
            A Mono of the value: await it. Each await is another run.

        Raises:
            WrongRunMethodError: The tool is an async generator: use `yielding()`.
            SafeExecutionError: The turn is running or queued.
            TurnTimeoutError: It exceeded its time limit and was cancelled.
            TurnDeniedError: A hook denied it, or it needs approval.
            Exception: The exception of the tool.
        """
        self._check_method("returning")
        return CallMono(self._returning, "turn.returning()")

    def yielding(self) -> Flux[T_co]:
        """Run a tool that is an async generator.

        Returns:
            A Flux of its values. The tool produces each value when the reader requests it. Closing the Flux runs the
            tool's cleanup once: before `aclose()` returns or, after a bare `break`, in the next iteration of the event loop.

        Raises:
            WrongRunMethodError: The tool returns one value: use `returning()`.
            SafeExecutionError: The turn is running or queued.
        """
        self._check_method("yielding")

        own = full_turn(self)

        async def start(values: EventBuffer) -> TurnRun:
            run = own.direct_run()
            run.start(_yielded(own, run, values), values)
            return run

        # Capacity 0: the tool produces its next value when the reader requests it.
        return cast("Flux[T_co]", Flux[HookEvent](lambda: EventStream(start, 0)).map(_value_of))

    def _check_method(self, method: Literal["returning", "yielding"]) -> None:
        """Refuse the method that does not match the tool, and a turn that is running.

        Raises:
            WrongRunMethodError: The other method must be used.
            SafeExecutionError: The turn is running or queued.
        """
        if self.tool.streaming is (method == "returning"):
            kind = "an async generator" if self.tool.streaming else "a coroutine function"
            right = "yielding" if self.tool.streaming else "returning"
            raise WrongRunMethodError(
                f"Turn.{method}() on tool {self.tool.name!r}, which is {kind}. Use {right}(); nothing was run."
            )
        self._check_free()

    def _check_free(self) -> None:
        """Refuse to run a turn that is running or queued.

        Raises:
            SafeExecutionError: It is running or queued.
        """
        self._check_idle("it cannot run twice at the same time")
        if self.queued:
            raise SafeExecutionError(
                f"Turn {self.id!r} of tool {self.tool.name!r} waits in the queue of agent {self.queued!r}, which will run it. "
                "To run it directly, remove it first with agent.queue.remove(turn), or run turn.copy()."
            )

    async def _returning(self) -> T_co:
        own = full_turn(self)
        run = own.direct_run()
        run.start(run_turn(own, run, None))
        return await run.scope.result()

    def copy(self) -> Turn[T_co]:
        """Return a turn with the same tool, arguments, options and hooks that has not run."""
        # Without `__init__`: the arguments and options have been checked already.
        copy = cast("Turn[T_co]", object.__new__(type(self)))
        copy.__dict__.update(self.__dict__)
        copy.__dict__.update(
            id=new_id("turn_"),
            metadata=dict(self.metadata),
            _scope=self._scope.copy(),
            _running=False,
            _queued="",
            start_time=None,
            end_time=None,
            stop_reason=None,
            _output=None,
        )
        return copy

    def to_dict(self) -> dict[str, Any]:
        """Return the turn as JSON-compatible data, with its tool and hooks as names and without its `deps`.

        A turn that is saved while it runs is restored as one that has not run.

        Raises:
            UsageError: The tool or a hook is a closure; metadata or approval have no JSON form.

        Example:
            >>> Turn(add, {"a": 1, "b": 2}).to_dict()["tool"]
            'add'
        """
        label = f"turn {self.id!r}"
        named_function(f"Tool {self.tool.name!r} of {label}", self.tool.function)
        try:
            output = as_data("", self.output)
        except UsageError:  # the output is not data; after loading, the turn can run again to produce it
            output = None
        data: _TurnData = {
            "format": "agentflow.turn",
            "version": CODEC_VERSION,
            "id": self.id,
            "tool": self.tool.name,
            "arguments": to_jsonable_python(self.arguments),
            "timeout": self.timeout,
            "tags": sorted(self.tags),
            "metadata": as_data(f"The metadata of {label}", self.metadata),
            "approval": None if self.approval is None else verdict_to_dict(self.approval, f"The approval of {label}"),
            "hooks": hook_names(self.hooks, label),
            "sender": self.sender,
            "sender_run": self.sender_run,
            "start_time": None if self.running else self.start_time,
            "end_time": self.end_time,
            "stop_reason": self.stop_reason,
            "output": output,
        }
        return dict(data)  # pyright does not accept a `TypedDict` as `dict[str, Any]`

    @staticmethod
    def from_dict(
        data: Mapping[str, Any],
        *,
        tools: ToolRegistry | Iterable[Tool[..., Any]] | None = None,
        hooks: Iterable[Hook] = (),
    ) -> Turn[Any]:
        """Restore a turn from the data of `to_dict`.

        Args:
            data: The data that `to_dict` returned.
            tools: The registry or tools in which its tool is looked up; the default registry by default.
            hooks: The hooks that it names.

        Raises:
            StoreError: The data is not a turn, or was saved by a newer agentflow.
            NotRegisteredError: Its tool or a hook is not found.
        """
        return turn_from_dict(data, Finder(tools, hooks))

    def to_json(self) -> str:
        """Return `to_dict` as JSON text."""
        return to_json(self.to_dict()).decode()

    @staticmethod
    def from_json(
        text: str | bytes,
        *,
        tools: ToolRegistry | Iterable[Tool[..., Any]] | None = None,
        hooks: Iterable[Hook] = (),
    ) -> Turn[Any]:
        """Restore a turn from JSON text; see `from_dict`."""
        return Turn.from_dict(read_json(text, "turn"), tools=tools, hooks=hooks)


@objects_of(Turn)
class FullTurn(Turn[T_co], FullBoundTool):
    """The interface of a turn for its queue."""

    def direct_run(self) -> TurnRun:
        """Return a run for a turn outside a queue.

        Raises:
            SafeExecutionError: It is running or queued.
        """
        self._check_free()
        view = FrozenAgentView("", "", (self.tool.spec,), "")
        config = LoopConfig(
            view, "", None, _NO_TOOLS, (), (), _OPTIONS, 1, ToolSchedule.BY_TYPE, _CLOCK, new_id, process=self.process
        )
        return make_run(self, config, FullHookSet(), self.deps, "", current_turn.get())


async def _yielded(turn: FullTurn[Any], run: TurnRun, values: EventBuffer) -> None:
    await run_turn(turn, run, values)
    await run.hand_out(values)


def full_turn(turn: Turn[V]) -> FullTurn[V]:
    """Return the turn with the interface for its queue."""
    assert isinstance(turn, FullTurn)  # every `Turn` is a `FullTurn`
    return turn


def turn_from_dict(data: Mapping[str, Any], find: Finder) -> FullTurn[Any]:
    """See `Turn.from_dict`."""
    saved = check_form(_TurnData, data, "The saved turn", not_saved("turn"))
    restored: Turn[Any] = Turn(
        find.tool(saved["tool"]),
        saved["arguments"],
        id=saved["id"],
        timeout=saved["timeout"],
        tags=saved["tags"],
        metadata=saved["metadata"],
        approval=_resolution_in(saved["approval"]),
        hooks=find.hooks(saved["hooks"]),
    )
    turn = full_turn(restored)
    turn.restore(
        saved["sender"],
        saved["sender_run"],
        saved["start_time"],
        saved["end_time"],
        saved["stop_reason"],
        saved["output"],
    )
    return turn


def _value_of(event: HookEvent) -> object:
    assert isinstance(event, TurnValue)
    return event.value


def _finite(arguments: dict[str, Any]) -> dict[str, Any]:
    if not all_finite(arguments):
        raise ValueError("JSON has only finite numbers")
    return arguments


@closed
class _TurnData(TypedDict):
    """The saved form of a turn."""

    format: Literal["agentflow.turn"]
    version: int
    id: str
    tool: str
    arguments: Annotated[dict[str, Any], Check(_finite)]
    timeout: Annotated[float, Above(0)] | None
    tags: list[str]
    metadata: dict[str, Any]
    approval: dict[str, Any] | None
    hooks: list[str]
    sender: str
    sender_run: str
    start_time: float | None
    end_time: float | None
    stop_reason: StopReason | None
    output: Any


def _resolution_in(data: dict[str, Any] | None) -> Resolution | None:
    try:
        return None if data is None else resolution_from_dict(data)
    except ValueError as error:
        raise not_saved("turn")(f"approval: {error}") from error
