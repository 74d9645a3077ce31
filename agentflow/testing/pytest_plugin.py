"""The pytest fixture `check_hook`, there wherever agentflow is installed.

def test_my_hook_is_well_behaved(check_hook):
    check_hook(MyHook)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import pytest

from agentflow.testing.check_hook import HookReport
from agentflow.testing.check_hook import check_hook as run_check

if TYPE_CHECKING:
    from collections.abc import Callable

    from agentflow.hooks.hook import Hook

__all__ = ["HookCheck", "check_hook"]


class HookCheck(Protocol):
    """What the fixture gives."""

    def __call__(self, hook: Hook | type[Hook] | Callable[[], Hook], **options: Any) -> HookReport:
        """Check a hook as `agentflow.testing.check_hook` does, and fail if anything is found.

        Returns:
            The report, which is clean.
        """
        ...


@pytest.fixture
def check_hook() -> HookCheck:
    """A function that checks a hook and fails the test with the report if anything is found."""

    def check(hook: Hook | type[Hook] | Callable[[], Hook], **options: Any) -> HookReport:
        report = run_check(hook, **options)
        report.assert_clean()
        return report

    return check
