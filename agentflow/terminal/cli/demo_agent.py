"""The agent of `agentflow demo`: it adds up invoices in a folder and must not delete them.

It has the structure of an application: tools with a dependency, a guard that vetoes, an agent that combines them. `Folder` is
the `deps=` of the call; the model never sees it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from agentflow.agent.agent import Agent
from agentflow.errors import ToolError
from agentflow.hooks.hook import Hook, HookResult
from agentflow.tools import Dep, ToolEmitter, tool
from agentflow.vocabulary.events import HookEvent, PreActing
from agentflow.vocabulary.messages import ToolUseBlock
from agentflow.vocabulary.ports.model import Model
from agentflow.vocabulary.specs import ModelOptions
from agentflow.vocabulary.verdicts import Deny

INVOICES = {
    "apples.txt": "Invoice 1\n4 boxes of apples\namount: 31.60\n",
    "bread.txt": "Invoice 2\n12 loaves of bread\namount: 27.00\n",
    "coffee.txt": "Invoice 3\n2 bags of coffee\namount: 18.90\n",
}
TOTAL = 77.50

SYSTEM = (
    "You are a bookkeeper. Look into the folder before you answer, read every invoice, and add the amounts with the tool. "
    "If something is refused, say so and do not try again."
)
PROMPT = "What do the invoices in this folder add up to? When you know, delete them."


@dataclass(frozen=True)
class Folder:
    """The agent's working folder, and the only one that it can access."""

    path: Path

    def file(self, name: str) -> Path:
        """Return the path of a file in the folder, given its name."""
        if Path(name).name != name or not (self.path / name).is_file():
            raise ToolError(f"There is no file {name!r} in this folder.")
        return self.path / name


@tool(type="read")
async def list_files(folder: Dep[Folder]) -> list[str]:
    """List the files in the folder."""
    return sorted(path.name for path in folder.path.iterdir())


@tool(type="read")
async def read_file(name: str, folder: Dep[Folder]) -> str:
    """Read one file.

    Args:
        name: The file's name, as listed.
    """
    return folder.file(name).read_text("utf-8")  # a few bytes, so no thread is needed


@tool(type="read")
async def add_up(amounts: list[float], emitter: ToolEmitter) -> str:
    """Add numbers.

    Args:
        amounts: The numbers.
    """
    total = 0.0
    for amount in amounts:
        total += amount
        await emitter.emit(f"+ {amount:.2f} = {total:.2f}")
    return f"{total:.2f}"


@tool
async def delete_file(name: str, folder: Dep[Folder]) -> str:
    """Delete one file for good.

    Args:
        name: The file's name, as listed.
    """
    folder.file(name).unlink()
    return f"{name} is deleted"


class NoDeletes(Hook):
    """Deny every deletion, even if the model or another hook changed the call."""

    guard = True  # runs after all editing hooks, on the sealed event: no hook can change the call afterwards

    def on_event(self, event: HookEvent) -> HookResult:
        """Deny calls of `delete_file`."""
        match event:
            case PreActing(tool_use=ToolUseBlock(name="delete_file", input={"name": name})):
                return Deny(f"{name} stays: invoices are kept for ten years")
            case _:
                return event


def make_agent(model: str | Model, options: ModelOptions | None = None) -> Agent:
    """Create the agent with a model.

    Args:
        model: A name such as `"openai/gpt-5"`, or a `Model`.
        options: Options of its model calls.
    """
    return Agent(
        "bookkeeper",
        model,
        system=SYSTEM,
        tools=[list_files, read_file, add_up, delete_file],
        hooks=[NoDeletes()],
        options=options,
        max_iterations=10,
    )
