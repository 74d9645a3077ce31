"""The common base of the conformance suites: dependent checks, time limits, and notes."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Generic, TypeVar

from agentflow._support.time_limit import strict
from agentflow.errors import UsageError
from agentflow.testing.findings import Findings

Kind = TypeVar("Kind", bound=str)


class FlawFound(Exception):  # noqa: N818 - carries a finding, not an error of the suite
    """The object under test has a flaw."""

    def __init__(self, kind: str, message: str, evidence: str = "") -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.evidence = evidence


def expect_equal(kind: str, message: str, found: object, wanted: object) -> None:
    """Report a flaw unless the values are equal.

    Raises:
        FlawFound: The values differ.
    """
    if found != wanted:
        raise FlawFound(kind, message, f"found:  {found!r:.600}\nwanted: {wanted!r:.600}")


class CheckSkipped(Exception):  # noqa: N818 - carries a note, not an error of the suite
    """A check is not possible; the message is the reason."""


class Suite(Generic[Kind]):
    """The checks of one object.

    Args:
        kinds: The kinds of findings, in the order of the report.
        refusal: The class of errors with which the object refuses an operation. An unexpected one is reported as a refused
            operation, and any other exception as `errors`.
        timeout: Seconds after which a check counts as hanging.
    """

    def __init__(self, kinds: tuple[Kind, ...], refusal: type[Exception], timeout: float) -> None:
        self.findings: Findings[Kind] = Findings(kinds)
        self.timeout = timeout
        self._kinds = {str(kind): kind for kind in kinds}
        self._refusal = refusal
        self._checks: dict[Kind, None] = {}
        self._skipped: dict[str, list[Kind]] = {}

    @property
    def checks(self) -> tuple[Kind, ...]:
        """The kinds that were checked."""
        return tuple(self._checks)

    @property
    def notes(self) -> tuple[str, ...]:
        """The checks that were skipped, with the reasons."""
        return tuple(f"not checked: {', '.join(kinds)} ({reason})" for reason, kinds in self._skipped.items())

    async def patiently(self, work: Awaitable[object]) -> None:
        """Await the work for at most `timeout` seconds."""
        async with strict(asyncio.timeout(self.timeout)):  # raises even if the object swallows the cancellation
            await work

    def run(
        self, runner: asyncio.Runner, kind: Kind, check: Callable[[], Awaitable[None]], needs: tuple[Kind, ...] = ()
    ) -> None:
        """Run a check, unless it depends on a failed one."""
        missing = [need for need in needs if need in self.findings]
        if missing:
            self.leave_out(kind, f"fix {', '.join(missing)} first")
            return
        try:
            runner.run(self.patiently(check()))
        except CheckSkipped as reason:
            self.leave_out(kind, str(reason))
            return
        except Exception as error:
            self.add(kind, error)
        self._checks[kind] = None

    def add(self, kind: Kind, error: Exception) -> None:
        """Record the exception of a check as a finding."""
        self._checks[kind] = None
        if isinstance(error, FlawFound):
            self.findings.add(self._kinds[error.kind], error.message, evidence=error.evidence)
        elif isinstance(error, TimeoutError):
            message = f"does not finish within {self.timeout:g} s ({kind})"
            self.findings.add(self._kinds["hang"], message)
        elif isinstance(error, self._refusal):
            self.findings.add(kind, "refuses a required operation", evidence=f"{error!r}")
        else:
            message = f"fails with {type(error).__name__} ({kind})"
            self.findings.add(self._kinds["errors"], message, evidence=f"{error!r}")

    def add_checked(self, kind: Kind, failed: Sequence[Exception]) -> None:
        """Record a check that ran in several loops, with the exceptions of those in which it failed."""
        self._checks[kind] = None
        if failed:
            message = "does not work in several event loops, at once or one after another"
            evidence = "\n".join(dict.fromkeys(map(repr, failed)))
            self.findings.add(kind, message, evidence=evidence)

    def leave_out(self, kind: Kind, reason: str) -> None:
        """Record a skipped check."""
        self._skipped.setdefault(reason, []).append(kind)


def in_threads(works: Sequence[Callable[[], Coroutine[Any, Any, None]]]) -> list[Exception]:
    """Run the coroutines concurrently, each in its own event loop and thread, and return their exceptions."""
    failed: list[Exception] = []

    def run(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        try:
            asyncio.run(work())
        except Exception as error:
            failed.append(error)

    # Daemons, so that a hanging object does not keep the interrupted program from exiting.
    threads = [threading.Thread(target=run, args=(work,), daemon=True) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return failed


def no_loop_here(name: str) -> None:
    """Check that no event loop runs in this thread.

    Raises:
        UsageError: An event loop is running.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise UsageError(
        f"{name}(...) starts event loops, but one is already running in this thread. In a coroutine use "
        f"`await {name}_async(...)`, or call it from a plain `def` test."
    )
