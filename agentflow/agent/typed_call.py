"""The typed output of a call. It adds a final tool to the agent, by which the model returns its answer, and two hooks, which
request and validate the answer.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from agentflow.errors import UsageError
from agentflow.hooks.hook_set import FullHookSet
from agentflow.loop.config import LoopConfig
from agentflow.loop.output.hooks import AskForOutput, JudgeOutput
from agentflow.loop.output.output import FullOutput
from agentflow.loop.output.replying import with_output
from agentflow.loop.run import RunBase
from agentflow.vocabulary.messages import Reply
from agentflow.vocabulary.typed_state import StateMap


class TypedOutput:
    """A typed output bound to an agent; created once for all the agent's calls with that output.

    Args:
        source: The value of the argument `output=`.
        output: The same value as an `Output`.
    """

    __slots__ = ("_config", "_extended", "_hooks", "_set", "output", "source")

    def __init__(self, source: object, output: FullOutput[Any]) -> None:
        self.source = source
        self.output = output
        self._config: LoopConfig | None = None
        self._extended: LoopConfig | None = None
        self._hooks: FullHookSet | None = None
        self._set: FullHookSet | None = None

    def apply_to(self, config: LoopConfig) -> LoopConfig:
        """Return the agent's configuration with the final tool. The model does not see this tool unless a hook adds it to
        the request.

        Raises:
            UsageError: The agent has a tool with the final tool's name.
        """
        tools = self.output.tools
        if not tools:
            return config
        # By identity: a configuration is replaced when the agent's tools change, and never modified.
        if self._extended is None or self._config is not config:
            deps = dict.fromkeys(config.dep_types)
            for tool in tools.values():
                if tool.name in config.tools:
                    raise UsageError(
                        f"Agent {config.view.name!r} has a tool named {tool.name!r}, which is also the name of the tool "
                        "that takes its answer. Rename the latter: output=Output(..., name='my_answer')."
                    )
                deps |= dict.fromkeys(tool.dep_types.items())
            self._config = config
            self._extended = replace(config, tools={**config.tools, **tools}, dep_types=tuple(deps))
        return self._extended

    def move(self, old: LoopConfig, new: LoopConfig) -> None:
        """Update running calls after the agent's tools have changed; they keep the final tool."""
        before = self._extended
        if before is None or self._config is not old:
            return
        after = self.apply_to(new)
        for run in tuple(old.running.runs):
            if isinstance(run, RunBase) and run.config is before:
                run.config = after

    def with_hooks(self, hooks: FullHookSet) -> FullHookSet:
        """Return the agent's hooks together with the hooks that request and validate the output."""
        if self._set is None or self._hooks is not hooks:
            # None if the output needs no final tool (`apply_to`).
            base = self._config
            model, last = (None, None) if base is None else (base.model, base.max_iterations)
            self._hooks = hooks
            self._set = hooks.with_hooks((AskForOutput(self.output, model, last), JudgeOutput(self.output)))
        return self._set

    def reader_of(self, state: StateMap) -> Callable[[Reply], Awaitable[Reply[Any]]]:
        """Return the function that sets the output of a call's reply.

        Args:
            state: The state of the call, which holds the output as an object.
        """
        return lambda reply: with_output(reply, self.output, state)
