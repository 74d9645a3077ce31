"""The toolsets of an agent that are opened and closed: `LiveToolset`s.

Rules:

1. An agent without any has none of this: its calls do not come by here.
2. They are opened, all at once, before the first event of a call; an event loop in which they are open costs a look at each.
3. The agent's own tools keep their names. Of two toolsets with a tool of one name the first one given keeps it; the other
   tool is left out, which is logged once.
4. When tools change, the agent and its calls get the new ones at once: the next request to a model shows them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

from agentflow.agent.agent_hooks import HookedAgent
from agentflow.ground.logs import logger
from agentflow.ground.shown import one_line
from agentflow.hooks.hook import Hook
from agentflow.loop.config import LoopConfig
from agentflow.loop.run import RunBase
from agentflow.specs import ToolSpec
from agentflow.tools.live_toolset import LiveToolset
from agentflow.tools.tool import FullTool, Tool, full_tool

__all__ = ["ToolsetAgent", "Toolsets"]


class Toolsets:
    """What an agent has that is opened.

    Args:
        live: The toolsets.
        own: The agent's other tools, by name.
        taken: Told of the agent's tools whenever they are others.
    """

    def __init__(
        self,
        live: tuple[LiveToolset, ...],
        own: Mapping[str, FullTool[..., Any]],
        taken: Callable[[dict[str, FullTool[..., Any]]], None],
    ) -> None:
        self.live = live
        self.own = own
        self._taken = taken
        self._seen: tuple[tuple[Tool[..., Any], ...], ...] | None = None
        self._left_out: set[tuple[str, str]] = set()
        for toolset in live:
            toolset.watch(self.refresh)

    async def open(self) -> None:
        """Open them in the running event loop.

        Raises:
            ToolError: One of them cannot be opened; the others stay open.
        """
        if len(self.live) == 1:
            await self.live[0].open(self)
        else:
            opened = await asyncio.gather(*[toolset.open(self) for toolset in self.live], return_exceptions=True)
            for outcome in opened:
                if outcome is not None:
                    raise outcome
        self.refresh()

    async def close(self) -> None:
        """Close them in the running event loop, as far as nobody else uses them; all, also where one of them fails."""
        for outcome in await asyncio.gather(*[toolset.close(self) for toolset in self.live], return_exceptions=True):
            if outcome is not None:
                raise outcome

    def refresh(self) -> None:
        """Take the tools as they are now."""
        seen = tuple([toolset.tools for toolset in self.live])
        if self._seen is not None and all(a is b for a, b in zip(seen, self._seen, strict=True)):
            return
        self._seen = seen
        tools = dict(self.own)
        for toolset, given in zip(self.live, seen, strict=True):
            for made in map(full_tool, given):
                if tools.setdefault(made.name, made) is not made and (toolset.name, made.name) not in self._left_out:
                    self._left_out.add((toolset.name, made.name))
                    logger.warning(
                        "the tool {} of toolset {} is left out: the agent has another of that name; give it a prefix",
                        one_line(made.name),
                        one_line(toolset.name),
                    )
        self._taken(tools)


class LiveView:
    """What hooks may know of an agent whose tools change.

    Args:
        name: Its name.
        description: What it is for.
        tools: Its tools, as they are until a toolset is open.
        model_name: The name of its model.
    """

    def __init__(self, name: str, description: str, tools: tuple[ToolSpec, ...], model_name: str) -> None:
        self.name = name
        self.description = description
        self.tools = tools
        self.model_name = model_name


class ToolsetAgent(HookedAgent):
    """The toolsets of an `Agent`, and its life as a resource.

    Args:
        config: What it gives the loop.
        hooks: The hooks that it begins with.
    """

    _toolsets: Toolsets | None = None
    _prepared: bool = False

    def __init__(self, config: LoopConfig, hooks: Iterable[Hook], live: tuple[LiveToolset, ...]) -> None:
        super().__init__(config, hooks)
        if live:
            view = config.view
            shown = LiveView(view.name, view.description, view.tools, view.model_name)
            vars(self)["_config"] = replace(config, view=shown)
            vars(self)["_toolsets"] = Toolsets(live, config.tools, self._take_tools)

    @property
    def live_toolsets(self) -> tuple[LiveToolset, ...]:
        """Its toolsets that are opened and closed."""
        return () if self._toolsets is None else self._toolsets.live

    def _own_tools(self) -> tuple[Tool[..., Any], ...]:
        """Its tools, those of toolsets that are opened left out."""
        return tuple((self._config.tools if self._toolsets is None else self._toolsets.own).values())

    def _take_tools(self, tools: dict[str, FullTool[..., Any]]) -> None:
        """Use these tools from now on: the agent, and its calls that run."""
        old = self._config
        specs = tuple([made.spec for made in tools.values()])
        new = replace(old, tools=tools, specs=specs)
        assert isinstance(new.view, LiveView)
        new.view.tools = specs
        vars(self).update(_config=new, _prepared=False)
        for run in tuple(old.running.runs):
            if isinstance(run, RunBase) and run.config is old:
                run.config = new

    async def open(self) -> None:
        """Open its toolsets in the running event loop; a call does so too.

        Raises:
            ToolError: One of them cannot be opened.
        """
        if self._toolsets is not None:
            await self._toolsets.open()

    async def close(self) -> None:
        """Close its toolsets in the running event loop, as far as no other agent uses them.

        A call that runs meanwhile gets errors from their tools. The next call opens them again.
        """
        if self._toolsets is not None:
            await self._toolsets.close()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
