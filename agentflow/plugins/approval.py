"""`Approval`: a person decides whether a tool may run, once, for the session, or for good.

Rules:

1. Deny rules before allow rules before asking. What no rule names is asked about, unknown tools included; a call whose
   arguments are no JSON is not, as it cannot run.
2. Nobody there to ask means no: no asker, an asker that fails or is interrupted, a terminal that is closed.
3. An answer is remembered where it was given: `"session"` in the session's state, `"always"` in the store that the user passed,
   or in this instance. Nothing is global.
4. It is a guard: it judges the call as all other hooks left it, and what was allowed is what runs.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableSet
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Literal, TypeAlias, cast

from agentflow.errors import UsageError
from agentflow.events import PreActing
from agentflow.ground.logs import ids_of, log_failure, logger
from agentflow.ground.shown import one_line
from agentflow.hooks.hook import Hook
from agentflow.messages import ToolUseBlock
from agentflow.plugins._calls import asked_once, repeated
from agentflow.verdicts import Approve, Deny, Suspend

__all__ = ["Allow", "Approval", "ApprovalRequest", "Asker", "Choice", "Decision", "Granted", "Refuse", "Rule"]

Choice: TypeAlias = Literal["once", "session", "always", "no"]


@dataclass(frozen=True, slots=True)
class Rule:
    """Which calls a rule is about; made by `Allow` and `Refuse`.

    Attributes:
        tool: A pattern for the tool's name, such as `"read_*"`.
        arguments: Patterns for arguments by name, compared with their text; a missing argument never fits.
        when: Has the last word on calls that fit: a function of the call.
        allows: Whether fitting calls may run.
        reason: What the model is told of a refusal.
    """

    tool: str
    arguments: Mapping[str, str] = field(default_factory=dict[str, str])
    when: Callable[[ToolUseBlock], bool] | None = None
    allows: bool = True
    reason: str = ""

    def fits(self, use: ToolUseBlock) -> bool:
        """Whether the rule is about this call."""
        if use.name != self.tool and not fnmatchcase(use.name, self.tool):
            return False
        given = use.input
        for name, pattern in self.arguments.items():
            if name not in given or not fnmatchcase(_text(given[name]), pattern):
                return False
        return self.when is None or self.when(use)


def Allow(tool: str, *, when: Callable[[ToolUseBlock], bool] | None = None, **arguments: str) -> Rule:  # noqa: N802 - a word of the rule language
    """Calls that may run without asking.

    Args:
        tool: A pattern for the tool's name.
        when: A function of the call that must say yes too.
        arguments: A pattern for each argument that matters. A `*` matches anything, `/` and spaces included.

    Example:
        >>> Allow("write_file", path="/tmp/*").fits(ToolUseBlock("t1", "write_file", {"path": "/etc/passwd"}))
        False
    """
    return Rule(tool, arguments, when)


def Refuse(  # noqa: N802
    tool: str, reason: str = "", *, when: Callable[[ToolUseBlock], bool] | None = None, **arguments: str
) -> Rule:
    """Calls that must not run, whatever else says so; the arguments are those of `Allow`, and the reason is for the model."""
    return Rule(tool, arguments, when, allows=False, reason=reason)


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str, sort_keys=True)


@dataclass(frozen=True, slots=True)
class ApprovalRequest:
    """What an asker is asked.

    Attributes:
        agent: The agent's name.
        tool_use: The call.
        session_id: Where it is made.
        why: Why it is asked about.
        scope: What `"session"` and `"always"` would cover, such as the tool's name.
        choices: The answers that count.
        settled: Says whether a lasting answer to another question has allowed this call meanwhile.
    """

    agent: str
    tool_use: ToolUseBlock
    session_id: str
    why: str
    scope: str
    choices: tuple[Choice, ...] = ("once", "session", "always", "no")
    settled: Callable[[], bool] = field(default=lambda: False, repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class Decision:
    """An asker's answer.

    Attributes:
        choice: `"once"`, `"session"`, `"always"` or `"no"`.
        reason: For the model, with `"no"`.
    """

    choice: Choice
    reason: str = ""


Asker: TypeAlias = Callable[[ApprovalRequest], "Awaitable[Decision | Choice | bool] | Decision | Choice | bool"]
"""Asks somebody: a function, `async` or not, of the request. `True` is `"once"`, `False` is `"no"`."""


@dataclass
class Granted:
    """What was allowed for a session; kept with it, as `session_state[Granted]`.

    Attributes:
        scopes: What `"session"` was said to.
    """

    scopes: list[str] = field(default_factory=list[str])


class Approval(Hook):
    """Asks before a tool runs.

    Nobody is asked about a call that `ToolCache` answers with what the same call gave earlier in the run, and of the same calls
    in one round, which it runs once, somebody is asked about the first. Deny rules hold for all of them.

    Priority 60 (checks), a guard: editing hooks have had their say. A resumed call that was approved passes; deny rules hold
    even then.

    Args:
        rules: `Allow(...)` and `Refuse(...)`, in any order.
        ask: Asks somebody, such as `TerminalAsker()`. None: what no rule allows is refused, or suspended.
        suspend: Where nobody can be asked now, end the call and wait: `agent.resume(session, {id: Approve()})`.
        always: Where `"always"` is remembered: a set of texts that the user keeps; this instance by default.

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
        rules: Iterable[Rule] = (),
        *,
        ask: Asker | None = None,
        suspend: bool = False,
        always: MutableSet[str] | None = None,
    ) -> None:
        self.rules = tuple(rules)
        for rule in self.rules:
            if not isinstance(rule, Rule):  # pyright: ignore[reportUnnecessaryIsInstance] - input from outside
                raise UsageError(f"Approval: a rule is Allow(...) or Refuse(...), not {rule!r:.60}.")
        if ask is not None and suspend:
            raise UsageError(
                "Approval(ask=..., suspend=True): either somebody is asked now, or the call waits. Pass one."
            )
        self.ask = ask
        self.suspend = suspend
        self.always: MutableSet[str] = set() if always is None else always

    def on_event(self, event: PreActing) -> PreActing | Deny | Awaitable[PreActing | Deny | Suspend]:  # pyright: ignore[reportIncompatibleMethodOverride] - it listens to one event
        """Let the call pass, refuse it, or ask."""
        use = event.tool_use
        refusal = self.refused(use)
        if refusal is not None:
            return Deny(refusal)
        if isinstance(event.approval, Approve) or use.input_error is not None:  # malformed: it will not run anyway
            return event
        if self.allowed(use):
            return event
        return self._asked(event, use)

    async def _asked(self, event: PreActing, use: ToolUseBlock) -> PreActing | Deny | Suspend:
        """Whether somebody has allowed it, or does now."""
        scope = self.covers(use)
        granted = event.context.session_state[Granted].scopes

        def settled() -> bool:
            return bool(scope) and (scope in self.always or scope in granted)

        if settled():
            event.context.approve(use.id)
            return event
        if (self.suspend or self.ask is not None) and await repeated(event):
            return event  # the tool does not run: what it gave in this run is given again
        if self.suspend:
            return Suspend({"tool": use.name, "input": dict(use.input), "why": self.why(use)})
        if self.ask is None:
            return Deny(f"{use.name} needs an approval, and nobody can be asked ({self.why(use)})")
        choices: tuple[Choice, ...] = ("once", "session", "always", "no") if scope else ("once", "no")
        request = ApprovalRequest(event.agent.name, use, event.session_id, self.why(use), scope, choices, settled)
        decision = await asked_once(event, lambda: self._decision(request))
        if decision.choice == "no" or decision.choice not in choices:
            return Deny(decision.reason or f"{use.name} was not approved")
        if decision.choice == "session" and scope not in granted:
            granted.append(scope)
        if decision.choice == "always":
            self.always.add(scope)
        event.context.approve(use.id)
        return event

    # ---- what a subclass may say in its own words

    def refused(self, use: ToolUseBlock) -> str | None:
        """Why the call must not run; None where no deny rule fits."""
        for rule in self.rules:
            if not rule.allows and rule.fits(use):
                return rule.reason or f"{use.name} is not allowed here"
        return None

    def allowed(self, use: ToolUseBlock) -> bool:
        """Whether the call may run without asking."""
        for rule in self.rules:  # noqa: SIM110 - a generator costs as much as a rule
            if rule.allows and rule.fits(use):
                return True
        return False

    def covers(self, use: ToolUseBlock) -> str:
        """What a lasting answer covers, as a text that can be kept; empty: such answers are not offered."""
        return use.name

    def why(self, use: ToolUseBlock) -> str:
        """Why it is asked about."""
        return "no rule allows it"

    async def _decision(self, request: ApprovalRequest) -> Decision:
        assert self.ask is not None
        name = request.tool_use.name
        try:
            asked = self.ask(request)
            answer = cast("object", await asked if isinstance(asked, Awaitable) else asked)
        except asyncio.CancelledError:
            raise
        except Exception as error:
            log_failure(
                "WARNING", error, "approval of {}: the asker failed, so the call is refused", name, where=request
            )
            return Decision("no", f"{name} needs an approval, and nobody could be asked ({type(error).__name__})")
        if isinstance(answer, Decision):
            return answer
        if answer is True:
            return Decision("once")
        if answer is False or answer is None:
            return Decision("no")
        match answer:
            case "once" | "session" | "always" | "no":
                return Decision(cast("Choice", answer))
            case _:
                logger.bind(**ids_of(request)).warning(
                    "approval of {}: the asker answered {!r}, which is no choice, so the call is refused",
                    one_line(name),
                    answer,
                )
                return Decision("no", f"{name} was not approved (the asker's answer was not understood)")
