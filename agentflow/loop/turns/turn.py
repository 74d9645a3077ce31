"""`Turn`: a tool bound to arguments, run by hand or by an agent's queue, and saved as data.

Rules:

1. A turn runs once at a time; when it is over it may run again.
2. The method that is not the tool's is refused before anything runs.
3. As data, its tool and hooks are names; what a name does not carry is refused when it is saved.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Coroutine, Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Final, Generic, Literal, TypeVar, Unpack, cast, overload

from pydantic_core import to_json, to_jsonable_python
from typing_extensions import TypedDict

from agentflow.errors import SafeExecutionError, UsageError, WrongRunMethodError
from agentflow.events import HookEvent, TurnValue
from agentflow.ground.facade import objects_of
from agentflow.ground.finite import all_finite
from agentflow.ground.ids import new_id
from agentflow.ground.validation import Above, Checked, closed
from agentflow.hooks.hook import Hook
from agentflow.hooks.hook_set import FullHookSet
from agentflow.loop.config import LoopConfig
from agentflow.loop.run import current_turn
from agentflow.loop.schedule import ToolSchedule
from agentflow.loop.stream import EventBuffer, EventStream
from agentflow.loop.turns.bound import BoundTool, FullBoundTool, StopReason, TurnOptions
from agentflow.loop.turns.code_names import Finder, hook_names, named_function
from agentflow.loop.turns.turn_run import TurnRun, make_run, run_turn
from agentflow.loop.view import View
from agentflow.ports.clock import SystemClock
from agentflow.reactive import CallMono, Flux
from agentflow.saving.codec import CODEC_VERSION, resolution_from_dict, verdict_to_dict
from agentflow.saving.forms import check_form, not_saved
from agentflow.saving.plain import as_data, read_json
from agentflow.specs import Clock, ModelOptions
from agentflow.tools.tool import FullTool, Tool
from agentflow.tools.tool_registry import ToolRegistry
from agentflow.verdicts import Resolution

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
        arguments: By name. They are data, as a model would send them (pydantic models, dates and enums are turned into
            it); what is not data, such as a connection, goes into `deps`.
        options: See `TurnOptions`.

    Attributes:
        id: Its id.
        tool: The tool.
        arguments: The arguments, frozen.
        timeout: Seconds that one attempt may take.
        tags: Its labels.
        metadata: Free data; may change at any time.
        deps: What the tool asks for by type.
        approval: The decision on the call; see `TurnOptions`. It stays: run again, it counts again.
        sender: The agent that sent it, and the run it was sent from.
        start_time: When it last began, in seconds since the epoch; None: never.
        end_time: When it last ended; None: never, or it runs.
        stop_reason: How it last ended; None: never, or it runs.
        output: What the tool returned; of a stream the last value.

    Raises:
        UsageError: No such tool, arguments that are no data, an option that cannot hold.

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
            """What the tool returned; of a stream the last value."""

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
            A Mono of the value: await it. Each await is a run of its own.

        Raises:
            WrongRunMethodError: The tool is an async generator: use `yielding()`.
            SafeExecutionError: The turn is running, or waits in a queue.
            TurnTimeoutError: It passed its time limit, and was cancelled.
            TurnDeniedError: A hook refused it, or it needs an approval.
            Exception: What the tool raised.
        """
        self._check_method("returning")
        return CallMono(self._returning, "turn.returning()")

    def yielding(self) -> Flux[T_co]:
        """Run a tool that is an async generator.

        Returns:
            A Flux of its values. The tool makes one when the reader asks for it; closing the Flux runs the tool's
            cleanup, once, before `aclose()` returns (after a bare `break`: at the next turn of the event loop).

        Raises:
            WrongRunMethodError: The tool returns one value: use `returning()`.
            SafeExecutionError: The turn is running, or waits in a queue.
        """
        self._check_method("yielding")

        own = full_turn(self)

        async def start(values: EventBuffer) -> TurnRun:
            run = own.by_hand()
            run.start(_yielded(own, run, values), values)
            return run

        # Turn by turn: the tool makes its next value when the reader asks for it.
        return cast("Flux[T_co]", Flux[HookEvent](lambda: EventStream(start, 0)).map(_value_of))

    def _check_method(self, method: Literal["returning", "yielding"]) -> None:
        """Refuse the method that is not the tool's, and a turn that is running.

        Raises:
            WrongRunMethodError: The other one is.
            SafeExecutionError: The turn is running, or waits in a queue.
        """
        if self.tool.streaming is (method == "returning"):
            kind = "an async generator" if self.tool.streaming else "a coroutine function"
            right = "yielding" if self.tool.streaming else "returning"
            raise WrongRunMethodError(
                f"Turn.{method}() on tool {self.tool.name!r}, which is {kind}; nothing was run. Use {right}()."
            )
        self._check_free()

    def _check_free(self) -> None:
        """Refuse to run by hand what is running, or what a queue will run.

        Raises:
            SafeExecutionError: It is that.
        """
        self._check_idle("it cannot be run a second time meanwhile")
        if self.queued:
            raise SafeExecutionError(
                f"Turn {self.id!r} of tool {self.tool.name!r} waits in the queue of agent {self.queued!r}, which will run it. "
                "To run it by hand, take it out first, with agent.queue.remove(turn), or run turn.copy()."
            )

    async def _returning(self) -> T_co:
        own = full_turn(self)
        run = own.by_hand()
        run.start(run_turn(own, run, None))
        return await run.scope.result()

    def copy(self) -> Turn[T_co]:
        """Another turn of the same tool, arguments, options and hooks, that has not run."""
        made = cast("Turn[T_co]", object.__new__(type(self)))
        made.__dict__.update(self.__dict__)
        made.__dict__.update(
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
        return made

    def to_dict(self) -> dict[str, Any]:
        """The turn as JSON-compatible data; its tool and hooks by name, its `deps` not at all.

        Saved while it runs, it is restored as one that has not run.

        Raises:
            UsageError: The tool or a hook is a closure; metadata or approval is no data.

        Example:
            >>> Turn(add, {"a": 1, "b": 2}).to_dict()["tool"]
            'add'
        """
        whose = f"turn {self.id!r}"
        named_function(f"Tool {self.tool.name!r} of {whose}", self.tool.function)
        try:
            output = as_data("", self.output)
        except UsageError:  # a live object: whoever loads the turn can run it again
            output = None
        data: _TurnData = {
            "format": "agentflow.turn",
            "version": CODEC_VERSION,
            "id": self.id,
            "tool": self.tool.name,
            "arguments": to_jsonable_python(self.arguments),
            "timeout": self.timeout,
            "tags": sorted(self.tags),
            "metadata": as_data(f"The metadata of {whose}", self.metadata),
            "approval": None if self.approval is None else verdict_to_dict(self.approval, f"The approval of {whose}"),
            "hooks": hook_names(self.hooks, whose),
            "sender": self.sender,
            "sender_run": self.sender_run,
            "start_time": None if self.running else self.start_time,
            "end_time": self.end_time,
            "stop_reason": self.stop_reason,
            "output": output,
        }
        return dict(data)

    @staticmethod
    def from_dict(
        data: Mapping[str, Any],
        *,
        tools: ToolRegistry | Iterable[Tool[..., Any]] | None = None,
        hooks: Iterable[Hook] = (),
    ) -> Turn[Any]:
        """Make the turn again that `to_dict` has saved.

        Args:
            data: The data.
            tools: Where its tool is found by name: a registry, or tools; the default registry by default.
            hooks: The hooks that are named in it.

        Raises:
            StoreError: The data is no turn, or newer than this code.
            NotRegisteredError: Its tool or a hook is not found.
        """
        return turn_from_dict(data, Finder(tools, hooks))

    def to_json(self) -> str:
        """`to_dict` as JSON text."""
        return to_json(self.to_dict()).decode()

    @staticmethod
    def from_json(
        text: str | bytes,
        *,
        tools: ToolRegistry | Iterable[Tool[..., Any]] | None = None,
        hooks: Iterable[Hook] = (),
    ) -> Turn[Any]:
        """`from_dict` of JSON text."""
        return Turn.from_dict(read_json(text, "turn"), tools=tools, hooks=hooks)


@objects_of(Turn)
class FullTurn(Turn[T_co], FullBoundTool):
    """A turn as its queue sees it."""

    def by_hand(self) -> TurnRun:
        """What runs it where no queue does.

        Raises:
            SafeExecutionError: It is running, or waits in a queue.
        """
        self._check_free()
        view = View("", "", (self.tool.spec,), "")
        config = LoopConfig(
            view, "", None, _NO_TOOLS, (), (), _OPTIONS, 1, ToolSchedule.BY_TYPE, _CLOCK, new_id, process=self.process
        )
        return make_run(self, config, FullHookSet(), self.deps, "", current_turn.get())


async def _yielded(turn: FullTurn[Any], run: TurnRun, values: EventBuffer) -> None:
    await run_turn(turn, run, values)
    await run.hand_out(values)


def full_turn(turn: Turn[V]) -> FullTurn[V]:
    """The turn as its queue sees it."""
    assert isinstance(turn, FullTurn)  # each is made as one
    return turn


def turn_from_dict(data: Mapping[str, Any], find: Finder) -> FullTurn[Any]:
    """See `Turn.from_dict`."""
    saved = check_form(_TurnData, data, "The saved turn", not_saved("turn"))
    made: Turn[Any] = Turn(
        find.tool(saved["tool"]),
        saved["arguments"],
        id=saved["id"],
        timeout=saved["timeout"],
        tags=saved["tags"],
        metadata=saved["metadata"],
        approval=_resolution_in(saved["approval"]),
        hooks=find.hooks(saved["hooks"]),
    )
    turn = full_turn(made)
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
        raise ValueError("JSON knows finite numbers only")
    return arguments


@closed
class _TurnData(TypedDict):
    """A turn."""

    format: Literal["agentflow.turn"]
    version: int
    id: str
    tool: str
    arguments: Annotated[dict[str, Any], Checked(_finite)]
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
