"""The laws say nothing of planted failures, and clean up what they have frozen."""

import gc
from collections.abc import Iterator

import pytest
from laws_harness import SOAK
from loguru import logger


@pytest.fixture(autouse=True, scope="module")
def _few_to_collect() -> Iterator[None]:
    """Let the collector have again what the soak froze before each of its runs; the rest stays frozen (`tests/conftest.py`)."""
    yield
    if SOAK:
        gc.unfreeze()


@pytest.fixture(autouse=True)
def _quiet(heard: None) -> Iterator[None]:
    """Failing hooks are logged with tracebacks; thousands of them say nothing."""
    logger.disable("agentflow")
    yield
    logger.enable("agentflow")
