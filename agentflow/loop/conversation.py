"""A conversation as it is in memory: what its facts have made, its typed state, and who is using it now."""

from __future__ import annotations

from _thread import allocate_lock
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, Literal, Protocol, TypeAlias, cast

from agentflow.facts import CallOpened, Fact
from agentflow.ground.locks import FairLine
from agentflow.ground.values import NamedTuple
from agentflow.loop.machine import Machine
from agentflow.loop.states import State
from agentflow.messages import Msg
from agentflow.typed_state import StateMap

__all__ = ["Carried", "Conversation", "FullConversation", "Interruptible", "SessionStatus"]

SessionStatus: TypeAlias = Literal["ready", "running", "suspended", "unfinished"]
"""Where a session is."""

_STATUSES: Final[Mapping[State, SessionStatus]] = {State.USER_INPUT: "ready", State.SUSPENDED: "suspended"}


class Interruptible(Protocol):
    """A run, as far as its session knows it."""

    def interrupt(self, reason: str = "interrupted") -> None:
        """End the call."""
        ...

    @property
    def lost(self) -> bool:
        """Whether its event loop was closed under it."""
        ...

    def cut(self) -> None:
        """Finish a call that is lost, at once: the session is legal, and free again."""
        ...


class Carried(NamedTuple):
    """What a suspended run hands to the call that resumes it, beside what the facts say."""

    run_id: str
    seq: int
    facts: list[Fact]
    state: StateMap | None


class Conversation(FairLine):
    """What users see of a session, whoever keeps it.

    Attributes:
        id: The session's id.
    """

    __slots__ = ("__weakref__", "_state", "id")

    id: str
    _state: StateMap | None

    @property
    def state(self) -> StateMap:
        """Typed state that is kept with the session."""
        if self._state is None:
            self._state = StateMap()
        return self._state

    @property
    def busy(self) -> bool:
        """Whether a call is running on it."""
        return self._held

    @property
    def status(self) -> SessionStatus:
        """Where the session is.

        `"ready"` for a call; `"running"` one, or loading for it; `"suspended"` until somebody decides; `"unfinished"`, because
        a crash or a shutdown has cut its call, which `agent.resume(session)` continues.

        Raises:
            UsageError: It is in a store, and has not been loaded yet.
        """
        if self.busy:
            return "running"
        own = cast("FullConversation", self)
        own.check_known("status is")
        return _STATUSES.get(own.machine.state, "unfinished")


class FullConversation(Conversation):
    """A session as calls and stores see it.

    Attributes:
        machine: What its facts have made.
        implicit: Whether it is an agent's own: calls on it are refused, and do not wait, while one runs.
        closing: Whether what runs on it is being cleaned up, or loaded: the next call waits, on an implicit session too.
        run: The call that runs on it.
        interrupted: Why the call that has it, and has not begun, is to end.
        carried: What the call that continues its open run is handed.
    """

    __slots__ = ("carried", "closing", "implicit", "interrupted", "machine", "run")

    def __init__(
        self,
        id: str,  # noqa: A002
        messages: Iterable[Msg],
        implicit: bool,
        new_id: Callable[[str], str],
    ) -> None:
        self._lock = allocate_lock()  # as `FairLine` does it, one call less
        self._line = None
        self.id = id
        self.machine = Machine(messages, new_id)
        self._state = None
        self.implicit = implicit
        self.closing = False
        self.run: Interruptible | None = None
        self.interrupted: str | None = None
        self.carried: Carried | None = None

    def check_known(self, what: str) -> None:
        """Refuse to answer for what has not been loaded from a store."""

    @property
    def unsaved(self) -> bool:
        """Whether its state is to be stored with the next fact."""
        return self._state is not None and self._state.unsaved

    def carry(self, facts: Sequence[Fact], seq: int, state: StateMap | None) -> None:
        """Note what the call that continues an open run is handed, if there is one."""
        self.carried = None
        if self.machine.state is not State.USER_INPUT:
            start = max((n for n, fact in enumerate(facts) if isinstance(fact, CallOpened)), default=0)
            self.carried = Carried(self.machine.run_id, seq, list(facts[start:]), state)
