"""`ScriptedModel`: a model that says what a test tells it, chunk by chunk."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from typing import Any, TypeAlias, cast

from agentflow.chunks import ModelChunk, ToolUseDelta
from agentflow.errors import ScriptError, UsageError
from agentflow.messages import Msg, ToolUseBlock
from agentflow.ports.model import ModelRequest

__all__ = ["Line", "ScriptedModel"]

Line: TypeAlias = (
    "str | Msg | ModelChunk | ToolUseBlock | BaseException | Sequence[Any] | Callable[[ModelRequest], Any]"
)
"""One reply of a script: words, a message, tool calls, chunks, an error to raise, a list of these, or a function."""


class ScriptedModel:
    """Gives the nth line of a script as the nth reply.

    Args:
        script: The replies. A list is one reply, chunk by chunk: `["Hel", "lo"]` is two chunks, a `ToolUseBlock` in it
            a call, an exception is raised there, an awaitable (made by a function without arguments) is awaited there. A
            function of the request alone (not in a list) answers every request.
        name: The model's name.

    Attributes:
        requests: What the model was asked, in order.

    Example:
        >>> model = ScriptedModel([ToolUseBlock("t1", "add", {"a": 1, "b": 2}), "It is 3."])
        >>> agent = Agent("calculator", model, tools=[add])
        >>> (await agent.call("1 + 2?")).text
        'It is 3.'
        >>> model.assert_done()
    """

    def __init__(self, script: Iterable[Line] | Callable[[ModelRequest], Any], *, name: str = "scripted") -> None:
        self.name = name
        self.requests: list[ModelRequest] = []
        self._brain = script if callable(script) else None
        if isinstance(script, str):
            raise UsageError(f"A script is a list of replies: ScriptedModel([{script!r:.60}]).")
        self._lines: list[Line] = [] if callable(script) else list(script)
        self._next = 0
        self.open_streams = 0

    def add(self, *lines: Line) -> None:
        """Add replies to the end of the script, in the midst of a test too.

        Raises:
            UsageError: A function answers every request, so there is no end.

        Example:
            >>> model = ScriptedModel(["One."])
            >>> model.add(ToolUseBlock("t1", "add", {"a": 1, "b": 2}), "It is 3.")
        """
        if self._brain is not None:
            raise UsageError(
                f"The model {self.name!r} is answered for by a function, which every request goes to; a script that can be "
                "added to is a list: ScriptedModel([...])."
            )
        self._lines.extend(lines)

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelChunk]:
        """Say the next line.

        Raises:
            ScriptError: The script is used up.
        """
        self.requests.append(ModelRequest(tuple(request.messages), request.tools, request.options, request.model))
        line = self._line(request)
        if isinstance(line, Awaitable):
            line = await cast("Awaitable[Any]", line)
        self.open_streams += 1
        try:
            for piece in _pieces(line):
                if callable(piece):
                    piece = piece()
                    if isinstance(piece, Awaitable):
                        piece = await cast("Awaitable[Any]", piece)
                    if piece is None:
                        continue
                for chunk in _chunks(piece):
                    yield chunk
        finally:
            self.open_streams -= 1

    def _line(self, request: ModelRequest) -> Any:
        if self._brain is not None:
            return self._brain(request)
        if self._next >= len(self._lines):
            last = request.messages[-1].text if request.messages else ""
            count = "1 reply" if len(self._lines) == 1 else f"{len(self._lines)} replies"
            raise ScriptError(
                f"The script of {self.name!r} has {count} and was asked for one more; the last message was {last!r:.80}. "
                "Add the reply that the model gives here; after a tool call it is called again, with the results."
            )
        line = self._lines[self._next]
        self._next += 1
        return line(request) if callable(line) and not isinstance(line, Msg) else line

    def assert_done(self) -> None:
        """Fail if the script is not used up.

        Raises:
            ScriptError: Replies are left.
        """
        left = len(self._lines) - self._next
        if left:
            raise ScriptError(
                f"The script of {self.name!r} has {left} of {len(self._lines)} replies left: {self._lines[self._next]!r:.80}."
            )

    def __enter__(self) -> ScriptedModel:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        if kind is None:
            self.assert_done()


def _pieces(line: Any) -> Sequence[Any]:
    if isinstance(line, list | tuple):
        pieces = cast("Sequence[Any]", line)
        calls = 0
        numbered: list[Any] = []
        for piece in pieces:
            if isinstance(piece, ToolUseBlock):
                numbered.append(_call(calls, piece))
                calls += 1
            else:
                numbered.append(piece)
        finish = "tool_calls" if calls else "stop"
        if any(isinstance(p, ModelChunk) and p.finish_reason for p in numbered):
            return numbered
        return [*numbered, ModelChunk(finish_reason=finish)]
    if isinstance(line, ToolUseBlock):
        return [_call(0, line, "tool_calls")]
    if isinstance(line, str):
        return [ModelChunk(line, finish_reason="stop")]
    return [line]


def _call(index: int, use: ToolUseBlock, finish: str | None = None) -> ModelChunk:
    return ModelChunk(tool_uses=(ToolUseDelta(index, use.id, use.name, use.raw),), finish_reason=finish)


def _chunks(piece: Any) -> Sequence[ModelChunk]:
    if isinstance(piece, ModelChunk):
        return (piece,)
    if isinstance(piece, str):
        return (ModelChunk(piece),)
    if isinstance(piece, BaseException):
        raise piece
    if isinstance(piece, Msg):
        return (ModelChunk.of(piece),)
    if isinstance(piece, list | tuple):
        return [chunk for part in _pieces(cast("Sequence[Any]", piece)) for chunk in _chunks(part)]
    if isinstance(piece, ToolUseBlock):
        return (_call(0, piece),)
    raise ScriptError(
        f"A script holds texts, messages, chunks, tool calls, errors and functions, not {type(piece).__name__}."
    )
