"""Graceful shutdown: agents stop at safe points, and a later process continues their calls.

Rules:

1. After the first signal no call begins; a new call raises `ShutdownError` immediately.
2. A running call stops at its next safe point: after a model's reply, or after the tools that were running. Everything
   up to that point is stored, without synthetic results, so `agent.resume(session)` continues as after a crash.
3. After the limit, or on a second signal, running work is cancelled, and its calls are left open as after a crash.
4. In both cases a call ends with one `CallEnded(outcome="interrupted")`, and raises `ShutdownError`.
5. When no call runs, the agents' toolsets are closed.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Iterable
from types import FrameType, TracebackType
from typing import Any, Self, TypeAlias

from agentflow._support.logs import log_failure, logger
from agentflow._support.values import NamedTuple
from agentflow.agent.as_tool import full_agent
from agentflow.agent.toolsets import ToolsetAgent
from agentflow.errors import ShutdownError, UsageError
from agentflow.loop.config import Running, Stoppable

GRACE = 5.0
"""Seconds for the cleanup of cancelled calls."""

Handler: TypeAlias = Callable[[int, FrameType | None], Any] | int | None


class ShutdownReport(NamedTuple):
    """The result of a shutdown: the sessions of the calls that were running at its start, by how these calls ended.

    `agent.resume` continues stopped and cancelled calls: in another process if their sessions have a store, in this process
    with another agent object. Sub-agents continue with their callers.

    Attributes:
        stopped: Sessions with a call that stopped at a safe point.
        cancelled: Sessions with a call that was cancelled, as by a crash.
        finished: Sessions with a call that finished normally, so there is nothing to resume.
        running: Sessions with a call that ignored the cancellation and still runs.
    """

    stopped: tuple[str, ...] = ()
    cancelled: tuple[str, ...] = ()
    finished: tuple[str, ...] = ()
    running: tuple[str, ...] = ()


async def shutdown(agents: ToolsetAgent | Iterable[ToolsetAgent], *, limit: float = 10.0) -> ShutdownReport:
    """Stop agents: no new call begins, and `agent.resume` can continue the running calls later.

    Args:
        agents: An agent, or several.
        limit: Seconds until running work is cancelled.

    Returns:
        A report with the sessions of the affected calls.

    Example:
        >>> await shutdown(agent)
        ShutdownReport(stopped=(), cancelled=(), finished=(), running=())
        >>> await agent.call("Hello?")
        Traceback (most recent call last):
        agentflow.errors.ShutdownError: Agent 'assistant' is shutting down: the call on session 'assistant' did not begin...
    """
    stopping = _Stopping(agents)
    stopping.close()
    return await stopping.run(limit)


class _Stopping:
    """One shutdown of several agents."""

    def __init__(self, agents: ToolsetAgent | Iterable[ToolsetAgent]) -> None:
        members: Iterable[ToolsetAgent] = agents if isinstance(agents, Iterable) else (agents,)
        # By identity, so that an agent passed twice is closed and reported once.
        self._agents = tuple({id(agent): agent for agent in members}.values())
        self._running: tuple[Running, ...] = tuple([full_agent(agent).config.running for agent in self._agents])
        if not self._running:
            raise UsageError("shutdown() was called without agents. Pass the agents to stop: shutdown([agent, other]).")
        self._now = asyncio.Event()
        self.begun = False

    def at_once(self) -> None:
        """Do not wait for the limit."""
        self._now.set()

    def close(self) -> None:
        """Refuse new calls, and ask the running calls to stop."""
        self.begun = True
        for running in self._running:
            running.close()

    def _running_calls(self) -> tuple[Stoppable, ...]:
        # A copy in one step, because calls in other threads end meanwhile.
        return tuple([run for running in self._running for run in tuple(running.runs)])

    async def run(self, limit: float) -> ShutdownReport:
        """Wait until all calls have stopped; after the limit, cancel those that still run."""
        idle = asyncio.ensure_future(self._idle())
        # Ends the wait at the second signal (rule 3).
        hurry = asyncio.ensure_future(self._now.wait())
        try:
            await asyncio.wait([idle, hurry], timeout=limit, return_when=asyncio.FIRST_COMPLETED)
            # The limit has passed, or a second signal has come: calls that still run are left open (rule 3).
            cancelled = self._running_calls()
            for run in cancelled:
                run.leave("shutdown")
            if cancelled:
                await asyncio.wait([idle], timeout=GRACE)
        finally:
            idle.cancel()
            hurry.cancel()
        report = self._report(cancelled)
        for agent in self._agents:
            try:
                await agent.close()
            except Exception as error:
                log_failure("WARNING", error, "shutdown: the toolsets of {} did not close", agent.name)
        if report.running:
            logger.warning("shutdown: calls on {} did not end; resume them as after a crash", report.running)
        return report

    def _report(self, cancelled: Iterable[Stoppable]) -> ShutdownReport:
        found: dict[str, list[str]] = {name: [] for name in ShutdownReport._fields}
        left = self._running_calls()
        for running in self._running:
            for run in running.halted:
                # A sub-agent's call continues with that of its caller.
                if not run.inner:
                    open_end = "cancelled" if run in cancelled else "stopped"
                    end = "running" if run in left else open_end if run.left_open else "finished"
                    found[end].append(run.session_id)
        return ShutdownReport(**{name: tuple(sorted(ids)) for name, ids in found.items()})

    async def _idle(self) -> None:
        loop = asyncio.get_running_loop()
        for running in self._running:
            done = asyncio.Event()

            # As a default argument: the next iteration assigns `done` again. Calls in other event loops end in other
            # threads.
            def notify(done: asyncio.Event = done) -> None:
                loop.call_soon_threadsafe(done.set)

            running.when_idle(notify)
            await done.wait()


class GracefulShutdown:
    """Stops agents on a termination signal, and ends the `async with` block.

    In the block, calls work as usual. On the first signal the agents stop as in `shutdown`; then the block is
    cancelled, and raises `ShutdownError`. A second signal cancels running work immediately. If the block
    ends before a signal, the agents keep working.

    In a web server (`in_server=True`, in the application's lifespan) the server ends the block after the last response.
    The server's own signal handlers are called too. Open streams are ended, because the server waits for them. If the
    server ends the block without a signal, the agents are stopped as well.

    Args:
        agents: The agents.
        limit: Seconds until running work is cancelled; should be below the server's own limit, if the server has one.
        signals: The signals to handle; `()` if the application calls `begin` itself.
        in_server: Whether the block is the lifespan of a web application.

    Attributes:
        report: The result of the shutdown; None until it has finished.

    Example:
        >>> async with GracefulShutdown(agent, limit=30):
        ...     await agent.call("Tidy up")
    """

    def __init__(
        self,
        *agents: ToolsetAgent,
        limit: float = 10.0,
        signals: Iterable[signal.Signals] = (signal.SIGTERM, signal.SIGINT),
        in_server: bool = False,
    ) -> None:
        if not limit >= 0:
            raise UsageError(f"GracefulShutdown(limit={limit}): pass seconds, 0 or more.")
        self._stopping = _Stopping(agents)
        self._names = ", ".join(agent.name for agent in agents)
        self._limit = limit
        self._signals = tuple(signals)
        self._in_server = in_server
        self._before: dict[signal.Signals, Handler] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._body: asyncio.Task[Any] | None = None
        self._task: asyncio.Task[None] | None = None
        self._requested = asyncio.Event()
        self._cancelled = False
        self._over = False
        self.report: ShutdownReport | None = None

    @property
    def requested(self) -> bool:
        """Whether a shutdown has begun."""
        return self._stopping.begun

    async def wait(self) -> None:
        """Wait until a shutdown begins; useful in a block with nothing else to do."""
        await self._requested.wait()

    def begin(self) -> None:
        """Begin the shutdown, like a signal; the second time, cancel running work."""
        if self._loop is None:
            raise UsageError("GracefulShutdown.begin() must be called inside its `async with` block.")
        if self._task is not None:
            self._stopping.at_once()
            return
        self._requested.set()
        self._stopping.close()
        self._task = self._loop.create_task(self._stop(), name="agentflow: shutdown")

    async def _stop(self) -> None:
        self.report = await self._stopping.run(self._limit)
        # A block that has ended, or that a server ends, is not cancelled.
        if not self._over and not self._in_server and self._body is not None:
            self._cancelled = True
            self._body.cancel()

    async def __aenter__(self) -> Self:
        self._loop = loop = asyncio.get_running_loop()
        self._body = asyncio.current_task()
        for sig in self._signals:
            if self._in_server and threading.current_thread() is not threading.main_thread():
                break  # in a test client, for example: without signals, the end of the block stops the agents
            self._before[sig] = signal.getsignal(sig)
            try:
                if self._in_server:  # our handler also calls the server's own handler
                    signal.signal(sig, self._on_signal)
                else:
                    loop.add_signal_handler(sig, self.begin)
            except (NotImplementedError, RuntimeError, ValueError) as error:
                self._restore()
                raise UsageError(
                    f"GracefulShutdown cannot listen for {sig.name} here ({error or type(error).__name__}): signals can "
                    "only be handled in the main thread of a Unix process. Pass signals=(), and call begin() to start "
                    "the shutdown."
                ) from error
        return self

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal, between two steps of the main thread."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._begin_if_open)
        handler = self._before.get(signal.Signals(number))
        # Python's default handler would raise KeyboardInterrupt here, at an arbitrary position of the main thread.
        if callable(handler) and handler is not signal.default_int_handler:
            handler(number, frame)

    def _begin_if_open(self) -> None:
        if self._loop is not None:
            self.begin()

    def _restore(self) -> None:
        assert self._loop is not None
        before, self._before = self._before, {}
        for sig, handler in before.items():
            if self._in_server:
                if signal.getsignal(sig) != self._on_signal:
                    continue  # another handler was installed later, and may call ours
            else:
                try:
                    self._loop.remove_signal_handler(sig)
                except NotImplementedError:
                    continue
            # None: a handler that was not installed from Python, and cannot be set again.
            if handler is not None:
                signal.signal(sig, handler)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over = True
        if self._in_server and self._task is None:
            self.begin()
        try:
            if self._task is not None:
                await asyncio.wait([self._task])  # the block can fail before all calls have stopped
        finally:
            self._restore()
            self._loop = None
        if not self._cancelled or self._body is None:
            return
        # With a count above 0, the block was cancelled for another reason as well, and that cancellation continues.
        if self._body.uncancel() == 0 and isinstance(error, asyncio.CancelledError):
            raise ShutdownError(self._names, None, stopped=True) from None
