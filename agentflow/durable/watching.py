"""The thread of a worker that reports that it is alive, and polls the database for the changes that concern the worker."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Mapping

from agentflow.durable.execution import Host
from agentflow.durable.membership import Membership


class Watcher:
    """Reports that a worker is alive, and looks for dead workers, cancelled runs and messages, in a thread of its own.

    Args:
        hosts: The worker's agents, by name; the event loop that creates the watcher runs their calls.
        member: The worker.
        poll: Seconds between two polls of the database.
        stopping: Set when the worker is stopping and takes over no more calls.
    """

    def __init__(self, hosts: Mapping[str, Host], member: Membership, poll: float, stopping: asyncio.Event) -> None:
        self._hosts = hosts
        self._member = member
        self._poll = poll
        self._stopping = stopping
        self._loop = asyncio.get_running_loop()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name=f"agentflow {member.id}", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def end(self) -> None:
        """Let the thread end, without waiting for it."""
        self._ended.set()

    def join(self) -> None:
        """Wait until the thread has ended."""
        self._thread.join()

    def _watch(self) -> None:
        """Report and poll until `end`. A separate thread does this, so that a busy event loop does not look like a dead
        worker.
        """
        member, due = self._member, 0.0
        while not self._ended.wait(member.outage.pause(self._poll, member.lease / 3)):
            try:
                if time.monotonic() >= due:
                    member.beat()
                    due = time.monotonic() + member.lease / 3  # two reports may fail before the lease ends
                    member.outage.answered()
                    if not self._stopping.is_set():
                        member.take_over(self._hosts)
                for host in self._hosts.values():
                    if host.running:
                        # Sessions belong to the event loop. `cancel` below may be called from any thread.
                        self._loop.call_soon_threadsafe(host.cancel_lost)
                        if sent := member.tables.sent(host.sessions):
                            self._loop.call_soon_threadsafe(host.steer, sent)
                        for run_id, reason in member.tables.cancelled(host.running).items():
                            host.cancel(run_id, reason)
            except Exception as error:  # any failure: watching continues, since the database may recover
                if not self._ended.is_set():
                    member.outage.failed(error)
                    due = 0.0  # as soon as the database responds, report first
