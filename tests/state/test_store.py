"""The contract of every session store: versions, one writer at a time, and the management of sessions."""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Sequence
from datetime import timedelta
from typing import Any, get_args

import pytest

from agentflow._support.ids import inner_session_id
from agentflow.agent.agent import Agent
from agentflow.errors import SessionConflictError, StoreError, UsageError
from agentflow.loop.history import fold_facts
from agentflow.loop.session import Session
from agentflow.testing import ScriptedModel
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
from agentflow.vocabulary.messages import Msg, Pending, ToolResultBlock, ToolUseBlock
from agentflow.vocabulary.ports.store import SessionInfo, SessionStore, Store, inner_point, no_session
from agentflow.vocabulary.saving.codec import SavedSession, session_to_dict
from agentflow.vocabulary.specs import Usage

SAVED = session_to_dict(SavedSession("s"))


def call(number: int, run: str = "") -> list[Fact]:
    """The facts of a call without tools."""
    run_id, call_id = run or f"run_{number}", f"call_{number}"
    reply = Msg.assistant(f"a{number}", id=f"m{number}")
    return [
        CallOpened(run_id, call_id, (Msg.user(f"q{number}", id=f"u{number}"),), 5),
        Reasoned(run_id, 1, reply, Usage(), 1.0),
        CallClosed(run_id, call_id, "completed", reply),
    ]


async def append(store: Store, session_id: str, facts: Sequence[Fact], **options: Any) -> None:
    kept = store.append(session_id, facts, **options)
    if kept is not None:
        await kept


async def load(store: Store, session_id: str) -> list[Fact]:
    found = store.load(session_id)
    return list(await found if isinstance(found, Awaitable) else found)


async def texts(store: Store, session_id: str) -> list[str]:
    return [msg.text for msg in fold_facts(await load(store, session_id))]


async def listed(store: SessionStore) -> list[tuple[str, int, str]]:
    return sorted((info.id, info.version, info.status) for info in await store.sessions())


async def test_facts_come_back_in_order(store: SessionStore) -> None:
    """Appended facts are loaded, oldest first; an unknown session has no facts."""
    assert isinstance(store, SessionStore)
    await append(store, "s", call(1))
    await append(store, "s", call(2))
    await append(store, "other", call(3))
    assert await load(store, "s") == [*call(1), *call(2)]
    assert await load(store, "nobody") == []


async def test_a_writer_that_knows_another_version_writes_nothing(store: SessionStore) -> None:
    """Of two writers at one version the second gets a SessionConflictError; the session has the first one's facts
    only.
    """
    await append(store, "s", call(1), expected=0)
    await append(store, "s", call(2), expected=3)
    with pytest.raises(SessionConflictError) as caught:
        await append(store, "s", call(3), expected=3)
    assert str(caught.value) == (
        "Session 's' was changed by another writer: 3 facts were known here, it has 6 facts now. Nothing was "
        "written. Make the call again: the agent then reloads the session. To let calls wait for each other instead: "
        "SqlStore(url, on_conflict='wait')."
    )
    assert await load(store, "s") == [*call(1), *call(2)]


async def test_a_new_session_is_made_once(store: SessionStore) -> None:
    """Two writers that both assume a new session: the second one gets a conflict."""
    await append(store, "s", call(1), expected=0)
    with pytest.raises(SessionConflictError, match="0 facts were known here, it has 3"):
        await append(store, "s", call(2), expected=0)


async def test_a_session_that_was_deleted_meanwhile(store: SessionStore) -> None:
    """A writer to a deleted session gets a conflict, and does not create half a session."""
    await append(store, "s", call(1))
    assert await store.delete("s")
    with pytest.raises(SessionConflictError, match="it no longer exists"):
        await append(store, "s", call(2), expected=3)
    assert await load(store, "s") == []


async def test_delivered_twice_is_stored_once(store: SessionStore) -> None:
    """The same facts at the same position are recognised as a repeated delivery."""
    for _ in range(2):
        await append(store, "s", call(1), expected=0)
        await append(store, "s", [ToolStarted("r", "t", 1)], expected=3)
    assert await load(store, "s") == [*call(1), ToolStarted("r", "t", 1)]


async def test_without_a_version_known_facts_are_left_out(store: SessionStore) -> None:
    """A writer without a version adds the facts that are missing, by natural key."""
    await append(store, "s", call(1)[:2])
    await append(store, "s", [*call(1), *call(2)])
    await append(store, "s", call(2))
    assert await load(store, "s") == [*call(1), *call(2)]


KEYED = [
    ToolDecided("run_1", "t", ToolUseBlock("t", "n", {}), None, "call_1"),
    ToolStarted("run_1", "t", 1, "call_1"),
    ToolStarted("run_1", "t", 2, "call_1"),
    ToolFinished("run_1", "t", ToolUseBlock("t", "n", {}), ToolResultBlock("t", "n", "r"), 1.0),
    RoundClosed("run_1", "m_round", (ToolResultBlock("t", "n", "r"),)),
    Injected("run_1", (Msg.user("psst", id="i"),), None, None, "call_1", 1),
    Injected("run_1", (Msg.user("psst", id="i"),), None, None, "call_1", 2),
    Compacted("run_1", 1, (), "call_1", 3),
    RoundSuspended("run_1", (), "call_1"),
    CallResumed("run_1", "call_1b"),
    ToolDecided("run_1", "t", ToolUseBlock("t", "n", {}), None, "call_1b"),
    ToolStarted("run_1", "t", 1, "call_1b"),
    RoundSuspended("run_1", (), "call_1b"),
]


async def test_every_fact_has_a_natural_key(store: SessionStore) -> None:
    """Each kind is recognised when it is delivered again; a legitimate repetition (another attempt, another call of
    the run, the same text again) is another fact.
    """
    facts = [*call(1)[:1], *KEYED]
    assert {type(fact) for fact in [*facts, *call(1), SessionBegan(())]} == set(get_args(Fact)) - {StateKept}
    await append(store, "s", facts)
    for fact in facts:
        await append(store, "s", [fact])
    await append(store, "s", facts)
    assert await load(store, "s") == facts


async def test_one_key_with_two_contents_is_a_conflict(store: SessionStore) -> None:
    """A fact whose natural key exists with another content is refused, with its whole append."""
    await append(store, "s", call(1))
    other = call(1)[1]._replace(message=Msg.assistant("something else"))
    with pytest.raises(SessionConflictError, match="'run_1:1:reasoned': two writers work on the same call"):
        await append(store, "s", [*call(2), other])
    assert await load(store, "s") == call(1)


async def test_the_list_of_sessions(store: SessionStore) -> None:
    """The list has id, version and status, the last used first."""
    await append(store, "done", call(1))
    await append(store, "open", call(2)[:1])
    waits = CallClosed("run_3", "call_3", "suspended", None)
    await append(store, "waits", [*call(3)[:1], RoundSuspended("run_3", ()), waits])
    found = await store.sessions()
    assert {info.id: (info.version, info.status, info.suspended) for info in found} == {
        "done": (3, "idle", False),
        "open": (1, "unfinished", False),
        "waits": (3, "suspended", True),
    }
    assert [info.updated for info in found] == sorted((info.updated for info in found), reverse=True)
    await append(store, "done", [*call(4)[:1]])
    assert isinstance((await store.sessions())[0], SessionInfo)
    assert [info.status for info in await store.sessions() if info.id == "done"] == ["unfinished"]


async def test_fork_at_any_point(store: SessionStore) -> None:
    """A fork has the first facts; at the end of a call it is idle, within one it is unfinished. Both continue
    independently.
    """
    await append(store, "s", [*call(1), *call(2)])
    await store.fork("s", "all")
    await store.fork("s", "first", at="run_1")
    await store.fork("s", "within", at=5)
    await append(store, "first", call(3), expected=3)
    assert await texts(store, "first") == ["q1", "a1", "q3", "a3"]
    assert await texts(store, "s") == await texts(store, "all") == ["q1", "a1", "q2", "a2"]
    assert await listed(store) == [
        ("all", 6, "idle"),
        ("first", 6, "idle"),
        ("s", 6, "idle"),
        ("within", 5, "unfinished"),
    ]


@pytest.mark.parametrize("at", [0, -1, 4, "run_9"])
async def test_fork_where_there_is_nothing(store: SessionStore, at: int | str) -> None:
    """The error names a position that does not exist, and the existing ones."""
    await append(store, "s", call(1))
    with pytest.raises(StoreError, match=r"a number of facts from 1 to 3, or the run_id of one of its calls"):
        await store.fork("s", "new", at=at)
    assert await listed(store) == [("s", 3, "idle")]


async def test_a_stored_session_is_checked_without_loading_it(store: SessionStore) -> None:
    """`Session.check` reports the content of a stored session, and where its facts stop fitting together. A fork
    saves the part before that place, and nothing else is written.
    """
    waits = ToolUseBlock("t1", "pay", {})
    asks = Reasoned("run_2", 1, Msg.assistant([waits], id="m2"), Usage(), 1.0)
    opened = CallOpened("run_2", "call_2", (Msg.user("q2", id="u2"),), 5)
    await append(store, "s", [*call(1), opened])
    found = await Session.check(store, "s")
    assert (found.ok, found.id, found.facts, found.status, found.pending) == (True, "s", 4, "unfinished", ())
    assert [msg.text for msg in found.messages] == ["q1", "a1", "q2"]
    pending = Pending("t1", "approval", None, waits, "hook")
    await append(store, "s", [asks, RoundSuspended("run_2", (pending,)), CallClosed("run_2", "call_2", "suspended")])
    found = await Session.check(store, "s")
    assert (found.ok, found.status, found.pending) == (True, "suspended", (pending,))
    await append(store, "s", [CallOpened("run_3", "call_3", (), 5), *call(4)])
    found = await Session.check(store, "s")
    assert (found.ok, found.facts, found.broken_at, found.status) == (False, 11, 7, "suspended")
    assert "CallOpened" in found.problem
    with pytest.raises(StoreError, match=r"number 8 is illegal .*await store\.fork\('s', 'new-id', at=7\)"):
        await Agent("a", ScriptedModel(["x"]), store=store).call("go", session="s")
    await store.fork("s", "saved", at=7)
    assert (await Session.check(store, "saved")).ok
    assert (await Session.check(store, "s")).facts == 11
    with pytest.raises(StoreError, match="There is no session 'nobody'"):
        await Session.check(store, "nobody")


async def test_rename(store: SessionStore) -> None:
    """A renamed session keeps its facts; the old id is free."""
    await append(store, "old", call(1))
    await store.rename("old", "new")
    await append(store, "new", call(2), expected=3)
    assert await load(store, "old") == []
    assert await texts(store, "new") == ["q1", "a1", "q2", "a2"]


async def test_delete(store: SessionStore) -> None:
    """A deleted session is gone with its facts; others stay; deleting it again raises an error."""
    await append(store, "s", call(1))
    await append(store, "other", call(2))
    assert [await store.delete("s"), await store.delete("s")] == [True, False]
    assert await listed(store) == [("other", 3, "idle")]
    await append(store, "s", call(3), expected=0)
    assert await load(store, "s") == call(3)


async def test_there_and_back_as_json(store: SessionStore) -> None:
    """A session that is exported and imported under another id is the same."""
    await append(store, "s", [SessionBegan((Msg.user("before", id="u0"),)), *call(1)])
    data = json.loads(json.dumps(await store.export("s")))
    assert await store.import_(data, "copy") == "copy"
    assert await load(store, "copy") == await load(store, "s")
    await store.delete("s")
    assert await store.import_(data) == "s"
    assert await texts(store, "s") == ["before", "q1", "a1"]


async def test_ids_that_are_taken(store: SessionStore) -> None:
    """Nothing is overwritten: fork, rename and import refuse an id that is in use."""
    await append(store, "s", call(1))
    await append(store, "t", call(2))
    for attempt in (store.fork("s", "t"), store.rename("s", "t"), store.import_(await store.export("s"), "t")):
        with pytest.raises(StoreError, match=r"Session 't' exists already\. Choose another id, or delete it first\."):
            await attempt
    assert (await load(store, "s"), await load(store, "t")) == (call(1), call(2))


async def test_sessions_that_are_not_there(store: SessionStore) -> None:
    """Fork, rename and export of a missing session raise an error."""
    for attempt in (store.fork("x", "y"), store.rename("x", "y"), store.export("x")):
        with pytest.raises(StoreError, match="There is no session 'x' in this store"):
            await attempt


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ({"name": "not ours"}, "This is not a saved session"),
        ({**SAVED, "version": 99}, "A newer version wrote it: upgrade agentflow here"),
        ({**SAVED, "facts": [{"kind": "call_opened", "version": 1, "fact": {}}]}, "the call_opened has wrong fields"),
    ],
)
async def test_foreign_json(store: SessionStore, data: Any, says: str) -> None:
    """JSON that is no session is refused, and nothing is stored."""
    with pytest.raises(StoreError, match=says):
        await store.import_(data)
    assert await store.sessions() == []


def on_day(monkeypatch: pytest.MonkeyPatch, day: float) -> None:
    """Set this process's clock."""
    monkeypatch.setattr(time, "time", lambda: 1e9 + day * 86_400)


async def test_prune(store: SessionStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sessions without a write for that long are deleted; an open call and its sub-agents' sessions are kept, unless
    requested.
    """
    begun, waits = call(1)[:1], [*call(2)[:1], RoundSuspended("run_2", ())]
    old = {"old": call(4), "old/t1": call(7), "old/t2": begun, "cut": begun, "cut/t1": call(6), "waits": waits}
    on_day(monkeypatch, 1)
    for name, facts in old.items():
        await append(store, name, facts)
    on_day(monkeypatch, 8)
    for name in ("new", "new/t1"):
        await append(store, name, call(3))
    on_day(monkeypatch, 10)
    assert await store.prune(older_than=timedelta(days=20)) == []
    gone = await store.prune(older_than=timedelta(days=5))
    assert sorted((info.id, info.version, info.status) for info in gone) == [("old", 3, "idle"), ("old/t1", 3, "idle")]
    assert [name for name, _, _ in await listed(store)] == ["cut", "cut/t1", "new", "new/t1", "old/t2", "waits"]
    assert (await load(store, "old"), await load(store, "cut/t1")) == ([], call(6))
    gone = await store.prune(older_than=timedelta(days=5), statuses=("idle", "unfinished"))
    assert sorted(info.id for info in gone) == ["cut", "cut/t1", "old/t2"]
    assert [name for name, _, _ in await listed(store)] == ["new", "new/t1", "waits"]


async def test_prune_beside_a_long_id(store: SessionStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sub-agent's session stays with its caller, even if the caller's id is too long to be a part of its own."""
    caller = "c" * 250
    on_day(monkeypatch, 1)
    await append(store, caller, call(1)[:1])
    await append(store, inner_session_id(caller, "t1"), call(2))
    await append(store, inner_session_id("another" * 30, "t1"), call(3))
    on_day(monkeypatch, 10)
    assert [info.id for info in await store.prune(older_than=timedelta(days=5))] == [
        inner_session_id("another" * 30, "t1")
    ]
    assert await load(store, inner_session_id(caller, "t1")) == call(2)


async def test_a_writer_whose_session_was_pruned(store: SessionStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer that knows a pruned session is refused once, and then begins a new one."""
    agent = Agent("a", ScriptedModel(["1", "2", "3"]), store=store)
    on_day(monkeypatch, 1)
    await agent.call("x", session="s")
    on_day(monkeypatch, 3)
    assert [info.id for info in await store.prune(older_than=timedelta(days=1))] == ["s"]
    with pytest.raises(SessionConflictError, match="it no longer exists"):
        await agent.call("y", session="s")
    assert (await agent.call("z", session="s")).outcome == "completed"
    assert await texts(store, "s") == ["z", "2"]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"older_than": 30}, r"prune\(older_than=30\) is invalid; pass a timedelta, such as timedelta\(days=30\)"),
        ({"older_than": timedelta(-1)}, "pass a timedelta"),
        ({"older_than": timedelta(1), "statuses": "idle"}, "pass a tuple of 'idle', 'unfinished', 'suspended'"),
        ({"older_than": timedelta(1), "statuses": ("done",)}, "pass a tuple of"),
    ],
)
async def test_what_prune_does_not_take(store: SessionStore, given: Any, says: str) -> None:
    """A duration without a unit, or an unknown status, deletes nothing."""
    await append(store, "s", call(1))
    with pytest.raises(UsageError, match=says):
        await store.prune(**given)
    assert await load(store, "s") == call(1)


def test_a_session_that_is_missing_is_reported_with_ten_others() -> None:
    """In their order, and no others."""
    known = [f"s{n:02}" for n in range(12)]
    names = ", ".join(repr(name) for name in known[:10])
    assert str(no_session("x", reversed(known))) == (
        f"There is no session 'x' in this store (there are {names}); store.sessions() lists them."
    )


def test_a_fork_at_a_suspension_takes_the_sub_agent_up_to_its_own() -> None:
    """Decisions after the suspension are not part of the fork; without a suspension in the fork they are."""
    facts = [
        CallOpened("r", "c", (Msg.user("go"),), 1),
        ToolStarted("r", "t1", 1),
        RoundSuspended("r", (Pending("t1/q", within="t1"),)),
        CallClosed("r", "c", "suspended"),
    ]
    inner = [
        CallOpened("i", "c", (Msg.user("sub", metadata={"within": "t1"}),), 1),
        RoundSuspended("i", (Pending("q"),)),
        CallClosed("i", "c", "suspended"),
        CallResumed("i2", "c"),
        CallOpened("i3", "c3", (Msg.user("again", metadata={"within": "t9"}),), 1),
    ]
    assert inner_point(facts, inner) == 3
    assert inner_point(facts[:2], inner) == 4
