"""`BoundTool`: the tool of a turn, its arguments, and how its last run ended.

Rules:

1. While a turn runs, only its `metadata` can be assigned.
2. Arguments are data, checked and frozen when they are assigned. Other objects are dependencies.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from typing import Any, Final, Literal, Never, TypeAlias, TypedDict, Unpack, cast

from pydantic_core import PydanticSerializationError, to_jsonable_python

from agentflow._support.frozen import EMPTY, FrozenDict
from agentflow._support.ids import new_id
from agentflow._support.json_text import all_finite
from agentflow._support.validation import is_a
from agentflow.errors import SafeExecutionError, UsageError
from agentflow.hooks.hook import Hook
from agentflow.hooks.named import HookSource
from agentflow.hooks.registering import TakesHooks
from agentflow.hooks.scope import TURN_EVENTS, HookScope, ProcessHooks, process_hooks
from agentflow.tools.tool import Tool
from agentflow.tools.tool_registry import ToolRegistry, default_tools
from agentflow.vocabulary.events import TurnView
from agentflow.vocabulary.messages import ToolUseBlock
from agentflow.vocabulary.specs import is_seconds
from agentflow.vocabulary.verdicts import Answer, Approve, Deny, Resolution

__all__ = ["BoundTool", "FullBoundTool", "StopReason", "TurnOptions"]

_put = object.__setattr__
_marking = threading.Lock()
"""Held while a turn is checked and marked as running or queued, since several threads may try this at the same time."""
_ASSIGNABLE: Final = ("approval", "arguments", "deps", "id", "metadata", "tags", "timeout", "tool")


StopReason: TypeAlias = Literal["completed", "timeout", "failed", "interrupted", "denied"]
"""How a turn ended."""


class TurnOptions(TypedDict, total=False):
    """The keyword arguments of `Turn`."""

    timeout: float | None
    """The time limit of one attempt (the await, or the whole stream) in seconds; None: no limit. The default is the
    tool's limit, which is 60 unless the tool sets another."""
    tags: Iterable[str]
    """Labels that select the process-wide hooks for the turn."""
    hooks: HookSource
    """Hooks of this turn only, as for an agent's `hooks=`."""
    metadata: Mapping[str, Any]
    """Any data to keep with the turn; can be assigned even while the turn runs."""
    deps: object
    """The dependencies that the tool requests by type."""
    approval: Resolution | None
    """The decision on the call: `Approve()` for a tool that needs approval, `Answer(value)` instead of running it,
    or `Deny(reason)` to refuse it."""
    tools: ToolRegistry
    """The registry in which a tool name is looked up; `default_tools` by default."""
    process_hooks: ProcessHooks
    """The process-wide hooks; `agentflow.process_hooks` by default."""
    id: str
    """The turn's id; a new one by default."""


class BoundTool(TakesHooks):
    """The state of a turn; see `Turn`."""

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
                f"Turn({tool!r:.40}, ..., {', '.join(map(repr, more))}): options must be "
                f"keyword arguments, such as timeout={more[0]!r:.40}."
            )
        unknown = options.keys() - TurnOptions.__annotations__.keys()
        if unknown:
            raise UsageError(
                f"Turn({tool!r:.40}, ...) got {', '.join(sorted(unknown))}; the options are "
                f"{', '.join(TurnOptions.__annotations__)}. Pass the tool first, then its arguments as one mapping: "
                "Turn(tool, {'a': 1})."
            )
        found = options.get("tools", default_tools)[tool] if isinstance(tool, str) else tool
        # Set without `__setattr__`, which reads these two values itself.
        put = self.__dict__
        put.update(_running=False, _queued="")
        put["process"] = options.get("process_hooks", process_hooks)
        # First, since the errors about other attributes contain the tool's name.
        self.tool = cast("Tool[..., Any]", found)
        put["_scope"] = HookScope(owner=f"a turn of {self.tool.name!r}", events=TURN_EVENTS)
        self.id = options.get("id") or new_id("turn_")
        self.arguments = arguments or {}
        self.timeout = options.get("timeout", self.tool.timeout)
        self.tags = cast("frozenset[str]", options.get("tags", ()))
        self.metadata = dict(options.get("metadata", {}))
        self.deps = options.get("deps")
        self.approval = options.get("approval")
        # Set without `__setattr__`, which refuses attributes that only the runner changes.
        put.update(sender="", sender_run="", start_time=None, end_time=None, stop_reason=None, _output=None)
        self._scope.hook(options.get("hooks", ()))

    def __setattr__(self, name: str, value: object) -> None:
        # First, since metadata may change while the turn runs.
        if name == "metadata":
            _put(self, name, dict(cast("Mapping[str, Any]", value)))
            return
        if self._running:
            raise SafeExecutionError(
                f"Turn {self.id!r} of tool {self.tool.name!r} is running, so {name} cannot be assigned. Wait for its end; "
                "only metadata may change while it runs."
            )
        if name not in _ASSIGNABLE:
            state = "is read-only" if hasattr(self, name) else "is not an attribute of a turn"
            raise AttributeError(
                f"turn.{name} {state}; the attributes that can be assigned are {', '.join(_ASSIGNABLE)}.",
                name=name,
                obj=self,
            )
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
        """The tool's return value, or the last value of a stream."""
        return self._output

    @property
    def duration_ms(self) -> float | None:
        """The duration of the last run in milliseconds, including the time of a stream's reader; None if the turn has not
        run, or is running."""
        if self.start_time is None or self.end_time is None:
            return None
        return (self.end_time - self.start_time) * 1000

    @property
    def running(self) -> bool:
        """Whether the turn is running."""
        return self._running

    @property
    def queued(self) -> str:
        """The name of the agent if the turn waits in an agent's queue, otherwise ""."""
        return self._queued

    @property
    def hooks(self) -> tuple[Hook, ...]:
        """The hooks of this turn only."""
        return self._scope.hooks

    def _registered(self) -> tuple[Hook, ...]:
        return self._scope.hooks

    def _add(self, hooks: tuple[Hook, ...]) -> None:
        self._check_idle("a hook cannot be registered on it")
        self._scope.hook(hooks)

    def _unregister(self, hooks: tuple[Hook, ...]) -> bool:
        return self._scope.remove(hooks)

    def _check_idle(self, what: str) -> None:
        """Refuse an operation while the turn is running.

        Args:
            what: The consequence, for the error.

        Raises:
            SafeExecutionError: The turn is running.
        """
        if self._running:
            raise SafeExecutionError(
                f"Turn {self.id!r} of tool {self.tool.name!r} is running: {what}. Wait for its end, or create another turn."
            )

    def __repr__(self) -> str:
        state = "running" if self._running else self.stop_reason or "not run"
        return f"Turn({self.tool.name!r}, {dict(self.arguments)!r:.60}, {state})"


class FullBoundTool(BoundTool):
    """The interface of a turn for its runner and its queue."""

    process: ProcessHooks

    @property
    def view(self) -> TurnView:
        """The view of the turn that hooks receive."""
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
        """Refuse to queue a turn that is running or in a queue already.

        Raises:
            SafeExecutionError: It is running or queued.
        """
        which = f"Turn {self.id!r} of tool {self.tool.name!r}"
        if self._running:
            raise SafeExecutionError(f"{which} is running and cannot be queued until it has ended.")
        if self._queued:
            raise SafeExecutionError(
                f"{which} is in the queue of agent {self._queued!r} already. To run it twice, put turn.copy()."
            )

    def enter(self, agent: str) -> None:
        """Mark the turn as queued.

        Args:
            agent: The name of the agent.

        Raises:
            SafeExecutionError: The turn is running or queued.
        """
        with _marking:
            self.check_unqueued()
            self.__dict__["_queued"] = agent

    def leave(self) -> None:
        """Mark the turn as not queued."""
        self.__dict__["_queued"] = ""

    def send_by(self, agent: str, run_id: str) -> None:
        """Record the turn's sender."""
        self._check_idle("it cannot be sent")
        self.__dict__.update(sender=agent, sender_run=run_id)

    def begin(self, now: float) -> None:
        """Mark the turn as running, and reset the results of its last run.

        Raises:
            SafeExecutionError: The turn is running already.
        """
        with _marking:
            self._check_idle("it cannot run twice at the same time")
            self.__dict__.update(_running=True, start_time=now, end_time=None, stop_reason=None, _output=None)

    def finish(self, reason: StopReason, now: float, output: object) -> None:
        """Record how the run ended. The turn counts as running until the hooks of `PostTurn` have run."""
        self.__dict__.update(stop_reason=reason, end_time=now, _output=output)

    def rest(self) -> None:
        """Mark the turn as not running."""
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
        """Restore the state of a saved turn."""
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
    hint = ". For an agent, pass agent.as_tool()." if callable(getattr(tool, "as_tool", None)) else "."
    raise UsageError(f"Turn(...) takes a tool or its registered name, not {type(tool).__name__} ({tool!r:.60}){hint}")


def _check_timeout(tool: str, timeout: object) -> None:
    if timeout is None or is_seconds(timeout):
        return
    raise UsageError(f"Turn of {tool!r}: timeout={timeout!r} is invalid; use a number of seconds above 0, or None.")


def _check_approval(tool: str, approval: object) -> None:
    if approval is None or isinstance(approval, Approve | Deny | Answer):
        return
    raise UsageError(
        f"The approval of a turn of {tool!r} is {approval!r:.60}, but must be Approve(), Approve(input=...), Deny(reason), "
        "Answer(value), or None (no decision)."
    )


def _as_data(tool: str, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    if not is_a(arguments, Mapping):
        raise UsageError(
            f"Turn of {tool!r}: the arguments must be a mapping by name, not {type(arguments).__name__}. Write "
            "Turn(tool, {'a': 1})."
        )
    plain: dict[str, Any] = {}
    for name, value in arguments.items():
        try:
            plain[name] = to_jsonable_python(value)
        except (PydanticSerializationError, UnicodeDecodeError) as error:  # the latter for bytes that are not UTF-8
            raise UsageError(
                f"Turn of {tool!r}: argument {name!r} is {type(value).__name__}, which has no JSON form ({error}). Pass "
                "other objects as dependencies: annotate the parameter with their class and pass Turn(..., deps=...)."
            ) from error
        if not all_finite(plain[name]):
            raise UsageError(
                f"Turn of {tool!r}: argument {name!r} is {value!r:.60}, but JSON has only finite numbers. "
                "Remove it, or pass None or a text instead."
            )
    return FrozenDict(plain)
