"""`python -m benchmarks.peers`: install the sides, each in an environment of its own, race them, and print the tables."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from benchmarks.peers.environments import default_place
from benchmarks.peers.pinned import SIDES, named
from benchmarks.peers.race import race
from benchmarks.peers.table import RESULTS, behind, markdown, read, setup


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__)
    names = [entry.name for entry in SIDES]
    parser.add_argument("--only", action="append", choices=names, metavar="SIDE", help="a side; may be repeated")
    parser.add_argument(
        "--environments", type=Path, default=default_place(), metavar="FOLDER", help="where they are kept"
    )
    parser.add_argument("--rounds", type=int, default=5, help="processes of each side (5)")
    parser.add_argument("--quick", action="store_true", help="see that everything runs; the figures mean nothing")
    parser.add_argument(
        "--save", type=Path, metavar="FILE", help=f"keep the figures; the page shows those in {RESULTS.name}"
    )
    parser.add_argument("--show", action="store_true", help="do not race: print the stored figures")
    options = parser.parse_args()

    def keep(report: dict[str, Any]) -> None:
        if options.save:
            options.save.write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n", "utf-8")

    if options.show:
        report = read(options.save or RESULTS)
    else:
        entries = [named(name) for name in options.only] if options.only else SIDES
        rounds = 1 if options.quick else options.rounds
        report = race(entries, options.environments, rounds, quick=options.quick, say=_say, keep=keep)
    print(markdown(report, spread=True), setup(report), sep="\n\n")
    for row, first in behind(report):
        _say(f"not first: {row.title}: {report['sides'][first]['label']}")


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
