"""`serve_stdio`: an agent for the editor that started this process.

Rules:

1. Standard output is reserved for the protocol: other output, of Python or a child process, goes to standard error.
   Standard input is reserved too: it is empty for tools.
2. The process ends with its client: when standard input is closed, running prompts are interrupted and their sessions closed.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import BinaryIO, cast

from agentflow.agent.agent import Agent
from agentflow.errors import UsageError
from agentflow.models.clients import close_clients
from agentflow.serve.acp.editor import EditorAgent
from agentflow.serve.acp.frames import MAX_FRAME, Frames
from agentflow.serve.acp.sdk import AgentSideConnection, ProtocolAgent


def take_streams() -> tuple[BinaryIO, BinaryIO]:
    """Reserve standard input and output for the caller, and return them.

    Raises:
        UsageError: This is Windows.
    """
    if sys.platform == "win32":
        raise UsageError("agentflow acp needs a POSIX system: on Windows, run it in WSL.")
    sys.stdout.flush()
    incoming, outgoing = os.fdopen(os.dup(0), "rb", buffering=0), os.fdopen(os.dup(1), "wb", buffering=0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return incoming, outgoing


async def serve_stdio(agent: Agent | EditorAgent, *, streams: tuple[BinaryIO, BinaryIO] | None = None) -> None:
    """Serve an agent on standard input and output until the client closes the connection.

    Args:
        agent: The agent.
        streams: The streams from and to the client; by default `take_streams()`.

    Raises:
        UsageError: The streams are not pipes, sockets or terminals, or this is Windows.
    """
    editor = EditorAgent(agent) if isinstance(agent, Agent) else agent
    try:
        async with _opened(streams or take_streams()) as frames, editor.agent:
            connection = AgentSideConnection(
                cast("ProtocolAgent", editor), frames, listening=False, use_unstable_protocol=True
            )
            try:
                await connection.listen()
            finally:
                await editor.aclose()
                await connection.close()
    finally:
        await close_clients()


@asynccontextmanager
async def _opened(streams: tuple[BinaryIO, BinaryIO]) -> AsyncGenerator[Frames]:
    """Open the streams for the duration of the block."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=MAX_FRAME)
    incoming, outgoing = streams
    try:
        incoming_pipe, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), incoming)
        outgoing_pipe, flow = await loop.connect_write_pipe(
            lambda: asyncio.StreamReaderProtocol(asyncio.StreamReader()), outgoing
        )
    except (ValueError, OSError) as error:
        raise UsageError(
            f"agentflow acp is started by an editor, over pipes; here it cannot use standard input or output ({error})."
        ) from error
    try:
        yield Frames(reader, asyncio.StreamWriter(outgoing_pipe, flow, None, loop))
    finally:
        incoming_pipe.close()
        outgoing_pipe.close()
