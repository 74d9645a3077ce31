"""The value of a group of steps, for any ends of its calls."""

from __future__ import annotations

from typing import Any, Literal, get_args

from hypothesis import given, settings
from hypothesis import strategies as st

from agentflow.agent.orchestration.steps import Group, Step, StepError
from agentflow.vocabulary.messages import ToolState, tool_result

KINDS = st.sampled_from(["all", "each", "race"])
STATES = st.lists(st.sampled_from(["success", *get_args(ToolState)]), min_size=1, max_size=5)


def shown(value: Any) -> Any:
    """Return a comparable value."""
    return (value.step, value.state, value.reason, value.others) if isinstance(value, StepError) else value


@settings(max_examples=100, deadline=None)
@given(kind=KINDS, states=STATES)
def test_the_value_of_a_group(kind: Literal["all", "each", "race"], states: list[ToolState]) -> None:
    """`each`: value or error of each step, in order. `all`: the values, or the first error. `race`: the first value, or the
    first error if there is none. An error names all other steps, in order.
    """
    names = [f"s{place}" for place in range(len(states))]
    steps = [Step(name, {}, lambda result: f"value {result.text}") for name in names]
    results = [tool_result(f"t{n}", f"s{n}", f"text {n}", state) for n, state in enumerate(states)]
    ended = list(zip(names, states, strict=True))
    each = tuple(
        [
            f"value text {n}" if state == "success" else (name, state, f"text {n}", tuple(ended[:n] + ended[n + 1 :]))
            for n, (name, state) in enumerate(ended)
        ]
    )
    values, errors = [one for one in each if isinstance(one, str)], [one for one in each if not isinstance(one, str)]
    expected: Any = each
    if kind == "all":
        expected = errors[0] if errors else each
    elif kind == "race":
        expected = values[0] if values else errors[0]
    try:
        found: Any = Group(steps, kind).value(results)
    except StepError as error:
        assert kind != "each"
        found = error
    assert (tuple(map(shown, found)) if isinstance(found, tuple) else shown(found)) == expected
