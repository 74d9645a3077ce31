"""Record and replay random programs: `PYTHONPATH=tests/support python tests/laws/soak_replay.py 20000 [SEED] [cut | inside]`.

Half are programs of the laws whose callers stay to the end, half are teams (`laws_teams`). With `cut` all are programs that
are interrupted, cancelled, closed, abandoned or run out of time. With `inside` a hook interrupts each program beside two to
four parallel tools, which is a limit of replays (docs/replay.md). They have default ids, and recorders that write to memory,
a file, a folder or SQLite in turn. It prints each divergence and their number.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path as FilePath
from tempfile import TemporaryDirectory

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from laws_programs import HookPlan, Path, Piece, Program, programs
from laws_recorded import KEPT, STAYING, program_departs, team_departs
from loguru import logger
from test_laws_replay import NAMES, replayable

CUT = st.builds(
    Path,
    st.sampled_from(
        ["close", "break", "throw", "interrupt", "cancel-call", "cancel-stream", "cancel-task", "call", "stream"]
    ),
    st.integers(0, 40),
    st.sampled_from([None, None, 0.5, 2.5]),
    st.booleans(),
)


INTERRUPTS = st.builds(
    lambda event, action, nth, style, priority: HookPlan(event, action, nth, "edit", style, "skip", priority, False),
    st.sampled_from(["PreActing", "PostActing", "ActingChunk"]),
    st.sampled_from(["interrupt", "inject-interrupt"]),
    st.integers(1, 3),
    st.sampled_from(["sync", "async"]),
    st.sampled_from([5, 10, 300]),
)
PARALLEL = st.lists(
    st.sampled_from(["slow_look", "slow_read", "helper", "talk", "flow", "read", "cleans"]), min_size=2, max_size=4
)


@st.composite
def interrupted_inside(draw: st.DrawFn) -> Program:
    """A program in which a hook interrupts the call beside parallel tools."""
    program, hook = draw(programs(names=NAMES, paths=STAYING)), draw(INTERRUPTS)
    calls = tuple(Piece("call", id=f"t{n}", name=name, args='{"x": 1}') for n, name in enumerate(draw(PARALLEL)))
    return replace(program, replies=(calls, *program.replies), hooks=(*program.hooks, hook), schedule="PARALLEL")


def main(count: int, first: int, mode: str) -> int:
    """Run them and return the number of divergences."""
    logger.remove()
    found: Counter[str] = Counter()
    began, done = time.monotonic(), 0
    kinds = {
        "": programs(names=NAMES, paths=STAYING),
        "cut": programs(names=NAMES, paths=CUT),
        "inside": interrupted_inside(),
    }

    def note(what: object, departs: str | None) -> None:
        nonlocal done
        done += 1
        if departs is not None:
            found[departs.partition("\n")[0]] += 1
            print(f"{what!r}\n  {departs}", flush=True)
        if done % 200 == 0:
            print(f"{done} programs, {found.total()} depart, {time.monotonic() - began:.0f} s", flush=True)

    with TemporaryDirectory() as folder:

        @seed(first)
        @settings(
            max_examples=count if mode else count // 2,
            phases=[Phase.generate],
            database=None,
            deadline=None,
            suppress_health_check=[*HealthCheck],
        )
        @given(kinds[mode].map(replayable))
        def random_programs(program: Program) -> None:
            try:
                departs = program_departs(program, KEPT[done % len(KEPT)], FilePath(folder))
            except Exception as error:
                departs = f"{type(error).__name__}: {error}"
            note(program, departs)

        for number in range(first * count, first * count + (0 if mode else count // 2)):
            note(f"Team({number})", team_departs(number, KEPT[number % len(KEPT)], FilePath(folder)))
        random_programs()
    print(f"{done} programs, {found.total()} depart, {time.monotonic() - began:.0f} s: {dict(found)}")
    return found.total()


if __name__ == "__main__":
    numbers = [int(word) for word in sys.argv[1:] if word.isdecimal()]
    mode = next((word for word in sys.argv if word in ("cut", "inside")), "")
    sys.exit(bool(main(numbers[0], numbers[1] if len(numbers) > 1 else 1, mode)))
