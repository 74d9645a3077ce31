"""The base class of all events: a shared frame, three forms, and writable fields.

An event has three classes with the same layout: the *draft* that the loop fills, the *open* form for editing hooks, and
the event class, which is the sealed form. `match` and `isinstance` treat all three alike, since draft and open form are
subclasses. Changing an event's class takes 0.03 µs; making a frozen copy would take 1 µs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields
from functools import cache
from operator import attrgetter
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol, Self, TypeAlias, TypeVar, cast, dataclass_transform

from agentflow._support.values import draft_class, field, fields_of, maker, slotted
from agentflow.vocabulary.verdicts import Decided, Verdict

if TYPE_CHECKING:
    from agentflow.vocabulary.context import AgentView, RunContext


class Frame:
    """The values that all events of one call share."""

    __slots__ = ("agent", "call_id", "context", "run_id", "session_id", "source")

    def __init__(
        self, run_id: str, call_id: str, session_id: str, source: str, agent: AgentView, context: RunContext
    ) -> None:
        self.run_id = run_id
        self.call_id = call_id
        self.session_id = session_id
        self.source = source
        self.agent = agent
        self.context = context


_T = TypeVar("_T")
_V = TypeVar("_V", bound=Verdict)
_put = object.__setattr__
Check: TypeAlias = "Callable[[Any, object], object]"
"""Validates an assigned value and returns the value to store."""


class _WithVerdicts(Protocol[_V]):
    """Lets type checkers derive the type of `Event.verdict` from the `verdicts` of the event's class."""

    verdicts: ClassVar[tuple[type[_V], ...]]  # pyright: ignore[reportGeneralTypeIssues] - each event class has its own

    @property
    def decision(self) -> Decided | None: ...


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class Event:
    """The base of all events.

    Attributes:
        iteration: The round to which the event belongs, from 1; 0 before the first round.
        seq: The event's number in the run, assigned when it is built; events that are not built are counted too. If
            hooks or the store wait in a parallel round, a reader may receive a higher number first.
        time: Seconds since the epoch, by the run's clock.
        decision: After the chain, the verdict and the name of the hook that returned it, or None.
    """

    _frame: Final[Frame | None] = None
    iteration: Final[int] = 0
    seq: Final[int] = 0
    time: Final[float] = 0.0
    decision: Final[Decided | None] = None

    writable: ClassVar[Mapping[str, Check]] = {}
    """The fields that editing hooks may assign, each with its check."""
    verdicts: ClassVar[tuple[type[Verdict], ...]] = ()
    """The verdicts that are allowed for this event."""
    make: ClassVar[Callable[..., Any]]
    """Builds a sealed event from the run's `Events`, and a tuple of its own fields. Used by the loop."""
    make_open: ClassVar[Callable[..., Any]]
    """Builds an event in its open form, from the same values."""
    open_form: ClassVar[type[Event]]
    sealed_form: ClassVar[type[Event]]

    @property
    def frame(self) -> Frame:
        """The values that all events of the call share."""
        if self._frame is None:
            raise AttributeError(
                f"This {type(self).__name__} was built by hand, so it has no run_id, agent or context. "
                "In a test, use event.within(agentflow.testing.run_context())."
            )
        return self._frame

    @property
    def run_id(self) -> str:
        """The id of the run: a call and its resumes."""
        # `frame` raises the error for events built by hand; reading `_frame` first saves its call.
        return (self._frame or self.frame).run_id

    @property
    def call_id(self) -> str:
        """The id of the call, from user input to reply."""
        return (self._frame or self.frame).call_id

    @property
    def session_id(self) -> str:
        """The id of the session."""
        return (self._frame or self.frame).session_id

    @property
    def source(self) -> str:
        """The path of sub-agent names, separated by `/`; empty for the top-level agent."""
        return (self._frame or self.frame).source

    @property
    def agent(self) -> AgentView:
        """A hook's view of the agent."""
        return (self._frame or self.frame).agent

    @property
    def context(self) -> RunContext:
        """The call's context."""
        return (self._frame or self.frame).context

    @property
    def verdict(self: _WithVerdicts[_V]) -> _V | None:
        """The verdict of the event's chain, if any."""
        return None if self.decision is None else cast("_V | None", self.decision.verdict)

    @property
    def sealed(self) -> bool:
        """Whether the event's fields are read-only."""
        return type(self) is not self.open_form

    def within(self, context: RunContext) -> Self:
        """Return a copy that belongs to the call of a context, for events that are built by hand.

        `agentflow.testing.run_context` returns such a context.

        Example:
            >>> PreActing(tool_use=ToolUseBlock("1", "add", {})).within(run_context(deps=["db"])).context.deps(list)
            ['db']
        """
        copy = self.replace()
        shared = (context.run_id, context.call_id, context.session_id, context.source, context.agent, context)
        _put(copy, "_frame", Frame(*shared))
        return copy

    if TYPE_CHECKING:  # each class with writable fields declares them

        def replace(self) -> Self: ...

    else:

        def replace(self, **changes):
            """Return a copy with some writable fields changed; hooks may return it.

            Raises:
                AttributeError: A field is not writable.
                TypeError: A value has the wrong type.

            Example:
                >>> event = PreActing(tool_use=ToolUseBlock("1", "add", {"a": 1}))
                >>> event.replace(tool_use=event.tool_use.replace(input={"a": 2})).tool_use.input["a"]
                2
            """
            copy = object.__new__(self.open_form)
            for name in _field_names(self.sealed_form):
                _put(copy, name, getattr(self, name))  # without checks: the values passed them when they were set
            for name, value in changes.items():
                setattr(copy, name, value)
            return copy

    def __repr__(self) -> str:
        # Without the five fields of `Event`, which come first.
        shown = ", ".join(f"{name}={getattr(self, name)!r}" for name in _field_names(type(self))[5:] if name[0] != "_")
        return f"{type(self).__name__}({shown})"


frame_of: Callable[[Event], Frame | None] = attrgetter("_frame")
"""Return an event's frame, or None for an event built by hand."""


def _field_names(cls: type) -> tuple[str, ...]:
    names = _NAMES.get(cls)
    if names is None:
        names = _NAMES[cls] = tuple(f.name for f in fields(cls))
    return names


_NAMES: dict[type, tuple[str, ...]] = {}


def _sealed_setattr(self: Event, name: str, value: object) -> None:
    cls = type(self).__name__
    if name in self.writable:
        raise AttributeError(
            f"{cls}.{name} cannot be assigned: the event is sealed after its editing hooks. A guard may only veto (return "
            "Deny(...)), an observer or a reader must not change it. Assign it in a hook with guard=False and observer=False, "
            "or make a changed copy with event.replace(...)."
        )
    writable = ", ".join(self.writable) or "none"
    raise AttributeError(f"{cls}.{name} is read-only. Writable fields of {cls}: {writable}.")


def _open_setattr(self: Event, name: str, value: object) -> None:
    check = self.writable.get(name)
    if check is None:
        _sealed_setattr(self, name, value)
    else:
        _put(self, name, check(self, value))


@dataclass_transform(kw_only_default=True, eq_default=False, field_specifiers=(field,))
def event_class(cls: type[_T]) -> type[_T]:
    """Decorate an event class and create its three forms (see the module's docstring)."""
    methods = {"__init__": _init_by_hand, "__setattr__": _sealed_setattr}
    event_cls = cast("type[Event]", slotted(cls, fields_of(cls, True), methods))
    body = {"__slots__": (), "__module__": cls.__module__, "__qualname__": cls.__qualname__, "__doc__": cls.__doc__}
    open_form = cast("type[Event]", type(cls.__name__, (event_cls,), {**body, "__setattr__": _open_setattr}))
    event_cls.open_form = open_form
    event_cls.sealed_form = event_cls
    event_cls.make, event_cls.make_open = _made_later(event_cls, False), _made_later(event_cls, True)
    return cast("type[_T]", event_cls)


def _init_by_hand(self: Event, **values: object) -> None:
    """Build an open event, for example to test a hook."""
    form = self.sealed_form
    _put(self, "__class__", draft_class(form))  # only a draft has assignable fields
    for f in fields(form):
        if f.name in values:
            _put(self, f.name, values[f.name])
        elif f.default is not MISSING:
            _put(self, f.name, f.default)
        else:
            raise TypeError(f"{form.__name__}() needs {f.name}=.")
    if unknown := values.keys() - set(_field_names(form)):
        raise TypeError(
            f"{form.__name__}() has no field {', '.join(sorted(unknown))}. Its fields are {', '.join(_field_names(form)[5:])}."
        )
    _put(self, "__class__", form.open_form)
    # Assigned again in the open form, so that the checks apply.
    for name in values.keys() & form.writable.keys():
        setattr(self, name, values[name])


def _made_later(cls: type[Event], open_: bool) -> Callable[..., Any]:
    """Return a builder that is compiled on its first call; most builders are never called."""

    def first(*values: Any) -> Any:
        # `builder` replaces this function on the class.
        return builder(cls, open_)(*values)

    first.__doc__ = f"Build a `{cls.__name__}` from the run's `Events`, and a tuple of its own fields."
    return cast("Callable[..., Any]", staticmethod(first))


_COMMON: Final = {
    "_frame": "source._frame or source.frame",
    "iteration": "source.iteration",
    "seq": "source.seq",
    "time": "source.now()",
}
"""The fields that all events have, except `decision`, with the expressions of their values; `source` is the run's `Events`."""


@cache
def builder(cls: type[Event], open_: bool) -> Callable[..., Any]:
    """Compile `make_open` or `make` of an event class."""
    build = maker(cls, _field_names(cls)[len(_COMMON) + 1 :], cls.open_form if open_ else cls, _COMMON)
    setattr(cls, "make_open" if open_ else "make", staticmethod(build))
    return build
