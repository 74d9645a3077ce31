"""What a run knows of its typed answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

from agentflow.output.form import MisfitError

__all__ = ["Answered", "Given"]

_UNKNOWN: Final[Any] = object()


@dataclass
class Answered:
    """The state of a run's typed answer: `event.context.state[Answered]`.

    Attributes:
        way: How the model was asked last; empty before it was.
        sent_back: How many answers of this run were refused and sent back to the model.
    """

    way: str = ""
    sent_back: int = 0


@dataclass
class Given:
    """The answers of the model's current reply, each with the value that was accepted for it; not stored with a session.

    It saves work and keeps values that their text cannot express. It is never needed: where an answer is not known here
    (after a restart, or because a hook has changed the text), `accept` reads and validates it again.
    """

    def __post_init__(self) -> None:
        self.closing: str | None = None
        self._values: dict[str, Any] = {}
        self._refused: dict[str, str] = {}
        self._reply = -1

    def begin(self, reply: int) -> None:
        """Forget the answers of earlier replies.

        Args:
            reply: The number of the event that carries the new one.
        """
        if reply != self._reply:
            self._reply = reply
            self._values.clear()
            self._refused.clear()

    def note(self, text: str, value: object) -> None:
        """Remember the value that was accepted for a text."""
        self._values[text.strip()] = value

    def knows(self, text: str) -> bool:
        """Whether a value was accepted for this text."""
        return text.strip() in self._values

    async def accept(self, accept: Callable[[str], Awaitable[Any]], text: str) -> Any:
        """The value of an answer, read and validated at most once for each reply.

        Args:
            accept: Reads and validates it: `Output.accept`.
            text: The answer.

        Raises:
            MisfitError: It does not fit, or `validate` refuses it.
        """
        key = text.strip()
        value = self._values.get(key, _UNKNOWN)
        if value is not _UNKNOWN:
            return value
        if key in self._refused:
            raise MisfitError(self._refused[key])
        try:
            value = await accept(text)
        except MisfitError as misfit:
            self._refused[key] = str(misfit)
            raise
        self._values[key] = value
        return value
