"""The states of the loop as Markdown, for the docs: a Mermaid diagram of the ways between them, and a table of all facts.

`python -m agentflow.loop.diagram` prints it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, get_args

from agentflow.facts import Fact
from agentflow.loop.states import TRANSITIONS, State

__all__ = ["documented"]


def documented() -> str:
    """The transitions as Markdown: a Mermaid diagram of the ways between states, and a table of all."""
    return f"```mermaid\n{_diagram()}\n```\n\n{_table()}"


def _diagram() -> str:
    arrows = [f"    {state.name} --> {to.name}: {label}" for state, to, label in _ways()]
    return "\n".join(["stateDiagram-v2", "    [*] --> USER_INPUT", *arrows])


def _ways() -> Iterator[tuple[State, State, str]]:
    """What leads from one state to another, and what says that it stays."""
    for state, row in TRANSITIONS.items():
        for kind, to in row.items():
            if isinstance(to, State):
                if to is not state:
                    yield state, to, kind.__name__
            else:
                yield from ((state, target, f"{kind.__name__}, {case}") for case, target in to.items())


def _table() -> str:
    lines = [f"| Fact | {' | '.join(f'in `{state.name}`' for state in State)} |", f"|---|{'---|' * len(State)}"]
    for kind in get_args(Fact):
        cells = [_cell(state, TRANSITIONS[state].get(kind)) for state in State]
        lines.append(f"| `{kind.__name__}` | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(state: State, to: State | Mapping[Any, State] | None) -> str:
    if to is None:
        return "–"
    if isinstance(to, State):
        return "stays" if to is state else f"`{to.name}`"
    return "; ".join(f"{case}: {_cell(state, target)}" for case, target in to.items())


if __name__ == "__main__":
    print(documented())
