"""`check_store`: a suite for authors of stores.

It puts a store through everything that agentflow asks of one, and reports what it found as typed values.

Rules:

1. It works in sessions of its own, with fresh ids, and touches no others; still, give it a store of its own.
2. A check that builds on another one is left out where that one has found something, and a note says so.
3. Time is real, loops are real: databases and threads are what they are. Nothing is waited for longer than `patience`.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, NamedTuple, TypeVar, get_args

from agentflow.errors import StoreError, UsageError
from agentflow.ports.store import SessionStore, Store
from agentflow.testing.findings import ConformanceReport, Findings
from agentflow.testing.store_checks import keeping, writing
from agentflow.testing.store_checks.samples import a_call
from agentflow.testing.store_checks.trial import Skipped, StoreFlaw, Trial, Wrong

__all__ = ["StoreFlaw", "StoreReport", "check_store", "check_store_async"]

T = TypeVar("T")


class StoreReport(ConformanceReport[StoreFlaw]):
    """What `check_store` saw of one store."""

    __slots__ = ()


class _Check(NamedTuple):
    kind: StoreFlaw
    run: Callable[[Trial], Awaitable[None]]
    needs: tuple[StoreFlaw, ...] = ("order",)


_CHECKS = (
    _Check("order", writing.order, ()),
    _Check("aliasing", writing.aliasing),
    _Check("facts", writing.facts),
    _Check("version", writing.version),
    _Check("duplicate", writing.duplicate, ("order", "version")),
    _Check("atomicity", writing.atomicity, ("order", "duplicate")),
    _Check("concurrency", writing.concurrency, ("order", "version", "duplicate")),
    _Check("cancellation", writing.cancellation, ("order", "version", "concurrency")),
    _Check("fencing", writing.fencing, ("order", "version")),
    _Check("listing", keeping.listing),
    _Check("delete", keeping.delete, ("order", "version")),
    _Check("rename", keeping.rename, ("order", "version")),
    _Check("fork", keeping.fork, ("order", "version")),
    _Check("prune", keeping.prune, ("order", "listing", "delete")),
    _Check("exchange", keeping.exchange, ("order", "facts", "delete")),
    _Check("newer", keeping.newer, ("order", "exchange")),
    _Check("sharing", writing.sharing, ("order", "version")),
)


def check_store(
    store: Store | Callable[[], Store],
    *,
    broken: Callable[[], Store] | None = None,
    patience: float = 10.0,
) -> StoreReport:
    """Check a store; the report says what is wrong with it.

    Args:
        store: A function that opens the store; called again, it should open the same data, as another process would. Or an
            instance: then nobody else opens it.
        broken: Opens a store that cannot work, such as one whose server is not there.
        patience: Seconds after which a check counts as hanging.

    Returns:
        The report; `report.assert_clean()` fails with it as the text.

    Raises:
        UsageError: An event loop runs in this thread (`check_store_async` is for that).

    Example:
        >>> check_store(MemoryStore).assert_clean()
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        pass
    else:
        raise UsageError(
            "check_store(...) runs event loops of its own, and one runs in this thread already. In a coroutine write "
            "`await check_store_async(...)`, or call it from a plain `def` test."
        )
    return _Trials(store, broken, patience).report()


async def check_store_async(store: Store | Callable[[], Store], **options: Any) -> StoreReport:
    """`check_store` for coroutines: the same check in a thread.

    Args:
        store: As in `check_store`.
        options: As in `check_store`.

    Example:
        >>> (await check_store_async(MemoryStore)).clean
        True
    """
    return await asyncio.to_thread(check_store, store, **options)


class _Trials:
    """All checks of one store."""

    def __init__(self, store: Store | Callable[[], Store], broken: Callable[[], Store] | None, patience: float) -> None:
        self.open = store if callable(store) else None
        self.store = store() if callable(store) else store
        self.broken = broken
        self.patience = patience
        self.findings: Findings[StoreFlaw] = Findings(get_args(StoreFlaw))
        self.checks: list[StoreFlaw] = []
        self.left_out: dict[str, list[StoreFlaw]] = {}

    def report(self) -> StoreReport:
        """Run the whole suite."""
        with asyncio.Runner() as runner:
            for check in _CHECKS:
                self._run(runner, check.kind, check.run, check.needs)
            if self.broken is not None:
                self._run(runner, "errors", self._cannot_work, ())
        if not any(kind in self.findings for kind in ("hang", "order", "concurrency")):
            self._loops()
        with asyncio.Runner() as runner:
            self._run(runner, "errors", writing.errors, ("order", "loops"))
        checked = tuple(dict.fromkeys(self.checks))
        notes = [f"not checked: {', '.join(kinds)} ({reason})" for reason, kinds in self.left_out.items()]
        return StoreReport(type(self.store).__name__, self.findings.sorted(), checked, tuple(notes))

    def _leave_out(self, kind: StoreFlaw, reason: str) -> None:
        self.left_out.setdefault(reason, []).append(kind)

    def _run(
        self,
        runner: asyncio.Runner,
        kind: StoreFlaw,
        check: Callable[[Trial], Awaitable[None]],
        needs: tuple[StoreFlaw, ...] = (),
    ) -> None:
        missing = [need for need in needs if need in self.findings]
        if missing:
            self._leave_out(kind, f"mend {', '.join(missing)} first")
            return
        trial = Trial(self.store, kind, self.open, self.patience)
        try:
            runner.run(self._patiently(check(trial)))
        except Skipped as reason:
            self._leave_out(kind, str(reason))
            return
        except Wrong as wrong:
            self.findings.add(wrong.kind, wrong.message, evidence=wrong.evidence)
        except TimeoutError:
            self.findings.add("hang", f"does not come to an end within {self.patience:g} s ({kind})")
        except StoreError as error:
            self.findings.add(kind, "refuses what it must do", evidence=f"{error!r}")
        except Exception as error:
            self.findings.add("errors", f"fails with {type(error).__name__} ({kind})", evidence=f"{error!r}")
        self.checks.append(kind)

    async def _patiently(self, check: Awaitable[T]) -> T:
        async with asyncio.timeout(self.patience):
            return await check

    async def _cannot_work(self, trial: Trial) -> None:
        """Who cannot do it says so with a StoreError."""
        assert self.broken is not None
        store = self.broken()
        for doing, work in (
            ("append", lambda: trial.keep(trial.new_session(), a_call(1), store)),
            ("load", lambda: trial.load(trial.new_session(), store)),
        ):
            try:
                await work()
            except StoreError:
                continue
            except Exception as error:
                message = f"fails with {type(error).__name__} where a StoreError is due"
                raise Wrong("errors", message, f"{doing} of the broken store: {error!r}") from error
            raise Wrong("errors", f"the broken store works: {doing} goes through")
        if isinstance(store, SessionStore):
            await store.close()

    def _loops(self) -> None:
        """The same store in a second event loop, and in two at once in threads of their own."""
        trial = Trial(self.store, "loops", self.open, self.patience)
        s, numbers = trial.new_session(), range(8)

        async def writes(*numbers: int) -> None:
            for number in numbers:
                await trial.keep(s, a_call(number))

        def in_thread(work: Coroutine[Any, Any, None], failed: list[Exception]) -> None:
            try:
                asyncio.run(self._patiently(work))
            except Exception as error:
                failed.append(error)

        failed: list[Exception] = []
        work = [writes(*numbers[:4]), writes(*numbers[4:])]
        threads = [threading.Thread(target=in_thread, args=(one, failed), daemon=True) for one in work]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failed:
            message = "does not work in several event loops at once, nor in one after another"
            self.findings.add("loops", message, evidence="\n".join(repr(error) for error in failed))
        else:

            async def all_there(trial: Trial) -> None:
                found = await trial.load(s)
                calls = sorted(found[place : place + 3] for place in range(0, len(found), 3))
                trial.same(
                    calls, sorted(a_call(n) for n in numbers), "loses or mixes what several loops append at once"
                )

            with asyncio.Runner() as runner:
                self._run(runner, "loops", all_there)
            return
        self.checks.append("loops")
