"""The server of a React chat: the page, and an agent for it at `/ai`.

The page should be built first: `npm install && npm run build`. Then
`python samples/react_chat/server.py [--model openai/gpt-5]`.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from starlette.responses import FileResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from agentflow import Agent, Model, ModelRequest, ToolUseBlock, tool
from agentflow.serve import App, View
from agentflow.testing import ScriptedModel

HERE = Path(__file__).parent


@tool(type="read")
async def order_status(order: int) -> str:
    """Look up an order."""
    return f"Order {order} was sent on Monday."


@tool(requires_approval=True)
async def refund(order: int) -> str:
    """Refund an order."""
    return f"Order {order} is refunded."


def reply(request: ModelRequest) -> list[str | ToolUseBlock]:
    """Answer as a model would, if the sample runs offline."""
    last = request.messages[-1]
    if last.role == "tool":
        return [last.text]
    word = next((name for name in ("refund", "color", "order") if name in last.text.lower()), "")
    call = {
        "refund": ToolUseBlock("", "refund", {"order": 1042}),
        "color": ToolUseBlock("", "show_color", {"color": "lavender"}),
        "order": ToolUseBlock("", "order_status", {"order": 1042}),
    }.get(word)
    return ["One moment. ", call] if call else ["Ask me about your ", "order, ", "a refund, or a color."]


def application(model: Model | str | None = None) -> Starlette:
    """Return the application: the page and the agent. If no model is given, a scripted one answers."""
    clerk = Agent("clerk", model or ScriptedModel(reply), tools=[order_status, refund])
    ai = App(clerk, view=View(thinking=True))

    async def page(_: object) -> FileResponse:
        return FileResponse(HERE / "index.html")

    routes = [Mount("/ai", ai), Route("/", page), Mount("/dist", StaticFiles(directory=HERE / "dist", check_dir=False))]
    return Starlette(routes=routes, lifespan=ai.lifespan)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", help="for example openai/gpt-5; a scripted one by default")
    uvicorn.run(application(parser.parse_args().model), port=8000)
