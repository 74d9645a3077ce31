"""Stores with one planted defect each."""

from __future__ import annotations

import asyncio
import tempfile
import threading
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from agentflow.errors import SessionConflictError, StoreError
from agentflow.state.sql import SqlStore
from agentflow.testing.store_checks.trial import StoreFlaw
from agentflow.vocabulary.facts import Fact, Reasoned
from agentflow.vocabulary.ports.memory_store import MemoryStore
from agentflow.vocabulary.ports.store import SessionStore, Store
from agentflow.vocabulary.ports.store_wrapper import StoreWrapper
from agentflow.vocabulary.saving.codec import CODEC_VERSION, fact_from_json, fact_to_json


class Lines:
    """The least that a store has to be, without a defect."""

    def __init__(self) -> None:
        self.lines: dict[str, list[str]] = {}

    async def append(self, session_id: str, facts: Sequence[Fact]) -> None:
        self.lines.setdefault(session_id, []).extend(fact_to_json(fact) for fact in facts)

    async def load(self, session_id: str) -> Sequence[Fact]:
        return [fact_from_json(line) for line in self.lines.get(session_id, [])]


class Newest(MemoryStore):
    """Gives the newest fact first."""

    def load(self, session_id: str) -> Any:
        return tuple(reversed(super().load(session_id)))  # pyright: ignore[reportArgumentType]


class WhenAwaited(MemoryStore):
    """Takes the facts when it is awaited, not when it is called."""

    async def append(self, session_id: str, facts: Sequence[Fact], **options: Any) -> None:  # pyright: ignore
        super().append(session_id, facts, **options)


class Shows(MemoryStore):
    """Hands out its own list."""

    def load(self, session_id: str) -> Any:
        journal = self._journals.get(session_id)
        return [] if journal is None else journal.facts


class KeepsTheList:
    """Keeps the list that it was given."""

    def __init__(self) -> None:
        self.facts: dict[str, Any] = {}

    async def append(self, session_id: str, facts: Sequence[Fact]) -> None:
        self.facts[session_id] = facts if session_id not in self.facts else [*self.facts[session_id], *facts]

    async def load(self, session_id: str) -> Sequence[Fact]:
        return tuple(self.facts.get(session_id, ()))


class Forgets(MemoryStore):
    """Does not write down which model it was."""

    def append(self, session_id: str, facts: Sequence[Fact], **options: Any) -> Any:
        kept = [fact._replace(model="") if isinstance(fact, Reasoned) else fact for fact in facts]
        return super().append(session_id, kept, **options)


class Unversioned(MemoryStore):
    """Takes no notice of `expected=`."""

    def append(self, session_id: str, facts: Sequence[Fact], *, expected: Any = None, claim: Any = None) -> Any:
        return super().append(session_id, facts, claim=claim)


class Keyless(MemoryStore):
    """Does not know what it has already."""

    def append(self, session_id: str, facts: Sequence[Fact], *, expected: Any = None, claim: Any = None) -> Any:
        if expected is None:
            self._journal(session_id).add(facts)
            return None
        return super().append(session_id, facts, expected=expected, claim=claim)


class OneByOne(MemoryStore):
    """Writes fact by fact, up to the one that it refuses."""

    def append(self, session_id: str, facts: Sequence[Fact], *, expected: Any = None, claim: Any = None) -> Any:
        if expected is not None:
            return super().append(session_id, facts, expected=expected, claim=claim)
        for fact in facts:
            super().append(session_id, [fact])
        return None


class Queueing(MemoryStore):
    """Reads the version when it is called, and writes a turn of the loop later."""

    def append(self, session_id: str, facts: Sequence[Fact], *, expected: Any = None, claim: Any = None) -> Any:
        there = len(self._journal(session_id).facts)
        given = list(facts)
        if expected is not None and expected != there:
            return super().append(session_id, facts, expected=expected)

        async def later() -> None:
            if expected is None:
                MemoryStore.append(self, session_id, given)
            else:
                self._journal(session_id).add(given)

        return asyncio.ensure_future(later())


class Slowly(MemoryStore):
    """Writes fact by fact, with a turn of the loop in between: a cancellation leaves a part."""

    def __init__(self) -> None:
        super().__init__()
        self.last: dict[Any, asyncio.Future[None]] = {}
        self.alone = threading.Lock()

    def append(self, session_id: str, facts: Sequence[Fact], *, expected: Any = None, claim: Any = None) -> Any:
        loop, given = asyncio.get_running_loop(), list(facts)
        before = self.last.get(loop)

        async def later() -> None:
            if before is not None:
                await asyncio.wait([before])
            with self.alone:  # other threads' loops wait
                checked = MemoryStore()
                checked._journals[session_id] = type(self._journal(session_id))()
                checked._journals[session_id].add(self._journal(session_id).facts)
                checked.append(session_id, given, expected=expected)
                for fact in checked._journals[session_id].facts[len(self._journal(session_id).facts) :]:
                    self._journal(session_id).add([fact])
                    await asyncio.sleep(0)

        self.last[loop] = asyncio.ensure_future(later())
        return self.last[loop]


class Swallows(StoreWrapper):
    """Makes a failure of a cancellation."""

    def append(self, session_id: str, facts: Sequence[Fact], **options: Any) -> Any:  # pyright: ignore
        kept = self.inner.append(session_id, facts, **options)

        async def wait() -> None:
            try:
                await asyncio.sleep(0.001)
                if kept is not None:
                    await kept
            except asyncio.CancelledError:
                raise StoreError("cut") from None

        return asyncio.ensure_future(wait())


class Unfenced(StoreWrapper):
    """Forgets under which claim it writes."""

    def append(self, session_id: str, facts: Sequence[Fact], *, expected: Any = None, claim: Any = None) -> Any:
        return self.inner.append(session_id, facts, expected=expected)


class OldestFirst(MemoryStore):
    """Lists the last used last."""

    async def sessions(self, prefix: str = "") -> Any:
        return list(reversed(await super().sessions(prefix)))


class IgnoresCase(MemoryStore):
    """Lists sessions whose ids start with the prefix in another case."""

    async def sessions(self, prefix: str = "") -> Any:
        return [info for info in await super().sessions() if info.id.lower().startswith(prefix.lower())]


class AlwaysDeleted(MemoryStore):
    """Says that everything was there."""

    async def delete(self, session_id: str) -> bool:
        await super().delete(session_id)
        return True


class Overwrites(MemoryStore):
    """Overwrites an existing session by renaming."""

    async def rename(self, session_id: str, new_id: str) -> None:
        if session_id in self._journals:
            await self.delete(new_id)
        await super().rename(session_id, new_id)


class DeletesOne(MemoryStore):
    """Deletes only the session itself."""

    async def delete(self, session_id: str) -> bool:
        return self._journals.pop(session_id, None) is not None


class DeletesByPrefix(MemoryStore):
    """Deletes all sessions whose ids begin with the session's id and a slash."""

    async def delete(self, session_id: str) -> bool:
        for info in await self.sessions(f"{session_id}/"):
            await super().delete(info.id)
        return await super().delete(session_id)


class RenamesOne(MemoryStore):
    """Renames only the session itself."""

    async def rename(self, session_id: str, new_id: str) -> None:
        journal = self._existing(session_id)
        self._free(new_id)
        self._journals[new_id] = self._journals.pop(session_id, journal)


class RenamesByPrefix(MemoryStore):
    """Renames all sessions whose ids begin with the session's id and a slash."""

    async def rename(self, session_id: str, new_id: str) -> None:
        await super().rename(session_id, new_id)
        for info in await self.sessions(f"{session_id}/"):
            await super().rename(info.id, new_id + info.id.removeprefix(session_id))


class ForksAll(MemoryStore):
    """Copies the whole session, whatever the position."""

    async def fork(self, session_id: str, new_id: str, at: Any = None) -> None:
        await super().fork(session_id, new_id, at)
        self._journals[new_id] = type(self._journal(new_id))()
        self._journals[new_id].add(self._journals[session_id].facts)


class LeavesBehind(MemoryStore):
    """Forks without the sub-agents that wait."""

    async def fork(self, session_id: str, new_id: str, at: Any = None) -> None:
        await super().fork(session_id, new_id, at)
        await self.delete(f"{new_id}/t1")


class KeepsNothing(MemoryStore):
    """Prunes what was to be kept."""

    async def prune(self, **options: Any) -> Any:
        return await super().prune(**{**options, "keep": ()})


class ImportsOver(MemoryStore):
    """Overwrites an existing session by importing."""

    async def import_(self, data: Any, session_id: str | None = None) -> str:
        try:
            return await super().import_(data, session_id)
        except StoreError as error:
            if "exists already" not in str(error):
                raise
            await self.delete(session_id or data["id"])
            return await super().import_(data, session_id)


class ReadsAnything(MemoryStore):
    """Takes a newer agentflow's data for its own."""

    async def import_(self, data: Any, session_id: str | None = None) -> str:
        if isinstance(data, dict) and isinstance(data.get("facts"), list):
            facts = [{**fact, "version": CODEC_VERSION} for fact in data["facts"]]
            data = {**data, "facts": facts}
        return await super().import_(data, session_id)


class Caches(StoreWrapper):
    """Loads once, and ignores the writes of others."""

    def __init__(self, inner: SessionStore) -> None:
        super().__init__(inner)
        self.known: dict[str, list[Fact]] = {}

    def append(self, session_id: str, facts: Sequence[Fact], *, expected: Any = None, claim: Any = None) -> Any:
        self.known.pop(session_id, None)
        return self.inner.append(session_id, facts, expected=expected, claim=claim)

    async def load(self, session_id: str) -> Sequence[Fact]:  # pyright: ignore[reportIncompatibleMethodOverride]
        if session_id not in self.known:
            found = self.inner.load(session_id)
            facts = list(await found if isinstance(found, Awaitable) else found)
            if not facts:
                return facts
            self.known[session_id] = facts
        return tuple(self.known[session_id])

    async def delete(self, session_id: str) -> bool:
        self.known.clear()
        return await super().delete(session_id)

    async def rename(self, session_id: str, new_id: str) -> None:
        self.known.clear()
        await super().rename(session_id, new_id)

    async def prune(self, **options: Any) -> Any:
        self.known.clear()
        return await super().prune(**options)


class KeyErrors(MemoryStore):
    """Fails with a dictionary's error where a session is not there."""

    async def export(self, session_id: str) -> Any:
        self._journals[session_id]
        return await super().export(session_id)


class SaysRepeat(MemoryStore):
    """Says of everything that it may be tried again."""

    async def rename(self, session_id: str, new_id: str) -> None:
        try:
            await super().rename(session_id, new_id)
        except SessionConflictError:
            raise
        except StoreError as error:
            raise StoreError(str(error), retryable=True) from None


class OneLoop(MemoryStore):
    """Writes in a task that lives in the first event loop it meets."""

    def __init__(self) -> None:
        super().__init__()
        self.queue: Any = None

    def append(self, session_id: str, facts: Sequence[Fact], **options: Any) -> Any:
        if self.queue is None:
            self.queue = asyncio.Queue[Any]()
            self.task = asyncio.ensure_future(self.work())
        done = asyncio.get_running_loop().create_future()
        self.queue.put_nowait((done, session_id, list(facts), options))
        return done

    async def work(self) -> None:
        while True:
            done, session_id, facts, options = await self.queue.get()
            try:
                MemoryStore.append(self, session_id, facts, **options)
            except StoreError as error:
                done.set_exception(error)
            else:
                if not done.done():
                    done.set_result(None)


class NeverEnds(MemoryStore):
    """Prunes forever."""

    async def prune(self, **options: Any) -> Any:
        await asyncio.Event().wait()


def cached() -> Callable[[], Store]:
    """Two of them over one file."""
    path = Path(tempfile.mkdtemp(prefix="agentflow-planted-")) / "sessions.db"
    return lambda: Caches(SqlStore(f"sqlite:///{path}", power_safe=False))


DEFECTS: list[tuple[StoreFlaw, Callable[[], Any], dict[str, Any]]] = [
    ("order", Newest, {}),
    ("order", WhenAwaited, {}),
    ("aliasing", Shows, {}),
    ("aliasing", KeepsTheList, {}),
    ("facts", Forgets, {}),
    ("version", Unversioned, {}),
    ("duplicate", Keyless, {}),
    ("atomicity", OneByOne, {}),
    ("concurrency", Queueing, {}),
    ("cancellation", Slowly, {}),
    ("cancellation", lambda: Swallows(MemoryStore()), {}),
    ("fencing", lambda: Unfenced(SqlStore("sqlite://")), {}),
    ("listing", OldestFirst, {}),
    ("listing", IgnoresCase, {}),
    ("delete", AlwaysDeleted, {}),
    ("delete", DeletesOne, {}),
    ("delete", DeletesByPrefix, {}),
    ("rename", Overwrites, {}),
    ("rename", RenamesOne, {}),
    ("rename", RenamesByPrefix, {}),
    ("fork", ForksAll, {}),
    ("fork", LeavesBehind, {}),
    ("prune", KeepsNothing, {}),
    ("exchange", ImportsOver, {}),
    ("newer", ReadsAnything, {}),
    ("sharing", cached(), {}),
    ("errors", KeyErrors, {}),
    ("errors", SaysRepeat, {}),
    ("errors", MemoryStore, {"broken": MemoryStore}),
    ("loops", OneLoop, {"timeout": 0.5}),
    ("hang", NeverEnds, {"timeout": 0.2}),
]
"""Kind, store, options of `check_store`."""
