"""A real server for the tests of this folder, started once; what it did is printed at the end."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from loguru import logger
from real_models import ADAPTERS, Real, Tally

from agentflow.models.clients import close_clients
from agentflow.testing.real import LlamaServer

HERE = Path(__file__).parent
MISSING = LlamaServer.missing()
TALLIES: list[Tally] = []


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All of this folder is marked, and skipped with the reason where the extra is not installed."""
    inside = f"{HERE}{os.sep}"  # `item.path.parents` takes a second for all tests together
    for item in items:
        if str(item.path).startswith(inside):
            item.add_marker(pytest.mark.real)
            if MISSING is not None:
                item.add_marker(pytest.mark.skip(reason=MISSING))


@pytest.fixture(scope="session")
def server() -> Iterator[LlamaServer]:
    """The server; started when the first test needs it."""
    # The process has a low priority, so a busy machine takes long to start it.
    with LlamaServer(slots=2, context=1024, startup_timeout=500) as started:
        yield started


@pytest.fixture
def tally(request: pytest.FixtureRequest) -> Iterator[Tally]:
    """The test's own line in the log."""
    made = Tally(request.node.name)
    yield made
    made.seconds = time.monotonic() - made.began
    TALLIES.append(made)


@pytest.fixture(params=ADAPTERS)
async def real(request: pytest.FixtureRequest, server: LlamaServer, tally: Tally) -> AsyncIterator[Real]:
    """Each adapter in turn; after the test no slot is busy and no connection open."""
    if not server.running:
        server.start()
    made = Real(request.param, server, tally)
    logger.disable("agentflow")
    yield made
    logger.enable("agentflow")
    if server.running:
        await made.idle()
    await close_clients()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the requests to the real model, test by test."""
    if not TALLIES:
        return
    terminalreporter.section("the real model")
    for one in TALLIES:
        terminalreporter.write_line(one.line())
    whole = Tally("all")
    for name in (
        "seconds",
        "requests",
        "failed",
        "retries",
        "rounds",
        "chunks",
        "tokens_in",
        "tokens_cached",
        "tokens_out",
    ):
        setattr(whole, name, sum(getattr(one, name) for one in TALLIES))
    terminalreporter.write_line(whole.line())
