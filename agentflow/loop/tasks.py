"""Work in tasks of its own, whose events are handed to the reader of the run.

Rules:

1. Events come over a bounded channel; no task outlives the stage that began it.
2. The first failure cancels the others, and is raised when all are over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from agentflow.loop.channel import Channel, ChannelPort
from agentflow.loop.run import RunBase
from agentflow.loop.stream import Port

__all__ = ["Work", "in_tasks"]

Work = Callable[[Port | None], Awaitable[None]]


async def in_tasks(run: RunBase, works: Sequence[Work], limit: int) -> None:
    """Run works in tasks of their own, at most `limit` at a time, and hand their events to the reader.

    The first failure cancels the others; when all are over it is raised, unwrapped. Cancelling this cancels them all.
    """
    port = run.port if run.port is not None and not run.port.closed else None
    tasks = _Tasks(works, port is not None)
    stopping = run.stopping
    before, stopping.tasks = stopping.tasks, (*stopping.tasks, tasks.running.keys())
    for _ in range(min(limit, len(works))):
        tasks.begin()
    cut: BaseException | None = None
    while True:
        try:
            event = await tasks.channel.get(tasks.idle)
            if event is None:
                break
            if port is not None and not port.closed:
                port.event = event
                await port
        except GeneratorExit:
            tasks.cancel()
            raise
        except BaseException as error:
            stopping.absorb(error)
            if port is not None and port.closed:
                tasks.channel.close()
            if cut is None:
                cut = error
            tasks.cancel()
    stopping.tasks = before
    if cut is not None:
        try:
            raise cut
        finally:
            del cut  # its traceback holds this frame
    if tasks.failures:
        try:
            raise tasks.failures[0]
        finally:
            tasks.failures.clear()


class _Tasks:
    """The tasks of some works, and those works that wait for a task to end."""

    __slots__ = ("_heard", "_waiting", "channel", "failures", "running")

    def __init__(self, works: Sequence[Work], heard: bool) -> None:
        self.channel = Channel() if heard else Channel(1)
        self.failures: list[BaseException] = []
        self._heard = heard
        self._waiting = list(reversed(works))
        # In the order in which they began: they are cancelled in that, whatever their addresses are.
        self.running: dict[asyncio.Task[None], None] = {}

    def idle(self) -> bool:
        """Whether nothing runs any more."""
        return not self.running

    def begin(self) -> None:
        """Begin the next work."""
        task = asyncio.get_running_loop().create_task(self._run(self._waiting.pop()))
        self.running[task] = None
        task.add_done_callback(self._over)

    def cancel(self) -> None:
        """Cancel what runs; what waits does not begin."""
        self._waiting.clear()
        for task in list(self.running):
            task.cancel()

    async def _run(self, work: Work) -> None:
        try:
            await work(ChannelPort(self.channel) if self._heard else None)
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or not task.cancelling():  # nobody cancelled it: it failed
                self.failures.append(error)
        except BaseException as error:  # a signal must not escape through the loop: it is raised in the driver
            self.failures.append(error)

    def _over(self, task: asyncio.Task[None]) -> None:
        self.running.pop(task, None)
        if self.failures:
            self.cancel()
        elif self._waiting:
            self.begin()
        self.channel.wake()
