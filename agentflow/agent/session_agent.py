"""The sessions of an agent, as its users ask for them."""

from __future__ import annotations

from collections.abc import Iterable
from weakref import ref

from agentflow.agent.sessions import Sessions
from agentflow.agent.toolsets import ToolsetAgent
from agentflow.hooks.hook import Hook
from agentflow.loop.config import LoopConfig
from agentflow.loop.session import Session
from agentflow.messages import Msg
from agentflow.ports.store import SessionInfo, Store
from agentflow.tools.live_toolset import LiveToolset

__all__ = ["SessionsAgent"]


class SessionsAgent(ToolsetAgent):
    """The sessions of an `Agent`.

    Args:
        config: What it gives the loop.
        hooks: The hooks that it begins with.
        store: Where its sessions are kept.
        live: Its toolsets that are opened.
    """

    _store: Store | None
    _sessions: Sessions

    def __init__(
        self, config: LoopConfig, hooks: Iterable[Hook], store: Store | None, live: tuple[LiveToolset, ...]
    ) -> None:
        super().__init__(config, hooks, live)
        config.running.owner = ref(self)
        own = vars(self)
        own["_store"], own["_sessions"] = (
            store,
            Sessions(config.view.name, store, config.new_id, config.running.suspended),
        )

    def session(self, id: str | None = None) -> Session:  # noqa: A002 - the contract's word
        """The session of an id; the implicit one without. It is made when first asked for.

        With a store, what it holds is known when it has been loaded: by a call, or by `await agent.history(id)`. An agent with
        a store holds the 256 named sessions that were used last (those that run a call, and those that wait for a decision,
        besides); others are loaded when they are asked for again.
        """
        return self._sessions.of(id)

    async def history(self, session: str | Session | None = None) -> tuple[Msg, ...]:
        """A session's conversation as it is stored; it is loaded, so that `agent.session(id)` knows it too.

        While a call runs on it, it is what this call knows of.

        Args:
            session: An id or a session; the implicit one by default.

        Raises:
            StoreError: It cannot be read.

        Example:
            >>> store = MemoryStore()
            >>> await Agent("a", ScriptedModel(["Hello Ada."]), store=store).call("I am Ada.", session="ada")
            >>> [msg.text for msg in await Agent("a", ScriptedModel([]), store=store).history("ada")]
            ['I am Ada.', 'Hello Ada.']
        """
        chosen = self._sessions.of(session)
        await chosen.load()
        return tuple(chosen.messages)

    def forget(self, id: str) -> bool:  # noqa: A002
        """Let go of a session's place in memory; what a store keeps of it stays, and is loaded when it is asked for again.

        Returns:
            Whether it was there.

        Raises:
            UsageError: A call is running on it.
        """
        return self._sessions.forget(id)

    def interrupt(self, session: str | Session | None = None, reason: str = "interrupted") -> bool:
        """End the call that runs on a session, at once: its reply's outcome is `interrupted`.

        A call that waits for its session to be loaded is ended as soon as it begins, before it asks a model.

        Returns:
            Whether there was a call.
        """
        found = self._sessions.find(session) if isinstance(session, str) else self._sessions.of(session)
        return found is not None and found.interrupt(reason)

    async def unfinished(self) -> list[SessionInfo]:
        """The sessions of its store that hold a call which a crash or a shutdown has cut: `resume` each.

        Sessions of sub-agents are left out, since their callers go on with them. A call that another process is running
        looks the same: ask when no other process works on the store, or let calls wait (`SqlStore(..., on_conflict="wait")`).

        Example:
            >>> await Agent("assistant", ScriptedModel([]), store=MemoryStore()).unfinished()
            []
        """
        return await self._sessions.unfinished()
