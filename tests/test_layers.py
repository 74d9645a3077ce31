"""Who may import whom, proved from the source (`docs/design.md`, "Layers").

Read with `ast`, nothing is run: imports at the top of a module, in functions and under `TYPE_CHECKING` all count.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import defaultdict
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "agentflow"

LAYERS: dict[str, int] = {
    # 0 base utilities: they import nothing of ours but each other
    "errors": 0,
    "_support": 0,
    # 1 vocabulary
    "vocabulary": 1,
    "reactive": 1,
    # 2 ports
    "hooks": 2,
    "tools": 2,
    # 3 loop, 4 agent
    "loop": 3,
    "agent": 4,
    # 5 adapters: they do not know each other
    "models": 5,
    "state": 5,
    "recording": 5,
    "plugins": 5,
    "durable": 5,
    "mcp": 5,
    "testing": 5,
    # 6 entry points
    "terminal": 6,
    "serve": 6,
    "__main__": 6,
    "": 6,  # agentflow/__init__.py
}
"""Each module at the top of the package, and each folder, with its layer."""

ADAPTERS = {part for part, layer in LAYERS.items() if layer == 5}

SUPPORT = {
    "state.engine": "how a database is opened, for stores and for durable runs",
    "state.explain": "what databases say when they cannot: one text for stores and for durable runs",
    "recording": "the recorder is a plugin",
    "recording.keeping": "a store that keeps run logs",
    "recording.replay.replay": "a test of a recorded run replays it",
    "recording.replay.comparing": "the same",
    "recording.replay.player": "the same",
    "plugins.steering": "messages to a running call: of the same process, and in a durable run of any",
    "plugins.evaluation": "checks and judges: for datasets in the testing kit, and for calls in production",
    "models.litellm_library": "the one place that loads LiteLLM; plugins count tokens with it",
}
"""Modules of adapters that other adapters may use."""

HEAVY = {
    "a2a",
    "acp",
    "ag_ui",
    "litellm",
    "mcp",
    "mcp_types",
    "httpx2",
    "anyio",
    "starlette",
    "uvicorn",
    "dbos",
    "sqlalchemy",
    "rich",
    "prompt_toolkit",
    "click",
    "aiohttp",
    "yarl",
    "msgspec",
    "tenacity",
    "griffe",
    "httpx",
    "jsonschema",
    "referencing",
    "psycopg",
    "pyrate_limiter",
    "sqlite_vec",
    "regex",
    "stdnum",
    "cryptography",
    "tree_sitter",
    "opentelemetry",
}
"""Third parties that cost time to load; only adapters and entry points know them."""

HEAVY_BELOW = {
    ("vocabulary.ports.retry", "tenacity"): "the engine of every retry; imported with the first failure",
    (
        "_support.tracing",
        "opentelemetry",
    ): "servers and durable runs carry trace contexts; only if it is loaded already",
    ("tools.schema", "griffe"): "docstrings are parsed when a schema is first read; imported in that function",
}
"""Licensed exceptions: (module, third party) → reason. Such an import is in a function."""

CHECKER_CYCLES: dict[frozenset[str], str] = {
    frozenset(
        {
            "reactive.combining",
            "reactive.driven",
            "reactive.flux",
            "reactive.mono",
            "reactive.piping",
            "reactive.reducing",
        }
    ): ("a Mono gives a Flux and a Flux gives a Mono: their methods name each other's type"),
}
"""Cycles that only the type checker sees (`TYPE_CHECKING`), inside one folder: modules → reason."""


MANY_ATTRIBUTES = {
    "_TrialRow",  # a trial in a file of evaluation results; its fields are those of the file
    "ReplyPlan",  # public: one field for each way in which a scripted reply can be sent wrong, set with `replace`
    "RunResult",  # one run of a backtest
}
"""Records with more than 16 fields, whose form is that of their data."""


UPWARD = {
    ("agent.agent", "terminal.conversation"),  # `Agent.chat`
    ("plugins.debugger.breakpoint", "terminal.debugger"),  # the debugger of a `Breakpoint` without one
}
"""The modules that load a module of a higher layer on first use, and that module."""

LAZILY: set[tuple[str, str]] = set()
"""The same, as found once the imports are read."""


class Import(NamedTuple):
    """One import statement of a module."""

    module: str  # ours, without "agentflow."; "" is the package root
    target: str  # a module of ours in the same form, or a third party's name
    ours: bool
    line: int
    in_function: bool
    for_checker: bool

    def __str__(self) -> str:
        where = self.module or "__init__"
        return f"{where}:{self.line} imports {self.target or 'the package root'}"


def module_name(path: Path) -> str:
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in sorted(PACKAGE.rglob("*.py"))}


CLASSES: list[tuple[str, str, int]] = []
"""The module, name and number of attributes of each class, once the imports are read."""


def attributes(node: ast.ClassDef) -> set[str]:
    """The attributes that the methods of a class assign, and the fields of a dataclass; those of its bases do not count."""
    found: set[str] = set()
    for part in node.body:
        for inner in ast.walk(part) if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef) else ():
            match inner:
                case ast.Attribute(ast.Name("self"), name, ast.Store()):
                    found.add(name)
                case _:
                    pass
    if any("dataclass" in ast.unparse(decorator) for decorator in node.decorator_list):
        fields = [part for part in node.body if isinstance(part, ast.AnnAssign)]
        found |= {ast.unparse(field.target) for field in fields if "ClassVar" not in ast.unparse(field.annotation)}
    return found


class Reader(ast.NodeVisitor):
    """Collects the imports and classes of one module."""

    def __init__(self, module: str, is_package: bool) -> None:
        self.module = module
        self.base = module if is_package else module.rpartition(".")[0]
        self.found: list[Import] = []
        self.functions = 0
        self.checker = False

    def add(self, target: str, line: int, ours: bool) -> None:
        self.found.append(Import(self.module, target, ours, line, self.functions > 0, self.checker))

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> None:
        self.functions += 1
        self.generic_visit(node)
        self.functions -= 1

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        CLASSES.append((self.module, node.name, len(attributes(node))))
        self.generic_visit(node)

    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815 - ast's names
    visit_Lambda = visit_FunctionDef  # noqa: N815

    def visit_If(self, node: ast.If) -> None:
        if isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            self.checker = True
            for child in node.body:
                self.visit(child)
            self.checker = False
            for child in node.orelse:
                self.visit(child)
        else:
            self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        """`later("agentflow.x")` imports a module on first use: it counts as an import at run time, at the top of the file."""
        match node:
            case ast.Call(ast.Name("later"), [ast.Constant(str(name))]):
                self.add(name.removeprefix("agentflow."), node.lineno, ours=True)
            case ast.Call(ast.Name("lazily"), [ast.Constant(str(name)), ast.Dict(keys)]) if name.startswith(
                "agentflow."
            ):
                for key in keys:
                    assert isinstance(key, ast.Constant)
                    LAZILY.add((self.module, f"{name.removeprefix('agentflow.')}{key.value}"))
            case _:
                self.generic_visit(node)

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            head, _, rest = alias.name.partition(".")
            if head == "agentflow":
                self.add(rest, node.lineno, ours=True)
            else:
                self.add(head, node.lineno, ours=False)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        if node.level:
            parts = self.base.split(".") if self.base else []
            base = ".".join(parts[: len(parts) - node.level + 1])
            source = ".".join(part for part in (base, node.module or "") if part)
        else:
            head, _, source = (node.module or "").partition(".")
            if head != "agentflow":
                self.add(head, node.lineno, ours=False)
                return
        for alias in node.names:
            inner = f"{source}.{alias.name}" if source else alias.name
            self.add(inner if inner in MODULES else source, node.lineno, ours=True)


@cache
def imports() -> list[Import]:
    """All imports of the package, read when a test first asks: each process of the suite collects this file."""
    found: list[Import] = []
    for module, path in MODULES.items():
        reader = Reader(module, path.name == "__init__.py")
        reader.visit(ast.parse(path.read_text("utf-8"), str(path)))
        found.extend(reader.found)
    return found


def ours() -> list[Import]:
    return [found for found in imports() if found.ours]


def part(module: str) -> str:
    return module.partition(".")[0]


def shown(found: list[Import]) -> list[str]:
    return sorted({str(one) for one in found})


def test_every_module_has_a_layer() -> None:
    """A new module or folder at the top of the package is put on a layer before it is used."""
    assert sorted({part(module) for module in MODULES} - LAYERS.keys()) == []


def test_the_package_has_at_most_16_folders() -> None:
    """A new folder goes into an existing one that it belongs to."""
    assert len({path.parent for path in PACKAGE.glob("*/__init__.py")}) <= 16


def test_a_reader_holds_each_module_in_the_head() -> None:
    """At most 500 lines in the loop, the agent and the hooks, 600 anywhere else."""
    long = {
        str(path.relative_to(PACKAGE)): lines
        for path in PACKAGE.rglob("*.py")
        if (lines := len(path.read_text().splitlines()))
        > (500 if path.relative_to(PACKAGE).parts[0] in ("loop", "agent", "hooks") else 600)
    }
    assert long == {}


def test_an_object_has_one_job() -> None:
    """At most 16 attributes; a class that needs more has a part that can be a class."""
    imports()
    assert {name for _, name, count in CLASSES if count > 16} == MANY_ATTRIBUTES


@pytest.mark.ci
def test_a_class_name_means_one_thing() -> None:
    """No two classes of the package have the same name."""
    named: dict[str, list[str]] = defaultdict(list)
    imports()
    for module, name, _ in CLASSES:
        named[name].append(module)
    assert {name: modules for name, modules in named.items() if len(modules) > 1} == {}


def test_imports_go_downward() -> None:
    """No module imports from a higher layer, even for the type checker; two load one on first use, by `lazily`."""
    upward = [one for one in ours() if LAYERS[part(one.target)] > LAYERS[part(one.module)]]
    assert shown(upward) == []
    assert LAZILY == UPWARD


def test_adapters_do_not_know_each_other() -> None:
    """Models, stores, plugins, engines and the testing kit import what lies below them; each other only where it is listed."""
    sideways = [
        one
        for one in ours()
        if part(one.module) in ADAPTERS and part(one.target) in ADAPTERS and part(one.target) != part(one.module)
    ]
    assert shown([one for one in sideways if one.target not in SUPPORT]) == []
    assert {one.target for one in sideways} == SUPPORT.keys()


def test_nobody_inside_imports_the_package_root() -> None:
    """`agentflow/__init__.py` is an entry point for users."""
    assert shown([one for one in ours() if one.target == "" and one.module != ""]) == []


@pytest.mark.ci
def test_our_own_modules_are_imported_at_the_top() -> None:
    """No import of the package inside a function: that is how cycles hide."""
    assert shown([one for one in ours() if one.in_function]) == []


def test_heavy_third_parties_are_known_to_adapters_and_entry_points_only() -> None:
    """Below the adapters no module imports packages that are slow to load; the exceptions are listed, and in functions."""
    known = [
        one
        for one in imports()
        if not one.ours and one.target in HEAVY and not one.for_checker and LAYERS[part(one.module)] < 5
    ]
    assert shown([one for one in known if (one.module, one.target) not in HEAVY_BELOW or not one.in_function]) == []
    assert {(one.module, one.target) for one in known} == HEAVY_BELOW.keys()


def cycles(edges: list[Import]) -> list[frozenset[str]]:
    """The strongly connected sets of more than one module (Tarjan)."""
    graph: dict[str, set[str]] = defaultdict(set)
    for one in edges:
        if one.target != one.module:
            graph[one.module].add(one.target)
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[frozenset[str]] = []

    def connect(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for after in graph[node]:
            if after not in index:
                connect(after)
                low[node] = min(low[node], low[after])
            elif after in stack:
                low[node] = min(low[node], index[after])
        if low[node] == index[node]:
            group: set[str] = set()
            while True:
                group.add(last := stack.pop())
                if last == node:
                    break
            if len(group) > 1:
                found.append(frozenset(group))

    for module in MODULES:
        if module not in index:
            connect(module)
    return found


def test_the_largest_import_cycle_is_0() -> None:
    """At run time no module reaches itself through imports, those in functions counted."""
    assert cycles([one for one in ours() if not one.for_checker]) == []


def test_cycles_of_the_type_checker_are_known() -> None:
    """Two halves of one idea may name each other's types, inside one folder, if the reason is given."""
    found = cycles(ours())
    assert {group for group in found if len({part(module) for module in group}) > 1} == set()
    assert set(found) == CHECKER_CYCLES.keys()


def test_folders_do_not_form_cycles() -> None:
    """Folders and top-level modules, taken whole, import in one direction only, `TYPE_CHECKING` counted."""
    between: dict[str, set[str]] = defaultdict(set)
    for one in ours():
        if part(one.target) != part(one.module):
            between[part(one.module)].add(part(one.target))
    pairs = {(a, b) for a, targets in between.items() for b in targets if a < b and a in between.get(b, ())}
    assert pairs == set()


def loaded_by(code: str) -> set[str]:
    script = f"import sys\n{code}\nprint(' '.join(sorted({{name.partition('.')[0] for name in sys.modules}})))"
    command = [sys.executable, "-W", "error", "-c", script]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    return set(done.stdout.split())


@pytest.mark.parametrize("module", ["agentflow", "agentflow.testing"])
def test_importing_the_package_is_light(module: str) -> None:
    """`import agentflow` loads none of the heavy third parties; an adapter brings its own when it is used."""
    assert loaded_by(f"import {module}") & (HEAVY - {"aiohttp"} if module.endswith("testing") else HEAVY) == set()
