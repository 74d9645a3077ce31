"""Keywords are typed: a misspelt option is an error of the checker, and not one of a user's."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import get_args

import pytest

from agentflow import HookEvent

PACKAGE = Path(__file__).parent.parent / "agentflow"

OPEN = {
    "serve/anthropic_routes.py _event": "the fields of an event of a wire",
    "serve/openai_routes.py _OpenAIRoutes._response_events.event": "the fields of an event of a wire",
    "plugins/code/functions.py functions_of.Function.later": "the arguments of any tool",
    "plugins/code/functions.py functions_of.Function.__call__": "the arguments of any tool",
    "terminal/cli/main.py LazyCommand.make_context": "click's own signature",
    "vocabulary/events/base.py _init_by_hand": "the runtime side of the dataclasses that a checker sees",
    "_support/facade.py objects_of.decorate.new": "the arguments of any class",
    "_support/values.py _Record._replace": "the fields of any named tuple",
    "_support/frozen.py FrozenDict._refuse": "takes anything, and refuses it",
    "_support/frozen.py FrozenList._refuse": "takes anything, and refuses it",
    "loop/endings.py _abandoned": "it stands for several methods, and only raises",
    "vocabulary/messages.py with_metadata": "the names of notes are free",
    "models/litellm_library.py LiteLLM.acompletion": "LiteLLM's own signature",
    "models/litellm_library.py LiteLLM.aembedding": "LiteLLM's own signature",
    "models/litellm_library.py LiteLLM.cost_per_token": "LiteLLM's own signature",
    "agent/orchestration/steps.py use": "the arguments of any tool",
    "agent/orchestration/functions.py step": "the arguments of any function; overloads check them",
    "loop/output/tools.py StepTool._step": "the arguments of any function",
    "testing/faults.py Crash.tool.called": "the arguments of any tool",
    "testing/hook_checks/scenes.py _record_call": "the arguments of any tool",
    "testing/hook_checks/scenes.py _use": "the arguments of any tool",
    "tools/tool.py _never_runs": "the arguments of any tool",
    "tools/tool.py tool": "a keyword that is no option fixes the parameter of that name; the options are declared",
    "tools/toolset.py Toolset.__init__": "as of `tool`",
}
"""Functions whose keywords have free names (`**name: object`), and why."""


KEYWORDS = re.compile(r"\*\*\w+\s*[:,)]")
"""What a module without such functions lacks; parsing all of them takes seconds."""


def keywords(node: ast.AST, inside: str = "") -> Iterator[tuple[str, str]]:
    """The functions below a node that take any keyword, and as what they are annotated."""
    for child in ast.iter_child_nodes(node):
        where = inside
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            where = f"{inside}.{child.name}".strip(".")
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) and child.args.kwarg is not None:
            annotation = child.args.kwarg.annotation
            yield where, "" if annotation is None else ast.unparse(annotation)
        if isinstance(child, ast.If) and ast.unparse(child.test) == "not TYPE_CHECKING":
            continue  # the runtime side of what is declared for the checker
        if isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
            for statement in child.body:
                yield from keywords(ast.Module([statement], []), where)
            continue
        yield from keywords(child, where)


@cache
def found() -> dict[str, set[str]]:
    """All functions of the package that take any keyword."""
    result: dict[str, set[str]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        source = path.read_text("utf-8")
        if not KEYWORDS.search(source):
            continue
        for where, annotation in keywords(ast.parse(source)):
            result.setdefault(f"{path.relative_to(PACKAGE).as_posix()} {where}", set()).add(annotation)
    return result


@pytest.mark.ci
def test_no_function_takes_keywords_of_any_type() -> None:
    """`**options: Any` is nowhere: options are `Unpack[...]` of a TypedDict, or declared one by one."""
    assert {where: kinds for where, kinds in found().items() if kinds & {"Any", ""}} == {}


def test_free_names_have_a_reason() -> None:
    """`**arguments: object` is only where any name is right."""
    assert {where for where, kinds in found().items() if "object" in kinds} == OPEN.keys()


def test_such_a_function_would_be_found() -> None:
    """In a class, as a lambda, without an annotation, as a coroutine; what only the runtime sees is passed over."""
    code = """
class A:
    async def f(self, **options: Any): ...
    if TYPE_CHECKING:
        def g(self, **more): ...
    else:
        def g(self, **runtime): ...
    if not TYPE_CHECKING:
        def h(self, **runtime): ...
x = lambda **given: given
"""
    assert list(keywords(ast.parse(code))) == [("A.f", "Any"), ("A.g", ""), ("", "")]


def test_replace_declares_the_writable_fields() -> None:
    """What the checker lets `event.replace(...)` take are the writable fields of that event."""
    declared: dict[str, set[str]] = {}
    tree = ast.parse((PACKAGE / "vocabulary/events/__init__.py").read_text("utf-8"))
    for kind in [node for node in tree.body if isinstance(node, ast.ClassDef)]:
        for node in ast.walk(kind):
            if isinstance(node, ast.FunctionDef) and node.name == "replace":
                declared[kind.name] = {argument.arg for argument in node.args.kwonlyargs}
    writable = {kind.__name__: set(kind.writable) for kind in get_args(HookEvent) if kind.writable}
    assert declared == writable
