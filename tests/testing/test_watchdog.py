"""The watchdog of `check_hook` samples another thread's frames: what it must not do to the process."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading

import pytest
from thorough import THOROUGH

from agentflow.testing.hook_checks.watchdog import _frames

STRESS = """
import asyncio, gc, sys, threading, time
from agentflow.testing.hook_checks.watchdog import _frames

gc.set_threshold(10)
sys.setswitchinterval(1e-6)
ident = threading.get_ident()
ended = threading.Event()
deepest = 0

def sample():
    global deepest
    while not ended.is_set():
        deepest = max(deepest, len([frame.f_code.co_qualname for frame in _frames(ident)]))
        time.sleep(0)

class Cycle:
    def __init__(self):
        self.itself = self
    def __del__(self):
        for number in range(30):
            str(number)

class Tree:
    def __init__(self, depth):
        self.parts = []
        if depth:
            self.add(depth - 1)
    def add(self, depth):
        self.parts.append(Tree(depth))

async def leaf():
    await asyncio.sleep(0)
    [Cycle() for _ in range(20)]
    [Tree(4) for _ in range(3)]

async def numbers():
    for number in range(3):
        await leaf()
        yield number

async def work():
    async for _ in numbers():
        await asyncio.gather(leaf(), leaf())

async def main():
    for _ in range(int(sys.argv[1])):
        await asyncio.gather(*(work() for _ in range(5)))

thread = threading.Thread(target=sample)
thread.start()
asyncio.run(main())
ended.set()
thread.join()
print(deepest > 3, gc.isenabled())
"""


@pytest.mark.ci
def test_sampling_a_thread_whose_garbage_runs_python_code_does_not_crash_the_process() -> None:
    """On Python 3.11 this program crashed in most runs while garbage could be collected during a sample."""
    ended = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", STRESS, "500" if THOROUGH else "150"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (ended.returncode, ended.stdout.strip()) == (0, "True True"), ended.stderr[-2000:]


def test_samples_in_two_threads_leave_garbage_collection_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second sample would read that collection is off, during the first one, and turn it off after that one."""
    inside, first_ended = threading.Event(), threading.Event()
    second = threading.Thread(target=_frames, args=(0,))
    disable, current_frames = gc.disable, sys._current_frames

    def late_disable() -> None:
        if threading.current_thread() is second:
            inside.set()
            first_ended.wait(10)
        disable()

    def slow_frames() -> dict[int, object]:
        if threading.current_thread() is not second:
            second.start()
            inside.wait(0.2)
        return {**current_frames()}

    monkeypatch.setattr(gc, "disable", late_disable)
    monkeypatch.setattr(sys, "_current_frames", slow_frames)
    try:
        _frames(0)
        first_ended.set()
        second.join()
        assert gc.isenabled()
    finally:
        gc.enable()
