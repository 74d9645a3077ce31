"""Approvals at the terminal: rules decide the clear cases, and a person decides the rest while the call waits.

    python samples/cookbook/approvals_at_the_terminal.py                         # offline, with a scripted model
    python samples/cookbook/approvals_at_the_terminal.py --model openai/gpt-5    # a real one, with its key in the environment

Answer `y` (this call), `s` (this tool, in this session), `a` (always), or `n why`: the model reads why.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from agentflow import Agent, Model, PostActing, ToolUseBlock, on, tool
from agentflow.errors import ToolError
from agentflow.plugins import Allow, Approval, Refuse, TerminalAsker
from agentflow.testing import ScriptedModel


class Folder:
    """The only folder that the tools may access; a parameter of this type receives it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def place(self, name: str) -> Path:
        place = (self.path / name).resolve()
        if not place.is_relative_to(self.path.resolve()):
            raise ToolError(f"{name} is outside the folder.")  # the model reads it
        return place


@tool(type="read")
async def look(folder: Folder) -> list[str]:
    """List the files."""
    return sorted(file.name for file in folder.path.iterdir())


@tool
async def write(name: str, text: str, folder: Folder) -> str:
    """Write a file."""
    folder.place(name).write_text(text, "utf-8")
    return f"wrote {len(text)} characters"


@tool
async def delete(name: str, folder: Folder) -> str:
    """Delete a file."""
    folder.place(name).unlink()
    return f"{name} is gone"


def make_agent(model: Model | str, asker: TerminalAsker) -> Agent:
    rules = [Allow("look"), Allow("write", name="*.md"), Refuse("*", "secrets must stay unchanged", name="*.env")]
    approval = Approval(rules, ask=asker)  # a guard: it sees the final version of a call
    return Agent("clerk", model, system="You tidy a folder.", tools=[look, write, delete], hooks=[approval, show])


@on(observer=True)
def show(event: PostActing) -> None:
    print(f"  {event.tool_use.name}({event.tool_use.input.get('name', '')}): {event.tool_result.text}", flush=True)


SCRIPT = [
    ToolUseBlock("t1", "look", {}),  # allowed by a rule
    ToolUseBlock("t2", "write", {"name": "README.md", "text": "# Notes"}),  # allowed by its pattern
    ToolUseBlock("t3", "delete", {"name": "prod.env"}),  # refused by a rule, even if a person would allow it
    ToolUseBlock("t4", "delete", {"name": "old.txt"}),  # needs an answer
    ToolUseBlock("t5", "delete", {"name": "draft.txt"}),  # needs an answer
    "One file is gone, one you wanted to keep, and there is a README.",
]


def tidy(model: Model | str, request: str) -> None:
    asker = TerminalAsker(read=sys.stdin.readline, write=sys.stdout)
    with tempfile.TemporaryDirectory() as place:
        for name in ("draft.txt", "old.txt", "prod.env"):
            (Path(place) / name).write_text("…", "utf-8")
        reply = make_agent(model, asker).call(request, deps=Folder(Path(place))).block()
        print(reply.text)
        print("left:", sorted(file.name for file in Path(place).iterdir()))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default=None)
    parser.add_argument("request", nargs="?", default="Tidy up, and leave a README.")
    args = parser.parse_args()
    tidy(args.model or ScriptedModel(SCRIPT), args.request)


if __name__ == "__main__":
    main()
