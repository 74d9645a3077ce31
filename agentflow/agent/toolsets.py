"""The hooks of an agent, and its live toolsets (`LiveToolset`), which have to be opened and closed.

Rules:

1. The calls of an agent without live toolsets skip this code.
2. Toolsets are opened concurrently, before the first event of a call. If a toolset is open already, this costs one check.
3. The agent's own tools keep their names. If two toolsets have a tool with the same name, the tool of the first toolset
   is used; the other tool is left out, which is logged once.
4. When tools change, the agent and its running calls use the new tools from their next model request onwards.
5. `hook`, `on` and `remove` replace the set of hooks; a run keeps the set with which it began. Several threads can
   register hooks at the same time.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Self

from agentflow._support.logs import logger
from agentflow._support.shown import one_line
from agentflow.hooks.hook import Hook
from agentflow.hooks.hook_set import FullHookSet, HookSet
from agentflow.hooks.registering import TakesHooks, refuse_tools
from agentflow.loop.config import LoopConfig
from agentflow.loop.run import RunBase
from agentflow.tools.live_toolset import LiveToolset
from agentflow.tools.tool import FullTool, Tool, full_tool
from agentflow.vocabulary.specs import ToolSpec


class Toolsets:
    """The live toolsets of an agent.

    Args:
        live: The toolsets.
        own: The agent's other tools, by name.
        on_change: Called with the agent's new tools whenever they change.
    """

    def __init__(
        self,
        live: tuple[LiveToolset, ...],
        own: Mapping[str, FullTool[..., Any]],
        on_change: Callable[[dict[str, FullTool[..., Any]]], None],
    ) -> None:
        self.live = live
        self.own = own
        self._on_change = on_change
        self._seen: tuple[tuple[Tool[..., Any], ...], ...] | None = None
        self._left_out: set[tuple[str, str]] = set()
        for toolset in live:
            toolset.watch(self.refresh)

    async def open(self) -> None:
        """Open the toolsets in the running event loop.

        Raises:
            ToolError: A toolset cannot be opened; the others stay open.
        """
        if len(self.live) == 1:
            await self.live[0].open(self)
        else:
            # `return_exceptions`, so that all attempts have ended when the first error is raised.
            opened = await asyncio.gather(*[toolset.open(self) for toolset in self.live], return_exceptions=True)
            for outcome in opened:
                if outcome is not None:
                    raise outcome
        self.refresh()

    async def close(self) -> None:
        """Close the toolsets in the running event loop, except those that another agent uses. Close all even if one fails."""
        for outcome in await asyncio.gather(*[toolset.close(self) for toolset in self.live], return_exceptions=True):
            if outcome is not None:
                raise outcome

    def refresh(self) -> None:
        """Update the agent's tools to the current ones."""
        current = tuple([toolset.tools for toolset in self.live])
        # By identity: a toolset replaces its tuple when its tools change.
        if self._seen is not None and all(a is b for a, b in zip(current, self._seen, strict=True)):
            return
        self._seen = current
        tools = dict(self.own)
        for toolset, source in zip(self.live, current, strict=True):
            for tool in map(full_tool, source):
                if tools.setdefault(tool.name, tool) is not tool and (toolset.name, tool.name) not in self._left_out:
                    self._left_out.add((toolset.name, tool.name))
                    logger.warning(
                        "the tool {} of toolset {} is left out: the agent has another tool of that name; give the toolset a "
                        "prefix",
                        one_line(tool.name),
                        one_line(toolset.name),
                    )
        self._on_change(tools)


class LiveView:
    """The information about an agent that its hooks receive, for an agent whose tools can change.

    Args:
        name: Its name.
        description: Its purpose.
        tools: Its tools before a toolset is open.
        model_name: The name of its model.
    """

    def __init__(self, name: str, description: str, tools: tuple[ToolSpec, ...], model_name: str) -> None:
        self.name = name
        self.description = description
        self.tools = tools
        self.model_name = model_name


class ToolsetAgent(TakesHooks):
    """The hooks and toolsets of an `Agent`, and its lifetime as a resource.

    Args:
        config: The configuration for the loop.
        hooks: The initial hooks, in the order of registration.
    """

    _config: LoopConfig
    _initial_hooks: Iterable[Hook]
    _hooks: FullHookSet | None = None  # sorted at the first call
    _process_seen: tuple[Hook, ...] = ()
    _hooks_lock: threading.RLock
    _toolsets: Toolsets | None = None
    _prepared: bool = False

    def __init__(self, config: LoopConfig, hooks: Iterable[Hook], live: tuple[LiveToolset, ...]) -> None:
        own = vars(self)  # plain assignments would call `__setattr__`, which doubles the time to build an agent
        own["_config"], own["_initial_hooks"], own["_hooks_lock"] = config, hooks, threading.RLock()
        if live:
            view = config.view
            shown = LiveView(view.name, view.description, view.tools, view.model_name)
            own["_config"] = replace(config, view=shown)
            own["_toolsets"] = Toolsets(live, config.tools, self._replace_tools)

    # ---- hooks

    @property
    def name(self) -> str:
        """Its name."""
        return self._config.view.name

    @property
    def hooks(self) -> HookSet:
        """The agent's hooks, in order, including matching process-wide ones; `describe()` lists them event by event."""
        return self._hook_set()

    def _hook_set(self) -> FullHookSet:
        process = self._config.process.hooks
        found = self._hooks
        if found is None or process is not self._process_seen:
            with self._hooks_lock:
                # An outdated set's own hooks include those that were added after the agent was built.
                own = self._initial_hooks if self._hooks is None else self._hooks.own
                self._hooks = found = FullHookSet(own, self._config.process.matching(self._config.tags))
                self._process_seen = process
        return found

    def _registered(self) -> Iterable[Hook]:
        return self.hooks

    def _add(self, hooks: tuple[Hook, ...]) -> None:
        refuse_tools(hooks, f"agent {self.name!r}")
        with self._hooks_lock:
            self._hooks = self._hook_set().with_hooks(hooks)

    def _unregister(self, hooks: tuple[Hook, ...]) -> bool:
        with self._hooks_lock:
            before = after = self._hook_set()
            for hook in hooks:
                after = after.without(hook)
            self._hooks = after
            return len(after) < len(before)

    # ---- toolsets

    @property
    def live_toolsets(self) -> tuple[LiveToolset, ...]:
        """The agent's live toolsets, which have to be opened and closed."""
        return () if self._toolsets is None else self._toolsets.live

    def _own_tools(self) -> tuple[Tool[..., Any], ...]:
        """Return the agent's tools, without the tools of live toolsets."""
        return tuple((self._config.tools if self._toolsets is None else self._toolsets.own).values())

    def _replace_tools(self, tools: dict[str, FullTool[..., Any]]) -> None:
        """Replace the tools of the agent and its running calls."""
        old = self._config
        specs = tuple([tool.spec for tool in tools.values()])
        new = replace(old, tools=tools, specs=specs)
        assert isinstance(new.view, LiveView)
        new.view.tools = specs
        # The new tools' signatures are not read yet.
        vars(self).update(_config=new, _prepared=False)
        for run in tuple(old.running.runs):
            # A run with a typed output has another configuration (`TypedOutput.move`).
            if isinstance(run, RunBase) and run.config is old:
                run.config = new

    async def open(self) -> None:
        """Open the agent's toolsets in the running event loop. Calls also do this when needed.

        Raises:
            ToolError: A toolset cannot be opened.
        """
        if self._toolsets is not None:
            await self._toolsets.open()

    async def close(self) -> None:
        """Close the agent's toolsets in the running event loop, except those that another agent uses.

        The tools of closed toolsets fail in calls that are still running. The next call opens the toolsets again.
        """
        if self._toolsets is not None:
            await self._toolsets.close()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
