"""A tool call up to its verdict: its state, its `PreActing` chain, and approvals.

Rules:

1. A decision that was committed before a crash is not made again.
2. No person is asked to approve a call that would not run: if its arguments are invalid, the model must fix them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Literal, cast

from agentflow.errors import ToolArgumentError
from agentflow.hooks.hook_set import FullHookSet
from agentflow.loop.run import RunBase
from agentflow.loop.tool_call.attempts import Hold
from agentflow.tools.tool import FullTool
from agentflow.vocabulary.events import Event, OnACall, PreActing
from agentflow.vocabulary.facts import ToolDecided
from agentflow.vocabulary.messages import Pending, ToolResultBlock, ToolUseBlock
from agentflow.vocabulary.specs import ToolType
from agentflow.vocabulary.verdicts import Approve, Resolution, Suspend

__all__ = ["Vetted"]


class Vetted:
    """A tool call and its state.

    Args:
        run: The agent's call.
        use: The call as the model requested it.
        index: Its position in the round.
    """

    __slots__ = (
        "approval",
        "asked",
        "attempt",
        "began",
        "broken",
        "delivered",
        "event",
        "halted",
        "holding",
        "index",
        "inner",
        "opened",
        "original",
        "pending",
        "recovers",
        "result",
        "run",
        "scope",
        "shelved",
        "stop",
        "tap",
        "tool",
        "use",
        "value",
        "verdict",
        "vetted",
        "waited",
    )

    def __init__(self, run: RunBase, use: ToolUseBlock, index: int) -> None:
        self.run = run
        self.original = use
        self.use = use
        self.tool: FullTool[..., Any] | None = run.config.tools.get(use.name)
        self.index = index
        self.approval: Resolution | None = None
        self.inner: Mapping[str, Resolution] | None = None
        self.recovers = False
        self.attempt = 0
        if run.resuming or run.machine.started:
            self._restore()
        self.asked = 0
        self.began: float | None = None
        self.waited = 0.0
        self.opened = False
        self.vetted = False
        self.shelved = False
        self.halted = False
        self.event: PreActing | None = None
        self.verdict: OnACall | None = None
        self.result: ToolResultBlock | None = None
        self.pending: tuple[Pending, ...] = ()
        self.stop: str | None = None
        self.scope: FullHookSet | None = None
        self.broken: Exception | None = None
        self.delivered = False
        self.holding: tuple[Hold, ...] = ()
        self.value: object = None
        self.tap: Callable[[object], Awaitable[None]] | None = None

    def _restore(self) -> None:
        """Restore decisions on the call, and attempts that started before its agent's call was continued."""
        run, call = self.run, self.original.id
        started = run.machine.started
        if run.resuming:
            self.approval = run.decisions.get(call)
            self.inner = run.decided_inside.get(call)
            if self.inner is not None and call not in started:  # a sub-agent in it has decisions, so it continues
                self.approval = Approve()
        if call in started:
            self.recovers, self.attempt = True, started[call]

    @property
    def type(self) -> ToolType:
        """The type of the tool after hooks; an unknown tool counts as a write tool."""
        return "write" if self.tool is None else self.tool.type

    def _call(self, use: ToolUseBlock) -> None:
        """Set the current call and its tool."""
        self.use = use
        self.tool = self.run.config.tools.get(use.name)

    async def vet(self) -> None:
        """Pass the call through its Pre chain, unless a decision is committed."""
        run, use, approval = self.run, self.use, self.approval
        events = run.events
        committed = run.machine.decision_on(use.id) if run.machine.decided else None
        if committed is not None:
            self._call(committed.tool_use)
            self.verdict = cast("OnACall | None", committed.verdict)
            self.scope = run.scope_of(self.tool)
            self.opened = self.vetted = True
            return
        if approval is not None and isinstance(approval, Approve) and approval.input is not None:
            self.use = use = use.replace(input=approval.input)
        self.opened = True
        hook = ""
        tool = self.tool
        scope = self.scope = run.scope_of(tool) if tool is not None and (tool.hooks or tool.tags) else None
        emitted = events.fire(PreActing, (use, approval), scope)
        if emitted is None or isinstance(emitted, Event):
            event = emitted
        else:
            since = run.monotonic()
            try:
                event = await emitted
            finally:
                self.count_wait(since)
        if event is not None:
            self.event = event
            asked, self.use = use.name, event.tool_use
            use = self.use
            if event.decision is not None:
                self.verdict, hook = event.verdict, event.decision.hook
            if use.name != asked:
                self._call(use)
                hook = await self._renamed() or hook
                use, tool = self.use, self.tool
        if (
            approval is not None
            or self.verdict is not None
            or (tool is not None and (tool.requires_approval or tool.external))
        ):
            self._take_approval(approval, hook)
        self.vetted = True
        if not self.pending:
            decided = (run.run_id, use.id, use, self.verdict, run.call_id)
            writing = run.journal.append_new(ToolDecided, decided)
            if writing is not None:
                await writing

    def count_wait(self, since: float) -> None:
        """Count the time since then as waiting instead of the tool's work."""
        passed = self.run.monotonic() - since
        self.waited += passed
        if self.began is not None:
            self.began += passed

    async def _renamed(self) -> str:
        """Run the hooks of the new tool if a hook has changed the call's tool. Return the name of the deciding hook."""
        run, tool = self.run, self.tool
        self.scope = run.scope_of(tool)
        if tool is None or not tool.hooks or self.verdict is not None:
            return ""
        since = run.monotonic()
        try:
            emitted = run.events.decide(PreActing, (self.use, self.approval), FullHookSet(tool.hooks), shown=False)
            event = emitted if emitted is None or isinstance(emitted, Event) else await emitted
        finally:
            self.count_wait(since)
        if event is None:
            return ""
        self.event = event
        self._call(event.tool_use)
        if event.decision is None:
            return ""
        self.verdict = event.verdict
        return event.decision.hook

    def _take_approval(self, approval: Resolution | None, hook: str) -> None:
        verdict, tool = self.verdict, self.tool
        if approval is not None and not (isinstance(approval, Approve) and tool is not None and tool.external):
            # (an external call cannot run: even approved, it waits for its answer)
            if verdict is None or isinstance(verdict, Suspend):
                self.verdict = None if isinstance(approval, Approve) else approval
            return
        kind: Literal["approval", "external"] = "approval"
        if verdict is None:
            if tool is None or not self._fits(tool):
                return  # the model receives the error instead
            if self.run.approved(self.use.id) and not tool.external:
                return
            kind = "external" if tool.external else "approval"
            self.verdict = verdict = Suspend({"tool": self.use.name, "input": dict(self.use.input)})
            hook = "external" if tool.external else "requires_approval"
        if isinstance(verdict, Suspend):
            self.pending = (Pending(self.use.id, kind, verdict.request, self.use, hook),)

    def _fits(self, tool: FullTool[..., Any]) -> bool:
        try:
            tool.validate(self.use)
        except ToolArgumentError:
            return False
        return True
