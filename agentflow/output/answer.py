"""What a run knows of its typed answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["Answered", "Given"]


@dataclass
class Answered:
    """How the typed answer of a run stands: `event.context.state[Answered]`.

    Attributes:
        way: How the model was asked last; empty before it was.
        sent_back: How often an answer that did not fit went back to it.
    """

    way: str = ""
    sent_back: int = 0


@dataclass
class Given:
    """The output as the object that it is, beside the text that says it; not stored with a session."""

    def __post_init__(self) -> None:
        self.text: str | None = None
        self.value: Any = None
        self.closing: str | None = None

    def note(self, text: str, value: object) -> None:
        """This text says this value."""
        self.text, self.value = text.strip(), value

    def says(self, text: str) -> bool:
        """Whether it is the value of this text."""
        return self.text is not None and self.text == text.strip()
