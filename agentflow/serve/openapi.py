"""The OpenAPI document of the plain routes, generated from the models that the routes use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from pydantic import BaseModel, TypeAdapter
from pydantic.json_schema import GenerateJsonSchema, models_json_schema

from agentflow.serve.bodies import CallBody, ForkBody, InterruptBody, ResumeBody, SteerBody
from agentflow.serve.plain import (
    AgentInfo,
    Interrupted,
    RunEntry,
    SessionCopy,
    SessionHistory,
    SessionList,
)
from agentflow.serve.view import PublicEvent

__all__ = ["OPERATIONS", "Operation", "openapi"]


class Operation(NamedTuple):
    """The description of a route in the document.

    Attributes:
        method: The HTTP method.
        path: The path.
        id: The operation's id, the name of a generated client's function.
        summary: The summary.
        status: The status on success.
        returns: The model of the response; None if it has no body.
        body: The model of the request's body.
        many: Whether a list of `returns` is returned.
        stream: Whether events are returned.
        query: The names of the integer query parameters.
    """

    method: str
    path: str
    id: str
    summary: str
    status: int = 200
    returns: type[BaseModel] | None = None
    body: type[BaseModel] | None = None
    many: bool = False
    stream: bool = False
    query: tuple[str, ...] = ()


_SESSION: Final = "/agents/{agent}/sessions/{session}"
OPERATIONS: Final = (
    Operation("get", "/agents", "list_agents", "List the agents.", returns=AgentInfo, many=True),
    Operation(
        "post",
        "/agents/{agent}/runs",
        "start_run",
        "Start a run, which continues if the client disconnects.",
        202,
        returns=RunEntry,
        body=CallBody,
    ),
    Operation(
        "post",
        "/agents/{agent}/call",
        "call",
        "Run a call while the client waits. A disconnect interrupts it. With `Accept: text/event-stream`, events are sent.",
        returns=RunEntry,
        body=CallBody,
    ),
    Operation("get", "/runs", "list_runs", "List the user's current and recent runs.", returns=RunEntry, many=True),
    Operation("get", "/runs/{run}", "get_run", "Return a run.", returns=RunEntry),
    Operation(
        "get",
        "/runs/{run}/events",
        "stream_events",
        "Stream a run's events as SSE, from the one after `Last-Event-ID`. 204: there are no further ones.",
        stream=True,
    ),
    Operation(
        "post",
        "/runs/{run}/interrupt",
        "interrupt_run",
        "End a running call.",
        returns=Interrupted,
        body=InterruptBody,
    ),
    Operation("post", "/runs/{run}/steer", "steer_run", "Send a message to a running call.", 202, body=SteerBody),
    Operation(
        "get",
        "/agents/{agent}/sessions",
        "list_sessions",
        "List the user's sessions with an agent.",
        returns=SessionList,
        query=("offset", "limit", "titles"),
    ),
    Operation("get", _SESSION, "get_session", "Return a session's conversation.", returns=SessionHistory),
    Operation("delete", _SESSION, "delete_session", "Delete a session.", 204),
    Operation(
        "post",
        f"{_SESSION}/resume",
        "resume_session",
        "Continue a session with decisions, or after a restart.",
        202,
        returns=RunEntry,
        body=ResumeBody,
    ),
    Operation("post", f"{_SESSION}/fork", "fork_session", "Copy a session.", 201, returns=SessionCopy, body=ForkBody),
)
"""The descriptions of the plain routes."""


class ErrorDetail(BaseModel):
    """Why a request was refused."""

    code: str
    message: str


class ErrorBody(BaseModel):
    """The body of a refusal."""

    error: ErrorDetail


_REF: Final = "#/components/schemas/{model}"


def openapi(base: str, version: str) -> dict[str, Any]:
    """Return the document.

    Args:
        base: The path at which the application is mounted.
        version: The version of the library.
    """
    models = {model for operation in OPERATIONS for model in (operation.returns, operation.body) if model is not None}
    ordered = sorted({*models, ErrorBody}, key=lambda model: model.__name__)
    refs, schemas = models_json_schema([(model, "validation") for model in ordered], ref_template=_REF)
    events: dict[str, Any] = TypeAdapter(PublicEvent).json_schema(
        ref_template=_REF, schema_generator=GenerateJsonSchema
    )
    known: dict[str, Any] = {**schemas.get("$defs", {}), **events.pop("$defs")}
    known["Event"] = events
    refused = {"description": "The request was refused.", "content": _json(_ref(refs, ErrorBody))}
    paths: dict[str, dict[str, Any]] = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method] = _operation(operation, refs, refused)
    return {
        "openapi": "3.1.0",
        "info": {"title": "agentflow", "version": version},
        "servers": [{"url": base or "/"}],
        "paths": paths,
        "components": {"schemas": known},
    }


def _operation(operation: Operation, refs: Mapping[Any, Any], refused: Mapping[str, Any]) -> dict[str, Any]:
    named = [part.strip("{}") for part in operation.path.split("/") if part.startswith("{")]
    parameters = [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in named]
    number = {"type": "integer", "minimum": 0}
    parameters += [{"name": name, "in": "query", "required": False, "schema": number} for name in operation.query]
    success: dict[str, Any] = {"description": "Success."}
    if operation.stream:
        position = {"name": "Last-Event-ID", "in": "header", "required": False, "schema": {"type": "string"}}
        parameters.append(position)
        success["content"] = {"text/event-stream": {"schema": {"type": "string"}}}
        success["description"] = "Events: the data of each is an `Event`."
    elif operation.returns is not None:
        schema = _ref(refs, operation.returns)
        success["content"] = _json({"type": "array", "items": schema} if operation.many else schema)
    described: dict[str, Any] = {
        "operationId": operation.id,
        "summary": operation.summary,
        "responses": {str(operation.status): success, "4XX": refused, "5XX": refused},
    }
    if parameters:
        described["parameters"] = parameters
    if operation.body is not None:
        described["requestBody"] = {"required": True, "content": _json(_ref(refs, operation.body))}
    return described


def _ref(refs: Mapping[Any, Any], model: type[BaseModel]) -> Any:
    return refs[model, "validation"]


def _json(schema: Any) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}
