"""`flow_of`: the steps of a workflow with its branches and loops, read from the source of its function.

A step is drawn where the source calls it, even if it is awaited later. Conditions are shown as text; the function does not run.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import Any, Literal, NamedTuple

from agentflow._support.shown import one_line
from agentflow.agent.agent import Agent
from agentflow.agent.graph import escaped
from agentflow.agent.orchestration.functions import step
from agentflow.agent.orchestration.steps import ask, gather, race, use
from agentflow.agent.orchestration.workflow import RunWorkflow
from agentflow.errors import UsageError
from agentflow.tools.tool import Tool

_MAX_LABEL = 60
_SHAPES = {
    "step": '["{}"]',
    "exit": '(["{}"])',
    "gather": '{{{{"{}"}}}}',
    "race": '{{{{"{}"}}}}',
    "try": '{{{{"{}"}}}}',
}
_DIAMOND = '{{"{}"}}'


class Block(NamedTuple):
    """A part of a workflow: a step, or a statement with parts. The parts of an `if` and a `try` are branches."""

    kind: Literal["step", "gather", "race", "if", "loop", "try", "branch", "exit"]
    text: str
    parts: tuple[Block, ...] = ()


class Flow(NamedTuple):
    """The steps of a workflow.

    Attributes:
        name: The name of the workflow.
        parts: Its steps and statements, in order.
    """

    name: str
    parts: tuple[Block, ...]

    def __str__(self) -> str:
        """Return a tree."""

        def lines(parts: Sequence[Block], below: str) -> Iterator[str]:
            for index, part in enumerate(parts):
                branch, rest = ("└─ ", "   ") if index == len(parts) - 1 else ("├─ ", "│  ")
                yield f"{below}{branch}{part.text}"
                yield from lines(part.parts, below + rest)

        return "\n".join([f"{one_line(self.name)} (workflow)", *lines(self.parts, "")])

    def mermaid(self) -> str:
        """Return a Mermaid diagram: steps are boxes, decisions and loops are diamonds, `gather`, `race` and `try` hexagons."""
        return "\n".join(["flowchart TD", *self.mermaid_lines("s")])

    def mermaid_lines(self, prefix: str) -> list[str]:
        """Return the lines of its Mermaid diagram, in which the ids of nodes begin with `prefix`."""
        drawing = _FlowDrawing(prefix)
        ends = drawing.parts(self.parts, [(drawing.node("exit", self.name, []), "")], [], [])
        if ends:
            drawing.node("exit", "end", ends)
        return drawing.lines


_Ends = list[tuple[str, str]]
"""The nodes to connect to the next node, each with the text of its arrow."""


class _FlowDrawing:
    def __init__(self, prefix: str) -> None:
        self.lines: list[str] = []
        self._prefix = prefix
        self._count = 0

    def node(self, kind: str, text: str, ends: _Ends) -> str:
        own = f"{self._prefix}{self._count}"
        self._count += 1
        self.lines.append(f"  {own}{_SHAPES.get(kind, _DIAMOND).format(escaped(text))}")
        self.reach(own, ends)
        return own

    def reach(self, node: str, ends: _Ends) -> None:
        self.lines += [
            f'  {end} -->|"{escaped(text)}"| {node}' if text else f"  {end} --> {node}" for end, text in ends
        ]

    def parts(self, parts: Sequence[Block], ends: _Ends, breaks: _Ends, continues: _Ends) -> _Ends:
        """Draw parts in sequence, and return the open ends of the last one."""
        for part in parts:
            match part.kind:
                case "exit" if part.text in ("break", "continue"):
                    (breaks if part.text == "break" else continues).extend(ends)
                    return []
                case "loop":
                    own = self.node("loop", part.text, ends)
                    broken: _Ends = []
                    again: _Ends = []
                    # `again` collects the `continue`s of the loop, and then the ends of its body.
                    again += self.parts(part.parts, [(own, "repeat")], broken, again)
                    self.reach(own, again)
                    ends = [(own, "done"), *broken]
                case _:
                    own = self.node(part.kind, part.text, ends)
                    if part.kind == "exit":
                        return []
                    branches = [
                        child if child.kind == "branch" else Block("branch", "", (child,)) for child in part.parts
                    ]
                    drawn = [self.parts(branch.parts, [(own, branch.text)], breaks, continues) for branch in branches]
                    ends = [end for branch_ends in drawn for end in branch_ends] if branches else [(own, "")]
        return ends


class _Reader:
    """Reads the statements of one function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        closed = inspect.getclosurevars(function)
        self._names = {**closed.builtins, **closed.globals, **closed.nonlocals}
        self._steps: dict[object, str] = {ask: "ask", use: "use", step: "step", gather: "gather", race: "race"}

    def block(self, statements: Sequence[ast.stmt]) -> tuple[Block, ...]:
        """Return the parts of statements."""
        found: list[Block] = []
        for stmt in statements:
            found += self._statement(stmt)
            if found and found[-1].kind == "exit":
                break
        return tuple(found)

    def _statement(self, stmt: ast.stmt) -> list[Block]:
        match stmt:
            case ast.If():
                return self._choice(stmt.test, self.block(stmt.body), self.block(stmt.orelse))
            case ast.For() | ast.AsyncFor():
                body = self.block(stmt.body)
                loop = [Block("loop", f"for {_text(stmt.target)} in {_text(stmt.iter)}", body)] if body else []
                return [*self._inside(stmt.iter), *loop, *self.block(stmt.orelse)]
            case ast.While():
                body = (*self._inside(stmt.test), *self.block(stmt.body))
                return [*([Block("loop", f"while {_text(stmt.test)}", body)] if body else []), *self.block(stmt.orelse)]
            case ast.Match():
                cases = [Block("branch", f"case {_text(case.pattern)}", self.block(case.body)) for case in stmt.cases]
                last = stmt.cases[-1]
                if (
                    last.guard is not None
                    or not isinstance(last.pattern, ast.MatchAs)
                    or last.pattern.pattern is not None
                ):
                    cases.append(Block("branch", "no case"))
                return [*self._inside(stmt.subject), *_if_any("if", f"match {_text(stmt.subject)}", cases)]
            case ast.Try() | ast.TryStar():
                body = Block("branch", "works", (*self.block(stmt.body), *self.block(stmt.orelse)))
                failing = [
                    Block("branch", "fails" if h.type is None else f"fails: {_text(h.type)}", self.block(h.body))
                    for h in stmt.handlers
                ]
                return [*_if_any("try", "try", [body, *failing]), *self.block(stmt.finalbody)]
            case ast.With() | ast.AsyncWith():
                return [*(part for item in stmt.items for part in self._inside(item)), *self.block(stmt.body)]
            case ast.Return() | ast.Raise():
                return [*self._inside(stmt), Block("exit", "return" if isinstance(stmt, ast.Return) else "raise")]
            case ast.Break() | ast.Continue():
                return [Block("exit", "break" if isinstance(stmt, ast.Break) else "continue")]
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                return []
            case _:
                return self._inside(stmt)

    def _choice(self, test: ast.expr, yes: Sequence[Block], no: Sequence[Block]) -> list[Block]:
        branches = [Block("branch", "yes", tuple(yes)), Block("branch", "no", tuple(no))]
        return [*self._inside(test), *_if_any("if", f"if {_text(test)}", branches)]

    def _inside(self, node: ast.AST) -> list[Block]:
        """Return the steps in an expression, in the order in which they run."""
        # Compared with the functions by identity, so that they are found under another name too.
        found = self._value(node.func) if isinstance(node, ast.Call) else None
        kind = self._steps.get(found) if inspect.isfunction(found) else None
        if isinstance(node, ast.Call) and kind is not None:
            each = [self._inside(arg) for arg in (*node.args, *(keyword.value for keyword in node.keywords))]
            if kind not in ("gather", "race"):
                return [*(part for blocks in each for part in blocks), Block("step", f"{kind} {self._called(node)}")]
            parts = [blocks[-1] for blocks in each if blocks]
            # A comprehension: its steps run at the same time, so it is not drawn as a loop.
            parts = [Block("step", f"{p.parts[-1].text}, {p.text}") if p.kind == "loop" else p for p in parts]
            return [
                *(part for blocks in each for part in blocks[:-1]),
                Block("race" if kind == "race" else "gather", kind, tuple(parts)),
            ]
        match node:
            case ast.IfExp():
                return self._choice(node.test, self._inside(node.body), self._inside(node.orelse))
            case ast.ListComp() | ast.SetComp() | ast.GeneratorExp() | ast.DictComp():
                elements = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
                body = tuple(part for element in elements for part in self._inside(element))
                loops = ", ".join(f"for {_text(loop.target)} in {_text(loop.iter)}" for loop in node.generators)
                before = [part for loop in node.generators for part in self._inside(loop.iter)]
                return [*before, *([Block("loop", loops, body)] if body else [])]
            case ast.Lambda():
                return []
            case _:
                return [part for child in ast.iter_child_nodes(node) for part in self._inside(child)]

    def _called(self, node: ast.Call) -> str:
        if not node.args:
            return "(?)"
        found = self._value(node.args[0])
        named = found.name if isinstance(found, Agent | Tool) else getattr(found, "__name__", None)
        return one_line(named) if isinstance(named, str) else _text(node.args[0])

    def _value(self, node: ast.expr) -> Any:
        """Return the object that a name from outside the function, or a module's attribute, refers to; None if unknown."""
        if isinstance(node, ast.Name):
            return self._names.get(node.id)
        held = self._value(node.value) if isinstance(node, ast.Attribute) else None
        return (
            getattr(held, node.attr, None) if isinstance(held, ModuleType) and isinstance(node, ast.Attribute) else None
        )


def flow_of(agent: Agent[Any]) -> Flow | None:
    """Return the steps of a workflow agent; None for other agents, including those of `handoffs`.

    Raises:
        UsageError: The source of its function is not available.

    Example:
        >>> flow_of(Agent("clerk", "openai/gpt-5")) is None
        True
    """
    function = next((hook.function for hook in agent.hooks if isinstance(hook, RunWorkflow)), None)
    # Workflows of the library, such as `handoffs`, would show its own code.
    if function is None or function.__module__.startswith(f"{__name__.partition('.')[0]}."):
        return None
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, SyntaxError, TypeError) as error:
        raise UsageError(f"The source of workflow {agent.name!r} is not available. Define it in a file.") from error
    body = next(node.body for node in ast.walk(tree) if isinstance(node, ast.AsyncFunctionDef))
    parts = _Reader(function).block(body)
    return Flow(agent.name, parts[:-1] if parts and parts[-1] == Block("exit", "return") else parts)


def _if_any(kind: Literal["if", "try"], text: str, branches: Sequence[Block]) -> list[Block]:
    return [Block(kind, text, tuple(branches))] if any(branch.parts for branch in branches) else []


def _text(node: ast.AST) -> str:
    text = one_line(ast.unparse(node))
    return text if len(text) <= _MAX_LABEL else f"{text[: _MAX_LABEL - 1]}…"
