"""The store port: where sessions are kept. `MemoryStore` keeps them in the process.

Rules:

1. A session is its facts, in order; how many there are is its version.
2. A store only ever appends. Who writes says which version it knows (`expected`); if the session has moved on, nothing is
   written and a `SessionConflictError` says so. So two writers never interleave.
3. The same fact at the same place, delivered twice, is stored once.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Collection, Iterable, Mapping, Sequence
from datetime import timedelta
from types import TracebackType
from typing import Any, Literal, Protocol, Self, TypeAlias, assert_never, cast, get_args, runtime_checkable

from agentflow.errors import SessionConflictError, StoreError, TranscriptError, UsageError
from agentflow.facts import (
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
from agentflow.ground.ids import conversation_key, inner_session_id, inside
from agentflow.ground.values import NamedTuple
from agentflow.saving.codec import SavedSession, fact_key, session_from_dict, session_to_dict
from agentflow.transcript import Transcript

__all__ = [
    "Claim",
    "MemoryStore",
    "SessionInfo",
    "SessionStatus",
    "SessionStore",
    "Store",
    "conflict",
    "fenced",
    "imported_facts",
    "inner_point",
    "inner_sessions",
    "kept_inside",
    "length_of",
    "no_point",
    "no_session",
    "prunable",
    "prune_before",
    "status_after",
    "taken",
    "told_otherwise",
]

SessionStatus: TypeAlias = Literal["idle", "unfinished", "suspended"]
"""`idle`: a call may come; `unfinished`: a call is running, or was cut by a crash; `suspended`: it waits for a decision."""


class SessionInfo(NamedTuple):
    """One line of a store's list of sessions.

    Attributes:
        id: The session's id.
        version: How many facts it has.
        updated: When the last one was written, in seconds since the epoch.
        status: Whether it is idle, unfinished or suspended.
    """

    id: str
    version: int
    updated: float
    status: SessionStatus

    @property
    def suspended(self) -> bool:
        """Whether it waits for a decision."""
        return self.status == "suspended"


class Claim(Protocol):
    """The right to write a session, for the time of one call.

    It is kept up until it is released. Where its process is frozen for too long, it passes to another one; what is written
    under it after that is refused.

    Attributes:
        session_id: The session.
        owner: Who holds it: a name of this claim alone.
        epoch: How often the right had passed to another owner when this one got it.
        version: The session's version then.
        lost: Whether it is known that it has passed on.
    """

    session_id: str
    owner: str
    epoch: int
    version: int
    lost: bool

    def release(self) -> None:
        """Let the next writer in; returns at once, from any thread."""
        ...


class Store(Protocol):
    """An append-only journal of facts per session: the least that an agent needs."""

    def append(self, session_id: str, facts: Sequence[Fact]) -> Awaitable[None] | None:
        """Add facts; a store that is done at once returns None, another an awaitable that ends when they are safe.

        Raises:
            StoreError: They could not be kept.
        """
        ...

    def load(self, session_id: str) -> Awaitable[Sequence[Fact]] | Sequence[Fact]:
        """Return all facts of a session, oldest first; none for one that does not exist."""
        ...


@runtime_checkable
class SessionStore(Store, Protocol):
    """A store that knows versions, and looks after the sessions that it keeps."""

    def append(
        self,
        session_id: str,
        facts: Sequence[Fact],
        *,
        expected: int | None = None,
        claim: Claim | None = None,
    ) -> Awaitable[None] | None:
        """Add facts, all or none.

        Args:
            session_id: The session; the first fact makes it.
            facts: What to add.
            expected: The version that the writer knows; None adds at the end, and leaves out what is there already.
            claim: The right under which this is written, to this session or to one around it; looked at in the transaction
                that writes. None: the version alone decides.

        Raises:
            SessionConflictError: The session has another version than expected, or the right has passed to somebody else;
                nothing was written.
            StoreError: They could not be kept.
        """
        ...

    def claim(self, session_id: str, *, lease: float | None = None) -> Awaitable[Claim] | None:
        """Wait for the right to write; None where this store lets writers find out when they append.

        Args:
            session_id: The session; it need not exist yet.
            lease: For how many seconds the right outlives a process that died, or is frozen. Given, a store that several
                processes can use hands out a right in any case.
        """
        ...

    async def sessions(self) -> list[SessionInfo]:
        """All sessions, the last used first."""
        ...

    async def fork(self, session_id: str, new_id: str, at: int | str | None = None) -> None:
        """Copy a session up to a point.

        Args:
            session_id: The session to copy.
            new_id: The copy's id.
            at: How many facts to take, or the `run_id` after which to stop; None takes all. Any point is legal: cut in
                the middle of a call, the copy is `unfinished`, and `agent.resume` goes on from there. The sessions of
                sub-agents that go along are cut at the same point.

        Raises:
            StoreError: There is no such session or point, or `new_id` is taken.
        """
        ...

    async def rename(self, session_id: str, new_id: str) -> None:
        """Give a session another id.

        Raises:
            StoreError: There is no such session, or `new_id` is taken.
        """
        ...

    async def delete(self, session_id: str) -> bool:
        """Forget a session.

        Returns:
            Whether it was there.
        """
        ...

    async def prune(
        self,
        *,
        older_than: timedelta,
        statuses: Collection[SessionStatus] = ("idle",),
        keep: Collection[str] = (),
    ) -> list[SessionInfo]:
        """Delete the sessions that nobody has written to for some time, with all their facts.

        A sub-agent's session stays as long as one around it is unfinished or suspended: that one needs it to go on.

        Args:
            older_than: How long ago the last fact was written, at least.
            statuses: Which sessions may go; those that hold an open call stay unless they are named.
            keep: The ids of sessions that stay in any case, with those inside them.

        Returns:
            What was deleted.
        """
        found = await self.sessions()
        going = prunable(found, prune_before(older_than, statuses), statuses, keep)
        return [info for info in going if await self.delete(info.id)]

    async def export(self, session_id: str) -> dict[str, Any]:
        """A session as JSON-compatible data.

        Raises:
            StoreError: There is no such session, or it cannot be read.
        """
        ...

    async def import_(self, data: Mapping[str, Any], session_id: str | None = None) -> str:
        """Take in what `export` or `Session.to_dict` made.

        Args:
            data: The session.
            session_id: The id that it gets; its own by default.

        Returns:
            The id.

        Raises:
            StoreError: The data is no session, or the id is taken.
        """
        ...

    async def close(self) -> None:
        """Finish what is being written, and let go of files and connections."""
        ...


# ---- what stores share


def conflict(session_id: str, expected: int, found: int) -> SessionConflictError:
    """Build the error of a writer whose version is not the session's."""
    state = f"it has {found} facts now" if found else "it is not there any more"
    return SessionConflictError(
        f"Session {session_id!r} was changed by another writer: {expected} facts were known here, {state}. Nothing of "
        "this was written. Call again: the agent loads the session anew. To let calls wait for each other instead: "
        "SqlStore(url, on_conflict='wait')."
    )


def fenced(session_id: str, claim: Claim) -> SessionConflictError:
    """Build the error of a writer whose right has passed to somebody else."""
    return SessionConflictError(
        f"Session {session_id!r}: the right to write {claim.session_id!r} (epoch {claim.epoch}) has passed to another process, "
        "because this one gave no sign of life for longer than its lease. Nothing of this was written; it goes on over there."
    )


def no_session(session_id: str, known: Iterable[str] = ()) -> StoreError:
    """Build the error of a session that is not there."""
    names = ", ".join(repr(name) for name in sorted(known)[:10])
    return StoreError(
        f"There is no session {session_id!r} in this store{f' (there are {names})' if names else ''}; "
        "store.sessions() lists them."
    )


def taken(session_id: str) -> StoreError:
    """Build the error of an id that is in use."""
    return StoreError(f"Session {session_id!r} exists already. Choose another id, or delete it first.")


def no_point(session_id: str, at: int | str, version: int) -> StoreError:
    """Build the error of a fork at a place that does not exist."""
    return StoreError(
        f"Session {session_id!r} cannot be forked at {at!r}: at= takes a number of facts from 1 to {version}, or the "
        "run_id of one of its calls (reply.run_id)."
    )


def prune_before(older_than: timedelta, statuses: Collection[SessionStatus]) -> float:
    """The time up to which sessions are pruned, in seconds since the epoch.

    Raises:
        UsageError: It is no length of time, or a status is unknown.
    """
    seconds = length_of(older_than)
    known = get_args(SessionStatus)
    if isinstance(statuses, str) or not set(statuses) <= set(known):
        raise UsageError(f"prune(statuses={statuses!r}): it is a tuple of {', '.join(map(repr, known))}.")
    return time.time() - seconds


def length_of(older_than: timedelta) -> float:
    """How long ago something must have been to be pruned, in seconds.

    Raises:
        UsageError: It is no length of time.
    """
    if not isinstance(older_than, timedelta) or older_than < timedelta(0):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UsageError(f"prune(older_than={older_than!r}): it is a timedelta, such as timedelta(days=30).")
    return older_than.total_seconds()


def prunable(
    found: Iterable[SessionInfo], before: float, statuses: Collection[SessionStatus], keep: Collection[str]
) -> list[SessionInfo]:
    """Which of a store's sessions can go: none that a session around it needs to go on."""
    found, keep = tuple(found), set(keep)
    going = [info for info in found if info.status in statuses and info.updated <= before and info.id not in keep]
    gone = {info.id for info in going}
    needed = inside([*keep, *[info.id for info in found if info.status != "idle" and info.id not in gone]])
    return [info for info in going if not needed(info.id)]


def status_after(facts: Sequence[Fact]) -> SessionStatus | None:
    """The status that facts leave a session in; None where they say nothing of it."""
    for fact in reversed(facts):
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
    """The sessions of sub-agents that go where a session goes, by what `inner_session_id` names them with.

    They are those that wait behind tool calls, and the conversations that sub-agents keep inside of it.
    """
    found: list[str] = []
    if status_after(facts) == "suspended":
        last = next((fact for fact in reversed(facts) if isinstance(fact, RoundSuspended)), None)
        found = [] if last is None else [waits.within for waits in last.pending if waits.within is not None]
    uses = [use for fact in facts if isinstance(fact, Reasoned) for use in fact.message.tool_uses]
    found += [conversation_key(use.name) for use in uses if use.input.get("conversation") is True]
    return tuple(dict.fromkeys(found))


def inner_point(facts: Sequence[Fact], inner: Sequence[Fact]) -> int:
    """How many facts of a sub-agent's session belong to a fork: what that had said and done by then.

    Args:
        facts: The fork's, of the session around it.
        inner: The sub-agent's, as they are.
    """
    begun = {fact.tool_use_id for fact in facts if isinstance(fact, ToolStarted | ToolFinished)}
    waiting: set[str] = set()
    if status_after(facts) == "suspended":
        last = next((fact for fact in reversed(facts) if isinstance(fact, RoundSuspended)), None)
        pending = () if last is None else last.pending
        waiting = {one.id.removeprefix(f"{one.within}/") for one in pending if one.within is not None}
    for place, fact in enumerate(inner):
        if isinstance(fact, CallOpened):
            if any(msg.metadata.get("within", None) not in (None, *begun) for msg in fact.messages):
                return place  # asked later, in a conversation that it keeps
        elif isinstance(fact, RoundSuspended) and fact.pending and waiting.issuperset(one.id for one in fact.pending):
            closed = (n for n in range(place, len(inner)) if isinstance(inner[n], CallClosed))
            return next(closed, place) + 1  # what came of it was decided later
    return len(inner)


def inner_sessions(data: Mapping[str, Any]) -> Mapping[str, Any]:
    """The saved sessions of sub-agents that wait inside a saved session, by tool-use id.

    Raises:
        StoreError: They are of no such form.
    """
    found: object = data.get("inner") or {}
    if not isinstance(found, Mapping):
        raise StoreError("A saved session's inner= must be an object of saved sessions: save the session again.")
    return cast("Mapping[str, Any]", found)


def imported_facts(saved: SavedSession) -> tuple[Fact, ...]:
    """A saved session as facts alone.

    Raises:
        StoreError: Its messages are no conversation that can go on.
    """
    try:
        waiting = Transcript(saved.messages).open_round
    except TranscriptError as error:
        raise StoreError(f"The saved session {saved.id!r} does not fit together: {error}") from error
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
        facts = (SessionBegan(()),)  # a session without messages is one too
    return facts


class _Journal:
    __slots__ = ("facts", "keys", "status", "updated")

    def __init__(self) -> None:
        self.facts: list[Fact] = []
        self.keys: dict[str, Fact] | None = None  # made when a writer without a version comes
        self.status: SessionStatus = "idle"
        self.updated = 0.0

    def known(self) -> dict[str, Fact]:
        if self.keys is None:
            self.keys = {key: fact for fact in self.facts if (key := fact_key(fact)) is not None}
        return self.keys

    def add(self, facts: Sequence[Fact]) -> None:
        self.facts.extend(facts)
        if self.keys is not None:
            self.keys.update({key: fact for fact in facts if (key := fact_key(fact)) is not None})
        self.status = status_after(facts) or self.status
        self.updated = time.time()


class MemoryStore(SessionStore):
    """Keeps sessions in the process.

    Example:
        >>> store = MemoryStore()
        >>> store.load("nobody")
        ()
    """

    __slots__ = ("_journals",)

    def __init__(self) -> None:
        self._journals: dict[str, _Journal] = {}

    def append(
        self,
        session_id: str,
        facts: Sequence[Fact],
        *,
        expected: int | None = None,
        claim: Claim | None = None,
    ) -> Awaitable[None] | None:
        """Add facts; see `SessionStore.append`."""
        journal = self._journals.get(session_id)
        if expected is None:
            journal = self._journal(session_id)
            facts = _news(session_id, journal, facts)
        elif journal is None:
            if expected:
                raise conflict(session_id, expected, 0)
            journal = self._journal(session_id)
        elif len(journal.facts) != expected:
            if journal.facts[expected : expected + len(facts)] == list(facts):
                return None  # delivered twice
            raise conflict(session_id, expected, len(journal.facts))
        if facts:
            journal.add(facts)
        return None

    def _journal(self, session_id: str) -> _Journal:
        return self._journals.setdefault(session_id, _Journal())

    def load(self, session_id: str) -> Sequence[Fact]:
        """Return all facts of a session, oldest first."""
        journal = self._journals.get(session_id)
        return () if journal is None else tuple(journal.facts)

    def claim(self, session_id: str, *, lease: float | None = None) -> Awaitable[Claim] | None:
        """None: writers find out when they append."""
        return None

    async def sessions(self) -> list[SessionInfo]:
        """All sessions, the last used first."""
        found = [SessionInfo(id, len(j.facts), j.updated, j.status) for id, j in self._journals.items()]  # noqa: A001
        return sorted(found, key=lambda info: (-info.updated, info.id))

    async def fork(self, session_id: str, new_id: str, at: int | str | None = None) -> None:
        """Copy a session up to a point; see `SessionStore.fork`."""
        facts = self._existing(session_id).facts
        stop = len(facts) if at is None else at
        if isinstance(stop, str):
            stop = max((n for n, fact in enumerate(facts, 1) if getattr(fact, "run_id", None) == at), default=0)
        if not 1 <= stop <= len(facts):
            raise no_point(session_id, at or 0, len(facts))
        self._free(new_id).add(facts[:stop])
        for use_id in kept_inside(facts[:stop]):
            inner = self._journals.get(inner_session_id(session_id, use_id))
            if inner is not None and (until := inner_point(facts[:stop], inner.facts)):
                await self.fork(inner_session_id(session_id, use_id), inner_session_id(new_id, use_id), until)

    async def rename(self, session_id: str, new_id: str) -> None:
        """Give a session another id."""
        journal = self._existing(session_id)
        if new_id in self._journals:
            raise taken(new_id)
        self._journals[new_id] = journal
        del self._journals[session_id]

    async def delete(self, session_id: str) -> bool:
        """Forget a session."""
        return self._journals.pop(session_id, None) is not None

    async def export(self, session_id: str) -> dict[str, Any]:
        """A session as JSON-compatible data."""
        facts = tuple(self._existing(session_id).facts)
        data = session_to_dict(SavedSession(session_id, (), facts))
        inner = [use_id for use_id in kept_inside(facts) if inner_session_id(session_id, use_id) in self._journals]
        return (
            {**data, "inner": {i: await self.export(inner_session_id(session_id, i)) for i in inner}} if inner else data
        )

    async def import_(self, data: Mapping[str, Any], session_id: str | None = None) -> str:
        """Take in what `export` or `Session.to_dict` made."""
        saved = session_from_dict(data)
        name = saved.id if session_id is None else session_id
        inner = inner_sessions(data)
        self._free(name).add(imported_facts(saved))
        for use_id, session in inner.items():
            await self.import_(session, inner_session_id(name, use_id))
        return name

    def _existing(self, session_id: str) -> _Journal:
        journal = self._journals.get(session_id)
        if journal is None:
            raise no_session(session_id, self._journals)
        return journal

    def _free(self, session_id: str) -> _Journal:
        if session_id in self._journals:
            raise taken(session_id)
        return self._journal(session_id)

    async def close(self) -> None:
        """Nothing is held."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


def _news(session_id: str, journal: _Journal, facts: Sequence[Fact]) -> list[Fact]:
    """What of the facts is not there yet."""
    news: list[Fact] = []
    for fact in facts:
        key = fact_key(fact)
        there = None if key is None else journal.known().get(key)
        if there is None:
            news.append(fact)
        elif there != fact:
            raise told_otherwise(session_id, key or "")
    return news


def told_otherwise(session_id: str, key: str) -> SessionConflictError:
    """Build the error of a fact that is stored already with other content."""
    return SessionConflictError(
        f"Session {session_id!r} holds another fact under the natural key {key!r}: two writers work on the same call. "
        "Nothing was written; load the session to see how it went on."
    )
