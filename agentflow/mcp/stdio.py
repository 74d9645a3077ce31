"""Run a server as a child process, over its standard input and output.

Unlike the SDK's transport, this one protects against hostile servers: lines have a maximum length (the SDK reads until memory
is exhausted), and invalid messages and the process's standard error are logged in printable form (the SDK passes standard error
to the terminal unchanged). On Windows, where ending a process with its children needs more code, the SDK's transport is used.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import Any

from agentflow._support.logs import logger
from agentflow._support.shown import one_line
from agentflow.mcp.sdk import (
    SessionMessage,
    StdioServerParameters,
    anyio,
    get_default_environment,
    stdio_client,
    types,
)

_FLUSH = 0.5
"""Seconds to wait until written data has reached the process."""
_GRACE = 2.0
"""Seconds for a process to exit after its input is closed, and again after a signal."""
_MAX_LOG_LINE = 4096
_MAX_BAD_LINES = 1000
"""The number of consecutive invalid lines after which the connection is closed."""

Streams = tuple[Any, Any]


def stdio_transport(
    parameters: StdioServerParameters, limit: int, on_stderr: Callable[[str], None]
) -> AbstractAsyncContextManager[Streams]:
    """Start a process, and return its streams; the process is stopped at the end of the block.

    Args:
        parameters: The command.
        limit: The maximum size of a message, in bytes.
        on_stderr: Called with each line that the process writes to its standard error.
    """
    return stdio_client(parameters) if sys.platform == "win32" else _posix(parameters, limit, on_stderr)


@asynccontextmanager
async def _posix(
    parameters: StdioServerParameters, limit: int, on_stderr: Callable[[str], None]
) -> AsyncGenerator[Streams, None]:
    process = await asyncio.create_subprocess_exec(
        parameters.command,
        *parameters.args,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=get_default_environment() | (parameters.env or {}),
        cwd=parameters.cwd,
        limit=limit,
        # In its own process group: our signals reach the process and its children, and Ctrl-C in the terminal does not.
        start_new_session=True,
    )
    # With a buffer of 0, a server that writes faster than its messages are handled has to wait.
    incoming, read_stream = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    write_stream, outgoing = anyio.create_memory_object_stream[SessionMessage](0)
    tasks = [
        asyncio.create_task(_read(process, incoming)),
        asyncio.create_task(_write(process, outgoing, incoming)),
        asyncio.create_task(_log_stderr(process, on_stderr)),
    ]
    try:
        yield read_stream, write_stream
    finally:
        # This ends `_write` after the last message.
        write_stream.close()
        ending = asyncio.ensure_future(_stop(process, tasks))
        try:
            await asyncio.shield(ending)
        except asyncio.CancelledError:
            # Finish stopping despite the cancellation, since the child could outlive this process. The time is limited.
            await asyncio.wait([ending])
            raise
        finally:
            for stream in (incoming, read_stream, write_stream, outgoing):
                stream.close()


async def _read(process: asyncio.subprocess.Process, incoming: Any) -> None:
    """Read messages from the process's output, until it ends or has too many invalid lines."""
    assert process.stdout is not None
    bad = 0
    async with incoming:
        while bad < _MAX_BAD_LINES:
            try:
                line = await process.stdout.readline()
            except ValueError:  # longer than the limit
                logger.warning("closing the connection to an MCP server: it sent a message that is too long")
                return
            if not line:
                return
            if not line.strip():
                continue
            try:
                message = types.jsonrpc_message_adapter.validate_json(line, by_name=False)
            except ValueError:
                bad += 1
                logger.debug("an MCP server wrote an invalid message: {}", _shown(line))
                continue
            bad = 0
            try:
                await incoming.send(SessionMessage(message))
            except (anyio.ClosedResourceError, anyio.BrokenResourceError):
                return
        logger.warning("closing the connection to an MCP server: it wrote {} invalid messages in a row", bad)


async def _write(process: asyncio.subprocess.Process, outgoing: Any, incoming: Any) -> None:
    """Write messages to the process, as lines."""
    assert process.stdin is not None
    try:
        async with outgoing:
            async for sent in outgoing:
                # As in the SDK: a field that was not set is left out instead of sent as null.
                text = sent.message.model_dump_json(by_alias=True, exclude_unset=True)
                process.stdin.write(f"{text}\n".encode())
                await process.stdin.drain()
    except (OSError, anyio.ClosedResourceError, anyio.BrokenResourceError):
        incoming.close()  # so that callers stop waiting for an answer


async def _log_stderr(process: asyncio.subprocess.Process, on_stderr: Callable[[str], None]) -> None:
    """Report the process's standard error, line by line."""
    assert process.stderr is not None
    rest = b""
    while chunk := await process.stderr.read(_MAX_LOG_LINE):
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            on_stderr(_shown(line))
        # A line without an end is reported in parts, so that it does not fill the memory.
        if len(rest) > _MAX_LOG_LINE:
            on_stderr(_shown(rest))
            rest = b""
    if rest:
        on_stderr(_shown(rest))


def _shown(line: bytes) -> str:
    return one_line(line[:_MAX_LOG_LINE].decode(errors="replace"))


async def _stop(process: asyncio.subprocess.Process, tasks: list[asyncio.Task[None]]) -> None:
    """Close the process's input, and kill the process and its children if they do not end."""
    reading, writing, _ = tasks
    await asyncio.wait([writing], timeout=_FLUSH)
    # `_drain` reads from here on; asyncio allows one reader of a stream at a time.
    reading.cancel()
    if process.stdin is not None:
        with suppress(OSError):
            process.stdin.close()
    draining = asyncio.ensure_future(_drain(process))
    try:
        # None: first, the process may end by itself because its input is closed.
        for number in (None, signal.SIGTERM, signal.SIGKILL):
            if number is not None:
                _signal(process, number)
            if await _ended(process):
                break
    finally:
        _signal(process, signal.SIGKILL)  # remaining children
        for task in (*tasks, draining):
            task.cancel()
        await asyncio.gather(*tasks, draining, return_exceptions=True)
        # asyncio would keep the transport open while a child holds the inherited pipe.
        transport = getattr(process, "_transport", None)
        if transport is not None:
            transport.close()


async def _ended(process: asyncio.subprocess.Process) -> bool:
    waiting = asyncio.ensure_future(process.wait())
    done, _ = await asyncio.wait([waiting], timeout=_GRACE)
    if not done:
        waiting.cancel()
    # `returncode` instead of `done`: in CPython 3.11, `wait` also waits for the pipes, which children may hold open.
    return process.returncode is not None


async def _drain(process: asyncio.subprocess.Process) -> None:
    """Read and discard output, so that a process blocked on writing can end."""
    assert process.stdout is not None
    while await process.stdout.read(1 << 16):
        pass


def _signal(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    # macOS reports a group of ended processes as PermissionError.
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)
