"""The store port: the storage of sessions.

Rules:

1. A session is an ordered list of facts; the number of facts is its version.
2. A store only appends. A writer passes the version that it knows (`expected`); if the session has another version,
   nothing is written and a `SessionConflictError` is raised. So two writers never interleave.
3. The same fact at the same position, delivered twice, is stored once.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Collection, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Literal, Protocol, TypeAlias, assert_never, cast, get_args, runtime_checkable

from agentflow._support.ids import conversation_key, inner_session_id, inside
from agentflow._support.values import NamedTuple
from agentflow.errors import SessionConflictError, StoreError, TranscriptError, UsageError
from agentflow.vocabulary.facts import (
    CallClosed,
    CallOpened,
    CallResumed,
    Compacted,
    Fact,
    Injected,
    Reasoned,
    RoundClosed,
    RoundSuspended,
    SessionBegan,
    StateKept,
    ToolDecided,
    ToolFinished,
    ToolStarted,
)
from agentflow.vocabulary.saving.codec import SavedSession
from agentflow.vocabulary.transcript import Transcript

__all__ = [
    "Claim",
    "SessionInfo",
    "SessionStore",
    "Store",
    "StoredStatus",
    "conflict",
    "fact_conflict",
    "id_taken",
    "imported_facts",
    "inner_point",
    "inner_sessions",
    "kept_inside",
    "lease_lost",
    "length_of",
    "moved_inside",
    "no_point",
    "no_session",
    "prunable",
    "prune_before",
    "status_after",
]

StoredStatus: TypeAlias = Literal["idle", "unfinished", "suspended"]
"""`idle`: ready for a call; `unfinished`: a call is running, or a crash interrupted it; `suspended`: waiting for a decision."""


class SessionInfo(NamedTuple):
    """An entry of a store's list of sessions.

    Attributes:
        id: The session's id.
        version: The number of its facts.
        updated: The time of its last fact, in seconds since the epoch.
        status: Whether it is idle, unfinished or suspended.
    """

    id: str
    version: int
    updated: float
    status: StoredStatus

    @property
    def suspended(self) -> bool:
        """Whether the session waits for a decision."""
        return self.status == "suspended"


class Claim(Protocol):
    """The right to write to a session, for the duration of one call.

    A claim is renewed until it is released. If its process is frozen for too long, the right passes to another process,
    and later writes with this claim are refused.

    Attributes:
        session_id: The session's id.
        owner: A unique name of this claim.
        epoch: How many times the right had passed to another owner before this claim was granted.
        version: The session's version at that time.
        lost: Whether the right is known to have passed to another owner.
    """

    session_id: str
    owner: str
    epoch: int
    version: int
    lost: bool

    def release(self) -> None:
        """Release the right to the next writer. May be called from any thread; returns immediately."""
        ...


class Store(Protocol):
    """An append-only journal of facts for each session: the minimum that an agent needs."""

    def append(self, session_id: str, facts: Sequence[Fact]) -> Awaitable[None] | None:
        """Append facts; return None if they are stored, or an awaitable that completes when they are.

        Raises:
            StoreError: The facts could not be stored.
        """
        ...

    def load(self, session_id: str) -> Awaitable[Sequence[Fact]] | Sequence[Fact]:
        """Return all facts of a session, oldest first; empty if the session does not exist."""
        ...


@runtime_checkable
class SessionStore(Store, Protocol):
    """A store that checks versions, and has methods to manage sessions."""

    def append(
        self,
        session_id: str,
        facts: Sequence[Fact],
        *,
        expected: int | None = None,
        claim: Claim | None = None,
    ) -> Awaitable[None] | None:
        """Append facts, all or none.

        Args:
            session_id: The session's id; the first fact creates the session.
            facts: The facts to append.
            expected: The version that the writer knows; None appends at the end, and skips facts that are stored
                already.
            claim: The claim for this write, of this session or an outer one; checked in the transaction that writes.
                None relies only on the version.

        Raises:
            SessionConflictError: The session has another version, or the claim is lost; nothing was written.
            StoreError: The facts could not be stored.
        """
        ...

    def claim(self, session_id: str, *, lease: float | None = None) -> Awaitable[Claim] | None:
        """Wait for the right to write; None if this store detects conflicts only when a writer appends.

        Args:
            session_id: The id of the session, which need not exist yet.
            lease: The seconds for which the claim outlives a dead or frozen process. If set, a store for several
                processes always returns a claim.
        """
        ...

    async def sessions(self, prefix: str = "") -> list[SessionInfo]:
        """Return all sessions, most recently used first.

        Args:
            prefix: Return only sessions with an id that starts with this text, case-sensitive.
        """
        ...

    async def fork(self, session_id: str, new_id: str, at: int | str | None = None) -> None:
        """Copy a session up to a point.

        Args:
            session_id: The id of the session to copy.
            new_id: The copy's id.
            at: The number of facts to copy, or the `run_id` after which to stop; None copies all. Any point is legal:
                a copy that ends within a call is `unfinished`, and `agent.resume` continues from there. The sessions of
                its sub-agents are copied up to the same point.

        Raises:
            StoreError: There is no such session or point, or `new_id` exists.
        """
        ...

    async def rename(self, session_id: str, new_id: str) -> None:
        """Give a session another id, and move the sessions of its sub-agents with it.

        Raises:
            StoreError: There is no such session, or `new_id` exists.
        """
        ...

    async def delete(self, session_id: str) -> bool:
        """Delete a session and the sessions of its sub-agents.

        Returns:
            Whether the session existed.
        """
        ...

    async def prune(
        self,
        *,
        older_than: timedelta,
        statuses: Collection[StoredStatus] = ("idle",),
        keep: Collection[str] = (),
    ) -> list[SessionInfo]:
        """Delete sessions that were not written to for some time, with all their facts.

        A sub-agent's session stays while the outer session, which needs it to continue, is unfinished or suspended.

        Args:
            older_than: The minimum age of the last fact.
            statuses: The statuses of the sessions to delete.
            keep: The ids of sessions that stay in any case, together with the sessions of their sub-agents.

        Returns:
            The deleted sessions.
        """
        found = await self.sessions()
        outdated = prunable(found, prune_before(older_than, statuses), statuses, keep)
        return [info for info in outdated if await self.delete(info.id)]

    async def export(self, session_id: str) -> dict[str, Any]:
        """Return a session, with those of its sub-agents, as JSON-compatible data.

        Raises:
            StoreError: There is no such session, or it cannot be read.
        """
        ...

    async def import_(self, data: Mapping[str, Any], session_id: str | None = None) -> str:
        """Store a session from the data of `export` or `Session.to_dict`, with those of its sub-agents.

        Args:
            data: The session.
            session_id: The new id; by default the id in the data.

        Returns:
            The id of the stored session.

        Raises:
            StoreError: The data is not a session, or the id exists.
        """
        ...

    async def close(self) -> None:
        """Finish pending writes, and release files and connections."""
        ...


# ---- helpers for stores


def conflict(session_id: str, expected: int, found: int) -> SessionConflictError:
    """Return the error for a writer whose version is not the session's."""
    state = f"it has {found} facts now" if found else "it no longer exists"
    return SessionConflictError(
        f"Session {session_id!r} was changed by another writer: {expected} facts were known here, {state}. Nothing was "
        "written. Make the call again: the agent then reloads the session. To let calls wait for each other instead: "
        "SqlStore(url, on_conflict='wait')."
    )


def lease_lost(session_id: str, claim: Claim) -> SessionConflictError:
    """Return the error for a writer whose claim has passed to another owner."""
    return SessionConflictError(
        f"Session {session_id!r}: the right to write {claim.session_id!r} (epoch {claim.epoch}) has passed to another process, "
        "because this one did not renew its lease in time. Nothing was written; the other process continues the session."
    )


def no_session(session_id: str, known: Iterable[str] = ()) -> StoreError:
    """Return the error for a session that does not exist."""
    names = ", ".join(repr(name) for name in sorted(known)[:10])
    return StoreError(
        f"There is no session {session_id!r} in this store{f' (there are {names})' if names else ''}; "
        "store.sessions() lists them."
    )


def id_taken(session_id: str) -> StoreError:
    """Return the error for an id that is in use."""
    return StoreError(f"Session {session_id!r} exists already. Choose another id, or delete it first.")


def no_point(session_id: str, at: int | str, version: int) -> StoreError:
    """Return the error for a fork at a point that does not exist."""
    return StoreError(
        f"Session {session_id!r} cannot be forked at {at!r}: at= takes a number of facts from 1 to {version}, or the "
        "run_id of one of its calls (reply.run_id)."
    )


def prune_before(older_than: timedelta, statuses: Collection[StoredStatus]) -> float:
    """Return the time before which sessions are pruned, in seconds since the epoch.

    Raises:
        UsageError: `older_than` is not a timedelta, or a status is unknown.
    """
    seconds = length_of(older_than)
    known = get_args(StoredStatus)
    if isinstance(statuses, str) or not set(statuses) <= set(known):
        raise UsageError(f"prune(statuses={statuses!r}) is invalid; pass a tuple of {', '.join(map(repr, known))}.")
    return time.time() - seconds


def length_of(older_than: timedelta) -> float:
    """Return the minimum age of a session to be pruned, in seconds.

    Raises:
        UsageError: `older_than` is not a timedelta.
    """
    if not isinstance(cast("object", older_than), timedelta) or older_than < timedelta(0):
        raise UsageError(f"prune(older_than={older_than!r}) is invalid; pass a timedelta, such as timedelta(days=30).")
    return older_than.total_seconds()


def prunable(
    found: Iterable[SessionInfo], before: float, statuses: Collection[StoredStatus], keep: Collection[str]
) -> list[SessionInfo]:
    """Return the sessions that can be deleted, except those that an outer session needs to continue."""
    found, keep = tuple(found), set(keep)
    old = [info for info in found if info.status in statuses and info.updated <= before and info.id not in keep]
    old_ids = {info.id for info in old}
    # A suspended or unfinished session that stays needs the sessions of its sub-agents to continue.
    needed = inside([*keep, *[info.id for info in found if info.status != "idle" and info.id not in old_ids]])
    return [info for info in old if not needed(info.id)]


def status_after(facts: Sequence[Fact]) -> StoredStatus | None:
    """Return the status of a session after these facts; None if they do not change it."""
    for fact in reversed(facts):  # the last fact that changes the status decides
        match fact:
            case CallClosed():
                return "suspended" if fact.outcome == "suspended" else "idle"
            case RoundSuspended():
                return "suspended"
            case CallOpened() | CallResumed() | RoundClosed():
                return "unfinished"
            case (
                SessionBegan()
                | Reasoned()
                | ToolDecided()
                | ToolStarted()
                | ToolFinished()
                | Injected()
                | Compacted()
                | StateKept()
            ):
                pass
            case _:
                assert_never(fact)
    return None


def kept_inside(facts: Sequence[Fact]) -> tuple[str, ...]:
    """Return the keys of the sub-agents' sessions that belong to a session, for `inner_session_id`.

    These are the sessions that wait in tool calls, and the conversations that sub-agents continue across calls.
    """
    found: list[str] = []
    if status_after(facts) == "suspended":
        last = next((fact for fact in reversed(facts) if isinstance(fact, RoundSuspended)), None)
        found = [] if last is None else [wait.within for wait in last.pending if wait.within is not None]
    uses = [use for fact in facts if isinstance(fact, Reasoned) for use in fact.message.tool_uses]
    found += [conversation_key(use.name) for use in uses if use.input.get("conversation") is True]
    return tuple(dict.fromkeys(found))


def moved_inside(session_id: str, new_id: str, facts: Sequence[Fact], found: Iterable[str]) -> dict[str, str]:
    """Return the ids of the sub-agents' sessions of a session, each with its id after the session is renamed.

    Args:
        session_id: The session's id.
        new_id: The session's new id.
        facts: The facts of the session.
        found: The ids of the stored sessions; at least those that begin with one of `inner_prefixes`.
    """
    # The prefix alone does not decide, since users can name their own sessions `"a"` and `"a/b"`.
    uses = [use.id for fact in facts if isinstance(fact, Reasoned) for use in fact.message.tool_uses]
    uses += [fact.tool_use_id for fact in facts if isinstance(fact, ToolDecided | ToolStarted | ToolFinished)]
    keys = {inner_session_id(session_id, key): key for key in (*uses, *kept_inside(facts))}
    moved: dict[str, str] = {}
    for inner in found:
        parts = inner.split("/")
        outer = next((start for n in range(1, len(parts) + 1) if (start := "/".join(parts[:n])) in keys), None)
        if outer is not None:
            moved[inner] = inner_session_id(new_id, keys[outer]) + inner.removeprefix(outer)
    return moved


def inner_point(facts: Sequence[Fact], inner: Sequence[Fact]) -> int:
    """Return how many facts of a sub-agent's session belong to a fork of the outer session.

    Args:
        facts: The facts of the outer session's fork.
        inner: All facts of the sub-agent's session.
    """
    started = {fact.tool_use_id for fact in facts if isinstance(fact, ToolStarted | ToolFinished)}
    waiting: set[str] = set()
    if status_after(facts) == "suspended":
        last = next((fact for fact in reversed(facts) if isinstance(fact, RoundSuspended)), None)
        pending = () if last is None else last.pending
        # The outer session prefixes the ids of decisions inside a tool call with that call's id.
        waiting = {wait.id.removeprefix(f"{wait.within}/") for wait in pending if wait.within is not None}
    for index, fact in enumerate(inner):
        if isinstance(fact, CallOpened):
            if any(msg.metadata.get("within", None) not in (None, *started) for msg in fact.messages):
                return index  # this call of a continued conversation was made after the fork
        elif isinstance(fact, RoundSuspended) and fact.pending and waiting.issuperset(wait.id for wait in fact.pending):
            closed = (n for n in range(index, len(inner)) if isinstance(inner[n], CallClosed))
            return next(closed, index) + 1  # the suspended call was resumed after the fork
    return len(inner)


def inner_sessions(data: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the saved sessions of sub-agents inside a saved session, by key (see `kept_inside`).

    Raises:
        StoreError: `inner` is not a mapping.
    """
    found: object = data.get("inner") or {}
    if not isinstance(found, Mapping):
        raise StoreError("A saved session's inner= must be an object of saved sessions: save the session again.")
    return cast("Mapping[str, Any]", found)


def imported_facts(saved: SavedSession) -> tuple[Fact, ...]:
    """Return a saved session as facts only, including its initial messages and its state.

    Raises:
        StoreError: Its messages are not a legal conversation, or end with open calls.
    """
    try:
        waiting = Transcript(saved.messages).open_round
    except TranscriptError as error:
        raise StoreError(f"The saved session {saved.id!r} is inconsistent: {error}") from error
    if waiting:
        raise StoreError(
            f"The saved session {saved.id!r} begins with open calls: {[use.id for use in waiting]} have no results."
        )
    facts: tuple[Fact, ...] = saved.facts
    if saved.messages:
        facts = (SessionBegan(saved.messages), *facts)
    if saved.state:
        facts = (*facts, StateKept(saved.state))
    if not facts:
        facts = (SessionBegan(()),)  # a session can have no messages
    return facts


def fact_conflict(session_id: str, key: str) -> SessionConflictError:
    """Return the error for a fact that is already stored with other content."""
    return SessionConflictError(
        f"Session {session_id!r} has a different fact with the natural key {key!r}: two writers work on the same call. "
        "Nothing was written; load the session to see its current state."
    )
