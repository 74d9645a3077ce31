"""`Watch`: how a reader of a run waits while a server polls the database for all its readers."""

from __future__ import annotations

import asyncio

import pytest

from agentflow.durable.following import Watch
from agentflow.durable.records import segment_id
from agentflow.errors import StoreError
from agentflow.testing import run_virtual


def test_a_reader_waits_for_later_events_and_for_the_end_of_its_call() -> None:
    """Each wait returns whether there are new events, and after how many seconds."""

    async def main() -> list[tuple[bool, float]]:
        watch, loop, seen = Watch("r"), asyncio.get_running_loop(), []

        async def wait(call: int, seq: int) -> None:
            began = loop.time()
            seen.append((await watch.wait(call, seq, 10), loop.time() - began))

        loop.call_later(1, watch.update, 4, ())  # not yet
        loop.call_later(2, watch.update, 5, ())
        await wait(1, 4)
        await wait(1, 4)  # there already
        loop.call_later(3, watch.update, 5, (segment_id("another", 1),))
        await wait(1, 5)  # the time is up
        loop.call_later(3, watch.update, 5, (segment_id("r", 1),))
        await wait(1, 5)
        loop.call_later(4, watch.update, 5, (segment_id("r", 2),))
        await wait(2, 5)  # the next call has not ended with the first
        await wait(2, 5)
        return seen

    assert run_virtual(main()) == [(True, 2), (True, 0), (False, 10), (True, 3), (True, 4), (True, 0)]


def test_a_wait_that_is_released_has_no_news_and_one_that_fails_raises() -> None:
    """The wait ends at once."""

    async def main() -> tuple[bool, float]:
        watch, loop = Watch("r"), asyncio.get_running_loop()
        loop.call_later(1, watch.release)
        news = await watch.wait(1, 0, 10)
        failing = Watch("r")
        loop.call_later(1, failing.fail, StoreError("away"))
        with pytest.raises(StoreError, match="away"):
            await failing.wait(1, 0, 10)
        return news, loop.time()

    assert run_virtual(main()) == (False, 2)
