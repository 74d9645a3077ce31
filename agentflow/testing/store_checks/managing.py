"""Checks of a store's session management: list, fork, rename, delete, prune, export and import."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, cast

from agentflow._support.ids import inner_session_id
from agentflow._support.json_text import read_json_text
from agentflow.errors import SessionConflictError, UsageError
from agentflow.testing.store_checks.samples import a_call
from agentflow.testing.store_checks.trial import StoreTrial
from agentflow.testing.suite import FlawFound
from agentflow.vocabulary.facts import CallClosed, Fact, RoundSuspended, SessionBegan
from agentflow.vocabulary.messages import Msg, Pending


def _suspended(number: int) -> list[Fact]:
    """Return the facts of a suspended call: a sub-agent that runs as its tool call `t1` waits for an approval."""
    opened, run_id, call_id = a_call(number)[0], f"run_{number}", f"call_{number}"
    pending = Pending("t1/s1", "approval", within="t1")
    return [opened, RoundSuspended(run_id, (pending,), call_id), CallClosed(run_id, call_id, "suspended")]


async def _listed(trial: StoreTrial, *ids: str) -> list[tuple[str, int, str]]:
    return [(info.id, info.version, info.status) for info in await trial.store.sessions() if info.id in ids]


async def listing(trial: StoreTrial) -> None:
    """The list has id, version and status of each session, most recently used first."""
    idle, interrupted, suspended = (trial.new_session() for _ in range(3))
    for session_id, facts in ((idle, a_call(1)), (interrupted, a_call(2)[:1]), (suspended, _suspended(3))):
        await trial.keep(session_id, facts)
        await asyncio.sleep(0.002)  # so that the times of use differ
    wanted = [(suspended, 3, "suspended"), (interrupted, 1, "unfinished"), (idle, 3, "idle")]
    trial.same(await _listed(trial, idle, interrupted, suspended), wanted, "lists id, version, status or order wrongly")
    await trial.keep(idle, a_call(4)[:1])
    wanted = [(idle, 4, "unfinished"), *wanted[:2]]
    trial.same(await _listed(trial, idle, interrupted, suspended), wanted, "does not keep the list up to date")
    # `%` and `_` are wildcards of SQL's LIKE, which in SQLite also ignores the case.
    for name in (stem := trial.new_session(), f"{stem}%", f"{stem.upper()}%", f"{stem}_", f"{stem}☂/1"):
        await trial.keep(name, a_call(5))
    for prefix, ids in ((f"{stem}%", [f"{stem}%"]), (f"{stem}_", [f"{stem}_"]), (f"{stem}☂", [f"{stem}☂/1"])):
        found = [info.id for info in await trial.store.sessions(prefix)]
        trial.same(found, ids, f"lists sessions other than those with an id that starts with {prefix!r}")


async def fork(trial: StoreTrial) -> None:
    """A fork has the facts up to `at`, and is independent; sessions of waiting sub-agents are forked too."""
    store, s = trial.store, trial.new_session()
    everything = [*a_call(1), *a_call(2)]
    await trial.keep(s, everything)
    for at, count in ((None, 6), (5, 5), (1, 1), ("run_1", 3)):
        copy = trial.new_session()
        await store.fork(s, copy, at=at)
        await trial.holds(copy, everything[:count], f"forks facts other than those that at={at!r} specifies")
        await trial.keep(copy, a_call(7), expected=count)
        await trial.holds(s, everything, "writes to the original when a fork is written")
    for at in (0, -1, 7, "run_9"):
        await trial.refused(
            lambda at=at: store.fork(s, trial.new_session(), at=at), f"a fork at={at!r}, which does not exist"
        )
    await _names_are_checked(trial, s, store.fork, "fork")
    suspended, copy = trial.new_session(), trial.new_session()
    await trial.keep(suspended, _suspended(3))
    await trial.keep(inner_session_id(suspended, "t1"), a_call(4)[:1])
    await store.fork(suspended, copy)
    inner = inner_session_id(copy, "t1")
    await trial.holds(inner, a_call(4)[:1], "does not fork the sub-agent's session for which a forked one waits")


async def _names_are_checked(trial: StoreTrial, s: str, work: Callable[[str, str], Any], word: str) -> None:
    """A missing session is refused, and an existing one is not overwritten."""
    existing = trial.new_session()
    await trial.keep(existing, a_call(5))
    await trial.refused(lambda: work(s, existing), f"{word} to an id that is taken")
    await trial.holds(existing, a_call(5), f"overwrites a session by {word}")
    missing, free = trial.new_session(), trial.new_session()
    await trial.refused(lambda: work(missing, free), f"{word} of a missing session")
    await trial.holds(free, [], f"creates a session by {word} of a missing one")


async def rename(trial: StoreTrial) -> None:
    """A renamed session keeps its facts, and the sessions of its sub-agents move with it; the old id is free."""
    s, new = trial.new_session(), trial.new_session()
    await trial.keep(s, a_call(1))
    await _names_are_checked(trial, s, trial.store.rename, "rename")
    await trial.store.rename(s, new)
    await trial.holds(s, [], "keeps the old id of a renamed session")
    await trial.keep(new, a_call(2), expected=3)
    await trial.holds(new, [*a_call(1), *a_call(2)], "loses facts of a renamed session")
    await trial.keep(s, a_call(3), expected=0)
    suspended, new, inner, other = await _family(trial)
    await trial.store.rename(suspended, new)
    await trial.holds(inner, [], "keeps the old id of a sub-agent's session inside a renamed one")
    doing = "does not rename the sub-agent's session for which a renamed one waits"
    await trial.holds(inner_session_id(new, "t1"), a_call(4)[:1], doing)
    await trial.holds(other, a_call(5), "renames a session that only has a similar id")


async def _family(trial: StoreTrial) -> tuple[str, str, str, str]:
    """Store a session, a sub-agent's session in it, and one with a similar id; return their ids, the second one unused."""
    suspended, unused = trial.new_session(), trial.new_session()
    inner, other = inner_session_id(suspended, "t1"), f"{suspended}/of another user"
    await trial.keep(suspended, _suspended(3))
    await trial.keep(inner, a_call(4)[:1])
    await trial.keep(other, a_call(5))
    return suspended, unused, inner, other


async def delete(trial: StoreTrial) -> None:
    """A deleted session is removed with its facts and the sessions of its sub-agents; a writer that expects it to exist
    gets an error.
    """
    store, s, other = trial.store, trial.new_session(), trial.new_session()
    for session_id in (s, other):
        await trial.keep(session_id, a_call(1))
    existed = [await store.delete(s), await store.delete(s)]
    trial.same(existed, [True, False], "does not report whether a deleted session existed")
    await trial.holds(s, [], "keeps facts of a deleted session")
    await trial.holds(other, a_call(1), "deletes another session too")
    doing = "an append to a session that was deleted meanwhile"
    await trial.refused(lambda: store.append(s, a_call(2), expected=3), doing, SessionConflictError)
    await trial.keep(s, a_call(1), expected=0)
    await trial.holds(s, a_call(1), "does not allow a new session with the id of a deleted one")
    suspended, _, inner, other = await _family(trial)
    await store.delete(suspended)
    await trial.holds(inner, [], "keeps the sessions of sub-agents inside a deleted session")
    await trial.holds(other, a_call(5), "deletes a session that only has a similar id")


async def prune(trial: StoreTrial) -> None:
    """prune() deletes idle sessions, but never sessions with open calls, those of their sub-agents, or those in `keep`."""
    store = trial.store
    idle, protected, interrupted = (trial.new_session() for _ in range(3))
    inner = inner_session_id(interrupted, "t1")
    expected = {idle: a_call(1), protected: a_call(2), interrupted: a_call(3)[:1], inner: a_call(4)}
    for session_id, facts in expected.items():
        await trial.keep(session_id, facts)
    others = [info.id for info in await store.sessions() if info.id not in expected]
    keep = [*others, protected]
    for wrong in cast("tuple[Any, ...]", (30, timedelta(-1))):
        try:
            await store.prune(older_than=wrong, keep=[*keep, *expected])
        except UsageError:
            continue
        raise FlawFound(
            "prune",
            f"accepts older_than={wrong!r} instead of raising a UsageError: it is not a timedelta of at least 0",
        )

    async def pruned(age: timedelta, *statuses: Any) -> list[str]:
        found = await store.prune(older_than=age, keep=keep, **({"statuses": statuses} if statuses else {}))
        return sorted(info.id for info in found)

    await asyncio.sleep(0.01)
    trial.same(await pruned(timedelta(days=1)), [], "prunes recently written sessions")
    trial.same(await pruned(timedelta(0)), [idle], "prunes sessions other than the idle ones")
    await trial.holds(idle, [], "keeps facts of a session reported as pruned")
    wanted = sorted([interrupted, inner])
    trial.same(await pruned(timedelta(0), "idle", "unfinished"), wanted, "does not prune by the given statuses")
    await trial.holds(protected, a_call(2), "prunes a session in keep=")


async def exchange(trial: StoreTrial) -> None:
    """An exported session is imported unchanged; no session is overwritten, and invalid data is refused."""
    store, s, copy = trial.store, trial.new_session(), trial.new_session()
    facts: Sequence[Fact] = [SessionBegan((Msg.user("before", id="u0"),)), *a_call(1)]
    await trial.keep(s, facts)
    data = read_json_text(json.dumps(await store.export(s)))
    trial.same(await store.import_(data, copy), copy, "does not return the id of the imported session")
    await trial.holds(copy, facts, "imports facts other than those exported")
    await trial.refused(lambda: store.import_(data), "the import of a session whose id is taken")
    await trial.holds(s, facts, "overwrites a session by an import")
    await store.delete(s)
    trial.same(await store.import_(data), s, "does not import under the session's own id")
    await trial.refused(lambda: store.export(trial.new_session()), "the export of a missing session")
    invalid_data: tuple[Any, ...] = ({}, [], {**data, "facts": "none"}, {**data, "format": "another"})
    for wrong in invalid_data:
        free = trial.new_session()
        await trial.refused(lambda wrong=wrong, free=free: store.import_(wrong, free), f"the import of {wrong!r:.60}")
        await trial.holds(free, [], "creates a session from refused data")


async def newer(trial: StoreTrial) -> None:
    """Data of a newer agentflow is refused, not partly read."""
    store, s = trial.store, trial.new_session()
    await trial.keep(s, a_call(1))
    data = read_json_text(json.dumps(await store.export(s)))
    later = [{**fact, "version": fact["version"] + 1} for fact in data["facts"]]
    unknown = [{**fact, "kind": "call_dreamt"} for fact in data["facts"]]
    for new in ({**data, "version": data["version"] + 1}, {**data, "facts": later}, {**data, "facts": unknown}):
        free = trial.new_session()
        doing = "the import of data from a newer agentflow"
        await trial.refused(lambda new=new, free=free: store.import_(new, free), doing)
        await trial.holds(free, [], "partly reads data from a newer agentflow")
