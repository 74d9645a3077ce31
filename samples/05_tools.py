"""Tools: what a round does with them, and that no tool ends it.

Research tools run in parallel, then reading ones in parallel, then writing ones one by one; results come in the order of
the calls. A tool may take a lock, be tried again, be a method of an object, or be answered from outside.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from agentflow import Agent, ToolEmitter, Toolset, ToolUseBlock, on, tool
from agentflow.events import ActingChunk, PostActing, PreActing
from agentflow.testing import ScriptedModel

tries: list[str] = []


@tool(type="research", retries=2)  # exceptions and timeouts are tried again; a cancellation never is
async def search(query: str) -> str:
    """Search the web."""
    tries.append(query)
    if len(tries) < 2:
        raise ConnectionError("busy")
    return f"3 pages about {query}"


@tool(type="read")  # an async generator: each value is a piece that readers see at once
async def read_pages(count: int, emitter: ToolEmitter) -> AsyncIterator[str]:
    """Read pages."""
    for page in range(1, count + 1):
        yield f"page {page}; "


class Notes:
    """Its annotated public methods become tools."""

    def __init__(self) -> None:
        self.kept: list[str] = []

    async def write_note(self, text: str) -> str:
        """Keep a note."""
        self.kept.append(text)
        return f"{len(self.kept)} kept"


# A marker and no more: the model says that it is about to finish, and still gets to answer.
@tool
async def submit(summary: str) -> str:
    """Say that the work is done."""
    return f"submitted: {summary}"


@on(observer=True)
def show(event: PreActing | ActingChunk | PostActing) -> None:
    match event:
        case PreActing(tool_use=use):
            print("begin ", use.name)
        case ActingChunk(chunk=piece):
            print("piece ", piece)
        case PostActing(tool_use=use, tool_result=result):
            print("end   ", use.name, "|", result.text)


def main() -> None:
    notes = Notes()
    calls = [  # a writing, a reading and a researching call: they run the other way round
        ToolUseBlock("t1", "write_note", {"text": "frogs"}),
        ToolUseBlock("t2", "read_pages", {"count": 2}),
        ToolUseBlock("t3", "search", {"query": "frogs"}),
    ]
    model = ScriptedModel([calls, ToolUseBlock("t4", "submit", {"summary": "frogs"}), "Frogs are green."])
    agent = Agent("scholar", model, tools=[search, read_pages, Toolset(notes), submit], hooks=[show])
    print("reply ", agent.call("Write about frogs").block())
    print("order ", [result.name for result in agent.session().messages[2].tool_results])


if __name__ == "__main__":
    main()
