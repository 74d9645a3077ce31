"""The documentation is true: each ```python block of README.md and docs/ runs, and so does each example of a docstring.

Each block runs on its own, in a fresh namespace and an empty folder, with warnings as errors. A block with `await` at its top
level runs in an event loop, any other without one, so that it can show `.block()`. Blocks with another tag than `python` are
not run.

An example of a docstring (`>>>`) can use the names of its module, the public names and the props below. If it shows output, the
output must match; otherwise it only has to run. Examples that cannot run are listed with the reason.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import doctest
import importlib
import inspect
import io
import linecache
import os
import pkgutil
import re
import shutil
import subprocess
import sys
import warnings
from importlib.util import find_spec
from pathlib import Path
from types import CodeType, ModuleType
from typing import TYPE_CHECKING, Any

import pytest
import reactivex

import agentflow
import agentflow.errors
import agentflow.hooks
import agentflow.testing
import agentflow.vocabulary.events
from agentflow import Agent, Flux, Hook, HookEvent, HookResult, Mono, tool
from agentflow.testing import ScriptedModel

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]
FENCE = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)#]*)(?:#([^)]*))?\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
LIMIT = 20.0
AWAITS = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT

NOT_RUN: dict[str, str] = {
    "agentflow.reactive.bridge.LoopScheduler": "it needs a running loop, and has no await that would start one",
}
"""Examples of docstrings that are not run: qualified name → reason."""


def blocks() -> Iterator[Any]:
    """Each block, named by its page and line."""
    for page in PAGES:
        text = page.read_text("utf-8")
        for found in FENCE.finditer(text):
            line = text.count("\n", 0, found.start(1)) + 1
            yield pytest.param(page, line, found[1], id=f"{page.relative_to(ROOT)}:{line}")


def run(code: CodeType, names: dict[str, Any], runner: asyncio.Runner) -> None:
    """Run code; in an event loop if it has `await` at its top level."""
    if not code.co_flags & inspect.CO_COROUTINE:
        exec(code, names)
        return

    async def limited() -> None:
        async with asyncio.timeout(LIMIT):
            await eval(code, names)

    runner.run(limited())


@pytest.mark.parametrize(("page", "line", "source"), list(blocks()))
def test_a_block_of_the_docs_runs(
    page: Path, line: int, source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An example can be copied into a file in an empty folder and works, offline and without a warning."""
    monkeypatch.chdir(tmp_path)
    name = f"<{page.name}:{line}>"
    module = ModuleType(f"docs_{page.stem.replace('-', '_')}_{line}")
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    sys.modules[module.__name__] = module  # annotations are looked up there
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()), asyncio.Runner() as runner:
            warnings.simplefilter("error")
            warnings.filterwarnings("ignore", category=DeprecationWarning, module="litellm")
            run(
                compile("\n" * (line - 1) + source, str(page), "exec", AWAITS, dont_inherit=True),
                module.__dict__,
                runner,
            )
    finally:
        del sys.modules[module.__name__]
        linecache.cache.pop(name, None)


def test_a_block_with_await_works_as_a_function_body() -> None:
    """A block with `await` at its top level is the body of an `async def main()`, so it has no `global`."""
    for param in blocks():
        page, line, source = param.values
        tree = compile(source, str(page), "exec", AWAITS | ast.PyCF_ONLY_AST, dont_inherit=True)
        names = [node.names for node in ast.walk(tree) if isinstance(node, ast.Global)]
        assert not names or not compile(source, str(page), "exec", AWAITS).co_flags & inspect.CO_COROUTINE, (
            f"{page}:{line}"
        )


def slug(heading: str) -> str:
    """The anchor of a heading."""
    return re.sub(r"[^\w\- ]", "", heading.replace("`", "")).strip().lower().replace(" ", "-")


@pytest.mark.parametrize("page", [pytest.param(page, id=str(page.relative_to(ROOT))) for page in PAGES])
def test_links_of_a_page_lead_somewhere(page: Path) -> None:
    """Each relative link of a page names a file that exists, and a heading in it."""
    text = re.sub(r"^```.*?^```$", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    dead: list[str] = []
    for target, anchor in LINK.findall(re.sub(r"`[^`\n]*`", "", text)):
        if target.startswith(("http:", "https:", "mailto:")):
            continue
        there = (page.parent / target).resolve() if target else page
        if not there.exists():
            dead.append(target)
        elif anchor and anchor not in {slug(heading) for heading in HEADING.findall(there.read_text("utf-8"))}:
            dead.append(f"{target}#{anchor}")
    assert dead == []


def test_every_page_is_reachable_from_the_index() -> None:
    """`docs/index.md` links to every page."""
    index = (ROOT / "docs" / "index.md").read_text("utf-8")
    linked = {target for target, _ in LINK.findall(index)}
    pages = {page.relative_to(ROOT / "docs").as_posix() for page in PAGES[1:]}
    assert pages - {"index.md"} - linked == set()


@pytest.mark.parametrize("page", [pytest.param(page, id=str(page.relative_to(ROOT))) for page in PAGES])
def test_the_first_screen_answers(page: Path) -> None:
    """A page begins with a few lines about its subject, followed by an example, a table or a heading."""
    text = page.read_text("utf-8")
    first = text.split("\n```", 1)[0].split("\n|", 1)[0].split("\n## ", 1)[0].split("\n1. ", 1)[0].split("\n![", 1)[0]
    assert len(first.splitlines()) <= 14
    assert text.count("\n") <= 460, "a page of this length is two pages"


def words(text: str) -> int:
    """Return the number of words, without the marks of tables and lists."""
    return sum(any(map(str.isalnum, word)) for word in text.split())


@pytest.mark.parametrize("page", [pytest.param(page, id=str(page.relative_to(ROOT))) for page in PAGES])
def test_a_page_has_about_a_thousand_words(page: Path) -> None:
    """A page has one job. Its code does not count."""
    assert words(re.sub(r"^```.*?^```$", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)) <= 1100


def test_the_documentation_is_short() -> None:
    """All pages, README and changelog, code included, have at most 60,000 words, without the generated table of features."""
    counted = [page for page in (*PAGES, ROOT / "CHANGELOG.md") if page.name != "features.md"]
    assert sum(words(page.read_text("utf-8")) for page in counted) <= 60_000


README = ROOT / "README.md"


@pytest.mark.parametrize(
    "source", FENCE.findall(README.read_text("utf-8")), ids=lambda source: source.strip().splitlines()[-1][:40]
)
def test_an_example_of_the_readme_runs_as_a_file(source: str, tmp_path: Path) -> None:
    """Copied into a file in an empty folder, it runs unchanged."""
    (tmp_path / "hello.py").write_text(source, "utf-8")
    ran = subprocess.run(
        [sys.executable, "-W", "error", "hello.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ran.returncode, ran.stderr) == (0, "")


# ---- docstrings


def modules() -> Iterator[ModuleType]:
    """Every module of the package that can be imported without being run."""
    yield agentflow
    for info in pkgutil.walk_packages(agentflow.__path__, "agentflow."):
        if not info.name.endswith("__main__"):
            yield importlib.import_module(info.name)


def documented(module: ModuleType) -> Iterator[tuple[str, str]]:
    """The docstrings of a module, its functions, classes and their public methods, by qualified name."""
    yield module.__name__, module.__doc__ or ""
    for name, value in vars(module).items():
        if getattr(value, "__module__", None) != module.__name__ or name[0] == "_":
            continue
        if not (inspect.isclass(value) or inspect.isfunction(value)):
            continue
        yield f"{module.__name__}.{name}", value.__doc__ or ""
        for member, inside in vars(value).items() if inspect.isclass(value) else ():
            about = getattr(inside, "__doc__", None)
            if member[0] != "_" and isinstance(about, str):
                yield f"{module.__name__}.{name}.{member}", about


def examples() -> Iterator[Any]:
    """Each docstring with an example, once."""
    for module in modules():
        seen: set[str] = set()
        for name, about in documented(module):
            if ">>> " in about and about not in seen:
                seen.add(about)
                yield pytest.param(module, name, about, id=name.removeprefix("agentflow."))


def props() -> dict[str, Any]:
    """Objects that examples may use without building them."""

    @tool(type="read")
    async def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    @tool(type="read")
    async def search(query: str) -> str:
        """Search the web."""
        return f"found: {query}"

    class Guard(Hook):
        """Lets everything pass."""

        def on_event(self, event: HookEvent) -> HookResult:
            return event

    async def fetch_name() -> str:
        return "Ada"

    async def read_lines() -> AsyncIterator[str]:
        yield "one line"

    return {
        "add": add,
        "search": search,
        "Guard": Guard,
        "agent": Agent("assistant", ScriptedModel(lambda request: request.messages[-1].text), tools=[add]),
        "fetch_name": fetch_name,
        "read_lines": read_lines,
        "check": Mono(fetch_name),
        "source": Flux.of(1, 2),
        "flux": Flux.of(1, 2),
        "reactivex": reactivex,
        "asyncio": asyncio,
        "Path": Path,
    }


@pytest.mark.parametrize(("module", "name", "about"), [row for row in examples() if row.values[1] not in NOT_RUN])
def test_an_example_of_a_docstring_runs(
    module: ModuleType, name: str, about: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An example works, and prints the shown output."""
    if "Bubblewrap(" in about and shutil.which("bwrap") is None:
        pytest.skip("needs bubblewrap")
    if "Monty(" in about and find_spec("pydantic_monty") is None:
        pytest.skip("needs the extra monty")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes.txt").write_text("a note")
    places = (agentflow.errors, agentflow.vocabulary.events, agentflow.hooks, agentflow)
    public = {key: getattr(place, key) for place in places for key in place.__all__}
    kit = {key: getattr(agentflow.testing, key) for key in agentflow.testing.__all__}
    names = {**public, **kit, **props(), **vars(module), "__name__": module.__name__}
    checker = doctest.OutputChecker()
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    with warnings.catch_warnings(), asyncio.Runner() as runner:
        warnings.simplefilter("error")
        for example in doctest.DocTestParser().get_examples(about, name):
            code = compile(example.source, f"<{name}>", "single", AWAITS, dont_inherit=True)
            printed = io.StringIO()
            told = ""
            try:
                with contextlib.redirect_stdout(printed):
                    run(code, names, runner)
            except Exception as error:
                if example.exc_msg is None:
                    raise
                told = f"{type(error).__module__}.{type(error).__qualname__}: {error}\n".removeprefix("builtins.")
            said = example.want if example.exc_msg is None else example.exc_msg
            if said:
                told = told or printed.getvalue()
                assert checker.check_output(said, told, flags), f"{example.source}gives {told!r}, not {said!r}"


def test_each_exception_names_an_example() -> None:
    """The list of examples that are not run names docstrings that exist."""
    known = {param.values[1] for param in examples()}
    assert set(NOT_RUN) <= known
