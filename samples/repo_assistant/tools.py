"""The assistant's tools. The run supplies the parameter of type `Sandbox`; the model does not see it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator

from agentflow import Dep, tool
from agentflow.errors import ToolError

from .sandbox import Sandbox

MAX_HITS = 50
MAX_OUTPUT = 20_000
PASSED_ON = ("PATH", "LANG", "LC_ALL", "TMPDIR", "SYSTEMROOT")
"""The variables that commands see, without the keys of providers."""


@tool(type="read")
async def list_files(sandbox: Dep[Sandbox]) -> list[str]:
    """List the files of the repository."""
    return [file.as_posix() for file in sandbox.files()]


@tool(type="read")
async def read_file(path: str, sandbox: Dep[Sandbox]) -> str:
    """Read a text file.

    Args:
        path: Relative to the root of the repository.
    """
    return sandbox.read(path)


@tool(type="read")
async def search(text: str, sandbox: Dep[Sandbox]) -> list[str]:
    """Find a text in all files; returns `file:line: text`.

    Args:
        text: The exact text.
    """
    hits: list[str] = []
    for file in sandbox.files():
        with contextlib.suppress(ToolError, OSError):  # not text, or deleted
            lines = sandbox.read(file.as_posix()).splitlines()
            hits += [f"{file.as_posix()}:{n}: {line.strip()}" for n, line in enumerate(lines, 1) if text in line]
        if len(hits) > MAX_HITS:
            return [*hits[:MAX_HITS], f"... more than {MAX_HITS}"]
        await asyncio.sleep(0)  # lets other tasks run, and a cancellation arrive
    return hits


@tool(idempotent=True)
async def edit_file(path: str, old: str, new: str, sandbox: Dep[Sandbox]) -> str:
    """Replace a text in a file.

    Args:
        path: Relative to the root of the repository.
        old: The exact old text; it must occur once.
        new: The new text.
    """
    text = sandbox.place(path, to_write=True).read_text("utf-8")
    count = text.count(old) if old else 0
    if count != 1:
        if count == 0 and new and text.count(new) == 1:
            return f"{path} already has that text."  # a repeated call after a crash
        raise ToolError(f"The text occurs {count} times in {path}; pass one that occurs once.")
    sandbox.write(path, text.replace(old, new))
    return f"{path}: replaced {len(old.splitlines())} lines by {len(new.splitlines())}."


@tool(idempotent=True)
async def write_file(path: str, text: str, sandbox: Dep[Sandbox]) -> str:
    """Write a complete file; its old content is lost.

    Args:
        path: Relative to the root of the repository.
        text: Its new content.
    """
    sandbox.write(path, text)
    return f"{path}: wrote {len(text)} characters."


@tool(timeout=120)
async def bash(command: str, sandbox: Dep[Sandbox]) -> AsyncIterator[str]:
    """Run a shell command in the root of the repository; its output is streamed.

    Args:
        command: Such as `python -m unittest -q`.
    """
    process = await asyncio.create_subprocess_exec(
        "bash",
        "-c",
        command,
        cwd=sandbox.root,
        env={name: os.environ[name] for name in PASSED_ON if name in os.environ},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        start_new_session=True,  # so that all its processes can be killed
    )
    assert process.stdout is not None
    left = MAX_OUTPUT
    try:
        while chunk := await process.stdout.read(4096):
            if left > 0:
                yield chunk.decode("utf-8", "replace")[:left]
            left -= len(chunk)
        code = await process.wait()
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
    yield f"{'[... more output]' if left < 0 else ''}\n[exit code {code}]"


TOOLS = (list_files, read_file, search, edit_file, write_file, bash)
