"""`Approval`: a person decides whether a tool may run: once, for the session, or always.

Rules:

1. Deny rules precede allow rules, and both precede asking. A person is asked about a call without a matching rule, even if its
   tool is unknown, but not if its arguments are not JSON, since it cannot run.
2. If no person can answer, the answer is no: there is no asker, it raises an error, or its terminal is closed.
3. An answer is remembered in its scope: `"session"` in the session's state, `"always"` in the set passed as `always`, or in
   this instance. Nothing is global.
4. A rule for one tool must name only arguments of that tool. Otherwise it could never match, so each call of the tool is
   denied: a misspelt deny rule should not let calls pass.
5. It is a guard: it evaluates the call after all editing hooks, so the call runs as it was approved.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableSet
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Literal, TypeAlias, cast

from agentflow._support.logs import ids_of, log_failure, logger
from agentflow._support.shown import one_line
from agentflow._support.validation import is_a
from agentflow.errors import UsageError
from agentflow.hooks.hook import Hook
from agentflow.plugins._calls import ask_once, repeated
from agentflow.plugins._matching import matches
from agentflow.vocabulary.events import HookEvent, PreActing
from agentflow.vocabulary.messages import ToolUseBlock
from agentflow.vocabulary.verdicts import Approve, Deny, Suspend

Choice: TypeAlias = Literal["once", "session", "always", "no"]


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule for calls, created with `Allow` or `Refuse`.

    Attributes:
        tool: A pattern for the tool's name, such as `"read_*"`.
        arguments: Patterns for arguments by name, compared with their text; a missing argument never matches.
        when: A function that takes the call; it must also return true.
        allows: Whether matching calls may run.
        reason: The reason for the model, if the rule refuses.
    """

    tool: str
    arguments: Mapping[str, str] = field(default_factory=dict[str, str])
    when: Callable[[ToolUseBlock], bool] | None = None
    allows: bool = True
    reason: str = ""

    def fits(self, use: ToolUseBlock) -> bool:
        """Return whether the rule matches this call."""
        if not matches((self.tool,), use.name):
            return False
        arguments = use.input
        for name, pattern in self.arguments.items():
            if name not in arguments or not fnmatchcase(_text(arguments[name]), pattern):
                return False
        return self.when is None or self.when(use)


def Allow(tool: str, *, when: Callable[[ToolUseBlock], bool] | None = None, **arguments: str) -> Rule:  # noqa: N802 - reads like a class
    """Create a rule for calls that may run without approval.

    Args:
        tool: A pattern for the tool's name.
        when: A function that takes the call; it must also return true.
        arguments: A pattern for each relevant argument. A `*` matches anything, including `/` and spaces.

    Example:
        >>> Allow("write_file", path="/tmp/*").fits(ToolUseBlock("t1", "write_file", {"path": "/etc/passwd"}))
        False
    """
    return Rule(tool, arguments, when)


def Refuse(  # noqa: N802 - see Allow
    tool: str, reason: str = "", *, when: Callable[[ToolUseBlock], bool] | None = None, **arguments: str
) -> Rule:
    """Create a rule for calls that must not run, even if an `Allow` rule matches.

    Args:
        tool: A pattern for the tool's name.
        reason: The reason for the model.
        when: See `Allow`.
        arguments: See `Allow`.
    """
    return Rule(tool, arguments, when, allows=False, reason=reason)


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str, sort_keys=True)


@dataclass(frozen=True, slots=True)
class ApprovalRequest:
    """The request that an asker shows.

    Attributes:
        agent: The agent's name.
        tool_use: The call.
        session_id: The id of the call's session.
        reason: The reason why approval is needed.
        scope: The scope of `"session"` and `"always"`, such as the tool's name; empty if these answers are not offered.
        choices: The accepted answers.
        settled: Returns whether `"session"` or `"always"`, as the answer to another question, has allowed this call meanwhile.
    """

    agent: str
    tool_use: ToolUseBlock
    session_id: str
    reason: str
    scope: str
    choices: tuple[Choice, ...] = ("once", "session", "always", "no")
    settled: Callable[[], bool] = field(default=lambda: False, repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class ApprovalDecision:
    """An asker's answer.

    Attributes:
        choice: `"once"`, `"session"`, `"always"` or `"no"`.
        reason: The reason for the model, if the choice is `"no"`.
    """

    choice: Choice
    reason: str = ""


Asker: TypeAlias = Callable[
    [ApprovalRequest], "Awaitable[ApprovalDecision | Choice | bool] | ApprovalDecision | Choice | bool"
]
"""Asks a person: a function that takes the request, `async` or not. `True` is `"once"`, `False` is `"no"`."""


@dataclass
class Granted:
    """The scopes that are allowed for a session; stored with the session, as `session_state[Granted]`.

    Attributes:
        scopes: The scopes that were answered with `"session"`.
    """

    __saved_as__ = "agentflow.plugins.approval:Granted"  # the name in stored sessions

    scopes: list[str] = field(default_factory=list[str])


class Approval(Hook):
    """Asks for approval before a tool runs.

    A call that `ToolCache` answers from an earlier equal call of the run needs no approval. If `ToolCache` runs equal calls of
    a round only once, only the first of them needs approval. Deny rules apply to all calls.

    Priority 60 (checks), a guard: it runs after editing hooks. A resumed call that was approved passes, unless a deny rule
    matches.

    Args:
        rules: `Allow(...)` and `Refuse(...)`, in any order.
        ask: Asks a person, such as `TerminalAsker()`. None: a call that no rule allows is refused, or suspended.
        suspend: If true, a call that needs approval is suspended until `agent.resume(session, {id: Approve()})`.
        always: A set of strings that stores the scopes answered with `"always"`; by default they are stored in this instance.

    Example:
        >>> approval = Approval([Allow("add"), Refuse("delete_*", "never delete")])
        >>> model = ScriptedModel([ToolUseBlock("t1", "delete_all"), "I may not."])
        >>> agent = Agent("a", model, tools=[add], hooks=[approval])
        >>> (await agent.call("Delete everything")).text
        'I may not.'
        >>> agent.session().messages[2].text
        'Denied: never delete'
    """

    priority = 60
    guard = True
    on_failure = "deny"
    events = (PreActing,)

    def __init__(
        self,
        rules: Rule | Iterable[Rule] = (),
        *,
        ask: Asker | None = None,
        suspend: bool = False,
        always: MutableSet[str] | None = None,
    ) -> None:
        self.rules = (rules,) if isinstance(rules, Rule) else tuple(rules)
        for rule in self.rules:
            if not is_a(rule, Rule):
                raise UsageError(f"Approval: a rule must be Allow(...) or Refuse(...), not {rule!r:.60}.")
        if ask is not None and suspend:
            raise UsageError(
                "Approval(ask=..., suspend=True): pass either ask= (a person decides now) or suspend= (the call waits)."
            )
        self.ask = ask
        self.suspend = suspend
        self.always: MutableSet[str] = set() if always is None else always

    def on_event(self, event: HookEvent) -> HookEvent | Deny | Awaitable[PreActing | Deny | Suspend]:
        """Allow the call, refuse it, or ask."""
        if not isinstance(event, PreActing):
            return event
        use = event.tool_use
        refusal = self._unmatchable_rule(event, use) or self.refused(use)
        if refusal is not None:
            return Deny(refusal)
        if isinstance(event.approval, Approve) or use.input_error is not None:  # malformed calls never run
            return event
        if self.allowed(use):
            return event
        return self._ask(event, use)

    def _unmatchable_rule(self, event: PreActing, use: ToolUseBlock) -> str | None:
        """Return the reason if a rule for the called tool can never match; None if each names only arguments of the tool."""
        for rule in self.rules:
            if not rule.arguments or rule.tool != use.name:
                continue
            # Unknown tools and tools that accept further arguments cannot be checked.
            spec = next((tool_spec for tool_spec in event.agent.tools if tool_spec.name == use.name), None)
            known: object = None if spec is None else spec.parameters.get("properties")
            if spec is None or not isinstance(known, Mapping) or spec.parameters.get("additionalProperties"):
                continue
            names = cast("Mapping[str, object]", known)
            wrong = sorted(rule.arguments.keys() - names.keys())
            if wrong:
                word = "Allow" if rule.allows else "Refuse"
                return (
                    f"Approval: {word}({use.name!r}, {wrong[0]}=...) can never match, because {use.name} has no argument "
                    f"{wrong[0]!r}. Its arguments: {', '.join(sorted(names)) or 'none'}"
                )
        return None

    async def _ask(self, event: PreActing, use: ToolUseBlock) -> PreActing | Deny | Suspend:
        """Look for a lasting answer or a cached result, and ask if there is neither."""
        scope = self.covers(use)
        granted = event.context.session_state[Granted].scopes

        def settled() -> bool:
            return bool(scope) and (scope in self.always or scope in granted)

        if settled():
            event.context.approve(use.id)
            return event
        if (self.suspend or self.ask is not None) and await repeated(event):
            return event  # the tool does not run: a cached result of this run is used
        if self.suspend:
            return Suspend({"tool": use.name, "input": dict(use.input), "reason": self.reason(use)})
        if self.ask is None:
            return Deny(f"{use.name} needs approval, but there is no asker ({self.reason(use)})")
        choices: tuple[Choice, ...] = ("once", "session", "always", "no") if scope else ("once", "no")
        request = ApprovalRequest(event.agent.name, use, event.session_id, self.reason(use), scope, choices, settled)
        decision = await ask_once(event, lambda: self._decision(request))
        if decision.choice == "no" or decision.choice not in choices:  # an asker could answer more than was offered
            return Deny(decision.reason or f"{use.name} was not approved")
        if decision.choice == "session" and scope not in granted:
            granted.append(scope)
        if decision.choice == "always":
            self.always.add(scope)
        event.context.approve(use.id)  # a tool with `requires_approval` needs no second answer
        return event

    # ---- methods that a subclass may override

    def refused(self, use: ToolUseBlock) -> str | None:
        """Return the reason why the call must not run; None if no deny rule matches."""
        for rule in self.rules:
            if not rule.allows and rule.fits(use):
                return rule.reason or f"{use.name} is not allowed here"
        return None

    def allowed(self, use: ToolUseBlock) -> bool:
        """Return whether the call may run without approval."""
        for rule in self.rules:  # noqa: SIM110 - a generator would double the cost of a rule
            if rule.allows and rule.fits(use):
                return True
        return False

    def covers(self, use: ToolUseBlock) -> str:
        """Return the scope of a lasting answer, as a text to remember; empty: no lasting answers are offered.

        It is empty for a call with a provider's safety checks, because earlier answers did not cover them.
        """
        return "" if use.input.get("pending_safety_checks") else use.name

    def reason(self, use: ToolUseBlock) -> str:
        """Return the reason why approval is needed."""
        return "no rule allows it"

    async def _decision(self, request: ApprovalRequest) -> ApprovalDecision:
        assert self.ask is not None
        name = request.tool_use.name
        try:
            pending: object = self.ask(request)
            answer = await cast("Awaitable[object]", pending) if isinstance(pending, Awaitable) else pending
        except Exception as error:
            log_failure(
                "WARNING", error, "approval of {}: the asker failed, so the call is refused", name, where=request
            )
            return ApprovalDecision("no", f"{name} needs approval, but the asker failed ({type(error).__name__})")
        match answer:
            case ApprovalDecision():
                return answer
            case True:
                return ApprovalDecision("once")
            case False | None:
                return ApprovalDecision("no")
            case "once" | "session" | "always" | "no":
                return ApprovalDecision(cast("Choice", answer))
            case _:
                logger.bind(**ids_of(request)).warning(
                    "approval of {}: the asker answered {!r}, which is not a choice, so the call is refused",
                    one_line(name),
                    answer,
                )
                return ApprovalDecision("no", f"{name} was not approved (the asker's answer was not understood)")
