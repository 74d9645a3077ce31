"""A terminal assistant: a conversation that shows running tools, asks before it writes, and continues another day.

    python samples/cookbook/terminal_assistant.py                         # offline, with a scripted model and given lines
    python samples/cookbook/terminal_assistant.py --model openai/gpt-5    # you type; the key comes from the environment

`/history` shows the conversation, `/exit` or Ctrl-D ends it, Ctrl-C interrupts the call, not the conversation.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

from agentflow import Agent, Console, Dep, Model, ToolEmitter, ToolUseBlock, tool
from agentflow.plugins import ModelRetry, UsageLimits
from agentflow.state import SqlStore
from agentflow.testing import ScriptedModel


class Notes:
    """A person's notes, one per line; a tool's parameter of this type receives them."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "notes.txt"
        self.file.touch()


@tool(type="read")
async def read_notes(notes: Dep[Notes], emitter: ToolEmitter) -> list[str]:
    """Read all notes."""
    lines = notes.file.read_text("utf-8").splitlines()
    await emitter.emit(f"reading {len(lines)} notes")  # the last chunk is shown in the tool's status line
    return lines


@tool(requires_approval=True)  # a chat asks the user
async def add_note(text: str, notes: Dep[Notes]) -> str:
    """Write a note.

    Args:
        text: One line.
    """
    with notes.file.open("a", encoding="utf-8") as file:
        file.write(f"{text}\n")
    return "noted"


def make_assistant(model: str | Model, folder: Path) -> Agent:
    return Agent(
        "notes",
        model,
        system="You keep a person's notes.",
        tools=[read_notes, add_note],
        # A retry counts down on the screen; the scripted model costs nothing.
        hooks=[ModelRetry(), UsageLimits(cost=0.50, prices={"scripted": (0, 0)})],
        store=SqlStore(f"sqlite:///{folder / 'notes.db'}"),  # the conversation continues another day
    )


SCRIPT = [
    ["I write ", "that down. ", ToolUseBlock("n1", "add_note", {"text": "buy milk"})],
    "Done: buy milk.",
    ToolUseBlock("n2", "add_note", {"text": "sell the house"}),
    "Then I leave it.",
    ToolUseBlock("n3", "read_notes"),
    "One thing: buy milk.",
]


async def lines() -> AsyncIterator[str]:
    """The offline input: messages, and answers to questions."""
    for line in ("I need milk.", "y", "Sell the house!", "n", "/help"):
        yield line


async def talk(model: str | None, folder: Path) -> None:
    agent, notes = make_assistant(model or ScriptedModel(SCRIPT), folder), Notes(folder)
    await agent.chat(lines() if model is None else None, session="ada", deps=notes)

    print("\n-- one call, text only --")
    reply = await Console(agent.stream("What do I have to do?", session="ada", deps=notes), quiet=True)
    print(f"-- {reply.outcome}, {len(await agent.history('ada'))} messages are stored --")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", help="such as openai/gpt-5; without it, a script plays the model")
    model = parser.parse_args().model
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(talk(model, Path(folder)))


if __name__ == "__main__":
    main()
