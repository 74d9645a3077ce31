"""Send an answer over HTTP, with the faults of its plan.

Rules:

1. All bytes are prepared before the first one is sent, so a fault that does not fit the reply is an HTTP 500 with a clear
   text, never an incomplete stream.
2. Each answer closes its connection, so an open connection means that an answer is unfinished.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from aiohttp import web

from agentflow.testing.wire.frames import position, with_noise, writes
from agentflow.testing.wire.jsonish import dump
from agentflow.testing.wire.reply import Halt, HttpAnswer, ReplyPlan
from agentflow.testing.wire.request import WireRequest
from agentflow.testing.wire.rules import Dialect, RuleRefusal
from agentflow.testing.wire.signing import Signer
from agentflow.testing.wire.wires import Wire


@dataclass(frozen=True, slots=True, kw_only=True)
class WireResponse:
    """An HTTP answer that is ready to be sent: its writes, and the interruption after them, if any."""

    status: int
    headers: dict[str, str]
    writes: Sequence[bytes]
    length: int | None = None
    halt: Halt | None = None
    plan: ReplyPlan | None = None


def json_answer(status: int, body: object, headers: dict[str, str] | None = None) -> WireResponse:
    """Build an ordinary JSON answer."""
    data = dump(body).encode()
    return WireResponse(
        status=status,
        headers={"content-type": "application/json"} | (headers or {}),
        writes=[data],
        length=len(data),
    )


def refusal_answer(wire: Wire, refusal: RuleRefusal, request: WireRequest, dialect: Dialect) -> WireResponse:
    """Build the vendor's error for a refused request; a 400 is marked as not retryable."""
    headers = _id_header(wire, request)
    if refusal.status == 400:
        headers["x-should-retry"] = "false"
    return json_answer(refusal.status, wire.refusal_body(refusal, request.index, dialect), headers)


def error_answer(wire: Wire, answer: HttpAnswer, request: WireRequest, dialect: Dialect, tokens: int) -> WireResponse:
    """Build the HTTP error or the raw body that a fault sends instead of the reply."""
    headers = _id_header(wire, request) | dict(answer.headers)
    if answer.body is None:
        refusal = wire.refusal_of(answer, dialect, tokens)
        return json_answer(answer.status, wire.refusal_body(refusal, request.index, dialect), headers)
    return WireResponse(
        status=answer.status,
        headers={"content-type": answer.content_type} | headers,
        writes=[answer.body] if answer.body else [],
        length=len(answer.body),
    )


def reply_answer(wire: Wire, plan: ReplyPlan, request: WireRequest, signer: Signer, dialect: Dialect) -> WireResponse:
    """Build the scripted reply, streamed or not as requested.

    Raises:
        UsageError: A fault refers to a position that this reply does not have.
    """
    if request.stream:
        return _streamed(wire, plan, request, signer)
    halt = plan.halt
    if halt is not None and halt.how == "error":
        status = 529 if wire.name == "anthropic" else 503
        error = HttpAnswer(status=status, type=halt.error_type, message=halt.message)
        return error_answer(wire, error, request, dialect, 0)
    data = dump(wire.body(plan, request, signer)).encode()
    if halt is not None:
        sent = data[: len(data) // 2] if halt.how != "hang" else b""
        # Before an abort, the header announces the whole body, so that the client sees that the rest is missing.
        parts, length = writes([sent], plan) if sent else [], len(data) if halt.how == "abort" else None
    else:
        parts, length = writes([data], plan), len(data)
    headers = {"content-type": "application/json"} | _id_header(wire, request)
    return WireResponse(status=200, headers=headers, writes=parts, length=length, halt=halt, plan=plan)


def _streamed(wire: Wire, plan: ReplyPlan, request: WireRequest, signer: Signer) -> WireResponse:
    frames = wire.frames(plan, request, signer)
    halt = plan.halt
    if halt is not None:
        frames = frames[: position(frames, halt.after)]
        if halt.how == "error":
            frames.append(wire.error_frame(halt.error_type, halt.message))
    parts = [text.encode() for text in with_noise(frames, plan, wire.ping, wire.unknown)]
    headers = {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache"} | _id_header(
        wire, request
    )
    return WireResponse(status=200, headers=headers, writes=writes(parts, plan), halt=halt, plan=plan)


def _id_header(wire: Wire, request: WireRequest) -> dict[str, str]:
    name = "request-id" if wire.name == "anthropic" else "x-request-id"
    return {name: f"req_wire_{request.index}"}


async def send(answer: WireResponse, raw: web.BaseRequest, request: WireRequest) -> web.StreamResponse:
    """Send an answer, and record in the request how it ended."""
    request.status = answer.status
    halt = answer.halt
    if halt is not None and halt.how == "hang" and not halt.headers:
        await asyncio.Event().wait()  # until the client disconnects or the server stops, which cancels this task
    response = web.StreamResponse(status=answer.status, headers=answer.headers)
    response.force_close()
    response.content_length = answer.length
    await response.prepare(raw)
    for number, data in enumerate(answer.writes):
        await _wait_for_gate(answer.plan, number)
        await response.write(data)
        request.writes += 1
        await asyncio.sleep(0)  # lets a client in the same loop read this write separately
    if halt is not None and halt.how == "hang":
        await asyncio.Event().wait()
    request.ending = "complete" if halt is None else "broken off"
    if halt is not None and halt.how == "abort" and raw.transport is not None:
        raw.transport.close()
    return response


async def _wait_for_gate(plan: ReplyPlan | None, number: int) -> None:
    """Wait until the plan allows the write with this number."""
    if plan is None or number < plan.gate_after:
        return
    if isinstance(plan.gate, asyncio.Event):
        await plan.gate.wait()
    elif plan.gate is not None:
        await plan.gate(number)
    if plan.seconds > 0:
        await asyncio.sleep(plan.seconds)
