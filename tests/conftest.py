"""What all tests share: helper modules, a PostgreSQL server, databases, either wire; how many examples a property runs; and
where the time of a run went.

The usual profile of hypothesis, `laws`, is repeatable, and knows no deadline, since the machine may be busy. Beside it some
tests draw from fresh seeds (`laws_programs.FRESH`). What fails there is printed with a `@reproduce_failure`, and kept in
`.hypothesis/examples`, so that the next run begins with it. Where the environment names no CI, both run fewer examples
(`THOROUGH`). `AGENTFLOW_LAWS=ci` runs more (`.ci/run` does, on one Python), `AGENTFLOW_LAWS=soak` many more, all from fresh
seeds.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator, Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from loguru import logger

sys.path.extend(
    str(Path(__file__).parent / folder) for folder in ("support", "durable", "laws", "real", "testing", "wire")
)

from memory import memory_folder
from nursery import Nursery
from postgres import Postgres, empty_database, postgres_server
from thorough import THOROUGH
from wired import WIRES, Wired

from agentflow.models.clients import close_clients

_SLOW = [HealthCheck.too_slow]  # a machine that does much else is no fault of a generator
_EXAMPLES = 40 if THOROUGH else 12
settings.register_profile("laws", deadline=None, max_examples=_EXAMPLES, derandomize=True, suppress_health_check=_SLOW)
settings.register_profile("ci", settings.get_profile("laws"), max_examples=100)
settings.register_profile("soak", deadline=None, max_examples=5000, suppress_health_check=_SLOW)
settings.load_profile(os.environ.get("AGENTFLOW_LAWS", "laws"))

gc.disable()  # while tests are collected: what is imported and made then stays
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # What a shell starts in the background ignores Ctrl-C, and so would every program that a test starts and interrupts.
    signal.signal(signal.SIGINT, signal.default_int_handler)

if MEMORY := memory_folder():
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", MEMORY)  # where pytest makes `tmp_path`


@pytest.fixture(autouse=True)
def heard() -> None:
    """Tests look at what the library logs."""
    logger.enable("agentflow")


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """The server, started once."""
    with postgres_server() as server:
        yield server


@pytest.fixture(scope="session")
def commands() -> Iterator[Nursery]:
    """The process that commands and samples come from."""
    made = Nursery(
        "agentflow.terminal.cli.main",
        "agentflow.terminal.cli.demo",
        "agentflow.terminal.cli.run_logs",
        "agentflow.testing",
    )
    yield made
    made.end()


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """An empty database of each kind."""
    yield from empty_database(request, tmp_path)


@pytest.fixture
async def closed_clients() -> AsyncIterator[None]:
    """Behind the test the connections that models keep are closed."""
    yield
    await close_clients()


@pytest.fixture
def quiet() -> Iterator[None]:
    """The log tells of every planted failure: not on the screen."""
    logger.remove()
    logger.enable("agentflow")
    yield
    logger.add(sys.__stderr__)


@pytest.fixture(params=WIRES)
def wired(request: pytest.FixtureRequest, closed_clients: None) -> Wired:
    """Each wire in turn, over its direct adapter; over every adapter by `parametrize("wired", EVERY, indirect=True)`."""
    return Wired(*([request.param] if isinstance(request.param, str) else request.param))


def pytest_xdist_auto_num_workers() -> int | None:
    """`-n auto`: two processes more than there are cores, since many tests wait for others. `.ci/run` has enough to do."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return None if os.environ.get("CI") else cores + 2


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests with PostgreSQL are for `.ci/run`: elsewhere each process of a run would start a server."""
    for item in items:
        parameters = item.callspec.params.values() if hasattr(item, "callspec") else ()
        if "postgres" in getattr(item, "fixturenames", ()) or "postgresql" in parameters:
            item.add_marker(pytest.mark.ci)


def pytest_collection_finish() -> None:
    """Collect garbage again from here on."""
    gc.enable()


_MANY = 150
_loaded = 0


def pytest_runtest_setup() -> None:
    """Leave what is loaded for good out of garbage collections: modules, tests, and libraries when they have come.

    Otherwise each `gc.collect()` of a test takes most of a second in a process that has loaded LiteLLM.
    """
    global _loaded  # noqa: PLW0603
    if len(sys.modules) > _loaded + _MANY:
        _loaded = len(sys.modules)
        gc.collect()
        gc.freeze()


_TESTS: Counter[str] = Counter()
_SECONDS: Counter[str] = Counter()
_BUSY: Counter[str] = Counter()
_busy = 0.0


def busy_seconds() -> float:
    """Return the seconds of a processor that this process and those that it has waited for have used."""
    return sum(os.times()[:4])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Note what was used since the last report; xdist passes on what a report has."""
    global _busy
    report = yield
    _busy, before = busy_seconds(), _busy
    vars(report)["busy"] = _busy - before if before else 0.0
    return report


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Add up the time of each folder: the tests, and what was set up and taken down for them."""
    folder = report.nodeid.partition("::")[0].rpartition("/")[0]
    _TESTS[folder] += report.when == "call"
    _SECONDS[folder] += report.duration
    _BUSY[folder] += vars(report).get("busy", 0.0)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print it where tests of several folders ran, with the seconds of a processor, which other work does not change."""
    if len(_SECONDS) < 2:
        return
    terminalreporter.section("time by folder")
    for folder, seconds in sorted(_SECONDS.items(), key=lambda item: -item[1]):
        terminalreporter.write_line(
            f"{seconds:8.2f} s, busy {_BUSY[folder]:8.2f} s  {_TESTS[folder]:5} tests  {folder}"
        )
    total = f"{sum(_SECONDS.values()):8.2f} s, busy {sum(_BUSY.values()):8.2f} s  {sum(_TESTS.values()):5} tests"
    terminalreporter.write_line(total)
