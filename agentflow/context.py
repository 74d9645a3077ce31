"""`RunContext`: what hooks and tools may ask of the call they run in; `AgentView`: what they may know of the agent.

The context belongs to one call. What it does to the run goes through `CallPort`, which the loop implements.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, Final, NamedTuple, Protocol, TypeVar, cast

from pydantic import PydanticUserError, TypeAdapter

from agentflow.errors import StoreError, UsageError
from agentflow.facts import Fact, ModelRecord, TurnRecord, model_calls_of, turns_of
from agentflow.frozen import EMPTY
from agentflow.ids import new_id as fresh_id
from agentflow.messages import Msg
from agentflow.specs import Clock, ModelOptions, ToolSpec, Usage

__all__ = ["AgentView", "CallPort", "RunContext", "Shadow", "StateMap", "Trace"]

T = TypeVar("T")
NO_OPTIONS: Final = ModelOptions()


class AgentView(Protocol):
    """What a hook may know of an agent."""

    @property
    def name(self) -> str:
        """The agent's name."""
        ...

    @property
    def description(self) -> str:
        """What it is for."""
        ...

    @property
    def tools(self) -> tuple[ToolSpec, ...]:
        """Its tools, as a model sees them."""
        ...

    @property
    def model_name(self) -> str:
        """The name of its model."""
        ...


class CallPort(Protocol):
    """What a context asks of the loop."""

    @property
    def usage(self) -> Usage:
        """What the call consumed so far."""
        ...

    def facts(self) -> Sequence[Fact]:
        """The run's facts so far."""
        ...

    def inject(self, messages: tuple[Msg, ...], keep: bool, source: str) -> None:
        """Store messages at the next legal place, or lay them over the next request."""
        ...

    @property
    def history(self) -> Sequence[Msg]:
        """The stored conversation."""
        ...

    def approve(self, tool_use_id: str) -> None:
        """A person has allowed a tool call."""
        ...

    async def complete(self, messages: tuple[Msg, ...], model: Any, source: str, options: ModelOptions) -> Msg:
        """Make a side model call."""
        ...

    def compact(self, until: int, messages: tuple[Msg, ...]) -> None:
        """Replace the start of later requests."""
        ...

    def interrupt(self, reason: str) -> None:
        """End the call."""
        ...

    def legal_reply(self, msg: Msg) -> Msg:
        """The reply with tool-use ids that are unique in the conversation."""
        ...


class Shadow(NamedTuple):
    """What a hook with `shadow=True` would have done."""

    hook: str
    event: str
    seq: int
    changes: Mapping[str, Any]
    verdict: Any


class StateMap:
    """Typed state: one object per class, made on first use.

    Example:
        >>> class Counter:
        ...     n = 0
        >>> state = StateMap()
        >>> state[Counter].n += 1
        >>> state[Counter].n
        1
    """

    __slots__ = ("_objects", "_stored")

    def __init__(self) -> None:
        self._objects: dict[type, Any] = {}
        self._stored: Mapping[str, Any] = EMPTY
        """What was saved and nobody has asked for yet: JSON data by `"module:qualname"` of its class."""

    def __getitem__(self, kind: type[T]) -> T:
        found = self._objects.get(kind)
        if found is None and self._stored:
            found = self._revived(kind)
        if found is None:
            try:
                found = self._objects[kind] = kind()
            except TypeError as error:
                raise UsageError(
                    f"state[{kind.__name__}] does not exist yet and {kind.__name__}() needs arguments ({error}); put one "
                    f"there first: state[{kind.__name__}] = {kind.__name__}(...)."
                ) from error
        return found

    def __setitem__(self, kind: type[T], value: T) -> None:
        if not isinstance(value, kind):
            raise TypeError(f"state[{kind.__name__}] takes a {kind.__name__}, not {type(value).__name__}.")
        self._objects[kind] = value

    def __contains__(self, kind: type) -> bool:
        return kind in self._objects or state_name(kind) in self._stored

    def __iter__(self) -> Iterator[type]:
        return iter(self._objects)

    def __len__(self) -> int:
        return len(self._objects)

    def _revived(self, kind: type[T]) -> T | None:
        data = self._stored.get(state_name(kind))
        if data is None:
            return None
        try:
            made: T = state_adapter(kind).validate_python(data)
        except ValueError as error:
            raise StoreError(
                f"The saved state of {state_name(kind)} does not fit the class any more ({error}). Give new fields a "
                f"default, or start it afresh: state[{kind.__name__}] = {kind.__name__}(...)."
            ) from error
        self._objects[kind] = made
        return made

    def restore(self, values: Mapping[str, Any], *, replace: bool = False) -> None:
        """Take in what `saved` gave; each object is made again when it is asked for by its class.

        Args:
            values: JSON data by `"module:qualname"`.
            replace: Forget the objects that are here; else they win.
        """
        if replace:
            self._objects.clear()
        self._stored = values

    def saved(self) -> tuple[dict[str, Any], tuple[str, ...]]:
        """The state as JSON data by `"module:qualname"`, and the names of the classes that pydantic cannot write.

        Example:
            >>> from dataclasses import dataclass
            >>> @dataclass
            ... class Cart:
            ...     items: int = 0
            >>> state = StateMap()
            >>> state[Cart].items = 2
            >>> list(state.saved()[0].values())
            [{'items': 2}]
        """
        found = dict(self._stored)
        refused: list[str] = []
        for kind, value in self._objects.items():
            name = state_name(kind)
            try:
                found[name] = state_adapter(kind).dump_python(value, mode="json")
            except (PydanticUserError, ValueError, TypeError):
                found.pop(name, None)
                refused.append(name)
        return found, tuple(refused)


def state_name(kind: type) -> str:
    """The name under which the state of a class is saved."""
    return f"{kind.__module__}:{kind.__qualname__}"


@cache
def state_adapter(kind: type) -> TypeAdapter[Any]:
    """What writes and reads the objects of a class."""
    return TypeAdapter(kind)


class Trace:
    """What happened in the run so far, read from its facts.

    Attributes:
        turns: The tool calls that ended: name, arguments, status, result, duration in milliseconds.
        model_calls: The model calls that ended: iteration, usage, duration in milliseconds.
    """

    __slots__ = ("_facts",)

    def __init__(self, facts: Callable[[], Sequence[Fact]]) -> None:
        self._facts = facts

    @property
    def turns(self) -> tuple[TurnRecord, ...]:
        """The tool calls that ended, in the order in which they did."""
        return turns_of(self._facts())

    @property
    def model_calls(self) -> tuple[ModelRecord, ...]:
        """The model calls that ended."""
        return model_calls_of(self._facts())


class RunContext:
    """The call that a hook or a tool runs in.

    Attributes:
        run_id: The run (a call and its resumes).
        call_id: The call.
        session_id: The session.
        source: The path of sub-agent names; empty at the top.
        agent: What may be known of the agent.
        clock: Time of the run, virtual in tests.
        new_id: Ids of the run, repeatable in replays.
        session_state: Typed state, kept with the session.
    """

    __slots__ = (
        "_deps",
        "_port",
        "_shadows",
        "_state",
        "agent",
        "call_id",
        "clock",
        "new_id",
        "run_id",
        "session_id",
        "session_state",
        "source",
    )

    def __init__(
        self,
        port: CallPort,
        run_id: str,
        call_id: str,
        session_id: str,
        source: str,
        agent: AgentView,
        clock: Clock,
        new_id: Callable[[str], str],
        deps: object,
        session_state: StateMap,
        state: StateMap | None = None,
    ) -> None:
        self._port = port
        self.run_id = run_id
        self.call_id = call_id
        self.session_id = session_id
        self.source = source
        self.agent = agent
        self.clock = clock
        self.new_id = new_id
        self._deps = deps
        self.session_state = session_state
        self._state = state
        self._shadows: list[Shadow] | None = None

    @property
    def usage(self) -> Usage:
        """What the call consumed so far, sub-agents and side calls included."""
        return self._port.usage

    @property
    def state(self) -> StateMap:
        """Typed state of this run: `context.state[MyState]`."""
        if self._state is None:
            self._state = StateMap()
        return self._state

    @property
    def shadows(self) -> list[Shadow]:
        """What hooks with `shadow=True` would have done in this call."""
        if self._shadows is None:
            self._shadows = []
        return self._shadows

    @property
    def trace(self) -> Trace:
        """What happened in the run so far."""
        return Trace(self._port.facts)

    def deps(self, kind: type[T]) -> T:
        """Return what the caller passed as `deps=` for this type.

        Raises:
            UsageError: Nothing of that type was passed.
        """
        return find_dep(self._deps, kind)

    def inject(self, *messages: Msg | str, keep: bool = True, source: str = "hook") -> None:
        """Add messages to the conversation, at the first legal place from here.

        Args:
            messages: User messages (a plain text is one) or assistant messages without tool calls.
            keep: Store them; False: they are part of the next request only.
            source: Noted on each as `metadata["synthetic"]`.
        """
        self._port.inject(as_messages(messages, self.new_id), keep, source)

    def approve(self, tool_use_id: str) -> None:
        """Say that a person has allowed a tool call: a tool with `requires_approval` then runs without suspending.

        Hooks of `PreActing` that ask somebody call it; the hooks behind them judge the call all the same.

        Args:
            tool_use_id: The call, `event.tool_use.id`.
        """
        self._port.approve(tool_use_id)

    @property
    def history(self) -> Sequence[Msg]:
        """The stored conversation as of now; read-only, and taking it costs the same however long it is."""
        return self._port.history

    async def complete(
        self,
        messages: str | Msg | Sequence[Msg],
        *,
        model: Any = None,
        source: str = "side",
        options: ModelOptions = NO_OPTIONS,
    ) -> Msg:
        """Ask a model on the side: no tools, no events, nothing stored; the cost is added to this run.

        Args:
            messages: What to ask.
            model: A model or its name; the agent's own by default.
            source: What the call is for; noted on the returned message (`name`, and `metadata["side"]`).
            options: Its options; the agent's own are for its answers, and are not taken over.

        Raises:
            ModelError: The model failed.
        """
        return await self._port.complete(as_messages(messages, self.new_id), model, source, options)

    def compact(self, until: int, messages: str | Msg | Sequence[Msg]) -> None:
        """Let later requests start with `messages` in place of the first `until` messages; history keeps the originals.

        Args:
            until: How many messages of the history are replaced; must not cut between calls and their results.
            messages: What stands for them, such as a summary.

        Raises:
            UsageError: The cut lies within a round or outside the history.
        """
        self._port.compact(until, as_messages(messages, self.new_id))

    def legal_reply(self, msg: Msg) -> Msg:
        """The reply with tool-use ids that are unique in the conversation; what is assigned to
        `PostReasoning.reasoning_result` goes through here."""
        return self._port.legal_reply(msg)

    def interrupt(self, reason: str = "interrupted") -> None:
        """End this call at once: what runs is cancelled, open calls are answered, the reply's outcome is `interrupted`."""
        self._port.interrupt(reason)

    def __repr__(self) -> str:
        return f"RunContext(run_id={self.run_id!r}, call_id={self.call_id!r}, session_id={self.session_id!r})"


def find_dep(deps: object, kind: type[T]) -> T:
    """Return the object of a type among what was passed as `deps=`: itself, a mapping by type, or a sequence."""
    if isinstance(deps, kind):
        return deps
    if isinstance(deps, Mapping):
        found = cast("Mapping[Any, Any]", deps).get(kind)
        if isinstance(found, kind):
            return found
    elif isinstance(deps, list | tuple):
        for item in cast("Sequence[object]", deps):
            if isinstance(item, kind):
                return item
    given = "nothing" if deps is None else type(cast("object", deps)).__name__
    raise UsageError(
        f"A dependency of type {kind.__name__} is asked for and deps= holds {given}. Pass it with the call, "
        f"agent.call(..., deps=my_{kind.__name__.lower()}), or with the turn, Turn(..., deps=my_{kind.__name__.lower()}) "
        "(an object, a list of objects, or a mapping by type)."
    )


def as_messages(messages: str | Msg | Sequence[Msg | str], new_id: Callable[[str], str] = fresh_id) -> tuple[Msg, ...]:
    """Make a tuple of messages of a text (a user's), a message, or several of either.

    Raises:
        UsageError: Something else is among them.
    """
    if isinstance(messages, str):
        return (Msg.user(messages, id=new_id("msg_")),)
    if isinstance(messages, Msg):
        return (messages,)
    if not isinstance(messages, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance] - input from outside
        raise UsageError(f"Messages are a str, a Msg or a sequence of them, not {type(messages).__name__}.")
    result: list[Msg] = []
    for item in messages:
        if isinstance(item, str):
            result.append(Msg.user(item, id=new_id("msg_")))
        elif isinstance(item, Msg):  # pyright: ignore[reportUnnecessaryIsInstance] - input from outside
            result.append(item)
        else:
            raise UsageError(f"A message is a str or a Msg, not {type(item).__name__} ({item!r:.60}).")
    return tuple(result)
