"""`python -m benchmarks`: the budgets, as ratios to hand-written loops in the same run."""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import json
import pstats
import sys
from collections.abc import Awaitable, Callable

from benchmarks import counters, hooks, layers, loops, partials, plugins, process, scale, wire
from benchmarks.measure import Effort, fit
from benchmarks.report import Figure, as_json, line, title

ROWS: dict[str, Callable[[Effort], Awaitable[list[Figure]]]] = {
    "hooks": hooks.hooks,
    "unheard": hooks.unheard,
    "around": layers.around,
    "call": loops.call,
    "round": loops.round_,
    "streamed": loops.streamed,
    "chunk": loops.chunk,
    "history": loops.history,
    "at-once": scale.at_once,
    "parallel": scale.parallel,
    "partials": partials.partials,
    "plugins": plugins.together,
    "spans": plugins.spans,
    "build": process.building,
    "counters": counters.counters,
    "import": process.importing,
    "wire": wire.wire,
}


def _profile(row: str) -> None:
    body = loops.OURS[row]
    profile = cProfile.Profile()

    async def profiled() -> None:
        count = await fit(body, Effort())
        profile.enable()
        await body(count * 10)
        profile.disable()

    asyncio.run(profiled())
    pstats.Stats(profile).sort_stats("tottime").print_stats(40)


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--only", action="append", choices=sorted(ROWS), metavar="ROW", help="a row; may be repeated")
    parser.add_argument("--quick", action="store_true", help="see that everything runs; the figures mean nothing")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "--profile", choices=sorted(loops.OURS), metavar="ROW", help="profile the library's side of a row"
    )
    options = parser.parse_args()
    if options.profile:
        _profile(options.profile)
        return
    effort = Effort.smoke() if options.quick else Effort()
    figures: list[Figure] = []
    if not options.json:
        print(title(), flush=True)
    for name, row in ROWS.items():
        if options.only and name not in options.only:
            continue
        measured = asyncio.run(_run(row, effort))
        figures += measured
        if not options.json:
            for figure in measured:
                print(line(figure), flush=True)
    if options.json:
        json.dump(as_json(figures), sys.stdout, indent=2)
        print()


async def _run(row: Callable[[Effort], Awaitable[list[Figure]]], effort: Effort) -> list[Figure]:
    return await row(effort)


if __name__ == "__main__":
    main()
