"""Content: the model receives an image from this program, and another from a tool.

Logs and terminal output never contain the picture's data, and a conversation stores it once.
"""

from __future__ import annotations

import asyncio
import struct
import zlib

from agentflow import Agent, DataBlock, Msg, ToolUseBlock, tool
from agentflow.errors import FetchError
from agentflow.models import fetch
from agentflow.testing import ScriptedModel
from agentflow.vocabulary.ports.model import ModelRequest

COLOURS = {(255, 0, 0): "red", (0, 128, 0): "green", (0, 0, 255): "blue"}


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def square(red: int, green: int, blue: int, side: int = 32) -> DataBlock:
    """Create a square of one colour, as a PNG."""
    head = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    rows = (b"\0" + bytes((red, green, blue)) * side) * side
    parts = chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return DataBlock.from_bytes(b"\x89PNG\r\n\x1a\n" + parts, name="square.png")


def colour_of(picture: DataBlock) -> str:
    data = picture.to_bytes()
    start = data.index(b"IDAT") + 4
    pixel = zlib.decompressobj().decompress(data[start:], 4)[1:4]
    return COLOURS[pixel[0], pixel[1], pixel[2]]


def eye(request: ModelRequest) -> Msg:
    """Replace a model with vision: name the colour of the last picture, or call the photo tool."""
    last = request.messages[-1]
    pictures = [*last.data]
    for result in last.tool_results:
        pictures += [block for block in result.content if isinstance(block, DataBlock)]
    if pictures:
        return Msg.assistant(f"A {colour_of(pictures[-1])} square.")
    return Msg.assistant(ToolUseBlock("t1", "photo", {"of": "the wall"}))


@tool(type="read")
async def photo(of: str) -> list[str | DataBlock]:
    """Take a photo."""
    return [f"This is {of}:", square(0, 128, 0)]


async def look() -> None:
    agent = Agent("eye", ScriptedModel(eye), tools=[photo])
    print((await agent.call(Msg.user("What is this?", square(255, 0, 0)))).text)
    print((await agent.call("And the wall?")).text)
    for msg in agent.session().messages:
        print(f"  {msg.role:9} {msg.shown or [use.name for use in msg.tool_uses]}")
    try:
        await fetch("http://169.254.169.254/latest/meta-data/")  # where clouds serve credentials
    except FetchError as error:
        print(error)


def main() -> None:
    asyncio.run(look())


if __name__ == "__main__":
    main()
