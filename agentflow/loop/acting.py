"""One tool call: vetted, run, and closed, whatever happens to it.

Rules:

1. From before its `PreActing` is shown to anyone, a call has its `PostActing` on every path.
2. A tool that fails gives an error result that the model can act on; it never ends the loop.
3. A `CancelledError` counts as the run's only if somebody cancelled the run; else it is a failing tool.
4. What the tool's limit counts is its own working time: not the wait for the reader, nor hooks that see its pieces.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextvars import Context, copy_context
from typing import Any, cast

from agentflow.errors import (
    HookContractError,
    ToolArgumentError,
    ToolError,
    ToolNotFoundError,
    TurnTimeoutError,
    Veto,
)
from agentflow.events import ActingChunk, ErrorPhase, PostActing, PreActing
from agentflow.facts import ToolDecided, ToolFinished, ToolStarted
from agentflow.loop.drive import LimitPassed, TimeLimit, drive
from agentflow.loop.reasoning import sealed, wrap
from agentflow.loop.run import RunBase, current_turn
from agentflow.loop.stream import Port
from agentflow.messages import Pending, ToolResultBlock, ToolState, ToolUseBlock, tool_result
from agentflow.reactive import EMPTY, Flux, Mono
from agentflow.specs import Lane
from agentflow.tools.context import ToolContext, ToolEmitter
from agentflow.tools.results import failure_text, render
from agentflow.tools.tool import Tool
from agentflow.verdicts import Answer, Approve, Deny, Stop, Suspend, Verdict

__all__ = ["Acting", "ToolMono"]

UNKNOWN_OUTCOME = (
    "Outcome unknown: the process ended while this tool was running. Check whether it took effect before you repeat it."
)
Transform = Callable[[Flux[Any]], Any]


class ToolMono(Mono[ToolResultBlock]):
    """The work behind `PreActing`: each run is one attempt at the tool."""

    def __init__(self, acting: Acting, transform: Transform | None = None) -> None:
        self._acting = acting
        self._transform = transform
        super().__init__(self._run)

    async def _run(self) -> ToolResultBlock:
        return await self._acting.work(self._transform)

    def chunks(self, transform: Callable[[Flux[Any]], Any]) -> ToolMono:
        """The same work with its pieces changed on their way to `ActingChunk`.

        Args:
            transform: Gets the pieces as a Flux, returns another.

        Example:
            >>> source.chunks(lambda pieces: pieces.map(mask))
        """
        before = self._transform
        if before is None:
            return ToolMono(self._acting, transform)

        def chained(pieces: Flux[Any]) -> Any:
            return transform(before(pieces))

        return ToolMono(self._acting, chained)


class Acting:
    """The execution of one tool call.

    Args:
        run: The call of the agent that it belongs to.
        use: What the model asked for.
        index: Its place in the round.
        port: Where its events go.
    """

    __slots__ = (
        "approval",
        "attempt",
        "began",
        "event",
        "index",
        "opened",
        "original",
        "pending",
        "port",
        "result",
        "run",
        "shelved",
        "stop",
        "use",
        "verdict",
        "vetted",
    )

    def __init__(self, run: RunBase, use: ToolUseBlock, index: int, port: Port | None) -> None:
        self.run = run
        self.original = use
        self.use = use
        self.index = index
        self.port = port
        self.approval = run.decisions.get(use.id) if run.decisions else None
        self.attempt = 0
        self.began = 0.0
        self.opened = False
        self.vetted = False
        self.shelved = False
        self.event: PreActing | None = None
        self.verdict: Verdict | None = None
        self.result: ToolResultBlock | None = None
        self.pending: Pending | None = None
        self.stop: str | None = None

    @property
    def tool(self) -> Tool[..., Any] | None:
        """The tool that the call names, as hooks left it."""
        return self.run.config.tools.get(self.use.name)

    @property
    def lane(self) -> Lane:
        """The lane of the call as hooks left it; an unknown tool is a write."""
        tool = self.tool
        return "write" if tool is None else tool.lane

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
            if self.verdict is None and not self.run.machine.started:
                self.result = await self._run()
            else:
                await self.perform()
        except GeneratorExit:
            raise
        except BaseException as error:
            await self.abort(error)
            raise
        await self.close()
        return True

    async def vet(self) -> None:
        """Pass the call through its Pre chain; a committed decision is not taken again."""
        run, use, approval = self.run, self.use, self.approval
        self.began = run.monotonic()
        decided = run.machine.decided
        if decided and use.id in decided:
            committed = decided[use.id]
            self.use = committed.tool_use
            self.verdict = cast("Verdict | None", committed.verdict)
            self.opened = self.vetted = True
            return
        if isinstance(approval, Approve) and approval.input is not None:
            self.use = use = use.replace(input=approval.input)
        self.opened = True
        hook = ""
        if run.chains[PreActing] is None and self.port is None:
            run.seq += 1
        else:
            event = cast("PreActing | None", await run.fire(PreActing, self.port, use, approval))
            if event is not None:
                self.event = event
                self.use = use = event.tool_use
                if event.decision is not None:
                    self.verdict, hook = event.decision.verdict, event.decision.hook
        tool = self.tool
        if approval is not None or self.verdict is not None or (tool is not None and tool.requires_approval):
            self._take_approval(approval, hook)
        self.vetted = True
        if self.pending is None:
            kept = run.note(ToolDecided(run.run_id, use.id, use, self.verdict))
            if kept is not None:
                await kept

    def _take_approval(self, approval: object, hook: str) -> None:
        verdict = self.verdict
        if approval is not None:
            if verdict is None or isinstance(verdict, Suspend):
                self.verdict = approval if isinstance(approval, Deny | Answer) else None
            return
        if verdict is None:
            self.verdict = verdict = Suspend({"tool": self.use.name, "input": dict(self.use.input)})
            hook = "requires_approval"
        if isinstance(verdict, Suspend):
            self.pending = Pending(self.use.id, "approval", verdict.request, self.use, hook)

    async def perform(self) -> None:
        """Do what was decided: run the tool, or put a verdict's result in its place."""
        verdict = self.verdict
        if verdict is None:
            if self.use.id in self.run.machine.started and not self._repeatable():
                self.result = self._result(UNKNOWN_OUTCOME, "error")
                return
            self.result = await self._run()
        elif isinstance(verdict, Deny):
            self.result = self._result(f"Denied: {verdict.reason}", "denied")
        elif isinstance(verdict, Answer):
            self.result = self._block(verdict.value)
        else:
            self.result = self._result("Suspended: waits for a decision.", "suspended")

    def _repeatable(self) -> bool:
        tool = self.tool
        return tool is None or tool.idempotent

    def _result(self, text: Any, state: ToolState = "success") -> ToolResultBlock:
        return tool_result(self.original.id, self.use.name, text, state)

    def _block(self, value: object) -> ToolResultBlock:
        if isinstance(value, ToolResultBlock):
            return tool_result(self.original.id, value.name or self.use.name, value.content, value.state)
        return self._result(render(value))

    async def _run(self) -> ToolResultBlock:
        run = self.run
        try:
            if not run.hooks.wraps:
                return await self.work(None)
            return await self._through_arounds()
        except GeneratorExit:
            raise
        except asyncio.CancelledError as error:
            if run.is_cancelled():
                raise
            failure = ToolError(
                f"Tool {self.use.name!r} raised CancelledError itself, although nobody cancelled the run."
            )
            failure.__cause__ = error
            return await self._failed(failure)
        except Veto as veto:
            return self._result(f"Denied: {veto.reason}", "denied")
        except HookContractError:
            raise
        except Exception as error:
            return await self._failed(error)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:
            recovered = await run.report(error, ErrorPhase.ACTING, fatal=True, tool_use=self.use, port=self.port)
            if recovered is None:
                raise
            return self._block(recovered.value)

    async def _through_arounds(self) -> ToolResultBlock:
        run = self.run
        event = self.event
        if event is None:
            event = sealed(run, PreActing, self.use, self.approval)
        source: Any = wrap(run, PreActing, event, ToolMono(self))
        mono = cast("Mono[Any]", source if isinstance(source, Mono) else Mono.from_observable(source))
        value = await mono.resolve()
        if value is EMPTY:
            return self._result("(no output)")
        return self._block(value)

    async def work(self, transform: Transform | None) -> ToolResultBlock:
        """Run the tool once; its failures are raised, so that a wrapping hook can retry."""
        run, use, tool = self.run, self.use, self.tool
        if tool is None:
            raise ToolNotFoundError(use.name, tuple(run.config.tools))
        self.attempt += 1
        pieces: _Pieces | None = None
        context: ToolContext | None = None
        if tool.wants_context or tool.streaming:
            pieces = _Pieces(self, TimeLimit(tool.timeout), transform)
            key = f"{run.run_id}:{use.id}"
            context = ToolContext(use, run.context, self.attempt, key, ToolEmitter(pieces.emit))
        work: Any = tool.start(use, context)
        try:
            kept = run.note(ToolStarted(run.run_id, use.id, self.attempt))
            if kept is not None:
                await kept
        except BaseException:
            if not tool.streaming:
                work.close()
            raise
        place = copy_context()
        place.run(current_turn.set, self)
        try:
            if pieces is None:
                value = await drive(work, place, tool.timeout)
            else:
                value = await pieces.of(work, place, tool.streaming)
        except LimitPassed:
            raise TurnTimeoutError(tool.name, tool.timeout or 0.0) from None
        return tool_result(self.original.id, use.name, render(value))

    async def _failed(self, error: Exception) -> ToolResultBlock:
        state: ToolState = "error"
        if isinstance(error, ToolNotFoundError):
            state = "not_found"
        elif isinstance(error, TurnTimeoutError):
            state = "timeout"
        await self.run.report(error, ErrorPhase.ACTING, fatal=False, tool_use=self.use, port=self.port)
        ours = isinstance(error, ToolNotFoundError | ToolArgumentError | TurnTimeoutError)
        return self._result(str(error) if ours else failure_text(error), state)

    async def close(self) -> None:
        """Pass the result through its Post chain, make it a fact, and show it."""
        run, result = self.run, self.result
        assert result is not None
        duration = (run.monotonic() - self.began) * 1000
        if run.chains[PostActing] is None and self.port is None:
            run.seq += 1
            self.opened = False
            await self._finished(result, duration)
            return
        self.opened = False
        try:
            values = (self.use, self.original, result, duration)
            event = cast("PostActing | None", await run.decide(PostActing, self.port, *values))
        except GeneratorExit:
            raise
        except BaseException:
            await self._finished(result, duration)
            raise
        if event is not None:
            self.result = result = event.tool_result
            if event.decision is not None and isinstance(event.decision.verdict, Stop):
                self.stop = event.decision.verdict.reason
        cut = await run.keep(self._finished(result, duration))
        if event is not None:
            await run.hand_over(event, self.port)
        if cut is not None:
            raise cut

    async def _finished(self, result: ToolResultBlock, duration: float) -> None:
        if self.pending is None and not self.shelved:
            run = self.run
            kept = run.note(ToolFinished(run.run_id, self.original.id, self.use, result, duration, self.stop))
            if kept is not None:
                await kept

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
        self.run.absorb(error)
        if self.result is None or self.opened:
            cut = isinstance(error, asyncio.CancelledError | KeyboardInterrupt | SystemExit)
            text = "Interrupted." if cut else f"Not finished: the call failed ({type(error).__name__})."
            self.result = self._result(text, "interrupted")
            self.pending = None
        if self.opened:
            self.opened = False
            await self.close()


class _Pieces:
    """What a tool hands out while it works, on its way to `ActingChunk`."""

    __slots__ = ("_acting", "_limit", "_pump", "_queue", "_transform")

    def __init__(self, acting: Acting, limit: TimeLimit, transform: Transform | None) -> None:
        self._acting = acting
        self._limit = limit
        self._transform = transform
        self._queue: asyncio.Queue[tuple[object]] | None = None
        self._pump: asyncio.Task[None] | None = None

    async def fire(self, piece: object) -> None:
        acting = self._acting
        run = acting.run
        if run.chains[ActingChunk] is None and (acting.port is None or acting.port.closed):
            run.seq += 1
            return
        counting = self._limit.pause()
        try:
            await run.fire(ActingChunk, acting.port, acting.use, piece)
        finally:
            if counting:
                self._limit.resume()

    async def emit(self, piece: object) -> None:
        """What `ToolEmitter.emit` does."""
        if self._transform is None:
            await self.fire(piece)
            return
        if self._queue is None:
            self._queue = asyncio.Queue(1)
            self._pump = asyncio.get_running_loop().create_task(self._run_pump(self._queue, self._transform))
        await self._queue.put((piece,))

    async def _run_pump(self, queue: asyncio.Queue[tuple[object]], transform: Transform) -> None:
        ended = False

        async def emitted() -> AsyncIterator[object]:
            nonlocal ended
            while piece := await queue.get():
                yield piece[0]
            ended = True

        try:
            async for piece in transform(Flux(emitted)):
                await self.fire(piece)
        finally:
            while not ended and await queue.get():  # the transform ended early: the tool must not wait for it
                pass

    async def of(self, work: Any, place: Context, streaming: bool) -> object:
        """Run a tool that hands out pieces, and return what it makes."""
        try:
            if streaming:
                return await self._stream(work, place)
            return await drive(work, place, None, self._limit)
        finally:
            if self._pump is not None and self._queue is not None:
                await self._queue.put(())  # pyright: ignore[reportArgumentType] - the empty tuple ends the stream
                await self._pump

    async def _stream(self, values: AsyncIterator[object], place: Context) -> object:
        """Pass a streaming tool's values on; the result is their text joined, or their list."""
        driven = _driven(values, place, self._limit)
        stream: Any = driven
        if self._transform is not None:
            stream = aiter(self._transform(Flux(lambda: driven)))
        collected: list[object] = []
        try:
            async for value in stream:
                collected.append(value)
                await self.fire(value)
        finally:
            await driven.aclose()
        if all(isinstance(value, str) for value in collected):
            return "".join(cast("list[str]", collected))
        return collected[0] if len(collected) == 1 else collected


async def _driven(values: Any, place: Context, limit: TimeLimit) -> AsyncGenerator[Any, None]:
    """The values of an async generator, each step in its context and under its limit."""
    try:
        while True:
            try:
                value = await drive(values.__anext__(), place, None, limit)
            except StopAsyncIteration:
                return
            yield value
    finally:
        aclose = getattr(values, "aclose", None)
        if aclose is not None:
            await drive(aclose(), place, None)
