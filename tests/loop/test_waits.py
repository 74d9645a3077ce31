"""`Waits`: random trees of work, compared with the rules read off the whole tree."""

from __future__ import annotations

from typing import Literal

from hypothesis import given, settings
from hypothesis import strategies as st

from agentflow.loop.waits import Waits

Act = Literal["begin", "end", "enter", "leave"]
ACTS: tuple[Act, ...] = ("begin", "end", "enter", "leave")
PARENTS = (None, 0, 0, 1, 1)
"""The outer work of each: a tool call, two parts of it, and two parts of the first of these."""


@given(
    st.lists(
        st.tuples(st.sampled_from((0, 1, 1, 2, 3, 4)), st.sampled_from(ACTS), st.integers(0, 3)),
        min_size=15,
        max_size=40,
    )
)
@settings(max_examples=120)
def test_work_waits_during_its_own_waits_and_while_all_its_running_parts_wait(acts: list[tuple[int, Act, int]]) -> None:
    """Parallel waits count once; a part counts between `enter` and `leave` only, both of which can be repeated."""
    now = 0.0
    tree = list[Waits]()
    for parent in PARENTS:
        tree.append(Waits(lambda: now, None if parent is None else tree[parent]))
    own, running, expected = [0] * len(PARENTS), [False] * len(PARENTS), [0.0] * len(PARENTS)

    def waits(number: int) -> bool:
        parts = [part for part, parent in enumerate(PARENTS) if parent == number and running[part]]
        return own[number] > 0 or (bool(parts) and all(map(waits, parts)))

    for number, act, seconds in acts:
        if act == "begin":
            tree[number].__enter__()
            own[number] += 1
        elif act == "end" and own[number]:
            tree[number].__exit__(None, None, None)
            own[number] -= 1
        elif act == "enter":
            tree[number].enter()
            running[number] = True
        elif act == "leave":
            tree[number].leave()
            running[number] = False
        now += seconds
        expected = [total + seconds * waits(each) for each, total in enumerate(expected)]
        assert [one.seconds for one in tree] == expected
