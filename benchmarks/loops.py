"""Call, round, streamed round, chunk, history: the loop against the bare loop.

A round is measured as the slope: a call with many rounds minus a call with none, over the number of rounds. Bodies use
one conversation for a turn, as a program does; ids of tool calls are unique in it.
"""

from __future__ import annotations

import sys
from typing import Any

from agentflow import Agent, Msg, Session, ToolUseBlock, tool
from agentflow.vocabulary.messages import ToolResultBlock
from benchmarks.bare import Chunks, Script, add, answer, bare_call, bare_stream, tool_reply, user
from benchmarks.measure import Body, Effort, Turns, measure
from benchmarks.report import Figure

__all__ = ["OURS", "agent_of", "call", "chunk", "history", "round_", "streamed"]

_TOOL = tool(add)
_ROUNDS = 40


def _rounds(count: int) -> Script:
    return Script(*[tool_reply(i) for i in range(count)], answer())


def agent_of(model: Any, **options: Any) -> Agent:
    """The agent that is measured: one tool, no limit that counts."""
    return Agent("benchmark", model, tools=[_TOOL], max_iterations=1_000, **options)


def us(seconds: float) -> str:
    """A time in microseconds, as text."""
    return f"{seconds * 1e6:.2f} µs"


def _pair(ours: float, bare: float) -> str:
    return f"{us(ours)} against {us(bare)}"


# ---- a call without tools


def calls(fresh: bool = False, **options: Any) -> Body:
    """`await agent.call(...)`, in one conversation or in a fresh session each."""
    model = Script(answer())

    async def body(count: int) -> None:
        agent = agent_of(model, **options)
        if fresh:
            for _ in range(count):
                await agent.call("What is 1 + 2?", session=Session.fresh())
            return
        for _ in range(count):
            await agent.call("What is 1 + 2?")

    return body


def bare_calls(fresh: bool = False) -> Body:
    """The bare loop, in one conversation or with a fresh list each."""
    model = Script(answer())

    async def body(count: int) -> None:
        messages: list[Any] = []
        for _ in range(count):
            if fresh:
                messages = []
            messages.append(user("What is 1 + 2?"))
            await bare_call(model, messages)

    return body


async def call(effort: Effort) -> list[Figure]:
    """A call without tools: one reply, one chunk."""
    turns = await measure(
        effort, bare_calls(), calls(), calls(default_hooks=()), bare_calls(fresh=True), calls(fresh=True)
    )
    return [
        Figure("call", "call without tools", turns.ratio(1, 0), budget=5.0, detail=_pair(turns.best(1), turns.best(0))),
        Figure("call", "  without the default hooks", turns.ratio(2, 0), detail=us(turns.best(2))),
        Figure("call", "  each in a Session.fresh()", turns.ratio(4, 3), detail=_pair(turns.best(4), turns.best(3))),
    ]


# ---- a round


def call_with(rounds: int, **options: Any) -> Body:
    """A call with so many rounds."""
    agent = agent_of(_rounds(rounds), **options)

    async def body(count: int) -> None:
        for _ in range(count):
            await agent.call("What is 1 + 2?", session=Session.fresh())

    return body


def bare_call_with(rounds: int) -> Body:
    """The same by hand."""
    model = _rounds(rounds)

    async def body(count: int) -> None:
        for _ in range(count):
            await bare_call(model, [user("What is 1 + 2?")], 1_000)

    return body


async def round_(effort: Effort) -> list[Figure]:
    """A ReAct round: one reply in one chunk, one tool with validated arguments; no hooks of the user's."""
    n = _ROUNDS
    turns = await measure(
        effort,
        bare_call_with(0),
        bare_call_with(n),
        call_with(0),
        call_with(n),
        call_with(0, default_hooks=()),
        call_with(n, default_hooks=()),
    )
    return _round_figures("round", "ReAct round, no hooks of one's own", turns, 3.8)


def _round_figures(row: str, what: str, turns: Turns, budget: float) -> list[Figure]:
    """Figures of bare, ours, and ours without default hooks: each with no round and with many."""
    ratio, plain = turns.slope_ratio((3, 2), (1, 0)), turns.slope_ratio((5, 4), (1, 0))
    bare, ours, bare_plain = (turns.slope(many, many - 1, _ROUNDS) for many in (1, 3, 5))
    return [
        Figure(row, what, ratio, budget=budget, detail=_pair(ours, bare)),
        Figure(row, "  without the default hooks", plain, detail=us(bare_plain)),
    ]


def streamed_with(rounds: int, **options: Any) -> Body:
    """A call with so many rounds, its stream read to the end."""
    agent = agent_of(_rounds(rounds), **options)

    async def body(count: int) -> None:
        for _ in range(count):
            async with agent.stream("What is 1 + 2?", session=Session.fresh()) as events:
                async for _event in events:
                    pass

    return body


def bare_streamed_with(rounds: int) -> Body:
    """The same by hand."""
    model = _rounds(rounds)

    async def body(count: int) -> None:
        for _ in range(count):
            async for _item in bare_stream(model, [user("What is 1 + 2?")], 1_000):
                pass

    return body


async def streamed(effort: Effort) -> list[Figure]:
    """A streamed round: six events and the chunk, all handed to the reader; the bare one hands on chunk and result."""
    n = _ROUNDS
    turns = await measure(
        effort,
        bare_streamed_with(0),
        bare_streamed_with(n),
        streamed_with(0),
        streamed_with(n),
        streamed_with(0, default_hooks=()),
        streamed_with(n, default_hooks=()),
    )
    whole = _pair(turns.best(2), turns.best(0))
    return [
        *_round_figures("streamed", "streamed ReAct round", turns, 5.5),
        Figure("streamed", "  a streamed call without tools", turns.ratio(2, 0), detail=whole),
    ]


# ---- a chunk


def chunks_of(chunk_count: int) -> Body:
    """A streamed call with a number of chunks in its reply."""
    agent = agent_of(Chunks(chunk_count))

    async def body(count: int) -> None:
        for _ in range(count):
            async with agent.stream("Tell me a story.", session=Session.fresh()) as events:
                async for _event in events:
                    pass

    return body


def bare_chunks_of(chunk_count: int) -> Body:
    """An `async for` over the model's stream, which does nothing else."""
    model = Chunks(chunk_count)

    async def body(count: int) -> None:
        for _ in range(count):
            async for _chunk in model.stream(None):
                pass

    return body


def joined_chunks_of(chunk_count: int) -> Body:
    """The bare streaming loop, which joins the text and hands each chunk on."""
    model = Chunks(chunk_count)

    async def body(count: int) -> None:
        for _ in range(count):
            async for _item in bare_stream(model, [user("Tell me a story.")]):
                pass

    return body


async def chunk(effort: Effort) -> list[Figure]:
    """A chunk from model to consumer, the fixed cost of a call taken off, at three lengths.

    The hand-written counterpart is an async generator too: it joins the text and hands each chunk on to an `async for`.
    Printed beside it is an `async for` directly over the model's stream, which stores nothing and serves no other reader.
    """
    budget = 2.5 if sys.version_info >= (3, 12) else 4.0
    figures: list[Figure] = []
    ratios: list[float] = []
    sizes = (20, 50, 100) if effort.quick else (2_000, 20_000, 200_000)
    for size in sizes:
        fewer = Effort(max(1, effort.turns // 2) if size > 20_000 else effort.turns, effort.seconds, effort.quick)
        turns = await measure(
            fewer, chunks_of(1), chunks_of(size), joined_chunks_of(1), joined_chunks_of(size), bare_chunks_of(1),
            bare_chunks_of(size),
        )  # fmt: skip
        ours, bare, direct = (turns.slope(many, many - 1, size - 1) for many in (1, 3, 5))
        ratios.append(turns.slope_ratio((1, 0), (3, 2)))
        alone = turns.slope_ratio((1, 0), (5, 4))
        figures += [
            Figure(
                "chunk", f"chunk to consumer, {size:,} of them", ratios[-1], budget=budget, detail=_pair(ours, bare)
            ),
            Figure("chunk", "  against `async for` over the model alone", alone, detail=us(direct)),
        ]
    figures.append(Figure("chunk", "ratio at the longest against the shortest", ratios[-1] / ratios[0], budget=1.2))
    return figures


# ---- history


def conversation(size: int) -> list[Msg]:
    """A legal conversation of so many messages, with rounds of tools."""
    messages: list[Msg] = []
    while len(messages) < size:
        use = ToolUseBlock(f"old_{len(messages)}", "add", {"a": 1, "b": 2})
        messages += [
            Msg.user("What is 1 + 2?"),
            Msg.assistant([use]),
            Msg.tool([ToolResultBlock(use.id, "add", "3")]),
            Msg.assistant("It is 3."),
        ]
    return messages[:size] if size % 4 in (0, 1) else messages[: size - size % 4]


def rounds_behind(size: int, rounds: int) -> Body:
    """A call with so many rounds in a session that already holds so many messages; only the calls are timed."""
    agent = agent_of(_rounds(rounds))
    sessions = iter([Session.fresh(messages=conversation(size)) for _ in range(64)])

    async def body(count: int) -> None:
        await agent.call("What is 1 + 2?", session=next(sessions))

    return body


async def history(effort: Effort) -> list[Figure]:
    """A round after 10, 1,000 and 10,000 messages of history (the model does not read them: a wire would have to)."""
    sizes = (10, 100) if effort.quick else (10, 1_000, 10_000)
    n = 200
    fewer = Effort(min(effort.turns, 16), effort.seconds, effort.quick)
    turns = await measure(fewer, *[rounds_behind(size, n) for size in sizes], count=1)
    return [
        Figure(
            "history",
            f"round after {size:,} messages",
            turns.ratio(side, 0),
            budget=1.15 if side else None,
            detail=us(turns.best(side) / n),
        )
        for side, size in enumerate(sizes)
    ]


OURS: dict[str, Body] = {
    "call": calls(),
    "round": call_with(_ROUNDS),
    "streamed": streamed_with(_ROUNDS),
    "chunk": chunks_of(2_000),
}
"""The library's side of some rows, for `--profile`."""
