"""The common parts of the sandboxes: checks of limits, and a program in a process (`ProcessProgram`)."""

from __future__ import annotations

import asyncio
import json
import math
from asyncio.subprocess import SubprocessStreamProtocol
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, Final

from agentflow._support.validation import adapter_of
from agentflow.errors import SandboxError, UsageError
from agentflow.plugins.code.sandbox import FunctionCalls, FunctionResult, Outcome, Program, ProgramResult

_MAX_MESSAGE_BYTES: Final = 1_000_000
"""The maximum size of a message from the program, in bytes."""
_MAX_CALLS: Final = 100
"""The maximum number of calls in one message."""
_GRACE: Final = 1.0
"""Seconds for which a process can end itself before it is killed."""


def check_limits(sandbox: str, **limits: float) -> None:
    """Check that each limit is valid.

    Raises:
        UsageError: A limit is not a number above 0.
    """
    for name, number in limits.items():
        if not number > 0 or math.isinf(number):
            raise UsageError(f"{sandbox}({name}={number}): it must be a number above 0.")


@cache
def source_of(name: str) -> str:
    """Return the text of a module of this folder, which runs in another process."""
    return Path(__file__).with_name(name).read_text("utf-8")


async def start_process(
    command: Sequence[str],
    program: Program,
    settings: Mapping[str, Any],
    *,
    seconds: float,
    fault: str,
    ends_itself: bool,
    env: Mapping[str, str] | None = None,
    user: int | None = None,
    pass_fds: Sequence[int] = (),
) -> ProcessProgram:
    """Start a process, and return the program that it will run.

    Args:
        command: The command that starts the process.
        program: The program to run in the process.
        settings: More data for the process.
        seconds: The time limit of the program.
        fault: The message of the `SandboxError` if the process does not start; `{reason}` in it is replaced.
        ends_itself: Whether the process ends when its input is closed, even while the program runs.
        env: The environment of the process; None to inherit this process's.
        user: The id of the user and group of the process; None to inherit this process's.
        pass_fds: File descriptors that the process inherits.
    """
    first = {
        "code": program.code,
        "functions": program.functions,
        "source": source_of("functions.py"),
        "longest": _MAX_MESSAGE_BYTES,
        **settings,
    }
    options: dict[str, Any] = {} if user is None else {"user": user, "group": user, "extra_groups": ()}
    if pass_fds:
        options["pass_fds"] = pass_fds
    loop = asyncio.get_running_loop()
    # The code of `asyncio.create_subprocess_exec`, which does not return the transport; `close` needs it.
    transport, protocol = await loop.subprocess_exec(
        partial(SubprocessStreamProtocol, _MAX_MESSAGE_BYTES + 1, loop),
        *command,
        env=env,
        start_new_session=True,  # Ctrl-C in the terminal should not reach the program
        **options,
    )
    process = asyncio.subprocess.Process(transport, protocol, loop)
    return ProcessProgram(process, transport, json.dumps(first).encode() + b"\n", seconds, fault, ends_itself)


@dataclass(eq=False, repr=False)
class ProcessProgram:
    """A program in a process of its own. Its time limit does not count the functions that it calls.

    Args:
        process: The process.
        transport: Its transport.
        message: The first message to it.
        seconds: Its time limit.
        fault: The message of the `SandboxError` if the process does not start, with `{reason}` in it.
        ends_itself: Whether the process ends when its input is closed, even while the program runs.
    """

    _process: asyncio.subprocess.Process
    _transport: asyncio.SubprocessTransport
    _message: bytes
    _seconds: float
    _fault: str
    _ends_itself: bool

    def __post_init__(self) -> None:
        self._remaining = self._seconds
        self._started = False
        self._waits = True  # whether the process waits for a message: the program, or results
        self._ends = self._ends_itself  # whether the process ends when its input is closed, even if it does not wait

    async def proceed(self, results: Sequence[FunctionResult]) -> Outcome:
        """See `RunningProgram.proceed`."""
        message, self._message = self._message, b""
        if self._started:
            message = json.dumps({"results": [asdict(result) for result in results]}).encode() + b"\n"
        loop = asyncio.get_running_loop()
        began = loop.time()
        try:
            async with asyncio.timeout(self._remaining):
                outcome = await self._exchange(message)
        except TimeoutError:
            outcome = ProgramResult("", f"The program ran for more than {self._seconds:g} s, and was ended.")
        finally:
            self._remaining = max(0.0, self._remaining - (loop.time() - began))
        if not isinstance(outcome, FunctionCalls):
            await self.close()
        return outcome

    async def _exchange(self, message: bytes) -> Outcome:
        reads, writes, errors = self._process.stdout, self._process.stdin, self._process.stderr
        assert reads is not None
        assert writes is not None
        assert errors is not None
        try:
            # Killing a sandbox that is not ready might not kill its program, so the program is sent only once it is ready.
            line = await reads.readline() if not self._started else b"ready"
            if line:
                self._waits = False
                with suppress(ConnectionError):  # the process has ended; the reason is read below
                    writes.write(message)
                    await writes.drain()
                line = await reads.readline()
        except ValueError:  # from `readline`: the line exceeds the reader's limit
            return ProgramResult(
                "", f"The program sent a message of more than {_MAX_MESSAGE_BYTES:,} bytes, and was ended."
            )
        if line:
            self._started = True
            outcome = _outcome(line)
            self._waits = isinstance(outcome, FunctionCalls)
            self._ends = self._ends or isinstance(outcome, ProgramResult)  # after its result, the process ends
            return outcome
        reason = (await errors.read(2_000)).decode("utf-8", "replace").strip()
        code = await self._process.wait()
        if not self._started and reason:
            raise SandboxError(self._fault.format(reason=reason))
        # Negative: a signal killed the process. Above 128: bwrap's exit code if a signal killed its program.
        how = "by the kernel, perhaps at a limit" if code < 0 or code > 128 else f"with exit code {code}"
        return ProgramResult("", f"The program was ended {how}.")

    async def close(self) -> None:
        """See `RunningProgram.close`."""
        process = self._process
        try:
            if process.returncode is None and (self._waits or self._ends) and process.stdin is not None:
                process.stdin.close()  # the process ends itself and its children
                # Wait first: `transport.close` polls the process, which can take the exit code before asyncio does.
                with suppress(TimeoutError):
                    async with asyncio.timeout(_GRACE):
                        await process.wait()
        finally:
            self._transport.close()  # kills the process if it still runs
        await process.wait()
        await asyncio.sleep(0)  # the loop closes the pipes in its next iteration


def _outcome(line: bytes) -> Outcome:
    try:
        outcome = adapter_of(Outcome).validate_json(line, strict=True)
    except ValueError:
        return ProgramResult("", "The program wrote an invalid message, and was ended.")
    if isinstance(outcome, FunctionCalls) and not 0 < len(outcome.calls) <= _MAX_CALLS:
        return ProgramResult(
            "", f"The program called {len(outcome.calls)} functions at once; at most {_MAX_CALLS} are allowed."
        )
    return outcome
