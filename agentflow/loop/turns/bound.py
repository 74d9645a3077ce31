"""`BoundTool`: what a turn is while nobody runs it: a tool, its arguments, and how it last ended.

Rules:

1. While it runs nothing but `metadata` can be assigned.
2. Arguments are data, checked and frozen when they are assigned; what is not data is a dependency.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from typing import Any, Final, Literal, Never, TypeAlias, TypedDict, TypeVar, Unpack, cast

from pydantic_core import PydanticSerializationError, to_jsonable_python

from agentflow.errors import SafeExecutionError, UsageError
from agentflow.events import Event, TurnView
from agentflow.ground.finite import all_finite
from agentflow.ground.frozen import EMPTY, FrozenDict
from agentflow.ground.ids import new_id
from agentflow.hooks.hook import Hook
from agentflow.hooks.named import HookSource
from agentflow.hooks.registering import TakesHooks
from agentflow.hooks.scope import TURN_EVENTS, HookScope, ProcessHooks, process_hooks
from agentflow.messages import ToolUseBlock
from agentflow.specs import is_seconds
from agentflow.tools.tool import Tool
from agentflow.tools.tool_registry import ToolRegistry, default_tools
from agentflow.verdicts import Answer, Approve, Deny, Resolution

__all__ = ["BoundTool", "FullBoundTool", "StopReason", "TurnOptions"]

E = TypeVar("E", bound=Event)
_put = object.__setattr__
_taking = threading.Lock()
"""Held while a turn is looked at and taken: threads may try at once."""
_ASSIGNABLE: Final = ("approval", "arguments", "deps", "id", "metadata", "tags", "timeout", "tool")


StopReason: TypeAlias = Literal["completed", "timeout", "failed", "interrupted", "denied"]
"""How a turn ended."""


class TurnOptions(TypedDict, total=False):
    """The keywords of `Turn`."""

    timeout: float | None
    """Seconds for the await or the whole stream of one attempt; the tool's own by default (60), None is no limit."""
    tags: Iterable[str]
    """Labels; process-wide hooks are chosen by them."""
    hooks: HookSource
    """Hooks of this turn alone; what an agent takes as `hooks=`."""
    metadata: Mapping[str, Any]
    """Anything that is to travel with it; the only thing that may change while it runs."""
    deps: object
    """What the tool asks for by type."""
    approval: Resolution | None
    """The decision on the call: `Approve()` for a tool that needs an approval, `Answer(value)` in place of running it, and
    `Deny(reason)`, which refuses the turn of any tool."""
    tools: ToolRegistry
    """Where a tool given by name is looked up; `default_tools` by default."""
    process_hooks: ProcessHooks
    """The process-wide hooks; the default ones by default."""
    id: str
    """Its id; a fresh one by default."""


class BoundTool(TakesHooks):
    """The state of a `Turn`; see there."""

    id: str
    tool: Tool[..., Any]
    arguments: Mapping[str, Any]
    timeout: float | None
    tags: frozenset[str]
    metadata: dict[str, Any]
    deps: object
    approval: Resolution | None
    sender: str
    sender_run: str
    start_time: float | None
    end_time: float | None
    stop_reason: StopReason | None
    _output: Any
    _scope: HookScope
    _running: bool
    _queued: str

    def __init__(
        self,
        tool: Any = None,
        arguments: Mapping[str, Any] | None = None,
        /,
        *more: Never,
        **options: Unpack[TurnOptions],
    ) -> None:
        if more:
            raise UsageError(
                f"Turn({tool!r:.40}, ..., {', '.join(map(repr, more))}): options are keywords, such as timeout={more[0]!r:.40}."
            )
        unknown = options.keys() - TurnOptions.__annotations__.keys()
        if unknown:
            raise UsageError(
                f"Turn({tool!r:.40}, ...) got {', '.join(sorted(unknown))}; options are "
                f"{', '.join(TurnOptions.__annotations__)}. The tool comes first, its arguments are one mapping: "
                "Turn(tool, {'a': 1})."
            )
        found = options.get("tools", default_tools)[tool] if isinstance(tool, str) else tool
        put = self.__dict__
        put.update(_running=False, _queued="")
        put["process"] = options.get("process_hooks", process_hooks)
        self.tool = cast("Tool[..., Any]", found)
        put["_scope"] = HookScope(whose=f"a turn of {self.tool.name!r}", events=TURN_EVENTS)
        self.id = options.get("id") or new_id("turn_")
        self.arguments = arguments or {}
        self.timeout = options.get("timeout", self.tool.timeout)
        self.tags = cast("frozenset[str]", options.get("tags", ()))
        self.metadata = dict(options.get("metadata", {}))
        self.deps = options.get("deps")
        self.approval = options.get("approval")
        put.update(sender="", sender_run="", start_time=None, end_time=None, stop_reason=None, _output=None)
        self._scope.hook(options.get("hooks", ()))

    def __setattr__(self, name: str, value: object) -> None:
        if name == "metadata":
            _put(self, name, dict(cast("Mapping[str, Any]", value)))
            return
        if self._running:
            raise SafeExecutionError(
                f"Turn {self.id!r} of tool {self.tool.name!r} is running, so {name} cannot be assigned; wait for its end. "
                "Only metadata may change meanwhile."
            )
        if name not in _ASSIGNABLE:
            state = "is read-only" if hasattr(self, name) else "is no attribute of a turn"
            raise AttributeError(f"turn.{name} {state}; assigned can be {', '.join(_ASSIGNABLE)}.", name=name, obj=self)
        if name == "tool":
            _check_tool(value)
        elif name == "arguments":
            value = _as_data(self.tool.name, cast("Mapping[str, Any]", value))
        elif name == "timeout":
            _check_timeout(self.tool.name, value)
        elif name == "approval":
            _check_approval(self.tool.name, value)
        elif name == "tags":
            value = frozenset((value,) if isinstance(value, str) else cast("Iterable[str]", value))
        _put(self, name, value)

    @property
    def output(self) -> Any:
        """What the tool returned; of a stream the last value."""
        return self._output

    @property
    def duration_ms(self) -> float | None:
        """How long it took when it last ran, in milliseconds, a stream's reader included; None: never, or it runs."""
        if self.start_time is None or self.end_time is None:
            return None
        return (self.end_time - self.start_time) * 1000

    @property
    def running(self) -> bool:
        """Whether it runs now."""
        return self._running

    @property
    def queued(self) -> str:
        """The agent whose queue it waits in; empty where it does not."""
        return self._queued

    @property
    def hooks(self) -> tuple[Hook, ...]:
        """The hooks of this turn alone."""
        return self._scope.hooks

    def _registered(self) -> tuple[Hook, ...]:
        return self._scope.hooks

    def _add(self, hooks: tuple[Hook, ...]) -> None:
        self._check_idle("a hook cannot be registered on it")
        self._scope.hook(hooks)

    def _take_off(self, hooks: tuple[Hook, ...]) -> bool:
        return self._scope.remove(hooks)

    def _check_idle(self, what: str) -> None:
        """Refuse while it runs.

        Raises:
            SafeExecutionError: It does.
        """
        if self._running:
            raise SafeExecutionError(
                f"Turn {self.id!r} of tool {self.tool.name!r} is running: {what}. Wait for its end, or make another turn."
            )

    def __repr__(self) -> str:
        state = "running" if self._running else self.stop_reason or "not run"
        return f"Turn({self.tool.name!r}, {dict(self.arguments)!r:.60}, {state})"


class FullBoundTool(BoundTool):
    """A turn as what runs it, or has it in a queue, sees it."""

    process: ProcessHooks

    @property
    def view(self) -> TurnView:
        """What hooks may know of it."""
        use = ToolUseBlock(self.id, self.tool.name, self.arguments)
        return TurnView(
            id=self.id,
            tool_use=use,
            timeout=self.timeout,
            stop_reason=self.stop_reason,
            tags=self.tags,
            sender=self.sender,
            sender_run=self.sender_run,
            output=self._output,
            start_time=self.start_time,
            end_time=self.end_time,
            duration_ms=self.duration_ms,
            metadata=FrozenDict(self.metadata) if self.metadata else EMPTY,
        )

    def check_unqueued(self) -> None:
        """Refuse to put into a queue what runs, or is in one already.

        Raises:
            SafeExecutionError: It does.
        """
        which = f"Turn {self.id!r} of tool {self.tool.name!r}"
        if self._running:
            raise SafeExecutionError(f"{which} is running and cannot be queued meanwhile.")
        if self._queued:
            raise SafeExecutionError(
                f"{which} is in the queue of agent {self._queued!r} already; put turn.copy() to run it twice."
            )

    def enter(self, agent: str) -> None:
        """It is in an agent's queue from here.

        Raises:
            SafeExecutionError: It runs, or is in a queue already.
        """
        with _taking:
            self.check_unqueued()
            self.__dict__["_queued"] = agent

    def leave(self) -> None:
        """It is in no queue any more."""
        self.__dict__["_queued"] = ""

    def send_by(self, agent: str, run_id: str) -> None:
        """Note who sent it."""
        self._check_idle("it cannot be sent")
        self.__dict__.update(sender=agent, sender_run=run_id)

    def begin(self, now: float) -> None:
        """It runs from here.

        Raises:
            SafeExecutionError: It does already.
        """
        with _taking:
            self._check_idle("it cannot be run a second time meanwhile")
            self.__dict__.update(_running=True, start_time=now, end_time=None, stop_reason=None, _output=None)

    def finish(self, reason: StopReason, now: float, output: object) -> None:
        """It is over; hooks of `PostTurn` are told, and then it is not running any more."""
        self.__dict__.update(stop_reason=reason, end_time=now, _output=output)

    def rest(self) -> None:
        """It is not running any more."""
        self.__dict__["_running"] = False

    def restore(
        self,
        sender: str,
        sender_run: str,
        start_time: float | None,
        end_time: float | None,
        stop_reason: StopReason | None,
        output: object,
    ) -> None:
        """Take on what was saved of a turn."""
        self.__dict__.update(
            sender=sender,
            sender_run=sender_run,
            start_time=start_time,
            end_time=end_time,
            stop_reason=stop_reason,
            _output=output,
        )


def _check_tool(tool: object) -> None:
    if isinstance(tool, Tool):
        return
    hint = ". Of an agent, take agent.as_tool()." if callable(getattr(tool, "as_tool", None)) else "."
    raise UsageError(f"Turn(...) takes a tool or its registered name, not {type(tool).__name__} ({tool!r:.60}){hint}")


def _check_timeout(tool: str, timeout: object) -> None:
    if timeout is None or is_seconds(timeout):
        return
    raise UsageError(f"Turn of {tool!r}: timeout={timeout!r}; legal are seconds above 0, or None.")


def _check_approval(tool: str, approval: object) -> None:
    if approval is None or isinstance(approval, Approve | Deny | Answer):
        return
    raise UsageError(
        f"The approval of a turn of {tool!r} is {approval!r:.60}; legal are Approve(), Approve(input=...), Deny(reason), "
        "Answer(value), and None: nobody has decided."
    )


def _as_data(tool: str, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    if not isinstance(arguments, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance] - input from outside
        raise UsageError(
            f"Turn of {tool!r}: the arguments are a mapping by name, not {type(arguments).__name__}: Turn(tool, {{'a': 1}})."
        )
    plain: dict[str, Any] = {}
    for name, value in arguments.items():
        try:
            plain[name] = to_jsonable_python(value)
        except (PydanticSerializationError, UnicodeDecodeError) as error:  # bytes travel as text
            raise UsageError(
                f"Turn of {tool!r}: argument {name!r} is {type(value).__name__}, which is no data ({error}). Live objects "
                "are dependencies: annotate the parameter with their class and pass Turn(..., deps=...)."
            ) from error
        if not all_finite(plain[name]):
            raise UsageError(
                f"Turn of {tool!r}: argument {name!r} is {value!r:.60}; JSON, in which arguments travel, knows finite numbers "
                "only. Leave it out, or let None or a text stand for it."
            )
    return FrozenDict(plain)
