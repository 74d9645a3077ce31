"""The soak test finds planted faults and reports their seeds; it ends with its table, even if it is interrupted."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, ClassVar

import pytest

from agentflow import Hook
from agentflow.vocabulary.events import PreReasoning
from benchmarks.soak.gauge import BOUND, Held, fit
from benchmarks.soak.sessions import SoakWorld
from benchmarks.soak.soak import Asked, Broken, soak

pytestmark = pytest.mark.ci

ROOT = Path(__file__).parent.parent


class Forgets(Hook):
    """Begins something on each request, and does not wait for it."""

    def on_event(self, event: Any) -> None:
        if isinstance(event, PreReasoning):
            event.context.deps = asyncio.get_running_loop().create_task(asyncio.sleep(1e9), name="forgotten")


class FaultyWorld(SoakWorld):
    """A task is left in the session of seed 768; that of seed 769 stays in memory."""

    never_freed: ClassVar[list[SoakWorld]] = []

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        if self.plan.seed == 768:
            self.agent.hook(Forgets())
        else:
            self.never_freed.append(self)


def test_what_is_planted_is_found() -> None:
    """A leaked task of a hook is reported with its seed; sessions that stay in memory are counted."""
    told: list[Broken] = []
    try:
        asked = Asked(seconds=120, seed=768, sessions=2, lanes=2, postgres=False, workers=False, world=FaultyWorld)
        assert soak(asked, told=told.append).broken == told
    finally:
        FaultyWorld.never_freed.clear()
    assert [one.seed for one in told] == [768, None, None], told
    assert "'forgotten'" in told[0].what
    assert told[1].what.endswith("tasks are left (1 before, 2 now)")
    assert told[2].what == "3 agents of sessions that have ended are still in memory"


def test_it_ends_with_its_table_when_it_is_interrupted(tmp_path: Path) -> None:
    """Ctrl-C: the sessions that run end, nothing is left, exit code 0; the JSON says the same."""
    command = [sys.executable, "-W", "error", "-m", "benchmarks.soak", "--minutes", "60", "--lanes", "2", "--from", "7"]
    command += ["--no-postgres", "--no-workers", "--json", str(tmp_path / "soak.json")]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert "seed is 7" in process.stdout.readline()
        assert "sessions" in process.stdout.readline()
        process.send_signal(signal.SIGINT)
        told, wrong = process.communicate(timeout=120)
    assert (process.returncode, wrong) == (0, ""), told
    assert "held" in told
    assert "0 broken |" in told
    made = json.loads((tmp_path / "soak.json").read_text())
    assert made["broken"] == []
    assert made["counts"]["sessions"] >= 2


def samples(growth: float) -> list[Held]:
    """Memory that grows by so many KB in 1,000 calls, and wanders by a megabyte."""
    return [Held(n * 500, int(90_000 + growth * n / 2 + n * 7919 % 1024), 9, 1, 1, 2) for n in range(200)]


@pytest.mark.parametrize(("growth", "grows"), [(0, False), (BOUND / 2, False), (BOUND * 3, True)])
def test_memory_that_grows_is_told_from_memory_that_wanders(growth: float, grows: bool) -> None:
    """The line through the samples finds a growth above the bound in the noise of the allocator."""
    line = fit(samples(growth))
    assert line is not None
    assert line.grows is grows
    assert line.growth == pytest.approx(growth, abs=4 * line.error)


def test_a_short_run_says_nothing_about_memory() -> None:
    """Caches are still filling: there is no figure that would mean something."""
    assert fit(samples(5_000)[:5]) is None
