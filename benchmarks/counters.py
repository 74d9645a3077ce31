"""Counters: the code that a call, a round and a streamed round execute, and the blocks of memory that they keep.

They are the same on every machine, so tests hold them. A round, a chunk, a hook and a wrapper are slopes: a run with more of
them less one with fewer, divided by the difference.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

import agentflow
from agentflow import Agent, Hook, HookEvent, PreActing, PreReasoning, Session, on
from agentflow.recording.recorder import Recorder
from agentflow.vocabulary.chunks import ModelChunk
from benchmarks.allocations import ALLOCATIONS, BLOCKS
from benchmarks.bare import Script, answer, tool_reply
from benchmarks.counting import Counts, counted
from benchmarks.layers import Mapped
from benchmarks.loops import agent_of
from benchmarks.measure import Effort
from benchmarks.plugins import added, all_plugins, counted_round, sampling
from benchmarks.report import Figure

__all__ = ["ALLOWED", "BUDGETS", "COUNTERS", "counters", "depth"]

_PACKAGE = str(Path(agentflow.__file__).parent)
_ROUNDS = 10

ALLOWED = 1.03
"""What is counted may exceed its budget by this factor."""

BUDGETS: dict[str, Counts] = {
    "a call": Counts(63, 3115, 7),
    "one more round": Counts(42, 2039, 5),
    "one more streamed round": Counts(75.9, 3580, 12.5),
    "one more streamed chunk": Counts(3.2, 301, 1),
    "the first PreActing hook, a round": Counts(2, 142, 0),
    "one more PreActing hook, a round": Counts(0, 15, 0),
    "the first wrapper of the model, a round": Counts(16, 398, 1),
    "the first wrapper of a tool, a round": Counts(15, 390, 1),
    "one more round with all plugins": Counts(471, 14338, 26),
    "the Recorder, a round": Counts(49, 2198, 3),
    "OpenTelemetry sampled out, a round": Counts(11, 147, 0),
}
"""The counts on Python 3.12; those of 3.13 are a little lower. Hooks and plugins are differences to a round without them,
so they rise if only that becomes cheaper."""

DEPTH = 6
"""The frames of ours below a `PreActing` hook."""


async def _called(agent: Agent, session: Session) -> None:
    await agent.call("What is 1 + 2?", session=session)


async def _streamed(agent: Agent, session: Session) -> None:
    async with agent.stream("What is 1 + 2?", session=session) as events:
        async for _ in events:
            pass


async def _of(
    rounds: int, way: Callable[[Agent, Session], Awaitable[None]] = _called, hooks: Sequence[Hook] = ()
) -> Counts:
    agent = agent_of(Script(*[tool_reply(number) for number in range(rounds)], answer()), hooks=hooks)
    for _ in range(2):
        await way(agent, Session.fresh())
    session = Session.fresh()
    return await counted(lambda: way(agent, session))


async def _round(way: Callable[[Agent, Session], Awaitable[None]] = _called, hooks: Sequence[Hook] = ()) -> Counts:
    return (await _of(2 * _ROUNDS, way, hooks)).per(await _of(_ROUNDS, way, hooks), _ROUNDS)


async def call() -> Counts:
    """A call without tools."""
    return await _of(0)


async def streamed() -> Counts:
    """One more streamed round, its events read."""
    return await _round(_streamed)


async def chunk() -> Counts:
    """One more chunk of a streamed reply, read."""

    async def of(count: int) -> Counts:
        agent = agent_of(Script([*[ModelChunk("word ")] * (count - 1), *answer()]))
        for _ in range(2):
            await _streamed(agent, Session.fresh())
        session = Session.fresh()
        return await counted(lambda: _streamed(agent, session))

    return (await of(10 * _ROUNDS)).per(await of(2 * _ROUNDS), 8 * _ROUNDS)


def _passing(count: int) -> list[Hook]:
    return [on(PreActing)(lambda event: event) for _ in range(count)]


async def first_hook() -> Counts:
    """The first `PreActing` hook, in one round."""
    return (await _round(hooks=_passing(1))).per(await _round())


async def further_hook() -> Counts:
    """One more `PreActing` hook, in one round."""
    return (await _round(hooks=_passing(11))).per(await _round(hooks=_passing(1)), 10)


async def model_wrapper() -> Counts:
    """The first `around` on the model, one `map`, in one round."""
    return (await _round(hooks=[Mapped(PreReasoning)])).per(await _round())


async def tool_wrapper() -> Counts:
    """The first `around` on a tool, one `map`, in one round."""
    return (await _round(hooks=[Mapped(PreActing)])).per(await _round())


COUNTERS: dict[str, Callable[[], Awaitable[Counts]]] = {
    "a call": call,
    "one more round": _round,
    "one more streamed round": streamed,
    "one more streamed chunk": chunk,
    "the first PreActing hook, a round": first_hook,
    "one more PreActing hook, a round": further_hook,
    "the first wrapper of the model, a round": model_wrapper,
    "the first wrapper of a tool, a round": tool_wrapper,
    "one more round with all plugins": lambda: counted_round(all_plugins),
    "the Recorder, a round": lambda: added(lambda: [Recorder()]),
    "OpenTelemetry sampled out, a round": lambda: added(lambda: [sampling(ALWAYS_OFF)]),
}


class _Depth(Hook):
    """Counts the frames of the package below itself."""

    found = 0

    def on_event(self, event: HookEvent) -> HookEvent:
        if isinstance(event, PreActing):
            frame: Any = sys._getframe(1)  # pyright: ignore[reportPrivateUsage] # inspect.stack() reads sources too
            self.found = 0
            while frame is not None:
                self.found += frame.f_code.co_filename.startswith(_PACKAGE)
                frame = frame.f_back
        return event


async def depth() -> int:
    """Return the number of frames of the package below a `PreActing` hook."""
    hook = _Depth()
    await _called(agent_of(Script(tool_reply(0), answer()), hooks=[hook]), Session.fresh())
    return hook.found


async def counters(effort: Effort) -> list[Figure]:
    """Functions of ours entered, bytecodes, coroutines and blocks of memory kept; the same on every machine."""
    kept = {
        "call": "blocks of memory a call and its session keep at the peak",
        "round": "  one more round",
        "streamed": "  one more streamed round",
        "chunk": "  one more chunk",
        "hook": "  a hook that handles all events",
    }
    figures = []
    for name, count in COUNTERS.items():
        found, most = await count(), BUDGETS.get(name)
        for what, value, limit in zip(Counts._fields, found, most or (None,) * 3, strict=True):
            figures.append(
                Figure("counters", f"{name}: {what}", value, "", None if limit is None else round(limit * ALLOWED, 1))
            )
    figures.append(Figure("counters", "frames below a PreActing hook", await depth(), "", DEPTH))
    return figures + [
        Figure("counters", kept[name], round(await count()), "", BLOCKS[name]) for name, count in ALLOCATIONS.items()
    ]
