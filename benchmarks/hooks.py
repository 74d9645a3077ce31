"""The hook grid: the cost of an event with n hooks of one kind, compared with calling the same n methods directly."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import reactivex as rx

from agentflow import Agent, Hook, HookEvent, Mono, PreActing, Session, ToolUseBlock
from agentflow.loop.call import Call
from agentflow.loop.run import RunSettings
from benchmarks.bare import Script, answer
from benchmarks.measure import Body, Effort, measure
from benchmarks.report import Figure

__all__ = ["hooks", "unheard"]


class SyncHook(Hook):
    """Returns the event."""

    def on_event(self, event: HookEvent) -> HookEvent:
        return event


class AsyncHook(Hook):
    """Returns the event from a coroutine."""

    async def on_event(self, event: HookEvent) -> HookEvent:
        return event


class JustHook(Hook):
    """Returns the event in a Mono."""

    def on_event(self, event: HookEvent) -> Mono[HookEvent]:
        return Mono.just(event)


class DeferHook(Hook):
    """Returns a Mono that is made when the hook is called."""

    def on_event(self, event: HookEvent) -> Mono[HookEvent]:
        return Mono.defer(lambda: Mono.just(event))


class ForeignHook(Hook):
    """Returns reactivex's own Observable."""

    def on_event(self, event: HookEvent) -> Any:
        return rx.just(event)


def _run_with(hooks: Sequence[Hook]) -> Any:
    """Return a call of an agent with these hooks that has not begun, to fire events of."""
    agent = Agent("benchmark", Script(answer()), hooks=list(hooks), default_hooks=())
    config = agent.config
    return Call(config, agent.hooks, Session.fresh(), "run_1", RunSettings(config.options))


def fired(kind: type[Hook], count: int) -> Body:
    """An event that so many hooks see: built, passed through the chain, sealed."""
    use = ToolUseBlock("t1", "add", {"a": 1, "b": 2})
    found: list[Any] = []

    async def body(times: int) -> None:
        if not found:
            found.append(_run_with([kind() for _ in range(count)]))
        run = found[0]
        for _ in range(times):
            await run.events.emit(PreActing, (use, None))

    return body


def by_hand(kind: type[Hook], count: int) -> Body:
    """The same methods called (or awaited) in a loop with an event that is already there."""
    methods: list[Any] = [kind().on_event for _ in range(count)]
    event = PreActing(tool_use=ToolUseBlock("t1", "add", {"a": 1, "b": 2}))

    async def called(times: int) -> None:
        current = event
        for _ in range(times):
            for method in methods:
                current = method(current)

    async def awaited(times: int) -> None:
        current = event
        for _ in range(times):
            for method in methods:
                current = await method(current)

    return called if kind is SyncHook else awaited


_KINDS: tuple[tuple[str, type[Hook], type[Hook], float | None], ...] = (
    ("sync", SyncHook, SyncHook, 2.0),
    ("async def", AsyncHook, AsyncHook, 1.8),
    ("Mono.just", JustHook, AsyncHook, 3.5),
    ("Mono.defer", DeferHook, AsyncHook, None),
    ("rx.just", ForeignHook, AsyncHook, None),
)


async def hooks(effort: Effort) -> list[Figure]:
    """No-op hooks per event; Observables are measured against awaiting an `async def` that does the same."""
    figures: list[Figure] = []
    for name, kind, like, budget in _KINDS:
        many = 10 if effort.quick else 100
        turns = await measure(
            effort,
            fired(kind, 0),
            fired(kind, 1),
            fired(kind, 10),
            fired(kind, many + 10),
            by_hand(like, 1),
            by_hand(like, 10),
            by_hand(like, many + 10),
        )
        none, one, ten, _, _, bare_ten, _ = (turns.best(side) * 1e6 for side in range(7))
        events = f"events with 0, 1, 10 hooks: {none:.2f}, {one:.2f}, {ten:.2f} µs; ten by hand {bare_ten:.2f}"
        more, bare_more = turns.slope(3, 2, many) * 1e6, turns.slope(6, 5, many) * 1e6
        figures += [
            Figure("hooks", f"{name}: ten hooks on an event", turns.ratio(2, 5), budget=budget, detail=events),
            Figure(
                "hooks",
                f"  one more {name} hook",
                turns.slope_ratio((3, 2), (6, 5)),
                budget=1.2 if kind is AsyncHook else None,
                detail=f"{more:.3f} µs against {bare_more:.3f}",
            ),
        ]
    return figures


async def unheard(effort: Effort) -> list[Figure]:
    """An event that no hook handles: `events.fire`, which looks and counts."""
    run = _run_with([])
    use = ToolUseBlock("t1", "add", {"a": 1, "b": 2})

    async def skipped(times: int) -> None:
        for _ in range(times):
            run.events.fire(PreActing, (use, None))

    async def nothing(times: int) -> None:
        for _ in range(times):
            pass

    turns = await measure(effort, nothing, skipped, fired(SyncHook, 0))
    skip, called = turns.slope(1, 0, 1) * 1e6, turns.slope(2, 0, 1) * 1e6
    return [
        Figure("unheard", "event without listeners", skip, "µs", 0.05),
        Figure("unheard", "  through `await events.emit(...)`", called, "µs"),
    ]
