"""The public methods of an agent for its sessions."""

from __future__ import annotations

from collections.abc import Iterable
from weakref import ref

from agentflow.agent.sessions import Sessions
from agentflow.agent.toolsets import ToolsetAgent
from agentflow.hooks.hook import Hook
from agentflow.loop.config import LoopConfig
from agentflow.loop.session import Session
from agentflow.ports.store import SessionInfo, Store
from agentflow.tools.live_toolset import LiveToolset
from agentflow.vocabulary.messages import Msg

__all__ = ["SessionsAgent"]


class SessionsAgent(ToolsetAgent):
    """The sessions of an `Agent`.

    Args:
        config: The configuration for the loop.
        hooks: The initial hooks.
        store: The store of its sessions.
        live: Its live toolsets.
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

    def session(self, id: str | None = None) -> Session:  # noqa: A002 - public name
        """Return the session with an id, created on first use; without an id, the implicit session.

        With a store, a session's content is available once it has been loaded: by a call, or by `await
        agent.history(id)`. An agent with a store keeps the 256 most recently used named sessions in memory, besides
        those that run a call or wait for a decision. Others are loaded again when needed.
        """
        return self._sessions.of(id)

    async def history(self, session: str | Session | None = None) -> tuple[Msg, ...]:
        """Load a session, and return its stored conversation.

        While a call runs on the session, it is that call's view of the conversation.

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
        """Release a session from memory. If a store keeps it, it is loaded again when needed.

        Returns:
            Whether it was in memory.

        Raises:
            UsageError: A call is running on it.
        """
        return self._sessions.forget(id)

    def interrupt(self, session: str | Session | None = None, reason: str = "interrupted") -> bool:
        """End the call that runs on a session, at once: its reply's outcome is `interrupted`.

        A call that waits for its session to be loaded ends before its first model call.

        Returns:
            Whether there was a call.
        """
        found = self._sessions.find(session) if isinstance(session, str) else self._sessions.of(session)
        return found is not None and found.interrupt(reason)

    async def unfinished(self) -> list[SessionInfo]:
        """Return the sessions of its store with a call that a crash or a shutdown interrupted: `resume` each.

        Sessions of sub-agents are not included, because their callers continue them. A call that another process is
        running looks the same, so no other process should be working on the store, or calls should wait (`SqlStore(...,
        on_conflict="wait")`).

        Example:
            >>> await Agent("assistant", ScriptedModel([]), store=MemoryStore()).unfinished()
            []
        """
        return await self._sessions.unfinished()
