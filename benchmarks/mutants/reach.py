"""A pytest plugin that records which tests enter which functions of the package, and how long each test takes.

`pytest -p benchmarks.mutants.reach` writes the file that `AGENTFLOW_REACH` names. It needs Python 3.12 (`sys.monitoring`). A
function that is entered while no test runs, such as a decorator in a test's module, is recorded without a test. Code in other
processes is not seen; the tests that start one are recorded.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import CodeType
from typing import Any

import pytest

_ROOT = Path(__file__).parents[2]
_PACKAGE = str(_ROOT / "agentflow") + os.sep
_TOOL_ID = 4

_entered: set[CodeType] = set()
_reach: defaultdict[str, list[str]] = defaultdict(list)
_between: set[str] = set()
_seconds: dict[str, float] = {}
_failed: set[str] = set()
_elsewhere: list[str] = []
_started: list[str] = []

_STARTS = frozenset({"subprocess.Popen", "os.posix_spawn", "os.fork", "os.forkpty"})
_STARTERS = frozenset({"commands", "nursery"})
"""The fixtures of a process that starts others."""


def key_of(path: str, name: str) -> str:
    """Return the name under which a function is kept: its file below the root, and its qualified name."""
    return f"{path}:{name}"


def _taken() -> set[str]:
    """The functions that were entered since the last call."""
    entered = _entered.copy()  # other threads may add to it at the same time
    _entered.difference_update(entered)
    return {key_of(str(Path(code.co_filename).relative_to(_ROOT)), code.co_qualname) for code in entered}


def _enter(code: CodeType, offset: int) -> Any:
    if code.co_filename.startswith(_PACKAGE):
        _entered.add(code)
    return sys.monitoring.DISABLE  # until the next test


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if event in _STARTS:
        _started.append(event)


def pytest_sessionstart() -> None:
    """Begin to watch."""
    sys.addaudithook(_audit)
    sys.monitoring.use_tool_id(_TOOL_ID, "agentflow.mutants")
    sys.monitoring.register_callback(_TOOL_ID, sys.monitoring.events.PY_START, _enter)
    sys.monitoring.set_events(_TOOL_ID, sys.monitoring.events.PY_START)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Record the functions that one test enters, its fixtures included."""
    _between.update(_taken())
    _started.clear()
    sys.monitoring.restart_events()
    began = time.perf_counter()
    result = yield
    _seconds[item.nodeid] = round(time.perf_counter() - began, 3)
    for key in _taken():
        _reach[key].append(item.nodeid)
    if _started or not _STARTERS.isdisjoint(getattr(item, "fixturenames", ())):
        _elsewhere.append(item.nodeid)
    return result


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Note a failure."""
    if report.failed:
        _failed.add(report.nodeid)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """Note a file that cannot be imported, for example because an extra is missing."""
    if report.failed:
        _failed.add(report.nodeid)


def pytest_sessionfinish() -> None:
    """Write the file, without the tests that failed."""
    sys.monitoring.register_callback(_TOOL_ID, sys.monitoring.events.PY_START, None)
    sys.monitoring.free_tool_id(_TOOL_ID)
    for name in _failed:
        _seconds.pop(name, None)
    reach = {key: [name for name in names if name not in _failed] for key, names in _reach.items()}
    elsewhere = [name for name in _elsewhere if name not in _failed]
    found: dict[str, Any] = {"reach": reach, "between": sorted(_between), "elsewhere": elsewhere, "seconds": _seconds}
    found["failed"] = sorted(_failed)
    Path(os.environ["AGENTFLOW_REACH"]).write_text(json.dumps(found))
