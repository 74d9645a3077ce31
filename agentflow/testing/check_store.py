"""`check_store`: a conformance suite for stores.

It tests what agentflow requires of a store. The findings are typed values.

Rules:

1. Checks create their own sessions, with fresh ids, and do not touch others. Still, you should use a separate store.
2. A check that depends on a failed check is skipped, with a note.
3. Checks use real time and real loops, since databases and threads are real. No check awaits longer than `timeout`;
   a store that blocks the thread is not interrupted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple, get_args

from agentflow.errors import StoreError
from agentflow.testing.findings import ConformanceReport
from agentflow.testing.store_checks import managing, writing
from agentflow.testing.store_checks.samples import a_call
from agentflow.testing.store_checks.trial import StoreFlaw, StoreTrial
from agentflow.testing.suite import FlawFound, Suite, in_threads, no_loop_here
from agentflow.vocabulary.ports.store import SessionStore, Store


class StoreReport(ConformanceReport[StoreFlaw]):
    """The results of `check_store` for one store."""

    __slots__ = ()


class _StoreCheck(NamedTuple):
    kind: StoreFlaw
    run: Callable[[StoreTrial], Awaitable[None]]
    needs: tuple[StoreFlaw, ...] = ("order",)


_CHECKS = (
    _StoreCheck("order", writing.order, ()),
    _StoreCheck("aliasing", writing.aliasing),
    _StoreCheck("facts", writing.facts),
    _StoreCheck("version", writing.version),
    _StoreCheck("duplicate", writing.duplicate, ("order", "version")),
    _StoreCheck("atomicity", writing.atomicity, ("order", "duplicate")),
    _StoreCheck("concurrency", writing.concurrency, ("order", "version", "duplicate")),
    _StoreCheck("cancellation", writing.cancellation, ("order", "version", "concurrency")),
    _StoreCheck("fencing", writing.fencing, ("order", "version")),
    _StoreCheck("listing", managing.listing),
    _StoreCheck("delete", managing.delete, ("order", "version")),
    _StoreCheck("rename", managing.rename, ("order", "version")),
    _StoreCheck("fork", managing.fork, ("order", "version")),
    _StoreCheck("prune", managing.prune, ("order", "listing", "delete")),
    _StoreCheck("exchange", managing.exchange, ("order", "facts", "delete")),
    _StoreCheck("newer", managing.newer, ("order", "exchange")),
    _StoreCheck("sharing", writing.sharing, ("order", "version")),
)


def check_store(
    store: Store | Callable[[], Store],
    *,
    broken: Callable[[], Store] | None = None,
    timeout: float = 10.0,
) -> StoreReport:
    """Check a store, and report its flaws.

    Args:
        store: A function that opens the store; when called again, it should open the same data, as another process would.
            Or an instance, in which case no second store is opened.
        broken: Opens a store that cannot work, for example because its server does not exist.
        timeout: Seconds after which a check counts as hanging.

    Returns:
        The report; `report.assert_clean()` raises an error with its text.

    Raises:
        UsageError: An event loop runs in this thread (use `check_store_async` there).

    Example:
        >>> check_store(MemoryStore).assert_clean()
    """
    no_loop_here("check_store")
    return _Trials(store, broken, timeout).report()


async def check_store_async(
    store: Store | Callable[[], Store], *, broken: Callable[[], Store] | None = None, timeout: float = 10.0
) -> StoreReport:
    """Run `check_store` in a thread, for use in coroutines.

    Args:
        store: As in `check_store`.
        broken: As in `check_store`.
        timeout: As in `check_store`.

    Example:
        >>> (await check_store_async(MemoryStore)).clean
        True
    """
    return await asyncio.to_thread(check_store, store, broken=broken, timeout=timeout)


class _Trials(Suite[StoreFlaw]):
    """All checks of a store."""

    def __init__(self, store: Store | Callable[[], Store], broken: Callable[[], Store] | None, timeout: float) -> None:
        super().__init__(get_args(StoreFlaw), StoreError, timeout)
        self.open = store if callable(store) else None
        self.store = store() if callable(store) else store
        self.broken = broken

    def trial(self, kind: StoreFlaw) -> StoreTrial:
        """Return the context of a check."""
        return StoreTrial(self.store, kind, self.open)

    def report(self) -> StoreReport:
        """Run the whole suite."""
        with asyncio.Runner() as runner:
            for kind, check, needs in _CHECKS:
                self.run(runner, kind, lambda kind=kind, check=check: check(self.trial(kind)), needs)
            if self.broken is not None:
                self.run(runner, "errors", self._cannot_work)
        if any(kind in self.findings for kind in ("hang", "order", "concurrency")):
            self.leave_out("loops", "fix hang, order or concurrency first")
        else:
            self._loops()
        with asyncio.Runner() as runner:  # last, because this check closes the store
            self.run(runner, "errors", lambda: writing.errors(self.trial("errors")), ("order", "loops"))
        return StoreReport(type(self.store).__name__, self.findings.sorted(), self.checks, self.notes)

    async def _cannot_work(self) -> None:
        """A store that cannot work raises a StoreError."""
        assert self.broken is not None
        store, trial = self.broken(), self.trial("errors")
        works: dict[str, Callable[[], Awaitable[object]]] = {
            "append": lambda: trial.keep(trial.new_session(), a_call(1), store),
            "load": lambda: trial.load(trial.new_session(), store),
        }
        for doing, work in works.items():
            try:
                await work()
            except StoreError:
                continue
            except Exception as error:
                message = f"fails with {type(error).__name__} instead of a StoreError"
                raise FlawFound("errors", message, f"{doing} of the broken store: {error!r}") from error
            raise FlawFound("errors", f"the broken store works: {doing} succeeds")
        if isinstance(store, SessionStore):
            await store.close()

    def _loops(self) -> None:
        """Use one store in two concurrent event loops, each in its own thread, and then in another loop."""
        trial, numbers = self.trial("loops"), range(8)
        s = trial.new_session()

        async def writes(numbers: Sequence[int]) -> None:
            for number in numbers:
                await trial.keep(s, a_call(number))

        async def all_there() -> None:
            found = await trial.load(s)
            # The three facts of a call stay together; calls of different loops can come in any order.
            calls = sorted(found[start : start + 3] for start in range(0, len(found), 3))
            trial.same(
                calls, sorted(a_call(n) for n in numbers), "loses or mixes facts that several loops append at once"
            )

        failed = in_threads([lambda n=n: self.patiently(writes(n)) for n in (numbers[:4], numbers[4:])])
        self.add_checked("loops", failed)
        if failed:
            return
        with asyncio.Runner() as runner:
            self.run(runner, "loops", all_there)
