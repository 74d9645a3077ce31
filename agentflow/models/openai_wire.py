"""`OpenAIWire`: OpenAI's chat completions and `/responses`, and every server that supports them, without LiteLLM.

Rules:

1. Requests use chat completions, unless the model's name contains `responses/` or the model requires `/responses`. Some
   models are available only there; some models at OpenAI can combine tools with reasoning only there.
2. Most events are short texts, which take a fast path. All others are read by `ChunkReader`, which also reads LiteLLM's
   chunks.
3. Fields of unexpected types are read by `loose.py`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast

import msgspec

from agentflow._support.shown import without_password
from agentflow.errors import UsageError
from agentflow.models.chunks_in import ChunkReader, usage_of
from agentflow.models.conversion import Conversation
from agentflow.models.loose import field, one_or_more, place
from agentflow.models.options_out import options_out
from agentflow.models.profiles import WireProfile
from agentflow.models.provider_errors import ProviderError
from agentflow.models.responses_in import ItemsReader
from agentflow.models.responses_out import over_responses, responses_body
from agentflow.models.server_tools_out import shown
from agentflow.models.wire import DirectWire, Named, Reader, Vendor, anything
from agentflow.vocabulary.chunks import ModelChunk, text_chunk
from agentflow.vocabulary.ports.model import ModelRequest
from agentflow.vocabulary.specs import ToolSpec, Usage

# OpenAI's arguments that this wire translates; LiteLLM has such a list for each model.
_SUPPORTED = frozenset({"reasoning_effort", "prompt_cache_key"})
_ACCOUNT = {
    "openai-organization": ("OPENAI_ORG_ID", "OPENAI_ORGANIZATION"),
    "openai-project": ("OPENAI_PROJECT_ID",),
}
_RESPONSES = "responses/"
# The version in a name: 5.4 in "gpt-5.4-mini", 4 in "gpt-4-0613", because a date is not a version.
_SERIES = re.compile(r"gpt-(\d+)(?:\.(\d+))?(?![\d.])")
_NO_COMPUTER = re.compile("nano|instant|chat")
"""Variants without computer use (UKGovernmentBEIS/inspect_ai#3844)."""
# For models that LiteLLM's list lacks; "gpt-5-chat" does not reason.
_REASONING = re.compile(r"(o\d|gpt-[5-9])(?!.*chat)")


# The fields that `ChunkReader` reads: a field that is missing here would not reach it.
class _Function(msgspec.Struct, gc=False):
    name: str | None = None
    arguments: str | None = None


class _CallDelta(msgspec.Struct, gc=False):
    index: int | None = None
    id: str | None = None
    function: _Function | None = None
    custom: dict[str, Any] | None = None


class _ChatDelta(msgspec.Struct, gc=False):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    tool_calls: list[_CallDelta] | None = None
    function_call: _Function | None = None
    thinking_blocks: list[dict[str, Any]] | None = None
    annotations: list[Any] | None = None
    images: list[Any] | None = None
    audio: dict[str, Any] | None = None
    provider_specific_fields: dict[str, Any] | None = None


class _Choice(msgspec.Struct, gc=False):
    index: int | None = None
    delta: _ChatDelta | None = None
    finish_reason: str | None = None
    usage: dict[str, Any] | None = None


class _Chunk(msgspec.Struct, gc=False):
    choices: list[_Choice] | None = None
    usage: dict[str, Any] | None = None
    x_groq: dict[str, Any] | None = None
    error: Any = None


_decode = msgspec.json.Decoder(_Chunk).decode


class OpenAIWire(DirectWire):
    """A model of OpenAI's chat completions or `/responses`, named `"openai/model"`, or `"openai+http://host/v1#model"` on
    another server; the arguments are those of `DirectWire`. `"openai/responses/model"` selects `/responses`.

    The key is `OPENAI_API_KEY`, the URL `OPENAI_BASE_URL` (or `OPENAI_API_BASE`). For another server
    (`api_base`), the key is `OPENAI_COMPATIBLE_API_KEY`, or none if that is not set.

    Example:
        >>> OpenAIWire("gpt-5", retries=3).name
        'openai/gpt-5'
    """

    _reserved = frozenset({"model", "messages", "input", "tools", "stream", "stream_options"})
    _returns_server_tools = True

    vendor = Vendor(
        "openai",
        "https://api.openai.com/v1",
        ("OPENAI_BASE_URL", "OPENAI_API_BASE"),
        ("OPENAI_API_KEY",),
        ("OPENAI_COMPATIBLE_API_KEY",),
    )

    @classmethod
    def _parts(cls, name: str) -> Named:
        if not name.startswith(("openai+http://", "openai+https://")):
            # The full name keeps "responses/", by which `_fitted` recognises the endpoint.
            whole, model, _ = super()._parts(name)
            return Named(whole, model.removeprefix(_RESPONSES), None)
        base, _, model = name.removeprefix("openai+").partition("#")
        model, host = model.removeprefix(_RESPONSES), base.partition("://")[2].partition("/")[0]
        if not model or not host or "@" in host:
            raise UsageError(
                f"The name of the model {without_password(name)!r} lacks a host or a model after '#', or contains a key. Use "
                "'openai+http://host:8000/v1#model'; the key is OPENAI_COMPATIBLE_API_KEY, or api_key=."
            )
        return Named(name, model, base)

    def _fitted(self, profile: WireProfile) -> WireProfile:
        named = self._name.endswith(_RESPONSES + self._model)
        # The row is read before the converter is created (`_converter`), so it is known here.
        required = wants_responses(self._model, self._row, at_home=profile.family == "openai")
        return over_responses(profile) if named or required else profile

    def _url(self) -> str:
        as_items = self._converter().profile.speaks == "items"
        return f"{self._base()}/responses" if as_items else f"{self._base()}/chat/completions"

    def _signed(self) -> dict[str, str]:
        headers = {"authorization": f"Bearer {self._key() or 'none'}"}
        # The account is not shown to other servers.
        if self._base() == self.vendor.base:
            for header, names in _ACCOUNT.items():
                if account := next((value for name in names if (value := os.environ.get(name))), None):
                    headers[header] = account
        return headers

    def _body(self, request: ModelRequest, conversation: Conversation) -> dict[str, object]:
        profile = conversation.profile
        prepared = self._prepare(request, conversation, _SUPPORTED)
        options = options_out(request.options, profile, prepared.thinking)
        # LiteLLM's own argument (rule 3 of `options_out.py`).
        options.pop("allowed_openai_params", None)
        if profile.speaks == "items":
            params = self._extra_fields(self._params)
            server_tools = request.options.server_tools or ()
            return responses_body(
                self._model,
                prepared,
                options,
                params,
                reasons=self._reasons(),
                server_tools=server_tools,
                searches=self._searches(),
                typed=self._typed(request.tools),
            )
        if refused := shown(request.options.server_tools or ()):
            raise UsageError(
                f"The model {self._name!r} is reached over chat completions, which has no server tools, but "
                f"options.server_tools has {refused[0]}. Leave it out, or name the model "
                f"'openai/responses/{self._model}'."
            )
        if "max_tokens" in options and profile.family == "openai" and self._reasons():
            # OpenAI refuses `max_tokens` for reasoning models; other servers may know only the old name.
            options["max_completion_tokens"] = options.pop("max_tokens")
        return {
            "model": self._model,
            "messages": prepared.messages,
            "stream": True,
            "stream_options": {"include_usage": True},
            **self._extra_fields(self._params),
            **options,
            **prepared.fields,
        }

    def _searches(self) -> bool:
        """Return whether the model has OpenAI's tool search, which not every server of `/responses` has."""
        return self._converter().profile.family == "openai" and _since_5_4(self._model)

    def _typed(self, tools: Iterable[ToolSpec]) -> dict[str, Mapping[str, Any]]:
        """Return the entries `{"type": ...}` of the agent's tools that OpenAI itself defines (computer use), by their names."""
        if not self._searches() or _NO_COMPUTER.search(self._model):
            return {}
        entries = ((spec, spec.native.get("openai")) for spec in tools)
        return {spec.name: {"type": entry["type"]} for spec, entry in entries if entry and entry["name"] == spec.name}

    def _reasons(self) -> bool:
        """Return whether the model reasons; OpenAI's reasoning models have another name for the token limit."""
        return self._row.get("supports_reasoning") is True or _REASONING.match(self._model) is not None

    def _reader(self, conversation: Conversation) -> Reader:
        if conversation.profile.speaks == "items":
            return ItemsReader(self._name, self._priced)
        return _ChatReply(self._name, conversation.profile.thinking == "blocks", self._priced)


class _ChatReply:
    """Reads one reply."""

    def __init__(self, name: str, sealed: bool, priced: Callable[[Usage], ModelChunk]) -> None:
        self._reader = ChunkReader(name, sealed=sealed)
        self._priced = priced
        self.finish_reason: str | None = None
        self.ended = False

    def read(self, data: bytes) -> Sequence[ModelChunk]:
        """Return the chunks of one event."""
        if data == b"[DONE]":
            self.ended = True
            return ()
        try:
            chunk = _decode(data)
        except msgspec.DecodeError:
            return self._all(anything(data))
        choices = chunk.choices
        # An event without choices may be an error in another format, so all of its fields are needed.
        if not choices and chunk.usage is None:
            return self._all(anything(data))
        # The fast path: an event with text and nothing else. Each condition excludes a field that `_all` reads.
        if choices and chunk.usage is None:
            choice = choices[0]
            delta = choice.delta
            # The choice may have a `message` or a `text`, which `_Choice` does not have.
            if delta is None:
                return self._all(anything(data))
            if (
                delta.content
                and not choice.index
                and choice.finish_reason is None
                and delta.tool_calls is None
                and delta.reasoning_content is None
                and delta.reasoning is None
                and delta.annotations is None
                and delta.images is None
                and delta.audio is None
                and delta.provider_specific_fields is None
                and delta.function_call is None
                and delta.thinking_blocks is None
                and choice.usage is None
                and chunk.x_groq is None
                and chunk.error is None
            ):
                return (text_chunk(delta.content),)
        return self._all(chunk)

    def _all(self, chunk: object) -> list[ModelChunk]:
        """Return the chunks of an event of any kind."""
        if error := field(chunk, "error") or _error_in(chunk):
            raise _failure(error)
        found = list(self._reader.read(chunk))
        # Appended before the usage, which may come in the same event: if reading the usage fails, only the usage is lost.
        if self._reader.finish_reason is not None and self.finish_reason is None:
            self.finish_reason = self._reader.finish_reason
            found.append(ModelChunk(finish_reason=self.finish_reason))
        choice = next(iter(one_or_more(field(chunk, "choices"))), None)
        places = (chunk, field(chunk, "x_groq"), choice)  # where OpenAI, Groq and Moonshot put the usage
        if (usage := next(filter(None, map(usage_of, places)), None)) is not None:
            found.append(self._priced(usage))
        return found


def _error_in(chunk: object) -> object:
    """Return the error of an event in another error format: vLLM's, FastAPI's, a gateway's."""
    if not isinstance(chunk, dict) or one_or_more(field(cast("object", chunk), "choices")):
        return None
    fields = cast("dict[str, object]", chunk)
    described = isinstance(fields.get("message"), str) and not fields.keys().isdisjoint(("code", "type", "status"))
    if described or fields.get("object") == "error":
        return fields
    return {"message": fields["detail"]} if fields.keys() == {"detail"} else None


def _failure(error: object) -> ProviderError:
    message = field(error, "message") or error
    fields = cast("dict[str, object]", error) if isinstance(error, dict) else {}
    # Some servers put the HTTP status into the error's code.
    code = place(fields.get("code"))
    return ProviderError(str(message), code if code is not None and 400 <= code < 600 else None, {}, fields)


def wants_responses(model: str, row: Mapping[str, object], *, at_home: bool) -> bool:
    """Return whether a model is not available, or not fully, over chat completions.

    Args:
        model: Its name.
        row: The model's row in LiteLLM's list.
        at_home: Whether OpenAI itself serves the model.

    Example:
        >>> wants_responses("gpt-5.4", {}, at_home=True), wants_responses("gpt-5.4", {}, at_home=False)
        (True, False)
    """
    endpoints = row.get("supported_endpoints")
    # LiteLLM's list shows which endpoints a model has.
    if row.get("mode") == "responses" or (isinstance(endpoints, list) and "/v1/chat/completions" not in endpoints):
        return True
    return at_home and _since_5_4(model)


def _since_5_4(model: str) -> bool:
    found = _SERIES.match(model)
    return found is not None and (int(found[1]), int(found[2] or 0)) >= (5, 4)


def over_http(rest: str) -> OpenAIWire:
    """Return the model for `openai+http://host/v1#model`.

    Example:
        >>> over_http("127.0.0.1:8000/v1#qwen3").name
        'openai+http://127.0.0.1:8000/v1#qwen3'
    """
    return OpenAIWire(f"openai+http://{rest}")


def over_https(rest: str) -> OpenAIWire:
    """Return the model for `openai+https://host/v1#model`."""
    return OpenAIWire(f"openai+https://{rest}")
