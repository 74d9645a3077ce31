"""One tool call: vetted, run, and closed, whatever happens to it.

Rules:

1. From before its `PreActing` is shown to anyone, a call has its `PostActing` on every path.
2. A tool that fails gives an error result that the model can act on; it never ends the loop.
3. A `CancelledError` counts as the run's only if somebody cancelled the run; else it is a failing tool.
4. What the tool's limit counts is its own working time: not the wait for the reader, nor hooks that see its pieces.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextvars import copy_context
from typing import Any, ClassVar, Literal, cast

from agentflow.errors import (
    HookContractError,
    ShutdownError,
    ToolArgumentError,
    ToolContractError,
    ToolError,
    ToolNotFoundError,
    TurnTimeoutError,
    Veto,
)
from agentflow.events import ErrorPhase, Event, PostActing, PreActing
from agentflow.facts import ToolDecided, ToolFinished, ToolStarted, new_fact
from agentflow.ground.time_limit import TimeLimit
from agentflow.hooks.chain import HookSet
from agentflow.hooks.wrapping import Transform
from agentflow.loop.active import Halted
from agentflow.loop.journal import written
from agentflow.loop.run import RunBase, ToolSuspended, attach, current_turn
from agentflow.loop.sources import Stage, tool_source, wrap
from agentflow.loop.stream import Port
from agentflow.loop.tool_call.attempts import Hold, carefully, held_locks
from agentflow.loop.tool_call.limit import LimitPassed, drive
from agentflow.loop.tool_call.pieces import Pieces
from agentflow.messages import Pending, ToolResultBlock, ToolState, ToolUseBlock, tool_result
from agentflow.reactive import EMPTY
from agentflow.specs import Lane
from agentflow.tools.results import failure_text, render
from agentflow.tools.tool import Tool
from agentflow.tools.tool_context import ToolContext, ToolEmitter
from agentflow.verdicts import Answer, Approve, Deny, Resolution, Stop, Suspend, Verdict

__all__ = ["Acting"]

UNKNOWN_OUTCOME = (
    "Outcome unknown: the process ended while this tool was running. Check whether it took effect before you repeat it."
)

HALTED = "Suspended: the process ends; a later one goes on with this."


class Acting:
    """The execution of one tool call.

    Args:
        run: The call of the agent that it belongs to.
        use: What the model asked for.
        index: Its place in the round.
        port: Where its events go.
    """

    by_tool: ClassVar[bool] = True
    """Whether the tool itself says how long one attempt may take."""

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
        "port",
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
    )

    def __init__(self, run: RunBase, use: ToolUseBlock, index: int, port: Port | None) -> None:
        self.run = run
        self.original = use
        self.use = use
        self.tool: Tool[..., Any] | None = run.config.tools.get(use.name)
        self.index = index
        self.port = port
        self.approval: Resolution | None = None
        self.inner: Mapping[str, Resolution] | None = None
        if run.resuming:
            self.approval = run.decisions.get(use.id)
            self.inner = run.decided_inside.get(use.id)
            if (
                self.inner is not None and use.id not in run.machine.started
            ):  # a sub-agent behind this call was decided on: it goes on where it was
                self.approval = Approve()
        started = run.machine.started
        self.recovers = use.id in started if started else False
        self.attempt = started[use.id] if self.recovers else 0
        self.asked = 0
        self.began = 0.0
        self.opened = False
        self.vetted = False
        self.shelved = False
        self.halted = False
        self.event: PreActing | None = None
        self.verdict: Verdict | None = None
        self.result: ToolResultBlock | None = None
        self.pending: tuple[Pending, ...] = ()
        self.stop: str | None = None
        self.scope: HookSet | None = None
        self.broken: Exception | None = None
        self.delivered = False
        self.holding: tuple[Hold, ...] = ()
        self.value: object = None
        self.tap: Callable[[object], Awaitable[None]] | None = None

    @property
    def lane(self) -> Lane:
        """The lane of the call as hooks left it; an unknown tool is a write."""
        return "write" if self.tool is None else self.tool.lane

    def _call(self, use: ToolUseBlock) -> None:
        """The call, as it stands now, and the tool that it names."""
        self.use = use
        self.tool = self.run.config.tools.get(use.name)

    async def whole(self, waits: Callable[[Lane], bool] | None = None) -> bool:
        """Vet, run and close the call.

        Args:
            waits: Whether a call that was vetted into this lane has to wait for it.

        Returns:
            Whether it is over; False: it waits for its lane, call again.
        """
        try:
            if not self.vetted:
                await self.vet()
                if waits is not None and self.use is not self.original and self.verdict is None and waits(self.lane):
                    return False
            if self.verdict is not None or (self.recovers and not self._repeatable()):
                self.result = self._decided()
            else:
                hooks = self.run.hooks if self.scope is None else self.scope
                try:
                    if hooks.wraps and hooks.arounds(PreActing):
                        self.result = await self._through_arounds()
                    else:
                        self.result = await self.work(None)
                except GeneratorExit:
                    raise
                except BaseException as error:
                    self.result = await self._came_to(error)
                    if self.result is None:
                        raise
            if self.broken is not None:
                self._break()
        except GeneratorExit:
            raise
        except BaseException as error:
            try:
                await self.abort(error)
            except Exception as problem:
                attach(error, problem)
            raise
        await self.close()
        return True

    async def vet(self) -> None:
        """Pass the call through its Pre chain; a committed decision is not taken again."""
        run, use, approval = self.run, self.use, self.approval
        events = run.events
        self.began = run.monotonic()
        if run.machine.decided and use.id in run.machine.decided:
            committed = run.machine.decided[use.id]
            self._call(committed.tool_use)
            self.verdict = cast("Verdict | None", committed.verdict)
            self.scope = run.scope_of(self.tool)
            self.opened = self.vetted = True
            return
        if isinstance(approval, Approve) and approval.input is not None:
            self.use = use = use.replace(input=approval.input)
        self.opened = True
        hook = ""
        asked, tool = use.name, self.tool
        scope = self.scope = run.scope_of(tool) if tool is not None and (tool.hooks or tool.tags) else None
        heard = events.fire(PreActing, self.port, use, approval, scope=scope)
        event = cast("PreActing | None", heard if heard is None or isinstance(heard, Event) else await heard)
        if event is not None:
            self.event = event
            self.use = use = event.tool_use
            if event.decision is not None:
                self.verdict, hook = event.decision.verdict, event.decision.hook
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
            writing = run.journal.append(new_fact(ToolDecided, decided))
            if writing is not None:
                await writing

    async def _renamed(self) -> str:
        """A hook has sent the call to another tool: that tool's own hooks have not seen it yet."""
        run, tool = self.run, self.tool
        self.scope = run.scope_of(tool)
        if tool is None or not tool.hooks or self.verdict is not None:
            return ""
        heard = run.events.decide(PreActing, None, self.use, self.approval, scope=HookSet(tool.hooks))
        event = cast("PreActing | None", heard if heard is None or isinstance(heard, Event) else await heard)
        if event is None:
            return ""
        self.event = event
        self._call(event.tool_use)
        if event.decision is None:
            return ""
        self.verdict = event.decision.verdict
        return event.decision.hook

    def _take_approval(self, approval: Resolution | None, hook: str) -> None:
        verdict, tool = self.verdict, self.tool
        answers = approval is not None and not (isinstance(approval, Approve) and tool is not None and tool.external)
        if answers:  # (what is external cannot run: approved, it still waits for its answer)
            if verdict is None or isinstance(verdict, Suspend):
                self.verdict = approval if isinstance(approval, Deny | Answer) else None
            return
        kind: Literal["approval", "external"] = "approval"
        if verdict is None:
            if tool is None or not self._fits(tool):
                return  # nobody is asked about it: the model is told what is wrong
            if self.run.approved(self.use.id) and not tool.external:
                return
            kind = "external" if tool.external else "approval"
            self.verdict = verdict = Suspend({"tool": self.use.name, "input": dict(self.use.input)})
            hook = "external" if tool.external else "requires_approval"
        if isinstance(verdict, Suspend):
            self.pending = (Pending(self.use.id, kind, verdict.request, self.use, hook),)

    def _fits(self, tool: Tool[..., Any]) -> bool:
        try:
            tool.validate(self.use)
        except ToolArgumentError:
            return False
        return True

    def _decided(self) -> ToolResultBlock:
        """What a verdict, or a crash in its course, puts in the place of the tool's result."""
        verdict = self.verdict
        if verdict is None:
            return self._outcome_unknown()
        if isinstance(verdict, Deny):
            return self._result(f"Denied: {verdict.reason}", "denied")
        if isinstance(verdict, Answer):
            return self._block(verdict.value)
        return self._result("Suspended: waits for a decision.", "suspended")

    def _repeatable(self) -> bool:
        tool = self.tool
        return tool is None or tool.idempotent or isinstance(self.approval, Approve)

    def _outcome_unknown(self) -> ToolResultBlock:
        """The process ended while the tool was running: the model is told, or a person is asked."""
        if self.run.config.on_unknown_outcome == "tell":
            return self._result(UNKNOWN_OUTCOME, "error")
        request = {"outcome": "unknown", "tool": self.use.name, "input": dict(self.use.input), "attempt": self.attempt}
        self.pending = (Pending(self.original.id, "approval", request, self.use, "on_unknown_outcome"),)
        return self._result("Suspended: its outcome is unknown, and a person is asked.", "suspended")

    def _result(self, text: Any, state: ToolState = "success") -> ToolResultBlock:
        return tool_result(self.original.id, self.use.name, text, state)

    def _block(self, value: object) -> ToolResultBlock:
        if isinstance(value, ToolResultBlock):
            return tool_result(self.original.id, value.name or self.use.name, value.content, value.state)
        return self._result(render(value))

    async def _came_to(self, error: BaseException) -> ToolResultBlock | None:
        """What the model is told of work that has raised; None: it ends the call."""
        run = self.run
        if isinstance(error, asyncio.CancelledError):
            if run.stopping.is_cancelled():
                return None
            failure = ToolError(
                f"Tool {self.use.name!r} raised CancelledError itself, although nobody cancelled the run."
            )
            failure.__cause__ = error
            return await self._failed(failure)
        if isinstance(error, Halted):  # a sub-agent has stopped at a safe point
            if not run.can_halt:
                return await self._failed(ShutdownError(run.config.view.name, run.session.id, stopped=True))
            self.shelved = self.halted = True
            return self._result(HALTED, "suspended")
        if isinstance(error, Veto):
            self.verdict = Deny(error.reason)
            return self._result(f"Denied: {error.reason}", "denied")
        if isinstance(error, ToolSuspended):
            self.pending = error.pending_of(self.use)
            return self._result("Suspended: waits for a decision.", "suspended")
        if isinstance(error, HookContractError | KeyboardInterrupt | SystemExit):
            return None
        if isinstance(error, Exception):
            if error is self.broken:
                self.broken = None
                return None
            return await self._failed(error)
        recovered = await run.events.report(
            error, ErrorPhase.ACTING, fatal=True, tool_use=self.use, port=self.port, scope=self.scope
        )
        return None if recovered is None else self._block(recovered.value)

    def _break(self) -> None:
        """A hook's failure on one of the pieces ends the call, and the tool, or a hook around it, has kept it to itself."""
        assert self.broken is not None
        try:
            raise self.broken
        finally:
            self.broken = None  # its traceback holds this

    async def _through_arounds(self) -> ToolResultBlock:
        run = self.run
        event = self.event
        if event is None:
            event = run.events.sealed(PreActing, self.use, self.approval)
        stage = Stage(run, PreActing)
        try:
            value = await stage.outcome(wrap(run, PreActing, event, tool_source(stage, self.work), self.scope))
        finally:
            stage.over = True  # a hook that fails while it wraps has ended it too
        if value is EMPTY:
            return self._result("(no output)")
        return self._block(value)

    async def work(self, transform: Transform | None) -> ToolResultBlock:
        """Run the tool; its failures are raised, so that a wrapping hook can retry.

        The tool's own lock and retries are in here: to a wrapping hook they are one piece of work.
        """
        tool = self.tool
        if tool is None:
            raise ToolNotFoundError(self.use.name, tuple(self.run.config.tools))
        if tool.lock is None and not tool.retries:
            value = await self.once(tool, transform)
        else:
            value = await carefully(self, tool, transform)
        if tool.contract is not None:
            tool.checked(value)
        self.value = value
        return tool_result(self.original.id, self.use.name, render(value))

    def limit_of(self, tool: Tool[..., Any]) -> float | None:
        """Seconds that one attempt may take."""
        return tool.timeout

    def key(self) -> str:
        """What stays the same over retries and recoveries of this call."""
        return f"{self.run.run_id}:{self.use.id}"

    async def once(self, tool: Tool[..., Any], transform: Transform | None) -> object:
        """One attempt."""
        run, use = self.run, self.use
        self.attempt += 1
        limit = tool.timeout if self.by_tool else self.limit_of(tool)
        pieces: Pieces | None = None
        context: ToolContext | None = None
        if tool.wants_context or tool.streaming:
            pieces = Pieces(self, TimeLimit(limit), transform)
            context = ToolContext(use, run.context, self.attempt, self.key(), ToolEmitter(pieces.emit))
        work: Any = tool.start(use, context)
        try:
            writing = run.journal.append(new_fact(ToolStarted, (run.run_id, use.id, self.attempt, run.call_id)))
            if writing is not None:
                await writing
        except BaseException:
            if not tool.streaming:
                work.close()
            raise
        place = copy_context()
        place.run(current_turn.set, self)
        if self.holding:
            place.run(held_locks.set, self.holding)
        for variable, value in run.inherits:
            place.run(variable.set, value)
        try:
            if pieces is None:
                return await drive(work, place, limit)
            return await pieces.of(work, place, tool.streaming)
        except LimitPassed as passed:
            raise TurnTimeoutError(tool.name, limit or 0.0, use.id, passed.late) from passed.__cause__

    async def _failed(self, error: Exception) -> ToolResultBlock:
        state: ToolState = "error"
        if isinstance(error, ToolNotFoundError):
            state = "not_found"
        elif isinstance(error, TurnTimeoutError) and error.turn == self.use.id:  # and not of a turn that the tool ran
            state = "timeout"
        ours = isinstance(error, ToolNotFoundError | ToolArgumentError | ToolContractError | TurnTimeoutError)
        text = str(error) if ours else failure_text(error)  # as it was raised, before anybody is told of it
        await self.run.events.report(
            error, ErrorPhase.ACTING, fatal=False, tool_use=self.use, port=self.port, scope=self.scope
        )
        return self._result(text, state)

    async def close(self) -> None:
        """Pass the result through its Post chain, make it a fact, and show it."""
        run, result, port = self.run, self.result, self.port
        assert result is not None
        duration = (run.monotonic() - self.began) * 1000
        self.opened = False
        event: PostActing | None = None
        try:
            values = (self.use, self.original, result, duration)
            heard = run.events.decide(PostActing, port, *values, scope=self.scope)
            event = cast("PostActing | None", heard if heard is None or isinstance(heard, Event) else await heard)
        except GeneratorExit:
            raise
        except BaseException:
            await written(self._finished(result, duration))
            raise
        if event is not None:
            self.result = result = event.tool_result
            if event.decision is not None and isinstance(event.decision.verdict, Stop):
                self.stop = event.decision.verdict.reason
        writing = self._finished(result, duration)
        cut = None if writing is None else await run.journal.kept(writing)
        if event is not None:
            await run.events.hand_over(event, port)
        if cut is not None:
            raise cut

    def _finished(self, result: ToolResultBlock, duration: float) -> Awaitable[None] | None:
        run = self.run
        if self.pending or self.shelved or ((run.parent is not None or run.stopping.leaving) and run.stopping.leaves()):
            return None
        finished = (run.run_id, self.original.id, self.use, result, duration, self.stop)
        return run.journal.append(new_fact(ToolFinished, finished))

    async def dismiss(self, stop: str | None) -> None:
        """Close a call that was vetted for a later lane, which a Stop or a Suspend keeps from coming."""
        if stop is not None:
            self.result = self._result("Not run: the call was stopped.", "denied")
        else:
            self.result = self._result("Suspended: waits for a decision.", "suspended")
            self.shelved = True
        await self.close()

    async def abort(self, error: BaseException) -> None:
        """The call is being cut: give it its result and its `PostActing`."""
        self.run.stopping.absorb(error)
        if self.result is None or self.opened:
            cut = isinstance(error, asyncio.CancelledError | KeyboardInterrupt | SystemExit)
            text = "Interrupted." if cut else f"Not finished: the call failed ({type(error).__name__})."
            self.result = self._result(text, "interrupted")
            self.pending = ()
        if self.opened:
            self.opened = False
            await self.close()
