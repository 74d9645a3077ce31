"""The mutation run: which mutants it samples, and that it notices tests that do not notice anything."""

from __future__ import annotations

import argparse
import asyncio
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("cosmic_ray", reason="needs the extra `mutants`")

from benchmarks.mutants.__main__ import (
    DEFAULTS,
    ROOT,
    Copy,
    Mutant,
    _all,
    chosen_tests,
    merged,
    mutants_of,
    sample,
    suites_of,
)

SOURCE = '''
from typing import Literal, Protocol, dataclass_transform, overload

__all__ = ["double"]


def double(number: Literal[1, 2] | None, more: int = 1) -> int | None:
    """Twice 1 or 2."""
    if number is not None:
        return number * 2
    return None


class Doubles(Protocol):
    def double(self, number: int = 1) -> int:
        """Twice a number."""
        ...


@dataclass_transform(frozen_default=True)
def value(cls, *, made=0):
    return cls


class Reply(Struct, gc=False):
    pass


@overload
def twice(number: None = None) -> None: ...
def twice(number: int | None = None) -> int | None:
    return [inner(1) for inner in [lambda one: one * 2]][0]


class Options(TypedDict, total=False):
    number: int
'''


def test_what_no_test_should_notice_is_left_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Annotations, `__all__`, overloads and methods of a Protocol have no mutants; what is executed has some."""
    monkeypatch.setattr("benchmarks.mutants.__main__.ROOT", tmp_path)
    (tmp_path / "double.py").write_text(SOURCE)
    found = list(mutants_of(tmp_path / "double.py"))
    assert {(mutant.line, mutant.function, mutant.on_import) for mutant in found} == {
        (7, "double.py:double", True),
        (9, "double.py:double", False),
        (10, "double.py:double", False),
        (21, "double.py:value", True),
        (32, "double.py:twice", False),
    }


def test_a_sample_depends_on_its_seed() -> None:
    """The same seed makes the same mutants, in any folder; another seed makes others."""
    places = [
        ROOT / "agentflow" / "vocabulary" / "transcript.py",
        ROOT / "agentflow" / "vocabulary" / "saving" / "plain.py",
    ]
    one, same, other = (sample(places, 20, random.Random(seed)) for seed in (1, 1, 2))
    assert one == same != other
    assert len({(mutant.path, mutant.line) for mutant in one}) == 20


@pytest.mark.parametrize(
    ("path", "tests"),
    [
        ("agentflow/loop/output/form.py", ("tests/output",)),
        ("agentflow/recording/reading.py", ("tests/recording",)),
        (
            "agentflow/loop/tool_call.py",
            ("tests/loop", "tests/hooks", "tests/agent", "tests/state/test_agents.py", "tests/recovery"),
        ),
    ],
)
def test_the_tests_of_a_file(path: str, tests: tuple[str, ...]) -> None:
    """They are in the folder of the same name, or where the table says."""
    assert suites_of(path) == tests


@pytest.mark.skipif(sys.version_info < (3, 12), reason="sys.monitoring came with Python 3.12")
def test_a_run_ends_with_a_table() -> None:
    """Mutants that tests notice are killed; those of functions that no test enters are shown as such, and fail the run."""

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [
            sys.executable,
            "-m",
            "benchmarks.mutants",
            "agentflow/vocabulary/transcript.py",
            "--count",
            "2",
            *arguments,
        ]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)

    ran = run("--seed", "3", "--tests", "tests/test_keywords.py")
    assert ran.returncode == 1, ran.stdout + ran.stderr
    assert "seed 3: 2 mutants" in ran.stdout
    assert "| all | 2 |" in ran.stdout
    assert ran.stdout.endswith("; did not compile: 0; tests marked `ci` were not run\n")
    refused = run("--tests", "tests/words/test_no_such_file.py")
    assert refused.returncode == 1
    assert "There are no tests in 'tests/words/test_no_such_file.py'." in refused.stderr


def test_only_changed_tests_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is known of a test file is replaced by what its newest version enters; what belongs to a deleted file is dropped."""
    monkeypatch.setattr("benchmarks.mutants.__main__.ROOT", tmp_path)
    for name in ("test_a.py", "test_b.py"):
        (tmp_path / name).write_text("")
    known = {
        "reach": {"m.py:f": ["test_a.py::old", "test_b.py::b", "test_gone.py::c"]},
        "between": ["m.py:g"],
        "elsewhere": ["test_a.py::old", "test_b.py::b"],
        "seconds": {"test_a.py::old": 1.0, "test_b.py::b": 2.0, "test_gone.py::c": 3.0},
        "files": {"test_a.py": "1", "test_b.py": "2"},
    }
    more = {
        "reach": {"m.py:f": ["test_a.py::new"]},
        "between": ["m.py:h"],
        "elsewhere": [],
        "seconds": {"test_a.py::new": 4.0},
    }
    assert merged(known, more, {"test_a.py": "3"}) == {
        "reach": {"m.py:f": ["test_b.py::b", "test_a.py::new"]},
        "between": ["m.py:g", "m.py:h"],
        "elsewhere": ["test_b.py::b"],
        "seconds": {"test_b.py::b": 2.0, "test_a.py::new": 4.0},
        "files": {"test_a.py": "3", "test_b.py": "2"},
    }


def test_a_default_is_tried_with_the_tests_that_name_its_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is executed on import may be checked by a test that enters none of the file's functions."""
    monkeypatch.setattr("benchmarks.mutants.__main__.ROOT", tmp_path)
    for name, text in {
        "test_a.py": "from package.module import value",
        "test_b.py": "from package import module",
        "test_c.py": "from package import module_two",
        "test_d.py": "",
    }.items():
        (tmp_path / name).write_text(text)
    names = [f"test_{name}.py::test" for name in "abcd"]
    found: dict[str, Any] = {
        "reach": {"package/module.py:f": ["test_d.py::test"]},
        "between": [],
        "elsewhere": [],
        "seconds": dict.fromkeys(names, 1.0),
        "files": dict.fromkeys([name.split("::")[0] for name in names], ""),
    }
    found["seconds"][f"{DEFAULTS}::test"] = 30.0
    chosen = [
        chosen_tests(Mutant("package/module.py", 1, function, "core/NumberReplacer", 0, on_import), found, 20)
        for function, on_import in [("", True), ("package/module.py:f", True), ("package/module.py:f", False)]
    ]
    assert chosen == [(*names[:2], names[3], f"{DEFAULTS}::test"), (names[3], f"{DEFAULTS}::test"), (names[3],)]


def test_a_function_is_tried_with_the_tests_that_start_programs() -> None:
    """They may run it where they are not watched; those of other folders do not belong to it."""
    found: dict[str, Any] = {
        "reach": {"agentflow/terminal/cli/new.py:f": ["tests/cli/test_a.py::in_process"]},
        "between": [],
        "elsewhere": ["tests/cli/test_a.py::starts", "tests/mcp/test_b.py::starts"],
        "seconds": {"tests/cli/test_a.py::in_process": 2.0, "tests/cli/test_a.py::starts": 1.0},
        "files": {},
    }
    tried = [
        chosen_tests(
            Mutant("agentflow/terminal/cli/new.py", 1, f"agentflow/terminal/cli/new.py:{name}", "", 0), found, 20
        )
        for name in "fg"
    ]
    assert tried == [
        ("tests/cli/test_a.py::in_process", "tests/cli/test_a.py::starts"),
        ("tests/cli/test_a.py::starts",),
    ]


def test_mutants_that_do_not_compile_are_counted(tmp_path: Path) -> None:
    """They are no result, and the number of them is known."""
    mutant = Mutant("agentflow/vocabulary/transcript.py", 1, "", "core/NumberReplacer", 1_000_000)
    found: dict[str, Any] = {"reach": {}, "between": [], "elsewhere": [], "seconds": {}, "files": {}}
    asked = argparse.Namespace(seconds=20, limit=None)
    assert asyncio.run(_all([mutant], [Copy(tmp_path)], found, asked)) == ([], 1)
