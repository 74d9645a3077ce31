"""`ScriptedModel`: a model that returns the replies of a script, chunk by chunk."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from typing import Any, TypeAlias, cast

from agentflow.errors import ScriptError, UsageError
from agentflow.vocabulary.chunks import ModelChunk, ToolUseDelta
from agentflow.vocabulary.messages import Msg, ToolUseBlock
from agentflow.vocabulary.ports.model import ModelRequest

Line: TypeAlias = (
    "str | Msg | ModelChunk | ToolUseBlock | BaseException | Sequence[Any] | Callable[[ModelRequest], Any]"
)
"""One reply of a script: a text, a message, tool calls, chunks, an error to raise, a list of these, or a function."""


class ScriptedModel:
    """A model that returns the nth line of a script as its nth reply.

    Args:
        script: The replies. A list is one reply in chunks: `["Hel", "lo"]` is two chunks, and a `ToolUseBlock` in it is a
            call. An exception is raised at its position. A function without arguments is called there, and its result
            (awaited if necessary) is used instead; None adds nothing. Instead of a list of replies, a function of the
            request may answer every request.
        name: The model's name.

    Attributes:
        requests: The requests to the model, in order.
        open_streams: The number of replies that are being read.

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
        self._function = script if callable(script) else None
        if isinstance(script, str):
            raise UsageError(f"A script must be a list of replies: ScriptedModel([{script!r:.60}]).")
        self._lines: list[Line] = [] if callable(script) else list(script)
        self._next = 0
        self.open_streams = 0

    def add(self, *lines: Line) -> None:
        """Add replies to the end of the script, even during a test.

        Raises:
            UsageError: The model uses a function for every request, so there is no list to extend.

        Example:
            >>> model = ScriptedModel(["One."])
            >>> model.add(ToolUseBlock("t1", "add", {"a": 1, "b": 2}), "It is 3.")
        """
        if self._function is not None:
            raise UsageError(
                f"The model {self.name!r} uses a function for every request. To add replies, create it with a list: "
                "ScriptedModel([...])."
            )
        self._lines.extend(lines)

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelChunk]:
        """Yield the chunks of the next reply.

        Raises:
            ScriptError: The script has no more replies.
        """
        # A copy: the messages can be a view of a conversation that grows.
        self.requests.append(ModelRequest(tuple(request.messages), request.tools, request.options, request.model))
        line = self._line(request)
        if isinstance(line, Awaitable):
            line = await cast("Awaitable[Any]", line)
        self.open_streams += 1
        try:
            for part in _parts(line):
                if callable(part):
                    part = part()
                    if isinstance(part, Awaitable):
                        part = await cast("Awaitable[Any]", part)
                    if part is None:
                        continue
                for chunk in _chunks(part):
                    yield chunk
        finally:
            self.open_streams -= 1

    def _line(self, request: ModelRequest) -> Any:
        if self._function is not None:
            return self._function(request)
        if self._next >= len(self._lines):
            last = request.messages[-1].text if request.messages else ""
            count = "1 reply" if len(self._lines) == 1 else f"{len(self._lines)} replies"
            raise ScriptError(
                f"The script of {self.name!r} has {count} and got one more request, whose last message was {last!r:.80}. "
                "Add a reply; after a tool call the model is called again with the results."
            )
        line = self._lines[self._next]
        self._next += 1
        return line(request) if callable(line) and not isinstance(line, Msg) else line

    def assert_done(self) -> None:
        """Fail if some replies of the script were not used.

        Raises:
            ScriptError: There are unused replies.
        """
        unused = len(self._lines) - self._next
        if unused:
            raise ScriptError(
                f"The script of {self.name!r} has {unused} of {len(self._lines)} replies left. "
                f"The next one is {self._lines[self._next]!r:.80}."
            )

    def __enter__(self) -> ScriptedModel:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        if kind is None:
            self.assert_done()


def _parts(line: Any) -> Sequence[Any]:
    """Return the parts of a reply, with numbered tool calls, and a finish reason at the end unless a part has one."""
    if isinstance(line, list | tuple):
        calls = 0
        numbered: list[Any] = []
        for part in cast("Sequence[Any]", line):
            if isinstance(part, ToolUseBlock):
                numbered.append(_call(calls, part))
                calls += 1
            else:
                numbered.append(part)
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


def _chunks(part: Any) -> Sequence[ModelChunk]:
    if isinstance(part, ModelChunk):
        return (part,)
    if isinstance(part, str):
        return (ModelChunk(part),)
    if isinstance(part, BaseException):
        raise part
    if isinstance(part, Msg):
        return (ModelChunk.of(part),)
    if isinstance(part, list | tuple):
        return [chunk for inner in _parts(cast("Sequence[Any]", part)) for chunk in _chunks(inner)]
    if isinstance(part, ToolUseBlock):
        return (_call(0, part),)
    raise ScriptError(
        f"A script must consist of texts, messages, chunks, tool calls, errors and functions, not {type(part).__name__}."
    )
