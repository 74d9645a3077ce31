"""Record and replay random programs: `PYTHONPATH=tests/support python tests/laws/soak_replay.py 20000 [SEED] [cut | beside]`.

Half are programs of the laws whose callers stay to the end, half are teams (`laws_teams`). With `cut` all are programs that
are interrupted, cancelled, closed, abandoned or run out of time. With `beside`, hooks of each program interrupt it, inject or
fail beside two to four parallel tools. They have default ids, and recorders that write to memory, a file, a folder or SQLite
in turn. It prints each divergence and their number.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from pathlib import Path as FilePath
from tempfile import TemporaryDirectory

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from laws_programs import Path, Program, programs
from laws_recorded import KEPT, STAYING, acting_beside, program_departs, team_departs
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


def main(count: int, first: int, mode: str) -> int:
    """Run them and return the number of divergences."""
    logger.remove()
    found: Counter[str] = Counter()
    began, done = time.monotonic(), 0
    kinds = {
        "": programs(names=NAMES, paths=STAYING),
        "cut": programs(names=NAMES, paths=CUT),
        "beside": acting_beside(),
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
    mode = next((word for word in sys.argv if word in ("cut", "beside")), "")
    sys.exit(bool(main(numbers[0], numbers[1] if len(numbers) > 1 else 1, mode)))
