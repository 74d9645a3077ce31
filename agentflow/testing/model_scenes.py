"""What a provider does in the scenes of `check_model`, in words that belong to no vendor."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeAlias

from agentflow.ports.model import Model
from agentflow.specs import Usage

__all__ = ["SCENES", "Ending", "ModelScene", "SceneCall", "Staged"]

Ending: TypeAlias = Literal["well", "torn", "silent", "busy", "refused"]
"""How a reply ends: `well`; `torn`: the connection breaks behind the text; `silent`: nothing more comes, until the client
leaves; `busy`: in place of a reply, the provider asks to come back after `retry_after` seconds; `refused`: it says that the
request is wrong."""


class SceneCall(NamedTuple):
    """A tool call of a reply: its id (empty: the provider gives none), the tool's name, the arguments' text."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelScene:
    """What the provider does with each request, however many come.

    Attributes:
        name: The scene's name.
        pieces: The words of the reply, piece by piece.
        calls: The tool calls behind them.
        finish_reason: Why the reply ends.
        usage: What it has used.
        ends: How it ends.
        retry_after: For how many seconds a busy provider wants to be left alone.
    """

    name: str
    pieces: tuple[str, ...] = ()
    calls: tuple[SceneCall, ...] = ()
    finish_reason: str = "stop"
    usage: Usage = field(default_factory=lambda: Usage(input_tokens=11, output_tokens=7))
    ends: Ending = "well"
    retry_after: float = 0.25

    @property
    def text(self) -> str:
        """The words of the reply."""
        return "".join(self.pieces)


class Staged(NamedTuple):
    """A model whose provider plays a scene.

    Attributes:
        model: The model. It asks once: what is tried again cannot be told from what is slow.
        open_connections: How many connections to the provider are open; None: nobody knows.
        sent: What the provider was sent last, as data; None: nobody knows.
    """

    model: Model
    open_connections: Callable[[], int] | None = None
    sent: Callable[[], object] | None = None


_WORDS = ("Hello, ", "Ada. ", "How are ", "you?")


def _calls(*arguments: str, ids: bool = True) -> tuple[SceneCall, ...]:
    return tuple(SceneCall(f"call_{n}x" if ids else "", f"tool_{n}", text) for n, text in enumerate(arguments))


SCENES: dict[str, ModelScene] = {
    scene.name: scene
    for scene in (
        ModelScene(name="words", pieces=_WORDS),
        ModelScene(
            name="calls", pieces=_WORDS, calls=_calls('{"path": "a.txt"}', '{"n": 1}'), finish_reason="tool_calls"
        ),
        ModelScene(name="malformed", calls=_calls('{"path": "a.t'), finish_reason="tool_calls"),
        ModelScene(name="no ids", calls=_calls('{"a": 1}', '{"b": 2}', ids=False), finish_reason="tool_calls"),
        ModelScene(name="empty"),
        ModelScene(name="torn", pieces=_WORDS, ends="torn"),
        ModelScene(name="silent", pieces=_WORDS, ends="silent"),
        ModelScene(name="busy", ends="busy"),
        ModelScene(name="refused", ends="refused"),
    )
}
"""All scenes, by name."""
