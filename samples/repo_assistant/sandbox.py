"""The assistant's working folder, the only one that its tools can reach.

It refuses paths that lead elsewhere: `..`, absolute paths and links. If a person allows a command, the command has all rights
of the user: you should run it in a container.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from agentflow.errors import ToolError

MAX_OUTPUT = 60_000
"""The number of a file's characters that the model can read."""


class Sandbox:
    """A repository.

    Args:
        root: Its folder, which must exist.
    """

    def __init__(self, root: Path) -> None:
        self.root = root.resolve(strict=True)

    def place(self, name: str, *, to_write: bool = False) -> Path:
        """Return the path of a file.

        Raises:
            ToolError: It is outside the repository, or inside `.git`. The model reads the text.
        """
        if "\0" in name:
            raise ToolError("A path cannot contain NUL.")
        path = (self.root / name).resolve()  # follows links, those in the middle too
        if path.is_symlink() or not path.is_relative_to(self.root):  # still a link if it points to itself
            raise ToolError(f"{name!r} leads out of the repository. Paths are relative to its root.")
        if to_write and ".git" in path.relative_to(self.root).parts:
            raise ToolError(f"{name!r} belongs to git and is read-only.")
        return path

    def files(self) -> Iterator[Path]:
        """Iterate over all files, as paths relative to the root, without links and names that begin with a dot."""
        for folder, folders, names in os.walk(self.root):
            folders[:] = sorted(name for name in folders if name[0] != "." and name != "__pycache__")
            for name in sorted(names):
                file = Path(folder, name)
                if name[0] != "." and not file.is_symlink():
                    yield file.relative_to(self.root)

    def read(self, name: str) -> str:
        """Return a file's text; a long one is truncated, with a note.

        Raises:
            ToolError: It does not exist, or is not text.
            OSError: It cannot be read.
        """
        try:
            text = self.place(name).read_text("utf-8")
        except UnicodeDecodeError:
            raise ToolError(f"{name!r} is not a text file.") from None
        except (FileNotFoundError, IsADirectoryError):
            raise ToolError(f"There is no file {name!r}.") from None
        return (
            text if len(text) <= MAX_OUTPUT else f"{text[:MAX_OUTPUT]}\n[... {len(text) - MAX_OUTPUT} more characters]"
        )

    def write(self, name: str, text: str) -> None:
        """Write a file atomically.

        Raises:
            ToolError: It must not be written.
            OSError: It cannot be written.
        """
        path = self.place(name, to_write=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".writing-")
        try:
            with open(handle, "w", encoding="utf-8", newline="") as file:
                file.write(text)
            if path.exists():
                os.chmod(temporary, path.stat().st_mode)
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise
