"""The only module that uses the `litellm` package: loading it, its types, closing its connections.

Rules:

1. It is imported on first use, in a thread: the import takes seconds.
2. The only network traffic is the model's: no price list, tokenizer or telemetry. Nothing is printed, no parameters are
   dropped, no messages are rewritten.
3. A connection belongs to the event loop that opened it, and is closed with it. LiteLLM keeps most of its clients by loop; the
   one that it keeps for the whole process is replaced.
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

_LOGGERS = ("LiteLLM", "LiteLLM Router", "LiteLLM Proxy")


class WireStream(Protocol):
    """A streamed reply: LiteLLM's `CustomStreamWrapper`."""

    def __aiter__(self) -> AsyncIterator[object]: ...

    async def aclose(self) -> None:
        """Close the connection."""
        ...


class ClientCache(Protocol):
    """LiteLLM's cache of HTTP clients; a key ends with a mark of the event loop that created the client."""

    cache_dict: MutableMapping[str, object]

    def update_cache_key_with_event_loop(self, key: str) -> str:
        """Add the running loop's mark."""
        ...

    def delete_cache(self, key: str) -> None:
        """Remove a client."""
        ...


class LiteLLM(Protocol):
    """The part of the package `litellm` that is used here."""

    suppress_debug_info: bool
    modify_params: bool
    drop_params: bool
    telemetry: bool
    disable_hf_tokenizer_download: bool
    model_cost: Mapping[str, Mapping[str, object]]
    in_memory_llm_clients_cache: ClientCache
    module_level_aclient: object

    # The arguments depend on the provider.
    def acompletion(self, **arguments: object) -> Awaitable[WireStream]: ...

    def aembedding(self, **arguments: object) -> Awaitable[object]: ...

    def get_llm_provider(self, model: str, api_base: str | None = None) -> tuple[str, str, str | None, str | None]: ...

    def get_supported_openai_params(self, model: str, custom_llm_provider: str | None = None) -> list[str] | None: ...

    def get_model_info(self, model: str) -> Mapping[str, object]: ...

    def cost_per_token(self, **arguments: object) -> tuple[float, float]: ...

    def validate_environment(self, model: str) -> Mapping[str, object]: ...

    def token_counter(self, model: str, *, text: str) -> int: ...


class _LoopsClient:
    """Replaces an HTTP client of LiteLLM, and forwards everything to the running loop's client."""

    def __init__(self, of_loop: Callable[..., object]) -> None:
        self._of_loop = of_loop

    def __getattr__(self, name: str) -> object:
        return getattr(self._of_loop(llm_provider="agentflow", params={"client_alias": "of the loop"}), name)


@cache
def _load() -> LiteLLM:
    # Set before the import, during which LiteLLM would download its list of prices. A user's own value is kept.
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    litellm = cast("LiteLLM", import_module("litellm"))
    litellm.suppress_debug_info = True
    # Otherwise LiteLLM changes requests, such as the tools or messages, without notice.
    litellm.modify_params = False
    litellm.drop_params = False
    litellm.telemetry = False
    # otherwise LiteLLM downloads a tokenizer on the event loop if a model's name contains "llama-3"
    litellm.disable_hf_tokenizer_download = True
    handlers = import_module("litellm.llms.custom_httpx.http_handler")
    # This client would belong to the first loop that uses it, and fail in the next one (rule 3).
    litellm.module_level_aclient = _LoopsClient(handlers.get_async_httpx_client)
    if "LITELLM_LOG" not in os.environ:
        for name in _LOGGERS:
            # LiteLLM logs to the console; `LITELLM_LOG` shows that the user wants this.
            logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    return litellm


async def library() -> LiteLLM:
    """Return the package, loaded in a thread the first time; its connections on this loop are closed with the loop."""
    # `currsize` is 1 once the package is loaded: a thread for each request would be a waste.
    litellm = _load() if _load.cache_info().currsize else await asyncio.to_thread(_load)
    return await client_of_loop("litellm", lambda: _with_nothing_open(litellm), _close)


def _with_nothing_open(litellm: LiteLLM) -> LiteLLM:
    """Return the package without clients of an earlier loop that had the same id."""
    for key in _keys(litellm):
        litellm.in_memory_llm_clients_cache.delete_cache(key)
    return litellm


def _keys(litellm: LiteLLM) -> list[str]:
    """Return the keys of this loop's clients."""
    cache = litellm.in_memory_llm_clients_cache
    mark = cache.update_cache_key_with_event_loop("")
    return [key for key in list(cache.cache_dict) if key.endswith(mark)]


@dataclass(frozen=True, slots=True)
class Served:
    """How LiteLLM serves a model.

    Attributes:
        provider: LiteLLM's name of the provider.
        supported: The arguments that LiteLLM translates for the model; it sends others unchanged, or refuses them.
    """

    provider: str
    supported: frozenset[str]


def served(litellm: LiteLLM, model: str, api_base: str | None) -> Served:
    """Look up a model in LiteLLM.

    Raises:
        Exception: LiteLLM's own, if it does not know the provider.
    """
    name, provider, _, _ = litellm.get_llm_provider(model, api_base=api_base)
    return Served(provider, frozenset(litellm.get_supported_openai_params(name, custom_llm_provider=provider) or ()))


def listed(litellm: LiteLLM, model: str) -> Mapping[str, object]:
    """Return a model's row in LiteLLM's list of models; empty if it is not listed."""
    try:
        return {**litellm.get_model_info(model), **(litellm.model_cost.get(model.partition("/")[2]) or {})}
    except Exception:  # LiteLLM raises a bare Exception for an unknown name
        return {}


def missing_keys(litellm: LiteLLM, model: str) -> tuple[str, ...]:
    """Return the environment variables that a model's provider needs and that are not set, if LiteLLM knows them.

    Raises:
        Exception: LiteLLM's own, if it does not know the provider.
    """
    served(litellm, model, None)
    found = litellm.validate_environment(model).get("missing_keys")
    return tuple(str(name) for name in cast("list[object]", found)) if isinstance(found, list) else ()


def received_finish_reason(stream: WireStream) -> bool:
    """Return whether the provider itself sent the finish reason (true if the stream does not know)."""
    # A finish reason in the middle of the stream is kept in the second attribute.
    known = [name for name in ("received_finish_reason", "intermittent_finish_reason") if hasattr(stream, name)]
    return not known or any(field(stream, name) for name in known)


def cost_of(litellm: LiteLLM, chunk: object, model: str) -> float | None:
    """Return the price of the reply in a usage chunk, in dollars; None if no price is known."""
    hidden = cast("object", getattr(chunk, "_hidden_params", None))
    known = field(hidden, "response_cost")
    # 0 may mean that LiteLLM found no price: the list decides.
    if isinstance(known, (int, float)) and known > 0:
        return float(known)
    usage = field(chunk, "usage")
    try:
        # The price list has no names with "responses/".
        parts = litellm.cost_per_token(model=model.replace("responses/", "", 1), usage_object=usage)
    except Exception:  # LiteLLM raises a plain Exception if there is no price, and various exceptions for unusual usage
        return None
    return sum(parts)


def count_tokens(model: str, text: str) -> int:
    """Count tokens with LiteLLM, without network access. Blocks while LiteLLM is loaded."""
    return _load().token_counter(model, text=text)


async def _close(litellm: LiteLLM) -> None:
    """Close the connections that LiteLLM keeps open on this event loop."""
    for key in _keys(litellm):
        client = litellm.in_memory_llm_clients_cache.cache_dict.get(key)
        litellm.in_memory_llm_clients_cache.delete_cache(key)
        # OpenAI's client and LiteLLM's handler each contain an httpx client.
        inner = field(client, "_client") or field(client, "client") or client
        if callable(close := field(inner, "aclose")):
            await cast("Awaitable[None]", close())
