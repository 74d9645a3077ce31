"""Every test can fail: it asserts something, directly or in a helper, and nothing that holds for any value."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TypeAlias

import pytest

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.ci  # walks through the sources of all tests

OTHERS = "tests/mcp/conformance"  # a server for another program's tests, which names its tools `test_...`
EXPECTS = {"raises", "fail", "warns", "deprecated_call", "does_not_raise"}

Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef


@cache
def functions() -> list[tuple[str, Function]]:
    """All functions of the tests and of the testing kit, with the file that they are in."""
    files = [*(ROOT / "tests").rglob("*.py"), *(ROOT / "agentflow" / "testing").rglob("*.py")]
    return [
        (str(file.relative_to(ROOT)), node)
        for file in sorted(files)
        if OTHERS not in file.as_posix()
        for node in ast.walk(ast.parse(file.read_text("utf-8")))
        if isinstance(node, Function)
    ]


def all_tests() -> Iterator[tuple[str, Function]]:
    for file, node in functions():
        if node.name.startswith("test_") and file.startswith("tests/"):
            yield f"{file}:{node.lineno} {node.name}", node


@cache
def called(node: Function) -> frozenset[str]:
    return frozenset(
        call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
        for call in ast.walk(node)
        if isinstance(call, ast.Call)
    )


@cache
def asserting() -> set[str]:
    """The names of functions that can fail, those included that call one of them."""
    by_name: defaultdict[str, list[Function]] = defaultdict(list)
    for _, node in functions():
        by_name[node.name].append(node)
    found = set(EXPECTS)
    found |= {
        name
        for name, nodes in by_name.items()
        if any(isinstance(part, ast.Assert | ast.Raise) for node in nodes for part in ast.walk(node))
    }
    while more := {name for name, nodes in by_name.items() if any(called(node) & found for node in nodes)} - found:
        found |= more
    return found


def test_every_test_asserts_something() -> None:
    """A test without an assertion can only notice exceptions; one that means that says so with `does_not_raise`."""
    without = [
        name
        for name, node in all_tests()
        if not any(isinstance(part, ast.Assert | ast.Raise) for part in ast.walk(node))
        and not called(node) & asserting()
    ]
    assert without == []


HOLDS_FOR_ALL = (
    "len(x) >= 0",
    "x.duration_ms >= 0",
    "True",
    "'a'",
    "'CPython' in x or 'Python' in x",
    "x.get('name') or x['title'] == 'a'",
    "isinstance(x, object)",
)


def always(test: ast.expr) -> bool:
    """Whether an assertion holds for any value: a constant, a size of at least 0, one text or a part of it, any value of a key
    (where `(a or b) == c` is meant), any object."""
    match test:
        case ast.Constant() | ast.Compare(ops=[ast.GtE()], comparators=[ast.Constant(value=0)]):
            return True
        case ast.BoolOp(
            op=ast.Or(), values=[ast.Compare(left=ast.Constant(str(a))), ast.Compare(left=ast.Constant(str(b)))]
        ):
            return a in b or b in a
        case ast.BoolOp(op=ast.Or(), values=[ast.Call(func=ast.Attribute(attr="get")), ast.Compare()]):
            return True
        case ast.Call(func=ast.Name(id="isinstance"), args=[_, ast.Name(id="object")]):
            return True
        case _:
            return False


@pytest.mark.parametrize("source", HOLDS_FOR_ALL)
def test_what_holds_for_any_value_is_found(source: str) -> None:
    """The kinds that were found by reading."""
    assert always(ast.parse(source, mode="eval").body)


OF_OTHERS = {
    "tests/hooks/test_message_safety.py",  # over each wire
    "tests/models/test_outgoing.py",
    "tests/wire/test_wire_responses.py",
}
"""Files with a test that expects an error of another library, whose class depends on its version."""


def test_errors_are_expected_by_their_class() -> None:
    """`pytest.raises(Exception)` holds for a mistake in the test, too."""
    found = {
        name.partition(":")[0]
        for name, node in all_tests()
        for part in ast.walk(node)
        if isinstance(part, ast.Call)
        and ast.unparse(part.func) == "pytest.raises"
        and ast.unparse(part.args[0]) in ("Exception", "BaseException")
    }
    assert found == OF_OTHERS


def test_no_assertion_holds_for_any_value() -> None:
    """In no test of the project."""
    found = [
        f"{name}: {ast.unparse(part.test)}"
        for name, node in all_tests()
        for part in ast.walk(node)
        if isinstance(part, ast.Assert) and always(part.test)
    ]
    assert found == []


LIMITED = re.compile(r"timeout|wait_for|limit")


def short_limits(test: Function) -> list[str]:
    """The limits of time under a second in an asynchronous test that also waits for something to begin, in real time.

    On a slow machine a limit passes before it has begun, and the test fails or waits for ever; with
    `clocks.in_virtual_time` it is exact.
    """
    if any(ast.unparse(decorator) == "in_virtual_time" for decorator in test.decorator_list):
        return []
    own = [part for step in test.body if not isinstance(step, Function | ast.ClassDef) for part in ast.walk(step)]
    if not any(isinstance(part, ast.Await) and ast.unparse(part.value).endswith(".wait()") for part in own):
        return []
    return [
        text
        for step in own
        if isinstance(step, ast.Expr | ast.Assign | ast.Return | ast.withitem)
        and LIMITED.search(text := ast.unparse(step))
        for part in ast.walk(step)
        if isinstance(part, ast.Constant) and isinstance(part.value, float) and 0 < part.value < 1
    ]


def test_no_test_waits_for_the_beginning_of_what_a_short_limit_may_prevent() -> None:
    """One hung for ten minutes: its hook was never reached."""
    assert [(name, found) for name, node in all_tests() if (found := short_limits(node))] == []
