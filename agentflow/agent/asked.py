"""What a call that is to give something of a form has in place of its agent's own: the final tool, and two hooks more."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from agentflow.errors import UsageError
from agentflow.hooks.hook_set import FullHookSet
from agentflow.loop.config import LoopConfig
from agentflow.loop.run import RunBase
from agentflow.messages import Reply
from agentflow.output.hooks import AskForOutput, JudgeOutput
from agentflow.output.output import Output
from agentflow.output.replying import typed
from agentflow.typed_state import StateMap

__all__ = ["Asked"]


class Asked:
    """A form, laid over an agent; made once for all its calls that ask for it.

    Args:
        given: What was passed as `output=`.
        output: The same, with options.
    """

    __slots__ = ("_config", "_hooks", "_laid", "_set", "given", "output")

    def __init__(self, given: object, output: Output[Any]) -> None:
        self.given = given
        self.output = output
        self._config: LoopConfig | None = None
        self._laid: LoopConfig | None = None
        self._hooks: FullHookSet | None = None
        self._set: FullHookSet | None = None

    def over(self, config: LoopConfig) -> LoopConfig:
        """The agent's configuration with the final tool. The model is not told of it: a hook does that, where it is used.

        Raises:
            UsageError: The agent has a tool of that name.
        """
        if self.output.is_text:
            return config
        if self._laid is None or self._config is not config:
            tool = self.output.tool
            if tool.name in config.tools:
                raise UsageError(
                    f"Agent {config.view.name!r} has a tool named {tool.name!r}, which is what "
                    "the tool that takes its answer is called. Call that another way: output=Output(..., name='my_answer')."
                )
            deps = dict.fromkeys((*config.dep_types, *tool.dep_types.items()))
            self._config = config
            self._laid = replace(config, tools={**config.tools, tool.name: tool}, dep_types=tuple(deps))
        return self._laid

    def move(self, old: LoopConfig, new: LoopConfig) -> None:
        """The agent's tools have changed: let calls that run have them, beside the final tool."""
        before = self._laid
        if before is None or self._config is not old:
            return
        after = self.over(new)
        for run in tuple(old.running.runs):
            if isinstance(run, RunBase) and run.config is before:
                run.config = after

    def with_hooks(self, hooks: FullHookSet) -> FullHookSet:
        """The agent's hooks, and those that ask and judge."""
        if self._set is None or self._hooks is not hooks:
            base = self._config
            model, last = (None, None) if base is None else (base.model, base.max_iterations)
            self._hooks = hooks
            self._set = hooks.with_hooks((AskForOutput(self.output, model, last), JudgeOutput(self.output)))
        return self._set

    def reader_of(self, state: StateMap) -> Callable[[Reply], Awaitable[Reply[Any]]]:
        """What gives a call's reply its output.

        Args:
            state: The state of the call, which holds the output as an object.
        """
        return lambda reply: typed(reply, self.output, state)
