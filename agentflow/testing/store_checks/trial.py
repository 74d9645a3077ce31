"""The context of the store checks: separate sessions, and comparisons that report flaws."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Literal, TypeAlias, TypedDict, Unpack

from agentflow._support.ids import new_id
from agentflow.errors import SessionConflictError, StoreError
from agentflow.testing.suite import CheckSkipped, FlawFound, expect_equal
from agentflow.vocabulary.facts import Fact
from agentflow.vocabulary.ports.store import Claim, SessionStore, Store

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
"""The kinds of flaws; `docs/testing-stores.md` describes each one and its fix."""


class AppendOptions(TypedDict, total=False):
    """The optional arguments of `append`, for stores with versions."""

    expected: int
    claim: Claim


class StoreTrial:
    """The context of one check of the store.

    Args:
        store: The store.
        kind: The kind of flaw for which to check.
        open_another: Opens the store again; None if the suite got an instance.
    """

    def __init__(self, store: Store, kind: StoreFlaw, open_another: Callable[[], Store] | None) -> None:
        self.any_store = store
        self.kind: StoreFlaw = kind
        self.open_another = open_another

    @property
    def store(self) -> SessionStore:
        """The store, if it manages sessions."""
        if not isinstance(self.any_store, SessionStore):
            raise CheckSkipped("it has only append and load, so it is not a SessionStore")
        return self.any_store

    def new_session(self) -> str:
        """Return a new session id."""
        return new_id("check_store_")

    def at(self, version: int) -> AppendOptions:
        """Return the expected version as an argument, if the store has versions."""
        return {"expected": version} if isinstance(self.any_store, SessionStore) else {}

    def append(
        self, session_id: str, facts: Sequence[Fact], store: Store | None = None, **options: Unpack[AppendOptions]
    ) -> Any:
        """Start an append; return None, or an awaitable, as the store does."""
        to: Any = self.any_store if store is None else store
        return to.append(session_id, facts, **options)

    async def keep(
        self, session_id: str, facts: Sequence[Fact], store: Store | None = None, **options: Unpack[AppendOptions]
    ) -> None:
        """Append, and wait until the facts are stored."""
        pending = self.append(session_id, facts, store, **options)
        if pending is not None:
            await pending

    async def load(self, session_id: str, store: Store | None = None) -> list[Fact]:
        """Load all facts of a session."""
        found = (self.any_store if store is None else store).load(session_id)
        return list(await found if isinstance(found, Awaitable) else found)

    async def holds(self, session_id: str, facts: Sequence[Fact], message: str, store: Store | None = None) -> None:
        """Report a flaw unless the session has exactly these facts."""
        self.same(await self.load(session_id, store), list(facts), message)

    def same(self, found: object, wanted: object, message: str) -> None:
        """Report a flaw unless the values are equal."""
        expect_equal(self.kind, message, found, wanted)

    async def refused(
        self, work: Callable[[], Awaitable[object] | None], doing: str, error: type[StoreError] = StoreError
    ) -> StoreError:
        """Return the error with which the store refuses the work; report a flaw if there is none, or a wrong one."""
        try:
            done = work()
            if done is not None:
                await done
        except StoreError as refusal:
            if not isinstance(refusal, error):
                raise FlawFound(
                    self.kind, f"{doing} is refused with an error other than {error.__name__}", repr(refusal)
                ) from refusal
            if refusal.retryable and not isinstance(refusal, SessionConflictError):
                message = "sets retryable=True although a retry cannot help"
                raise FlawFound("errors", message, f"{doing}: {refusal!r}") from refusal
            return refusal
        except Exception as other:
            message = f"fails with {type(other).__name__} instead of a StoreError"
            raise FlawFound("errors", message, f"{doing}: {other!r}") from other
        raise FlawFound(self.kind, f"{doing} succeeds instead of raising {error.__name__}")
