"""The scenes of `check_model`: vendor-neutral descriptions of how a provider behaves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeAlias

from agentflow.vocabulary.ports.model import Model
from agentflow.vocabulary.specs import Usage

Ending: TypeAlias = Literal["well", "torn", "silent", "busy", "refused"]
"""The end of a reply: `well`; `torn`: the connection breaks after the text; `silent`: no more data until the client closes;
`busy`: instead of a reply, the provider asks the client to retry after `retry_after` seconds; `refused`: the provider rejects
the request as invalid."""


class SceneCall(NamedTuple):
    """A tool call of a reply: its id (empty if the provider sends none), the tool's name, and the arguments as text."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelScene:
    """The provider's response to every request.

    Attributes:
        name: The scene's name.
        chunks: The text of the reply, in chunks.
        calls: The tool calls after the text.
        finish_reason: The finish reason.
        usage: The usage.
        ends: The end of the reply.
        retry_after: The seconds after which a busy provider accepts a retry.
    """

    name: str
    chunks: tuple[str, ...] = ()
    calls: tuple[SceneCall, ...] = ()
    finish_reason: str = "stop"
    usage: Usage = field(default_factory=lambda: Usage(input_tokens=11, output_tokens=7))
    ends: Ending = "well"
    retry_after: float = 0.25

    @property
    def text(self) -> str:
        """The text of the reply."""
        return "".join(self.chunks)


class StagedModel(NamedTuple):
    """A model with a provider that plays a scene.

    Attributes:
        model: The model, which should not retry: a retry looks like a slow reply.
        open_connections: Returns the number of open connections to the provider; None if unknown.
        sent: Returns the last request to the provider, as data; None if unknown.
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
        ModelScene(name="words", chunks=_WORDS),
        ModelScene(
            name="calls", chunks=_WORDS, calls=_calls('{"path": "a.txt"}', '{"n": 1}'), finish_reason="tool_calls"
        ),
        ModelScene(name="malformed", calls=_calls('{"path": "a.t'), finish_reason="tool_calls"),
        ModelScene(name="no ids", calls=_calls('{"a": 1}', '{"b": 2}', ids=False), finish_reason="tool_calls"),
        ModelScene(name="empty"),
        ModelScene(name="torn", chunks=_WORDS, ends="torn"),
        ModelScene(name="silent", chunks=_WORDS, ends="silent"),
        ModelScene(name="busy", ends="busy"),
        ModelScene(name="refused", ends="refused"),
    )
}
"""All scenes, by name."""
