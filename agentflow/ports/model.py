"""The model port: a request in, a stream of chunks out.

A model name is `scheme://rest` for a registered scheme, or `vendor/rest` for a vendor with a direct wire (`"openai/gpt-5"`,
`"anthropic/claude-sonnet-4-5"`); anything else is a LiteLLM name, which `litellm/` may stand before. Adapters live in other
modules and are imported when the first model of their scheme is built: the table below is the one licensed dynamic import.
Other packages add schemes with an entry point in the group `agentflow.models` (`myscheme = "my.module:MyModel"`), reached by
`myscheme://` only: no package that is installed can take over a name of ours or of a provider.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import cache
from importlib import import_module
from typing import Literal, Protocol, cast, runtime_checkable

from agentflow.chunks import ModelChunk
from agentflow.errors import UsageError
from agentflow.ground.values import NamedTuple
from agentflow.messages import Msg
from agentflow.specs import ModelOptions, ToolSpec

__all__ = [
    "AnswerModes",
    "Model",
    "ModelRequest",
    "TokenCount",
    "answer_modes",
    "context_limit",
    "resolve_model",
    "token_count",
]


class ModelRequest:
    """What a model is asked.

    Attributes:
        messages: The conversation, legal for every provider: the system prompt first (if there is one), every tool call
            answered directly behind it, no assistant message at the end.
        tools: What the model may call.
        options: How it should answer.
        model: The name that was asked for (an adapter that serves several models reads it).
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
    """What the loop needs of a model.

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
        """What hooks and logs call the model."""
        ...

    def stream(self, request: ModelRequest) -> AsyncIterator[ModelChunk]:
        """Answer the request, piece by piece.

        The loop pulls: the next piece is asked for when the last one is dealt with. When the loop stops early it calls
        `aclose()` on the iterator, if there is one; an adapter frees its connection there.

        Raises:
            ModelError: The provider failed.
        """
        ...


class AnswerModes(NamedTuple):
    """How a model can be made to answer in a form.

    Attributes:
        native: Whether it takes `ModelOptions.answer_schema`.
        native_with_tools: Whether it does beside tools.
        tools: Whether it calls tools.
        forced: Whether it can be made to call one (`tool_choice`).
    """

    native: bool = False
    native_with_tools: bool = False
    tools: bool = True
    forced: bool = True


async def answer_modes(model: str | Model) -> AnswerModes:
    """How a model can be made to answer in a form, as it says itself with a coroutine method of this name.

    A model that says nothing is taken to call tools.

    Example:
        >>> (await answer_modes(ScriptedModel(["Hi"]))).tools
        True
    """
    known = getattr(resolve_model(model), "answer_modes", None)
    return AnswerModes() if known is None else await cast("Callable[[], Awaitable[AnswerModes]]", known)()


class TokenCount(NamedTuple):
    """How many tokens a request has.

    Attributes:
        tokens: So many.
        how: Who counted: the provider's own counter, the model's tokenizer, or another's, which makes it an estimate.
    """

    tokens: int
    how: Literal["provider", "tokenizer", "estimate"]


async def token_count(model: str | Model, request: ModelRequest) -> TokenCount | None:
    """How many tokens a request has, as its model counts them with a coroutine method `count_tokens`; None where it has none.

    Example:
        >>> request = ModelRequest([Msg.user("Hi")], (), ModelOptions(), "scripted")
        >>> print(await token_count(ScriptedModel(["Hi"]), request))
        None
    """
    count = getattr(resolve_model(model), "count_tokens", None)
    return None if count is None else await cast("Callable[[ModelRequest], Awaitable[TokenCount]]", count)(request)


def context_limit(model: str | Model) -> int | None:
    """The size of a model's context window in tokens, as its attribute `context_limit` says; None where nobody knows.

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
    from importlib.metadata import entry_points  # 7 ms that only a model's name has to pay

    found = {entry.name: entry.value for entry in entry_points(group="agentflow.models")}
    return {**found, **SCHEMES}


def resolve_model(model: str | Model) -> Model:
    """Return the model that a name stands for; a model stands for itself.

    Raises:
        UsageError: The name is empty or names no provider, or its adapter cannot be loaded.
    """
    if not isinstance(model, str):
        return model
    if not model.strip():
        raise UsageError("A model name is empty; name one like 'openai/gpt-5' or pass a Model.")
    scheme, separator, rest = model.partition("://")
    target = _schemes().get(scheme) if separator else None
    if not separator:
        scheme, separator, rest = model.partition("/")
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
            f"Model {model!r} needs the adapter {target!r} (scheme {scheme!r}), which cannot be loaded: {error}."
        ) from error
    return factory(rest)


_MADE_BY = {"gpt": "openai", "o1": "openai", "o3": "openai", "o4": "openai", "claude": "anthropic", "gemini": "gemini"}


def _without_provider(model: str) -> str:
    """The error of a name without a provider; LiteLLM, which takes seconds to load, is not asked what it may mean."""
    provider, colon, rest = model.partition(":")
    if colon and provider.isalpha() and provider in {*_MADE_BY.values(), *SCHEMES}:  # as others write it
        meant = f"{provider}/{rest}"
    else:
        maker = next((made for start, made in _MADE_BY.items() if model.startswith(start)), "provider")
        meant = f"{maker}/{model}"
    return (
        f"Model {model!r} names no provider. Write 'provider/model', such as {meant!r}; 'litellm/{model}' leaves it to LiteLLM "
        "to guess."
    )
