"""`agentflow new NAME`: a small project to begin with: an agent, its tools, a hook, a test. Its texts are in `project/`.

Rules:

1. Nothing that exists is written over, an empty folder included.
2. What it writes runs offline, passes its test and the strict type checker; a test of ours does all three.
3. If it cannot be written to the end, nothing of it is left.
"""

from __future__ import annotations

import keyword
import re
import shutil
import sys
from importlib import resources
from pathlib import Path

import click

from agentflow.cli.failures import FAILED, CommandError
from agentflow.cli.say import say

__all__ = ["new", "package_of", "write_project"]

_FILES = {
    "pyproject.toml": "pyproject",
    "README.md": "readme",
    ".gitignore": "gitignore",
    "{{package}}/__init__.py": "",
    "{{package}}/agent.py": "agent",
    "{{package}}/__main__.py": "main",
    "tests/test_agent.py": "test",
}
_NAME = re.compile(r"[a-z][a-z0-9]*(?:[-_][a-z0-9]+)*\Z")
_LONGEST = 50
_TAKEN = frozenset({"agentflow", "agentflow_hooks", "test", "tests", "build", "dist"})


@click.command()
@click.argument("name")
def new(name: str) -> int:
    """Begin a project: an agent, two tools, a guard, a test. NAME is the folder to be made, such as my-shop."""
    folder = write_project(name, Path.cwd())
    package = package_of(name)
    say(f"{folder.name}/ is there: an agent with two tools, a guard and a test.")
    say("")
    say(f"  cd {folder.name}")
    for command, what in (
        (f"python -m {package}", "offline: a script plays the model"),
        ("pip install -e '.[dev]'", "what its test needs"),
        ("python -m pytest", "offline, too"),
        (f"python -m {package} --model openai/gpt-5", "with a provider's key in the environment"),
    ):
        say(f"  {command:<44}# {what}")
    return 0


def package_of(name: str) -> str:
    """The package of a project of that name.

    Raises:
        CommandError: It is no name for one; the text says what would be.

    Example:
        >>> package_of("my-shop")
        'my_shop'
    """
    package = name.replace("-", "_")
    if not _NAME.match(name) or len(name) > _LONGEST:
        close = re.sub(r"[^a-z0-9]+", "-", name.strip().lower()).strip("-0123456789")[:_LONGEST].strip("-")
        meant = f", such as {close}" if _NAME.match(close) else ", such as my-shop"
        raise CommandError(
            f"A project cannot be called {name!r}: its name is that of a folder here and of a package, lower-case letters, "
            f"digits, - and _, beginning with a letter, at most {_LONGEST} of them{meant}."
        )
    if keyword.iskeyword(package) or keyword.issoftkeyword(package):
        raise CommandError(f"A project cannot be called {name!r}: that is a word of Python. {name}-agent is free.")
    if package in sys.stdlib_module_names or package in _TAKEN:
        raise CommandError(
            f"A project cannot be called {name!r}: `import {package}` means another module. {name}-agent is free."
        )
    return package


def write_project(name: str, place: Path) -> Path:
    """Write a project.

    Args:
        name: What it is called.
        place: The folder in which its folder is made.

    Returns:
        The project's folder.

    Raises:
        CommandError: The name is none, something of that name exists, or it cannot be written.
    """
    package = package_of(name)
    folder = place / name
    try:
        folder.mkdir()
    except FileExistsError:
        raise CommandError(
            f"{name} exists here already, and nothing is written over: choose another name, or another folder."
        ) from None
    except OSError as error:
        raise CommandError(f"The folder {name} cannot be made: {error.strerror}.", FAILED) from error
    texts = resources.files("agentflow.cli") / "project"
    try:
        for path, text in _FILES.items():
            file = folder / _filled(path, name, package)
            file.parent.mkdir(exist_ok=True)
            body = (texts / f"{text}.txt").read_text("utf-8") if text else f'"""{name}."""\n'
            file.write_text(_filled(body, name, package), "utf-8", newline="\n")
    except BaseException as error:
        shutil.rmtree(folder, ignore_errors=True)
        if isinstance(error, OSError):
            raise CommandError(f"{name} cannot be written: {error.strerror}; nothing of it is left.", FAILED) from error
        raise
    return folder


def _filled(text: str, name: str, package: str) -> str:
    return text.replace("{{name}}", name).replace("{{package}}", package)
