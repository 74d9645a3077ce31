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
    """What `--yes` says to every question."""
    return "once"


def power_cut(behind: int) -> Hook:
    """A hook that ends the process at once, as a power cut would, behind so many tools."""
    done: list[str] = []

    @on(PostActing)
    def count(event: PostActing) -> None:
        done.append(event.tool_use.name)
        if len(done) == behind:
            print(f"-- the power fails behind {done[-1]} --", flush=True)
            os._exit(9)

    return count


def place(given: Path | None, model: str | None) -> tuple[Sandbox, Path]:
    """The repository, and where sessions and recordings are kept: beside it, where no tool reaches."""
    folder = Path(tempfile.mkdtemp(prefix="repo-assistant-")) / "repository" if given is None else given
    new = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    sandbox = Sandbox(folder)
    state = sandbox.root.with_name(f"{sandbox.root.name}.assistant")
    if new:
        fill(sandbox)
    elif model is None and not state.exists():
        sys.exit(f"{folder} exists, and the script knows its own example only: name a new folder, or a --model.")
    state.mkdir(mode=0o700, exist_ok=True)
    return sandbox, state


async def work(agent: Agent, sandbox: Sandbox, task: str, talk: bool) -> None:
    """Finish what a crash has cut; else do the task, or talk."""
    cut = await agent.unfinished()
    for info in cut:
        print(f"going on with what was cut in session {info.id!r}")
        await Console(agent.resume_stream(info.id, deps=sandbox))
    if talk:
        await agent.chat(session=SESSION, deps=sandbox)
    elif not cut:
        await Console(agent.stream(task, session=SESSION, deps=sandbox))


def main() -> None:
    """The program."""
    parser = argparse.ArgumentParser(prog="repo_assistant", description="An assistant for the repository in a folder.")
    parser.add_argument("task", nargs="?", default=TASK, help="what it is to do; the example's by default")
    parser.add_argument("--model", help="such as openai/gpt-5; without it, a script plays the model")
    parser.add_argument("--folder", type=Path, help="the repository; a new one with the example in it by default")
    parser.add_argument("--chat", action="store_true", help="talk with it")
    parser.add_argument("--yes", action="store_true", help="allow what it asks for; what is refused stays so")
    parser.add_argument("--power-cut", type=int, metavar="N", help="die behind N tools; the next run goes on")
    given = parser.parse_args()
    sandbox, state = place(given.folder, given.model)
    ask: Asker = yes if given.yes else TerminalAsker()
    agent = make_assistant(given.model or script(), state, ask)
    if given.power_cut:
        agent.hook(power_cut(given.power_cut))
    print(f"repository {sandbox.root}")
    try:
        asyncio.run(work(agent, sandbox, given.task, given.chat))
    except AgentFlowError as error:
        sys.exit(f"repo_assistant: {error}")
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
