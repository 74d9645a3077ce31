"""A conversation in memory: the state folded from its facts, its typed state, and the call that uses it."""

from __future__ import annotations

from _thread import allocate_lock
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, Literal, Protocol, TypeAlias, cast

from agentflow._support.locks import FairLine
from agentflow._support.values import NamedTuple
from agentflow.loop.machine import Machine
from agentflow.loop.states import State
from agentflow.vocabulary.facts import CallOpened, Fact
from agentflow.vocabulary.messages import Msg
from agentflow.vocabulary.typed_state import StateMap

__all__ = ["Conversation", "FullConversation", "Interruptible", "OpenRun", "SessionStatus"]

SessionStatus: TypeAlias = Literal["ready", "running", "suspended", "unfinished"]
"""The status of a session."""

_STATUSES: Final[Mapping[State, SessionStatus]] = {State.USER_INPUT: "ready", State.SUSPENDED: "suspended"}


class Interruptible(Protocol):
    """A run, as its session uses it."""

    def interrupt(self, reason: str = "interrupted") -> None:
        """Interrupt the call."""
        ...

    @property
    def lost(self) -> bool:
        """Whether its event loop was closed while it was running."""
        ...

    def finish_lost(self) -> None:
        """Finish a lost call at once, so that the session is legal and free again."""
        ...


class OpenRun(NamedTuple):
    """The data of a suspended run for the call that resumes it, in addition to the facts."""

    run_id: str
    seq: int
    facts: list[Fact]
    state: StateMap | None


class Conversation(FairLine):
    """The public interface of a session.

    Attributes:
        id: The session's id.
    """

    __slots__ = ("__weakref__", "_state", "id")

    id: str
    _state: StateMap | None

    @property
    def state(self) -> StateMap:
        """The typed state that is stored with the session."""
        if self._state is None:
            self._state = StateMap()
        return self._state

    @property
    def busy(self) -> bool:
        """Whether a call is running on it."""
        return self._held

    @property
    def status(self) -> SessionStatus:
        """The status of the session.

        `"ready"` for a call; `"running"` a call, or loading for one; `"suspended"` until a decision is made;
        `"unfinished"` if a crash or a shutdown interrupted its call, which `agent.resume(session)` continues.

        Raises:
            UsageError: It is in a store and has not been loaded yet.
        """
        if self.busy:
            return "running"
        own = cast("FullConversation", self)
        own.check_known("status is")
        return _STATUSES.get(own.machine.state, "unfinished")


class FullConversation(Conversation):
    """The interface of a session for calls and stores.

    Attributes:
        machine: The state folded from its facts.
        implicit: Whether it is an agent's own session: a call during another call is refused instead of waiting.
        closing: Whether it is being cleaned up or loaded: the next call waits, even on an implicit session.
        run: The call that runs on it.
        interrupted: The reason to interrupt a call that has the session but has not begun.
        open_run: Data for the call that continues its open run.
    """

    __slots__ = ("closing", "implicit", "interrupted", "machine", "open_run", "run")

    def __init__(
        self,
        id: str,  # noqa: A002
        messages: Iterable[Msg],
        implicit: bool,
        new_id: Callable[[str], str],
    ) -> None:
        self._lock = allocate_lock()  # inlined from `FairLine`, which saves a call
        self._line = None
        self.id = id
        self.machine = Machine(messages, new_id)
        self._state = None
        self.implicit = implicit
        self.closing = False
        self.run: Interruptible | None = None
        self.interrupted: str | None = None
        self.open_run: OpenRun | None = None

    def check_known(self, what: str) -> None:
        """Refuse an access if the session has not been loaded from a store."""

    @property
    def unsaved(self) -> bool:
        """Whether its state should be stored with the next fact."""
        return self._state is not None and self._state.unsaved

    def keep_open_run(self, facts: Sequence[Fact], seq: int, state: StateMap | None) -> None:
        """Keep data for the call that continues an open run, if there is one."""
        self.open_run = None
        if self.machine.state is not State.USER_INPUT:
            start = max((n for n, fact in enumerate(facts) if isinstance(fact, CallOpened)), default=0)
            self.open_run = OpenRun(self.machine.run_id, seq, list(facts[start:]), state)
