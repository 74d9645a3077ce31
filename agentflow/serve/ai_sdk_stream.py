"""The events of a run as chunks of the AI SDK's UI message stream.

Rules:

1. Everything is made of the view's events, so a page receives what `View` allows, in another form.
2. A text, a reasoning or a call that was opened is completed before the last chunk. After an error there is nothing.
3. A step is a reply of the model with its tool calls. The results of calls from the request before belong to no new step.
4. The protocol has no way to take back text. A reply that was restarted, or that hooks changed, follows as a part `data-reply`.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Iterator, Mapping
from typing import Any, Final, TypeAlias

from agentflow.serve.chats import Chat, is_client_call
from agentflow.serve.view import (
    EndEvent,
    GapEvent,
    Public,
    Question,
    ReplyEvent,
    StateEvent,
    TextEvent,
    ThinkingEvent,
    ToolEvent,
    ToolOutputEvent,
)

__all__ = ["HEADERS", "ChunkStream"]

Chunk: TypeAlias = dict[str, Any]

HEADERS: Final = {"x-vercel-ai-ui-message-stream": "v1"}
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
        self._count = 0
        self._step = False  # whether a step is open
        self._results = False  # whether it has results, so that the next reply begins a step
        self._text: str | None = None  # the text of the open part
        self._wrong = False  # whether a part of the reply must be discarded
        self._last = ""
        self._thinking = False
        self._inputs = dict.fromkeys(chat.announced, True)  # the calls, and whether their arguments are complete

    async def chunks(self) -> AsyncGenerator[bytes | None]:
        """Yield the encoded chunks; None if nothing has happened for a while."""
        yield _encoded({"type": "start", "messageId": self._message, "messageMetadata": {"run": self._chat.run.id}})
        async for numbered in self._chat.run.read():
            if numbered is None:
                yield None
                continue
            for chunk in self._translated(numbered.event):
                yield _encoded(chunk)
        yield b"data: [DONE]\n\n"

    def _translated(self, event: Public) -> Iterator[Chunk]:
        if not isinstance(event, ThinkingEvent):
            yield from self._close_thinking()
        match event:
            case TextEvent(text=text, restart=restart):
                if restart:
                    self._wrong = self._wrong or bool(self._text)
                    yield from self._close_text()
                if text:
                    yield from self._add_text(text)
            case ThinkingEvent(text=text):
                yield from self._add_thinking(text)
            case ReplyEvent():
                yield from self._reply(event)
            case ToolEvent():
                yield from self._close_text()
                yield from self._tool(event)
            case ToolOutputEvent(id=key, text=text):
                yield from self._available(key, "", {})
                yield {"type": "tool-output-available", "toolCallId": key, "output": text, "preliminary": True}
            case StateEvent(state=state):
                yield {"type": "data-state", "id": "state", "data": state}
            case GapEvent():
                yield {"type": "data-gap", "data": {}}
            case EndEvent():
                yield from self._end(event)
            case _:
                pass

    # ---- replies

    def _part(self) -> str:
        return f"{self._message}_{self._count}"

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

    def _add_text(self, text: str) -> Iterator[Chunk]:
        yield from self._open_step()
        if self._text is None:
            self._text = ""
            self._count += 1
            yield {"type": "text-start", "id": self._part()}
        self._text += text
        yield {"type": "text-delta", "id": self._part(), "delta": text}

    def _close_text(self) -> Iterator[Chunk]:
        if self._text is not None:
            self._text = None
            yield {"type": "text-end", "id": self._part()}

    def _add_thinking(self, text: str) -> Iterator[Chunk]:
        yield from self._open_step()
        if not self._thinking:
            yield from self._close_text()
            self._thinking = True
            self._count += 1
            yield {"type": "reasoning-start", "id": self._part()}
        yield {"type": "reasoning-delta", "id": self._part(), "delta": text}

    def _close_thinking(self) -> Iterator[Chunk]:
        if self._thinking:
            self._thinking = False
            yield {"type": "reasoning-end", "id": self._part()}

    def _reply(self, event: ReplyEvent) -> Iterator[Chunk]:
        if self._text is None and event.text:
            yield from self._add_text(event.text)
        wrong = self._wrong or (self._text or "") != event.text
        self._wrong, self._last = False, event.text
        yield from self._close_text()
        if wrong:
            yield {"type": "data-reply", "data": {"text": event.text}}
        for url, title in dict.fromkeys((one.url, one.title) for one in event.sources or ()):
            yield _source(f"{self._part()}_{url or title}", url, title)
        for file in event.files or ():
            yield from self._open_step()
            yield {"type": "file", "mediaType": file.media_type, "url": file.url}

    # ---- tools

    def _tool(self, event: ToolEvent) -> Iterator[Chunk]:
        if event.state == "suspended" or (event.state == "running" and event.name is None):
            return  # the question, or the result, has what is missing
        yield from self._open_call(event.id, event.name or event.label or "tool", event.label)
        if event.state == "running" and event.input is None:
            return
        yield from self._available(event.id, event.name or event.label or "tool", event.input or {})
        if event.state != "running":
            self._results = True
            if event.id not in self._chat.answered:  # the page has the results of its own tools
                yield self._result(event)

    def _result(self, event: ToolEvent) -> Chunk:
        shown = event.state if event.result is None else event.result
        if event.state == "success":
            return {"type": "tool-output-available", "toolCallId": event.id, "output": shown}
        if event.state == "denied" and event.id in self._chat.announced:
            return {"type": "tool-output-denied", "toolCallId": event.id}
        return {"type": "tool-output-error", "toolCallId": event.id, "errorText": shown}

    def _open_call(self, key: str, name: str, label: str | None) -> Iterator[Chunk]:
        if key not in self._inputs:
            yield from self._open_step()
            self._inputs[key] = False
            yield _without_none({"type": "tool-input-start", "toolCallId": key, "toolName": name, "title": label})

    def _available(self, key: str, name: str, value: Mapping[str, Any]) -> Iterator[Chunk]:
        if not self._inputs[key]:
            self._inputs[key] = True
            yield {"type": "tool-input-available", "toolCallId": key, "toolName": name, "input": value}

    def _waits(self, question: Question, ours: bool) -> Iterator[Chunk]:
        """Complete a call that waits, and ask for its approval."""
        if question.name is None:
            yield {"type": "data-question", "id": question.id, "data": question.model_dump(exclude_none=True)}
            return
        yield from self._open_call(question.id, question.name, question.label)
        yield from self._available(question.id, question.name, question.input or {})
        if not ours and question.kind == "approval":
            chunk = {"type": "tool-approval-request", "approvalId": question.id, "toolCallId": question.id}
            yield _without_none({**chunk, "reason": question.question})

    # ---- the end

    def _end(self, event: EndEvent) -> Iterator[Chunk]:
        yield from self._close_text()
        if event.text and event.text != self._last:  # why the run ended
            yield from self._add_text(event.text)
            yield from self._close_text()
        reply = self._chat.run.reply
        ours = {waits.id for waits in (() if reply is None else reply.pending) if is_client_call(waits)}
        for question in event.questions:
            yield from self._waits(question, question.id in ours)
        yield from self._close_step()
        match event.outcome:
            case "failed":
                yield {"type": "error", "errorText": f"The run failed (reference {event.reference})."}
            case "parked":
                yield {"type": "error", "errorText": "The server is restarting; the run continues afterwards."}
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
