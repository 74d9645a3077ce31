"""The contract of every session store: versions, one writer at a time, and looking after sessions."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Sequence
from typing import Any

import pytest

from agentflow.codec import SavedSession, session_to_dict
from agentflow.errors import SessionConflictError, StoreError
from agentflow.facts import CallClosed, CallOpened, Fact, Reasoned, RoundSuspended, SessionBegan, ToolStarted
from agentflow.loop.history import fold_facts
from agentflow.messages import Msg
from agentflow.ports.store import SessionInfo, SessionStore, Store
from agentflow.specs import Usage

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
    """What was appended is loaded, oldest first; a session that nobody made has no facts."""
    assert isinstance(store, SessionStore)
    await append(store, "s", call(1))
    await append(store, "s", call(2))
    await append(store, "other", call(3))
    assert await load(store, "s") == [*call(1), *call(2)]
    assert await load(store, "nobody") == []


async def test_a_writer_that_knows_another_version_writes_nothing(store: SessionStore) -> None:
    """Of two writers at one version the second gets a SessionConflictError; the session holds the first one's facts alone."""
    await append(store, "s", call(1), expected=0)
    await append(store, "s", call(2), expected=3)
    with pytest.raises(SessionConflictError) as caught:
        await append(store, "s", call(3), expected=3)
    assert str(caught.value) == (
        "Session 's' was changed by another writer: 3 facts were known here, it has 6 facts now. Nothing of this was "
        "written. Call again: the agent loads the session anew. To let calls wait for each other instead: "
        "SqlStore(url, on_conflict='wait')."
    )
    assert await load(store, "s") == [*call(1), *call(2)]


async def test_a_new_session_is_made_once(store: SessionStore) -> None:
    """Two writers that both think the session is new: the second one conflicts."""
    await append(store, "s", call(1), expected=0)
    with pytest.raises(SessionConflictError, match="0 facts were known here, it has 3"):
        await append(store, "s", call(2), expected=0)


async def test_a_session_that_was_deleted_meanwhile(store: SessionStore) -> None:
    """A writer to a session that is gone is told so, and does not make half a session."""
    await append(store, "s", call(1))
    assert await store.delete("s")
    with pytest.raises(SessionConflictError, match="it is not there any more"):
        await append(store, "s", call(2), expected=3)
    assert await load(store, "s") == []


async def test_delivered_twice_is_stored_once(store: SessionStore) -> None:
    """The same facts at the same place are taken for what they are: a delivery that was repeated."""
    for _ in range(2):
        await append(store, "s", call(1), expected=0)
        await append(store, "s", [ToolStarted("r", "t", 1)], expected=3)
    assert await load(store, "s") == [*call(1), ToolStarted("r", "t", 1)]


async def test_without_a_version_known_facts_are_left_out(store: SessionStore) -> None:
    """A writer that names no version adds what is not there yet, by natural key."""
    await append(store, "s", call(1)[:2])
    await append(store, "s", [*call(1), *call(2)])
    await append(store, "s", call(2))
    assert await load(store, "s") == [*call(1), *call(2)]


async def test_one_key_with_two_contents_is_a_conflict(store: SessionStore) -> None:
    """A fact whose natural key is taken by another content is refused, with all that came with it."""
    await append(store, "s", call(1))
    other = call(1)[1]._replace(message=Msg.assistant("something else"))
    with pytest.raises(SessionConflictError, match="'run_1:1:reasoned': two writers work on the same call"):
        await append(store, "s", [*call(2), other])
    assert await load(store, "s") == call(1)


async def test_the_list_of_sessions(store: SessionStore) -> None:
    """The list tells id, version and status, the last used first."""
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
    """A fork holds the first facts; cut behind a call it is idle, cut within one it is unfinished. Both go their own ways."""
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
    """A point that does not exist is named, with those that do."""
    await append(store, "s", call(1))
    with pytest.raises(StoreError, match=r"a number of facts from 1 to 3, or the run_id of one of its calls"):
        await store.fork("s", "new", at=at)
    assert await listed(store) == [("s", 3, "idle")]


async def test_rename(store: SessionStore) -> None:
    """A renamed session keeps its facts; the old id is free."""
    await append(store, "old", call(1))
    await store.rename("old", "new")
    await append(store, "new", call(2), expected=3)
    assert await load(store, "old") == []
    assert await texts(store, "new") == ["q1", "a1", "q2", "a2"]


async def test_delete(store: SessionStore) -> None:
    """A deleted session is gone with its facts; others stay; deleting it again says that it was not there."""
    await append(store, "s", call(1))
    await append(store, "other", call(2))
    assert [await store.delete("s"), await store.delete("s")] == [True, False]
    assert await listed(store) == [("other", 3, "idle")]
    await append(store, "s", call(3), expected=0)
    assert await load(store, "s") == call(3)


async def test_there_and_back_as_json(store: SessionStore) -> None:
    """What is exported and imported under another id is the same session."""
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
    """Fork, rename and export of a session that does not exist say so."""
    for attempt in (store.fork("x", "y"), store.rename("x", "y"), store.export("x")):
        with pytest.raises(StoreError, match="There is no session 'x' in this store"):
            await attempt


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ({"name": "not ours"}, "This is no saved session"),
        ({**SAVED, "version": 99}, "A newer one wrote it: upgrade agentflow here"),
        ({**SAVED, "facts": [{"kind": "call_opened", "version": 1, "fact": {}}]}, "the call_opened has wrong fields"),
    ],
)
async def test_foreign_json(store: SessionStore, data: Any, says: str) -> None:
    """JSON that is no session is refused, and nothing is stored."""
    with pytest.raises(StoreError, match=says):
        await store.import_(data)
    assert await store.sessions() == []
