"""`A2AModel`: a remote agent used as a model.

Rules:

1. A reply carries the ids of the remote context and task in a redacted thinking block, which is sent back only to this model.
   So they are in the history, its stores, forks and recordings, and the next message continues the same context.
2. The remote agent has the earlier messages of its context; only later ones are sent. A new context gets the whole
   conversation, as text.
3. If the remote agent waits for input, the reply is a call of the external tool `remote_input`: the call suspends, and the
   tool's result is sent to the waiting task.
4. If a stream breaks off, the task is read until it has ended; the message is not sent again. If the reader stops, the task is
   cancelled.
"""

from __future__ import annotations

import asyncio
import base64
import json
import re
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar, cast

from agentflow._support.json_text import read_json_text
from agentflow._support.shown import encodable
from agentflow.errors import ModelError
from agentflow.serve.a2a.connection import RemoteConnection, shown
from agentflow.serve.a2a.content import data_in
from agentflow.serve.a2a.sdk import client, helpers, types
from agentflow.vocabulary.chunks import ModelChunk, ToolUseDelta
from agentflow.vocabulary.messages import ContentBlock, DataBlock, Msg, TextBlock, ThinkingBlock, ToolResultBlock
from agentflow.vocabulary.ports.model import AnswerModes, ModelRequest

T = TypeVar("T")

INPUT_TOOL: Final = "remote_input"
# Includes the states in which the task waits for a message, because no event follows until then.
_ENDED: Final = frozenset(
    {
        types.TaskState.TASK_STATE_COMPLETED,
        types.TaskState.TASK_STATE_FAILED,
        types.TaskState.TASK_STATE_CANCELED,
        types.TaskState.TASK_STATE_REJECTED,
        types.TaskState.TASK_STATE_INPUT_REQUIRED,
        types.TaskState.TASK_STATE_AUTH_REQUIRED,
    }
)
_MEDIA_TYPE: Final = re.compile(r"[\w.+-]{1,60}/[\w.+-]{1,60}")
_CANCEL_SECONDS: Final = 2.0
_POLL_SECONDS: Final = (0.5, 5.0)  # the first pause, which doubles, and the longest
_POLL_FAILURES: Final = 3


class A2AModel:
    """A remote agent used as a model, for `RemoteAgent`.

    Args:
        url: The agent's address; its card is at `/.well-known/agent-card.json` below it.
        headers: HTTP headers of each request.
        origins: Other origins, such as `"https://host"`, that the card may name.
        timeout: Seconds for an answer; then the remote task is cancelled.
        max_bytes: The largest response.

    Attributes:
        remote: The connection.

    Raises:
        UsageError: An argument is invalid.

    Example:
        >>> A2AModel("https://shop.example.com/a2a/clerk").name
        'a2a:shop.example.com:443/a2a/clerk'
    """

    def __init__(
        self,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        origins: Sequence[str] = (),
        timeout: float = 600.0,
        max_bytes: int = 10_000_000,
    ) -> None:
        self.remote = RemoteConnection(url, headers or {}, origins, timeout, max_bytes)

    @property
    def name(self) -> str:
        """The model's name."""
        return self.remote.name

    async def answer_modes(self) -> AnswerModes:
        """Return the supported ways to request a typed answer: by instructions only."""
        return AnswerModes(tools=False, forced=False)

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelChunk]:
        """Send the new messages, and stream the answer.

        Raises:
            ModelError: The remote agent is unreachable, failed, or sent an invalid answer.
        """
        place, message = _message(request.messages, self.name)
        answer = RemoteAnswer()
        deadline = asyncio.get_running_loop().time() + self.remote.timeout
        async with self.remote.connect() as client:
            try:
                async with aclosing(self._events(client, message, answer, deadline)) as events:
                    async for event in events:
                        for chunk in answer.add(event):
                            yield chunk
                chunks = answer.finish(place, self.name)
            except BaseException:  # even if cancelled or closed: otherwise the remote task would continue
                await _cancel(client, answer)
                raise
            for chunk in chunks:
                yield chunk

    async def _events(
        self, client: client.Client, message: types.Message, answer: RemoteAnswer, deadline: float
    ) -> AsyncGenerator[types.StreamResponse]:
        """Yield the remote agent's events; if the stream breaks off, yield the finished task instead."""
        broken: Exception | None = None
        sending = cast(
            "AsyncGenerator[types.StreamResponse]", client.send_message(types.SendMessageRequest(message=message))
        )
        async with aclosing(sending):
            while not answer.ended:
                try:
                    event = await self._by_deadline(deadline, anext(sending, None))
                except (ModelError, TimeoutError):  # from the time limit: the task is cancelled instead of read
                    raise
                except Exception as error:
                    broken = error
                    break
                if event is None:
                    break
                yield event
        if answer.ended:
            return
        if broken is not None and not answer.task_id:
            self.remote.forget()
            raise self.remote.failure(broken, "the message was not answered", sent=True) from broken
        if not answer.task_id:
            raise self.remote.failure(ValueError("no answer"), "the message was not answered", sent=True)
        yield types.StreamResponse(task=await self._settled(client, answer.task_id, broken, deadline))

    async def _settled(
        self, client: client.Client, task_id: str, broken: Exception | None, deadline: float
    ) -> types.Task:
        """Return the task once it has ended or waits."""
        pause, longest = _POLL_SECONDS
        failures = 0
        while True:
            try:
                task = await self._by_deadline(deadline, client.get_task(types.GetTaskRequest(id=task_id)))
                failures = 0
                if task.status.state in _ENDED:
                    return task
            except (ModelError, TimeoutError):
                raise
            except Exception as error:
                failures += 1
                if failures == _POLL_FAILURES:
                    step = f"the stream of task {shown(task_id)} broke off, and the task is not readable"
                    raise self.remote.failure(broken or error, step, sent=True) from error
            await asyncio.sleep(pause)
            pause = min(2 * pause, longest)

    async def _by_deadline(self, deadline: float, work: Coroutine[Any, Any, T]) -> T:
        limit = asyncio.timeout_at(deadline)
        try:
            async with limit:
                return await work
        except TimeoutError as error:
            if not limit.expired():  # a timeout of the work itself
                raise
            text = f"The remote agent {self.name} did not answer within timeout={self.remote.timeout:g} s."
            raise ModelError(f"{text} Its task was cancelled.", model=self.name) from error


async def _cancel(client: client.Client, answer: RemoteAnswer) -> None:
    """Cancel the remote task, if it is running; failures are ignored."""
    if answer.task_id and not answer.ended:
        with suppress(Exception):
            async with asyncio.timeout(_CANCEL_SECONDS):
                await client.cancel_task(types.CancelTaskRequest(id=answer.task_id))


# ---- requests


@dataclass(frozen=True)
class RemotePlace:
    """The ids of a conversation at the remote agent.

    Attributes:
        context: The context's id.
        task: The id of the task that waits for input; empty if none does.
    """

    context: str = ""
    task: str = ""


def _message(messages: Sequence[Msg], model: str) -> tuple[RemotePlace, types.Message]:
    """Return the ids of a conversation, and the message for the remote agent: everything that is new to it."""
    begin, place = 0, RemotePlace()
    for number in range(len(messages) - 1, -1, -1):
        found = _ids_in(messages[number], model)
        if found is not None:
            begin, place = number + 1, found
            break
    system = [msg.text for msg in messages[:1] if msg.role == "system" and msg.text]
    new = [msg for msg in messages[begin:] if msg.role != "system"]
    last = max((n for n, msg in enumerate(new, 1) if msg.role == "assistant"), default=0)
    earlier, current = new[:last], new[last:]
    parts = [helpers.new_text_part(text) for text in system]
    if earlier:
        conversation = "\n\n".join([f"{msg.role}: {msg.text}" for msg in earlier if msg.text])
        parts.append(helpers.new_text_part(f"The conversation so far:\n\n{conversation}"))
    for msg in current:
        parts += [part for block in msg.content for part in _parts(block)]
    return place, types.Message(
        message_id=messages[-1].id,
        role=types.Role.ROLE_USER,
        context_id=place.context,
        task_id=place.task,
        parts=parts,
    )


def _ids_in(msg: Msg, model: str) -> RemotePlace | None:
    for block in msg.content:
        if isinstance(block, ThinkingBlock) and block.model == model and block.redacted is not None:
            with suppress(ValueError, TypeError, KeyError):
                data = read_json_text(block.redacted)
                return RemotePlace(str(data["context"]), str(data["task"]))
    return None


def _parts(block: ContentBlock) -> list[types.Part]:
    match block:
        case TextBlock(text=text) if text:
            return [helpers.new_text_part(text)]
        case DataBlock(data=data, media_type=media, name=name):
            if data is not None:
                return [helpers.new_raw_part(base64.b64decode(data), media, name)]
            return [helpers.new_url_part(cast("str", block.url), media, name)]
        case ToolResultBlock(name=name) if name == INPUT_TOOL:
            if block.state == "denied":
                return [helpers.new_text_part(f"deny: {block.text.removeprefix('Denied: ')}")]
            with suppress(ValueError):
                if isinstance(data := read_json_text(block.text), dict):
                    return [helpers.new_data_part(data, "application/json")]
            return [helpers.new_text_part(block.text)]
        case _:
            return []


# ---- answers


@dataclass
class RemoteAnswer:
    """An answer that is arriving: the task, and the text of its artifacts.

    Attributes:
        task_id: The task's id, once it is known.
        context_id: The context's id, once it is known.
        ended: Whether the task has ended, or waits.
    """

    task_id: str = ""
    context_id: str = ""
    ended: bool = False
    _status: types.TaskStatus = field(default_factory=types.TaskStatus)
    _texts: dict[str, str] = field(default_factory=dict[str, str])
    _files: dict[str, list[ContentBlock]] = field(default_factory=dict[str, list[ContentBlock]])
    _sent: str = ""

    def add(self, event: types.StreamResponse) -> list[ModelChunk]:
        """Add an event; return the resulting chunks."""
        match event.WhichOneof("payload"):
            case "task":
                task = event.task
                self._set_ids(task.id, task.context_id)
                self._texts, self._files = {}, {}
                for artifact in task.artifacts:
                    self._add(artifact, append=False)
                self._update(task.status)
            case "status_update":
                self._set_ids(event.status_update.task_id, event.status_update.context_id)
                self._update(event.status_update.status)
            case "artifact_update":
                update: types.TaskArtifactUpdateEvent = event.artifact_update
                self._set_ids(update.task_id, update.context_id)
                self._add(update.artifact, append=update.append)
            case "message":
                self._set_ids("", event.message.context_id)
                self._add(types.Artifact(artifact_id="message", parts=event.message.parts), append=False)
                self._update(types.TaskStatus(state=types.TaskState.TASK_STATE_COMPLETED))
            case _:
                pass
        return self._changes()

    def _set_ids(self, task_id: str, context_id: str) -> None:
        self.task_id = self.task_id or task_id
        self.context_id = self.context_id or context_id

    def _update(self, status: types.TaskStatus) -> None:
        self._status = status
        self.ended = status.state in _ENDED

    def _add(self, artifact: types.Artifact, *, append: bool) -> None:
        text, files = _content(artifact.parts)
        key = artifact.artifact_id
        self._texts[key] = self._texts.get(key, "") + text if append else text
        self._files[key] = [*self._files.get(key, []), *files] if append else files

    def _changes(self) -> list[ModelChunk]:
        whole = "\n\n".join([text for text in self._texts.values() if text])
        sent, self._sent = self._sent, whole
        if whole.startswith(sent):  # otherwise text that was sent has been replaced
            return [ModelChunk(whole[len(sent) :])] if len(whole) > len(sent) else []
        return [ModelChunk(whole, restart=True)]

    def finish(self, place: RemotePlace, model: str) -> list[ModelChunk]:
        """Return the last chunks.

        Args:
            place: The previous ids of the conversation.
            model: The model's name.

        Raises:
            ModelError: The task did not succeed.
        """
        text, _ = _content(self._status.message.parts)
        state = self._status.state
        context = self.context_id or place.context
        if state == types.TaskState.TASK_STATE_INPUT_REQUIRED:
            question = {"question": text, "data": data_in(self._status.message.parts)}
            use = ToolUseDelta(0, "", INPUT_TOOL, json.dumps(question))
            return [_ids_chunk(context, self.task_id, model), ModelChunk(tool_uses=(use,), finish_reason="tool_calls")]
        if state != types.TaskState.TASK_STATE_COMPLETED:
            how = types.TaskState.Name(state).removeprefix("TASK_STATE_").lower().replace("_", " ")
            text = f"The task of the remote agent {model} ended in state {how}: {shown(text) or 'no reason was given'}"
            kind = "authentication" if state == types.TaskState.TASK_STATE_AUTH_REQUIRED else None
            raise ModelError(text, model=model, kind=kind)
        files = tuple([block for blocks in self._files.values() for block in blocks])
        return [
            *([ModelChunk(text)] if text and not self._sent else []),
            *([ModelChunk(blocks=files)] if files else []),
            _ids_chunk(context, "", model),
            ModelChunk(finish_reason="stop"),
        ]


def _ids_chunk(context: str, task: str, model: str) -> ModelChunk:
    redacted = json.dumps({"context": context, "task": task})
    return ModelChunk(blocks=(ThinkingBlock("", None, redacted, model),))


def _content(parts: Sequence[types.Part]) -> tuple[str, list[ContentBlock]]:
    """Return the text of parts, and their files. Data becomes JSON text, an address becomes text: nothing is fetched."""
    texts: list[str] = []
    files: list[ContentBlock] = []
    for part in parts:
        match part.WhichOneof("content"):
            case "text":
                texts.append(encodable(part.text))
            case "data":
                texts.append(json.dumps(data_in([part])[0], ensure_ascii=False))
            case "url":
                texts.append(part.url)
            case "raw" if part.raw:
                media = part.media_type if _MEDIA_TYPE.fullmatch(part.media_type) else None
                files.append(DataBlock.from_bytes(part.raw, media, name=shown(part.filename) or None))
            case _:
                pass
    return "".join(texts), files
