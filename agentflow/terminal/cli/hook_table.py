"""`agentflow hooks`: print an agent's hooks as a table, in the order in which they run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from rich import box
from rich.console import Console
from rich.table import Table

from agentflow._support.shown import one_line
from agentflow.hooks.hook import Hook
from agentflow.hooks.hook_set import HookSet, full_hooks
from agentflow.vocabulary.events import EVENT_TYPES


class HookRow(NamedTuple):
    """One hook in the chain of one event.

    Attributes:
        event: The event's name.
        role: `edit`, `guard`, `observe`, or `around` (wraps the work of the event).
        priority: The priority; ascending within a role.
        hook: The hook's name.
        options: The options that differ from the defaults.
    """

    event: str
    role: str
    priority: int
    hook: str
    options: str


def hook_rows(hooks: HookSet) -> Iterator[HookRow]:
    """Yield the rows by event, in the order in which the hooks run."""
    own = full_hooks(hooks)
    for kind in EVENT_TYPES:
        chain = own.chain(kind)
        if chain is not None:
            for role, entries in (("edit", chain.editors), ("guard", chain.guards), ("observe", chain.observers)):
                for entry in entries:
                    yield _row(kind.__name__, role, entry.hook)
        for _, hook in own.arounds(kind):
            yield _row(kind.__name__, "around", hook)


def _row(event: str, role: str, hook: Hook) -> HookRow:
    return HookRow(event, role, hook.priority, hook.name, _options(hook))


def _options(hook: Hook) -> str:
    options = [name for name in ("serial", "shadow", "in_thread") if getattr(hook, name)]
    if hook.scope != "own":
        options.append(f"scope={hook.scope}")
    if hook.on_failure is not None:
        options.append(f"on_failure={hook.on_failure}")
    if hook.timeout is not None:
        options.append(f"timeout={hook.timeout:g}")
    if hook.only_tools:
        options.append(f"tools={','.join(hook.only_tools)}")
    if hook.tags:
        options.append(f"tags={','.join(sorted(hook.tags))}")
    return " ".join(options)


def print_hooks(console: Console, name: str, hooks: HookSet) -> None:
    """Print the table; only the first row of an event shows its name."""
    table = Table(box=box.SIMPLE_HEAD if console.is_terminal else None, pad_edge=False, header_style="bold")
    table.add_column("event", style="cyan", overflow="fold")
    table.add_column("role")
    table.add_column("priority", justify="right")
    table.add_column("hook", overflow="fold")
    table.add_column("options", style="dim")
    before = ""
    for row in hook_rows(hooks):
        table.add_row(
            "" if row.event == before else row.event,
            row.role,
            str(row.priority),
            one_line(row.hook),
            one_line(row.options),
        )
        before = row.event
    if not table.row_count:
        console.print(f"{one_line(name)} has no hooks.")
        return
    if console.is_terminal:
        console.print(table)
        return
    # Rich fills each line with blanks up to the table's width; a file should not have them.
    with console.capture() as printed:
        console.print(table)
    for line in printed.get().splitlines():
        console.print(line.rstrip())
