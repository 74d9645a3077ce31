"""The script: the brain behind a wire server.

Rules:

1. A list answers the nth accepted request with its nth reply; refused requests use nothing up.
2. A function answers any number of requests.
3. What goes wrong in the script (used up, a brain that raises) is remembered, so that `assert_done` tells.
"""

import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

from agentflow.errors import UsageError
from agentflow.testing.wire.misbehaviour import Fault
from agentflow.testing.wire.reply import Reply
from agentflow.testing.wire.request import WireRequest

Line: TypeAlias = Reply | Fault | str
"""What answers one request."""

Brain: TypeAlias = Callable[[WireRequest], Line | Awaitable[Line]]
"""A script as a function of the request."""

Script: TypeAlias = Sequence[Line] | Brain
"""What a server answers: line by line, or as a function says."""


class Player:
    """Plays a script against the requests that come in.

    Args:
        script: Replies in order, or a function from request to reply. Text stands for `Say(text)`, a fault for an
            otherwise empty reply with that fault.
    """

    def __init__(self, script: Script) -> None:
        if isinstance(script, str):
            raise UsageError(f"a wire script is a list of replies or a function; got the bare text {script!r}")
        self._brain = script if callable(script) else None
        self._lines: tuple[Line, ...] = () if callable(script) else tuple(script)
        self._used = 0
        self.problems: list[str] = []

    @property
    def left(self) -> int:
        """How many replies of a list have not been asked for."""
        return len(self._lines) - self._used

    async def answer(self, request: WireRequest) -> Reply:
        """The reply to one accepted request.

        Raises:
            UsageError: The list is used up, or the brain gave something that is no reply.
            Exception: Whatever the brain raised.
        """
        if self._brain is None:
            return as_reply(self._next(request))
        made = self._brain(request)
        return as_reply(await made if inspect.isawaitable(made) else made)

    def _next(self, request: WireRequest) -> Line:
        if not self.left:
            raise UsageError(
                f"the wire script is used up: it has {len(self._lines)} replies, and request {request.index} "
                f"(model {request.model!r}, {len(request.messages)} messages) asks for one more"
            )
        self._used += 1
        return self._lines[self._used - 1]

    def check(self) -> None:
        """Complain about a script that did not come out even.

        Raises:
            AssertionError: Replies are left over, or something went wrong in the script.
        """
        faults = list(self.problems)
        if self.left:
            faults.append(f"{self.left} of {len(self._lines)} scripted replies were never asked for")
        if faults:
            raise AssertionError("the wire script did not come out even: " + "; ".join(faults))


def as_reply(line: object) -> Reply:
    """The reply that a line of a script stands for.

    Raises:
        UsageError: The line is none of reply, text and fault.
    """
    if isinstance(line, Reply):
        return line
    if isinstance(line, str):
        return Reply(line)
    if isinstance(line, Fault):
        return Reply(faults=(line,))
    raise UsageError(f"a wire script answers with a Reply, a text or a Fault; got {type(line).__name__}: {line!r}")
