"""`agentflow completion`: shell completion of commands, options, and the agents of the current folder.

Rules:

1. Click generates the script; this command prints, installs or removes it.
2. Installing adds at most one marked line to the user's configuration file; uninstalling removes only that line.
3. Agents are found by reading the folder's files, never by importing them.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, TypeAlias

import click
from click.shell_completion import CompletionItem, get_completion_class

from agentflow.terminal.cli.failures import FAILED, CommandError, say

Shell: TypeAlias = Literal["bash", "zsh", "fish"]
_SHELLS: tuple[Shell, ...] = ("bash", "zsh", "fish")
_MARK = "# agentflow: completion"
_MAX_FILES = 500  # the user waits for the completion


def agents_like(context: click.Context, parameter: click.Parameter, begun: str) -> list[CompletionItem]:
    """Return the agents of the current folder, as `module:agent`, that start with `begun`."""
    return [CompletionItem(name) for name in sorted(set(_agents(Path()))) if name.startswith(begun)]


def _agents(folder: Path) -> Iterator[str]:
    """Yield `module:name` for each agent that is assigned to a name in the folder or its direct subfolders."""
    files = [*folder.glob("*.py"), *folder.glob("*/*.py")]
    for file in files[:_MAX_FILES]:
        parts = file.relative_to(folder).with_suffix("").parts
        if not all(part.isidentifier() for part in parts):
            continue
        module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        try:
            body = ast.parse(file.read_bytes()).body
        except (OSError, SyntaxError, ValueError):
            continue
        for node in body:
            if isinstance(node, ast.Assign | ast.AnnAssign) and _makes_an_agent(node.value):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                yield from (f"{module}:{target.id}" for target in targets if isinstance(target, ast.Name))


def _makes_an_agent(value: ast.expr | None) -> bool:
    """Whether an expression has the form `Agent(...)`, `make_agent(...)` or `Agent.builder()....build()`."""
    if not isinstance(value, ast.Call):
        return False
    called = value.func
    name = called.id if isinstance(called, ast.Name) else called.attr if isinstance(called, ast.Attribute) else ""
    return name in ("Agent", "build") or name.lower().endswith("_agent")


@click.command()
@click.argument("shell", type=click.Choice(_SHELLS), required=False)
@click.option("--install", "how", flag_value="install", help="Install the script for new shells.")
@click.option("--uninstall", "how", flag_value="uninstall", help="Remove the installed script.")
def completion(shell: Shell | None, how: str | None) -> int:
    """Print the completion script for bash, zsh or fish, or install it for new shells.

    Without SHELL, your login shell is used ($SHELL).
    """
    chosen = shell or _own_shell()
    match how:
        case "install":
            _install(chosen)
        case "uninstall":
            _uninstall(chosen)
        case _:
            click.echo(_script(chosen))
    return 0


def _own_shell() -> Shell:
    name = Path(os.environ.get("SHELL", "")).name
    if name not in _SHELLS:
        raise CommandError(
            f"The shell {name!r} in $SHELL is not supported. Run: agentflow completion bash, zsh or fish."
        )
    return name


def _script(shell: Shell) -> str:
    completion = get_completion_class(shell)
    assert completion is not None  # click supports all three shells
    root = click.get_current_context().find_root().command
    return completion(root, {}, "agentflow", "_AGENTFLOW_COMPLETE").source()


def _places(shell: Shell) -> tuple[Path, Path | None]:
    """Return the script's path and the user's file that loads it; fish needs no such file."""
    home = Path.home()
    if shell == "fish":
        return _folder("XDG_CONFIG_HOME", home / ".config") / "fish" / "completions" / "agentflow.fish", None
    script = _folder("XDG_DATA_HOME", home / ".local" / "share") / "agentflow" / f"completion.{shell}"
    zsh = Path(os.environ.get("ZDOTDIR") or home) / ".zshrc"
    return script, home / ".bashrc" if shell == "bash" else zsh


def _folder(variable: str, usual: Path) -> Path:
    value = os.environ.get(variable, "")
    return Path(value) if Path(value).is_absolute() else usual  # the XDG specification ignores relative paths


def _install(shell: Shell) -> None:
    script, read_by = _places(shell)
    try:
        script.parent.mkdir(parents=True, exist_ok=True)
        script.write_text(_script(shell) + "\n", "utf-8")
        if read_by is not None:
            before = _lines(read_by)
            end = "" if not before or before[-1].endswith("\n") else "\n"
            line = f". {_quoted(script)}  {_MARK}\n"
            if line not in before:
                others = [row for row in before if _MARK not in row]
                _put(read_by, "".join([*others, end, line]))
    except OSError as error:
        raise CommandError(f"{error.filename} cannot be written: {error.strerror}.", FAILED) from error
    say(
        f"Installed the completion for {shell} in {script}{f', loaded by {read_by}' if read_by else ''}. Open a new shell."
    )


def _uninstall(shell: Shell) -> None:
    script, read_by = _places(shell)
    try:
        existed = script.exists()
        script.unlink(missing_ok=True)
        before = [] if read_by is None else _lines(read_by)
        if read_by is not None and any(_MARK in row for row in before):
            existed = True
            _put(read_by, "".join(row for row in before if _MARK not in row))
    except OSError as error:
        raise CommandError(f"{error.filename} cannot be written: {error.strerror}.", FAILED) from error
    say(f"Removed the completion for {shell}." if existed else f"No completion for {shell} is installed.")


def _lines(file: Path) -> list[str]:
    """Return the lines of a user's file, which may contain bytes that are not valid text."""
    if not file.exists():
        return []
    with file.open(encoding="utf-8", errors="surrogateescape", newline="") as read:  # keeps \r\n, as `_put` does
        return read.read().splitlines(keepends=True)


def _put(file: Path, text: str) -> None:
    """Write a file in place, so that links and permissions are kept."""
    with file.open("w", encoding="utf-8", errors="surrogateescape", newline="") as written:
        written.write(text)


def _quoted(path: Path) -> str:
    return "'" + str(path).replace("'", "'\\''") + "'"
