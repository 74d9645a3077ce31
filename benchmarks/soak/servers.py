"""The providers of the soak, in a process of their own: one strict wire server for each session, which plays its plan.

`python -m benchmarks.soak.servers PORT`: on that port of 127.0.0.1 it receives commands, a line of JSON each, and answers with
one. It ends when it is left alone.
"""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

from agentflow.testing.wire import WireReply, WireRequest, WireServer
from benchmarks.soak.loops import real_seconds
from benchmarks.soak.plans import Line, Plan, line_of, plan_of

__all__ = ["HEADER", "Served", "Servers", "started"]

HEADER = "x-soak"
ROOT = Path(__file__).parents[2]


class Served(NamedTuple):
    """The requests that one session's server has seen.

    Attributes:
        requests: How many requests came.
        faults: How many were answered with something that is wrong.
        refused: The refused requests, and the reasons.
        open: The connections that are open.
        unended: The answers that have no end.
    """

    requests: int
    faults: int
    refused: list[str]
    open: int
    unended: int


class Servers:
    """The process, as the soak sees it."""

    def __init__(self) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._process: subprocess.Popen[str] | None = None
        self._lock = asyncio.Lock()
        self._reading: asyncio.StreamReader
        self._writing: asyncio.StreamWriter

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self._listening.setblocking(False)
        command = [sys.executable, "-m", "benchmarks.soak.servers", str(self._listening.getsockname()[1])]
        self._process = started(command)
        joined, _ = await asyncio.wait_for(loop.sock_accept(self._listening), real_seconds(120))
        self._listening.close()
        self._reading, self._writing = await asyncio.open_connection(sock=joined)
        return self

    async def __aexit__(self, *raised: object) -> None:
        assert self._process is not None
        self._writing.close()
        await self._writing.wait_closed()
        await asyncio.to_thread(self._process.wait)

    async def open(self, plan: Plan) -> str:
        """Start the server of a session.

        Returns:
            Its address.
        """
        return await self._ask({"open": plan.seed})

    async def look(self, seed: int) -> Served:
        """The requests that a session's server has seen so far."""
        return Served(*await self._ask({"look": seed}))

    async def close(self, seed: int) -> None:
        """Stop it."""
        await self._ask({"close": seed})

    async def _ask(self, order: dict[str, Any]) -> Any:
        async with self._lock:
            self._writing.write(json.dumps(order).encode() + b"\n")
            answer = await self._reading.readline()
        if not answer:
            raise ConnectionError("the process of the wire servers has ended")
        return json.loads(answer)


def started(command: Sequence[str], **options: Any) -> subprocess.Popen[str]:
    """Start a program of this clone."""
    return subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, text=True, **options)


class _Playing:
    """One session's server."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._asked: Counter[str] = Counter()
        self._faults = 0
        self.server = (WireServer.openai if plan.wire == "openai" else WireServer.anthropic)(self._answer)

    def _answer(self, request: WireRequest) -> WireReply:
        said = request.headers[HEADER]
        agent, _, number = said.partition(" ")
        line = Line(agent, int(number) if number else None, self._asked[said])
        self._asked[said] += 1
        reply = line_of(self._plan, line)
        self._faults += bool(reply.edits)
        return reply

    def seen(self) -> Served:
        requests = self.server.requests
        refused = [f"{one.rule}: {one.refused}" for one in requests if one.refused is not None]
        unended = sum(one.ending is None for one in requests)
        return Served(len(requests), self._faults, refused, self.server.open_connections, unended)


async def _serve(port: int) -> None:
    reading, writing = await asyncio.open_connection("127.0.0.1", port)
    playing: dict[int, _Playing] = {}
    while asked := await reading.readline():
        order = json.loads(asked)
        answer: object = None
        if "open" in order:
            made = playing[order["open"]] = _Playing(plan_of(order["open"]))
            answer = (await made.server.start()).base_url
        elif "look" in order:
            answer = playing[order["look"]].seen()
        else:
            await playing.pop(order["close"]).server.stop()
        writing.write(json.dumps(answer).encode() + b"\n")
    writing.close()
    for one in playing.values():
        await one.server.stop()


if __name__ == "__main__":
    logging.disable()  # of clients that leave
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the soak, which ends this process when it is done
    asyncio.run(_serve(int(sys.argv[1])))
