"""Settles how many examples a property runs.

The usual profile, `laws`, is repeatable. Beside it some tests draw from fresh seeds (`laws_programs.FRESH`). What fails
there is printed with a `@reproduce_failure`, and kept in `.hypothesis/examples`, so that the next run begins with it.
`AGENTFLOW_LAWS=ci` runs more examples (`.ci/run` does, on one Python), `AGENTFLOW_LAWS=soak` many more, all from fresh
seeds.
"""

import gc
import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings
from loguru import logger

_SLOW = [HealthCheck.too_slow]  # a machine that does much else is no fault of a generator
settings.register_profile("laws", deadline=None, max_examples=40, derandomize=True, suppress_health_check=_SLOW)
settings.register_profile("ci", settings.get_profile("laws"), max_examples=100)
settings.register_profile("soak", deadline=None, max_examples=5000, suppress_health_check=_SLOW)
settings.load_profile(os.environ.get("AGENTFLOW_LAWS", "laws"))


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
