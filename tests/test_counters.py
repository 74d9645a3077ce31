"""The functions that a call enters, and the memory that it keeps: held here, since such counters do not wobble."""

import sys

import pytest

from benchmarks.allocations import ALLOCATIONS, BLOCKS
from benchmarks.counters import BUDGETS, COUNTERS
from benchmarks.growth import ALLOWED as GROWTH
from benchmarks.growth import growth
from benchmarks.plugins import PLUGINS, Case, all_plugins

ALLOWED = 1.0 if sys.version_info >= (3, 12) else 1.1
"""Up to 3.11 a comprehension is a function of its own."""


@pytest.mark.parametrize("name", COUNTERS)
async def test_no_more_functions_are_entered(name: str) -> None:
    """A call, one more round and one more streamed round enter no more functions of ours than their budgets say."""
    assert await COUNTERS[name]() <= BUDGETS[name] * ALLOWED


@pytest.mark.parametrize("name", ALLOCATIONS)
async def test_no_more_memory_is_kept(name: str) -> None:
    """A call, a round, a streamed round, a chunk and a hook keep at most a tenth more blocks than what is written down."""
    assert await ALLOCATIONS[name]() <= BLOCKS[name] * 1.1


@pytest.mark.parametrize("case", [*PLUGINS, Case("all plugins", all_plugins)], ids=lambda case: case.name)
async def test_a_late_round_costs_what_an_early_one_does(case: Case) -> None:
    """With each plugin, and with all of them: a round after a hundred others runs as many instructions as one after twenty."""
    found = await growth(case.make)
    assert found.early > 1_000
    assert found.factor <= GROWTH, found
