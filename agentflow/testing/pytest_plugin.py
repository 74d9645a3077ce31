"""The pytest fixture `check_hook`, there wherever agentflow is installed, and `evaluation`, which makes a test of each case.

def test_my_hook_is_well_behaved(check_hook):
    check_hook(MyHook)

test_the_clerk = evaluation(agent, [Case("1 + 2?", "3")])
"""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Any, Protocol, Unpack

import pytest

from agentflow.testing.check_hook import HookCheckOptions, HookReport
from agentflow.testing.check_hook import check_hook as run_check
from agentflow.testing.evaluation import Case, Check, evaluate, named_cases

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from agentflow.agent.agent import Agent
    from agentflow.hooks.hook import Hook

__all__ = ["HookCheck", "check_hook", "evaluation", "pytest_addoption", "pytest_configure"]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--update-runs`."""
    group = parser.getgroup("agentflow")
    group.addoption(
        "--update-runs", action="store_true", help="write what agents do now into the runs that assert_replays compares"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Take note of it."""
    if config.getoption("--update-runs"):
        os.environ["AGENTFLOW_UPDATE_RUNS"] = "1"


class HookCheck(Protocol):
    """What the fixture gives."""

    def __call__(self, hook: Hook | type[Hook] | Callable[[], Hook], **options: Unpack[HookCheckOptions]) -> HookReport:
        """Check a hook as `agentflow.testing.check_hook` does, and fail if anything is found.

        Returns:
            The report, which is clean.
        """
        ...


@pytest.fixture
def check_hook() -> HookCheck:
    """A function that checks a hook and fails the test with the report if anything is found."""

    def check(hook: Hook | type[Hook] | Callable[[], Hook], **options: Unpack[HookCheckOptions]) -> HookReport:
        report = run_check(hook, **options)
        report.assert_clean()
        return report

    return check


def evaluation(
    agent: Agent[Any] | Callable[[], Agent[Any]], cases: Iterable[Case | str], checks: Iterable[Check] = ()
) -> Callable[..., None]:
    """A test function with a test for each case: pytest collects what is assigned to a name that begins with `test`.

    Args:
        agent: The agent, or a function that makes one for each case.
        cases: The cases; each is a test of its name.
        checks: Checks of every case.

    Example:
        >>> test_the_clerk = evaluation(Agent("clerk", ScriptedModel(["3"])), [Case("1 + 2?", "3", name="a sum")])
    """
    every = tuple(checks)
    named = named_cases(cases)

    @pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in named])
    def test(case: Case) -> None:
        asyncio.run(evaluate(agent, [case], every, progress=False)).assert_passed()

    return test
