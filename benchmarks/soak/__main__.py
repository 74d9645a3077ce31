"""`python -m benchmarks.soak --minutes 60`: sessions with everything that may go wrong, and every law checked as they go.

Each session is a random program of the laws (`tests/laws`): the model's replies, hooks that edit, veto, fail, wrap and cancel,
tools of each kind, callers that go away, a sub-agent. Its model is called over OpenAI's or Anthropic's wire, from a strict
server in a process of its own that breaks in the ways in which providers break; it is kept in memory, in SQLite or in
PostgreSQL. Beside them durable workers are killed with `kill -9` and replaced. The loop's clock runs ten times faster, so
that sessions wait less; sockets, threads, databases and processes are real.

When a law breaks, its session's seed is printed; `--seed N` lives that session alone. Exit code 1: something is broken.
"""

from __future__ import annotations

import argparse
import inspect
import json
import random
import sys
from pathlib import Path

from loguru import logger

from benchmarks.soak.show import Shown, as_json, table
from benchmarks.soak.soak import Asked, soak


def main() -> None:
    """Parse the command line, and do it."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.soak",
        description=inspect.getdoc(sys.modules[__name__]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--minutes", type=float, default=1.0, help="how long (1)")
    parser.add_argument("--seed", type=int, help="live the session of this seed, alone")
    parser.add_argument("--from", dest="first", type=int, help="the seed of the first session; a random one by default")
    parser.add_argument("--sessions", type=int, help="so many sessions at most")
    parser.add_argument("--lanes", type=int, default=16, help="so many sessions at once (16)")
    parser.add_argument("--no-postgres", action="store_true", help="without a PostgreSQL server")
    parser.add_argument("--no-workers", action="store_true", help="without durable workers")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what came of it there, too")
    given = parser.parse_args()
    alone = given.seed is not None
    first = given.seed if alone else given.first if given.first is not None else random.randrange(10**9)
    logger.remove()
    asked = Asked(
        seconds=given.minutes * 60,
        seed=first,
        sessions=1 if alone else given.sessions,
        lanes=1 if alone else given.lanes,
        postgres=not given.no_postgres,
        workers=not given.no_workers and not alone,
    )
    print(f"The first session's seed is {first}.", flush=True)
    with Shown() as shown:
        soaked = soak(asked, shown.tell, shown.told)
    print(table(soaked), flush=True)
    if given.json is not None:
        given.json.write_text(json.dumps(as_json(asked, soaked), indent=2) + "\n")
    sys.exit(1 if soaked.broken else 0)


if __name__ == "__main__":
    main()
