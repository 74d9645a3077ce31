"""The one place that touches the `litellm` package: loading it, its types, closing its connections.

Rules:

1. It is imported on first use, in a thread: the import takes seconds.
2. No network at import, no telemetry, nothing printed, no parameters dropped or messages rewritten behind our back.
3. Its types are looser than ours, so they are narrowed here once, to protocols.
"""

import asyncio
import logging
import os
import sys
from collections.abc import AsyncIterator, Awaitable
from functools import cache
from importlib import import_module
from typing import Any, Protocol, cast

from agentflow.models.chunks_in import field

__all__ = ["LiteLLM", "WireStream", "close_clients", "cost_of", "library", "provider_of", "received_finish_reason"]

_LOGGERS = ("LiteLLM", "LiteLLM Router", "LiteLLM Proxy")


class WireStream(Protocol):
    """A streamed reply: LiteLLM's `CustomStreamWrapper`."""

    def __aiter__(self) -> AsyncIterator[object]: ...

    async def aclose(self) -> None:
        """Close the connection."""
        ...


class LiteLLM(Protocol):
    """What is used of the package."""

    suppress_debug_info: bool
    modify_params: bool
    drop_params: bool
    telemetry: bool

    # `Any`: the arguments go to a hundred providers.
    def acompletion(self, **arguments: Any) -> Awaitable[WireStream]: ...

    def get_llm_provider(self, model: str, api_base: str | None = None) -> tuple[str, str, str | None, str | None]: ...

    def cost_per_token(self, **arguments: Any) -> tuple[float, float]: ...

    async def close_litellm_async_clients(self) -> None: ...


@cache
def _load() -> LiteLLM:
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    litellm = cast("LiteLLM", import_module("litellm"))
    litellm.suppress_debug_info = True
    litellm.modify_params = False
    litellm.drop_params = False
    litellm.telemetry = False
    if "LITELLM_LOG" not in os.environ:
        for name in _LOGGERS:
            logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    return litellm


_loaded: list[LiteLLM] = []


async def library() -> LiteLLM:
    """The package, loaded in a thread if this is the first time."""
    if not _loaded:
        _loaded.append(await asyncio.to_thread(_load))
    return _loaded[0]


def provider_of(litellm: LiteLLM, model: str, api_base: str | None) -> str:
    """LiteLLM's name of the provider that serves a model.

    Raises:
        Exception: LiteLLM's own, where it knows none.
    """
    return litellm.get_llm_provider(model, api_base=api_base)[1]


def received_finish_reason(stream: WireStream) -> bool:
    """Whether the provider itself said why the reply ended (where the stream does not know, it is believed)."""
    known = [name for name in ("received_finish_reason", "intermittent_finish_reason") if hasattr(stream, name)]
    return not known or any(field(stream, name) for name in known)


def cost_of(litellm: LiteLLM, chunk: object, model: str) -> float | None:
    """The price of the reply whose usage the chunk reports, in dollars; None where no price is known."""
    hidden = cast("object", getattr(chunk, "_hidden_params", None))
    known = field(hidden, "response_cost")
    if isinstance(known, (int, float)) and known > 0:
        return float(known)
    usage = field(chunk, "usage")
    try:
        parts = litellm.cost_per_token(model=model, usage_object=usage)
    except Exception:  # any: a model without a price raises a bare Exception subclass, odd usage raises what it likes
        return None
    return sum(parts)


async def close_clients() -> None:
    """Close the connections that LiteLLM keeps open on this event loop.

    Call it when the program (or a test) ends: connections left to the garbage collector warn about it.
    """
    if "litellm" in sys.modules:
        litellm = await library()
        await litellm.close_litellm_async_clients()
