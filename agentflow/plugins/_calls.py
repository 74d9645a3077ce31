"""What the plugins about tool calls share: arguments in one form, and which calls are answered by one run of a tool."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, cast

from pydantic_core import to_json, to_jsonable_python

from agentflow.events import PreActing
from agentflow.messages import ToolResultBlock, ToolUseBlock

__all__ = ["Repeats", "asked_once", "canonical", "repeated"]

T = TypeVar("T")

_FLAT = frozenset({str, int, float, bool, type(None)})


def canonical(use: ToolUseBlock) -> str:
    """The arguments as JSON that does not depend on order or blanks; text that is no JSON stands for itself.

    Example:
        >>> canonical(ToolUseBlock.from_json("t1", "add", '{"b": 2, "a": 1}'))
        '{"a":1,"b":2}'
    """
    if use.input_error is not None:
        return use.raw
    given = use.input
    data: Any = {name: given[name] for name in sorted(given)}
    if not _FLAT.issuperset(map(type, data.values())):
        data = _in_order(to_jsonable_python(data, fallback=str))
    return to_json(data, inf_nan_mode="constants").decode()


def _in_order(value: Any) -> Any:
    if isinstance(value, dict):
        items = cast("dict[str, Any]", value)
        return {name: _in_order(items[name]) for name in sorted(items)}
    if isinstance(value, list):
        return [_in_order(item) for item in cast("list[Any]", value)]
    return cast("object", value)


class Cache(Protocol):
    """What answers a call with what the same call gave.

    `shares`: of the same calls that come at once, one runs.
    """

    @property
    def shares(self) -> bool: ...

    def key_of_call(self, event: PreActing) -> str:
        """The same for the same calls; empty: it leaves this one alone."""
        ...

    async def known(self, key: str, event: PreActing) -> ToolResultBlock | None:
        """What it holds."""
        ...


@dataclass
class Repeats:
    """The calls of a run that a cache answers, beside those that run; not stored with a session.

    Attributes:
        cache: What answers calls; None: nothing does.
        ran: The keys of the calls that have run.
        kept: What calls are to be answered with, by their ids: the key and the result.
        asking: The questions to a person that are open, or were answered, by call, round and key; each with the tool call
            that it is about.
        follows: The calls that were allowed by the answer for another one, and which.
        done: The calls that have been answered or have failed.
    """

    def __post_init__(self) -> None:
        self.cache: Cache | None = None
        self.ran: set[str] = set()
        self.kept: dict[str, tuple[str, ToolResultBlock]] = {}
        self.asking: dict[tuple[str, int, str], tuple[str, asyncio.Future[Any]]] = {}
        self.follows: dict[str, str] = {}
        self.done: set[str] = set()


async def repeated(event: PreActing) -> bool:
    """Whether a call is answered with what the same call gave earlier in this run; then that is kept for it."""
    repeats = event.context.state[Repeats]
    cache = repeats.cache
    key = "" if cache is None else cache.key_of_call(event)
    if cache is None or key not in repeats.ran:
        return False
    known = await cache.known(key, event)
    if known is None:
        return False
    repeats.kept[event.tool_use.id] = key, known
    return True


async def asked_once(event: PreActing, ask: Callable[[], Awaitable[T]]) -> T:
    """Ask about a call; of the same calls in a round that a cache runs once, about the first, whose answer holds for all."""
    repeats = event.context.state[Repeats]
    cache = repeats.cache
    key = "" if cache is None or not cache.shares else cache.key_of_call(event)
    if not key:
        return await ask()
    place, use_id = (event.call_id, event.iteration, key), event.tool_use.id
    while (known := repeats.asking.get(place)) is not None and known[0] not in repeats.done:
        first, asking = known
        answer: T | None = await asyncio.shield(asking)
        if answer is not None:
            repeats.follows[use_id] = first
            return answer
    asking = asyncio.get_running_loop().create_future()
    repeats.asking[place] = use_id, asking
    try:
        answer = await ask()
        asking.set_result(answer)
        return answer
    finally:
        if not asking.done():  # it was cancelled, or has failed: the next one asks
            del repeats.asking[place]
            asking.set_result(None)
