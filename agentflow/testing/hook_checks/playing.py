"""Play a scene with hooks, with calls or streams, and record the outcome in a comparable form."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from typing import Literal, TypeAlias

from agentflow.hooks.hook import Hook
from agentflow.loop.session import FullSession
from agentflow.loop.states import State
from agentflow.reactive import Flux
from agentflow.testing.hook_checks.scenes import Scene, SceneStage
from agentflow.vocabulary.events import CallEnded, HookEvent, PostCall
from agentflow.vocabulary.messages import (
    DataBlock,
    Msg,
    Pending,
    Reply,
    ServerToolBlock,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
    undecided,
)
from agentflow.vocabulary.ports.model import ModelRequest
from agentflow.vocabulary.verdicts import Answer, Approve, Deny, Resolution

Path: TypeAlias = Literal["called", "streamed"]
PATHS: tuple[Path, ...] = ("called", "streamed")
_ADDRESS = re.compile(r"0x[0-9a-f]+")  # differs between equal objects
_RESUMES = 4  # a hook could suspend a call again each time


@dataclass(slots=True)
class PlayResult:
    """The outcome of playing a scene; its fields are compared one by one.

    Attributes:
        outcomes: How each call ended: the outcome, or the error's type and text.
        replies: The text of each reply; empty if unknown, and then not compared.
        history: The session's messages, as text.
        requests: The requests to the model, as text.
        executed: The tool calls that were executed.
    """

    outcomes: list[str] = field(default_factory=list[str])
    replies: list[str] = field(default_factory=list[str])
    history: list[str] = field(default_factory=list[str])
    requests: list[str] = field(default_factory=list[str])
    executed: list[str] = field(default_factory=list[str])

    def differences(self, other: PlayResult) -> dict[str, str]:
        """Return the fields that differ, each with the first difference."""
        found: dict[str, str] = {}
        for name in (f.name for f in fields(self)):
            ours: list[str] = getattr(self, name)
            theirs: list[str] = getattr(other, name)
            for n in range(max(len(ours), len(theirs))):
                one = ours[n] if n < len(ours) else "(nothing)"
                two = theirs[n] if n < len(theirs) else "(nothing)"
                if one != two and not (name == "replies" and "" in (one, two)):
                    found[name] = f"{name}[{n}]: {_around(one, two)!r} and {_around(two, one)!r}"
                    break
        return found


def _around(text: str, other: str) -> str:
    """Return the part of a text around its first difference from another text."""
    same = next((n for n, (a, b) in enumerate(zip(text, other, strict=False)) if a != b), min(len(text), len(other)))
    start = max(0, same - 35)
    return ("..." if start else "") + text[start : start + 70] + ("..." if start + 70 < len(text) else "")


def message_text(msg: Msg) -> str:
    """Format a message without its id."""
    parts: list[str] = []
    for block in msg.content:
        match block:
            case TextBlock(text=text):
                parts.append(text)
            case ThinkingBlock(text=text):
                parts.append(f"<{text}>")
            case ToolUseBlock():
                parts.append(f"[{block.id}:{block.name} {block.raw}]")
            case ToolResultBlock():
                parts.append(f"({block.tool_use_id} {block.state}: {block.text})")
            case ServerToolBlock():
                parts.append(f"[{block.id}:{block.name} {block.json}]")
            case DataBlock():
                parts.append(f"[{block.media_type} {block.data or block.url}]")
    return _ADDRESS.sub("0x", f"{msg.role}: {' '.join(parts)}")


def _request_text(request: ModelRequest) -> str:
    tools = ",".join(spec.name for spec in request.tools)
    return f"{request.model} {request.options!r} tools={tools} " + " | ".join(
        message_text(msg) for msg in request.messages
    )


async def play(
    scene: Scene,
    job: int,
    path: Path,
    hooks: Sequence[Hook],
    deps: object,
    errors: Callable[[BaseException], None] | None = None,
    stage: SceneStage | None = None,
    *,
    continue_after_failure: bool = True,
) -> PlayResult:
    """Play a scene as one job, and return the outcome.

    Args:
        scene: The scene.
        job: The job's number.
        path: Whether the calls are streamed.
        hooks: The hooks, including the one under test.
        deps: The caller's `deps=`.
        errors: Called with the exception of a failed call.
        stage: The stage to use; by default, a new one.
        continue_after_failure: Whether to make the next call after a failed one; if False, the failure is raised.
    """
    stage = stage or SceneStage(scene, job, hooks)
    played = PlayResult()
    with stage:
        session = FullSession(f"session {job}", stage.history())
        call_deps = None if scene.without_deps else deps
        for n in range(scene.calls):
            text = f"Job {job}, call {n}: please, for ada{job}@example.org."
            try:
                await _call(stage, session, path, text, call_deps, played)
            except Exception as error:
                played.outcomes.append(_ADDRESS.sub("0x", f"{type(error).__name__}: {error}"))
                played.replies.append("")
                if errors is not None:
                    errors(error)
                if not continue_after_failure:
                    raise
            await asyncio.sleep(0)  # raises a cancellation that was requested at the very end
    played.history = [message_text(msg) for msg in session.messages]
    played.requests = [_request_text(request) for request in stage.model.requests]
    played.executed = sorted(stage.executed)  # concurrent tools can start in any order
    return played


async def _call(
    stage: SceneStage, session: FullSession, path: Path, text: str, deps: object, played: PlayResult
) -> None:
    agent = stage.agent
    if path == "called":
        _record_reply(await agent.call(text, session=session, deps=deps), played)
    else:
        _record_reply(await _read_stream(agent.stream(text, session=session, deps=deps)), played)
    for attempt in range(_RESUMES):
        if session.machine.state is not State.SUSPENDED:
            return
        decisions = {p.id: _decision(p, attempt) for p in undecided(session.pending)}
        if path == "called":
            _record_reply(await agent.resume(session, decisions, deps=deps), played)
        else:
            _record_reply(await _read_stream(agent.resume_stream(session, decisions, deps=deps)), played)


def _decision(pending: Pending, attempt: int) -> Resolution:
    """Return another kind of decision at each attempt, since a hook may suspend the call again after an approval."""
    if attempt == 0:
        return Approve()
    return Answer("given by hand") if attempt == 1 else Deny("no")


async def _read_stream(stream: Flux[HookEvent]) -> tuple[str, str]:
    reply = outcome = ""
    async with stream as events:
        async for event in events:
            if isinstance(event, PostCall) and event.source == "":
                reply = event.final_message.text
            elif isinstance(event, CallEnded) and event.source == "":
                outcome = event.outcome
    return outcome, reply


def _record_reply(reply: Reply | tuple[str, str], played: PlayResult) -> None:
    outcome, text = (reply.outcome, reply.text) if isinstance(reply, Reply) else reply
    played.outcomes.append(outcome)
    played.replies.append(text)
