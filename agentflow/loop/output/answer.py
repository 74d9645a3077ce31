"""The state of a run's typed answer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from agentflow.loop.output.form import InvalidOutputError

__all__ = ["AcceptedAnswers", "AnswerState"]

T = TypeVar("T")

_UNKNOWN: Final[Any] = object()


@dataclass
class AnswerState:
    """The state of a run's typed answer: `event.context.state[AnswerState]`.

    Attributes:
        way: How the model was last asked: a `Way`, or empty before the first request.
        sent_back: How many answers of this run were refused and sent back to the model.
        retries: How many refused answers may be sent back before the call fails.
        own: For each item of a list with its own `retries`, how many of its answers were sent back. The key is the name of
            the item's tool, or `str` or `DataBlock`.
    """

    way: str = ""
    sent_back: int = 0
    retries: int = 0
    own: Counter[str] = field(default_factory=Counter[str])


@dataclass
class AcceptedAnswers:
    """The accepted values for the answers in the model's current reply; not stored with a session.

    `skipped` are the ids of the calls that do not run because of `Output(end="first")` or `"one"`. `closing` is the text of
    the final tool's result that became the reply; None as long as no final tool has succeeded.

    This saves work and keeps values that have no exact text. It is only a cache: if an answer is not in it (after
    a restart, or because a hook changed the text), `accept` reads and validates it again.
    """

    # Not fields of the dataclass, so that they are not stored with the state of the session.
    def __post_init__(self) -> None:
        self.closing: str | None = None
        self.skipped: frozenset[str] = frozenset()
        self._values: dict[object, Any] = {}
        self._refused: dict[object, str] = {}
        self._reply = -1

    def begin(self, reply: int) -> None:
        """Forget the answers of earlier replies.

        Args:
            reply: The `seq` of the event with the new reply.
        """
        # Several hooks call this for the same reply; values that the first of them accepted are kept.
        if reply != self._reply:
            self._reply = reply
            self._values.clear()
            self._refused.clear()
            self.skipped = frozenset()

    def note(self, text: str, value: object) -> None:
        """Store the value that was accepted for a text."""
        self._values[text.strip()] = value

    def knows(self, text: str) -> bool:
        """Whether a value was accepted for this text."""
        return text.strip() in self._values

    async def accept(self, accept: Callable[[T], Awaitable[Any]], answer: T) -> Any:
        """Return the value of an answer, read and validated at most once for each reply.

        Args:
            accept: Reads and validates an answer: `Output.accept`.
            answer: The answer: a text, or an image or a file.

        Raises:
            InvalidOutputError: The answer does not fit the form, or `validate` refuses it.
        """
        key = answer.strip() if isinstance(answer, str) else answer
        value = self._values.get(key, _UNKNOWN)
        if value is not _UNKNOWN:
            return value
        if key in self._refused:
            raise InvalidOutputError(self._refused[key])
        try:
            value = await accept(answer)
        except InvalidOutputError as invalid:
            self._refused[key] = str(invalid)
            raise
        self._values[key] = value
        return value
