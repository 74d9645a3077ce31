"""The work of A2A tasks: a task is a run of the service, its context a session of the user.

Rules:

1. The run belongs to the service; a task only reads it. A disconnected client does not end the run; a cancelled task does.
2. A task has one artifact, the reply. Text is appended while it streams; the complete reply replaces it.
3. A suspended run is a task in `input-required`. A message on this task decides all questions together; a message
without
   decisions changes nothing, and the questions are sent again.
4. A message is delivered to an agent only if its session does not wait for anything.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, Final, TypeVar, cast

from pydantic import ValidationError

from agentflow._support.shown import encodable
from agentflow._support.validation import first_problem
from agentflow.loop.session import Session
from agentflow.serve.a2a.content import data_in
from agentflow.serve.a2a.sdk import EventQueue, ParseError, agent_execution, helpers, tasks, types
from agentflow.serve.bodies import DecisionBody, ResumeBody
from agentflow.serve.event_history import NumberedEvent
from agentflow.serve.failures import log_failed
from agentflow.serve.refusals import Refusal
from agentflow.serve.runs import ServedRun, StoredSession
from agentflow.serve.service import Service
from agentflow.serve.view import EndEvent, Public, Question, ReplyEvent, TextEvent, ToolEvent
from agentflow.vocabulary.messages import Pending, undecided

T = TypeVar("T")

HOW_TO_ANSWER: Final = (
    "Answer with a message on this task: 'approve', 'deny: reason', or a data part with the decisions of all questions, "
    '{"decisions": {"<id>": {"action": "approve"}}}.'
)
_CANCELLED: Final = "cancelled by the client"
_ARTIFACT: Final = "reply"
_FLUSH_SECONDS: Final = 0.05
_INTERRUPTED: Final = "The server stopped during this task. Send a message on it to continue."


def text_of(message: types.Message) -> str:
    """Return the text of a message for the agent; data parts become JSON.

    Raises:
        types.ContentTypeNotSupportedError: A part is neither text nor data.
    """
    texts: list[str] = []
    for part in message.parts:
        if part.HasField("text"):
            texts.append(part.text)
        elif part.HasField("data"):
            texts.append(json.dumps(data_in([part])[0], ensure_ascii=False))
        else:
            raise types.ContentTypeNotSupportedError(
                "The parts of a message must be text or data; files are not supported."
            )
    return "\n".join(texts)


async def ticking(items: AsyncGenerator[T], seconds: Callable[[], float | None]) -> AsyncIterator[T | None]:
    """Yield the items, and None after each `seconds()` without an item; the pending item is not cancelled.

    Args:
        items: The items; closed with this iterator.
        seconds: Called before each wait; returns the time to wait, or None for no limit.
    """
    step: asyncio.Future[Any] | None = None
    end = object()
    try:
        while True:
            step = step or asyncio.ensure_future(anext(items, end))
            await asyncio.wait([step], timeout=seconds())
            if not step.done():
                yield None
                continue
            item, step = cast("T", step.result()), None
            if item is end:
                return
            yield item
    finally:
        if step is not None:
            step.cancel()
            await asyncio.gather(step, return_exceptions=True)
        await items.aclose()


class AgentTasks(agent_execution.AgentExecutor):
    """Runs an agent for the SDK's request handler.

    Args:
        service: Runs the agent.
        agent: The agent's name.
    """

    def __init__(self, service: Service, agent: str) -> None:
        self._service = service
        self._agent = agent

    async def execute(self, context: agent_execution.RequestContext, event_queue: EventQueue) -> None:
        """Run a task until it ends or waits."""
        task_id, context_id, message = context.task_id, context.context_id, context.message
        assert task_id is not None
        assert context_id is not None
        assert message is not None
        if context.current_task is None:
            submitted = helpers.new_task(task_id, context_id, types.TaskState.TASK_STATE_SUBMITTED, history=[message])
            await event_queue.enqueue_event(submitted)
        progress = TaskReporter(tasks.TaskUpdater(event_queue, task_id, context_id))
        try:
            await self._work(context, message, progress)
        except Exception as error:  # otherwise the task would stay `working`
            reference = secrets.token_hex(4)
            log_failed(f"the work of an A2A task failed (reference {reference})", error)
            await progress.fail(reference)

    async def _work(
        self, context: agent_execution.RequestContext, message: types.Message, progress: TaskReporter
    ) -> None:
        context_id = progress.updater.context_id
        owner = context.call_context.user.user_name
        waiting: Sequence[Question] = ()
        try:
            ref = self._service.session(owner, self._agent, context_id)
            session = await self._open(ref)
            status = None if session is None else await self._service.current_status(ref, session)
            if session is not None and status in ("suspended", "unfinished"):
                waiting = self._service.view.questions(session.pending)
                if context.current_task is None:
                    await progress.ask(waiting, "This conversation waits for an answer; the message was not delivered.")
                    return
                run = await self._service.resume(owner, ref, _decisions(message, session.pending))
            else:
                run = await self._service.call(owner, ref, text_of(message))
        except Refusal as refusal:
            if waiting:
                await progress.ask(waiting, refusal.text)
            else:
                await progress.updater.reject(progress.message(helpers.new_text_part(refusal.text)))
            return
        await progress.follow(run)

    async def cancel(self, context: agent_execution.RequestContext, event_queue: EventQueue) -> None:
        """End a task; `close` ends its run."""
        assert context.task_id is not None
        assert context.context_id is not None
        await tasks.TaskUpdater(event_queue, context.task_id, context.context_id).cancel()

    async def close(self, owner: str, context_id: str) -> None:
        """End the run of a cancelled task, whether it is running (here or elsewhere) or waits for decisions."""
        ref = self._service.session(owner, self._agent, context_id)
        run = await self._service.working(ref)
        if run is not None:
            await run.cancel(_CANCELLED)
        elif await self._open(ref) is not None:
            await self._service.dismiss(ref, _CANCELLED)

    async def complete(self, owner: str, task: types.Task, save: Callable[[Any], Awaitable[object]]) -> None:
        """If the run of a task has ended, report its end, because the process that should do so has died."""
        ref = self._service.session(owner, self._agent, task.context_id)
        session = await self._open(ref)
        if session is None or await self._service.working(ref) is not None:
            return
        end = await self._service.last_end(owner, ref, session)
        await TaskReporter(tasks.TaskUpdater(_StoreQueue(save), task.id, task.context_id)).end(end)

    async def _open(self, ref: StoredSession) -> Session | None:
        try:
            return (await self._service.load(ref))[0]
        except Refusal as refusal:
            if refusal.status == 404:
                return None  # the session begins with this task
            raise


class _StoreQueue(EventQueue):
    """Passes events to the task store."""

    def __init__(self, save: Callable[[Any], Awaitable[object]]) -> None:
        self._save = save

    async def enqueue_event(self, event: Any) -> None:
        await self._save(event)


class TaskReporter:
    """Reports a run as the events of a task.

    Args:
        updater: The task's events.
    """

    def __init__(self, updater: tasks.TaskUpdater) -> None:
        self.updater = updater
        self._unsent = ""
        self._sent = ""  # the streamed text of the current reply
        self._known: str | None = None  # the artifact's complete text

    async def follow(self, run: ServedRun) -> None:
        """Report a run until its end."""
        await self.updater.start_work()
        async for numbered in ticking(run.read_call(), lambda: _FLUSH_SECONDS if self._unsent else None):
            await self._add(numbered)

    async def _add(self, numbered: NumberedEvent | None) -> None:
        match None if numbered is None else numbered.event:
            case None:
                await self._flush()
            case TextEvent(text=text, restart=restart):
                if restart:
                    self._unsent = self._sent = ""
                self._unsent += encodable(text)
            case ReplyEvent(text=text):
                await self._complete(text)
            case ToolEvent() as tool:
                await self._flush()
                await self.updater.start_work(self.message(*_parts(tool.label or "", {"tool": _plain(tool)})))
            case EndEvent() as end:
                await self.end(end)
            case _:
                pass

    async def _flush(self) -> None:
        if self._unsent:
            text, self._unsent = self._unsent, ""
            append = bool(self._sent)  # the first part creates the artifact
            self._sent += text
            self._known = None
            await self.updater.add_artifact([helpers.new_text_part(text)], _ARTIFACT, append=append, last_chunk=False)

    async def _complete(self, text: str) -> None:
        """Replace the content of the artifact with a complete text."""
        self._unsent = self._sent = ""
        if text != self._known:
            self._known = text
            await self.updater.add_artifact([helpers.new_text_part(text)], _ARTIFACT, append=False, last_chunk=True)

    async def end(self, end: EndEvent) -> None:
        """Report the end of a run."""
        match end.outcome:
            case "suspended":
                await self._flush()
                await self.ask(end.questions, end.text)
            case "parked":
                await self.updater.requires_input(self.message(helpers.new_text_part(_INTERRUPTED)))
            case "interrupted":
                await self.updater.cancel()
            case "failed":
                await self.fail(end.reference)
            case "denied":
                await self.updater.reject(self.message(helpers.new_text_part(end.text)))
            case outcome:
                if end.text:
                    await self._complete(end.text)
                await self.updater.update_status(types.TaskState.TASK_STATE_COMPLETED, metadata={"outcome": outcome})

    async def fail(self, reference: str | None) -> None:
        """End as failed; the reference is in the server's log."""
        text = f"The agent failed (reference {reference})."
        await self.updater.failed(self.message(helpers.new_text_part(text)))

    async def ask(self, questions: Sequence[Question], text: str = "") -> None:
        """Wait for the client's answer."""
        texts = [
            question.question or f"Approve {question.label or question.name or 'the next step'}?"
            for question in questions
        ]
        shown = "\n".join([line for line in (text, *texts) if line])
        parts = _parts(f"{shown}\n{HOW_TO_ANSWER}", {"questions": [_plain(question) for question in questions]})
        await self.updater.requires_input(self.message(*parts))

    def message(self, *parts: types.Part) -> types.Message:
        """Return a message of the agent."""
        return self.updater.new_agent_message(list(parts))


def _parts(text: str, data: dict[str, Any]) -> list[types.Part]:
    parts = [helpers.new_text_part(text)] if text else []
    try:
        return [*parts, helpers.new_data_part(data, "application/json")]
    except ParseError:  # nested deeper than the format allows
        return parts


def _plain(value: Public) -> dict[str, Any]:
    return value.model_dump(mode="json", exclude_none=True)


def _decisions(message: types.Message, pending: Sequence[Pending]) -> dict[str, DecisionBody]:
    """Return the decisions in a message.

    Raises:
        Refusal: It contains no decisions.
    """
    for data in data_in(message.parts):
        if isinstance(data, dict) and "decisions" in data:
            try:
                return ResumeBody.model_validate(data).decisions
            except ValidationError as error:
                raise Refusal(422, "invalid_body", f"The decisions are invalid: {first_problem(error)}.") from error
    waiting = undecided(pending)
    if not waiting:
        return {}
    text = text_of(message).strip()
    if len(waiting) == 1 and waiting[0].kind == "external":
        return {waiting[0].id: DecisionBody(action="answer", value=text)}
    verb, _, reason = text.partition(":")
    match verb.strip().lower():
        case "approve" if not reason:
            return {wait.id: DecisionBody(action="approve") for wait in waiting}
        case "deny":
            # the limit of `DecisionBody`
            decision = DecisionBody(action="deny", reason=reason.strip()[:2_000] or "denied")
            return {wait.id: decision for wait in waiting}
        case _:
            raise Refusal(422, "decisions_missing", "The message does not answer the question.")
