"""The hook grid: what an event costs that n hooks of one kind see, against calling the same n methods by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import reactivex as rx

from agentflow import Agent, Hook, HookEvent, Mono, PreActing, Session, ToolUseBlock
from agentflow.ids import new_id
from agentflow.loop.driver import Run
from benchmarks.bare import Script, answer
from benchmarks.measure import Body, Effort, best
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
    """Returns a Mono that is made when it is asked."""

    def on_event(self, event: HookEvent) -> Mono[HookEvent]:
        return Mono.defer(lambda: Mono.just(event))


class ForeignHook(Hook):
    """Returns reactivex's own Observable."""

    def on_event(self, event: HookEvent) -> Any:
        return rx.just(event)


def _run(hooks: Sequence[Hook]) -> Run:
    agent = Agent("benchmark", Script(answer()), hooks=list(hooks), default_hooks=())
    session = Session.fresh()
    return Run(agent.config, agent.hooks, session, run_id=new_id("run_"), options=agent.config.options)


def fired(kind: type[Hook], count: int) -> Body:
    """An event that so many hooks see: built, passed through the chain, sealed."""
    run = _run([kind() for _ in range(count)])
    use = ToolUseBlock("t1", "add", {"a": 1, "b": 2})

    async def body(times: int) -> None:
        for _ in range(times):
            await run.fire(PreActing, None, use, None)

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
        none, one, ten, hundred, bare_one, bare_ten, bare_many = await best(
            effort,
            fired(kind, 0),
            fired(kind, 1),
            fired(kind, 10),
            fired(kind, many + 10),
            by_hand(like, 1),
            by_hand(like, 10),
            by_hand(like, many + 10),
        )
        marginal, bare_marginal = (hundred - ten) / many, (bare_many - bare_ten) / many
        each = f"events with 0, 1, 10 hooks: {none * 1e6:.2f}, {one * 1e6:.2f}, {ten * 1e6:.2f} µs"
        figures.append(
            Figure(
                "hooks",
                f"{name}: ten hooks on an event",
                ten / bare_ten,
                budget=budget,
                detail=f"{each}; ten by hand {bare_ten * 1e6:.2f}",
            )
        )
        figures.append(
            Figure(
                "hooks",
                f"  one more {name} hook",
                marginal / bare_marginal,
                budget=1.2 if name == "async def" else None,
                detail=f"{marginal * 1e6:.3f} µs against {bare_marginal * 1e6:.3f} (one by hand {bare_one * 1e6:.3f})",
            )
        )
    return figures


async def unheard(effort: Effort) -> list[Figure]:
    """An event nobody listens to: what the driver does in its place, and `fire` where it is called all the same."""
    run = _run([])

    async def skipped(times: int) -> None:
        for _ in range(times):
            if run.chains[PreActing] is None and run.port is None:
                run.seq += 1

    async def nothing(times: int) -> None:
        for _ in range(times):
            pass

    skip, empty, called = await best(effort, skipped, nothing, fired(SyncHook, 0))
    skip, called = (skip - empty) * 1e6, (called - empty) * 1e6
    return [
        Figure("unheard", "event nobody listens to", skip, "µs", 0.05),
        Figure("unheard", "  through `await run.fire(...)`", called, "µs"),
    ]
