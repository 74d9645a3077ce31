"""`RunContext`, the interface of hooks and tools to the call they run in, and `AgentView`, their read-only view of the
agent.

A context belongs to one call. It acts on the run through `CallPort`, which the loop implements.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from copy import copy
from operator import attrgetter
from typing import Any, Final, Literal, ParamSpec, Protocol, TypeVar, overload

from agentflow._support.values import NamedTuple
from agentflow.vocabulary.deps import dep_in, find_dep
from agentflow.vocabulary.facts import Fact, ModelRecord, TurnRecord, model_calls_of, turns_of
from agentflow.vocabulary.messages import Msg, Reply, as_messages
from agentflow.vocabulary.specs import Clock, ModelOptions, ToolSpec, Usage, checked_options
from agentflow.vocabulary.typed_state import StateMap

__all__ = [
    "AgentView",
    "CallPort",
    "Compaction",
    "ContextWindow",
    "RunContext",
    "Shadow",
    "Trace",
    "called_from",
    "context_for",
    "note_caller",
    "own",
    "port_of",
]

P = ParamSpec("P")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
NO_OPTIONS: Final = ModelOptions()


class Reads(Protocol[T_co]):
    """Parses the text of an answer into a value; implemented by `Output`."""

    def read(self, text: str) -> T_co:
        """Parse a text."""
        ...


class AgentView(Protocol):
    """The part of an agent that hooks can read."""

    @property
    def name(self) -> str:
        """The agent's name."""
        ...

    @property
    def description(self) -> str:
        """The agent's description."""
        ...

    @property
    def tools(self) -> tuple[ToolSpec, ...]:
        """The specs of the agent's tools, as a model sees them."""
        ...

    @property
    def model_name(self) -> str:
        """The name of the agent's model."""
        ...


class CallPort(Protocol):
    """The interface through which a context acts on its run."""

    @property
    def usage(self) -> Usage:
        """The call's usage so far."""
        ...

    def add_usage(self, usage: Usage) -> None:
        """Add usage to the run and its parents."""
        ...

    def facts(self) -> Sequence[Fact]:
        """Return the run's facts so far."""
        ...

    def inject(self, messages: tuple[Msg, ...], keep: bool, source: str) -> None:
        """Store messages at the next legal position, or add them to the next request only."""
        ...

    @property
    def history(self) -> Sequence[Msg]:
        """The stored conversation."""
        ...

    def approve(self, tool_use_id: str) -> None:
        """Mark a tool call as approved by a person."""
        ...

    def approved(self, tool_use_id: str) -> bool:
        """Whether a hook has marked a tool call as approved."""
        ...

    async def complete(self, messages: tuple[Msg, ...], model: Any, source: str, options: ModelOptions) -> Msg:
        """Make a side model call."""
        ...

    async def complete_typed(
        self, messages: tuple[Msg, ...], model: Any, source: str, options: ModelOptions, output: Any
    ) -> Reply[Any]:
        """Make side model calls until the answer is valid for `output`."""
        ...

    def compact(self, until: int, messages: tuple[Msg, ...]) -> Compaction:
        """Replace the first messages of later requests."""
        ...

    def window(self) -> ContextWindow:
        """Estimate how much of the model's window the conversation takes."""
        ...

    async def measure(self, messages: Sequence[Msg] | None) -> ContextWindow:
        """Count how much of the model's window the conversation takes."""
        ...

    def searches_tools(self, model: str) -> bool:
        """Whether a model's provider has its own search for hidden tools."""
        ...

    def interrupt(self, reason: str) -> None:
        """End the call."""
        ...

    def legal_reply(self, msg: Msg) -> Msg:
        """Return a copy of a reply that a hook assigned, with tool-use ids that are unique in the conversation."""
        ...


class ContextWindow(NamedTuple):
    """How much of a model's context window a request takes.

    Attributes:
        used: The tokens of the request.
        limit: The maximum, including the answer if the vendor counts it; None if unknown.
        how: The source of `used`: `"provider"` (the provider's counter), `"reported"` (the usage of the last reply),
            `"tokenizer"` (the model's tokenizer), or `"estimate"`.
    """

    used: int
    limit: int | None
    how: Literal["provider", "reported", "tokenizer", "estimate"]

    @property
    def share(self) -> float | None:
        """`used` divided by `limit`; None if the limit is unknown.

        Example:
            >>> ContextWindow(50_000, 200_000, "reported").share
            0.25
        """
        return None if not self.limit else self.used / self.limit


class Compaction(NamedTuple):
    """A hook's replacement of the first messages of a session's later requests.

    Attributes:
        iteration: The round in which the replacement was made.
        messages: The number of replaced messages.
        tokens: The estimated tokens of the replaced messages.
        into: The number of messages that replace them.
        into_tokens: The estimated tokens of the replacement.
        by: The name that the hook passed, if any.

    Example:
        >>> str(Compaction(7, 12, 9_000, 2, 400, "SummaryCompaction"))
        '12 messages (about 9,000 tokens) into 2 (about 400), by SummaryCompaction'
    """

    iteration: int
    messages: int
    tokens: int
    into: int
    into_tokens: int
    by: str = ""

    def __str__(self) -> str:
        by = f", by {self.by}" if self.by else ""
        return (
            f"{self.messages} messages (about {self.tokens:,} tokens) into {self.into} (about {self.into_tokens:,}){by}"
        )


class Shadow(NamedTuple):
    """The changes and the verdict of a hook with `shadow=True`, neither of which was applied."""

    hook: str
    event: str
    seq: int
    changes: Mapping[str, Any]
    verdict: Any


class Trace:
    """The run so far, read from its facts. In a Post hook this includes the work that just ended, with its current result.

    Attributes:
        turns: The finished tool calls: name, arguments, status, result, duration in milliseconds.
        model_calls: The finished model calls: iteration, usage, duration in milliseconds, and the model that answered.
    """

    __slots__ = ("_facts",)

    def __init__(self, facts: Callable[[], Sequence[Fact]]) -> None:
        self._facts = facts

    @property
    def turns(self) -> tuple[TurnRecord, ...]:
        """The tool calls in the order in which they finished; in `after_each_tool` the last one is the call of the event."""
        return turns_of(self._facts())

    @property
    def model_calls(self) -> tuple[ModelRecord, ...]:
        """The finished model calls; in `after_llm` the last one is the call of the event."""
        return model_calls_of(self._facts())


_NO_OBJECTS: Final[dict[tuple[int, object], Any]] = {}
"""An empty mapping, shared by all calls whose plugins store no objects; never changed."""


class RunContext:
    """The call that a hook or a tool runs in.

    Attributes:
        run_id: The run's id (a run is a call and its resumes).
        call_id: The call's id.
        session_id: The session's id.
        source: The path of sub-agent names; empty for the top-level agent.
        agent: A read-only view of the agent.
        clock: The run's clock; virtual in tests.
        new_id: The run's source of ids; repeatable in replays.
        session_state: Typed state, kept with the session.
        state: Typed state of this run: `context.state[MyState]`.
        compaction: The last compaction by a hook in this call, or None.
    """

    __slots__ = (
        "_deps",
        "_objects",
        "_port",
        "_shadows",
        "agent",
        "call_id",
        "clock",
        "compaction",
        "new_id",
        "run_id",
        "session_id",
        "session_state",
        "source",
        "state",
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
        self.state = StateMap() if state is None else state
        self._objects: dict[tuple[int, object], Any] = _NO_OBJECTS
        self._shadows: list[Shadow] | None = None
        self.compaction: Compaction | None = None

    @property
    def usage(self) -> Usage:
        """The usage of the call so far, including sub-agents and side calls."""
        return self._port.usage

    @property
    def shadows(self) -> list[Shadow]:
        """The changes that hooks with `shadow=True` would have made in this call."""
        if self._shadows is None:
            self._shadows = []
        return self._shadows

    @property
    def trace(self) -> Trace:
        """The trace of the run so far."""
        return Trace(self._port.facts)

    def deps(self, kind: type[T], name: str = "") -> T:
        """Return the object that the caller passed as `deps=` for this type.

        Args:
            kind: The type.
            name: The name of the object, if several of one type were passed by name.

        Raises:
            UsageError: No object of that type was passed; or several were passed, and none of them has that name.
        """
        return find_dep(self._deps, kind, name)

    def has_dep(self, kind: type[object], name: str = "") -> bool:
        """Whether `deps` would return an object.

        Raises:
            UsageError: Several objects of that type were passed, and none of them has that name.
        """
        return dep_in(self._deps, kind, name) is not None

    def inject(self, *messages: Msg | str, keep: bool = True, source: str = "hook") -> None:
        """Add messages to the conversation, at the next legal position.

        Args:
            messages: User messages (or their text), or assistant messages without tool calls.
            keep: Whether to store the messages; if False, they are only part of the next request.
            source: The origin, stored on each message as `metadata["synthetic"]`.
        """
        self._port.inject(as_messages(messages, self.new_id), keep, source)

    def approve(self, tool_use_id: str) -> None:
        """Record that a person has approved a tool call: a tool with `requires_approval` then runs without suspending.

        A `PreActing` hook that asks a person should call this. The hooks after it still evaluate the call.

        Args:
            tool_use_id: The call, `event.tool_use.id`.
        """
        self._port.approve(tool_use_id)

    def approved(self, tool_use_id: str) -> bool:
        """Whether a hook has recorded with `approve` that a person has approved a tool call.

        Args:
            tool_use_id: The call, `event.tool_use.id`.
        """
        return self._port.approved(tool_use_id)

    @property
    def history(self) -> Sequence[Msg]:
        """The stored conversation at this moment; read-only. The cost does not depend on its length."""
        return self._port.history

    @property
    def window(self) -> ContextWindow:
        """How much of the model's context window the next request would take.

        The value comes from the usage of the last reply and an estimate of later messages; no request is made.
        """
        return self._port.window()

    async def measure(self, messages: Sequence[Msg] | None = None) -> ContextWindow:
        """Count how much of the context window a request would take, with the provider's counter (one request) or a
        tokenizer.

        Args:
            messages: The messages to count, such as `event.input_messages`; by default the current conversation.

        Raises:
            ModelError: The provider's counter failed.
        """
        return await self._port.measure(messages)

    def searches_tools(self, model: str) -> bool:
        """Whether a model's provider has its own search for hidden tools (`ServerTool.tool_search`)."""
        return self._port.searches_tools(model)

    @overload
    async def complete(
        self,
        messages: str | Msg | Sequence[Msg],
        *,
        model: Any = None,
        source: str = "side",
        options: ModelOptions = NO_OPTIONS,
        output: None = None,
    ) -> Msg: ...
    @overload
    async def complete(
        self,
        messages: str | Msg | Sequence[Msg],
        *,
        model: Any = None,
        source: str = "side",
        options: ModelOptions = NO_OPTIONS,
        output: type[T] | Reads[T],
    ) -> Reply[T]: ...
    async def complete(
        self,
        messages: str | Msg | Sequence[Msg],
        *,
        model: Any = None,
        source: str = "side",
        options: ModelOptions = NO_OPTIONS,
        output: Any = None,
    ) -> Msg:
        """Make a side model call: without tools or events, and not stored. Its cost is added to this run.

        Args:
            messages: The question.
            model: A model or its name; by default the agent's model.
            source: The purpose of the call; stored on the returned message (`name`, and `metadata["side"]`).
            options: The options of this call; the agent's options do not apply.
            output: The type of the answer, or an `Output`. The returned message is then a `Reply` with the value as its
                `output`. The schema is sent through the model's JSON-schema mode, or in the prompt if it has none.

        Raises:
            ModelError: The model failed, or (as an `OutputError`) returned no valid answer.
        """
        if output is not None:
            port, question = self._port, as_messages(messages, self.new_id)
            return await port.complete_typed(question, model, source, checked_options(options), output)
        return await self._port.complete(as_messages(messages, self.new_id), model, source, checked_options(options))

    def compact(self, until: int, messages: str | Msg | Sequence[Msg], *, by: str = "") -> None:
        """Replace the first `until` messages of later requests with `messages`; the history keeps the originals.

        Args:
            until: How many messages of the history to replace. It must not separate calls from their results.
            messages: The replacement, such as a summary.
            by: The name of the hook, for traces.

        Raises:
            UsageError: `until` lies within a round or outside the history.
        """
        done = self._port.compact(until, as_messages(messages, self.new_id))
        self.compaction = done._replace(by=by) if by else done

    def interrupt(self, reason: str = "interrupted") -> None:
        """End this call immediately: cancel running work, answer open tool calls, and return a reply with the outcome
        `interrupted`.
        """
        self._port.interrupt(reason)

    def __repr__(self) -> str:
        return f"RunContext(run_id={self.run_id!r}, call_id={self.call_id!r}, session_id={self.session_id!r})"


def own(context: RunContext, hook: object, make: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Return the object that a hook keeps for a call, created on first use; it is not stored.

    Args:
        context: The call's context.
        hook: The hook to which the object belongs.
        make: The object's class, which is part of the key: a hook can keep one object of each class.
        args: The arguments of the class.
        kwargs: The keyword arguments of the class.
    """
    try:
        # By `id`: hooks need not be hashable, and the run's chain keeps them alive.
        return context._objects[id(hook), make]  # pyright: ignore[reportPrivateUsage] - see `port_of`
    except KeyError:
        state = make(*args, **kwargs)
    # Most calls need no dict, so each gets one only with its first object.
    if context._objects is _NO_OBJECTS:  # pyright: ignore[reportPrivateUsage] - the same
        context._objects = {}  # pyright: ignore[reportPrivateUsage] - the same
    context._objects[id(hook), make] = state  # pyright: ignore[reportPrivateUsage] - the same
    return state


called_from: ContextVar[CallPort | None] = ContextVar("agentflow_called_from", default=None)
"""The call of the hook that runs in this thread; set only for hooks with `in_thread=True`."""


def note_caller(context: RunContext) -> None:
    """Set `called_from`, in the context that is copied for the thread of a hook."""
    called_from.set(port_of(context))


port_of: Callable[[RunContext], CallPort] = attrgetter("_port")
"""Return a context's port to the loop, for internal use. Other facades have a subclass for this; contexts do not, because one
is created for each call."""


def context_for(context: RunContext, port: CallPort) -> RunContext:
    """Return a copy of a context with another port. The copies share typed state, but `own` can create another object for
    each copy if no hook has an object in the call yet.
    """
    other = copy(context)
    other._port = port  # pyright: ignore[reportPrivateUsage] - this module's own
    return other
