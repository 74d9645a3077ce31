"""Replay a script: the run's models and tools return recorded data, and its events are compared.

Rules:

1. The player is the innermost hook around models and tools: all other hooks of the agent run for real.
2. No request is sent and no tool runs. Sub-agents run, each with its part of the script.
3. Only the first divergence is kept. After it, the run is stopped or continues with a live model.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Set
from functools import partial
from typing import Any, Literal, cast

from agentflow._support.cancellation import cancel_requests
from agentflow.agent.arguments import wrapped_agent
from agentflow.hooks.hook import Hook
from agentflow.hooks.recording import HookCall
from agentflow.hooks.wrapping import ModelSource, ToolCallContext, ToolSource
from agentflow.loop.run import RunBase
from agentflow.loop.scope_parts import ReplayControl, Requester
from agentflow.loop.session import FullSession, Session
from agentflow.loop.suspended import suspends_as
from agentflow.reactive import Empty, Flux, Mono
from agentflow.reactive.iterators import close
from agentflow.recording.entries import (
    CallEntry,
    End,
    RequestEntry,
)
from agentflow.recording.log import chunk_of
from agentflow.recording.recorder.entry_builder import EntryValues, RecordedCall
from agentflow.recording.recorder.hook import Recorder, run_of
from agentflow.recording.replay.attempts import RecordedAttempts
from agentflow.recording.replay.cancellation import Cancellations, kind_of
from agentflow.recording.replay.clock import PATIENCE, ReplayClock
from agentflow.recording.replay.comparing import Divergence
from agentflow.recording.replay.comparison import Reaction, RunComparison
from agentflow.recording.replay.order import Key, Order, Progress
from agentflow.recording.replay.pace import Pace
from agentflow.recording.replay.reader import ReplayBuffer
from agentflow.recording.replay.recorded_errors import rebuild_error
from agentflow.recording.replay.recorded_events import RecordedEvents
from agentflow.recording.replay.script import DueStep, RecordedWork, Script
from agentflow.recording.replay.substitutes import RecordedModel, bill, inject, refuse
from agentflow.vocabulary.chunks import ModelChunk
from agentflow.vocabulary.context import RunContext
from agentflow.vocabulary.events import Event, Frame, HookEvent, PreActing, PreReasoning
from agentflow.vocabulary.events.base import frame_of
from agentflow.vocabulary.messages import ToolResultBlock, ToolUseBlock
from agentflow.vocabulary.ports.model import Model, ModelRequest

__all__ = ["Player"]


class Player(Recorder):
    """The hook that plays a script; it records the new run in order to compare it.

    Args:
        script: The recorded run.
        clock: The replay's clock.
        paced: Whether to wait for recorded times.
        since: Ignore differences in top-level events before this number.
        diverged: Called with the first difference; returns the reaction.
        live: The live model to continue with; None means the agent's own.
        tools: Names of the tools that may run while it continues live.
    """

    priority = 1_000_000_000  # inside all other hooks (rule 1)

    def __init__(
        self,
        script: Script,
        clock: ReplayClock,
        paced: bool,
        since: int,
        diverged: Callable[[Divergence], Reaction],
        live: str | Model | None,
        tools: frozenset[str],
    ) -> None:
        # The recorder's own queue stays empty, since `_put` is replaced below.
        super().__init__(every_call=False)
        self.script = script
        self.compared = RunComparison(script, since, diverged, self)
        # Entries go to the comparison instead of a queue, so that a divergence is known before the run continues.
        self._put = self.compared.add
        self._runs: dict[str, RunBase] = {}
        self._clock = clock
        self._live = live
        self._tools = tools
        self._root: RunBase | None = None
        self._waiting_for_end = False
        # If the recording breaks off, the replay may stop at a point that is not in the order, so no order is used.
        self._strict = not script.broken_off
        self._progress = Progress(
            script.order if self._strict else Order(), clock, lambda: self.compared.divergence is not None
        )
        self._cancellations = Cancellations(script, self._progress, clock, paced, self._runs, self.compared.new_calls)
        self._expected = RecordedEvents(script, self.compared, self._progress, clock)
        self._pace = Pace(clock, self.compared, paced, self._strict)
        self._played: dict[tuple[str, str], RecordedWork] = {}
        self._attempts = RecordedAttempts(script, self._progress)

    @property
    def closed(self) -> Set[str]:
        """The recorded calls with streams that were closed."""
        return self._cancellations.closed

    # ---- events of the run

    def _begin(self, event: Event, frame: Frame) -> RecordedCall:
        # Set before `super` is called, since `on_paired` needs the run as soon as the call has an entry.
        run = self._runs[frame.call_id] = run_of(frame.context)
        owner = super()._begin(event, frame)
        run.scope.replay = ReplayControl(
            wait=partial(self._start_in_turn, frame.call_id),
            wake=self._progress.wake,
            delay=partial(self._delay, frame.call_id),
        )
        if owner.parent is None:
            self._root = run
        buffer = run.events.buffer
        if buffer is not None and not isinstance(buffer, ReplayBuffer):
            run.events.buffer = ReplayBuffer(buffer, self._expected.reader_wait)
        # Without facts, this adds only the entry of the call, so that the call is paired.
        self._put(EntryValues(owner, "facts", {"time": event.time, "facts": ()}))
        return owner

    def on_event(self, event: HookEvent) -> Any:
        """Compare an event; if other steps come first, wait for the event's turn."""
        frame = frame_of(event)
        if frame is None:
            return None
        if frame.call_id not in self._owners:
            self._begin(event, frame)
        key = self._expected.take(event)
        if key is not None:
            self._progress.finish_hooks(key)
        # No coroutine if it is the event's turn, as in a run without a player: an additional await could change the order.
        if key is None or self._progress.is_next(key):
            super().on_event(event)
            if key is not None:
                self._pass(key, event)
            return None
        return self._wait_and_record(key, event)

    async def _wait_and_record(self, key: Key, event: HookEvent) -> None:
        await self._progress.shielded(partial(self._progress.wait, key))
        super().on_event(event)
        self._pass(key, event)

    def _pass(self, key: Key, event: HookEvent) -> None:
        """Mark an event as done. If an enclosing call cancelled this call after the event, let this call begin no more
        work."""
        self._progress.mark_done(key)
        # In the recording, the call began nothing after this event, although the cancellation itself arrived later.
        ending = self.script.last_events.get(key)
        if ending is not None and self.compared.divergence is None:
            self._runs[event.call_id].scope.cancel_at_checkpoint(kind_of(ending), ending.reason)
            self._progress.wake()

    async def _start_in_turn(self, call: str, use: str, closed: Callable[[], bool]) -> None:
        """Let a call of a parallel round start after the same number of events as in the recording."""
        if (recorded := self.compared.pairs.get(call)) is not None and self._strict:
            await self._progress.wait_for_start(
                recorded, self.compared.normalizer.number(call, use), self._runs[call], closed
            )

    # ---- hooks, injections and races

    def on_begin(self, hook: Hook, event: Event) -> Awaitable[None] | None:
        """Let a hook start in its turn."""
        if (frame := frame_of(event)) is not None and frame.call_id not in self._owners:
            self._begin(event, frame)
        key = self._expected.key_of(event)
        if key is None:
            return super().on_begin(hook, event)
        mark = self._progress.next_mark(key, "began", hook.name)
        if hook.observer and hook.priority >= Recorder.priority:
            self._progress.finish_hooks(key)  # this hook runs after the recorder, so the event was already logged
        turn = mark or self._progress.next_step(key)
        if not self._progress.is_next(turn):
            return self._begin_later(turn, hook, event)
        super().on_begin(hook, event)
        if mark is not None:
            self._progress.mark_done(mark)
        return None

    async def _begin_later(self, turn: Key, hook: Hook, event: Event) -> None:
        await self._progress.shielded(partial(self._progress.wait, turn))
        super().on_begin(hook, event)
        if turn[0] == "mark":
            self._progress.mark_done(turn)

    def on_end(self, hook: Hook, event: Event) -> Awaitable[None] | None:
        """Let a hook wait for the turn of its failure, or of an interrupt that it has requested."""
        failure = self._expected.take_failure(hook, event)
        if failure is not None:
            return self._wait(failure)
        return self._cancellations.requested(self.compared.pairs.get(event.call_id, ""))

    def on_answer(self, event: Event) -> None:
        """Let the run continue to its next checkpoint after a hook that was not awaited in the recording."""
        scope = self._runs[event.call_id].scope
        # The recorded hook was not awaited, so its chain continued although the run was stopped.
        if scope.replay is not None:
            scope.replay.passes = scope.stopped

    def on_call(self, call: HookCall) -> None:
        """Let an awaited hook that has failed wait in `on_end`; mark the failure of any other hook as done."""
        super().on_call(call)
        if call.error is not None:
            self._expected.add_failure(call)

    def _delay(self, call: str, cancel: Callable[[], None], requester: Requester) -> None:
        self._cancellations.delay(self.compared.pairs.get(call, ""), cancel, requester)

    def on_injection(self, hook: Hook, event: Event) -> None:
        """Mark an injection as done, since other steps may wait for it."""
        super().on_injection(hook, event)
        key = self._expected.known_key_of(event)
        mark = None if key is None else self._progress.next_mark(key, "injected", hook.name)
        if mark is not None:
            self._progress.mark_done(mark)

    def _mark(
        self, owner: RecordedCall, context: RunContext, n: int, use: ToolUseBlock, what: Literal["injected", "decided"]
    ) -> Awaitable[None] | None:
        super()._mark(owner, context, n, use, what)
        work = self._played.get((owner.call, use.id))
        key = None if work is None else self._progress.next_mark_of(work.n, len(work.marks))
        if work is not None and key is not None and what == "decided":
            return self._wait(key, work.end)
        if key is not None:
            self._progress.mark_done(key)
        return None

    async def _wait(self, key: Key, ends: End = "done") -> None:
        """Wait for the turn of a step and mark it as done; `ends` is the recorded end of its work."""
        try:
            await self._held_back(key, ends, partial(self._progress.wait, key))
        finally:  # if this step is cancelled while it waits, later steps should not wait for it
            self._progress.mark_done(key)

    def _held_back(self, key: Key, ends: End, wait: Callable[[], Awaitable[None]]) -> Awaitable[None]:
        """Return the awaitable of `wait`, in which a cancellation is raised only in the step's turn, except at the end of
        cancelled work."""
        return wait() if ends == "cut" and key[0] == "over" else self._progress.shielded(wait)

    # ---- the comparison's listener

    def on_paired(self, call: str, recorded: str) -> None:
        """Wait for a call's recorded end instead of its time limit."""
        if recorded not in self.script.broken_off:
            self._runs[call].scope.limit_time(False)

    def on_compared(self) -> None:
        """Wake the steps that wait for events of the new run."""
        self._pace.wake()
        self._end_of_log()

    def on_divergence(self) -> None:
        """Stop the run, or let it continue live."""
        self._cancellations.perform()  # the recorded order no longer holds
        if self.compared.reaction == "stop":
            if self._root is not None:
                self._root.interrupt("the replay has diverged from its recording")
        else:
            for run in self._runs.values():
                run.scope.limit_time(True)
        self._pace.wake()
        self._progress.wake()

    # ---- cancellations from outside

    def begin(self, root: CallEntry, session: Session) -> None:
        """Start a call of the run."""
        self._cancellations.calling = root.call, cast("FullSession", session)
        self._clock.jump(root.time)
        self._progress.report_cancellation()

    def has_started(self, root: CallEntry) -> bool:
        """Return whether a call of the run has fired an event in the replay."""
        return root.call in self.compared.new_calls

    async def _await_cancellation(self, call: str, work: RecordedWork | None = None) -> None:
        """Wait to be cancelled as recorded. If that does not happen by the recorded time, the replay diverges; at the end of
        an incomplete recording, it stops."""
        if self.compared.reaction is None and self.compared.pairs.get(call) in self.script.broken_off:
            self._waiting_for_end = True
            self._end_of_log()
            asyncio.get_running_loop().call_later(PATIENCE, self._end_of_log, True)
        elif self.compared.reaction is None:
            cancellation = self.script.cuts.get(self.compared.pairs.get(call, ""))
            known = [work.end_due.time] if work is not None and work.end_due is not None else []
            await self._clock.reach(max(known + ([] if cancellation is None else [cancellation.time]), default=0.0))
            await asyncio.sleep(PATIENCE)
            now = "it continues; " + ("the recorded one was cancelled" if known else "its end is not in the recording")
            kind = "tool" if work is not None and work.step is None else "request"
            iteration = self._runs[call].events.iteration
            self.compared.diverge(
                Divergence(
                    event=kind,
                    iteration=iteration,
                    source=self.compared.new.log.calls[call].source,
                    now=now,
                    no_data=True,
                )
            )
        while self.compared.divergence is None:
            await asyncio.sleep(PATIENCE)
            if not self._waiting_for_end:
                break
        await asyncio.sleep(PATIENCE)  # time for the interrupt to take effect
        raise asyncio.CancelledError("the replay has diverged from its recording")

    def _end_of_log(self, now: bool = False) -> None:
        """Stop at the end of an incomplete recording, if the run waits for more data: after all recorded events, or `now`."""
        if self._waiting_for_end and self._root is not None and (now or self.compared.events >= self.script.total):
            self._root.interrupt("the recording ends here")

    # ---- waiting

    async def _until(self, due: DueStep, key: Key, ends: End) -> None:
        """Wait for the time and the turn of a step."""
        await self._held_back(key, ends, partial(self._pace.until, due))
        await self._wait(key, ends)

    # ---- models

    def around_model(self, event: PreReasoning, source: ModelSource) -> Flux[ModelChunk]:
        """Return the recorded reply instead of the model's."""
        frame = event.frame
        owner = self._owners.get(frame.call_id) or self._begin(event, frame)
        context, request = frame.context, source.request
        return Flux(lambda: self._model_stream(owner, context, event.iteration, request, source))

    async def _model_stream(
        self, owner: RecordedCall, context: RunContext, iteration: int, request: ModelRequest, source: ModelSource
    ) -> AsyncIterator[ModelChunk]:
        played = False

        def replies() -> AsyncIterator[ModelChunk]:
            nonlocal played
            played = True
            return self._replies(owner, iteration, "")

        if self.compared.reaction == "live":
            inner = source if self._live is None else source.using(model=self._live)
        else:
            if self._strict and (recorded := self.compared.pairs.get(owner.call)) is not None:
                await self._attempts.start(recorded, iteration)
            inner = source.using(model=RecordedModel(request.model, replies))
        stream = self._recorded(owner, context, iteration, request, "", inner).open()
        try:
            async for chunk in stream:
                yield chunk
        finally:
            await close(stream)
            if not played and self.compared.reaction is None:  # the run was stopped before the request was sent
                await self._pass_request(owner, iteration)

    async def _pass_request(self, owner: RecordedCall, iteration: int) -> None:
        """Skip the next recorded reply, since the run was stopped before it sent the request."""
        reply = self.script.reply(self.compared.pairs.get(owner.call, ""), iteration, "")
        if reply is not None:
            self._progress.mark_done(("begun", reply.n, 0))
            await self._finish(reply)

    def around_side(
        self, context: RunContext, request: ModelRequest, side: str, chunks: Flux[ModelChunk]
    ) -> Flux[ModelChunk]:
        """Return the recorded reply instead of a side call's."""
        owner = self._owners.get(context.call_id)
        if owner is None or self.compared.reaction == "live":
            return chunks
        iteration = run_of(context).events.iteration
        inner = Flux(lambda: self._replies(owner, iteration, side))
        return self._recorded(owner, context, iteration, request, side, inner)

    async def _replies(self, owner: RecordedCall, iteration: int, side: str) -> AsyncIterator[ModelChunk]:
        """Yield the chunks of the recorded reply."""
        call = owner.call
        recorded = self.compared.pairs.get(call)
        reply = None if recorded is None else self.script.reply(recorded, iteration, side)
        if reply is None and recorded in self.script.broken_off:
            await self._await_cancellation(call)
        if reply is None:
            kind, now = f"request ({side})" if side else "request", "the recording has no further model call"
            self.compared.diverge(
                Divergence(event=kind, iteration=iteration, source=owner.source, now=now, no_data=True)
            )
            await self._await_cancellation(call)
            return
        # The latest request is this one: `_recorded` wraps this generator, and has just recorded it.
        entry = next(entry for entry in reversed(self.compared.new.log.entries) if isinstance(entry, RequestEntry))
        assert reply.step is not None
        await self._wait(("begun", reply.n, 0), reply.end)
        self.compared.differ(call, reply.step, self.compared.normalizer.request(entry))
        if self.compared.reaction == "stop":
            await self._await_cancellation(call)
        try:
            with self._attempts.running(str(recorded), iteration):
                for n, due in enumerate(reply.pieces):
                    await self._until(due, ("chunk", reply.n, n), reply.end)
                    yield chunk_of(due.piece)
                await self._end(call, reply)
        finally:  # it may be closed or cancelled at a chunk, and its recorded cleanup may have taken a while
            await self._finish(reply)

    async def _end(self, call: str, reply: RecordedWork, use: str = "") -> None:
        if reply.end == "cut" or reply.end_due is None:
            try:
                # Otherwise the task was cancelled before, and a hook swallowed the cancellation.
                if reply.end_due is None or not cancel_requests():
                    await self._await_cancellation(call, reply)
            finally:  # cancelled work may take time to clean up
                if reply.end_due is not None and self.compared.divergence is None:
                    await self._until(reply.end_due, ("over", reply.n, 0), reply.end)
            raise asyncio.CancelledError("a hook swallowed the cancellation")
        await self._until(reply.end_due, ("over", reply.n, 0), reply.end)
        if reply.end == "failed":
            raise rebuild_error(reply.error or {"type": "Exception"}, {reply.use: use})

    # ---- tools

    def around_tool(self, event: PreActing, source: ToolSource) -> Mono[ToolResultBlock]:
        """Return the recorded result instead of the tool's."""
        return Mono(partial(self._play, event, source))

    def _play(self, event: PreActing, source: ToolSource) -> Awaitable[Any]:
        frame = event.frame
        owner = self._owners.get(frame.call_id) or self._begin(event, frame)
        use, call = event.tool_use, owner.call
        recorded = self.compared.pairs.get(call)
        tool = run_of(frame.context).config.tools.get(use.name)
        if self.compared.reaction == "live":
            return self._work(event, source if use.name in self._tools else source.instead(partial(refuse, use)))
        work = None if recorded is None else self.script.work(recorded, self.compared.normalizer.number(call, use.id))
        if work is None and recorded in self.script.broken_off:
            return self._work(event, source.instead(lambda _: self._await_cancellation(call)))
        if work is None:
            now = f"{use.name} {use.raw}"
            self.compared.diverge(
                Divergence(event="tool", iteration=event.iteration, source=owner.source, now=now, no_data=True)
            )
            return self._work(event, source.instead(lambda _: self._await_cancellation(call)))
        self._played[call, use.id] = work
        inside = tool is not None and wrapped_agent(tool.function) is not None
        if (inside and work.children) or (tool is None and (work.error or {}).get("type") == "ToolNotFoundError"):
            # A sub-agent runs with its own part of the script, and an unknown tool fails as it did in the recording.
            return self._run_work(event, source, work)
        for child in work.children:  # the tool does not run, so its sub-agents' steps count as done
            self.compared.events += len(self.script.steps[child])
        for key in self.script.all_of(work.children):
            self._progress.mark_done(key)
        played = partial(self._play_work, call, work, use.id)
        return self._run_work(event, source.instead(played, transformed=True), work)

    def _work(self, event: PreActing, source: ToolSource) -> Awaitable[ToolResultBlock | Empty]:
        """Run a source as the tool's work, and record it."""
        return self._tool_work(event, source.resolve)

    @suspends_as("tool")
    async def _run_work(self, event: PreActing, source: ToolSource, work: RecordedWork) -> ToolResultBlock | Empty:
        """Do the work of a tool in its turn: return the recorded result; a sub-agent or a missing tool runs for real."""
        await self._wait(("begun", work.n, 0), work.end)
        ends: End = "cut"
        try:
            result = await self._work(event, source)
            ends = work.end
            return result
        finally:
            await self._finish(work, ends)

    async def _finish(self, work: RecordedWork, ends: End = "cut") -> None:
        """Mark the steps of some work as done, and wait for the turn of its end. This also covers work that was closed or
        cancelled early, and work of a sub-agent."""
        if self.compared.divergence is None:
            for key, _ in self.script.steps_of(work):
                self._progress.mark_done(key)
            await self._wait(("over", work.n, 0), ends)

    async def _play_work(self, call: str, work: RecordedWork, use: str, context: ToolCallContext) -> object:
        done = 0
        for key, due in self.script.steps_of(work):
            await self._until(due, key, work.end)
            if key[1] != work.n:
                bill(context.run, due.piece)
            elif key[0] == "chunk":
                await context.emitter.emit(due.piece)
            else:
                inject(self.script.log, context, work.injected[done : done + 1])
                done += 1
        inject(self.script.log, context, work.injected[done:])
        if work.interrupts is not None:
            await self._wait(("cut", self.compared.pairs[call], 0))
            context.run.interrupt(work.interrupts)
        await self._end(call, work, use)
        if work.result is None:
            return None
        return self.script.log.tool_result(work.result)
