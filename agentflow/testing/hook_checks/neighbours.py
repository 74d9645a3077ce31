"""Other hooks to run with the hook under test: correct ones of every kind, and failing ones.

They are stateless: one-time actions are recorded in the run's context.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import Any, Unpack

from agentflow.hooks.functions import FunctionHook, HookAttributes
from agentflow.hooks.hook import Hook
from agentflow.reactive import Mono
from agentflow.testing.hook_checks.scenes import PlantedError
from agentflow.vocabulary.events import (
    EVENT_TYPES,
    Event,
    PostActing,
    PostCall,
    PostReasoning,
    PostToolRound,
    PreActing,
    PreReasoning,
    TurnEvent,
)
from agentflow.vocabulary.messages import Msg
from agentflow.vocabulary.verdicts import Again, Answer, Deny, Stop

# The scenes use no turn queue, so they fire no turn events.
_CALL_EVENTS: tuple[type[Event], ...] = tuple(kind for kind in EVENT_TYPES if not issubclass(kind, TurnEvent))


class _Once:
    """Counts the actions of a run, so that some happen only once."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}

    def first(self, action: str) -> bool:
        """Count an action, and return whether it is the first one of its name."""
        self.counts[action] = self.counts.get(action, 0) + 1
        return self.counts[action] == 1


def _adds_a_note(event: PreReasoning) -> None:
    event.input_messages = (*event.input_messages, Msg.user("(a note of a neighbour)"))


def _forgets(event: PreReasoning) -> PreReasoning:
    head, rest = event.input_messages[:1], event.input_messages[1:]
    return event.replace(input_messages=(*head, *rest[-1:]))


async def _marks(event: PostActing) -> PostActing:
    await asyncio.sleep(0.001)
    result = event.tool_result
    marked = type(result)(result.tool_use_id, result.name, f"{result.text} (marked)", result.state)
    return event.replace(tool_result=marked)


def _injects(event: PostToolRound) -> Any:
    return Mono.from_callable(lambda: event.context.inject("injected by a neighbour"))


def _denies(event: PreActing) -> Deny | None:
    return Deny("a neighbour says no") if event.tool_use.name == "save" else None


def _answers(event: PreActing) -> Answer | None:
    return Answer("a neighbour knows") if event.tool_use.name == "look" else None


def _renames(event: PreActing) -> None:
    if event.tool_use.name == "flow":
        event.tool_use = event.tool_use.replace(name="look")


def _asks_again(event: PostReasoning) -> Again | None:
    return Again("say more") if event.purpose == "reason" and event.context.state[_Once].first("again") else None


def _stops(event: PostToolRound) -> Stop | None:
    return None if event.context.state[_Once].first("stop") else Stop("a neighbour has had enough")


def _signs(event: PostCall) -> PostCall:
    final = event.final_message
    return (
        event if final.tool_uses else event.replace(final_message=Msg.assistant(f"{final.text} (signed)", id=final.id))
    )


_KINDS: tuple[tuple[Callable[[Any], Any], type[Event], HookAttributes], ...] = (
    (_adds_a_note, PreReasoning, {}),
    (_forgets, PreReasoning, {}),
    (_marks, PostActing, {}),
    (_injects, PostToolRound, {}),
    (_denies, PreActing, {"guard": True}),
    (_answers, PreActing, {}),
    (_renames, PreActing, {}),
    (_asks_again, PostReasoning, {}),
    (_stops, PostToolRound, {"guard": True}),
    (_signs, PostCall, {}),
    (_marks, PostActing, {"shadow": True}),
)


_ROLES: tuple[HookAttributes, ...] = ({}, {"observer": True}, {"on_failure": "skip"})


def _same(value: object) -> object:
    return value


class _Wraps(Hook):
    """Wraps the work of every stage without changing its results."""

    events = ()

    def around(self, event: Any, source: Any) -> Any:
        """Pass the work through an operator."""
        return source.map(_same)


def _failing(kind: type[Event], nth: int, **options: Unpack[HookAttributes]) -> Hook:
    """Return a hook that fails on the nth event of a type in each run."""

    def neighbour_fails(event: Event) -> None:
        once = event.context.state[_Once]
        once.first(f"{kind.__name__} {nth}")
        if once.counts[f"{kind.__name__} {nth}"] == nth:
            raise PlantedError(f"a neighbour fails on {kind.__name__}")

    return FunctionHook(neighbour_fails, (kind,), **options)


def neighbours(random: Random) -> list[Hook]:
    """Return a random set of hooks at random priorities around the default."""
    found: list[Hook] = []
    for handler, kind, options in random.sample(_KINDS, random.randint(1, 4)):
        priority = random.choice((0, 60, 99, 101, 250, 700))
        found.append(FunctionHook(handler, (kind,), **{**options, "priority": priority}))
    if random.random() < 0.4:
        wraps = _Wraps()
        wraps.priority = random.choice((0, 99, 101, 700))
        found.append(wraps)
    if random.random() < 0.5:
        role = random.choice(_ROLES)
        position = random.choice((0, 99, 101, 700))
        found.append(_failing(random.choice(_CALL_EVENTS), random.randint(1, 2), **{**role, "priority": position}))
    random.shuffle(found)
    return found
