"""Fixtures of the laws: planted failures are not logged, and frozen objects are collected again."""

import gc
from collections.abc import Iterator

import pytest
from laws_harness import SOAK
from loguru import logger


@pytest.fixture(autouse=True, scope="module")
def _few_to_collect() -> Iterator[None]:
    """Unfreeze what the soak froze before each of its runs; other objects stay frozen (`tests/conftest.py`)."""
    yield
    if SOAK:
        gc.unfreeze()


@pytest.fixture(autouse=True)
def _quiet(heard: None) -> Iterator[None]:
    """Silence the log: planted failures would write thousands of tracebacks."""
    logger.disable("agentflow")
    yield
    logger.enable("agentflow")
