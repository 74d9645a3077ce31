"""Mutation testing with cosmic-ray: `python -m benchmarks.mutants [PLACE...]`.

A random sample of the mutants of some files or folders is tried, each in a copy of the project: the tests that enter the
mutated function run, the fastest first. A mutant is killed if one of them fails or the time runs out; else it has survived.
Survivors are printed as diffs, with the tests that ran. The exit code is 1 if there are more of them than `--allow`.

Rules:

1. A sample depends on the seed alone, which is printed. Without `--seed` each run tries other mutants.
2. First all tests of the places run once, unchanged, and it is recorded which test enters which function. Those that fail are
   printed and left out. `--reach` keeps the record in a file; the next run adds only test files that are new or have changed.
3. Mutants of annotations, of code that only a type checker or `__all__` sees, and of texts are left out: no test should notice
   them. So are those of overloads and of a Protocol's methods.
4. Mutants that do not compile are drawn, but not tried: their number is printed. Tests marked `ci` run only with `--ci`.
"""

from __future__ import annotations

import argparse
import ast
import asyncio
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeAlias

from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator, operator_names

from benchmarks.mutants.reach import key_of

ROOT = Path(__file__).parents[2]

TESTS: dict[str, tuple[str, ...]] = {
    "agentflow/_support": ("tests/words", "tests/tools", "tests/agent", "tests/loop", "tests/test_logs.py"),
    "agentflow/vocabulary/ports": (
        "tests/models",
        "tests/words",
        "tests/loop",
        "tests/state",
        "tests/plugins",
        "tests/terminal/test_progress.py",
    ),
    "agentflow/tools": ("tests/tools", "tests/turns"),
    "agentflow/vocabulary/text.py": ("tests/words", "tests/loop", "tests/plugins/test_logging.py"),
    "agentflow/vocabulary/saving": ("tests/words", "tests/state", "tests/recording"),
    "agentflow/vocabulary/events": ("tests/words", "tests/hooks", "tests/loop"),
    "agentflow/loop": ("tests/loop", "tests/hooks", "tests/agent", "tests/state/test_agents.py", "tests/recovery"),
    "agentflow/loop/output": ("tests/output",),
    "agentflow/hooks": ("tests/hooks", "tests/loop"),
    "agentflow/agent": (
        "tests/agent",
        "tests/loop",
        "tests/turns",
        "tests/output",
        "tests/recovery",
        "tests/orchestration/test_graph.py",
    ),
    "agentflow/agent/orchestration": ("tests/orchestration",),
    "agentflow/durable": ("tests/durable", "tests/recovery"),
    "agentflow/terminal/cli": ("tests/cli",),
    "agentflow/terminal/cli/worker_command.py": (
        "tests/cli/test_options.py",
        "tests/durable/test_commands.py",
        "tests/durable/test_no_database.py",
    ),
    "agentflow/terminal/cli/runs.py": (
        "tests/cli/test_options.py",
        "tests/durable/test_commands.py",
        "tests/durable/test_prune.py",
    ),
    "agentflow/terminal/cli/export_command.py": ("tests/recording/test_export.py",),
    "agentflow/terminal/cli/inspect_command.py": ("tests/inspector/test_logs.py",),
    "agentflow/terminal/cli/mcp_command.py": ("tests/mcp/test_mcp_offering.py",),
    "agentflow/terminal/cli/run_logs.py": ("tests/cli", "tests/recording/test_places.py"),
    "agentflow/state": ("tests/state", "tests/recording/test_places.py"),
    "agentflow/recording/replay": (
        "tests/recording/test_cut_runs.py",
        "tests/recording/test_replay.py",
        "tests/recording/test_replay_ids.py",
        "tests/recording/test_replay_order.py",
        "tests/recording/test_replay_readers.py",
        "tests/laws/test_laws_recorded.py",
        "tests/laws/test_laws_replay.py",
    ),
    "agentflow/serve/inspector": ("tests/inspector",),
    "agentflow/testing": ("tests/testing", "tests/wire"),
    "agentflow/models": ("tests/models", "tests/wire"),
    "agentflow/models/realtime": ("tests/voice",),
    "agentflow": ("tests/words", "tests/loop", "tests/hooks", "tests/agent", "tests/tools"),
}
"""The tests of a place, where they are not in the folder of the same name. The nearest place counts."""

DEFAULTS = "tests/test_public_defaults.py"
"""It notices changed defaults of all public names: it is tried for what is executed on import, signatures included."""

BOUNDS = "tests/test_bounds.py"
"""It tries the bounds of numeric options everywhere."""

LEFT_OUT = (
    "core/RemoveDecorator",  # removing @override, @dataclass(slots=True) or @final changes nothing that is run
    "core/VariableInserter",
    "core/VariableReplacer",
    "core/ExceptionReplacer",  # its replacement is no class of this program: always noticed
    "core/ReplaceComparisonOperator_Eq_Is",  # whether equal texts and numbers are one object is CPython's affair
    "core/ReplaceComparisonOperator_NotEq_Is",
    "core/ReplaceComparisonOperator_Is_Eq",  # None, True and members of an enumeration are equal to themselves alone
    "core/ReplaceComparisonOperator_IsNot_NotEq",
)


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change.

    Attributes:
        path: The file, below the root.
        line: The line.
        function: The key of the innermost function around it; empty: it is executed on import.
        operator: cosmic-ray's name of the kind of change.
        occurrence: Which one of that kind in the file.
        on_import: Whether it is executed on import, as defaults are.
    """

    path: str
    line: int
    function: str
    operator: str
    occurrence: int
    on_import: bool = False

    @property
    def folder(self) -> str:
        """The folder under which it is counted."""
        return "/".join(self.path.split("/")[:2]) if self.path.count("/") > 1 else "agentflow/*.py"


@dataclass(frozen=True, slots=True)
class Tried:
    """The result of a mutant: `killed`, `timed out`, `survived`, or `not reached` by any test."""

    mutant: Mutant
    outcome: str
    tests: tuple[str, ...]
    seconds: float


# ---- the mutants

Place: TypeAlias = tuple[int, int]
"""Line and column."""


def _is_declaration(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether a function is never entered: an overload, or a method of a Protocol, with a body that ends in `...`."""
    match node.body[-1]:
        case ast.Expr(value=ast.Constant(value=value)):
            return value is ...
        case _:
            return False


def _skipped(tree: ast.Module) -> list[tuple[Place, Place]]:
    """Ranges in which no test should notice a change: from and to."""
    found: list[tuple[Place, Place]] = []

    def leave_out(node: Any) -> None:
        found.append(((node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset)))

    for node in ast.walk(tree):
        match node:
            case ast.If(test=ast.Name(id="TYPE_CHECKING")):
                leave_out(node)
            case ast.Assign(targets=[ast.Name(id="__all__" | "__slots__")]):
                leave_out(node)
            case ast.Assign(targets=[ast.Name()], value=ast.Call(func=ast.Name(id="TypeVar" | "ParamSpec"))):
                leave_out(node)
            case ast.keyword(arg="strict" | "slots" | "gc"):
                leave_out(node)  # an assertion of zip, or a matter of memory
            case ast.ClassDef(keywords=[ast.keyword(arg="total") as total]):
                leave_out(total)  # of a TypedDict
            case ast.Call(func=ast.Name(id="dataclass_transform")):
                leave_out(node)
            case ast.AnnAssign():
                leave_out(node.annotation)
            case ast.arg(annotation=ast.expr() as annotation):
                leave_out(annotation)
            case ast.FunctionDef() | ast.AsyncFunctionDef() if _is_declaration(node):
                leave_out(node)
            case ast.FunctionDef() | ast.AsyncFunctionDef() if node.returns is not None:
                leave_out(node.returns)
            case _:
                pass
    return found


def _functions(node: ast.AST, prefix: str = "") -> Iterator[tuple[int, int, int, str]]:
    """Yield the first line, that of the body, the last, and the qualified name, of each function; the inner ones last."""
    for child in ast.iter_child_nodes(node):
        match child:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                yield child.lineno, child.body[0].lineno, child.end_lineno or child.lineno, f"{prefix}{child.name}"
                yield from _functions(child, f"{prefix}{child.name}.<locals>.")
            case ast.ClassDef():
                yield from _functions(child, f"{prefix}{child.name}.")
            case _:
                yield from _functions(child, prefix)


def mutants_of(path: Path) -> Iterator[Mutant]:
    """All mutants of a file that a test might notice."""
    source = path.read_text()
    tree = ast.parse(source)
    skipped = _skipped(tree)
    functions = list(_functions(tree))
    nodes = list(ast_nodes(get_ast(source)))
    name = str(path.relative_to(ROOT))
    for operator_name in operator_names():
        if operator_name.startswith(LEFT_OUT) or get_operator(operator_name).arguments():
            continue
        operator = get_operator(operator_name)()
        places = (start for node in nodes for start, _ in operator.mutation_positions(node))
        for occurrence, place in enumerate(places):
            line = place[0]
            if not any(start <= place < end for start, end in skipped):
                around = [(body, function) for start, body, end, function in functions if start <= line <= end]
                function = key_of(name, around[-1][1]) if around else ""
                yield Mutant(name, line, function, operator_name, occurrence, not around or line < around[-1][0])


def sample(places: Sequence[Path], count: int, chance: random.Random) -> list[Mutant]:
    """Choose mutants, as many lines of each file as its share: first a line, then one of its mutants."""
    lines: defaultdict[tuple[str, int], list[Mutant]] = defaultdict(list)
    for place in places:
        for file in sorted(place.rglob("*.py")) if place.is_dir() else [place]:
            for mutant in mutants_of(file):
                lines[mutant.path, mutant.line].append(mutant)
    chosen = chance.sample(sorted(lines), min(count, len(lines)))
    return [chance.choice(lines[line]) for line in chosen]


# ---- the tests


def suites_of(path: str) -> tuple[str, ...]:
    """The test files and folders that belong to a file of the package."""
    place = Path(path)
    for parent in (place, *place.parents):
        tests = TESTS.get(parent.as_posix())
        if tests is not None:
            return tests
        same = Path("tests", *parent.parts[1:])
        if len(parent.parts) > 1 and (ROOT / same).is_dir():
            return (same.as_posix(),)
    return TESTS["agentflow"]


def expanded(tests: Iterable[str]) -> list[str]:
    """The arguments for pytest.

    Raises:
        SystemExit: A pattern matches no file: pytest would run all tests.
    """
    found: set[str] = set()
    for test in tests:
        matches = {str(match.relative_to(ROOT)) for match in ROOT.glob(test)}
        if not matches:
            sys.exit(f"There are no tests in {test!r}.")
        found |= matches
    return sorted(found)


def _environment(copy: Path, **more: str) -> dict[str, str]:
    return {
        **os.environ,
        "PYTHONPATH": str(copy),
        "PYTHONDONTWRITEBYTECODE": "",  # compiled once in a copy, not by each process; see `Copy.try_out`
        **more,
    }


def digests_of(tests: Iterable[str], mark: str = "") -> dict[str, str]:
    """The digests of the test files in some files and folders, and of the tests that are chosen in them."""
    files = [
        file
        for test in tests
        for file in ((ROOT / test).rglob("test_*.py") if (ROOT / test).is_dir() else [ROOT / test])
    ]
    return {str(file.relative_to(ROOT)): sha256(file.read_bytes()).hexdigest() + mark for file in files}


def merged(found: dict[str, Any], more: dict[str, Any], files: dict[str, str]) -> dict[str, Any]:
    """The reach of all tests: `more` is that of new or changed files."""
    stays = {
        name for name in found["seconds"] if name.split("::")[0] not in files and (ROOT / name.split("::")[0]).exists()
    }
    reach = defaultdict[str, list[str]](list)
    for key, names in found["reach"].items():
        reach[key] = [name for name in names if name in stays]
    for key, names in more["reach"].items():
        reach[key] += names
    return {
        "reach": reach,
        "between": sorted({*found["between"], *more["between"]}),
        "elsewhere": [*[name for name in found["elsewhere"] if name in stays], *more["elsewhere"]],
        "seconds": {name: found["seconds"][name] for name in stays} | more["seconds"],
        "files": found["files"] | files,
    }


class Copy:
    """A copy of the project in which one mutant at a time is tried."""

    def __init__(self, folder: Path, mark: str = "") -> None:
        self.folder, self.mark = folder, mark
        self._tried = 0
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT,
            capture_output=True,
            check=True,
        )
        for name in listed.stdout.decode().split("\0"):
            if name and (ROOT / name).is_file():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(ROOT / name, folder / name)

    def _pytest(self, *arguments: str) -> list[str]:
        options = ["-x", "-q", "-p", "no:cacheprovider", "--no-header", *(["-m", self.mark] if self.mark else [])]
        return [sys.executable, "-m", "pytest", *options, *arguments]

    def reach(self, tests: Sequence[str]) -> dict[str, Any]:
        """Run tests unchanged; return which enter which function, and their seconds."""
        file = self.folder / "reach.json"
        options = ("-p", "benchmarks.mutants.reach", "--continue-on-collection-errors")
        command = [part for part in self._pytest(*options, *tests) if part != "-x"]
        ran = subprocess.run(
            command,
            check=False,
            cwd=self.folder,
            env=_environment(self.folder, AGENTFLOW_REACH=str(file)),
            capture_output=True,
            text=True,
        )
        found = json.loads(file.read_text()) if file.exists() else {"seconds": {}, "failed": []}
        if found["failed"]:
            print(f"left out, as they fail unchanged: {', '.join(found['failed'])}", flush=True)
        if not found["seconds"] or ran.returncode not in (0, 1):
            sys.exit(f"No tests can run without any mutant:\n{ran.stdout[-4000:]}{ran.stderr[-2000:]}")
        return found

    def mutated(self, mutant: Mutant) -> str | None:
        """The file with the change; None: there is no such change, or it does not compile."""
        code = mutate_code((ROOT / mutant.path).read_text(), get_operator(mutant.operator)(), mutant.occurrence)
        try:
            compile(code or "", mutant.path, "exec")
        except (SyntaxError, ValueError):
            return None
        return code

    async def try_out(self, mutant: Mutant, tests: tuple[str, ...], limit: float) -> Tried | None:
        """Run tests on a mutant."""
        began, code = time.monotonic(), self.mutated(mutant)
        if code is None:
            return None
        if not tests:
            return Tried(mutant, "not reached", (), 0)
        file = self.folder / mutant.path
        file.write_text(code)
        self._tried += 1
        os.utime(file, (self._tried, self._tried))  # bytecode is kept by time and size: no two mutants may share both
        try:
            process = await asyncio.create_subprocess_exec(
                *self._pytest(*tests),
                cwd=self.folder,
                env=_environment(self.folder),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            try:
                code_of_exit = await asyncio.wait_for(process.wait(), limit)
                outcome = "survived" if code_of_exit == 0 else "killed"
            except TimeoutError:
                outcome = "timed out"
            finally:
                if process.returncode is None:
                    os.killpg(process.pid, 9)
                    await process.wait()
        finally:
            shutil.copyfile(ROOT / mutant.path, file)
        return Tried(mutant, outcome, tests, time.monotonic() - began)


@cache
def _naming(path: str, files: frozenset[str]) -> frozenset[str]:
    """The test files that name a module: they may check its values without entering one of its functions."""
    parent, _, name = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".").rpartition(".")
    named = re.compile(rf"\b{re.escape(parent)}(\.{name}\b|\s+import\s[^\n]*\b{name}\b)")
    return frozenset(file for file in files if (ROOT / file).is_file() and named.search((ROOT / file).read_text()))


def chosen_tests(mutant: Mutant, found: dict[str, Any], budget: float) -> tuple[str, ...]:
    """The tests that enter the mutated function, the fastest first, as many as the seconds allow.

    If it is entered while no test runs, or the mutant is executed on import: those that enter the file, and those in files
    that name its module. After them, with as many seconds, those of its suites that run code in another process; and those of
    defaults, if it is executed on import.
    """
    seconds: dict[str, float] = found["seconds"]
    names = found["reach"].get(mutant.function, [])
    if not names and (not mutant.function or mutant.function in found["between"]):
        inside = {name for key, names in found["reach"].items() if key.startswith(f"{mutant.path}:") for name in names}
        inside |= {name for name in seconds if name.split("::")[0] in _naming(mutant.path, frozenset(found["files"]))}
        names = inside or seconds
    suites = suites_of(mutant.path)
    elsewhere = {name for name in found["elsewhere"] if name.startswith(suites)}
    return (
        *_affordable(set(names) - elsewhere, seconds, budget),
        *_affordable(elsewhere, seconds, budget),
        *(name for name in seconds if mutant.on_import and name.startswith(DEFAULTS) and name not in names),
    )


def _affordable(names: Iterable[str], seconds: dict[str, float], budget: float) -> list[str]:
    """The fastest of some tests."""
    chosen, spent = list[str](), 0.0
    for name in sorted(names, key=lambda name: (seconds[name], name)):
        if (spent := spent + seconds[name]) > budget and chosen:
            break
        chosen.append(name)
    return chosen[:400]


# ---- the command


def diff_of(copy: Copy, mutant: Mutant) -> str:
    """The change, as lines with - and +."""
    before = (ROOT / mutant.path).read_text().splitlines()
    after = (copy.mutated(mutant) or "").splitlines()
    pairs = [(n, a, b) for n, (a, b) in enumerate(zip(before, after, strict=False), 1) if a != b]
    return "\n".join(f"  {mutant.path}:{n}\n  - {a.strip()}\n  + {b.strip()}" for n, a, b in pairs[:3])


async def _all(
    mutants: Sequence[Mutant], copies: Sequence[Copy], found: dict[str, Any], asked: Any
) -> tuple[list[Tried], int]:
    """Try them; return the results, and the number of those that do not compile."""
    tried: list[Tried] = []
    broken = 0
    waiting = iter(mutants)

    async def lane(copy: Copy) -> None:
        nonlocal broken
        for mutant in waiting:
            tests = chosen_tests(mutant, found, asked.seconds)
            spent = sum(found["seconds"][name] for name in tests)
            one = await copy.try_out(mutant, tests, asked.limit or 30 + 5 * spent)
            if one is None:
                broken += 1
                continue
            tried.append(one)
            counts = Counter(each.outcome for each in tried)
            print(
                f"{len(tried):4} of {len(mutants)}  {dict(counts)}  {mutant.path}:{mutant.line} {one.outcome}",
                flush=True,
            )
            if one.outcome in ("survived", "not reached"):
                names = ", ".join(dict.fromkeys(re.sub(r"\[.*", "", name) for name in one.tests[:8]))
                print(f"{diff_of(copy, mutant)}\n  {mutant.operator}; {len(one.tests)} tests ran: {names}")

    await asyncio.gather(*[lane(copy) for copy in copies])
    return tried, broken


def report(tried: Sequence[Tried]) -> str:
    """A table by folder."""
    folders: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for one in tried:
        folders[one.mutant.folder][one.outcome] += 1
        folders["all"][one.outcome] += 1
    rows = ["| Folder | Sampled | Killed | Timed out | Survived | Not reached |", "|---|---|---|---|---|---|"]
    for name, counts in sorted(folders.items(), key=lambda item: (item[0] == "all", item[0])):
        cells = [counts.total(), *(counts[outcome] for outcome in ("killed", "timed out", "survived", "not reached"))]
        rows.append(f"| {name} | {' | '.join(map(str, cells))} |")
    return "\n".join(rows)


def main() -> int:
    """Parse the command line, run, print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.mutants", description=__doc__.split("\n")[0])  # type: ignore[union-attr]
    parser.add_argument(
        "places", nargs="*", metavar="PLACE", default=["agentflow"], help="files or folders of the package"
    )
    parser.add_argument("--count", type=int, default=20, help="how many mutants (20)")
    parser.add_argument("--seed", type=int, help="try the same mutants once more")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="how many at once (one a core)")
    parser.add_argument(
        "--seconds", type=float, default=20, help="how long the tests of a mutant take at most, unchanged (20)"
    )
    parser.add_argument(
        "--limit",
        type=float,
        help="seconds for a mutant (30 and five times as long as unchanged)",
    )
    parser.add_argument("--reach", type=Path, metavar="FILE", help="keep there which test enters which function")
    parser.add_argument("--tests", nargs="+", metavar="PATH", help="these tests, and not those of the places")
    parser.add_argument("--ci", action="store_true", help="run the tests marked `ci` too")
    parser.add_argument("--allow", type=int, default=0, help="how many survivors are no failure (0)")
    asked = parser.parse_args()
    if sys.version_info < (3, 12):
        parser.error("Python 3.12 or newer is needed: sys.monitoring tells which tests enter a function")
    places = [(ROOT / place).resolve() for place in asked.places]
    for place in places:
        if not place.exists() or ROOT / "agentflow" not in (place, *place.parents):
            parser.error(f"{place} is no file or folder of the package")
    seed = random.SystemRandom().randrange(1_000_000) if asked.seed is None else asked.seed
    mutants = sample(places, asked.count, random.Random(seed))
    print(f"seed {seed}: {len(mutants)} mutants", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        mark = "not counters" if asked.ci else ""
        copies = [Copy(Path(folder, str(number)), mark) for number in range(max(1, asked.jobs))]
        found: dict[str, Any] = {"reach": {}, "between": [], "elsewhere": [], "seconds": {}, "files": {}}
        if asked.reach and asked.reach.exists():
            found |= json.loads(asked.reach.read_text())
        tests = expanded(
            asked.tests or [test for mutant in mutants for test in (*suites_of(mutant.path), DEFAULTS, BOUNDS)]
        )
        digests = digests_of(tests, mark)
        files = {name: digest for name, digest in digests.items() if found["files"].get(name) != digest}
        if files:
            print(f"running {len(files)} test files unchanged", flush=True)
            found = merged(found, copies[0].reach(sorted(files)), files)
            if asked.reach:
                asked.reach.write_text(json.dumps(found))
        tried, broken = asyncio.run(_all(mutants, copies, found, asked))
    print(report(tried))
    left = sum(one.outcome in ("survived", "not reached") for one in tried)
    ci = "" if asked.ci else "; tests marked `ci` were not run"
    print(f"seed {seed}; survived or not reached: {left}; did not compile: {broken}{ci}")
    return int(left > asked.allow)


if __name__ == "__main__":
    sys.exit(main())
