"""The rows of `agentflow hooks`."""

from __future__ import annotations

from typing import Any

from agentflow import Agent, PreActing, on
from agentflow.terminal.cli.hook_table import HookRow, hook_rows
from agentflow.testing import ScriptedModel
from agentflow.vocabulary.events import PreReasoning


def test_roles_follow_each_other_in_the_order_in_which_they_run() -> None:
    """Editors, guards, observers, then what wraps the work; in a role by priority, with the options that are not as usual."""

    @on(PreActing, priority=5, serial=True, timeout=1.5)
    async def second(event: Any) -> None: ...

    @on(PreActing, priority=1, shadow=True)
    def first(event: Any) -> None: ...

    @on(PreActing, guard=True, scope="tree", on_failure="deny", tags=["b", "a"], tools=["rm", "mv*"])
    def judge(event: Any) -> None: ...

    @on(PreReasoning, observer=True, in_thread=True)
    def watch(event: Any) -> None: ...

    agent = Agent("a", ScriptedModel([]), hooks=[watch, judge, second, first], default_hooks=())
    assert list(hook_rows(agent.hooks)) == [
        HookRow("PreReasoning", "observe", 100, "watch", "in_thread"),
        HookRow("PreActing", "edit", 1, "first", "shadow"),
        HookRow("PreActing", "edit", 5, "second", "serial timeout=1.5"),
        HookRow("PreActing", "guard", 100, "judge", "scope=tree on_failure=deny tools=rm,mv* tags=a,b"),
    ]
