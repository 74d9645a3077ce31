"""The laws say nothing of planted failures, and clean up what they have frozen."""

import gc
from collections.abc import Iterator

import pytest
from loguru import logger


@pytest.fixture(autouse=True, scope="module")
def _few_to_collect() -> Iterator[None]:
    """Collect what the module has frozen: the soak freezes after each run. Then freeze the rest again, as at the first test."""
    yield
    gc.unfreeze()
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _quiet(heard: None) -> Iterator[None]:
    """Failing hooks are logged with tracebacks; thousands of them say nothing."""
    logger.disable("agentflow")
    yield
    logger.enable("agentflow")
