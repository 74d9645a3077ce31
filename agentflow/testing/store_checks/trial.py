"""What the checks of a store work with: sessions of their own, and words for what is wrong."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Literal, TypeAlias, TypedDict, Unpack

from agentflow.errors import SessionConflictError, StoreError
from agentflow.facts import Fact
from agentflow.ground.ids import new_id
from agentflow.ports.store import Claim, SessionStore, Store
from agentflow.testing.suite import Skipped, Wrong

__all__ = ["StoreFlaw", "Trial"]

StoreFlaw: TypeAlias = Literal[
    "aliasing",
    "atomicity",
    "cancellation",
    "concurrency",
    "delete",
    "duplicate",
    "errors",
    "exchange",
    "facts",
    "fencing",
    "fork",
    "hang",
    "listing",
    "loops",
    "newer",
    "order",
    "prune",
    "rename",
    "sharing",
    "version",
]
"""What can be wrong with a store; `docs/testing-stores.md` says what each means and how to mend it."""


class AppendOptions(TypedDict, total=False):
    """What a store with versions is given besides the facts."""

    expected: int
    claim: Claim


class Trial:
    """One check's view of the store.

    Args:
        store: The store.
        kind: What the check is about.
        open_another: Opens the store once more.
    """

    def __init__(self, store: Store, kind: StoreFlaw, open_another: Callable[[], Store] | None) -> None:
        self.any_store = store
        self.kind: StoreFlaw = kind
        self.open_another = open_another

    @property
    def store(self) -> SessionStore:
        """The store, where it looks after its sessions."""
        if not isinstance(self.any_store, SessionStore):
            raise Skipped("it has append and load only: it is no SessionStore")
        return self.any_store

    def new_session(self) -> str:
        """The id of a session that nobody has."""
        return new_id("check_store_")

    def at(self, version: int) -> AppendOptions:
        """The version that a writer knows, where the store has versions."""
        return {"expected": version} if isinstance(self.any_store, SessionStore) else {}

    def append(
        self, session_id: str, facts: Sequence[Fact], store: Store | None = None, **options: Unpack[AppendOptions]
    ) -> Any:
        """Ask the store to append, at once; what it gives is to be awaited with `kept`."""
        to: Any = self.any_store if store is None else store
        return to.append(session_id, facts, **options)

    async def keep(
        self, session_id: str, facts: Sequence[Fact], store: Store | None = None, **options: Unpack[AppendOptions]
    ) -> None:
        """Append, and wait until it is safe."""
        kept = self.append(session_id, facts, store, **options)
        if kept is not None:
            await kept

    async def load(self, session_id: str, store: Store | None = None) -> list[Fact]:
        """All facts of a session."""
        found = (self.any_store if store is None else store).load(session_id)
        return list(await found if isinstance(found, Awaitable) else found)

    async def holds(self, session_id: str, facts: Sequence[Fact], message: str, store: Store | None = None) -> None:
        """Complain unless the session holds these facts."""
        self.same(await self.load(session_id, store), list(facts), message)

    def same(self, found: object, wanted: object, message: str) -> None:
        """Complain unless they are equal."""
        if found != wanted:
            raise Wrong(self.kind, message, f"found:  {found!r:.600}\nwanted: {wanted!r:.600}")

    async def refused(
        self, work: Callable[[], Awaitable[object] | None], doing: str, error: type[StoreError] = StoreError
    ) -> StoreError:
        """Complain unless the store refuses, with the right error."""
        try:
            done = work()
            if done is not None:
                await done
        except StoreError as refusal:
            if not isinstance(refusal, error):
                raise Wrong(
                    self.kind, f"{doing} is refused with another error than {error.__name__}", repr(refusal)
                ) from refusal
            if refusal.retryable and not isinstance(refusal, SessionConflictError):
                message = "says retryable=True of what no repetition helps"
                raise Wrong("errors", message, f"{doing}: {refusal!r}") from refusal
            return refusal
        except Exception as other:
            message = f"fails with {type(other).__name__} where a StoreError is due"
            raise Wrong("errors", message, f"{doing}: {other!r}") from other
        raise Wrong(self.kind, f"{doing} goes through; {error.__name__} is due")
