"""The soak: lanes that live one session after the other, the checks of each, and the resources left when all have ended."""

from __future__ import annotations

import asyncio
import gc
import json
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from weakref import WeakSet

from agentflow.models.clients import close_clients
from agentflow.state.sql import SqlStore
from benchmarks.soak import laws
from benchmarks.soak.gauge import Fit, Held, fit, held, thinned
from benchmarks.soak.loops import OWNED, FasterLoop, real_seconds
from benchmarks.soak.plans import DATABASES, plan_of
from benchmarks.soak.servers import Served, Servers, started
from benchmarks.soak.sessions import SoakWorld, check_served

__all__ = ["Asked", "Broken", "Soaked", "soak"]

_MAX_SECONDS = real_seconds(300)
_MAX_WORK_SECONDS = 300.0
_ENOUGH = 50
"""How much may be broken before it gives up."""


class Asked(NamedTuple):
    """The settings.

    Attributes:
        seconds: For how long.
        seed: Of the first session; the next one's is one more.
        sessions: How many at most; None: as many as there is time for.
        lanes: How many at once.
        postgres: Whether a PostgreSQL server is to be started.
        workers: Whether durable workers are to be killed beside it.
        world: The world of the sessions.
    """

    seconds: float
    seed: int
    sessions: int | None = None
    lanes: int = 16
    postgres: bool = True
    workers: bool = True
    world: type[SoakWorld] = SoakWorld


class Broken(NamedTuple):
    """A violation.

    Attributes:
        seed: The session's; None: it is the whole that is broken.
        what: Its description.
        where: The traceback, if there is one.
    """

    seed: int | None
    what: str
    where: str = ""


@dataclass
class Soaked:
    """The result so far.

    Attributes:
        counts: Sessions, calls, rounds, requests, faults; workers' calls and kills.
        stores: Sessions by store and wire.
        broken: The violations.
        notes: The omissions, and the reasons.
        samples: The resources of the process, from time to time.
        started: Its resources before the first session.
        left: Its resources after the last one.
    """

    began: float = field(default_factory=time.monotonic)
    counts: Counter[str] = field(default_factory=Counter[str])
    stores: Counter[str] = field(default_factory=Counter[str])
    broken: list[Broken] = field(default_factory=list[Broken])
    notes: list[str] = field(default_factory=list[str])
    samples: list[Held] = field(default_factory=list[Held])
    started: Held | None = None
    left: Held | None = None

    @property
    def seconds(self) -> float:
        """Since it began."""
        return time.monotonic() - self.began

    @property
    def laws(self) -> int:
        """How often a law was looked at."""
        return sum(laws.HELD.values())

    @property
    def memory(self) -> Fit | None:
        """How the memory grows."""
        return fit(self.samples)


class _Soak:
    def __init__(self, asked: Asked, tell: Callable[[Soaked], None], told: Callable[[Broken], None]) -> None:
        self.asked = asked
        self.soaked = Soaked()
        self.stop = asyncio.Event()
        self._tell = tell
        self._told = told
        self._seed = asked.seed
        self._stores: dict[str, SqlStore] = {}
        self._worlds: WeakSet[Any] = WeakSet()
        self._active: dict[int, float] = {}
        self._servers = Servers()
        self._interrupted = False

    def interrupt(self) -> None:
        """End early."""
        self._interrupted = True
        self.stop.set()

    def break_(self, broken: Broken) -> None:
        self.soaked.broken.append(broken)
        self._told(broken)
        if len(self.soaked.broken) >= _ENOUGH:
            self.stop.set()

    # -- a session

    async def _lane(self) -> None:
        while not self.stop.is_set():
            done = self._seed - self.asked.seed
            if self.asked.sessions is not None and done >= self.asked.sessions:
                return
            seed, self._seed = self._seed, self._seed + 1
            self._active[seed] = time.monotonic()
            await asyncio.create_task(self._session(seed), name=f"session {seed}")
            del self._active[seed]

    async def _session(self, seed: int) -> None:
        """Run a session, and report its violations."""
        OWNED.set(WeakSet())
        try:
            await self._live(seed)
        except (Exception, asyncio.CancelledError) as error:
            what = f"{type(error).__name__}: {error}"
            self.break_(Broken(seed, what, "".join(traceback.format_exception(error))))

    async def _live(self, seed: int) -> None:
        plan = plan_of(seed)
        base = await self._servers.open(plan)
        store = self._stores.get(plan.store, self._stores["sqlite"]) if plan.store in DATABASES else None
        world: Any = None
        try:
            world = self.asked.world(plan, base, store)
            self._worlds.update({world, world.agent, world.expert})
            async with asyncio.timeout(_MAX_SECONDS):
                await laws.check_program(plan.program, lambda _: world)
            world.check_experts()
            served = await self._served(seed)
            check_served(served)
            self._count(world, served)
        finally:
            await self._servers.close(seed)
            if store is not None and world is not None:
                await store.delete(world.named)

    async def _served(self, seed: int) -> Served:
        """The requests that the server has seen, once the last connection is closed."""
        until = time.monotonic() + 20
        while True:
            served = await self._servers.look(seed)
            if (not served.open and not served.unended) or time.monotonic() > until:
                return served
            await asyncio.sleep(0.1)

    def _count(self, world: SoakWorld, served: Served) -> None:
        self.soaked.counts.update(
            sessions=1,
            calls=len(world.calls) + len(world.expert_seen),
            rounds=world.rounds,
            requests=served.requests,
            faults=served.faults,
        )
        self.soaked.stores.update([world.plan.store, world.plan.wire])

    # -- the whole

    async def run(self) -> Soaked:
        """All of it."""
        gc.collect()
        gc.freeze()
        self.soaked.started = held(0)
        async with AsyncExitStack() as opened:
            await opened.enter_async_context(self._databases())
            await opened.enter_async_context(self._servers)
            working = asyncio.create_task(self._work()) if self.asked.workers else None
            lanes = [asyncio.create_task(self._lane()) for _ in range(self.asked.lanes)]
            watching = asyncio.create_task(self._watch())
            ended = asyncio.gather(*lanes)
            await asyncio.wait([ended, asyncio.create_task(self.stop.wait())], return_when="FIRST_COMPLETED")
            _, late = await asyncio.wait([ended], timeout=_MAX_SECONDS)
            if late:
                for seed, began in self._active.items():
                    self.break_(Broken(seed, f"a session has not ended after {time.monotonic() - began:.0f} s"))
            self.stop.set()
            await watching
            if working is not None:
                await working
        await self._leave()
        return self.soaked

    @asynccontextmanager
    async def _databases(self) -> AsyncIterator[None]:
        """SQLite, and PostgreSQL if it is available."""
        async with AsyncExitStack() as opened:
            folder = opened.enter_context(tempfile.TemporaryDirectory(dir=laws.memory_folder()))
            urls = {"sqlite": f"sqlite:///{folder}/soak.db"}
            if self.asked.postgres:
                from postgres import postgres_server  # beside the tests; needs psycopg

                try:
                    urls["postgresql"] = opened.enter_context(postgres_server()).url
                except RuntimeError as error:  # there is none on this machine
                    self.soaked.notes.append(str(error))
            for name, url in urls.items():
                self._stores[name] = await opened.enter_async_context(SqlStore(url, power_safe=False))
            yield

    async def _watch(self) -> None:
        """Look every half second, collect garbage every ten; stop when the time has passed."""
        turn = 0
        while not self.stop.is_set():
            turn += 1
            if turn % 20 == 0:
                laws.TAKEN.clear()
                gc.collect()
            self.soaked.samples = thinned([*self.soaked.samples, held(self.soaked.counts["calls"])])
            self._tell(self.soaked)
            if self.soaked.seconds > self.asked.seconds:
                self.stop.set()
            await asyncio.sleep(real_seconds(0.5))

    async def _work(self) -> None:
        """Kill durable workers, in processes of their own, on one database after the other."""
        turn = 0
        while not self.stop.is_set():
            rest = 0.8 * (self.asked.seconds - self.soaked.seconds)  # the last calls are to end, too
            if turn and rest < 20:
                return
            databases = tuple(self._stores)
            await self._work_on(databases[turn % len(databases)], min(rest, _MAX_WORK_SECONDS))
            turn += 1

    async def _work_on(self, database: str, seconds: float) -> None:
        command = [sys.executable, "-m", "benchmarks.workers", "--json", "--only", "kill", "--every", "15"]
        command += ["--database", database, "--seconds", f"{seconds:.0f}", "--sessions", "10"]
        with started(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            until = time.monotonic() + seconds + _MAX_WORK_SECONDS
            while process.poll() is None:
                await asyncio.sleep(real_seconds(0.2))
                if self._interrupted or time.monotonic() > until:
                    process.send_signal(signal.SIGINT)  # it ends its workers, and then itself
                    break
            await asyncio.to_thread(process.wait)
            told, wrong = process.communicate()
        if process.returncode and not self._interrupted:
            self.break_(Broken(None, f"durable workers on {database} (exit code {process.returncode}): {told}", wrong))
        for line in told.splitlines():
            report = json.loads(line)
            self.soaked.counts.update({"worker calls": report["calls"], "workers killed": report["killed"]})

    async def _leave(self) -> None:
        """Check that no resources are left when all has ended."""
        await close_clients()
        loop = asyncio.get_running_loop()
        await loop.shutdown_default_executor()
        await asyncio.sleep(real_seconds(0.1))
        for _ in range(20):  # a timer, or a thread's last reference, may outlive its call for a moment
            gc.collect()
            if not self._worlds:
                break
            await asyncio.sleep(real_seconds(0.5))
        started = self.soaked.started
        assert started is not None
        self.soaked.left = left = held(self.soaked.counts["calls"])
        for name in ("files", "tasks", "threads", "connections"):
            before, behind = getattr(started, name), getattr(left, name)
            if behind > before:
                self.break_(Broken(None, f"{behind - before} {name} are left ({before} before, {behind} now)"))
        if self._worlds:
            holders = sorted({type(one).__name__ for world in self._worlds for one in gc.get_referrers(world)})
            text = f"{len(self._worlds)} agents of sessions that have ended are still in memory"
            self.break_(Broken(None, text, f"They are held by: {', '.join(holders)}"))
        grown = self.soaked.memory
        if grown is not None and grown.grows:
            self.break_(Broken(None, f"memory grows by {grown.growth:.0f} ± {grown.error:.0f} KB in 1,000 calls"))
        if isinstance(loop, FasterLoop):
            for one in loop.loose:
                self.break_(Broken(None, f"uncaught: {one}"))


def soak(
    asked: Asked,
    tell: Callable[[Soaked], None] = lambda _: None,
    told: Callable[[Broken], None] = lambda _: None,
) -> Soaked:
    """Do it; Ctrl-C ends it as the time would.

    Args:
        asked: The settings.
        tell: Called every half second with the result so far.
        told: Called with each violation.
    """
    laws.HELD.clear()

    async def main() -> Soaked:
        whole = _Soak(asked, tell, told)
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, whole.interrupt)
        try:
            return await whole.run()
        finally:
            loop.remove_signal_handler(signal.SIGINT)

    unraisable: list[str] = []
    hook, sys.unraisablehook = sys.unraisablehook, lambda found: unraisable.append(repr(found.exc_value))
    try:
        with asyncio.Runner(loop_factory=FasterLoop) as runner:
            soaked = runner.run(main())
    finally:
        sys.unraisablehook = hook
        gc.unfreeze()
    for one in unraisable:
        broken = Broken(None, f"uncaught: {one}")
        soaked.broken.append(broken)
        told(broken)
    return soaked
