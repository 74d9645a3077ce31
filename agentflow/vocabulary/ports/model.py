"""The model port: a request in, a stream of chunks out.

A model name is `scheme://rest` for a registered scheme, or `vendor/rest` for OpenAI and Anthropic
(`"openai/gpt-5"`, `"anthropic/claude-sonnet-4-5"`); any other name is a LiteLLM name, with or without `litellm/`.
Adapters, listed in the table below, are imported when the first model of their scheme is built; no other dynamic import
is permitted. Other packages add schemes with an entry point in the group `agentflow.models` (`myscheme =
"my.module:MyModel"`). These schemes are only reached by `myscheme://`, so that an installed package cannot take over
the name of an adapter or a provider.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import cache
from importlib import import_module
from typing import Literal, Protocol, cast, runtime_checkable

from agentflow._support.values import NamedTuple
from agentflow.errors import UsageError
from agentflow.vocabulary.chunks import ModelChunk
from agentflow.vocabulary.messages import Msg
from agentflow.vocabulary.specs import ModelOptions, ToolSpec

__all__ = [
    "AnswerModes",
    "Model",
    "ModelRequest",
    "TokenCount",
    "answer_modes",
    "context_limit",
    "resolve_model",
    "searches_tools",
    "token_count",
]


class ModelRequest:
    """A request to a model.

    Attributes:
        messages: The conversation, legal for every provider: the system prompt first (if there is one), every tool call
            answered directly after it, no assistant message at the end.
        tools: The tools that the model can call.
        options: The options of the call.
        model: The requested model name (for adapters that serve several models).
    """

    __slots__ = ("messages", "model", "options", "tools")

    def __init__(self, messages: Sequence[Msg], tools: tuple[ToolSpec, ...], options: ModelOptions, model: str) -> None:
        self.messages = messages
        self.tools = tools
        self.options = options
        self.model = model

    def __repr__(self) -> str:
        return f"ModelRequest({self.model!r}, {len(self.messages)} messages, {len(self.tools)} tools)"


@runtime_checkable
class Model(Protocol):
    """The interface between the loop and a model.

    Example:
        >>> class Parrot:
        ...     name = "parrot"
        ...     async def stream(self, request):
        ...         yield ModelChunk(request.messages[-1].text)
        >>> isinstance(Parrot(), Model)
        True
    """

    @property
    def name(self) -> str:
        """The name of the model in hooks and logs."""
        ...

    def stream(self, request: ModelRequest) -> AsyncIterator[ModelChunk]:
        """Stream the answer to a request.

        The loop requests a chunk after it has handled the previous one. If it stops early, it calls the iterator's
        `aclose()`, if it has one; an adapter should release its connection there.

        Raises:
            ModelError: The provider failed.
        """
        ...


class AnswerModes(NamedTuple):
    """The ways in which a model can give a typed answer.

    Attributes:
        native: Whether it supports `ModelOptions.answer_schema`.
        native_with_tools: Whether it supports `answer_schema` together with tools.
        tools: Whether it can call tools.
        forced: Whether it can be forced to call a tool (`tool_choice`).
    """

    native: bool = False
    native_with_tools: bool = False
    tools: bool = True
    forced: bool = True


async def answer_modes(model: str | Model) -> AnswerModes:
    """Return the ways in which a model can give a typed answer, from its coroutine method `answer_modes`.

    A model without this method is assumed to be able to call tools.

    Example:
        >>> (await answer_modes(ScriptedModel(["Hi"]))).tools
        True
    """
    known = getattr(resolve_model(model), "answer_modes", None)
    return AnswerModes() if known is None else await cast("Callable[[], Awaitable[AnswerModes]]", known)()


class TokenCount(NamedTuple):
    """The number of tokens in a request.

    Attributes:
        tokens: The number.
        how: The counter: the provider's, the model's tokenizer, or another tokenizer (an estimate).
    """

    tokens: int
    how: Literal["provider", "tokenizer", "estimate"]


async def token_count(model: str | Model, request: ModelRequest) -> TokenCount | None:
    """Return the number of tokens in a request, from the model's coroutine method `count_tokens`; None without it.

    Example:
        >>> request = ModelRequest([Msg.user("Hi")], (), ModelOptions(), "scripted")
        >>> print(await token_count(ScriptedModel(["Hi"]), request))
        None
    """
    count = getattr(resolve_model(model), "count_tokens", None)
    return None if count is None else await cast("Callable[[ModelRequest], Awaitable[TokenCount]]", count)(request)


def searches_tools(model: str | Model) -> bool:
    """Whether a model's provider has its own search for hidden tools, from the model's attribute `searches_tools`.

    Example:
        >>> searches_tools(ScriptedModel(["Hi"]))
        False
    """
    return getattr(resolve_model(model), "searches_tools", False) is True


def context_limit(model: str | Model) -> int | None:
    """Return the size of a model's context window in tokens, from its attribute `context_limit`; None if unknown.

    Example:
        >>> print(context_limit(ScriptedModel(["Hi"])))
        None
    """
    limit = getattr(resolve_model(model), "context_limit", None)
    return limit if isinstance(limit, int) else None


SCHEMES: dict[str, str] = {
    "litellm": "agentflow.models.litellm:LiteLLMModel",
    "openai": "agentflow.models.choice:openai",
    "openai+http": "agentflow.models.openai_wire:over_http",
    "openai+https": "agentflow.models.openai_wire:over_https",
    "anthropic": "agentflow.models.choice:anthropic",
}
"""Scheme → "module:callable"; the callable takes the rest of the name and returns a `Model`."""


@cache
def _schemes() -> dict[str, str]:
    from importlib.metadata import entry_points  # 7 ms to import, only needed for model names

    found = {entry.name: entry.value for entry in entry_points(group="agentflow.models")}
    return {**found, **SCHEMES}  # ours last, so that no package replaces them


def resolve_model(model: str | Model) -> Model:
    """Return the model for a name; a model is returned unchanged.

    Raises:
        UsageError: The name is empty or has no provider, or its adapter cannot be loaded.
    """
    if not isinstance(model, str):
        return model
    if not model.strip():
        raise UsageError("The model name is empty. Pass a name such as 'openai/gpt-5', or a Model.")
    scheme, separator, rest = model.partition("://")
    target = _schemes().get(scheme) if separator else None
    if not separator:
        scheme, separator, rest = model.partition("/")
        # Looked up among agentflow's own schemes only; see the module's docstring.
        target = SCHEMES.get(scheme) if separator else None
    if target is None:
        if not separator:
            raise UsageError(_without_provider(model))
        scheme, rest, target = "litellm", model, SCHEMES["litellm"]
    module, _, attribute = target.partition(":")
    try:
        factory = cast("Callable[[str], Model]", getattr(import_module(module), attribute))
    except (ImportError, AttributeError) as error:
        raise UsageError(
            f"Model {model!r} needs the adapter {target!r} (scheme {scheme!r}), which cannot be loaded: {error}. "
            "Install the package or extra that contains it."
        ) from error
    return factory(rest)


_MADE_BY = {"gpt": "openai", "o1": "openai", "o3": "openai", "o4": "openai", "claude": "anthropic", "gemini": "gemini"}


def _without_provider(model: str) -> str:
    """Return the error text for a name without a provider. LiteLLM is not used to find the provider, since it takes
    seconds to load.
    """
    provider, colon, rest = model.partition(":")
    if colon and provider.isalpha() and provider in {*_MADE_BY.values(), *SCHEMES}:  # the notation of other libraries
        meant = f"{provider}/{rest}"
    else:
        maker = next((name for start, name in _MADE_BY.items() if model.startswith(start)), "provider")
        meant = f"{maker}/{model}"
    return (
        f"The model name {model!r} contains no provider. Write 'provider/model', such as {meant!r}; with "
        f"'litellm/{model}' LiteLLM guesses the provider."
    )
