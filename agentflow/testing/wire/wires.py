"""A common interface of the wires (the providers' HTTP APIs), which makes the server independent of them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from agentflow.testing.wire import (
    anthropic,
    checks_anthropic,
    checks_anthropic_fields,
    checks_compatible,
    checks_openai,
    checks_openai_fields,
    checks_responses,
    checks_thinking,
    embeddings,
    openai,
    responses,
)
from agentflow.testing.wire.frames import WireFrame
from agentflow.testing.wire.jsonish import JsonObject
from agentflow.testing.wire.reply import HttpAnswer, ReplyPlan, ScriptedCall
from agentflow.testing.wire.request import WireName, WireRequest
from agentflow.testing.wire.rules import Dialect, RuleRefusal, WireRule, read_rules
from agentflow.testing.wire.signing import Signer


@dataclass(frozen=True, slots=True, kw_only=True)
class Wire:
    """A wire for the server: its paths, its formats and its rules.

    Attributes:
        name: The name.
        prefix: The start of the vendor's paths, which is part of a client's base address.
        path: The path for replies, after the prefix.
        rules: The rules, in the order in which they are checked.
        body: Builds a reply that is not streamed.
        frames: Builds the events of a streamed reply.
        error_frame: Builds an error event from a type and a message; None means the vendor's.
        refusal_body: Builds the body of an error from a refusal, the request's index and the dialect.
        refusal_of: Completes an HTTP error with the vendor's defaults; the number is the request's estimated tokens.
        unknown: An event of an unknown type.
        call_id: Returns the id of a call in a reply.
        other_routes: Functions for the vendor's other endpoints, by method and path. Each takes a request and its estimated
            tokens.
        ping: An event without content, if the vendor has one.
    """

    name: WireName
    prefix: str
    path: str
    rules: tuple[WireRule, ...]
    body: Callable[[ReplyPlan, WireRequest, Signer], JsonObject]
    frames: Callable[[ReplyPlan, WireRequest, Signer], list[WireFrame]]
    error_frame: Callable[[str | None, str | None], WireFrame]
    refusal_body: Callable[[RuleRefusal, int, Dialect], JsonObject]
    refusal_of: Callable[[HttpAnswer, Dialect, int], RuleRefusal]
    unknown: WireFrame
    call_id: Callable[[WireRequest, int, ScriptedCall], str]
    other_routes: Mapping[tuple[str, str], Callable[[WireRequest, int], JsonObject | HttpAnswer]]
    ping: WireFrame | None = None


def _openai_error(answer: HttpAnswer, dialect: Dialect, tokens: int) -> RuleRefusal:
    kind, code, message = openai.ERRORS.get(answer.status, openai.ERRORS[500 if answer.status >= 500 else 400])
    if answer.overflow:
        limit = dialect.window or 128_000
        message = openai.OVERFLOW.format(limit=limit, used=max(tokens, limit + 1))
        code = "context_length_exceeded"
    return RuleRefusal(
        rule="",
        status=answer.status,
        message=answer.message or message,
        type=answer.type or kind,
        param="messages" if answer.overflow else None,
        code=answer.code or code,
    )


def _openai_refusal_body(refusal: RuleRefusal, index: int, dialect: Dialect) -> JsonObject:
    del index
    if dialect.family == "mistral":
        return {
            "object": "error",
            "message": refusal.message,
            "type": refusal.type,
            "param": refusal.param,
            "code": refusal.code,
        }
    return openai.error_body(refusal.message, type=refusal.type, param=refusal.param, code=refusal.code)


def _anthropic_error(answer: HttpAnswer, dialect: Dialect, tokens: int) -> RuleRefusal:
    kind, message = anthropic.ERRORS.get(answer.status, anthropic.ERRORS[500 if answer.status >= 500 else 400])
    if answer.overflow:
        limit = dialect.window or 200_000
        message = anthropic.OVERFLOW.format(limit=limit, used=max(tokens, limit + 1))
    return RuleRefusal(rule="", status=answer.status, message=answer.message or message, type=answer.type or kind)


def _anthropic_refusal_body(refusal: RuleRefusal, index: int, dialect: Dialect) -> JsonObject:
    del dialect
    ident = f"req_wire_{index}"
    return anthropic.error_body(refusal.message, type=refusal.type, request_id=ident, code=refusal.code)


OPENAI = Wire(
    name="openai",
    prefix="/v1",
    path="/chat/completions",
    rules=read_rules("rules_compatible.tsv", "openai", checks_compatible)
    + read_rules("rules_openai.tsv", "openai", checks_openai, checks_openai_fields),
    body=openai.body,
    frames=openai.frames,
    error_frame=openai.error_frame,
    refusal_body=_openai_refusal_body,
    refusal_of=_openai_error,
    unknown=openai.UNKNOWN,
    call_id=openai.call_id,
    other_routes={("GET", "/models"): openai.models_body, ("POST", "/embeddings"): embeddings.embeddings_body},
)
RESPONSES = Wire(
    name="responses",
    prefix="/v1",
    path="/responses",
    rules=read_rules("rules_responses.tsv", "responses", checks_responses, checks_openai),
    body=responses.body,
    frames=responses.frames,
    error_frame=responses.error_frame,
    refusal_body=_openai_refusal_body,
    refusal_of=_openai_error,
    unknown=responses.UNKNOWN,
    call_id=openai.call_id,
    other_routes={},
)
ANTHROPIC = Wire(
    name="anthropic",
    prefix="",
    path="/v1/messages",
    rules=read_rules("rules_anthropic.tsv", "anthropic", checks_anthropic, checks_anthropic_fields, checks_thinking),
    body=anthropic.body,
    frames=anthropic.frames,
    error_frame=anthropic.error_frame,
    refusal_body=_anthropic_refusal_body,
    refusal_of=_anthropic_error,
    unknown=anthropic.UNKNOWN,
    call_id=anthropic.call_id,
    other_routes={
        ("GET", "/v1/models"): anthropic.models_body,
        ("POST", "/v1/messages/count_tokens"): anthropic.tokens_body,
    },
    ping=anthropic.PING,
)
