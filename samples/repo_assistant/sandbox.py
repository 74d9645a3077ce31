"""The folder that the assistant works in, and the only one that its tools can reach.

It keeps tools from paths that lead elsewhere, by `..`, by an absolute path or by a link. A command that a person allows may
still do what the user may do: the boundary against that is a container.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from agentflow.errors import ToolError

LONGEST = 60_000
"""Characters of a file that a model is shown."""


class Sandbox:
    """A repository.

    Args:
        root: Its folder; it has to exist.
    """

    def __init__(self, root: Path) -> None:
        self.root = root.resolve(strict=True)

    def place(self, name: str, *, to_write: bool = False) -> Path:
        """Where a file is.

        Raises:
            ToolError: It is outside, or inside `.git`; the model reads the text.
        """
        if "\0" in name:
            raise ToolError("A path has no NUL in it.")
        path = (self.root / name).resolve()  # follows links, those in the middle too
        if path.is_symlink() or not path.is_relative_to(self.root):  # a link still: it leads to itself
            raise ToolError(f"{name!r} leads out of the repository. Paths are relative to its root.")
        if to_write and ".git" in path.relative_to(self.root).parts:
            raise ToolError(f"{name!r} belongs to git, which keeps it by itself.")
        return path

    def files(self) -> Iterator[Path]:
        """All files, as paths relative to the root; what begins with a dot is left out, and so are links."""
        for folder, folders, names in os.walk(self.root):
            folders[:] = sorted(name for name in folders if name[0] != "." and name != "__pycache__")
            for name in sorted(names):
                file = Path(folder, name)
                if name[0] != "." and not file.is_symlink():
                    yield file.relative_to(self.root)

    def read(self, name: str) -> str:
        """A file's text; a long one is cut, and says so.

        Raises:
            ToolError: It is not there, or is no text.
            OSError: It cannot be read.
        """
        try:
            text = self.place(name).read_text("utf-8")
        except UnicodeDecodeError:
            raise ToolError(f"{name!r} is no text file.") from None
        except (FileNotFoundError, IsADirectoryError):
            raise ToolError(f"There is no file {name!r}.") from None
        return text if len(text) <= LONGEST else f"{text[:LONGEST]}\n[... {len(text) - LONGEST} more characters]"

    def write(self, name: str, text: str) -> None:
        """Write a file, whole or not at all.

        Raises:
            ToolError: It must not be written.
            OSError: It cannot be written.
        """
        path = self.place(name, to_write=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, beside = tempfile.mkstemp(dir=path.parent, prefix=".writing-")
        try:
            with open(handle, "w", encoding="utf-8", newline="") as file:
                file.write(text)
            if path.exists():
                os.chmod(beside, path.stat().st_mode)
            os.replace(beside, path)
        except BaseException:
            os.unlink(beside)
            raise
