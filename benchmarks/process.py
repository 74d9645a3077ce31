"""The cost of a program before its first call: importing, and building an agent."""

from __future__ import annotations

import asyncio
import os
import statistics
import subprocess
import sys
import tempfile

from agentflow import Agent, tool
from benchmarks.bare import Script, add, answer
from benchmarks.measure import Body, Effort, measure
from benchmarks.report import Figure

__all__ = ["building", "importing"]

_IMPORT = """
import time
import reactivex, pydantic, loguru

def resident():
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * 4096
    except OSError:
        return 0

memory, started = resident(), time.process_time()
import agentflow
root = time.process_time() - started
from agentflow import Agent, tool
took = time.process_time() - started
import sys
heavy = [name for name in ("litellm", "aiohttp", "rich", "click", "griffe", "sqlalchemy") if name in sys.modules]
print(root, took, resident() - memory, *heavy)
"""


def _import_once(cache: str) -> tuple[float, float, float, list[str]]:
    """Import in a new process; its bytecode is in `cache`, whether or not this process writes its own."""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    env["PYTHONPYCACHEPREFIX"] = cache
    ended = subprocess.run([sys.executable, "-c", _IMPORT], capture_output=True, text=True, check=True, env=env)
    root, took, memory, *heavy = ended.stdout.split()
    return float(root), float(took), float(memory), heavy


async def importing(effort: Effort) -> list[Figure]:
    """`import agentflow`, then `Agent` and `tool`, above `import reactivex, pydantic, loguru`: the median of several processes.

    Processor time is measured.

    The first process only fills the bytecode cache, as installing a package does.
    """
    times = 1 if effort.quick else 9
    with tempfile.TemporaryDirectory() as cache:
        measured = [await asyncio.to_thread(_import_once, cache) for _ in range(times + 1)][1:]
    root = statistics.median(each[0] for each in measured)
    took = statistics.median(each[1] for each in measured)
    memory = statistics.median(each[2] for each in measured)
    heavy = measured[0][3]
    best = min(each[1] for each in measured)
    loaded = "litellm" in heavy
    return [
        Figure("import", "import agentflow", root * 1e3, "ms", 10.0),
        Figure(
            "import", "from agentflow import Agent, tool", took * 1e3, "ms", 35.0, detail=f"best {best * 1e3:.1f} ms"
        ),
        Figure("import", "  its resident memory", memory / 2**20, "MiB"),
        Figure(
            "import", "  litellm loaded", float(loaded), "", 0.0, detail=f"also loaded: {', '.join(heavy) or 'none'}"
        ),
    ]


def agents() -> Body:
    """An agent with one tool; the tool is made once, as a program's tools are."""
    model, made = Script(answer()), tool(add)

    async def body(count: int) -> None:
        for _ in range(count):
            Agent("benchmark", model, tools=[made])

    return body


def tools() -> Body:
    """A tool, made of a function."""

    async def body(count: int) -> None:
        for _ in range(count):
            tool(add)

    return body


async def building(effort: Effort) -> list[Figure]:
    """An agent with one tool. Schema and validator are built at its first call."""
    turns = await measure(effort, agents(), tools())
    agent, made = turns.best(0), turns.best(1)
    return [
        Figure("build", "building an agent with one tool", agent * 1e6, "µs", 25.0),
        Figure("build", "  making the tool of its function", made * 1e6, "µs"),
    ]
