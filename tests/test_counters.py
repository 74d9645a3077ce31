"""Counters of executed functions and kept memory: the same on every machine, so they are asserted here."""

import sys

import pytest

from agentflow.plugins.redaction import Redaction
from benchmarks.allocations import ALLOCATIONS, BLOCKS
from benchmarks.counters import ALLOWED, BUDGETS, COUNTERS, DEPTH, depth
from benchmarks.counting import EXACT, counted
from benchmarks.growth import ALLOWED as GROWTH
from benchmarks.growth import growth
from benchmarks.plugins import PLUGINS, Case, all_plugins

pytestmark = pytest.mark.counters

COMPREHENSIONS = 1 if sys.version_info >= (3, 12) else 1.05
"""On 3.11 a comprehension is a function of its own."""


@pytest.mark.parametrize("name", COUNTERS)
async def test_nothing_costs_more(name: str) -> None:
    """Functions, bytecodes and coroutines of a call, a round, a chunk, a hook, a wrapper, the plugins: at most 3 % more."""
    found, budget = await COUNTERS[name](), BUDGETS[name]
    assert found.functions <= budget.functions * ALLOWED * COMPREHENSIONS
    if EXACT:
        assert 0 < found.bytecodes <= budget.bytecodes * ALLOWED
        assert found.coroutines <= budget.coroutines * ALLOWED


async def test_the_stack_below_a_hook() -> None:
    """A user's debugger shows few frames of ours below a hook."""
    assert 0 < await depth() <= DEPTH


@pytest.mark.skipif(not EXACT, reason="sys.monitoring came with Python 3.12")
async def test_the_count_is_exact() -> None:
    """The same work counts the same, and one more instruction counts one more."""

    async def work(code: str) -> float:
        compiled = compile(code, "<work>", "exec")

        async def run() -> None:
            exec(compiled)

        return (await counted(run)).bytecodes

    assert await work("pass") == await work("pass")
    assert await work("a = 1") == await work("pass") + 2


@pytest.mark.parametrize("name", ALLOCATIONS)
async def test_no_more_memory_is_kept(name: str) -> None:
    """A call, a round, a streamed round, a chunk and a hook keep at most a tenth more blocks than the recorded number."""
    assert await ALLOCATIONS[name]() <= BLOCKS[name] * 1.1


FINDS = Case("Redaction, a secret in the history", lambda: [Redaction(values=["1 + 2"], stored="original")])


@pytest.mark.parametrize("case", [*PLUGINS, FINDS, Case("all plugins", all_plugins)], ids=lambda case: case.name)
async def test_a_late_round_costs_what_an_early_one_does(case: Case) -> None:
    """With each plugin, and with all of them: a round after a hundred others runs as many instructions as one after twenty."""
    found = await growth(case.make)
    assert found.early > 1_000
    assert found.factor <= GROWTH, found
