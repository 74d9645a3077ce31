"""What the tests of MCP share."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from loguru import logger

sys.path.append(str(Path(__file__).parent))

from lines import Lines


@pytest.fixture(autouse=True)
def logged() -> Iterator[Lines]:
    """What is logged in the test, and not shown."""
    lines = Lines()
    logger.remove()
    logger.enable("agentflow")
    number = logger.add(lambda line: lines.take(str(line)), level="TRACE", format="{level} {message}")
    yield lines
    logger.remove(number)
    logger.add(sys.__stderr__)
