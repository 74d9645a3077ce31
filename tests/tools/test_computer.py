"""`computer_tool`: Claude controls a display by tool calls, each of which hooks and people can stop."""

from __future__ import annotations

from typing import Any, cast

import pytest

from agentflow import Agent, Approve, DataBlock, Deny, PreActing, on
from agentflow.errors import ToolArgumentError, UsageError
from agentflow.models.anthropic_wire import AnthropicWire
from agentflow.models.litellm import LiteLLMModel
from agentflow.models.openai_wire import OpenAIWire
from agentflow.testing.wire import ScriptedCall, UseTool, WireReply, WireServer
from agentflow.tools import Tool, ToolContext, computer_tool
from agentflow.vocabulary.messages import ToolUseBlock

SHOT = DataBlock.from_bytes(b"\x89PNG\r\n\x1a\n" + bytes(8), "image/png")
CLICK = {"action": "left_click", "coordinate": [10, 20]}


def display(done: list[dict[str, Any]], **options: Any) -> Tool[..., Any]:
    """A display that notes the actions."""

    async def run(action: dict[str, Any], context: ToolContext) -> object:
        done.append(action)
        return SHOT if action["action"] == "screenshot" else "done"

    return computer_tool(run, width=1024, height=768, **options)


@pytest.mark.parametrize(
    ("name", "version", "beta"),
    [
        ("claude-sonnet-4-5", "computer_20250124", "computer-use-2025-01-24"),
        ("claude-opus-4-5", "computer_20251124", "computer-use-2025-11-24"),
    ],
)
async def test_claude_controls_a_display(name: str, version: str, beta: str, closed_clients: None) -> None:
    """The typed tool is sent with its beta beside the user's own, and a screenshot is an image of the result."""
    done: list[dict[str, Any]] = []
    script = [UseTool("computer", {"action": "screenshot"}), UseTool("computer", CLICK), "Clicked."]
    async with WireServer.anthropic(script) as server:
        model = AnthropicWire(name, api_base=server.url, api_key="k", headers={"anthropic-beta": "mine-2025-01-01"})
        await Agent("a", model, tools=[display(done, requires_approval=False)]).call("Click OK.")
    assert [request.refused for request in server.requests] == [None] * 3
    entry = {"type": version, "name": "computer", "display_width_px": 1024, "display_height_px": 768}
    bodies = [cast("dict[str, Any]", request.body) for request in server.requests]
    assert [body["tools"] for body in bodies] == [[entry]] * 3
    assert {request.headers["anthropic-beta"] for request in server.requests} == {f"mine-2025-01-01,{beta}"}
    (result,) = bodies[1]["messages"][-1]["content"]
    assert result["content"][0]["source"] == {"type": "base64", "media_type": "image/png", "data": SHOT.data}
    assert done == [{"action": "screenshot"}, CLICK]


async def test_every_action_can_be_stopped(closed_clients: None) -> None:
    """A hook denies an action, and by default each one waits for a person."""
    done: list[dict[str, Any]] = []

    @on(guard=True)
    def no_typing(event: PreActing) -> Deny | None:
        return Deny("no typing") if event.tool_use.input["action"] == "type" else None

    script = [UseTool("computer", {"action": "type", "text": "rm -rf /"}), UseTool("computer", CLICK), "Clicked."]
    async with WireServer.anthropic(script) as server:
        model = AnthropicWire("claude-sonnet-4-5", api_base=server.url, api_key="k")
        agent = Agent("a", model, tools=[display(done)], hooks=[no_typing])
        reply = await agent.call("Click OK.", session="s")
        assert (reply.outcome, [one.tool_use and one.tool_use.name for one in reply.pending]) == (
            "suspended",
            ["computer"],
        )
        assert done == []
        await agent.resume("s", decisions={reply.pending[0].id: Approve()})
    assert done == [CLICK]


async def test_wrong_actions(closed_clients: None) -> None:
    """Unknown actions and points outside of the display are errors for the model; nothing runs."""
    done: list[dict[str, Any]] = []
    wrong: list[dict[str, Any]] = [
        {"action": "left_click", "coordinate": [1024, 0]},
        {"action": "left_click_drag", "start_coordinate": [0, -1], "coordinate": [0, 0]},
        {"action": "format_disk"},
        {"action": "mouse_move", "coordinate": [1]},
    ]
    calls = tuple([ScriptedCall("computer", one) for one in wrong])
    async with WireServer.anthropic([WireReply(calls=calls), "I give up."]) as server:
        model = AnthropicWire("claude-sonnet-4-5", api_base=server.url, api_key="k")
        agent = Agent("a", model, tools=[display(done, requires_approval=False)])
        await agent.call("Click OK.", session="s")
    states = [one.state for msg in agent.session("s").messages for one in msg.tool_results]
    assert (states, done) == (["error"] * 4, [])
    with pytest.raises(UsageError, match=r"computer_tool\(width=0, height=1\)"):
        computer_tool(lambda action, context: cast("Any", None), width=0, height=1)


@pytest.mark.parametrize(
    ("name", "legal", "wrong"),
    [
        ("scroll_amount", (0, 10), (-1, 0.5)),
        ("duration", (0, 0.5, 100), (-1, 100.5)),
        ("coordinate", ([0, 0], [1023, 767]), ([0], [0, 0, 0], [0, 0.5])),
    ],
)
def test_limits_of_arguments(name: str, legal: tuple[Any, ...], wrong: tuple[Any, ...]) -> None:
    """Amounts up to their limits are legal; those beyond, and points of another length, are errors that name the argument."""
    computer = display([])
    for value in legal:
        computer.validate(ToolUseBlock("t1", "computer", {"action": "scroll", name: value}))
    for value in wrong:
        with pytest.raises(ToolArgumentError, match=name):
            computer.validate(ToolUseBlock("t1", "computer", {"action": "scroll", name: value}))


@pytest.mark.parametrize(
    "model",
    [
        *(AnthropicWire(name, api_key="k") for name in ("claude-opus-5-5", "claude-3-7-sonnet-20250219", "kimi-k2")),
        OpenAIWire("gpt-4o", api_key="k"),
        LiteLLMModel("gemini/gemini-3.5-flash", api_key="k"),
    ],
    ids=lambda model: model.name,
)
async def test_models_without_it(model: Any) -> None:
    """A model that is not trained on this tool is refused before a request is sent."""
    with pytest.raises(UsageError, match=f"has no built-in tool 'computer' over {type(model).__name__}"):
        await Agent("a", model, tools=[display([])]).call("Click OK.")
