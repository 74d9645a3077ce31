"""The events of a run as chunks of the AI SDK's UI message stream.

Rules:

1. The chunks are made from the view's events only, so a page receives nothing that `View` hides.
2. An error is the last chunk.
3. A step is a reply of the model with its tool calls. A new step begins with the reply after the results, not with a result.
4. A part `data-reply` contains the reply's text if it differs from the streamed text, for example after a hook's edit.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Iterator
from typing import Any, Final, TypeAlias

from agentflow.serve.chats import Chat
from agentflow.serve.parts import PageCall, PageChange, PagePart, PageParts, failure_text
from agentflow.serve.view import EndEvent, GapEvent, Question, ReplyEvent, StateEvent, ToolEvent, ToolOutputEvent

Chunk: TypeAlias = dict[str, Any]

HEADERS: Final = {"x-vercel-ai-ui-message-stream": "v1"}
_NAMES: Final = {"text": "text", "thinking": "reasoning"}
_FINISHES: Final = {"completed": "stop", "suspended": "tool-calls", "limited": "length"}


class ChunkStream:
    """Translates the events of a run.

    Args:
        chat: The run.
        continued: The id of the page's message that the run continues.
    """

    def __init__(self, chat: Chat, continued: str | None) -> None:
        self._chat = chat
        self._message = continued or f"msg_{chat.run.id}"
        self._step = False  # whether a step is open
        self._results = False  # whether it has results, so that the next reply begins a step
        self._parts = PageParts(self._message, chat.announced)

    async def chunks(self) -> AsyncGenerator[bytes | None]:
        """Yield the encoded chunks; None if nothing has happened for a while."""
        yield _encoded({"type": "start", "messageId": self._message, "messageMetadata": {"run": self._chat.run.id}})
        async for numbered in self._chat.run.read_call():
            if numbered is None:
                yield None
                continue
            for change in self._parts.changes(numbered.event):
                for chunk in self._translated(change):
                    yield _encoded(chunk)
        yield b"data: [DONE]\n\n"

    def _translated(self, change: PageChange) -> Iterator[Chunk]:
        match change:
            case PagePart(step, kind, key, text):
                if step == "start":
                    yield from self._open_step()
                delta = {"delta": text} if step == "delta" else {}
                yield {"type": f"{_NAMES[kind]}-{step}", "id": key, **delta}
            case ReplyEvent():
                yield from self._attached(change)
            case PageCall(key, name, label, None):
                yield from self._open_step()
                yield _without_none({"type": "tool-input-start", "toolCallId": key, "toolName": name, "title": label})
            case PageCall(key, name, input=value):
                yield {"type": "tool-input-available", "toolCallId": key, "toolName": name, "input": value}
            case ToolEvent(id=key):
                self._results = True
                if key not in self._chat.answered:  # the page has the results of its own tools
                    yield self._result(change)
            case ToolOutputEvent(id=key, text=text):
                yield {"type": "tool-output-available", "toolCallId": key, "output": text, "preliminary": True}
            case StateEvent(state=state):
                yield {"type": "data-state", "id": "state", "data": state}
            case GapEvent():
                yield {"type": "data-gap", "data": {}}
            case Question():
                yield from self._question(change)
            case EndEvent():
                yield from self._end(change)
            case _:
                pass

    def _open_step(self) -> Iterator[Chunk]:
        if self._results:
            yield from self._close_step()
        if not self._step:
            self._step = True
            yield {"type": "start-step"}

    def _close_step(self) -> Iterator[Chunk]:
        if self._step:
            self._step = self._results = False
            yield {"type": "finish-step"}

    def _attached(self, event: ReplyEvent) -> Iterator[Chunk]:
        if self._parts.text_differs:
            yield {"type": "data-reply", "data": {"text": event.text}}
        for url, title in dict.fromkeys((source.url, source.title) for source in event.sources or ()):
            yield _source(f"{self._parts.id}_{url or title}", url, title)
        for file in event.files or ():
            yield from self._open_step()
            yield {"type": "file", "mediaType": file.media_type, "url": file.url}

    def _result(self, event: ToolEvent) -> Chunk:
        shown = event.state if event.result is None else event.result
        if event.state == "success":
            return {"type": "tool-output-available", "toolCallId": event.id, "output": shown}
        if event.state == "denied" and event.id in self._chat.announced:
            return {"type": "tool-output-denied", "toolCallId": event.id}
        return {"type": "tool-output-error", "toolCallId": event.id, "errorText": shown}

    def _question(self, question: Question) -> Iterator[Chunk]:
        key = question.id
        if question.name is None:
            yield {"type": "data-question", "id": key, "data": question.model_dump(exclude_none=True)}
        elif key not in self._chat.wanted and question.kind == "approval":
            chunk = {"type": "tool-approval-request", "approvalId": key, "toolCallId": key}
            yield _without_none({**chunk, "reason": question.question})

    def _end(self, event: EndEvent) -> Iterator[Chunk]:
        yield from self._close_step()
        match event.outcome:
            case "failed" | "parked":
                yield {"type": "error", "errorText": failure_text(event)}
            case "interrupted":
                yield {"type": "abort", "reason": "interrupted"}
            case outcome:
                usage = None if event.usage is None else event.usage.model_dump(exclude_none=True)
                metadata = _without_none({"outcome": outcome, "usage": usage})
                yield {
                    "type": "finish",
                    "finishReason": _FINISHES.get(outcome, "other"),
                    "messageMetadata": metadata,
                }


def _source(key: str, url: str | None, title: str | None) -> Chunk:
    if url is not None:
        return _without_none({"type": "source-url", "sourceId": key, "url": url, "title": title})
    return {"type": "source-document", "sourceId": key, "mediaType": "text/plain", "title": title or "document"}


def _without_none(chunk: Chunk) -> Chunk:
    return {name: value for name, value in chunk.items() if value is not None}


def _encoded(chunk: Chunk) -> bytes:
    return b"data: %s\n\n" % json.dumps(chunk, separators=(",", ":")).encode()
