"""Plays a script to a run: its models and tools give what the recording says, and what it does is compared.

Rules:

1. It is the innermost hook around models and tools: all other hooks of the agent run for real.
2. No request is sent and no tool runs. A sub-agent runs, with its own part of the script.
3. The first departure is kept, whatever comes behind it. From there the run is stopped, or goes on with a live model.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from functools import partial
from typing import Any, Literal, TypeAlias, cast

from agentflow.agent.arguments import wrapped_agent
from agentflow.chunks import ModelChunk
from agentflow.context import RunContext
from agentflow.events import Event, Frame, HookEvent, PreActing, PreReasoning
from agentflow.ground.validation import adapter_of
from agentflow.hooks.hook import Hook
from agentflow.hooks.wrapping import ModelSource, ToolCall, ToolSource
from agentflow.loop.run import RunBase
from agentflow.loop.scope import RunScope
from agentflow.loop.session import FullSession, Session
from agentflow.messages import ToolResultBlock, ToolUseBlock
from agentflow.plugins.recorder.entry_builder import Making
from agentflow.plugins.recorder.hook import Recorder, run_of
from agentflow.plugins.recorder.observations import Place, Seen
from agentflow.ports.model import Model, ModelRequest
from agentflow.reactive import Empty, Flux, Mono
from agentflow.reactive.iterators import close
from agentflow.replay.clock import ReplayClock
from agentflow.replay.comparing import Departure, Facing, Step, first_difference
from agentflow.replay.cutting import Cutting
from agentflow.replay.errors_again import again
from agentflow.replay.instead import RecordedModel, refused
from agentflow.replay.order import Key, Order, Turns
from agentflow.replay.script import Due, Reply, Script
from agentflow.runlog.encoding import Line, header_line
from agentflow.runlog.entries import (
    CallEntry,
    ChunksEntry,
    End,
    EventEntry,
    HookEntry,
    Injection,
    PiecesEntry,
    RequestEntry,
    WrittenEntry,
)
from agentflow.runlog.log import RunLog, chunk_of

__all__ = ["Goes", "Player"]

Goes: TypeAlias = Literal["stop", "on", "live"]
"""What becomes of a run that has departed: it stops, goes on with what is left of the recording, or with a live model."""

_UNKNOWN: Key = ("", "", 0)
_PATIENCE = 1.0
"""Seconds for which something waits for the events that stand before it."""


class Player(Recorder):
    """The hook that plays a script; it records what it sees, to compare it.

    Args:
        script: The recorded run.
        clock: The replay's time.
        paced: Whether the time between things is waited for.
        since: Departures in events of the top before this number do not count.
        departed: Told of the first departure; says what becomes of the run.
        live: Who is asked from then on; None: the agent's own model.
        tools: Names of the tools that may run from then on.
    """

    priority = 1_000_000_000

    def __init__(
        self,
        script: Script,
        clock: ReplayClock,
        paced: bool,
        since: int,
        departed: Callable[[Departure], Goes],
        live: str | Model | None,
        tools: frozenset[str],
    ) -> None:
        super().__init__(every_call=False)
        self.script = script
        self.departure: Departure | None = None
        self.new = RunLog([], "the replay")
        self._runs: dict[str, RunBase] = {}
        self.lines: list[Line] = [header_line()]
        self._clock = clock
        self._paced = paced
        self._since = since
        self._departed = departed
        self._live = live
        self._tools = tools
        self._facing = Facing(self.new)
        self._made = Making()
        self._reads = adapter_of(WrittenEntry)
        self._put = self._take_in
        self._pairs: dict[str, str] = {}
        self._done: dict[str, int] = {}
        self._events = 0
        self._moved = asyncio.Event()
        self._root: RunBase | None = None
        self._next_root = 0
        self._new: dict[str, str] = {}
        self._hanging = False
        self.goes: Goes | None = None
        self.raised: Exception | None = None
        self.new.add(self._reads.validate_python(self.lines[0]))
        self._calling: tuple[str, FullSession] | None = None
        self.closed: set[str] = set()
        # What a crash has cut ends at places that no order holds.
        self._strict = not script.broken_off
        self._turns = Turns(script.order if self._strict else Order(), clock, lambda: self.departure is not None)
        self._turns.reached = self._reached
        self._expected: dict[tuple[str, int], Key | None] = {}
        self._played: dict[tuple[str, str], Reply] = {}

    # ---- what the run does

    def _begin(self, event: Event, frame: Frame) -> Place:
        place = super()._begin(event, frame)
        self._runs[frame.call_id] = run_of(frame.context)
        if place.parent is None:
            self._root = run_of(frame.context)
        return place

    def on_event(self, event: HookEvent) -> Any:
        """Compare an event; where it comes too early, as another task is meant to come first, in its turn."""
        frame = event._frame  # pyright: ignore[reportPrivateUsage] - an event built by hand has none
        if frame is None:
            return None
        begins = frame.call_id not in self._pairs
        if begins:
            super().on_event(event)  # which finds the call that it is
        mine = self._pairs.get(frame.call_id)
        key = None if mine is None else self._key_of(mine, event, frame.call_id)
        self._expected.pop((frame.call_id, event.seq), None)
        if key is not None:
            self._turns.hooks_done(key)
        if key is None or self._turns.is_next(key):
            if not begins:
                super().on_event(event)
            if key is not None:
                self._turns.happened(key)
            return None
        return self._later(key, None if begins else event)

    async def _later(self, key: Key, event: HookEvent | None) -> None:
        await self._undisturbed(partial(self._turns.wait, key))
        if event is not None:
            super().on_event(event)
        self._turns.happened(key)

    def _key_of(self, mine: str, event: Event, call: str) -> Key | None:
        """Which event of the recording one is, by its class and its tool call; None: there is none left."""
        known = self._expected.get((call, event.seq), _UNKNOWN)
        if known is not _UNKNOWN:
            return known
        use = getattr(event, "tool_use", None)
        number = "" if use is None else self._facing.number(call, use.id)
        key = self._expected[call, event.seq] = self._turns.next_of(mine, type(event).__name__, number)
        return key

    # ---- hooks, injections and races

    def on_begin(self, hook: Hook, event: Event) -> Awaitable[None] | None:
        """Let a hook begin in its turn."""
        mine = self._pairs.get(event.call_id)
        key = None if mine is None else self._key_of(mine, event, event.call_id)
        mark = None if key is None else self._turns.next_mark(key, "began", hook.name)
        if mark is None or self._turns.is_next(mark):
            super().on_begin(hook, event)
            if mark is not None:
                self._turns.happened(mark)
            return None
        return self._begin_later(mark, hook, event)

    async def _begin_later(self, mark: Key, hook: Hook, event: Event) -> None:
        await self._undisturbed(partial(self._turns.wait, mark))
        super().on_begin(hook, event)
        self._turns.happened(mark)

    def on_injection(self, hook: Hook, event: Event) -> None:
        """A hook injects something: others may have waited for that."""
        super().on_injection(hook, event)
        key = self._expected.get((event.call_id, event.seq))
        mark = None if key is None else self._turns.next_mark(key, "injected", hook.name)
        if mark is not None:
            self._turns.happened(mark)

    def _mark(
        self, place: Place, context: RunContext, n: int, use: ToolUseBlock, what: Literal["injected", "decided"]
    ) -> Awaitable[None] | None:
        super()._mark(place, context, n, use, what)
        work = self._played.get((place.call, use.id))
        key = None if work is None else self._turns.next_mark_of(work.n, len(work.marks))
        if work is not None and key is not None and what == "decided":
            return self._wait(key, work.end)
        if key is not None:
            self._turns.happened(key)
        return None

    async def _wait(self, key: Key, ends: End = "done") -> None:
        """Let something happen in its turn; `ends` says how the work ended that it belongs to."""
        if ends == "cut":
            await self._turns.wait(key)
        else:
            await self._undisturbed(partial(self._turns.wait, key))
        self._turns.happened(key)

    async def _undisturbed(self, wait: Callable[[], Awaitable[None]]) -> None:
        """Wait; a cancellation that comes too early, as that of a race may, is raised after what was recorded before it."""
        task, early = asyncio.current_task(), 0
        while True:
            try:
                await wait()
                break
            except asyncio.CancelledError:
                if not self._strict or self.departure is not None or task is None or not task.cancelling():
                    raise
                early += 1
                task.uncancel()
        if early and task is not None:
            for _ in range(early):
                task.cancel()

    def _take_in(self, one: Seen) -> None:
        """Write down what was seen, and compare it."""
        made = self._made.lines((one,))
        self.lines += made
        for line in made:
            entry = self._reads.validate_python(line)
            self.new.add(entry)
            if isinstance(entry, CallEntry):
                self._pair(entry)
            elif isinstance(entry, EventEntry | ChunksEntry | PiecesEntry):
                self._compare(entry)

    def _pair(self, call: CallEntry) -> None:
        """Find the call of the recording that this one is."""
        mine: str | None = None
        if call.parent is None or call.parent.call not in self.new.calls:
            if self._next_root < len(self.script.roots):
                mine = self.script.roots[self._next_root].call
                self._next_root += 1
        elif (above := self._pairs.get(call.parent.call)) is not None:
            mine = self.script.child(above, self._facing.number(call.parent.call, call.parent.tool_use))
        if mine is not None:
            self._pairs[call.call], self._new[mine] = mine, call.call
            self._done[call.call] = 0
            if mine not in self.script.broken_off:
                self._runs[call.call].scope.limit_time(False)
        else:
            self._depart(Departure(event="call", source=call.source, now=f"a call of {call.agent}", lost=True))

    def _compare(self, entry: EventEntry | ChunksEntry | PiecesEntry) -> None:
        mine = self._pairs.get(entry.call)
        if mine is None:
            return
        recorded = self.script.steps[mine]
        for step in self._facing.steps(entry):
            place = self._done[entry.call]
            self._done[entry.call] += 1
            self._events += 1
            if place >= len(recorded):
                if mine not in self.script.broken_off:
                    self._differ(entry.call, None, step)
            else:
                self._differ(entry.call, recorded[place], step)
        if isinstance(entry, EventEntry) and entry.type == "CallEnded":
            self._missing(entry.call)
        self._moved.set()
        self._moved = asyncio.Event()
        self._end_of_log()

    def _missing(self, call: str) -> None:
        """The call is over: what the recording still tells of it has not happened."""
        recorded, done = self.script.steps[self._pairs[call]], self._done[call]
        if done < len(recorded):
            self._differ(call, recorded[done], None)

    def _differ(self, call: str, recorded: Step | None, now: Step | None) -> None:
        if self.departure is not None or self._before(call, recorded):
            return
        here = recorded or now
        assert here is not None
        found = ("", None, now and now.type) if recorded is None else ("", recorded.type, None)
        if recorded is not None and now is not None:
            difference = first_difference(recorded, now)
            if difference is None:
                return
            found = difference
        field, was, new = found
        self._depart(
            Departure(
                event=here.type,
                seq=here.seq,
                iteration=here.iteration,
                source=self.new.calls[call].source,
                field=field,
                recorded=was,
                now=new,
                hooks=self._hooks_of(call, now),
            )
        )

    def _before(self, call: str, step: Step | None) -> bool:
        """Whether an event stands before the one from which on departures count."""
        return step is not None and not self.new.calls[call].source and step.seq < self._since

    def _hooks_of(self, call: str, step: Step | None) -> tuple[str, ...]:
        """The hooks that have changed an event of the replay, or decided on it."""
        if step is None:
            return ()
        found: dict[str, None] = {}
        for entry in self.new.entries[-50:]:
            if isinstance(entry, HookEntry) and entry.call == call and entry.seq == step.seq and entry.via != "shadow":
                found[entry.hook] = None
        return tuple(found)

    def _depart(self, departure: Departure) -> None:
        if self.departure is None or (self.goes == "on" and departure.lost):
            first, self.goes = self.departure is None, "stop"
            self.departure = self.departure or departure
            if first:
                try:
                    self.goes = self._departed(departure)
                except Exception as error:  # in a chain of hooks it would pass for one of theirs
                    self.raised = error
            if departure.lost and self.goes == "on":
                self.goes = "stop"
            if self.goes != "stop":
                for run in self._runs.values():
                    run.scope.limit_time(True)
            if self.goes == "stop" and self._root is not None:
                self._root.interrupt("the replay has departed from its recording")
            self._moved.set()
            self._turns.wake()

    # ---- what ends it from outside

    def begin(self, root: CallEntry, session: Session) -> None:
        """A call of the run begins."""
        self._calling = root.call, cast("FullSession", session)
        self._turns.begin()

    def has_begun(self, root: CallEntry) -> bool:
        """Whether a call of the run has fired an event here."""
        return root.call in self._new

    def _reached(self, key: Key) -> None:
        """A cancellation comes next."""
        call = str(key[1])
        cut = self.script.cuts.get(call)
        if cut is None or self.departure is not None:  # a tool does it
            return
        cutting = Cutting(
            cut, self.script.order.wait_before(key), partial(self._scope_of, call), partial(self._is_cut, key)
        )
        if cutting.kind == "closed":
            self.closed.add(call)
        cutting.begin()

    def _is_cut(self, key: Key) -> None:
        self._turns.happened(key)

    async def cut_is_done(self, call: str) -> None:
        """Wait until a call of the recording is cancelled here too."""
        await self._turns.wait_for(("cut", call, 0))

    def _scope_of(self, call: str) -> RunScope | None:
        """The scope of a call of the recording, even before its first event."""
        found = self._runs.get(self._new.get(call, ""))
        if found is not None:
            return found.scope
        if self._calling is not None and call == self._calling[0]:
            begun = cast("RunBase | None", self._calling[1].run)
            return None if begun is None else begun.scope
        parent = self.script.log.calls[call].parent
        above = None if parent is None else self._scope_of(parent.call)
        known = [run.scope for run in self._runs.values()]
        return None if above is None else next((inner for inner in above.inner if inner not in known), None)

    async def _hang(self, call: str, work: Reply | None = None) -> None:
        """Wait to be ended, as in the recording; where that does not say by what, the replay departs."""
        if self.goes is None and self._pairs.get(call) in self.script.broken_off:
            self._hanging = True
            self._end_of_log()
            asyncio.get_running_loop().call_later(_PATIENCE, self._end_of_log, True)
        elif self.goes is None:
            cut = self.script.cuts.get(self._pairs.get(call, ""))
            known = [work.over.time] if work is not None and work.over is not None else []
            await self._clock.reach(max(known + ([] if cut is None else [cut.time]), default=0.0))
            await asyncio.sleep(_PATIENCE)
            now = "it goes on, and the recording does not say how it ended" + (": it was cut there" if known else "")
            kind = "tool" if work is not None and work.step is None else "request"
            iteration = self._runs[call].events.iteration
            self._depart(
                Departure(event=kind, iteration=iteration, source=self.new.calls[call].source, now=now, lost=True)
            )
        while self.departure is None:
            await asyncio.sleep(_PATIENCE)
            if not self._hanging:
                break
        await asyncio.sleep(_PATIENCE)  # the interrupt comes, if the run has not taken it in already
        raise asyncio.CancelledError("the replay has departed from its recording")

    def _end_of_log(self, at_last: bool = False) -> None:
        """Stop where the recording breaks off: all that it tells has happened, and something waits for more."""
        if self._hanging and self._root is not None and (at_last or self._events >= self.script.total):
            self._root.interrupt("the recording ends here")

    # ---- when

    async def _until(self, due: Due, key: Key, ends: End) -> None:
        """Wait until something is due, and its turn has come."""
        if ends == "cut":
            await self._until_time(due)
        else:
            await self._undisturbed(partial(self._until_time, due))
        await self._wait(key, ends)

    async def _until_time(self, due: Due) -> None:
        if self._paced or due.apart:
            await self._clock.reach(due.time)
        else:
            self._clock.jump(due.time)
        if not due.apart:
            return
        now = asyncio.get_running_loop().time
        limit = now() + _PATIENCE
        while self._events < due.events and self.departure is None and now() < limit:
            waiting = asyncio.ensure_future(self._moved.wait())
            await asyncio.wait([waiting], timeout=_PATIENCE)
            waiting.cancel()

    # ---- models

    def around_model(self, event: PreReasoning, source: ModelSource) -> Flux[ModelChunk]:
        """The recorded reply in the model's place."""
        frame = event.frame
        place = self._places.get(frame.call_id) or self._begin(event, frame)
        context, request = frame.context, source.request
        return Flux(lambda: self._asked(place, context, event.iteration, request, source))

    async def _asked(
        self, place: Place, context: RunContext, iteration: int, request: ModelRequest, source: ModelSource
    ) -> AsyncIterator[ModelChunk]:
        if self.goes == "live":
            inner = source if self._live is None else source.using(model=self._live)
        else:
            model = RecordedModel(request.model, partial(self._replies, place, iteration, ""))
            inner = source.using(model=model)
        stream = self._taken(place, context, iteration, request, "", inner).open()
        try:
            async for chunk in stream:
                yield chunk
        finally:
            await close(stream)

    def around_side(
        self, context: RunContext, request: ModelRequest, side: str, chunks: Flux[ModelChunk]
    ) -> Flux[ModelChunk]:
        """The recorded reply in the place of what is asked on the side."""
        place = self._places.get(context.call_id)
        if place is None or self.goes == "live":
            return chunks
        iteration = run_of(context).events.iteration
        inner = Flux(lambda: self._replies(place, iteration, side))
        return self._taken(place, context, iteration, request, side, inner)

    async def _replies(self, place: Place, iteration: int, side: str) -> AsyncIterator[ModelChunk]:
        """What the recording says that the model gave."""
        call = place.call
        mine = self._pairs.get(call)
        reply = None if mine is None else self.script.reply(mine, iteration, side)
        if reply is None and mine in self.script.broken_off:
            await self._hang(call)
        if reply is None:
            kind = f"request ({side})" if side else "request"
            now = "a model is asked once more than in the recording"
            self._depart(Departure(event=kind, iteration=iteration, source=place.source, now=now, lost=True))
            await self._hang(call)
            return
        entry = next(entry for entry in reversed(self.new.entries) if isinstance(entry, RequestEntry))
        assert reply.step is not None
        await self._wait(("begun", reply.n, 0), reply.end)
        self._differ(call, reply.step, self._facing.request(entry))
        if self.goes == "stop":
            await self._hang(call)
        try:
            for n, due in enumerate(reply.pieces):
                await self._until(due, ("chunk", reply.n, n), reply.end)
                yield chunk_of(due.piece)
        except GeneratorExit:  # it is closed, and may have cleaned up for a while
            if self.departure is None:
                await self._wait(("over", reply.n, 0), "cut")
            raise
        await self._end(call, reply)

    async def _end(self, call: str, reply: Reply, use: str = "") -> None:
        if reply.end == "cut" or reply.over is None:
            try:
                await self._hang(call, reply)
            finally:  # what was cut at one moment may take its time to clean up
                if reply.over is not None and self.departure is None:
                    await self._until(reply.over, ("over", reply.n, 0), reply.end)
            return
        await self._until(reply.over, ("over", reply.n, 0), reply.end)
        if reply.end == "failed":
            raise again(reply.error or {"type": "Exception"}, {reply.use: use})

    # ---- tools

    def around_tool(self, event: PreActing, source: ToolSource) -> Mono[ToolResultBlock]:
        """The recorded result in the tool's place."""
        return Mono(partial(self._play, event, source))

    def _play(self, event: PreActing, source: ToolSource) -> Awaitable[Any]:
        frame = event.frame
        place = self._places.get(frame.call_id) or self._begin(event, frame)
        use, call = event.tool_use, place.call
        run = run_of(frame.context)
        mine = self._pairs.get(call)
        tool = run.config.tools.get(use.name)
        if self.goes == "live":
            return self._work(event, source if use.name in self._tools else source.instead(partial(refused, use)))
        work = None if mine is None else self.script.work(mine, self._facing.number(call, use.id))
        if work is None and mine in self.script.broken_off:
            return self._work(event, source.instead(lambda _: self._hang(call)))
        if work is None:
            now = f"{use.name} {use.raw}"
            self._depart(Departure(event="tool", iteration=event.iteration, source=place.source, now=now, lost=True))
            return self._work(event, source.instead(lambda _: self._hang(call)))
        self._played[call, use.id] = work
        inside = tool is not None and wrapped_agent(tool.function) is not None
        if (inside and work.children) or (tool is None and (work.error or {}).get("type") == "ToolNotFoundError"):
            return self._inside(event, source, work)
        for child in work.children:  # its tool does not run: what its sub-agents did is taken as done
            self._events += len(self.script.steps[child])
        self._taken_as_done(work.children)
        return self._work(event, source.instead(partial(self._worked, call, work, use.id)))

    async def _inside(self, event: PreActing, source: ToolSource, work: Reply) -> ToolResultBlock | Empty:
        """Work that is done for real: that of a sub-agent, or of a tool that is not there."""
        await self._wait(("begun", work.n, 0), work.end)
        try:
            return await self._work(event, source)
        finally:
            if self.departure is None:
                await self._wait(("over", work.n, 0), work.end)

    def _taken_as_done(self, calls: Iterable[str]) -> None:
        for key in self.script.all_of(calls):
            self._turns.happened(key)

    async def _worked(self, call: str, work: Reply, use: str, context: ToolCall) -> object:
        await self._wait(("begun", work.n, 0), work.end)
        done = 0
        for key, due in self._doings(work):
            await self._until(due, key, work.end)
            if key[0] == "chunk":
                await context.emitter.emit(due.piece)
            else:
                self._inject(context, work.injected[done : done + 1])
                done += 1
        self._inject(context, work.injected[done:])
        if work.interrupts is not None:
            await self._wait(("cut", self._pairs[call], 0))
            context.run.interrupt(work.interrupts)
        await self._end(call, work, use)
        if work.result is None:
            return None
        return self.script.log.tool_result(work.result)

    def _doings(self, work: Reply) -> list[tuple[Key, Due]]:
        """The chunks and injections of a tool's work, in order."""
        doings: list[tuple[Key, Due]] = [(("chunk", work.n, n), due) for n, due in enumerate(work.pieces)]
        doings += [(("mark", work.n, n), due) for n, (mark, due) in enumerate(work.marks) if mark.what == "injected"]
        return sorted(doings, key=lambda doing: self.script.order.places[doing[0]])

    def _inject(self, context: ToolCall, injected: Iterable[Injection]) -> None:
        for one in injected:
            messages = [self.script.log.message(ref) for ref in one.messages]
            context.run.inject(*messages, keep=one.keep)
