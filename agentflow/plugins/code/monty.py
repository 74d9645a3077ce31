"""`Monty`: runs programs in an interpreter of a subset of Python, written in Rust (https://github.com/pydantic/monty).

Rules:

1. A program has no files, network, environment variables or processes: the interpreter has no code for them. It can request
   only function calls and sleeps.
2. The interpreter is a process of its own, and so is its client (`monty_runner.py`). If either of them crashes or hangs, only
   the program ends. The client is not in this process because its threads can abort a process that exits.
3. If this process is killed, the client ends the interpreter.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from typing import ClassVar, Final

from agentflow.errors import UsageError
from agentflow.plugins.code.running import check_limits, source_of, start_process
from agentflow.plugins.code.sandbox import Program, RunningProgram

_LATE: Final = 2.0
"""Seconds after the time limit until the interpreter itself ends a program, if nothing else has ended it."""


class Monty:
    """A sandbox without system services: an isolated interpreter, in a process of its own.

    It needs the extra `monty`. It supports a subset of Python: no inheritance, no generators, few modules.

    Args:
        seconds: The time limit of a program, not counting the functions that it calls.
        memory: The memory limit of a program, in bytes.
        output: The maximum number of characters that a program can print.

    Raises:
        UsageError: The extra is not installed, or an argument is invalid.

    Example:
        >>> running = await Monty(seconds=5).start(Program("print(6 * 7)", {}))
        >>> (await running.proceed(())).output
        '42\\n'
    """

    language: ClassVar = (
        "The program is in a subset of Python: no class inheritance, properties, yield, del, or sys.exit, and only the modules "
        "asyncio, base64, bisect, collections, copy, csv, dataclasses, datetime, decimal, functools, hashlib, itertools, json, "
        "math, random, re, time, typing. It has no files, no network, and keeps nothing between runs."
    )
    """See `Sandbox`."""

    def __init__(self, *, seconds: float = 30.0, memory: int = 64 * 1024 * 1024, output: int = 20_000) -> None:
        check_limits("Monty", seconds=seconds, memory=memory, output=output)
        if find_spec("pydantic_monty") is None:
            raise UsageError(
                "Monty: the package pydantic-monty is not installed. Install it: pip install 'agentflow-hooks[monty]'"
            )
        self.seconds = seconds
        self.memory = memory
        self.output = output

    async def start(self, program: Program) -> RunningProgram:
        """See `Sandbox.start`."""
        return await start_process(
            [sys.executable, "-P", "-c", source_of("monty_runner.py")],
            program,
            {"seconds": self.seconds + _LATE, "memory": self.memory, "output": self.output},
            seconds=self.seconds,
            fault="Monty failed: {reason}. Install it again: pip install -U 'agentflow-hooks[monty]'",
            ends_itself=True,
        )
