"""The agent: its prompt, its tools, and the hooks that watch over it."""

from __future__ import annotations

from pathlib import Path

from agentflow import Agent, Model
from agentflow.plugins import Allow, Approval, Recorder, ShellApproval, UsageLimits
from agentflow.plugins.approval import Asker
from agentflow.state import SqlStore

from .tools import TOOLS

SYSTEM = """\
You work on the repository in the current folder. Look before you change something, change as little as you need, and run
the tests behind a change. What is refused stays refused: say so, and go on without it.
End with what you did, in a few sentences."""

READERS = [Allow("list_files"), Allow("read_file"), Allow("search"), Allow("bash")]
"""Nobody is asked about these. `bash` is the shell guard's affair."""

COMMANDS = ["python -m unittest **", "python -m pytest **", "ls *", "git status", "git diff *", "git log *"]
REFUSED = ["rm", "sudo", "curl", "wget", "git push", "git reset", "git clean"]
FREE = {"scripted": (0, 0)}
"""The model of the tests costs nothing; those of providers have their prices."""


def make_assistant(model: str | Model, state: Path, ask: Asker) -> Agent:
    """The assistant.

    Args:
        model: A name, or a scripted one.
        state: Where sessions and recordings are kept: outside of the repository, where no tool can change them.
        ask: Who is asked before something is changed.
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
            Recorder(state / "record.jsonl"),  # which hook changed what
        ],
        store=SqlStore(f"sqlite:///{state / 'sessions.db'}"),
        max_iterations=40,
    )
