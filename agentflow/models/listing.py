"""A model's row in LiteLLM's list of models (abilities, limits and prices), read without loading LiteLLM.

Rules:

1. The list is the file that LiteLLM ships; without it, no model is known.
2. It is decoded once for each model that is looked up (a few milliseconds), and only the requested rows are kept.
3. Prices come from the row. Tokens that are read from or written to the cache have separate prices; in some rows, long
   prompts do too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import cast

import msgspec

from agentflow._support.frozen import EMPTY
from agentflow.vocabulary.specs import Usage

_SEARCH = "search_context_size_medium"
_FILE = "model_prices_and_context_window_backup.json"
_LONG = re.compile(r"input_cost_per_token_above_(\d+)k_tokens\Z")

Row = Mapping[str, object]


@lru_cache(maxsize=256)
def listed(provider: str, model: str) -> Row:
    """Return the row of a model; empty if it has none.

    Args:
        provider: LiteLLM's name of the provider.
        model: The provider's name of the model.

    Example:
        >>> listed("openai", "gpt-4o")["supports_function_calling"], len(listed("openai", "my-own"))
        (True, 0)
    """
    litellm = find_spec("litellm")  # finds the package without loading it
    file = Path(litellm.origin).with_name(_FILE) if litellm is not None and litellm.origin else None
    if file is None or not file.is_file():
        return EMPTY
    # `Raw` leaves the rows undecoded.
    rows = msgspec.json.decode(file.read_bytes(), type=dict[str, msgspec.Raw])
    for name in (model, f"{provider}/{model}"):
        if name in rows:
            row = msgspec.json.decode(rows[name], type=dict[str, object])
            # Another provider may have a model of the same name, with other prices.
            if row.get("litellm_provider") == provider:
                return row
    return EMPTY


def price(row: Row, usage: Usage, hour_cached: int = 0, searches: int = 0) -> float | None:
    """Return the price of a reply in dollars; None if it is unknown.

    Args:
        row: The model's row.
        usage: The usage of the reply.
        hour_cached: The number of tokens written to the cache for an hour.
        searches: The number of web searches that the provider ran.

    Example:
        >>> price(listed("openai", "gpt-4o"), Usage(input_tokens=1_000_000, cache_read_tokens=1_000_000))
        1.25
    """
    tier = _tier(row, usage.input_tokens)
    into, out = _rate(row, "input_cost_per_token", tier), _rate(row, "output_cost_per_token", tier)
    if into is None or out is None:
        return None
    read = _rate(row, "cache_read_input_token_cost", tier)
    written = _rate(row, "cache_creation_input_token_cost", tier)
    # Input tokens include those of the cache, which have their own prices.
    fresh = max(0, usage.input_tokens - usage.cache_read_tokens - usage.cache_write_tokens)
    return (
        fresh * into
        + usage.cache_read_tokens * (into if read is None else read)
        + (usage.cache_write_tokens - hour_cached) * (into if written is None else written)
        + hour_cached * (_rate(row, "cache_creation_input_token_cost_above_1hr", tier) or written or into)
        + usage.output_tokens * out
        + searches * _per_search(row)
    )


def batch_prices(row: Row) -> Row:
    """Return a model's row with the prices of batches: those in the list, or half of the normal prices.

    If the row has no batch price for tokens read from the cache, they are priced like other input tokens of the batch, since
    the two discounts may not be combinable.

    Example:
        >>> price(batch_prices(listed("openai", "gpt-4o")), Usage(input_tokens=1_000_000, cache_read_tokens=1_000_000))
        1.25
    """
    prices: dict[str, object] = {}
    for name, rate in row.items():
        if not name.startswith(("input_cost_per_token", "output_cost_per_token", "cache_")):
            prices[name] = rate
        elif name.startswith("cache_read") and f"{name}_batches" not in row:
            continue
        elif isinstance(rate, (int, float)):
            prices[name] = row.get(f"{name}_batches") or rate / 2
    return prices


def _per_search(row: Row) -> float:
    """Return the price of a web search; 0 if it is not listed."""
    prices = row.get("search_context_cost_per_query")
    price = cast("Mapping[str, object]", prices).get(_SEARCH) if isinstance(prices, Mapping) else None
    return float(price) if isinstance(price, (int, float)) else 0.0


def _tier(row: Row, tokens: int) -> str:
    """Return the suffix of the price names for a prompt of this length."""
    limits = [int(found[1]) for key in row if (found := _LONG.match(key))]
    passed = [limit for limit in limits if tokens > limit * 1000]
    return f"_above_{max(passed)}k_tokens" if passed else ""


def _rate(row: Row, name: str, tier: str) -> float | None:
    for key in (name + tier, name):
        if isinstance(rate := row.get(key), (int, float)):
            return float(rate)
    return None
