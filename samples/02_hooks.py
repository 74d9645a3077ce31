"""Hooks: see every step of a run, edit it, veto it.

A hook receives events and returns them. A class matches the events it handles; a function declares them with `@on`. Editing
hooks run first, by priority; guards check the edited event; observers see the sealed result.
"""

from __future__ import annotations

from dataclasses import replace

from agentflow import Agent, Deny, Hook, HookEvent, HookResult, PostActing, PreActing, ToolUseBlock, on, tool
from agentflow.testing import ScriptedModel

FILES = {"notes.txt": "buy milk, pin 1234", "old.log": "nothing"}


@tool
async def read_file(path: str) -> str:
    """Read a file."""
    return FILES[path]


@tool
async def delete_file(path: str) -> str:
    """Delete a file."""
    return f"deleted {FILES.pop(path)!r}"


class Guard(Hook):
    """Vetoes deletions: a guard runs last, on the sealed event, so no other hook can bypass it."""

    guard = True
    events = (PreActing,)  # an event without listeners is not even built

    def on_event(self, event: HookEvent) -> HookResult:
        match event:
            case PreActing(tool_use=ToolUseBlock(name="delete_file", input={"path": str(path)})) if path != "old.log":
                return Deny(f"{path} must stay")
            case _:
                return event


# Edits: assign a writable field, or return `event.replace(...)`. An assigned value is checked, and then used.
@on("before_each_tool", priority=10)
def bare_names(event: PreActing) -> None:
    event.tool_use = event.tool_use.replace(input={"path": event.tool_use.input["path"].split("/")[-1]})


# History, model and stream all see the result after this hook.
@on("after_each_tool")
def redact(event: PostActing) -> PostActing:
    return event.replace(tool_result=replace(event.tool_result, content=event.tool_result.text.replace("1234", "****")))


# Without names, `@on` reads the annotation. An observer changes nothing, and its failure is harmless.
@on(observer=True)
def log(event: PreActing | PostActing) -> None:
    match event:
        case PreActing(tool_use=use, decision=decision):
            print("before: ", use.name, dict(use.input), "- vetoed by " + decision.hook if decision else "- may run")
        case PostActing(tool_result=result):
            print("after:  ", result.state, "|", result.text)


def main() -> None:
    calls = [
        ToolUseBlock("t1", "read_file", {"path": "/home/ann/notes.txt"}),
        ToolUseBlock("t2", "delete_file", {"path": "notes.txt"}),
        ToolUseBlock("t3", "delete_file", {"path": "./old.log"}),
    ]
    model = ScriptedModel([calls, "Done."])
    agent = Agent("tidy", model, tools=[read_file, delete_file], hooks=[Guard(), bare_names, redact, log])
    print("reply:  ", agent.call("Tidy up").block())
    print("left:   ", sorted(FILES))
    print(agent.hooks.describe())


if __name__ == "__main__":
    main()
