"""Web processes and workers that are killed while clients read: `python -m benchmarks.serve_kills --minutes 1 --clients 100`.

Two web processes and two workers, each a real process, over a real PostgreSQL, started here. Every moment one of the four is
killed with SIGKILL and started again. Meanwhile clients start runs and read their events over loopback; if a connection breaks,
and sometimes without, a client reconnects to any of the web processes with the id of its last event. `--quick` only checks that
it runs.

A run is right if its client has received, over all its connections, each event once and in order: the same events as one
connection that reads the run from its beginning; the replies of the session's history, each once; and one end, with the whole
reply. Everything else is counted as wrong, and the command fails.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import socket
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import aiohttp

from benchmarks.report import environment

if TYPE_CHECKING:
    from nursery import Nursery

ROOT = Path(__file__).parents[1]
sys.path += [str(ROOT / "tests" / "support"), str(ROOT / "tests" / "serve")]

PROGRAM = ROOT / "tests" / "serve" / "shop_processes.py"
PATIENCE = 300.0
"""Seconds after which a run hangs."""


class Effort(NamedTuple):
    """How much to do."""

    clients: int = 100
    seconds: float = 60.0
    lease: float = 3.0
    pause: tuple[float, float] = (1.0, 5.0)
    dropped: float = 0.02


QUICK = Effort(5, 3.0, 2.0, (0.5, 1.0))


class Report(NamedTuple):
    """The result."""

    runs: int
    seconds: float
    webs_killed: int
    workers_killed: int
    connections: int
    restarts: int
    wrong: list[str]
    p50: float
    p99: float


class Event(NamedTuple):
    """A server-sent event."""

    id: str
    data: dict[str, Any]


class Processes:
    """The web processes and workers.

    Args:
        url: The database.
        lease: Seconds of a worker's lease.
        start: Starts a program with arguments, and returns the function that kills it.
    """

    def __init__(self, url: str, lease: float, start: Callable[[list[str]], Callable[[], None]]) -> None:
        self.ports = [_free_port() for _ in range(2)]
        self.killed: Counter[str] = Counter()
        self._start = start
        self._commands = [
            *[["web", url, str(port)] for port in self.ports],
            *[["worker", url, str(lease)] for _ in range(2)],
        ]
        self._kills = [start(command) for command in self._commands]

    def kill_one(self) -> None:
        """Kill one, and start it again."""
        chosen = random.randrange(len(self._commands))
        self._kills[chosen]()
        self.killed[self._commands[chosen][0]] += 1
        self._kills[chosen] = self._start(self._commands[chosen])

    def end(self) -> None:
        """Kill all."""
        for kill in self._kills:
            kill()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def open_nursery() -> Nursery:
    """Return a process from which the programs start at once."""
    from nursery import Nursery  # of the tests' support

    return Nursery("shop_processes", paths=(PROGRAM.parent,))


def starter(nursery: Nursery) -> Callable[[list[str]], Callable[[], None]]:
    """Return what starts a program, and returns the function that kills it."""

    def start(arguments: list[str]) -> Callable[[], None]:
        pid = nursery.start([str(PROGRAM), *arguments], {**os.environ, "PYTHONPATH": str(ROOT)}, {})

        def kill() -> None:
            os.kill(pid, signal.SIGKILL)
            nursery.code(pid)

        return kill

    return start


class Client:
    """A program that starts a run and reads it to its end, whatever happens to the processes.

    Args:
        http: The connections.
        ports: Where the web processes listen.
        user: Its user.
        dropped: How often it drops a connection itself, for each event.
    """

    def __init__(self, http: aiohttp.ClientSession, ports: list[int], user: str, dropped: float) -> None:
        self.connections = 0
        self._http = http
        self._ports = ports
        self._headers = {"X-User": user}
        self._dropped = dropped

    async def ask(self, method: str, path: str, data: Any = None, **headers: str) -> Any:
        """Make a request, at any process, until it is answered."""
        named = {**self._headers, **{name.replace("_", "-"): value for name, value in headers.items()}}
        while True:
            url = f"http://127.0.0.1:{random.choice(self._ports)}{path}"
            try:
                async with self._http.request(method, url, json=data, headers=named) as response:
                    if response.status < 300:
                        return await response.json()
                    assert response.status >= 500, (response.status, await response.text())
            except (aiohttp.ClientError, ConnectionError):
                pass
            await asyncio.sleep(0.1)

    async def run(self, question: str) -> tuple[dict[str, Any], list[Event]]:
        """Start a run, and read it; return it and its events."""
        run = await self.ask("POST", "/agents/clerk/runs", {"input": question}, Idempotency_Key=question)
        return run, await self.read(run["id"], self._dropped)

    async def read(self, run: str, dropped: float = 0.0) -> list[Event]:
        """Read a run to its end, over any number of connections."""
        events: list[Event] = []
        while not (events and events[-1].data["type"] == "end"):
            self.connections += 1
            try:
                async for event in self._connection(run, events[-1].id if events else None):
                    events.append(event)
                    if random.random() < dropped:
                        break
            except (aiohttp.ClientError, ConnectionError):
                await asyncio.sleep(0.1)
        return events

    async def _connection(self, run: str, last: str | None) -> AsyncIterator[Event]:
        headers = self._headers if last is None else {**self._headers, "Last-Event-ID": last}
        url = f"http://127.0.0.1:{random.choice(self._ports)}/runs/{run}/events"
        async with self._http.get(url, headers=headers) as response:
            if response.status != 200:
                assert response.status >= 500, (response.status, await response.text())
                await asyncio.sleep(0.1)
                return
            id_ = ""
            async for line in response.content:
                text = line.decode().rstrip("\n")
                if text.startswith("id: "):
                    id_ = text[4:]
                elif text.startswith("data: "):
                    yield Event(id_, json.loads(text[6:]))
                    id_ = ""

    async def problem(self, question: str, expected: list[str], run: dict[str, Any], events: list[Event]) -> str | None:
        """Return what is wrong with what it has received; None if nothing is."""
        again = await self.read(run["id"])
        if events != again:
            return f"{question}: the events differ from those of one connection: {events} and {again}"
        history = await self.ask("GET", f"/agents/clerk/sessions/{run['session']}")
        stored = [(msg["id"], msg["text"]) for msg in history["messages"] if msg["role"] == "assistant"]
        received = [(event.data["id"], event.data["text"]) for event in events if event.data["type"] == "reply"]
        if received != stored or [text for _, text in stored] != expected:
            return f"{question}: the replies are {received}, and the history has {stored}"
        end = events[-1].data
        ends = sum(event.data["type"] == "end" for event in events)
        if (end["outcome"], end["text"], ends) != ("completed", expected[-1], 1):
            return f"{question}: the run has {ends} ends, the last one is {end}"
        return _streaming_problem(question, events)


def _streaming_problem(question: str, events: list[Event]) -> str | None:
    """Check the streamed text: before each reply it is the reply, or was discarded."""
    current = ""
    for event in events:
        match event.data["type"]:
            case "text":
                current = event.data["text"] if event.data["restart"] else current + event.data["text"]
            case "reply":
                if current not in ("", event.data["text"]):
                    return f"{question}: {current!r} was streamed for {event.data['text']!r}"
                current = ""
            case "gap":
                return f"{question}: there is a gap"
            case _:
                pass
    return None


async def measure(processes: Processes, effort: Effort) -> Report:
    """Let clients read while processes are killed."""
    from shop_processes import answers  # of the tests

    began = time.monotonic()
    wrong: list[str] = []
    times: list[float] = []
    restarts = 0

    async def use(client: Client, n: int) -> None:
        nonlocal restarts
        count = 0
        while time.monotonic() - began < effort.seconds or not count:
            question, count = f"a{n}x{count}", count + 1
            started = time.monotonic()
            try:
                async with asyncio.timeout(PATIENCE):
                    run, events = await client.run(question)
                    times.append(time.monotonic() - started)
                    restarts += sum(event.data.get("restart", False) for event in events)
                    problem = await client.problem(question, answers(question), run, events)
            except TimeoutError:
                problem = f"{question}: it has not ended within {PATIENCE:g} s"
            if problem is not None:
                wrong.append(problem)

    async def kill() -> None:
        while time.monotonic() - began < effort.seconds:
            await asyncio.sleep(random.uniform(*effort.pause))
            await asyncio.to_thread(processes.kill_one)

    async with _http() as http:
        clients = [Client(http, processes.ports, f"user{n}", effort.dropped) for n in range(effort.clients)]
        await clients[0].ask("GET", "/agents")  # a web process has started
        began = time.monotonic()
        await asyncio.gather(kill(), *[use(client, n) for n, client in enumerate(clients)])
    times.sort()
    return Report(
        runs=len(times),
        seconds=time.monotonic() - began,
        webs_killed=processes.killed["web"],
        workers_killed=processes.killed["worker"],
        connections=sum(client.connections for client in clients),
        restarts=restarts,
        wrong=wrong,
        p50=times[len(times) // 2] if times else 0.0,
        p99=times[len(times) * 99 // 100] if times else 0.0,
    )


@asynccontextmanager
async def _http() -> AsyncIterator[aiohttp.ClientSession]:
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=5, sock_read=60)
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    async with aiohttp.ClientSession(timeout=timeout, connector=connector) as http:
        yield http


def main() -> None:
    """Run it."""
    from postgres import postgres_server  # of the tests' support

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="Only to see that it runs.")
    parser.add_argument("--minutes", type=float, help="How long.")
    parser.add_argument("--clients", type=int, help="How many clients.")
    parser.add_argument("--every", type=float, metavar="SECONDS", help="How often one is killed, about.")
    given = parser.parse_args()
    effort = QUICK if given.quick else Effort()
    if given.every is not None:
        effort = effort._replace(pause=(given.every / 2, given.every * 1.5))
    if given.minutes is not None:
        effort = effort._replace(seconds=given.minutes * 60)
    if given.clients is not None:
        effort = effort._replace(clients=given.clients)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # the processes are killed on the way out
    env = environment()
    print(f"{env['python']} on {env['platform']}, {env['cpus']} x {env['processor']}", flush=True)
    nursery = open_nursery()
    with postgres_server() as server, server.database() as url:
        processes = Processes(url, effort.lease, starter(nursery))
        try:
            report = asyncio.run(measure(processes, effort))
        finally:
            processes.end()
            nursery.end()
    often = "{:g} to {:g} s".format(*effort.pause)
    print(
        f"2 web processes, 2 workers, {effort.clients} clients, a kill every {often}, a lease of {effort.lease:g} s\n"
        f"  {'runs':<28}{report.runs:>7}   ({report.runs / report.seconds:.1f} a second)\n"
        f"  {'web processes killed':<28}{report.webs_killed:>7}\n"
        f"  {'workers killed':<28}{report.workers_killed:>7}\n"
        f"  {'connections':<28}{report.connections:>7}\n"
        f"  {'texts discarded and repeated':<28}{report.restarts:>7}\n"
        f"  {'seconds to the end, p50, p99':<28}{report.p50:>7.1f} {report.p99:.1f}\n"
        f"  {'wrong':<28}{len(report.wrong):>7}"
    )
    for problem in report.wrong[:10]:
        print(f"  {problem}")
    sys.exit(1 if report.wrong else 0)


if __name__ == "__main__":
    main()
