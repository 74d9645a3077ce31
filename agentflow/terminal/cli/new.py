"""`agentflow new NAME`: create a small project with an agent, its tools, a hook and a test, from `project/`.

Rules:

1. Nothing is overwritten, not even an empty folder.
2. The project runs offline, and passes its own test and the strict type checker.
3. If writing fails, everything written so far is removed.
"""

from __future__ import annotations

import keyword
import re
import shutil
import sys
from contextlib import ExitStack
from importlib import resources
from pathlib import Path

import click

from agentflow.terminal.cli.failures import FAILED, CommandError, say

_FILES = {
    "pyproject.toml": "pyproject",
    "README.md": "readme",
    ".gitignore": "gitignore",
    "{{package}}/__init__.py": "",
    "{{package}}/agent.py": "agent",
    "{{package}}/__main__.py": "main",
    "tests/test_agent.py": "test",
}
# `\Z`, because `$` also matches before a line break at the end.
_NAME = re.compile(r"[a-z][a-z0-9]*(?:[-_][a-z0-9]+)*\Z")
_MAX_LENGTH = 50
_TAKEN = frozenset({"agentflow", "agentflow_hooks", "test", "tests", "build", "dist"})


@click.command()
@click.argument("name")
def new(name: str) -> int:
    """Create a project with an agent, two tools, a guard and a test. NAME is the new folder, such as my-shop."""
    folder = write_project(name, Path.cwd())
    package = package_of(name)
    say(f"Created {folder.name}/: an agent with two tools, a guard and a test.")
    say("")
    say(f"  cd {folder.name}")
    for command, what in (
        (f"python -m {package}", "offline, with a scripted model"),
        ("pip install -e '.[dev]'", "dependencies of its test"),
        ("python -m pytest", "also offline"),
        (f"python -m {package} --model openai/gpt-5", "with a provider's key in the environment"),
    ):
        say(f"  {command:<44}# {what}")
    return 0


def package_of(name: str) -> str:
    """Return the package name of a project.

    Raises:
        CommandError: The name is invalid; the message suggests another one.

    Example:
        >>> package_of("my-shop")
        'my_shop'
    """
    package = name.replace("-", "_")
    if not _NAME.match(name) or len(name) > _MAX_LENGTH:
        close = re.sub(r"[^a-z0-9]+", "-", name.strip().lower()).strip("-0123456789")[:_MAX_LENGTH].strip("-")
        meant = f", such as {close}" if _NAME.match(close) else ", such as my-shop"
        raise CommandError(
            f"Invalid project name {name!r}. Use lower-case letters, digits, - and _, starting "
            f"with a letter, at most {_MAX_LENGTH} characters{meant}."
        )
    if keyword.iskeyword(package) or keyword.issoftkeyword(package):
        raise CommandError(f"Invalid project name {name!r}: it is a Python keyword. Use {name}-agent, for example.")
    if package in sys.stdlib_module_names or package in _TAKEN:
        raise CommandError(
            f"Invalid project name {name!r}: `import {package}` would import another module. Use {name}-agent, for example."
        )
    return package


def write_project(name: str, parent: Path) -> Path:
    """Write a project.

    Args:
        name: The project's name.
        parent: The parent folder.

    Returns:
        The project's folder.

    Raises:
        CommandError: The name is invalid or exists already, or writing a file fails.
    """
    package = package_of(name)
    folder = parent / name
    try:
        folder.mkdir()
    except FileExistsError:
        raise CommandError(f"{name} already exists here. Choose another name or another folder.") from None
    except OSError as error:
        raise CommandError(f"The folder {name} cannot be created: {error.strerror}.", FAILED) from error
    texts = resources.files("agentflow.terminal.cli") / "project"
    with ExitStack() as undo:
        undo.callback(shutil.rmtree, folder, ignore_errors=True)
        try:
            for path, text in _FILES.items():
                file = folder / _filled(path, name, package)
                file.parent.mkdir(exist_ok=True)
                body = (texts / f"{text}.txt").read_text("utf-8") if text else f'"""{name}."""\n'
                file.write_text(_filled(body, name, package), "utf-8", newline="\n")
        except OSError as error:
            raise CommandError(f"{name} cannot be written: {error.strerror}. Nothing was created.", FAILED) from error
        undo.pop_all()
    return folder


def _filled(text: str, name: str, package: str) -> str:
    return text.replace("{{name}}", name).replace("{{package}}", package)
