"""The protocol of a sandbox: a program runs until it calls functions, receives their results, and continues.

Rules:

1. A program's messages are untrusted: a sandbox validates them into these types, within limits of size and time.
2. A program in a sandbox can do nothing outside except call functions; these calls run outside, as tool calls of the agent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias


@dataclass(frozen=True, slots=True)
class Program:
    """A program.

    Attributes:
        code: The source code.
        functions: The functions that it can call, with the names of their parameters in order.
    """

    code: str
    functions: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class FunctionCall:
    """A call of a function by the program: its name, and its arguments as JSON-compatible data."""

    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True, slots=True)
class FunctionCalls:
    """The program waits for the results of these calls, which can run at the same time."""

    calls: tuple[FunctionCall, ...]


@dataclass(frozen=True, slots=True)
class FunctionResult:
    """The result of a call: its value as JSON-compatible data, or an error, which the program sees as `FunctionError`."""

    value: Any = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class ProgramResult:
    """The program has ended.

    Attributes:
        output: The text that the program printed.
        error: The reason why the program failed, such as a traceback; None if it did not fail.
    """

    output: str
    error: str | None = None


Outcome: TypeAlias = FunctionCalls | ProgramResult


class RunningProgram(Protocol):
    """A program that runs, or waits for results."""

    async def proceed(self, results: Sequence[FunctionResult]) -> Outcome:
        """Run the program until its next calls, or until it ends.

        Args:
            results: The results of the last calls, in order; empty at first.
        """
        ...

    async def close(self) -> None:
        """End the program, and release its resources. Calling it again does nothing."""
        ...


class Sandbox(Protocol):
    """Runs programs that may be hostile.

    Implement it for a remote service, for instance: `start` opens a session there, and `proceed` sends a request. If
    programs cannot use the whole standard library, set an attribute `language`, which explains this to the model in a sentence
    or two.
    """

    async def start(self, program: Program) -> RunningProgram:
        """Prepare a program; it begins to run with the first `proceed`.

        Raises:
            SandboxError: The sandbox cannot run programs, for example because it is unreachable.
        """
        ...
