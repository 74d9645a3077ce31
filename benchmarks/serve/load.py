"""The load: many concurrent requests of event streams to one server process, and the figures.

Rules:

1. The client reads raw bytes and counts a mark that each text event has once, so it costs little.
2. Requests begin evenly over the first seconds. The processor time and memory are those of the server's process, less
   what it had after a warm-up.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import quantiles
from typing import IO, NamedTuple

from benchmarks.peers.environments import ROOT

__all__ = ["Load", "Result", "Target", "measure"]

_WARM_UP = 3
_LIMIT_SECONDS = 240.0
_SAMPLE_SECONDS = 0.25


class Target(NamedTuple):
    """A server to measure.

    Attributes:
        app: Its module in `benchmarks/serve/apps`.
        label: Its name in the table.
        path: The path of the request.
        body: The request's body; `#` becomes a number of its own.
        mark: What each event with text has once, and nothing else.
    """

    app: str
    label: str
    path: str
    body: str
    mark: bytes


class Load(NamedTuple):
    """The amount of load.

    Attributes:
        streams: Concurrent streams.
        chunks: Chunks of text of each reply.
        pause: Seconds between two chunks of the model.
        ramp: Seconds over which the requests begin.
    """

    streams: int
    chunks: int
    pause: float
    ramp: float


@dataclass(frozen=True)
class Result:
    """The figures of a server. Times are in seconds: the median and the 99th percentile.

    Attributes:
        first: From the request to its first text.
        between: Between two events of a stream.
        cpu: Processor time of the server for each event with text, all else included.
        memory: Bytes for each stream, at the most.
        complete: Streams that had all their text.
    """

    first: tuple[float, float]
    between: tuple[float, float]
    cpu: float
    memory: float
    complete: int


class _Stream(asyncio.Protocol):
    """One request; the times of its events."""

    def __init__(self, request: bytes, mark: bytes) -> None:
        self._request = request
        self._mark = mark
        self._tail = b""
        self.begun = time.perf_counter()
        self.times: list[float] = []
        self.ended = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter()
        data = self._tail + data
        found = data.count(self._mark)
        self.times += [now] * found
        self._tail = data[data.rfind(self._mark) + len(self._mark) if found else 0 :][1 - len(self._mark) :]

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.ended.done():
            self.ended.set_result(None)


class _Server:
    """The server's process."""

    def __init__(self, stdin: IO[str], stdout: IO[str]) -> None:
        self._stdin = stdin
        self._stdout = stdout
        line = stdout.readline()
        if not line:
            raise RuntimeError("The server did not start; its error is above.")
        self.port = int(line)

    def usage(self) -> tuple[float, int]:
        """Return its processor time and its memory."""
        print(file=self._stdin, flush=True)
        found = json.loads(self._stdout.readline())
        return found["cpu"], found["memory"]


@contextmanager
def _serving(python: Path, target: Target, load: Load, core: int | None) -> Iterator[_Server]:
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    command = [str(python), "-m", "benchmarks.serve.server", target.app, "--streams", str(load.streams)]
    command += ["--chunks", str(load.chunks), "--pause", str(load.pause)]
    with subprocess.Popen(
        command, cwd=ROOT, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        if core is not None:
            os.sched_setaffinity(process.pid, {core})
        try:
            yield _Server(process.stdin, process.stdout)
        finally:
            process.stdin.close()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()


def measure(python: Path, target: Target, load: Load, core: int | None = None) -> Result:
    """Start a server, put it under load, and return the figures.

    Args:
        python: The interpreter of its environment.
        target: The server.
        load: The amount of load.
        core: The core of its process; None for any.
    """
    with _serving(python, target, load, core) as server:
        return asyncio.run(_run(server, target, load))


async def _run(server: _Server, target: Target, load: Load) -> Result:
    async with asyncio.timeout(_LIMIT_SECONDS):
        await asyncio.gather(*[(await _begin(server, target, f"w{place}")).ended for place in range(_WARM_UP)])
        cpu, memory = await asyncio.to_thread(server.usage)
        most = memory
        loading = asyncio.create_task(_streams(server, target, load))
        while not loading.done():
            await asyncio.wait([loading], timeout=_SAMPLE_SECONDS)
            after, now = await asyncio.to_thread(server.usage)
            most = max(most, now)
        streams = await loading
    events = sum(len(stream.times) for stream in streams)
    first = [stream.times[0] - stream.begun for stream in streams if stream.times]
    gaps = [b - a for stream in streams for a, b in zip(stream.times, stream.times[1:], strict=False)]
    return Result(
        first=_middle_and_most(first),
        between=_middle_and_most(gaps),
        cpu=(after - cpu) / max(events, 1),
        memory=(most - memory) / load.streams,
        complete=sum(len(stream.times) == load.chunks for stream in streams),
    )


async def _streams(server: _Server, target: Target, load: Load) -> list[_Stream]:
    started = time.perf_counter()
    streams: list[_Stream] = []
    for place in range(load.streams):
        await asyncio.sleep(started + place * load.ramp / load.streams - time.perf_counter())
        streams.append(await _begin(server, target, str(place)))
    await asyncio.gather(*[stream.ended for stream in streams])
    return streams


async def _begin(server: _Server, target: Target, number: str) -> _Stream:
    body = target.body.replace("#", number).encode()
    head = (
        f"POST {target.path} HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\nConnection: close\r\n"
        f"Accept: text/event-stream\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    loop = asyncio.get_running_loop()
    _, stream = await loop.create_connection(
        lambda: _Stream(head.encode() + body, target.mark), "127.0.0.1", server.port
    )
    return stream


def _middle_and_most(values: list[float]) -> tuple[float, float]:
    if len(values) < 2:
        return (values or [0.0])[0], (values or [0.0])[0]
    points = quantiles(values, n=100)
    return points[49], points[98]
