"""`Updates`: the events of a session's calls as the protocol's updates.

Rules:

1. A tool call is announced once, then updated; a call that waits for a decision becomes `pending`.
2. Text is sent as it is streamed. A reply that was not streamed (a hook's answer, a refusal), or that hooks have extended, is
   sent when the call ends. Sent text cannot be retracted.
3. Paths are absolute, as the protocol requires.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias, cast, get_args

from agentflow._support.logs import log_failure
from agentflow._support.shown import one_line, printable
from agentflow.serve.acp.content import block_of
from agentflow.serve.acp.sdk import helpers, schema
from agentflow.serve.acp.workspace import Diff, Plan, Workspace
from agentflow.vocabulary.context import AgentView
from agentflow.vocabulary.events import ActingChunk, HookEvent, PostActing, PreActing, PreReasoning, ReasoningChunk
from agentflow.vocabulary.messages import Msg, Reply, TextBlock, ToolResultBlock, ToolUseBlock
from agentflow.vocabulary.verdicts import Suspend

Preview: TypeAlias = Callable[[ToolUseBlock, Workspace], "Diff | None"]
"""Returns the change that a tool call would make, before it runs; None if it changes no file."""
Update: TypeAlias = (
    schema.UserMessageChunk
    | schema.AgentMessageChunk
    | schema.AgentThoughtChunk
    | schema.ToolCallStart
    | schema.ToolCallProgress
    | schema.AgentPlanUpdate
    | schema.UsageUpdate
)
Shown: TypeAlias = schema.ContentToolCallContent | schema.FileEditToolCallContent | schema.TerminalToolCallContent

_KINDS: frozenset[str] = frozenset(get_args(schema.ToolKind))
_MAX_TITLE = 200
_MAX_PROGRESS = 8_000
"""Characters of a tool's chunks; each update contains all of them, since it replaces the previous one."""


class _Call:
    """A tool call that was announced."""

    def __init__(self, kind: schema.ToolKind) -> None:
        self.kind: schema.ToolKind = kind
        self.diffs: list[Shown] = []
        self.progress = ""

    def shown(self, *more: Shown) -> list[Shown]:
        """Return the call's content: its diffs, then `more`, or without `more` its progress."""
        text = self.progress
        progress: list[Shown] = [helpers.tool_content(helpers.text_block(text))] if text and not more else []
        return [*self.diffs, *progress, *more]


class Updates:
    """The updates of one session.

    Args:
        workspace: The editor's project.
        preview: See `EditorAgent`.
    """

    def __init__(self, workspace: Workspace, preview: Preview | None) -> None:
        self._workspace = workspace
        self._preview = preview
        self._calls: dict[str, _Call] = {}
        self._text = ""  # the part of the current reply that was sent

    def of(self, event: HookEvent) -> Iterator[Update]:
        """Yield the updates for an event."""
        match event:
            case ReasoningChunk(incremental_chunk=chunk, restart=restart):
                if restart:
                    self._text = ""
                if chunk.thinking:
                    yield helpers.update_agent_thought_text(chunk.thinking)
                text = chunk.text or "".join(block.text for block in chunk.blocks if isinstance(block, TextBlock))
                if text:
                    self._text += text
                    yield helpers.update_agent_message_text(text)
            case PreReasoning():
                self._text = ""
            case PreActing():
                yield self._started(event)
            case ActingChunk():
                yield from self._progress(event)
            case PostActing():
                yield self._ended(event.tool_use.id, event.tool_result)
            case _:
                pass

    def ending(self, reply: Reply) -> Iterator[Update]:
        """Yield the remaining text of a reply, after the streamed text."""
        text, self._text = reply.text, self._text
        text = text.removeprefix(self._text)
        if text.strip():
            yield helpers.update_agent_message_text(text)
        for block in reply.data:
            yield helpers.update_agent_message(block_of(block))
        self._text = ""
        # The tool calls of a suspended call are kept: when it continues, they are announced already.
        self._calls = {key: call for key, call in self._calls.items() if reply.outcome == "suspended"}

    def again(self, message: Msg, states: Mapping[str, ToolResultBlock], agent: AgentView) -> Iterator[Update]:
        """Yield a stored message, for a session that is loaded."""
        if message.role == "user" and message.metadata.get("synthetic") is None:
            for block in (*([TextBlock(message.text)] if message.text else []), *message.data):
                yield helpers.update_user_message(block_of(block))
        elif message.role == "assistant":
            if message.thinking:
                yield helpers.update_agent_thought_text(message.thinking)
            for block in (*([TextBlock(message.text)] if message.text else []), *message.data):
                yield helpers.update_agent_message(block_of(block))
            for use in message.tool_uses:
                yield self._announced(use, agent, "pending", None)
                if use.id in states:
                    yield self._ended(use.id, states[use.id])

    def request(self, use: ToolUseBlock, agent: AgentView, reason: str) -> schema.ToolCallUpdate:
        """Return a call for a question to the user: its diff, the reason and all arguments."""
        call = self._calls.get(use.id) or self._added(use, agent)
        text = f"{reason}\n{_arguments(use)}" if reason else _arguments(use)
        return schema.ToolCallUpdate(
            tool_call_id=use.id,
            title=_title(use),
            kind=call.kind,
            status="pending",
            content=call.shown(helpers.tool_content(helpers.text_block(text))),
            locations=self._locations(use),
            raw_input=dict(use.input),
        )

    # ---- tool calls

    def _started(self, event: PreActing) -> Update:
        status: schema.ToolCallStatus = "pending" if isinstance(event.verdict, Suspend) else "in_progress"
        return self._announced(event.tool_use, event.agent, status, self._calls.get(event.tool_use.id))

    def _announced(
        self, use: ToolUseBlock, agent: AgentView, status: schema.ToolCallStatus, known: _Call | None
    ) -> Update:
        if known is not None:
            return helpers.update_tool_call(use.id, status=status, raw_input=dict(use.input))
        call = self._added(use, agent)
        return helpers.start_tool_call(
            use.id,
            _title(use),
            kind=call.kind,
            status=status,
            content=call.shown() or None,
            locations=self._locations(use),
            raw_input=dict(use.input),
        )

    def _added(self, use: ToolUseBlock, agent: AgentView) -> _Call:
        call = self._calls[use.id] = _Call(_kind(use, agent))
        if self._preview is not None and use.input_error is None:
            try:
                diff = self._preview(use, self._workspace)
            except Exception as error:  # a preview reads files that a model names
                log_failure("WARNING", error, "ACP: the preview of {} failed", one_line(use.name))
            else:
                if diff is not None:
                    call.diffs.append(self._diff(diff))
        if call.diffs and call.kind == "other":
            call.kind = "edit"
        return call

    def _progress(self, event: ActingChunk) -> Iterator[Update]:
        call = self._calls.get(event.tool_use.id)
        match event.chunk:
            case Plan(steps=steps):
                entries = [
                    helpers.plan_entry(step.content, status=step.status, priority=step.priority) for step in steps
                ]
                yield helpers.update_plan(entries)
            case _ if call is None:
                pass
            case Diff() as diff:
                call.diffs.append(self._diff(diff))
                yield helpers.update_tool_call(event.tool_use.id, content=call.shown())
            case str() as text:
                call.progress = (call.progress + text)[-_MAX_PROGRESS:]
                yield helpers.update_tool_call(event.tool_use.id, content=call.shown())
            case _:
                pass

    def _ended(self, tool_use_id: str, result: ToolResultBlock) -> Update:
        if result.state == "suspended":
            return helpers.update_tool_call(tool_use_id, status="pending")
        call = self._calls.pop(tool_use_id, None) or _Call("other")
        content = result.content
        blocks = [TextBlock(content)] if isinstance(content, str) else list(content)
        shown = [
            helpers.tool_content(block_of(block)) for block in blocks if not isinstance(block, TextBlock) or block.text
        ]
        status: schema.ToolCallStatus = "failed" if result.is_error else "completed"
        return helpers.update_tool_call(tool_use_id, status=status, content=call.shown(*shown))

    # ---- paths

    def _diff(self, diff: Diff) -> Shown:
        return helpers.tool_diff_content(self._workspace.resolve(diff.path), diff.new_text, diff.old_text)

    def _locations(self, use: ToolUseBlock) -> list[schema.ToolCallLocation] | None:
        path: object = use.input.get("path")
        if not isinstance(path, str) or not path or "\0" in path:
            return None
        line: object = use.input.get("line")
        return [
            schema.ToolCallLocation(
                path=self._workspace.resolve(path),
                # the protocol has 32 bits; a bool is an int too
                line=line if type(line) is int and 0 <= line < 2**32 else None,
            )
        ]


def _kind(use: ToolUseBlock, agent: AgentView) -> schema.ToolKind:
    """Return a call's kind: a tag of its tool that is a kind, or one that fits the tool's type."""
    spec = next((spec for spec in agent.tools if spec.name == use.name), None)
    if spec is None:
        return "other"
    named = sorted(spec.tags & _KINDS)
    if named:
        return cast("schema.ToolKind", named[0])
    return "other" if spec.writes else "search" if spec.type == "research" else "read"


def _title(use: ToolUseBlock) -> str:
    """Return the tool's name and its first short argument, on one line."""
    first = next((value for value in use.input.values() if isinstance(value, str)), "")
    text = one_line(f"{use.name}: {first}" if first else use.name)
    return text if len(text) <= _MAX_TITLE else f"{text[:_MAX_TITLE]}…"


def _arguments(use: ToolUseBlock) -> str:
    """Return all arguments as text in which nothing is hidden, as a code block that no argument can close."""
    rows = [f"{name}: {_shown(value)}" for name, value in use.input.items()]
    text = printable("\n".join(rows), exact=True)
    fence = "```"
    while fence in text:
        fence += "`"
    return f"{fence}\n{text}\n{fence}" if rows else ""


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
