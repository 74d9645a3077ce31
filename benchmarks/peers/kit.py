"""Shared by all sides of the race: the model's replies, the tools, and the counts of work.

Only the standard library, so that it runs in every side's environment. Rules:

1. A side's model asks `Plan.turn` for its reply, its tools are the functions below, its hooks call `hooked`: their counts are
   compared with the workload after every turn, so no side can leave work out.
2. A side's model waits for nothing, unless the plan says so.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Protocol

__all__ = [
    "ANSWER",
    "ARGUMENTS",
    "PROMPT",
    "WORD",
    "Counts",
    "Plan",
    "Side",
    "add",
    "add_now",
    "counts",
    "hooked",
    "ids",
    "wait_a_millisecond",
    "wait_a_millisecond_now",
]

PROMPT = "What is 1 + 2?"
ANSWER = "It is 3."
WORD = "word "
ARGUMENTS = {"add": '{"a": 1, "b": 2}', "wait_a_millisecond": "{}"}


@dataclass
class Counts:
    """The work that was done: model calls, tool runs, hook calls, chunks of text that a reader received, and the messages that
    all model calls together were shown."""

    model: int = 0
    tools: int = 0
    hooks: int = 0
    chunks: int = 0
    seen: int = 0

    def take(self) -> Counts:
        """The counts since the last request."""
        taken = Counts(self.model, self.tools, self.hooks, self.chunks, self.seen)
        self.model = self.tools = self.hooks = self.chunks = self.seen = 0
        return taken


counts = Counts()


@dataclass
class Plan:
    """The replies of a model in each call, repeated.

    Attributes:
        rounds: Replies that ask for tools, before the answer.
        calls: Tools that each of them asks for.
        tool: Their name.
        chunks: Chunks of the answer: `ANSWER` is one, more are so many times `WORD`.
        wait: Seconds before a reply.
        pause: Seconds between the chunks of a streamed answer (only in sides that `benchmarks.serve` measures).
        crowd: Many calls at once, of one round each: the conversation shows the place in a call.
    """

    rounds: int = 0
    calls: int = 1
    tool: str = "add"
    chunks: int = 1
    wait: float = 0.0
    pause: float = 0.0
    crowd: bool = False
    place: int = 0

    def turn(self, answered: bool, messages: int) -> bool:
        """Whether the model's next reply asks for tools.

        Args:
            answered: The conversation that the model was given ends in a tool's result.
            messages: How many messages it has.
        """
        counts.model += 1
        counts.seen += messages
        if self.crowd:
            return not answered
        if answered is not (self.place > 0):
            raise AssertionError(f"request {self.place} of a call {'ends' if answered else 'does not end'} in a result")
        asks = self.place < self.rounds
        self.place = self.place + 1 if asks else 0
        return asks

    @property
    def pieces(self) -> list[str]:
        """The answer, as it is streamed."""
        return [ANSWER] if self.chunks == 1 else [WORD] * self.chunks

    @property
    def answer(self) -> str:
        """The answer as a whole."""
        return "".join(self.pieces)


_last_id = 0


def ids(number: int) -> list[str]:
    """So many ids of tool calls, never used before."""
    global _last_id  # noqa: PLW0603 - one counter for a process
    _last_id += number
    return [f"call_{_last_id - place}" for place in range(number)]


def hooked() -> None:
    """The work of every hook."""
    counts.hooks += 1


async def add(a: int, b: int) -> str:
    """Add two numbers."""
    counts.tools += 1
    return str(a + b)


async def wait_a_millisecond() -> str:
    """Wait, as for a database."""
    counts.tools += 1
    await asyncio.sleep(0.001)
    return "done"


def add_now(a: int, b: int) -> str:
    """Add two numbers."""
    counts.tools += 1
    return str(a + b)


def wait_a_millisecond_now() -> str:
    """Wait, as for a database."""
    time.sleep(0.001)
    counts.tools += 1
    return "done"


class Side(Protocol):
    """The contents of a side's module.

    Attributes:
        HOOKS: Its no-op hooks before each model call and each tool call; or the reason why it has none.
        WITHOUT: Its missing features, and the reasons: `hooks`, `streams`, `chunks`, `wire` … (may be missing).
        NOTES: The choices made for it, and the reasons.
    """

    HOOKS: str | None
    WITHOUT: dict[str, str]
    NOTES: tuple[str, ...]

    def build(self, plan: Plan, hooks: bool = False) -> Any:
        """An agent with the plan's model and tool, and no limit that counts."""
        ...

    call: Callable[..., Awaitable[str]]
    """`await call(agent, history=None)`: a call in a conversation of its own, and the text of its answer."""
