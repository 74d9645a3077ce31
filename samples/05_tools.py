"""Tools: the order of the tools in a round; no tool ends the call.

Research tools run in parallel, then read tools in parallel, then write tools one by one; results are in call order. A tool
can use a lock, be retried, be a method of an object, or be answered externally.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from agentflow import Agent, ToolEmitter, Toolset, ToolUseBlock, on, tool
from agentflow.testing import ScriptedModel
from agentflow.vocabulary import ActingChunk, PostActing, PreActing

tries: list[str] = []


@tool(type="research", retries=2)  # exceptions and timeouts are retried, cancellations never
async def search(query: str) -> str:
    """Search the web."""
    tries.append(query)
    if len(tries) < 2:
        raise ConnectionError("busy")
    return f"3 pages about {query}"


@tool(type="read")  # an async generator: readers see each value at once
async def read_pages(count: int, emitter: ToolEmitter) -> AsyncIterator[str]:
    """Read pages."""
    for page in range(1, count + 1):
        yield f"page {page}; "


class Notes:
    """An object whose annotated public methods become tools."""

    def __init__(self) -> None:
        self.kept: list[str] = []

    async def write_note(self, text: str) -> str:
        """Store a note."""
        self.kept.append(text)
        return f"{len(self.kept)} kept"


# Only a marker: the model announces that it is about to finish, and still answers afterwards.
@tool
async def submit(summary: str) -> str:
    """Report that the work is done."""
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
    calls = [  # a write, a read and a research call; they run in reverse order
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
