"""`RemoteAgent`: an agent of another program, used like any agent."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Self, TypedDict, Unpack

from agentflow._support.shown import one_line
from agentflow.agent.agent import Agent
from agentflow.hooks.named import HookSource
from agentflow.serve.a2a.connection import shown
from agentflow.serve.a2a.model import INPUT_TOOL, A2AModel
from agentflow.tools.schema_tools import external_tool
from agentflow.vocabulary.ports.store import Store

_INPUT = external_tool(
    INPUT_TOOL,
    "The remote agent waits for input.",
    {
        "type": "object",
        "properties": {"question": {"type": "string"}, "data": {"type": "array"}},
        "required": ["question"],
    },
)
_MAX_DESCRIPTION = 1_000


class RemoteOptions(TypedDict, total=False):
    """The optional arguments of `RemoteAgent`."""

    name: str | None
    description: str
    token: str | None
    headers: Mapping[str, str] | None
    origins: Sequence[str]
    timeout: float
    max_bytes: int
    hooks: HookSource
    store: Store | str | None


class RemoteAgent(Agent[Any]):
    """An agent of another program, over A2A: `call`, `stream`, `as_tool`, `ask` and `send` work as with any agent.

    Each session is a context of the remote agent. If the remote agent waits for input, the call is suspended: its `pending`
    entry is a call of `remote_input` with the `question`, and `resume` with `Answer(...)` sends the answer.

    Args:
        url: The agent's address; its card is at `/.well-known/agent-card.json` below it.
        name: The name; by default the last part of the address.
        description: Its purpose, for other agents. Only `discover` uses the description in the card.
        token: Sent as `Authorization: Bearer`.
        headers: Further HTTP headers.
        origins: Other origins, such as `"https://host"`, that the card may name.
        timeout: Seconds for an answer; then the remote task is cancelled.
        max_bytes: The largest response.
        hooks: Hooks, as in `Agent`.
        store: The store of its sessions.

    Raises:
        UsageError: An argument is invalid.

    Example:
        >>> clerk = RemoteAgent("https://shop.example.com/a2a/clerk", description="Knows all prices.")
        >>> clerk.name
        'clerk'
    """

    def __init__(
        self,
        url: str,
        *,
        name: str | None = None,
        description: str = "",
        token: str | None = None,
        headers: Mapping[str, str] | None = None,
        origins: Sequence[str] = (),
        timeout: float = 600.0,
        max_bytes: int = 10_000_000,
        hooks: HookSource = (),
        store: Store | str | None = None,
    ) -> None:
        all_headers = {**(headers or {}), **({} if token is None else {"authorization": f"Bearer {token}"})}
        model = A2AModel(url, headers=all_headers, origins=origins, timeout=timeout, max_bytes=max_bytes)
        super().__init__(
            name or _name(model.remote.url.rpartition("/")[2]),
            model,
            description=description,
            tools=[_INPUT],
            hooks=hooks,
            default_hooks=(),  # they would resend messages
            store=store,
        )

    @classmethod
    async def discover(cls, url: str, **options: Unpack[RemoteOptions]) -> Self:
        """Create a remote agent with the name and the description of its card.

        Calling models read the description, so use this only for agents that you trust.

        Args:
            url: As in the constructor.
            options: The other arguments of the constructor.

        Raises:
            ModelError: The card could not be read.
        """
        model = cls(url, **options)._config.model
        assert isinstance(model, A2AModel)
        card = await model.remote.card()
        options.setdefault("name", _name(card.name))
        options.setdefault("description", one_line(card.description[:_MAX_DESCRIPTION]))
        return cls(url, **options)


def _name(text: str) -> str:
    """Return a text as an agent's name."""
    name = re.sub(r"[^A-Za-z0-9_-]+", "_", shown(text)).strip("_-")[:64]
    return name if name[:1].isalpha() else f"agent_{name}"[:64]
