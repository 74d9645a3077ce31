"""`python -m benchmarks.serve`: concurrent event streams from one server process, beside other frameworks' servers."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

from benchmarks.peers.environments import Unavailable, default_place, python_of
from benchmarks.peers.kit import PROMPT
from benchmarks.peers.pinned import Entry, named
from benchmarks.peers.race import cores
from benchmarks.report import environment
from benchmarks.serve.load import Load, Result, Target, measure

_PAGE = json.dumps(
    {
        "threadId": "t#",
        "runId": "r#",
        "messages": [{"id": "m#", "role": "user", "content": PROMPT}],
        "tools": [],
        "context": [],
        "state": {},
        "forwardedProps": {},
    }
)
_INPUT = json.dumps({"input": PROMPT})
_TEXT = b"event: text"
_PAGE_TEXT = b"TEXT_MESSAGE_CONTENT"

TARGETS = {
    "bare": Target("bare", "uvicorn and Starlette, no agent", "/", _INPUT, _TEXT),
    "agentflow": Target("ours", "agentflow", "/agents/race/call", _INPUT, _TEXT),
    "agentflow-ag-ui": Target("ours", "agentflow, AG-UI", "/agents/race/ag-ui", _PAGE, _PAGE_TEXT),
    "pydantic-ai": Target("pydantic_ai_", "pydantic-ai, AG-UI", "/", _PAGE, _PAGE_TEXT),
    "openai-agents": Target("openai_agents", "OpenAI Agents, FastAPI", "/", _INPUT, _TEXT),
}
_ALSO = {
    "pydantic-ai": ("ag-ui-protocol==1.0.0", "starlette==1.10.0", "uvicorn==0.54.0"),
    "openai-agents": ("fastapi==0.165.0", "uvicorn==0.54.0"),
}
"""The packages with which a framework is served, in addition to those of `benchmarks.peers`."""

_HEAD = "| Server | First event, p50 and p99 | Between events | CPU per event | Memory per stream | Complete |"


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.serve", description=__doc__)
    parser.add_argument("--only", action="append", choices=TARGETS, metavar="SERVER", help="may be repeated")
    parser.add_argument("--streams", type=int, default=200, help="concurrent streams (200)")
    parser.add_argument("--chunks", type=int, default=100, help="chunks of text in each (100)")
    parser.add_argument("--pause", type=float, default=0.1, help="seconds between two chunks (0.1)")
    parser.add_argument("--ramp", type=float, default=5.0, help="seconds over which the requests begin (5)")
    parser.add_argument("--environments", type=Path, default=default_place(), metavar="FOLDER")
    options = parser.parse_args()
    load = Load(options.streams, options.chunks, options.pause, options.ramp)
    ours, theirs = cores()
    if theirs is not None:
        os.sched_setaffinity(0, {theirs})
    machine = environment()
    print(f"{machine['python']}, {machine['cpus']} x {machine['processor']}; the server has one core.")
    print(f"{load.streams} streams of {load.chunks} chunks, {load.pause * 1000:g} ms apart.\n")
    print(_HEAD, "|---|---|---|---|---|---|", sep="\n", flush=True)
    for name in options.only or TARGETS:
        try:
            result = measure(_python(name, options.environments), TARGETS[name], load, ours)
        except (Unavailable, RuntimeError, TimeoutError) as error:
            print(f"{name} could not be measured: {str(error) or 'it took too long'}", file=sys.stderr)
            continue
        print(_row(TARGETS[name].label, load, result), flush=True)


def _python(name: str, place: Path) -> Path:
    """Return the interpreter of a server; ours is the current one, with the extras `serve` and `ag-ui`."""
    if name not in _ALSO:
        return Path(sys.executable)
    side = named(name)
    return python_of(
        Entry(f"serve-{name}", side.label, side.module, side.packages, (*side.requirements, *_ALSO[name])), place
    )


def _row(label: str, load: Load, result: Result) -> str:
    first, between = (f"{low * 1e3:.1f}, {high * 1e3:.1f} ms" for low, high in (result.first, result.between))
    figures = f"{result.cpu * 1e6:.0f} µs | {result.memory / 1024:.0f} KiB | {result.complete} of {load.streams}"
    return f"| {label} | {first} | {between} | {figures} |"


if __name__ == "__main__":
    main()
