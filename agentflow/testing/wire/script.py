"""The script of a wire server, from which it answers requests.

Rules:

1. A list answers the nth accepted request with its nth reply; refused requests consume no reply.
2. A function answers every accepted request.
3. An error in the script (no replies left, an exception) becomes an HTTP 500, and is recorded, so that `assert_done`
   reports it.
"""

import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

from agentflow.errors import UsageError
from agentflow.testing.wire.misbehaviour import Fault
from agentflow.testing.wire.reply import WireReply
from agentflow.testing.wire.request import WireRequest

Line: TypeAlias = WireReply | Fault | str
"""The answer to one request."""

Brain: TypeAlias = Callable[[WireRequest], Line | Awaitable[Line]]
"""A script as a function of the request."""

Script: TypeAlias = Sequence[Line] | Brain
"""The replies of a server: a list, or a function that returns them."""


class ScriptPlayer:
    """Plays a script for incoming requests.

    Args:
        script: Replies in order, or a function from request to reply. A text means `Say(text)`; a fault means an empty
            reply with that fault.
    """

    def __init__(self, script: Script) -> None:
        if isinstance(script, str):
            raise UsageError(f"a wire script must be a list of replies or a function, not the text {script!r}")
        self._function = script if callable(script) else None
        self._lines: tuple[Line, ...] = () if callable(script) else tuple(script)
        self._used = 0
        self.problems: list[str] = []

    @property
    def unused(self) -> int:
        """The number of replies in the list that were not used."""
        return len(self._lines) - self._used

    async def answer(self, request: WireRequest) -> WireReply:
        """Return the reply to one accepted request.

        Raises:
            UsageError: The list has no more replies, or the function returned a value that is not a reply.
            Exception: The exception of the function.
        """
        if self._function is None:
            return as_reply(self._next(request))
        line = self._function(request)
        return as_reply(await line if inspect.isawaitable(line) else line)

    def _next(self, request: WireRequest) -> Line:
        if not self.unused:
            raise UsageError(
                f"the wire script has only {len(self._lines)} replies, but request {request.index} "
                f"(model {request.model!r}, {len(request.messages)} messages) needs another one"
            )
        self._used += 1
        return self._lines[self._used - 1]

    def check(self) -> None:
        """Fail if some replies were not used, or if the script had an error.

        Raises:
            AssertionError: There are unused replies, or the script had an error.
        """
        problems = list(self.problems)
        if self.unused:
            problems.append(f"{self.unused} of {len(self._lines)} scripted replies were not used")
        if problems:
            raise AssertionError("the wire script failed, or was not fully used: " + "; ".join(problems))


def as_reply(line: object) -> WireReply:
    """Convert a line of a script to a reply.

    Raises:
        UsageError: The line is not a reply, a text or a fault.
    """
    if isinstance(line, WireReply):
        return line
    if isinstance(line, str):
        return WireReply(line)
    if isinstance(line, Fault):
        return WireReply(faults=(line,))
    raise UsageError(
        f"a line of a wire script must be a WireReply, a text or a Fault, not {type(line).__name__}: {line!r}"
    )
