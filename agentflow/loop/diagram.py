"""The states of the loop for the docs: the transitions between them (drawn by `website/pictures`), and a table of all
facts.

`python -m agentflow.loop.diagram` prints the table.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, get_args

from agentflow.loop.states import TRANSITIONS, State
from agentflow.vocabulary.facts import Fact

__all__ = ["documented", "ways"]


def documented() -> str:
    """Return the transitions as a Markdown table."""
    lines = [f"| Fact | {' | '.join(f'in `{state.name}`' for state in State)} |", f"|---|{'---|' * len(State)}"]
    for kind in get_args(Fact):
        cells = [_cell(state, TRANSITIONS[state].get(kind)) for state in State]
        lines.append(f"| `{kind.__name__}` | {' | '.join(cells)} |")
    return "\n".join(lines)


def ways() -> Iterator[tuple[State, State, str]]:
    """Yield each transition to another state, with its fact."""
    for state, row in TRANSITIONS.items():
        for kind, to in row.items():
            if isinstance(to, State):
                if to is not state:
                    yield state, to, kind.__name__
            else:
                yield from ((state, target, f"{kind.__name__}, {case}") for case, target in to.items())


def _cell(state: State, to: State | Mapping[Any, State] | None) -> str:
    if to is None:
        return "–"
    if isinstance(to, State):
        return "stays" if to is state else f"`{to.name}`"
    return "; ".join(f"{case}: {_cell(state, target)}" for case, target in to.items())


if __name__ == "__main__":
    print(documented())
