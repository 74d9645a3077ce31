"""How events, facts and history relate: one real call, shown three times."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from agentflow import Agent, HookEvent, MemoryStore, Msg, ToolUseBlock, on, tool
from agentflow.state import StoreWrapper
from agentflow.testing import ScriptedModel
from agentflow.vocabulary.events import EVENT_TYPES, ActingEvent, Event, ReasoningEvent
from website.pictures.svg import Colour, Picture

if TYPE_CHECKING:
    from agentflow.vocabulary.facts import Fact
    from agentflow.vocabulary.ports.store import Claim

__all__ = ["draw"]


class Moment(NamedTuple):
    """An event that a hook has received, or a fact that was stored."""

    kind: Literal["event", "fact"]
    what: Any


class Watched(StoreWrapper):
    """A store that records what it receives."""

    def __init__(self, log: list[Moment]) -> None:
        super().__init__(MemoryStore())
        self._log = log

    def append(
        self, session_id: str, facts: Sequence[Fact], *, expected: int | None = None, claim: Claim | None = None
    ) -> Awaitable[None] | None:
        """Store facts."""
        self._log += [Moment("fact", fact) for fact in facts]
        return super().append(session_id, facts, expected=expected, claim=claim)


def observed() -> tuple[list[Moment], list[Msg]]:
    """Run a call with one tool. Return its events and facts, in order, and the messages of the history."""
    log: list[Moment] = []

    @on(*EVENT_TYPES, observer=True)
    def see(event: HookEvent) -> None:
        log.append(Moment("event", event))

    @tool(type="read")
    async def add(a: int, b: int) -> int:
        return a + b

    async def call() -> list[Msg]:
        model = ScriptedModel([ToolUseBlock("t1", "add", {"a": 1, "b": 2}), "It is 3."])
        agent = Agent("calculator", model, tools=[add], hooks=[see], store=Watched(log), default_hooks=())
        await agent.call("1 + 2?", session="s")
        return list(await agent.history("s"))

    return log, asyncio.run(call())


_ROW: Final = 26


def draw() -> Picture:
    """Draw the picture."""
    log, history = observed()
    top = 108
    p = Picture(
        900,
        top + _ROW * len(log) + 70,
        "One call with a tool, shown as events, as the facts that are stored, and as the messages of the history.",
    )
    columns: list[tuple[float, str, str, Colour]] = [
        (40, "events", "hooks may steer them,; readers receive them", "model"),
        (360, "facts", "decisions and results;; a store keeps them", "fact"),
        (650, "history", "the messages that the model; reads in its next request", "call"),
    ]
    for x, name, about, colour in columns:
        p.text(x, 40, name, colour, size=17, bold=True)
        for number, line in enumerate(about.split("; ")):
            p.text(x, 62 + 16 * number, line, "muted", size=12.5)
    bottom = top + _ROW * len(log)
    p.line(f"M24 {top - 14} L24 {bottom}", "plain", width=1.4)
    waiting = list(history)
    for row, moment in enumerate(log):
        y = top + row * _ROW
        name = type(moment.what).__name__
        if moment.kind == "event":
            p.chip(40, y - 14, 172, 22, [(name, 12.5, True, False)], _colour(moment.what))
            continue
        p.chip(360, y - 14, 148, 22, [(name, 12.5, True, False)], "fact")
        p.line(f"M214 {y - 3} L356 {y - 3}", "plain", dash=True, width=1.1, head=False)
        for number, message in enumerate(_new(moment.what, waiting)):
            at = y + number * _ROW
            p.chip(650, at - 14, 216, 22, [(_said(message), 12.5, True, False)], "call")
            p.line(f"M510 {y - 3} L646 {at - 3}", "fact")
    assert not waiting, "no fact has added this message"
    p.text(
        450,
        bottom + 34,
        "fold(events)  =  fold(facts)  =  history",
        "paper",
        size=15,
        anchor="middle",
        mono=True,
        bold=True,
    )
    return p


def _colour(event: Event) -> Colour:
    return "tool" if isinstance(event, ActingEvent) else "model" if isinstance(event, ReasoningEvent) else "plain"


_ADDS: Final = {"CallOpened": "user", "Reasoned": "assistant", "RoundClosed": "tool"}


def _new(fact: Fact, waiting: list[Msg]) -> list[Msg]:
    """Return the message that a fact adds to the history, and remove it from `waiting`; empty if it adds none."""
    role = _ADDS.get(type(fact).__name__)
    if role is None or not waiting or waiting[0].role != role:
        return []
    return [waiting.pop(0)]


def _said(message: Msg) -> str:
    if message.tool_uses:
        return f"{message.role}: {message.tool_uses[0].name}(1, 2)"
    return f"{message.role}: {message.text}"
