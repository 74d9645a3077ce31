"""The one place that touches the `litellm` package: loading it, its types, closing its connections.

Rules:

1. It is imported on first use, in a thread: the import takes seconds.
2. The only connection is the model's: no price list, tokenizer or telemetry goes over the network. Nothing is printed, no
   parameters are dropped or messages rewritten behind our back.
3. A connection belongs to the event loop that opened it, and is closed with it. LiteLLM keeps most of its clients by loop;
   the one that it keeps for the whole process, whichever loop asks, is replaced.
4. Its types are looser than ours, so they are narrowed here once, to protocols.
"""

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Protocol, cast

from agentflow.models.clients import client_of_loop
from agentflow.models.loose import field

__all__ = [
    "LiteLLM",
    "Served",
    "WireStream",
    "cost_of",
    "count_tokens",
    "library",
    "listed",
    "missing_keys",
    "received_finish_reason",
    "served",
]

_LOGGERS = ("LiteLLM", "LiteLLM Router", "LiteLLM Proxy")


class WireStream(Protocol):
    """A streamed reply: LiteLLM's `CustomStreamWrapper`."""

    def __aiter__(self) -> AsyncIterator[object]: ...

    async def aclose(self) -> None:
        """Close the connection."""
        ...


class ClientCache(Protocol):
    """Where LiteLLM keeps its HTTP clients; a key ends in a mark of the loop that the client was made on."""

    cache_dict: MutableMapping[str, object]

    def update_cache_key_with_event_loop(self, key: str) -> str:
        """Add the running loop's mark."""
        ...

    def delete_cache(self, key: str) -> None:
        """Forget a client."""
        ...


class LiteLLM(Protocol):
    """What is used of the package."""

    suppress_debug_info: bool
    modify_params: bool
    drop_params: bool
    telemetry: bool
    disable_hf_tokenizer_download: bool
    model_cost: Mapping[str, Mapping[str, object]]
    in_memory_llm_clients_cache: ClientCache
    module_level_aclient: object

    # The arguments go to a hundred providers.
    def acompletion(self, **arguments: object) -> Awaitable[WireStream]: ...

    def get_llm_provider(self, model: str, api_base: str | None = None) -> tuple[str, str, str | None, str | None]: ...

    def get_supported_openai_params(self, model: str, custom_llm_provider: str | None = None) -> list[str] | None: ...

    def get_model_info(self, model: str) -> Mapping[str, object]: ...

    def cost_per_token(self, **arguments: object) -> tuple[float, float]: ...

    def validate_environment(self, model: str) -> Mapping[str, object]: ...

    def token_counter(self, model: str, *, text: str) -> int: ...


class _LoopsClient:
    """Stands in for an HTTP client of LiteLLM and passes everything to the one of the running loop."""

    def __init__(self, of_loop: Callable[..., object]) -> None:
        self._of_loop = of_loop

    def __getattr__(self, name: str) -> object:
        return getattr(self._of_loop(llm_provider="agentflow", params={"client_alias": "of the loop"}), name)


@cache
def _load() -> LiteLLM:
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    litellm = cast("LiteLLM", import_module("litellm"))
    litellm.suppress_debug_info = True
    litellm.modify_params = False
    litellm.drop_params = False
    litellm.telemetry = False
    litellm.disable_hf_tokenizer_download = True  # else a name with "llama-3" in it asks a hub, on the event loop
    handlers = import_module("litellm.llms.custom_httpx.http_handler")
    litellm.module_level_aclient = _LoopsClient(handlers.get_async_httpx_client)
    if "LITELLM_LOG" not in os.environ:
        for name in _LOGGERS:
            logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    return litellm


async def library() -> LiteLLM:
    """The package, loaded in a thread if this is the first time; what it opens on this loop is closed with it."""
    litellm = _load() if _load.cache_info().currsize else await asyncio.to_thread(_load)
    return await client_of_loop("litellm", lambda: _with_nothing_open(litellm), _close)


def _with_nothing_open(litellm: LiteLLM) -> LiteLLM:
    """The package; a loop that begins has no client, and none of one before it that had the same id."""
    for key in _keys(litellm):
        litellm.in_memory_llm_clients_cache.delete_cache(key)
    return litellm


def _keys(litellm: LiteLLM) -> list[str]:
    """The keys of this loop's clients."""
    cache = litellm.in_memory_llm_clients_cache
    mark = cache.update_cache_key_with_event_loop("")
    return [key for key in list(cache.cache_dict) if key.endswith(mark)]


@dataclass(frozen=True, slots=True)
class Served:
    """How LiteLLM serves a model.

    Attributes:
        provider: LiteLLM's name of the provider.
        supported: The arguments that it translates for the model; others it sends as they are, or refuses.
    """

    provider: str
    supported: frozenset[str]


def served(litellm: LiteLLM, model: str, api_base: str | None) -> Served:
    """What LiteLLM knows of a model.

    Raises:
        Exception: LiteLLM's own, where it knows no provider.
    """
    name, provider, _, _ = litellm.get_llm_provider(model, api_base=api_base)
    return Served(provider, frozenset(litellm.get_supported_openai_params(name, custom_llm_provider=provider) or ()))


def listed(litellm: LiteLLM, model: str) -> Mapping[str, object]:
    """What LiteLLM's list of models says of one; nothing of one that it does not list."""
    try:
        return {**litellm.get_model_info(model), **(litellm.model_cost.get(model.partition("/")[2]) or {})}
    except Exception:  # any: an unknown name is a bare Exception subclass there
        return {}


def missing_keys(litellm: LiteLLM, model: str) -> tuple[str, ...]:
    """The environment variables that a model's provider wants and that are not set, as far as LiteLLM knows.

    Raises:
        Exception: LiteLLM's own, where it knows no provider.
    """
    served(litellm, model, None)
    found = litellm.validate_environment(model).get("missing_keys")
    return tuple(str(name) for name in cast("list[object]", found)) if isinstance(found, list) else ()


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
        # The price list knows no word for the way over the responses API.
        parts = litellm.cost_per_token(model=model.replace("responses/", "", 1), usage_object=usage)
    except Exception:  # any: a model without a price raises a bare Exception subclass, odd usage raises what it likes
        return None
    return sum(parts)


def count_tokens(model: str, text: str) -> int:
    """LiteLLM's count, without the network; it blocks for as long as loading takes."""
    return _load().token_counter(model, text=text)


async def _close(litellm: LiteLLM) -> None:
    """Close the connections that LiteLLM keeps open on this event loop."""
    for key in _keys(litellm):
        client = litellm.in_memory_llm_clients_cache.cache_dict.get(key)
        litellm.in_memory_llm_clients_cache.delete_cache(key)
        # OpenAI's client and LiteLLM's handler each hold an httpx client.
        inner = field(client, "_client") or field(client, "client") or client
        if callable(close := field(inner, "aclose")):
            await cast("Awaitable[None]", close())
