"""`Bubblewrap`: runs programs in Linux namespaces, with `bwrap` (https://github.com/containers/bubblewrap).

Rules:

1. A program sees the interpreter, and the folders that it is given to read. It has no network, no environment variables, no
   other processes, and a `/tmp` of its own in memory.
2. Its time, memory, files and processes are limited. What exceeds a limit ends the program, or fails in it.
3. If this process is killed, the kernel kills the program.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import shutil
import sys
from asyncio.subprocess import SubprocessStreamProtocol
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import cache, partial
from pathlib import Path
from typing import Any, Final

from agentflow._support.validation import adapter_of
from agentflow.errors import SandboxError, UsageError
from agentflow.plugins.code.sandbox import Finished, FunctionCalls, FunctionResult, Outcome, Program, RunningProgram

__all__ = ["Bubblewrap"]

_NOBODY: Final = 65_534
_LONGEST: Final = 1_000_000
"""Bytes of a message of the program."""
_MOST_CALLS: Final = 100
_GRACE: Final = 1.0
"""Seconds until a program that waits is killed."""
_SYSTEM: Final = ("/usr", "/lib", "/lib64", "/lib32", "/bin", "/sbin")


class Bubblewrap:
    """A sandbox of Linux namespaces. It needs `bwrap` 0.8 or newer, and unprivileged user namespaces.

    As root it starts programs as `nobody`, because the kernel does not limit root's processes.

    Args:
        seconds: The time limit of a program, without that of the functions that it calls.
        memory: Its memory in bytes.
        disk: The size of its `/tmp` in bytes, which is memory too.
        processes: The number of its processes and threads together.
        output: The number of characters that it can print.
        read_only: Folders that it can read, at the same paths.
        python: The interpreter; by default this one, or the system's if `nobody` cannot read this one.

    Raises:
        UsageError: `bwrap` is not installed, or an argument is invalid.

    Example:
        >>> running = await Bubblewrap(seconds=5).start(Program("print(6 * 7)", {}))
        >>> (await running.proceed(())).output
        '42\\n'
    """

    def __init__(
        self,
        *,
        seconds: float = 30.0,
        memory: int = 512 * 1024 * 1024,
        disk: int = 64 * 1024 * 1024,
        processes: int = 1,
        output: int = 20_000,
        read_only: Iterable[str | Path] = (),
        python: str | Path | None = None,
    ) -> None:
        for name, number in (
            ("seconds", seconds),
            ("memory", memory),
            ("disk", disk),
            ("processes", processes),
            ("output", output),
        ):
            if not number > 0 or math.isinf(number):
                raise UsageError(f"Bubblewrap({name}={number}): it must be a number above 0.")
        bwrap = shutil.which("bwrap")
        if bwrap is None:
            raise UsageError(
                "Bubblewrap: the program `bwrap` was not found. Install it (apt-get install bubblewrap, dnf install "
                "bubblewrap), or pass another Sandbox to code_tool(sandbox=...)."
            )
        folders = [Path(folder).resolve() for folder in read_only]
        for folder in folders:
            if not folder.is_dir():
                raise UsageError(f"Bubblewrap(read_only=...): {folder} is not a folder.")
        self.seconds = seconds
        self.output = output
        self._limits = {
            "RLIMIT_AS": memory,
            "RLIMIT_CPU": math.ceil(seconds) + 1,
            "RLIMIT_FSIZE": disk,
            "RLIMIT_NOFILE": 64,
            "RLIMIT_NPROC": processes,
            "RLIMIT_CORE": 0,
        }
        self._command = _command(bwrap, disk, folders, _interpreter() if python is None else Path(python).resolve())

    async def start(self, program: Program) -> RunningProgram:
        """See `Sandbox.start`."""
        first = {
            "code": program.code,
            "functions": program.functions,
            "limits": self._limits,
            "output": self.output,
            "longest": _LONGEST,
        }
        user: dict[str, Any] = {"user": _NOBODY, "group": _NOBODY, "extra_groups": ()} if os.geteuid() == 0 else {}
        loop = asyncio.get_running_loop()
        # Like `asyncio.create_subprocess_exec`, which does not return the transport that closes the pipes.
        transport, protocol = await loop.subprocess_exec(
            partial(SubprocessStreamProtocol, _LONGEST + 1, loop),
            *self._command,
            env={},
            start_new_session=True,
            **user,
        )
        process = asyncio.subprocess.Process(transport, protocol, loop)
        return _BubblewrapProgram(process, transport, json.dumps(first).encode() + b"\n", self.seconds)


class _BubblewrapProgram:
    """A program in a process of its own.

    Args:
        process: The process.
        transport: Its transport.
        first: The first message to it.
        seconds: The time that it has.
    """

    def __init__(
        self, process: asyncio.subprocess.Process, transport: asyncio.SubprocessTransport, first: bytes, seconds: float
    ) -> None:
        self._process = process
        self._transport = transport
        self._message = first
        self._seconds = seconds
        self._left = seconds
        self._started = False
        self._waits = False  # for results

    async def proceed(self, results: Sequence[FunctionResult]) -> Outcome:
        """See `RunningProgram.proceed`."""
        message, self._message, self._waits = self._message, b"", False
        if self._started:
            message = json.dumps({"results": [asdict(result) for result in results]}).encode() + b"\n"
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            async with asyncio.timeout(self._left):
                outcome = await self._exchange(message)
        except TimeoutError:
            outcome = Finished("", f"The program ran for more than {self._seconds:g} s, and was ended.")
        finally:
            self._left = max(0.0, self._left - (loop.time() - began))
        self._waits = isinstance(outcome, FunctionCalls)
        if not self._waits:
            await self.close()
        return outcome

    async def _exchange(self, message: bytes) -> Outcome:
        reads, writes, errors = self._process.stdout, self._process.stdin, self._process.stderr
        assert reads is not None
        assert writes is not None
        assert errors is not None
        with suppress(ConnectionError):  # it has ended; the reason is read below
            writes.write(message)
            await writes.drain()
        try:
            line = await reads.readline()
        except ValueError:
            return Finished("", f"The program sent a message of more than {_LONGEST:,} bytes, and was ended.")
        if line:
            self._started = True
            return _outcome(line)
        reason = (await errors.read(2_000)).decode("utf-8", "replace").strip()
        code = await self._process.wait()
        if not self._started and reason:
            raise SandboxError(
                f"bwrap failed: {reason}. It needs unprivileged user namespaces; in a container, allow them or use another "
                "Sandbox."
            )
        how = "by the kernel, perhaps at a limit" if code < 0 or code > 128 else f"with exit code {code}"
        return Finished("", f"The program was ended {how}.")

    async def close(self) -> None:
        """See `RunningProgram.close`."""
        process = self._process
        try:
            if process.returncode is None and self._waits and process.stdin is not None:
                process.stdin.close()  # it ends by itself, and `bwrap` with it
                with suppress(TimeoutError):
                    async with asyncio.timeout(_GRACE):
                        await process.wait()
        finally:
            self._transport.close()  # kills it if it still runs
        await process.wait()
        await asyncio.sleep(0)  # the loop closes the pipes in its next turn


def _outcome(line: bytes) -> Outcome:
    try:
        outcome = adapter_of(Outcome).validate_json(line, strict=True)
    except ValueError:
        return Finished("", "The program wrote an invalid message, and was ended.")
    if isinstance(outcome, FunctionCalls) and not 0 < len(outcome.calls) <= _MOST_CALLS:
        return Finished("", f"The program called {len(outcome.calls)} functions at once; at most {_MOST_CALLS} can be.")
    return outcome


def _command(bwrap: str, disk: int, folders: Sequence[Path], python: Path) -> list[str]:
    binds: list[str] = []
    for name in _SYSTEM:
        place = Path(name)
        if place.is_symlink():
            binds += ["--symlink", os.readlink(place), name]
        elif place.is_dir():
            binds += ["--ro-bind", name, name]
    prefix = python.parents[1]
    for folder in (*([] if prefix.is_relative_to("/usr") else [prefix]), *folders):
        binds += ["--ro-bind", str(folder), str(folder)]
    return [
        bwrap,
        *("--unshare-all", "--unshare-user", "--disable-userns", "--die-with-parent", "--new-session", "--clearenv"),
        *("--cap-drop", "ALL"),
        *binds,
        *("--proc", "/proc", "--dev", "/dev", "--remount-ro", "/dev", "--size", str(disk), "--tmpfs", "/tmp"),
        *("--remount-ro", "/", "--chdir", "/tmp", "--setenv", "PYTHONHASHSEED", "0"),
        *("--", str(python), "-S", "-s", "-P", "-c", _source()),
    ]


@cache
def _source() -> str:
    return Path(__file__).with_name("runner.py").read_text("utf-8")


def _interpreter() -> Path:
    """Return this interpreter, or the system's if `nobody` cannot read it."""
    own = Path(getattr(sys, "_base_executable", sys.executable)).resolve()
    for python in (own, Path("/usr/bin/python3").resolve(), Path("/usr/local/bin/python3").resolve()):
        if python.exists() and (os.geteuid() != 0 or all(folder.stat().st_mode & 1 for folder in python.parents)):
            return python
    raise UsageError(
        f"Bubblewrap: the user nobody cannot read {own}. Install Python in /usr, pass python=..., or do not run as root."
    )
