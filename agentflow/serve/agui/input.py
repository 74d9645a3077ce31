"""The input of an AG-UI run, validated and translated."""

from __future__ import annotations

from typing import Annotated, Any, Final, cast

from pydantic import BaseModel, Field, ValidationError

from agentflow._support.validation import first_problem
from agentflow.serve.agui.sdk import core
from agentflow.serve.bodies import DecisionBody, SessionId
from agentflow.serve.chats import ChatRequest, media
from agentflow.serve.refusals import Refusal
from agentflow.vocabulary.messages import DataBlock, Msg, TextBlock, ToolResultBlock
from agentflow.vocabulary.specs import ToolSpec

STORED: Final = "stored_"
"""The prefix of message ids in snapshots. The ids in a snapshot must differ from all ids that the frontend already has: if it
knew some of them, it would append the other messages in the wrong order."""


class PageInput(core.RunAgentInput):
    """The input of a run, with limits on its ids."""

    thread_id: SessionId
    run_id: Annotated[str, Field(min_length=1, max_length=200)]


class ApprovalPayload(BaseModel):
    """The payload with which a person decides a tool call."""

    approved: bool
    editedArgs: dict[str, Any] | None = Field(  # noqa: N815 - the protocol's name
        default=None, description="The complete edited arguments, with the unchanged ones."
    )
    reason: str = Field(default="denied", max_length=2_000, description="The reason for a refusal; the model reads it.")


def request_of(body: PageInput) -> ChatRequest:
    """Translate an input into a `ChatRequest`.

    Raises:
        Refusal: A tool is invalid.
    """
    entries = {entry.interrupt_id: entry for entry in body.resume or ()}
    begin = max((n for n, msg in enumerate(body.messages, 1) if msg.role not in ("user", "tool")), default=0)
    earlier = [_id(msg) for msg in body.messages[:begin] if msg.role == "user"]
    messages = [_message(msg) for msg in body.messages[begin:] if isinstance(msg, core.UserMessage)]
    results = {msg.tool_call_id: _result(msg) for msg in body.messages if isinstance(msg, core.ToolMessage)}
    system = [msg.content for msg in body.messages if isinstance(msg, core.SystemMessage | core.DeveloperMessage)]
    system += [f"{item.description}: {item.value}" for item in body.context or ()]
    return ChatRequest(
        run_id=body.run_id,
        messages=messages,
        earlier=earlier,
        results=results,
        decide=lambda wait: None if (entry := entries.get(wait.id)) is None else _decision(entry, wait.kind),
        answers=bool(entries),
        system="\n\n".join(system),
        tools=[_tool(tool) for tool in body.tools or ()],
    )


def _id(message: core.Message) -> str:
    return message.id.removeprefix(STORED)


def _message(message: core.UserMessage) -> Msg:
    return Msg.user(_blocks(message.content), id=_id(message))


def _blocks(content: str | list[core.ContentPart]) -> list[TextBlock | DataBlock]:
    """Return a message's content as blocks, without unusable parts."""
    if isinstance(content, str):
        return [TextBlock(content)]
    found: list[TextBlock | DataBlock] = []
    for part in content:
        if isinstance(part, core.TextPart):
            found.append(TextBlock(part.text))
            continue
        source = part.source
        match source:
            case core.DataSource():
                block = media(f"data:{source.mime_type};base64,{source.value}", None)
            case core.UrlSource():
                block = media(source.value, source.mime_type or ("image/*" if part.type == "image" else None))
            case core.FileSource():
                block = None  # the id of a file at a model provider, unusable here
        if block is not None:
            found.append(block)
    return found


def _result(message: core.ToolMessage) -> ToolResultBlock:
    content = [TextBlock(message.error)] if message.error else []
    blocks = (*content, *_blocks(message.content))
    return ToolResultBlock(message.tool_call_id, "tool", blocks, "error" if message.error else "success")


def _tool(tool: core.Tool) -> ToolSpec:
    schema: object = {} if tool.parameters is None else tool.parameters
    if not isinstance(schema, dict):
        raise Refusal(422, "invalid_body", f"The parameters of tool {tool.name!r:.80} are not a JSON schema.")
    return ToolSpec(tool.name, tool.description, cast("dict[str, Any]", schema) or {"type": "object", "properties": {}})


def _decision(entry: core.ResumeEntry, kind: str) -> DecisionBody:
    if entry.status == "cancelled":
        return DecisionBody(action="deny", reason="The user has cancelled this.")
    if kind == "external":
        return DecisionBody(action="answer", value=entry.payload)
    try:
        payload = ApprovalPayload.model_validate(entry.payload)
    except ValidationError as error:
        text = f"The payload of {entry.interrupt_id!r:.60} is invalid: {first_problem(error)}."
        raise Refusal(422, "wrong_decision", text) from error
    if payload.approved:
        return DecisionBody(action="approve", input=payload.editedArgs)
    return DecisionBody(action="deny", reason=payload.reason)
