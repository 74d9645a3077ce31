"""The law of wrappers: whatever `around` hooks, models and tools do, and however the call is ended, it ends cleanly.

For each random program:

1. The call ends within its limits and `cleanup_timeout`. `CallEnded` fires once, as the last event, and every Pre event
has
   its Post event.
2. No task, stream or busy session is left, and the next call works.
3. Half a reply never passes for a whole one. The history is legal, and equals the fold of events and of facts.
4. The reader's own awaits take their full time, and its task is never cancelled.
"""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import event, given, note, settings
from laws_harness import run
from laws_wrappers import CUTS, SOURCES, WRAPPERS, Program, check_wrappers, wrapped_programs

DRAWN: Counter[str] = Counter()


@settings(max_examples=max(160, settings().max_examples * 4))  # with fewer, not each kind of wrapper occurs
@given(wrapped_programs())
def programs_hold(program: Program) -> None:
    """Run each program, and count its parts."""
    note(repr(program))
    outcome = run(lambda: check_wrappers(program))
    parts = [f"place {program.place}", f"source {program.source}", f"cut {program.cut}", f"buffer {program.buffer}"]
    for part in (*parts, *(f"wrapper {kind}" for kind in set(program.wrappers))):
        DRAWN[part] += 1
        event(part)
    event(f"outcome {outcome}")


@pytest.mark.timeout(14_400)
def test_the_law_of_wrappers_holds() -> None:
    """The law holds for random programs, and each kind of wrapper, source and cancellation occurs."""
    DRAWN.clear()
    programs_hold()
    wanted = {f"wrapper {kind}" for kind in WRAPPERS} | {f"source {kind}" for kind in SOURCES}
    wanted |= {f"cut {kind}" for kind in CUTS} | {f"buffer {size}" for size in (0, 1, 8)}
    wanted |= {f"place {kind}" for kind in ("model", "tool", "chunks")}
    assert wanted == set(DRAWN)


SMALLEST = {
    "a hook that swallows the cancellation does not make a whole reply of half a one": Program(
        "model", ("caches", "swallows"), "hangs", cut="interrupt", events=4, seconds=1
    ),
    "nor does it under a time limit of another hook": Program("model", ("timeout", "swallows"), "hangs"),
    "nor does a tool that ends quietly": Program("tool", ("caches",), "ends-quietly", cut="close", events=7, seconds=1),
    "nor do the hooks of its chunks": Program("chunks", ("caches", "swallows"), "hangs", cut="timeout", seconds=1),
    "the chunks of a tool cannot be read in a task of the hook's own": Program("chunks", ("own-task",)),
    "what a hook leaves open of them is closed": Program("chunks", ("holds", "switch_map"), "grouped"),
    "and fails without anybody noticing": Program("chunks", ("drops", "failing-cleanup")),
    "a time limit over a yield of the model ends it with its own error, whatever is around it": Program(
        "model", ("passes",), "limited", cut="slow", buffer=0
    ),
    "nor in a task of an operator": Program("model", ("amb",), "limited", faults=2, cut="slow", buffer=0),
    "nor is a reply whole that this limit cut off in a task of an operator, although a hook swallows what it is told": Program(
        "model", ("swallows", "amb", "map"), "limited", faults=1, cut="slow", buffer=0
    ),
    "a switch_map that is closed opens nothing more": Program(
        "model", ("drops", "passes", "switch_map"), "swallows", faults=99, cut="slow"
    ),
}


@pytest.mark.parametrize("name", SMALLEST)
def test_the_law_holds_for_small_programs(name: str) -> None:
    """The law holds for programs that once broke it."""
    run(lambda: check_wrappers(SMALLEST[name]))
