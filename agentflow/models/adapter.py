"""The base class of the adapters: construction, preparing a request, and retrying a failed one.

Rules:

1. A reply that fails after chunks were delivered starts over; its first new chunk has `restart=True`.
2. If a provider refuses thoughts (earlier messages changed, or it cannot decrypt the thoughts), the request is repeated
   without them, and later requests omit them too. This does not count as a retry.
3. `vocabulary/ports/retry.py` decides on retries and their waits; `provider_errors.py` interprets a provider's failure.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable, Container, Iterable, Mapping
from dataclasses import replace
from typing import Any, ClassVar, NamedTuple, Self, SupportsIndex

from agentflow._support.frozen import EMPTY, FrozenDict, freeze
from agentflow.errors import ModelError, UsageError
from agentflow.models.cache_out import cache_arguments, mark_prefixes
from agentflow.models.content_out import check_content, listens
from agentflow.models.conversion import Conversation, Json, WireMessage
from agentflow.models.options_out import BARRED, Thinking, ToolMemory, thinking_out
from agentflow.models.profiles import PROFILES, Family, WireProfile, profile_for
from agentflow.models.provider_errors import is_bound_elsewhere, secrets_in
from agentflow.models.schemas_out import answers_of, in_words, response_format
from agentflow.vocabulary.chunks import ModelChunk
from agentflow.vocabulary.messages import Msg
from agentflow.vocabulary.ports.model import AnswerModes, ModelRequest
from agentflow.vocabulary.ports.retry import RetryPolicy
from agentflow.vocabulary.specs import ToolSpec
from agentflow.vocabulary.transcript import with_appended


class PreparedRequest(NamedTuple):
    """A request in OpenAI's format, which LiteLLM uses too.

    Attributes:
        messages: The conversation.
        tools: `tools` and `tool_choice`, if there are any.
        thinking: The arguments for thinking.
        form: The argument that requests an answer that fits a schema.
        cache: The arguments for a prompt cache.
    """

    messages: list[WireMessage]
    tools: dict[str, Json]
    thinking: Thinking
    form: Json
    cache: dict[str, Json]

    @property
    def fields(self) -> dict[str, Json]:
        """The fields other than the conversation and the options."""
        form: dict[str, Json] = {} if self.form is None else {"response_format": self.form}
        return {**self.tools, **self.cache, **form}


class Adapter(ABC):
    """A model reached over a provider's HTTP API; see the subclasses for the arguments."""

    _reserved: ClassVar[frozenset[str]] = frozenset()
    """Names that `params` and `options.extra` must not contain."""
    _tells_errors: ClassVar[bool] = False
    """Whether the wire has a field that marks a failed tool call."""
    _returns_server_tools: ClassVar[bool] = False
    """Whether requests may contain earlier calls and results of server tools."""

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
            raise UsageError(f"{type(self).__name__} needs a model name, such as 'openai/gpt-5'.")
        self._name = name
        self._check("params", params)
        if family is not None and family not in PROFILES:
            raise UsageError(
                f"{type(self).__name__}({name!r}, family={family!r}): unknown family. Use one of {', '.join(PROFILES)}."
            )
        self._family: Family | None = family
        self._api_base = api_base
        self._api_key = api_key
        if retries < 0:
            raise UsageError(f"{self!r}: retries={retries} must not be negative. Use retries=0 for one attempt.")
        self._policy = RetryPolicy(who=repr(self), attempts=retries + 1, max_wait=max_wait)
        self._timeout = timeout
        self._headers = dict(headers) if headers else None
        self._params: FrozenDict[str, Any] = freeze(params)
        self._sleep = sleep
        self._tools = ToolMemory()
        self._conversation: Conversation | None = None  # created on first use

    @property
    def name(self) -> str:
        """The model's name."""
        return self._name

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._name!r})"

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelChunk, None]:
        """Answer the request in chunks.

        If the iterator is not read to the end, it should be closed (`aclose()`), which closes the connection.

        Raises:
            ModelError: The provider failed, and retries did not help or were not possible.
            UsageError: The model does not support the request.
        """
        self._check("options.extra", request.options.extra)
        # Outside the loop: a missing package or an unknown name is not retried.
        conversation = await self._ready(request)
        delivered = restart = False
        attempts = self._policy.start(self._sleep)
        while True:
            chunks = self._attempt(request, conversation)
            try:
                async for chunk in chunks:
                    if restart:
                        chunk = replace(chunk, restart=True)
                        restart = False
                    delivered = True
                    yield chunk
                return
            except ModelError as error:
                # The consumer discards the chunks of the failed attempt when it sees `restart`.
                restart = delivered
                # `drop_thoughts` returns False if all are omitted already, so a request is repeated at most once.
                if is_bound_elsewhere(error) and conversation.drop_thoughts(request.messages):
                    continue
                if not await attempts.another(error):
                    raise
            finally:
                # Closed also if this generator is closed while it waits at `yield`.
                await chunks.aclose()

    def _conversation_for(self, provider: str, model: str, row: Mapping[str, object], base: str | None) -> Conversation:
        """Create the converter for a provider's model, from its row in LiteLLM's list and the provider's URL."""
        own = PROFILES[self._family] if self._family is not None else None
        profile = self._fitted(own or profile_for(provider, model, base))
        hears = profile.speaks == "messages" and listens(profile.family, row)
        return Conversation(
            self._name,
            profile,
            listens=hears,
            # `/responses` has no such field, but `responses_body` reads it for computer calls.
            tells_errors=self._tells_errors or profile.speaks == "items",
            server_tools=self._returns_server_tools,
        )

    def _fitted(self, profile: WireProfile) -> WireProfile:
        """Adapt the family's profile to this model."""
        return profile

    @abstractmethod
    async def _ready(self, request: ModelRequest) -> Conversation:
        """Return the model's converter, after loading the modules that a request needs."""

    @abstractmethod
    def _attempt(self, request: ModelRequest, conversation: Conversation) -> AsyncGenerator[ModelChunk, None]:
        """Make one request and read its reply; every failure is a `ModelError` caused by the provider's error."""

    def _secrets(self, extra: Mapping[str, object] = EMPTY) -> list[str]:
        """Return the credentials that errors must not show: the model's, and those in a request's extra fields."""
        sources: dict[str, object] = {
            "api_key": self._api_key,
            "headers": self._headers,
            "params": self._params,
            "extra": extra,
        }
        return [*secrets_in(sources)]

    def __reduce_ex__(self, protocol: SupportsIndex) -> str | tuple[Any, ...]:
        if self._secrets():
            raise TypeError(
                f"{self!r} contains a credential (api_key=, headers= or params=), which pickle would store in plain text. "
                "Pickle a model without one: such a model reads its key from the environment, also after unpickling."
            )
        return super().__reduce_ex__(protocol)

    # Copies of an agent or its options share the model with its caches; a model has no state of a single call.
    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: object) -> Self:
        return self

    def _prepare(
        self, request: ModelRequest, conversation: Conversation, supported: Container[str], *, continues: bool = False
    ) -> PreparedRequest:
        profile = conversation.profile
        check_content(request.messages, self._name, profile.family, listens=conversation.listens)
        typed = self._typed(request.tools)
        if lacking := [spec.name for spec in request.tools if spec.native_only and spec.name not in typed]:
            raise UsageError(
                f"The model {self._name!r} has no built-in tool {lacking[0]!r} over {type(self).__name__}, but the "
                "agent's tool needs it. Remove the tool, or use one of the models that docs/computer.md lists."
            )
        tools = self._tools.arguments(request, profile)
        # If other definitions replace the real tools, the provider may refuse thoughts created with the real ones.
        stood_in = bool(tools) and not request.tools
        thinking = BARRED if stood_in else thinking_out(request, profile, self._name, supported)
        schema, messages = request.options.answer_schema, request.messages
        form = None if schema is None else response_format(schema, profile.family)
        if schema is not None and form is None:
            messages = with_appended(messages, Msg.user(in_words(schema)))
        # Converted after `thinking` is known, which decides whether thoughts are sent back.
        converted = conversation.convert(messages, thoughts=not thinking.barred, continues=continues)
        cache: dict[str, Json] = {}
        if request.options.cache:
            if profile.family == "anthropic":
                mark_prefixes(converted, tools, request.options)
            else:
                cache = cache_arguments(converted, tools, profile, supported)
        return PreparedRequest(converted, tools, thinking, form, cache)

    def _typed(self, tools: Iterable[ToolSpec]) -> Mapping[str, Mapping[str, Any]]:
        """Return the provider's built-in definitions of the agent's tools, by name."""
        del tools
        return EMPTY

    def _check(self, where: str, options: Mapping[str, object]) -> None:
        if reserved := sorted(self._reserved & options.keys()):
            tools = " For the provider's server tools, use ModelOptions(server_tools=...)." * ("tools" in reserved)
            raise UsageError(
                f"{where} of the model {self._name!r} contains {reserved}, which {type(self).__name__} sets itself.{tools} "
                f"Use {where} for the provider's other arguments only; for retries, use retries=."
            )


def modes_of(family: Family, name: str, known: Mapping[str, object]) -> AnswerModes:
    """Return the supported ways to request an answer that fits a schema.

    Args:
        family: The model's family, such as "anthropic".
        name: The model's name.
        known: The model's row in LiteLLM's list of models.
    """
    native, beside_tools = answers_of(family, name, known)
    tools = known.get("supports_function_calling") is not False
    forced = known.get("supports_forced_tool_use") is not False
    if family == "compatible":  # many servers support only "auto"
        forced = known.get("supports_tool_choice") is True
    return AnswerModes(native, beside_tools, tools, forced)
