"""Helpers for plugins that handle tool calls: canonical arguments, and equal calls that share one execution of a tool."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from pydantic_core import to_json, to_jsonable_python

from agentflow.vocabulary.events import PreActing
from agentflow.vocabulary.messages import ToolResultBlock, ToolUseBlock

T = TypeVar("T")

_FLAT = frozenset({str, int, float, bool, type(None)})


def canonical(use: ToolUseBlock) -> str:
    """Return the arguments as JSON with sorted keys and no whitespace; text that is not JSON is returned unchanged.

    Example:
        >>> canonical(ToolUseBlock.from_json("t1", "add", '{"b": 2, "a": 1}'))
        '{"a":1,"b":2}'
    """
    if use.input_error is not None:
        return use.raw
    data: Any = dict(sorted(use.input.items()))
    # Only nested values need the slower encoder, which sorts their keys too.
    if not _FLAT.issuperset(map(type, data.values())):
        data = to_jsonable_python(data, fallback=str)
        return json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return to_json(data, inf_nan_mode="constants").decode()  # NaN and Infinity as json.dumps writes them


class Cache(Protocol):
    """Answers a call with the result of an earlier equal call."""

    @property
    def shares(self) -> bool:
        """Whether only one of several concurrent equal calls runs."""
        ...

    def key_of_call(self, event: PreActing) -> str:
        """Return a key that equal calls share; empty if the call is not cached."""
        ...

    async def find(self, key: str, event: PreActing) -> ToolResultBlock | None:
        """Return the cached result."""
        ...


@dataclass
class Repeats:
    """The calls of a run, executed or answered by a cache; not stored with a session.

    Attributes:
        cache: The cache; None if there is none.
        ran: The keys of the tool calls that succeeded in this run.
        cached: The cached results that are used without asking a person: maps the id of a tool call to its key and result.
        questions: The open and answered questions to a person: maps the agent's call, the round and the tool call's key to
            the id of the tool call that was asked about, and the future of the answer.
        follows: Maps the id of a tool call that took over the answer about an equal call to the id of that equal call.
        done: The ids of the tool calls that have returned a result or failed.
    """

    def __post_init__(self) -> None:
        # These are not dataclass fields, so they are not stored with the session.
        self.cache: Cache | None = None
        self.ran: set[str] = set()
        self.cached: dict[str, tuple[str, ToolResultBlock]] = {}
        self.questions: dict[tuple[str, int, str], tuple[str, asyncio.Future[Any]]] = {}
        self.follows: dict[str, str] = {}
        self.done: set[str] = set()


async def repeated(event: PreActing) -> bool:
    """Return whether the cache has the result of an equal call that ran earlier in this run; if so, keep it for this call.

    Calls of other runs do not count, because their approvals do not apply to this run.
    """
    repeats = event.context.state[Repeats]
    cache = repeats.cache
    key = "" if cache is None else cache.key_of_call(event)
    if cache is None or key not in repeats.ran:
        return False
    result = await cache.find(key, event)
    if result is None:
        return False
    repeats.cached[event.tool_use.id] = key, result
    return True


async def ask_once(event: PreActing, ask: Callable[[], Awaitable[T]]) -> T:
    """Ask about a call. If a cache runs equal calls of a round only once, the answer also applies to equal calls that ask
    before the first one has ended.
    """
    repeats = event.context.state[Repeats]
    cache = repeats.cache
    key = "" if cache is None or not cache.shares else cache.key_of_call(event)
    if not key:
        return await ask()
    key_of_question, use_id = (event.call_id, event.iteration, key), event.tool_use.id
    # One answer allows one run of the tool: when that has ended, the next equal call asks again.
    while (earlier := repeats.questions.get(key_of_question)) is not None and earlier[0] not in repeats.done:
        first, question = earlier
        answer: T | None = await asyncio.shield(question)  # a cancelled call should not cancel the question for others
        if answer is not None:  # otherwise the question was cancelled or failed: look for another one, or ask
            repeats.follows[use_id] = first
            return answer
    question = asyncio.get_running_loop().create_future()
    repeats.questions[key_of_question] = use_id, question
    try:
        answer = await ask()
        question.set_result(answer)
        return answer
    finally:
        if not question.done():  # the question was cancelled or failed: the next equal call asks again
            del repeats.questions[key_of_question]
            question.set_result(None)
