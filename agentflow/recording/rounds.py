"""A structured view of a run: calls, their rounds, and the tool calls of each."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from agentflow.recording.entries import EventEntry, HookEntry
from agentflow.recording.fields import DecisionData
from agentflow.recording.log import RunLog, usage_of
from agentflow.vocabulary.specs import Usage

__all__ = ["CallView", "RoundView", "ToolView", "calls_of"]


@dataclass(slots=True, kw_only=True)
class ToolView:
    """A tool call.

    Attributes:
        id: Its id.
        name: The tool, after any renaming by a hook.
        input: The arguments.
        state: The result's state; empty if the call has not finished.
        text: The text of the result.
        decided: A hook's decision on it, with the hook's name.
        hooks: The hooks that changed it or its result.
    """

    id: str
    name: str
    input: Any
    state: str = ""
    text: str = ""
    duration_ms: float = 0.0
    decided: str = ""
    hooks: list[str] = field(default_factory=list[str])


@dataclass(slots=True, kw_only=True)
class RoundView:
    """A round: the model's request and reply, and the tool calls.

    Attributes:
        number: From 1.
        request: The messages of the request, as `role: text`.
        reply: The reply, after the hooks.
        reply_ref: The ref of that message.
        decided: A hook's decision on the request or the reply, with the hook's name.
        hooks: The hooks that changed request or reply.
    """

    number: int
    model: str = ""
    request: list[str] = field(default_factory=list[str])
    reply: str = ""
    reply_ref: str = ""
    decided: str = ""
    hooks: list[str] = field(default_factory=list[str])
    tools: list[ToolView] = field(default_factory=list[ToolView])
    usage: Usage = field(default_factory=Usage)
    duration_ms: float = 0.0


@dataclass(slots=True, kw_only=True)
class CallView:
    """A call.

    Attributes:
        source: The path of sub-agent names; empty at the top.
        parent: The calling call's id; empty at the top.
        input: The input, after the hooks.
        outcome: The outcome; empty if the log breaks off.
        breaks_off: The event after which the log breaks off; empty if the call has ended.
        usage: The usage of the whole call; if the log breaks off, the sum of its rounds.
    """

    call: str
    agent: str
    source: str = ""
    parent: str = ""
    input: str = ""
    reply: str = ""
    outcome: str = ""
    breaks_off: str = "its start"
    error: str = ""
    decided: str = ""
    hooks: list[str] = field(default_factory=list[str])
    rounds: list[RoundView] = field(default_factory=list[RoundView])
    usage: Usage = field(default_factory=Usage)
    duration_ms: float = 0.0


def calls_of(log: RunLog) -> list[CallView]:
    """List the calls of a log, in the order in which they started."""
    return [_ViewBuilder(log, call).view() for call in log.calls]


class _ViewBuilder:
    def __init__(self, log: RunLog, call: str) -> None:
        begun = log.calls[call]
        self._log = log
        self._call = call
        parent = "" if begun.parent is None else begun.parent.call
        self._view = CallView(call=call, agent=begun.agent, source=begun.source, parent=parent)
        self._rounds: dict[int, RoundView] = {}
        self._tools: dict[str, ToolView] = {}

    def view(self) -> CallView:
        for entry in self._log.entries:
            if getattr(entry, "call", None) != self._call:
                continue
            if isinstance(entry, EventEntry):
                self._event(entry)
            elif isinstance(entry, HookEntry) and entry.via != "shadow":
                self._hook(entry)
        self._view.rounds = [self._rounds[number] for number in sorted(self._rounds)]
        if self._view.breaks_off:
            self._view.outcome = ""
            self._view.usage = Usage.total([one.usage for one in self._view.rounds])
        return self._view

    def _round(self, number: int) -> RoundView:
        return self._rounds.setdefault(number, RoundView(number=number))

    def _said(self, ref: str) -> str:
        msg = self._log.message(ref)
        calls = " ".join(f"[{use.name} {use.raw}]" for use in msg.tool_uses)
        results = " ".join(f"[{result.name}: {result.state}: {result.text}]" for result in msg.tool_results)
        return " ".join(part for part in ("" if results else msg.text, calls, results) if part)

    def _event(self, entry: EventEntry) -> None:
        fields, view, log = entry.fields, self._view, self._log
        decided = _decided(entry.decision)
        ended = entry.type == "CallEnded"
        view.breaks_off = "" if ended else f"{entry.type}, round {entry.iteration}" if entry.iteration else entry.type
        match entry.type:
            case "PreCall":
                view.input = "\n".join(self._said(ref) for ref in log.messages(entry))
                view.decided = decided
            case "PreReasoning":
                one = self._round(entry.iteration)
                one.request = [f"{log.message(ref).role}: {self._said(ref)}" for ref in log.messages(entry)]
                one.decided = decided or one.decided
            case "PostReasoning":
                one = self._round(entry.iteration)
                one.reply_ref = entry.ref("reasoning_result")
                one.reply = self._said(one.reply_ref)
                one.usage = usage_of(fields.get("usage"))
                one.model, one.duration_ms = fields.get("model") or "", fields.get("duration_ms", 0.0)
                one.decided = decided or one.decided
            case "PreToolRound" | "PostToolRound":
                self._round(entry.iteration).decided = decided or self._round(entry.iteration).decided
            case "PreActing":
                tool = self._tool(entry, entry.ref("tool_use"))
                tool.decided = decided
            case "PostActing":
                tool = self._tool(entry, entry.ref("tool_use"))
                result = log.tool_result(entry.ref("tool_result"))
                tool.state, tool.text, tool.duration_ms = result.state, result.text, fields.get("duration_ms", 0.0)
                tool.decided = tool.decided or decided
            case "PostCall":
                view.reply, view.outcome = self._said(entry.ref("final_message")), fields.get("outcome", "completed")
                view.duration_ms = fields.get("duration_ms", 0.0)
                view.decided = view.decided or decided
            case "CallEnded":
                view.outcome = fields.get("outcome", "completed")
                view.usage = usage_of(fields.get("usage"))
                if "error" in fields:
                    view.error = f"{fields['error']['type']}: {fields['error'].get('message', '')}"
            case _:
                pass

    def _tool(self, entry: EventEntry | HookEntry, ref: str) -> ToolView:
        use = self._log.tool_use(ref)
        found = self._tools.get(use.id)
        if found is None:
            found = self._tools[use.id] = ToolView(id=use.id, name=use.name, input=dict(use.input))
            self._round(entry.iteration).tools.append(found)
        found.name, found.input = use.name, dict(use.input)
        return found

    def _hook(self, entry: HookEntry) -> None:
        if not (entry.changes or entry.verdict or entry.error):
            return
        if entry.event in ("PreActing", "PostActing") and entry.tool_use is not None:
            hooks = self._tool(entry, entry.tool_use).hooks
        elif entry.event in ("PreReasoning", "PostReasoning", "PreToolRound", "PostToolRound"):
            hooks = self._round(entry.iteration).hooks
        else:
            hooks = self._view.hooks
        if entry.hook not in hooks:
            hooks.append(entry.hook)


def _decided(decision: DecisionData | None) -> str:
    if decision is None:
        return ""
    said = decision.get("verdict")
    if said is None:
        return f"{decision['hook']} failed"
    carried = next((value for name, value in said.items() if name != "verdict"), None)
    return f"{decision['hook']} said {said['verdict']}" + (
        f" ({carried})" if isinstance(carried, str) and carried else ""
    )
