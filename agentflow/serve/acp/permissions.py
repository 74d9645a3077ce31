"""Permissions: a call that waits for a person becomes a question in the editor; lasting answers apply to the session.

Rules:

1. Each pending call is one question. Only an option that was offered counts; everything else is a refusal.
2. A lasting answer is offered where its scope is known: for a tool with `requires_approval`, and for a hook of the plugin
   `Approval`. It applies to the session and is stored with it. Deny rules and other hooks still apply.
3. Cancelling a question cancels the prompt: the call is refused, and the model is not called again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from agentflow.agent.agent import Agent
from agentflow.hooks.hook import Hook, HookResult
from agentflow.plugins.approval.hook import Approval, Granted
from agentflow.serve.acp.sdk import schema
from agentflow.vocabulary.events import HookEvent, PostToolRound, PreActing, PreReasoning
from agentflow.vocabulary.messages import Pending
from agentflow.vocabulary.verdicts import Deny, Stop

CANCELLED = "The user cancelled the prompt."
"""The reason for the calls that a cancellation refuses."""
READ_ONLY = "read-only"
"""The id of the mode in which no tool changes anything."""
_OPTIONS: Mapping[str, tuple[str, schema.PermissionOptionKind]] = {
    "allow": ("Allow", "allow_once"),
    "allow_always": ("Always allow {} in this session", "allow_always"),
    "reject": ("Reject", "reject_once"),
    "reject_always": ("Always reject {} in this session", "reject_always"),
}


@dataclass
class Refused:
    """The scopes that the user refused for a session; stored with it.

    Attributes:
        scopes: The scopes, as in `Granted`.
    """

    __saved_as__ = "agentflow.serve.acp:Refused"  # the name in stored sessions

    scopes: list[str] = field(default_factory=list[str])


class Permissions(Hook):
    """Apply a session's mode and its lasting answers to each tool call, after all editing hooks.

    Args:
        agent: The agent.
        mode: The session's mode.
        always: The lasting answers of this resume: for each pending key, whether the call is allowed, and the scope.
    """

    priority = 10
    guard = True
    on_failure = "deny"
    events = (PreActing,)

    def __init__(self, agent: Agent, mode: str, always: Mapping[str, tuple[bool, str]]) -> None:
        self._agent = agent
        self._mode = mode
        self._always = always

    def on_event(self, event: HookEvent) -> HookResult:
        """Refuse, approve, or leave the call to the other hooks."""
        if not isinstance(event, PreActing):
            return event
        use, state = event.tool_use, event.context.session_state
        answer = self._always.get(use.id)
        if answer is not None:
            scopes = (state[Granted] if answer[0] else state[Refused]).scopes
            if answer[1] not in scopes:
                scopes.append(answer[1])
        refused = state[Refused].scopes
        if use.name in refused or any(hook.covers(use) in refused for hook in approvals(self._agent)):
            return Deny(f"The user refuses {use.name} in this session.")
        if self._mode == READ_ONLY and any(spec.writes for spec in event.agent.tools if spec.name == use.name):
            return Deny(f"The session is read-only, and {use.name} can change something.")
        if use.name in state[Granted].scopes:
            event.context.approve(use.id)
        return event


class CancelledRound(Hook):
    """End a resumed call without running anything: the user has cancelled the prompt."""

    priority = 0
    guard = True
    events = (PreActing, PostToolRound)

    def on_event(self, event: HookEvent) -> HookResult:
        """Refuse the remaining calls of the round, then stop the call."""
        match event:
            case PreActing():
                return Deny(CANCELLED)
            case PostToolRound():
                return Stop(CANCELLED)
            case _:
                return event


class ChosenModel(Hook):
    """Use the model that a session's user chose.

    Args:
        model: The model's name.
    """

    priority = 0
    events = (PreReasoning,)

    def __init__(self, model: str) -> None:
        self._model = model

    def on_event(self, event: HookEvent) -> HookResult:
        """Set the model."""
        if isinstance(event, PreReasoning):
            event.model = self._model
        return event


def approvals(agent: Agent) -> list[Approval]:
    """Return the agent's hooks of the plugin `Approval`."""
    return [hook for hook in agent.hooks if isinstance(hook, Approval)]


def scope_of(wait: Pending, agent: Agent) -> str:
    """Return the scope of a lasting answer; empty if none can be given."""
    use = wait.tool_use
    if use is None or wait.source:  # a sub-agent's call has a session of its own
        return ""
    if wait.hook == "requires_approval":
        return use.name
    named = [hook for hook in approvals(agent) if hook.name == wait.hook]
    return named[0].covers(use) if len(named) == 1 else ""


def options_for(scope: str) -> list[schema.PermissionOption]:
    """Return the answers that are offered."""
    return [
        schema.PermissionOption(option_id=key, name=name.format(scope), kind=kind)
        for key, (name, kind) in _OPTIONS.items()
        if scope or not key.endswith("_always")
    ]


def reason_of(wait: Pending) -> str:
    """Return a hook's question or reason."""
    request = wait.request
    if isinstance(request, Mapping):
        for key in ("question", "reason"):
            text = cast("Mapping[str, Any]", request).get(key)
            if isinstance(text, str) and text:
                return text
    return request if isinstance(request, str) else ""
