"""The agent: its prompt, tools and hooks."""

from __future__ import annotations

from pathlib import Path

from agentflow import Agent, Model
from agentflow.plugins import Allow, Approval, Recorder, ShellApproval, UsageLimits
from agentflow.plugins.approval import Asker
from agentflow.state import SqlStore

from .tools import TOOLS

SYSTEM = """\
You work on the repository in the current folder. Look before you change something, change as little as you need, and run
the tests after a change. If something is refused, say so, and continue without it.
End with a summary in a few sentences."""

READERS = [Allow("list_files"), Allow("read_file"), Allow("search"), Allow("bash")]
"""These need no approval. `ShellApproval` checks `bash`."""

COMMANDS = ["python -m unittest **", "python -m pytest **", "ls *", "git status", "git diff *", "git log *"]
REFUSED = ["rm", "sudo", "curl", "wget", "git push", "git reset", "git clean"]
FREE = {"scripted": (0, 0)}
"""The scripted model costs nothing; providers' models have prices."""


def make_assistant(model: str | Model, state: Path, ask: Asker) -> Agent:
    """Make the assistant.

    Args:
        model: A name, or a scripted one.
        state: The folder of sessions and recordings, outside of the repository, so that no tool can change them.
        ask: Asks a person before a change.
    """
    return Agent(
        "repo_assistant",
        model,
        system=SYSTEM,
        tools=TOOLS,
        hooks=[
            Approval(READERS, ask=ask),  # edits
            ShellApproval(allow=COMMANDS, deny=REFUSED, ask=ask),  # commands, part by part
            UsageLimits(tokens=400_000, cost=2.0, tool_calls=80, seconds=1800, prices=FREE),
            Recorder(state / "record.jsonl"),  # the changes of each hook
        ],
        store=SqlStore(f"sqlite:///{state / 'sessions.db'}"),
        max_iterations=40,
    )
