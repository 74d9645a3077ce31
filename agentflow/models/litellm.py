"""`LiteLLMModel`: any model of any provider that LiteLLM serves.

Rules:

1. Cheap to build: `litellm` is loaded (in a thread) when the first reply is asked for.
2. LiteLLM only translates. Retries, message order and cost are ours: its own retries and rewriting are off.
3. Its stream is closed on every path: end, error, cancellation, and a consumer that stops reading.
4. A stream that breaks after pieces were delivered starts over; the first new piece says `restart=True`.
5. Thoughts that a provider refuses, because what stood before them changed, are left out for good.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping
from contextlib import aclosing
from dataclasses import replace
from typing import Any

from agentflow.chunks import ModelChunk
from agentflow.errors import ModelError, UsageError
from agentflow.ground.frozen import EMPTY, FrozenDict, freeze
from agentflow.messages import Msg
from agentflow.models.chunks_in import ChunkReader, usage_of
from agentflow.models.conversion import Conversation
from agentflow.models.litellm_errors import broken_stream, is_bound_elsewhere, is_secret, model_error
from agentflow.models.litellm_library import (
    LiteLLM,
    Served,
    WireStream,
    close_clients,
    cost_of,
    library,
    listed,
    received_finish_reason,
    served,
)
from agentflow.models.options_out import BARRED, ToolMemory, options_out, thinking_out
from agentflow.models.profiles import PROFILES, Family, profile_for
from agentflow.models.schemas_out import answers_of, in_words, response_format
from agentflow.ports.model import AnswerModes, ModelRequest
from agentflow.ports.retry import RetryPolicy
from agentflow.transcript import laid_behind

__all__ = ["LiteLLMModel", "close_clients"]

_RESERVED = frozenset({"model", "messages", "tools", "stream", "stream_options", "max_retries", "num_retries"})


class LiteLLMModel:
    """A model behind LiteLLM, named `"provider/model"`.

    Args:
        name: LiteLLM's name of the model, such as `"openai/gpt-5"` or `"anthropic/claude-sonnet-4-5"`.
        api_base: Where the provider is; for compatible servers and proxies.
        api_key: The key; by default the provider's environment variable.
        retries: Extra attempts when a call fails in a way that may pass.
        max_wait: Longest wait before another attempt, in seconds. If the provider asks for more, the error is raised.
        timeout: Longest silence of the provider, in seconds, before the reply and between its pieces.
        headers: HTTP headers to send along.
        params: Further arguments for LiteLLM, passed on as they are.
        family: Whose model it is, where the name does not tell: behind a proxy or a gateway, or for a deployment with a name
            of its own. By default it is told from the name.
        sleep: How to wait between attempts.

    Example:
        >>> LiteLLMModel("openai/gpt-5", retries=3).name
        'openai/gpt-5'
    """

    __slots__ = (
        "_api_base",
        "_api_key",
        "_conversation",
        "_family",
        "_headers",
        "_name",
        "_params",
        "_policy",
        "_served",
        "_sleep",
        "_timeout",
        "_tools",
    )

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
            raise UsageError("LiteLLMModel was built with an empty name; name a model like 'openai/gpt-5'.")
        _check(name, "params", params)
        if family is not None and family not in PROFILES:
            raise UsageError(f"LiteLLMModel({name!r}, family={family!r}): a family is one of {', '.join(PROFILES)}.")
        self._name = name
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
        self._conversation: Conversation | None = None
        self._served = Served("", frozenset())
        self._tools = ToolMemory()

    @property
    def name(self) -> str:
        """The name it was built with."""
        return self._name

    def __repr__(self) -> str:
        return f"LiteLLMModel({self._name!r})"

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelChunk, None]:
        """Answer the request, piece by piece.

        Close the iterator (`aclose()`) if it is not read to its end: that closes the connection.

        Raises:
            ModelError: The provider failed, and trying again did not help or could not.
            UsageError: This model cannot be asked in this way.
        """
        _check(self._name, "options.extra", request.options.extra)
        litellm = await library()
        conversation = self._prepared(litellm)
        if request.tools and self._served.provider == "ollama":
            raise UsageError(
                f"The model {self._name!r} was asked with tools, which LiteLLM writes into the prompt on Ollama's older "
                f"endpoint. Name it 'ollama_chat/{self._name.partition('/')[2]}'."
            )
        delivered = restart = False
        attempts = self._policy.start(self._sleep)
        while True:
            try:
                async with aclosing(self._attempt(litellm, request, conversation)) as chunks:
                    async for chunk in chunks:
                        if restart:
                            chunk = replace(chunk, restart=True)
                            restart = False
                        delivered = True
                        yield chunk
                return
            except ModelError as error:
                restart = delivered
                if not await attempts.another(error):
                    raise

    async def _attempt(
        self, litellm: LiteLLM, request: ModelRequest, conversation: Conversation
    ) -> AsyncGenerator[ModelChunk, None]:
        """One request and its reply; whatever LiteLLM raises is a `ModelError`.

        A request whose thoughts are refused because what stood before them changed is made again without them.
        """
        again = True
        while again:
            again = False
            reader = ChunkReader(self._name, sealed=conversation.profile.thinking == "blocks")
            stream: WireStream | None = None
            try:
                stream = await litellm.acompletion(**self._arguments(request, conversation))
                async for raw in stream:
                    for chunk in self._chunks(litellm, stream, reader, raw):
                        yield chunk
                if reader.finish_reason is None:
                    raise broken_stream(self._name)
            except ModelError:
                raise
            except Exception as error:  # any: providers' clients raise what they like: all of it is "the model failed"
                # What breaks behind the finish reason costs the usage, not the reply.
                if reader.finish_reason is None:
                    again = is_bound_elsewhere(error) and conversation.drop_thoughts(request.messages)
                    if not again:
                        raise model_error(error, self._name, secrets=self._secrets()) from error
            finally:
                if stream is not None:
                    await stream.aclose()

    def _chunks(self, litellm: LiteLLM, stream: WireStream, reader: ChunkReader, raw: object) -> Iterator[ModelChunk]:
        finished = reader.finish_reason
        yield from reader.read(raw)
        if reader.finish_reason is not None and finished is None:
            # LiteLLM ends a stream that was cut off with a "stop" of its own; its wrapper knows what really came.
            if not received_finish_reason(stream):
                raise broken_stream(self._name)
            yield ModelChunk(finish_reason=reader.finish_reason)
        if (usage := usage_of(raw)) is not None:
            yield ModelChunk(usage=replace(usage, cost=cost_of(litellm, raw, self._name)))

    def _secrets(self) -> list[str]:
        """What an error must not show."""
        named = {**self._params, **(self._headers or {}), "api_key": self._api_key}
        return [value for name, value in named.items() if is_secret(name) and isinstance(value, str)]

    async def answer_modes(self) -> AnswerModes:
        """How this model can be made to answer in a form.

        Raises:
            ModelError: LiteLLM knows no provider for its name.
        """
        litellm = await library()
        family = self._prepared(litellm).profile.family
        known = listed(litellm, self._name)
        native, beside_tools = answers_of(family, self._name, known)
        tools = known.get("supports_function_calling") is not False
        forced = known.get("supports_forced_tool_use") is not False
        if family == "compatible":  # many servers know "auto" alone
            forced = known.get("supports_tool_choice") is True
        return AnswerModes(native, beside_tools, tools, forced)

    def _prepared(self, litellm: LiteLLM) -> Conversation:
        """The converter of this model; made once, when LiteLLM can say who serves the model."""
        if self._conversation is None:
            try:
                known = served(litellm, self._name, self._api_base)
            except Exception as error:  # any: an unknown name, or a name that a provider's own code stumbles over
                raise model_error(error, self._name, secrets=self._secrets()) from error
            own = PROFILES[self._family] if self._family is not None else None
            self._served = known
            profile = own or profile_for(known.provider, self._name, self._api_base)
            self._conversation = Conversation(self._name, profile)
        return self._conversation

    def _arguments(self, request: ModelRequest, conversation: Conversation) -> dict[str, Any]:
        profile = conversation.profile
        tools = self._tools.arguments(request, profile)
        # Behind stand-ins for its tools what was thought over the real ones may be refused.
        stood_in = bool(tools) and not request.tools
        thinking = BARRED if stood_in else thinking_out(request, profile, self._name, self._served.supported)
        schema, messages = request.options.answer_schema, request.messages
        form = None if schema is None else response_format(schema, profile.family)
        if schema is not None and form is None:
            messages = laid_behind(messages, Msg.user(in_words(schema)))
        arguments: dict[str, Any] = {
            "model": self._name,
            "messages": conversation.convert(messages, thoughts=not thinking.barred),
            "stream": True,
            "stream_options": {"include_usage": True},
            "timeout": self._timeout,
            "stream_timeout": self._timeout,
            "max_retries": 0,
            "num_retries": 0,
            **self._params,
            **options_out(request.options, profile, thinking),
            **tools,
            **({} if form is None else {"response_format": form}),
            **request.options.extra,
        }
        if self._api_base is not None:
            arguments["api_base"] = self._api_base
        if self._api_key is not None:
            arguments["api_key"] = self._api_key
        if self._headers is not None:
            arguments["extra_headers"] = {**self._headers, **(arguments.get("extra_headers") or {})}
        return arguments


def _check(name: str, where: str, given: Mapping[str, object]) -> None:
    if taken := sorted(_RESERVED & given.keys()):
        raise UsageError(
            f"{where} of the model {name!r} holds {taken}, which LiteLLMModel sets itself. Legal are LiteLLM's other "
            "arguments; retries are set with retries=."
        )
