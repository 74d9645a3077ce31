"""How many functions a call enters: held here, since counters do not wobble with the machine (`python -m benchmarks`)."""

import sys

import pytest

from benchmarks.counters import BUDGETS, COUNTERS

ALLOWED = 1.0 if sys.version_info >= (3, 12) else 1.1
"""Up to 3.11 a comprehension is a function of its own."""


@pytest.mark.parametrize("name", COUNTERS)
async def test_no_more_functions_are_entered(name: str) -> None:
    """A call, one more round and one more streamed round enter no more functions of ours than their budgets say."""
    assert await COUNTERS[name]() <= BUDGETS[name] * ALLOWED
