"""The program: `python -m samples.repo_assistant`, from the root of the project. See README.md."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
from pathlib import Path

from agentflow import Agent, Console, Hook, PostActing, on
from agentflow.errors import AgentFlowError
from agentflow.plugins import TerminalAsker
from agentflow.plugins.approval import ApprovalRequest, Asker, Choice

from .assistant import make_assistant
from .example import TASK, fill, script
from .sandbox import Sandbox

SESSION = "work"


async def yes(request: ApprovalRequest) -> Choice:
    """Answer every question with yes (`--yes`)."""
    return "once"


def power_failure(after: int) -> Hook:
    """Make a hook that kills the process after this many tools, as a power failure would."""
    done: list[str] = []

    @on(PostActing)
    def count(event: PostActing) -> None:
        done.append(event.tool_use.name)
        if len(done) == after:
            print(f"-- the power fails after {done[-1]} --", flush=True)
            os._exit(9)

    return count


def place(given: Path | None, model: str | None) -> tuple[Sandbox, Path]:
    """Return the repository, and the folder of sessions and recordings: next to it, out of reach of the tools."""
    folder = Path(tempfile.mkdtemp(prefix="repo-assistant-")) / "repository" if given is None else given
    new = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    sandbox = Sandbox(folder)
    state = sandbox.root.with_name(f"{sandbox.root.name}.assistant")
    if new:
        fill(sandbox)
    elif model is None and not state.exists():
        sys.exit(f"{folder} exists, but the script only works on its own example: name a new folder, or a --model.")
    state.mkdir(mode=0o700, exist_ok=True)
    return sandbox, state


async def work(agent: Agent, sandbox: Sandbox, task: str, talk: bool) -> None:
    """Resume calls that a crash interrupted; without any, do the task, or chat."""
    unfinished = await agent.unfinished()
    for info in unfinished:
        print(f"resuming the unfinished call of session {info.id!r}")
        await Console(agent.resume_stream(info.id, deps=sandbox))
    if talk:
        await agent.chat(session=SESSION, deps=sandbox)
    elif not unfinished:
        await Console(agent.stream(task, session=SESSION, deps=sandbox))


def main() -> None:
    """The program."""
    parser = argparse.ArgumentParser(prog="repo_assistant", description="An assistant for the repository in a folder.")
    parser.add_argument("task", nargs="?", default=TASK, help="the task; the example's by default")
    parser.add_argument("--model", help="such as openai/gpt-5; without it, a script plays the model")
    parser.add_argument("--folder", type=Path, help="the repository; by default a new one with the example")
    parser.add_argument("--chat", action="store_true", help="hold a conversation")
    parser.add_argument("--yes", action="store_true", help="answer all questions with yes; refusals stay")
    parser.add_argument("--power-failure", type=int, metavar="N", help="die after N tools; the next run continues")
    given = parser.parse_args()
    sandbox, state = place(given.folder, given.model)
    ask: Asker = yes if given.yes else TerminalAsker()
    agent = make_assistant(given.model or script(), state, ask)
    if given.power_failure:
        agent.hook(power_failure(given.power_failure))
    print(f"repository {sandbox.root}")
    try:
        asyncio.run(work(agent, sandbox, given.task, given.chat))
    except AgentFlowError as error:
        sys.exit(f"repo_assistant: {error}")
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
