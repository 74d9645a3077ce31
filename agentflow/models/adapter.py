"""What the adapters share: how they are built, how a request is prepared, and how a failed one is made again.

Rules:

1. A reply that breaks after pieces were delivered starts over; the first new piece says `restart=True`.
2. Thoughts that a provider refuses, because what stood before them changed or it cannot open them, are left out for good,
   and the request is made again without them; that is no retry.
3. What is retried, and after how long, is `ports/retry.py`; what a provider's failure means is `provider_errors.py`.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable, Container, Mapping
from contextlib import aclosing
from dataclasses import replace
from typing import Any, ClassVar, NamedTuple, Self, SupportsIndex

from agentflow.chunks import ModelChunk
from agentflow.errors import ModelError, UsageError
from agentflow.ground.frozen import EMPTY, FrozenDict, freeze
from agentflow.messages import Msg
from agentflow.models.cache_out import cache_arguments, mark_prefixes
from agentflow.models.content_out import check_content
from agentflow.models.conversion import Conversation, Json, WireMessage
from agentflow.models.options_out import BARRED, Thinking, ToolMemory, thinking_out
from agentflow.models.profiles import PROFILES, Family
from agentflow.models.provider_errors import is_bound_elsewhere, secrets_in
from agentflow.models.schemas_out import answers_of, in_words, response_format
from agentflow.ports.model import AnswerModes, ModelRequest
from agentflow.ports.retry import RetryPolicy
from agentflow.transcript import with_appended

__all__ = ["Adapter", "Prepared", "modes_of"]


class Prepared(NamedTuple):
    """A request in the words of OpenAI's wire, which are those of LiteLLM.

    Attributes:
        messages: The conversation.
        tools: `tools` and `tool_choice`, if there are any.
        thinking: What becomes of thinking.
        form: The argument that asks for an answer by a schema.
        cache: The arguments that a prompt cache wants.
    """

    messages: list[WireMessage]
    tools: dict[str, Json]
    thinking: Thinking
    form: Json
    cache: dict[str, Json]


class Adapter(ABC):
    """A model behind a provider's HTTP interface; the arguments are those of its subclasses."""

    __slots__ = (
        "_api_base",
        "_api_key",
        "_family",
        "_headers",
        "_name",
        "_params",
        "_policy",
        "_sleep",
        "_timeout",
        "_tools",
    )

    _reserved: ClassVar[frozenset[str]] = frozenset()
    """What `params` and `options.extra` may not hold."""

    def __init__(
        self,
        name: str,
        *,
        api_base: str | None = None,
        api_key: str | None = None,
        retries: int = 2,
        max_wait: float = 60.0,
        timeout: float = 600.0,
        headers: Mapping[str, str] | None = None,
        params: Mapping[str, Any] = EMPTY,
        family: Family | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        if not name.strip():
            raise UsageError(f"{type(self).__name__} was built with an empty name; name a model like 'openai/gpt-5'.")
        self._name = name
        self._check("params", params)
        if family is not None and family not in PROFILES:
            raise UsageError(
                f"{type(self).__name__}({name!r}, family={family!r}): a family is one of {', '.join(PROFILES)}."
            )
        self._family: Family | None = family
        self._api_base = api_base
        self._api_key = api_key
        if retries < 0:
            raise UsageError(f"{self!r} was built with retries={retries}; it cannot be negative (retries=0 asks once).")
        self._policy = RetryPolicy(who=repr(self), attempts=retries + 1, max_wait=max_wait)
        self._timeout = timeout
        self._headers = dict(headers) if headers else None
        self._params: FrozenDict[str, Any] = freeze(params)
        self._sleep = sleep
        self._tools = ToolMemory()

    @property
    def name(self) -> str:
        """The name it was built with."""
        return self._name

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._name!r})"

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelChunk, None]:
        """Answer the request, piece by piece.

        Close the iterator (`aclose()`) if it is not read to its end: that closes the connection.

        Raises:
            ModelError: The provider failed, and trying again did not help or could not.
            UsageError: This model cannot be asked in this way.
        """
        self._check("options.extra", request.options.extra)
        conversation = await self._ready(request)
        delivered = restart = False
        attempts = self._policy.start(self._sleep)
        while True:
            try:
                async with aclosing(self._attempt(request, conversation)) as chunks:
                    async for chunk in chunks:
                        if restart:
                            chunk = replace(chunk, restart=True)
                            restart = False
                        delivered = True
                        yield chunk
                return
            except ModelError as error:
                restart = delivered
                if is_bound_elsewhere(error) and conversation.drop_thoughts(request.messages):
                    continue
                if not await attempts.another(error):
                    raise

    @abstractmethod
    async def _ready(self, request: ModelRequest) -> Conversation:
        """The converter of this model, when everything is there that a request needs."""

    @abstractmethod
    def _attempt(self, request: ModelRequest, conversation: Conversation) -> AsyncGenerator[ModelChunk, None]:
        """One request and its reply; every failure is a `ModelError` whose cause is the provider's own."""

    def _secrets(self, extra: Mapping[str, object] = EMPTY) -> list[str]:
        """What an error must not show: the credentials that it was built with, and those of a request's further fields."""
        given: dict[str, object] = {
            "api_key": self._api_key,
            "headers": self._headers,
            "params": self._params,
            "extra": extra,
        }
        return [*secrets_in(given)]

    def __reduce_ex__(self, protocol: SupportsIndex) -> str | tuple[Any, ...]:
        if self._secrets():
            raise TypeError(
                f"{self!r} holds a credential (api_key=, headers= or params=), which pickle would write down readable. Pickle "
                "a model that was built without one: it reads its key from the environment, also where it is unpickled."
            )
        return super().__reduce_ex__(protocol)

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: object) -> Self:
        return self

    def _prepare(self, request: ModelRequest, conversation: Conversation, supported: Container[str]) -> Prepared:
        profile = conversation.profile
        check_content(request.messages, self._name, profile.family, listens=conversation.listens)
        tools = self._tools.arguments(request, profile)
        # Behind stand-ins for its tools what was thought over the real ones may be refused.
        stood_in = bool(tools) and not request.tools
        thinking = BARRED if stood_in else thinking_out(request, profile, self._name, supported)
        schema, messages = request.options.answer_schema, request.messages
        form = None if schema is None else response_format(schema, profile.family)
        if schema is not None and form is None:
            messages = with_appended(messages, Msg.user(in_words(schema)))
        converted = conversation.convert(messages, thoughts=not thinking.barred)
        cache: dict[str, Json] = {}
        if request.options.cache:
            if profile.family == "anthropic":
                mark_prefixes(converted, tools, request.options)
            else:
                cache = cache_arguments(converted, tools, profile, supported)
        return Prepared(converted, tools, thinking, form, cache)

    def _check(self, where: str, given: Mapping[str, object]) -> None:
        if taken := sorted(self._reserved & given.keys()):
            tools = " Server tools of the provider cannot be asked for: tools= of the agent are the ones that run." * (
                "tools" in taken
            )
            raise UsageError(
                f"{where} of the model {self._name!r} holds {taken}, which {type(self).__name__} sets itself.{tools} Legal are "
                "the provider's other arguments; retries are set with retries=."
            )


def modes_of(family: Family, name: str, known: Mapping[str, object]) -> AnswerModes:
    """How a model can be made to answer in a form.

    Args:
        family: Whose model it is.
        name: Its name.
        known: What LiteLLM's list of models says of it.
    """
    native, beside_tools = answers_of(family, name, known)
    tools = known.get("supports_function_calling") is not False
    forced = known.get("supports_forced_tool_use") is not False
    if family == "compatible":  # many servers know "auto" alone
        forced = known.get("supports_tool_choice") is True
    return AnswerModes(native, beside_tools, tools, forced)
