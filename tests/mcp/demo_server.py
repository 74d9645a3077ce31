"""A server of the SDK's making, for tests: in memory, over standard input and output, over HTTP.

`python demo_server.py` speaks over standard input and output, `python demo_server.py http PORT` over HTTP.
"""

from __future__ import annotations

import asyncio
import base64
import os
import sys
from collections.abc import Callable
from typing import Annotated

from mcp.server import MCPServer
from mcp.server.mcpserver import Context, Elicit, Resolve, Sample
from mcp_types import CreateMessageResult, ImageContent, SamplingMessage, TextContent, ToolAnnotations
from pydantic import BaseModel

PIXEL = base64.b64encode(b"\x89PNG pixel").decode()


class Place(BaseModel):
    """Where something is."""

    row: int
    shelf: str


class Name(BaseModel):
    """What a person is asked for."""

    name: str


async def who(ctx: Context) -> Elicit[Name]:
    return Elicit("What is your name?", Name)


async def sure(name: Annotated[Name, Resolve(who)]) -> Elicit[Name]:
    return Elicit(f"Is it {name.name}?", Name)


async def thought(question: str) -> Sample:
    message = SamplingMessage(role="user", content=TextContent(text=question))
    return Sample([message], max_tokens=100 if question == "Why?" else 10_000, system_prompt="Be brief.")


def make(said: Callable[[str], object] = print) -> MCPServer:
    """A server with a tool of each kind.

    Args:
        said: Told what happens inside.
    """
    server = MCPServer("demo", instructions="For tests.")

    @server.tool(annotations=ToolAnnotations(read_only_hint=True))
    async def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    @server.tool(annotations=ToolAnnotations(destructive_hint=True))
    async def erase(path: str) -> str:
        """Erase a file."""
        return f"erased {path}"

    @server.tool(name="files.put.all", annotations=ToolAnnotations(idempotent_hint=True))
    async def put(context: str) -> str:
        """Put something somewhere."""
        return f"put {context}"

    @server.tool()
    async def steps(count: int, ctx: Context) -> str:
        """Work in steps."""
        for done in range(1, count + 1):
            await ctx.report_progress(done, count, f"step {done}")
        said("all steps are done")
        return f"{count} steps"

    @server.tool()
    async def place() -> Place:
        """Tell a place."""
        return Place(row=3, shelf="b")

    @server.tool()
    async def picture() -> list[TextContent | ImageContent]:
        """Show a picture."""
        return [TextContent(text="A pixel:"), ImageContent(data=PIXEL, mime_type="image/png")]

    @server.tool()
    async def fail() -> str:
        """Fail."""
        raise ValueError("no such \x1b[31mthing, secret-token-123456")

    @server.tool()
    async def wait() -> str:
        """Wait for ever."""
        said("waiting")
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            said("cancelled")
            raise
        return "never"

    @server.tool()
    async def grow(ctx: Context) -> str:
        """Get one more tool."""

        @server.tool(name="grown")
        async def grown() -> str:
            """Was not there before."""
            return "big"

        await ctx.notify_tools_changed()
        await ctx.session.send_tool_list_changed()
        return "grew"

    @server.tool()
    async def ask_name(ctx: Context) -> str:
        """Ask a person for a name."""
        answer = await ctx.elicit("What is your name?", Name)
        if answer.action != "accept":
            return f"nobody said: {answer.action}"
        again = await ctx.elicit(f"Is it {answer.data.name}?", Name)
        return f"{answer.data.name}, {again.data.name if again.action == 'accept' else again.action}"

    both = asyncio.Barrier(2)

    @server.tool()
    async def meet(ctx: Context) -> str:
        """Ask a person when two calls are here."""
        await both.wait()
        return (await ctx.elicit("Who?", Name)).action

    @server.tool()
    async def greet(name: Annotated[Name, Resolve(who)], again: Annotated[Name, Resolve(sure)]) -> str:
        """Ask a person for a name, twice, before anything is done."""
        return f"Hello {name.name}, or {again.name}"

    @server.tool()
    async def ask_model(question: str, reply: Annotated[CreateMessageResult, Resolve(thought)]) -> str:
        """Ask the client's model."""
        return f"it said: {reply.content.text if isinstance(reply.content, TextContent) else '?'}"

    @server.tool()
    async def die() -> str:
        """End the process."""
        os._exit(3)

    @server.tool(annotations=ToolAnnotations(read_only_hint=True))
    async def die_once(mark: str) -> str:
        """End the process, the first time."""
        if not os.path.exists(mark):  # noqa: ASYNC240
            with open(mark, "w") as file:  # noqa: ASYNC230
                file.write("x")
            os._exit(3)
        return "alive"

    @server.tool()
    async def environment(name: str) -> str:
        """Tell an environment variable."""
        return os.environ.get(name, "(not set)")

    @server.resource("notes://today", description="Notes", mime_type="text/plain")
    async def today() -> str:
        return "buy milk"

    @server.resource("notes://picture", mime_type="image/png")
    async def in_colours() -> bytes:
        return b"\x89PNG pixel"

    @server.prompt(description="Review something.")
    def review(code: str) -> str:
        return f"Review {code}, please."

    return server


if __name__ == "__main__":
    if sys.argv[1:2] == ["http"]:
        make().run("streamable-http", port=int(sys.argv[2]))
    else:
        make(lambda text: print(text, file=sys.stderr, flush=True)).run("stdio")
