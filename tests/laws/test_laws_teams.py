"""The laws of calls, for random teams that are abandoned, interrupted or cancelled after any event.

Sub-agents, workflows, handoffs, typed answers, tools of MCP servers, approvals and resumed calls are nested.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import Any

from hypothesis import event, given, note
from hypothesis import strategies as st
from laws_checks import check_brackets, check_budget, check_history, check_numbers, check_order, check_request
from laws_harness import Seen, run
from laws_teams import Team, called

from agentflow import Hook
from agentflow.loop.history import fold_events
from agentflow.vocabulary.events import CallEnded, Error, Event, HookEvent, PreActing, PreReasoning, TurnEvent

CUTS = ("none", "none", "interrupt", "cancel", "cancel")


class Observer(Hook):
    """Records each event of a team's calls, and ends the outermost call after a number of them."""

    observer = True
    scope = "tree"
    priority = -1_000

    def __init__(self, after: int, cut: str) -> None:
        self.calls: dict[str, Seen] = defaultdict(Seen)
        self.sources: dict[str, str] = {}
        self.task: asyncio.Task[Any] | None = None
        self._left = after
        self._cut = cut

    def on_event(self, event: HookEvent) -> None:
        assert event.sealed
        self.calls[event.call_id].observed.append(event)
        self.sources.setdefault(event.call_id, event.source)
        assert self.sources[event.call_id] == event.source
        self._left -= 1
        if self._left == 0 and self._cut == "interrupt":
            event.context.interrupt("enough")
        if self._left == 0 and self._cut == "cancel" and self.task is not None:
            asyncio.get_running_loop().call_soon(self.task.cancel)


async def lived(number: int, after: int, cut: str) -> tuple[Team, Observer]:
    """Make a team's call and its resumes, and return what was observed."""
    team, observer = Team(number), Observer(after, cut)
    observer.task = asyncio.create_task(called(team, observer))
    await asyncio.wait([observer.task])
    if not observer.task.cancelled() and (error := observer.task.exception()) is not None:
        raise error
    return team, observer


def plain(seen: list[Event]) -> bool:
    """Whether these are the events of a call, not of a step that runs a tool alone."""
    return not any(isinstance(one, TurnEvent) for one in seen)


@given(st.integers(0, 1_000_000), st.integers(1, 60), st.sampled_from(CUTS))
def test_the_laws_of_calls_hold_for_teams(number: int, after: int, cut: str) -> None:
    """`CallEnded` fires once per call, last; opening events have closing events; numbers, budgets and requests obey
    the laws.
    """
    team, observer = run(lambda: lived(number, after, cut))
    note(f"{team.kind}: {[(source, len(observer.calls[call].observed)) for call, source in observer.sources.items()]}")
    event(team.kind)
    event(f"cut: {cut}")
    event(f"depth: {max((source.count('/') + bool(source) for source in observer.sources.values()), default=0)}")
    event(f"calls: {min(len(observer.calls), 5)}")
    event(f"tools: {any(isinstance(one, PreActing) for seen in observer.calls.values() for one in seen.observed)}")
    for seen in observer.calls.values():
        ends = [one for one in seen.observed if isinstance(one, CallEnded)]
        if plain(seen.observed):
            assert len(ends) == 1, [type(one).__name__ for one in seen.observed]
            assert seen.observed[-1] is ends[0]
        check_numbers(seen, ordered=False)
        check_brackets(seen)
        check_order(seen)
        check_budget(seen, 50)
        for one in seen.observed:
            if isinstance(one, PreReasoning):
                check_request(one.input_messages)
            if isinstance(one, Error):
                assert isinstance(one.error, BaseException)


@given(st.integers(0, 1_000_000), st.integers(1, 60), st.sampled_from(CUTS))
def test_the_histories_of_teams_are_legal(number: int, after: int, cut: str) -> None:
    """An abandoned team's history is legal, or waits for the answers of its last message; its events fold to it."""

    async def main() -> None:
        team, observer = await lived(number, after, cut)
        messages = await team.agent.history("ada")
        if messages:
            check_history(messages, bool(messages[-1].tool_uses))
        if team.kind in ("agent", "mcp", "typed"):  # a workflow's and a desk's calls are those of their agents
            own = [one for call, seen in observer.calls.items() if not observer.sources[call] for one in seen.observed]
            assert list(fold_events(own, ())) == list(messages)

    run(main)
