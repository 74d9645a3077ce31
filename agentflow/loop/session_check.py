"""A look at a stored session, without loading it."""

from __future__ import annotations

from collections.abc import Awaitable

from agentflow.ground.ids import new_id as fresh_id
from agentflow.ground.values import NamedTuple
from agentflow.loop.keeping import fold_fitting
from agentflow.loop.states import State
from agentflow.messages import Msg, Pending
from agentflow.ports.store import SessionStatus, Store, no_session

__all__ = ["SessionCheck", "check_session"]


class SessionCheck(NamedTuple):
    """What a stored session holds, and whether a call could go on with it.

    Attributes:
        id: The session's id.
        facts: How many facts the store has of it.
        status: What the facts that fit leave it in.
        messages: The history that they make.
        pending: What it waits for, if it is suspended.
        problem: What is wrong with the first fact that does not fit; empty where all do.
        broken_at: How many facts stand before that one: `store.fork(id, new_id, at=broken_at)` saves them.
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
        """Whether all facts fit together."""
        return not self.problem


async def check_session(store: Store, id: str) -> SessionCheck:  # noqa: A002 - the contract's word
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
