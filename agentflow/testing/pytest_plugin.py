"""The pytest fixture `check_hook`, which is available if agentflow is installed, and `evaluation`, which creates a test for
each case:

    def test_my_hook_is_well_behaved(check_hook):
        check_hook(MyHook)

    test_the_clerk = evaluation(agent, [Case("1 + 2?", "3")])
"""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Any, Protocol, Unpack

import pytest

from agentflow.testing.check_hook import HookCheckOptions
from agentflow.testing.check_hook import check_hook as run_check
from agentflow.testing.evaluation import Case, Check, evaluate, named_cases
from agentflow.testing.hook_checks.report import HookReport

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from agentflow.agent.agent import Agent
    from agentflow.hooks.hook import Hook

__all__ = ["HookCheck", "check_hook", "evaluation", "pytest_addoption", "pytest_configure"]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option `--update-runs`."""
    group = parser.getgroup("agentflow")
    group.addoption(
        "--update-runs", action="store_true", help="update the recorded runs of assert_replays to the current behaviour"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Read the option `--update-runs`."""
    if config.getoption("--update-runs"):
        os.environ["AGENTFLOW_UPDATE_RUNS"] = "1"  # `assert_replays` does not know pytest's configuration


class HookCheck(Protocol):
    """The fixture's type."""

    def __call__(self, hook: Hook | type[Hook] | Callable[[], Hook], **options: Unpack[HookCheckOptions]) -> HookReport:
        """Check a hook like `agentflow.testing.check_hook`, and fail if there is a finding.

        Returns:
            The report, which is clean.
        """
        ...


@pytest.fixture
def check_hook() -> HookCheck:
    """Return a function that checks a hook, and fails the test with the report if there is a finding."""

    def check(hook: Hook | type[Hook] | Callable[[], Hook], **options: Unpack[HookCheckOptions]) -> HookReport:
        report = run_check(hook, **options)
        report.assert_clean()
        return report

    return check


def evaluation(
    agent: Agent[Any] | Callable[[], Agent[Any]], cases: Iterable[Case | str], checks: Iterable[Check] = ()
) -> Callable[..., None]:
    """Create a parametrized test that runs the agent on each case; assign it to a name that starts with `test`.

    Args:
        agent: The agent, or a function that creates one for each case.
        cases: The cases; each is a test with the case's name.
        checks: Checks for every case, in addition to its own.

    Example:
        >>> test_the_clerk = evaluation(Agent("clerk", ScriptedModel(["3"])), [Case("1 + 2?", "3", name="a sum")])
    """
    every = tuple(checks)
    named = named_cases(cases)

    @pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in named])
    def test(case: Case) -> None:
        asyncio.run(evaluate(agent, [case], every, progress=False)).assert_passed()

    return test
