"""The bodies of requests: read within limits, and validated once into these models."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.requests import ClientDisconnect, Request

from agentflow._support.json_text import read_json_text
from agentflow._support.validation import first_problem
from agentflow.serve.limits import Limits
from agentflow.serve.refusals import Refusal
from agentflow.vocabulary.messages import Pending
from agentflow.vocabulary.verdicts import Answer, Approve, Deny, Resolution

B = TypeVar("B", bound=BaseModel)

SESSION_ID = r"^[A-Za-z0-9_-]{1,64}$"
SessionId = Annotated[str, Field(pattern=SESSION_ID)]


class Body(BaseModel):
    """A request's body."""

    model_config = ConfigDict(extra="forbid", strict=True)


class CallBody(Body):
    """A call."""

    input: str = Field(min_length=1, description="The user's message.")
    session: SessionId | None = Field(default=None, description="The session to continue; a new one by default.")


class DecisionBody(Body):
    """The decision on a question."""

    action: Literal["approve", "deny", "answer"] = Field(
        description="`approve` and `deny` decide an `approval`, `answer` and `deny` an `external` call; `approve` continues a "
        "`parked` run."
    )
    input: dict[str, Any] | None = Field(default=None, description="For `approve`: the complete edited arguments.")
    reason: str = Field(
        default="denied", max_length=2_000, description="For `deny`: the reason, which the model reads."
    )
    value: Any = Field(default=None, description="For `answer`: the call's result.")


class ResumeBody(Body):
    """The decisions with which a session continues."""

    decisions: dict[str, DecisionBody] = Field(
        default={},
        description="One decision for each question, by its id; none for a session that a restart interrupted.",
    )


class SteerBody(Body):
    """A message to a running call."""

    text: str = Field(min_length=1, description="The message; the model reads it before its next reply.")


class InterruptBody(Body):
    """A request to end a running call."""

    reason: str = Field(default="interrupted", max_length=200, description="The reason, for the server's events.")


class ForkBody(Body):
    """A copy of a session."""

    session: SessionId | None = Field(default=None, description="The copy's id; a new one by default.")
    after: str | None = Field(
        default=None, max_length=200, description="The id of the last run to copy; all by default."
    )
    before: str | None = Field(
        default=None,
        max_length=200,
        description="The id of a user's message: only the part before it is copied, so that the message can be edited and sent "
        "again.",
    )


async def read_body(request: Request, model: type[B], limits: Limits) -> B:
    """Read and validate a JSON body.

    Raises:
        Refusal: It is too large, too slow, not JSON, or does not match the model.
    """
    data = await read_json(request, limits)
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise Refusal(422, "invalid_body", f"The body is invalid: {first_problem(error)}.") from error


async def read_json(request: Request, limits: Limits) -> Any:
    """Read a JSON body. The content type is required, so forms of other sites are refused.

    Raises:
        Refusal: It is too large, too slow, or not JSON.
    """
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise Refusal(415, "unsupported_media_type", "The body must be JSON: Content-Type: application/json.")
    # The connection cannot be used again, because the rest of the body is not read.
    too_large = Refusal(
        413,
        "body_too_large",
        f"The body is too large: {limits.body} bytes are allowed.",
        headers={"Connection": "close"},
    )
    announced = request.headers.get("content-length", "0")
    if not announced.isdecimal() or int(announced) > limits.body:
        raise too_large
    raw = bytearray()
    try:
        async with asyncio.timeout(limits.body_seconds):
            async for chunk in request.stream():
                raw += chunk
                if len(raw) > limits.body:
                    raise too_large
    except TimeoutError:
        raise Refusal(
            408, "body_too_slow", "The body did not arrive in time.", headers={"Connection": "close"}
        ) from None
    except ClientDisconnect:
        raise Refusal(400, "disconnected", "The client has disconnected.") from None
    try:
        return read_json_text(bytes(raw), constants=False)
    except ValueError:
        raise Refusal(400, "not_json", "The body is not JSON, or it is nested too deeply.") from None


def resolution(key: str, decision: DecisionBody, pending: Mapping[str, Pending]) -> Resolution:
    """Translate a decision into a `Resolution`.

    Raises:
        Refusal: No call waits under this key, or the decision is invalid.
    """
    wait = pending.get(key)
    if wait is None:
        raise Refusal(409, "not_waiting", f"No call with the id {key!r:.60} waits for a decision.")
    match decision.action, wait.kind:
        case "deny", _:
            return Deny(decision.reason)
        case "approve", "approval" | "parked":
            return Approve(decision.input)
        case "answer", "external":
            return Answer(decision.value)
        case action, kind:
            raise Refusal(
                422, "wrong_decision", f"{key!r:.60} is a call of kind {kind!r}, which {action!r} does not decide."
            )
