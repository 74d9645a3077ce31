"""The server of the rows over the wire, in a process of its own: OpenAI's chat completions on loopback.

The user's text is the number of words of the answer, and whether each is a write of its own: `apart 50`,
`together 2000`.
"""

from __future__ import annotations

import asyncio
import sys

from agentflow.testing.wire import Fault, Say, WireRequest, WireServer
from benchmarks.peers.kit import WORD

__all__ = ["brain"]


def brain(request: WireRequest) -> Say:
    """The answer that was asked for."""
    way, _, count = request.user_text.partition(" ")
    faults = () if way == "apart" else (Fault.one_write(),)
    return Say(WORD * int(count), chunk=len(WORD), faults=faults)


async def main() -> None:
    """Serve until standard input ends."""
    async with WireServer.openai(brain) as server:
        print(server.base_url, flush=True)
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main())
