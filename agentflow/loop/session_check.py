"""Check a stored session without loading it."""

from __future__ import annotations

from collections.abc import Awaitable

from agentflow._support.ids import new_id as fresh_id
from agentflow._support.values import NamedTuple
from agentflow.loop.keeping import fold_fitting
from agentflow.loop.states import State
from agentflow.ports.store import SessionStatus, Store, no_session
from agentflow.vocabulary.messages import Msg, Pending

__all__ = ["SessionCheck", "check_session"]


class SessionCheck(NamedTuple):
    """The content of a stored session, and whether a call could continue it.

    Attributes:
        id: The session's id.
        facts: The number of stored facts.
        status: The status after the consistent facts.
        messages: The history after the consistent facts.
        pending: The calls that it waits for, if it is suspended.
        problem: The error of the first inconsistent fact, or "".
        broken_at: The number of facts before it: `store.fork(id, new_id, at=broken_at)` saves them.
    """

    id: str
    facts: int
    status: SessionStatus
    messages: tuple[Msg, ...]
    pending: tuple[Pending, ...]
    problem: str = ""
    broken_at: int | None = None

    @property
    def ok(self) -> bool:
        """Whether all facts are consistent."""
        return not self.problem


async def check_session(store: Store, id: str) -> SessionCheck:  # noqa: A002 - the public name
    """See `Session.check`."""
    found = store.load(id)
    facts = await found if isinstance(found, Awaitable) else found
    if not facts:
        raise no_session(id)
    machine, fitting, problem = fold_fitting(facts, fresh_id)
    suspended = machine.state is State.SUSPENDED
    status: SessionStatus = "suspended" if suspended else "unfinished"
    if machine.state is State.USER_INPUT:
        status = "idle"
    return SessionCheck(
        id,
        len(facts),
        status,
        tuple(machine.transcript.messages),
        machine.pending if suspended else (),
        "" if problem is None else str(problem),
        None if problem is None else fitting,
    )
