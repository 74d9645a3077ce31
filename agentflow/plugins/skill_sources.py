"""`PackageSkills` and `GitSkills`: skills of an installed package, and of a git repository at a fixed commit.

Rules:

1. Nothing of a source is executed. A package is found without importing it. A repository is fetched into a bare
   repository, and its files are written from the objects. There is no checkout, so no hooks, filters, attributes,
   submodules or LFS files are used.
2. A commit is requested by its hash, and the hash is checked. Git verifies the hash of each object that it receives.
3. Git gets no configuration of the user or the system, asks for no password, follows no redirect and uses only the allowed
   protocols.
4. Time, downloaded bytes, files and their names are limited. A cached folder is complete: it gets its name by one rename.
"""

from __future__ import annotations

import importlib.util
import os
import posixpath
import re
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Final
from urllib.parse import quote, urlsplit

from agentflow._support.shown import one_line
from agentflow.errors import UsageError

_PROTOCOLS: Final = ("https", "http", "ssh", "file")
_MAX_FILES: Final = 5_000
_POLL: Final = 0.02
_LINK, _FILE, _SCRIPT = "120000", "100644", "100755"  # modes in a tree of git; others, such as submodules, are skipped
_SETTINGS: Final[Mapping[str, str]] = {
    "core.hooksPath": os.devnull,
    "credential.helper": "",
    "fetch.fsckObjects": "true",
    "http.followRedirects": "false",
    "submodule.recurse": "false",
}
_ENVIRONMENT: Final[Mapping[str, str]] = {
    "GIT_ASKPASS": "",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_SSH_COMMAND": "ssh -oBatchMode=yes",
    "GIT_TERMINAL_PROMPT": "0",
    "LC_ALL": "C",
}


@dataclass(frozen=True, slots=True)
class PackageSkills:
    """Skills in a folder of an installed package, which is not imported.

    Args:
        package: The package, such as `"acme"` or `"acme.agents"`.
        path: The folder in the package.

    Example:
        >>> PackageSkills("agentflow", "terminal/cli").folder().name
        'cli'
    """

    package: str
    path: str = "skills"

    def folder(self) -> Path:
        """Return the folder.

        Raises:
            UsageError: There is no such package or folder.
        """
        top, *rest = self.package.split(".")
        if not all(part.isidentifier() for part in (top, *rest)):
            raise UsageError(f"{self}: {self.package!r:.100} is not the name of a package.")
        try:
            spec = importlib.util.find_spec(top)
        except ValueError:
            spec = None
        places = [] if spec is None else list(spec.submodule_search_locations or ())
        if not places:
            raise UsageError(f"{self}: there is no package {top!r}. Install it.")
        inner = _inner(self.path, self)
        found = next((folder for root in places if (folder := Path(root, *rest, inner)).is_dir()), None)
        if found is None:
            raise UsageError(f"{self}: the package has no folder {inner!r}. An archive has none: unpack it.")
        return found


@dataclass(frozen=True, slots=True)
class GitSkills:
    """Skills of a git repository at one commit, which are fetched once into a cache by the program `git`.

    Args:
        url: The address of the repository.
        commit: The full hash of the commit, 40 hexadecimal digits.
        path: The folder in the repository; by default the whole repository.
        cache: The folder of the cache; by default `~/.cache/agentflow/skills`.
        protocols: The allowed protocols, from `"https"`, `"http"`, `"ssh"` and `"file"`.
        max_bytes: The size limit of the fetched repository, and of its files.
        timeout: The time limit of the whole fetch, in seconds.

    Example:
        >>> GitSkills("https://example.com/skills", "main").folder()
        Traceback (most recent call last):
        agentflow.errors.UsageError: ...commit='main' must be a full hash of 40 lower-case hexadecimal digits...
    """

    url: str
    commit: str
    path: str = ""
    _: KW_ONLY
    cache: str | Path | None = None
    protocols: Sequence[str] = ("https",)
    max_bytes: int = 20_000_000
    timeout: float = 60

    def folder(self) -> Path:
        """Return the folder with the files of the commit; fetch it if the cache does not have it.

        Raises:
            UsageError: The commit cannot be fetched, or its files are not allowed.
        """
        where = urlsplit(self.url)
        if not set(self.protocols) <= set(_PROTOCOLS):
            raise UsageError(f"{self}: protocols={self.protocols!r} must be among {', '.join(_PROTOCOLS)}.")
        if where.scheme not in self.protocols:
            raise UsageError(
                f"{self}: protocol {where.scheme!r} is not allowed. Change the address, or set protocols=."
            )
        if where.password is not None or one_line(self.url) != self.url:
            raise UsageError(f"{self}: the address must not contain a password or control characters.")
        if not re.fullmatch(r"[0-9a-f]{40}", self.commit):
            raise UsageError(
                f"{self}: commit={self.commit!r:.100} must be a full hash of 40 lower-case hexadecimal digits. Branches and "
                f"tags can change; `git ls-remote` prints their commits."
            )
        inner = _inner(self.path, self)
        name = posixpath.basename(inner or where.path.rstrip("/").removesuffix(".git")) or "skills"
        cache = Path(self.cache) if self.cache is not None else _default_cache()
        # "%" means the whole repository; no quoted path is equal to it.
        final = cache / self.commit / (quote(inner, safe="") or "%") / name
        if not final.is_dir():
            final.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            # Within the cache, since a rename works only within one file system.
            with tempfile.TemporaryDirectory(dir=cache, prefix=".new-") as temporary:
                _Fetch(self, Path(temporary), inner).write(Path(temporary, "files"))
                try:
                    Path(temporary, "files").rename(final)
                except OSError as error:
                    if not final.is_dir():  # otherwise another process has created the folder first
                        raise UsageError(f"{self}: the cache {cache} cannot be written: {error.strerror}.") from error
        return final

    def __str__(self) -> str:
        """Return the address without a password, and the commit."""
        address = re.sub(r"//[^/@]*@", "//***@", one_line(self.url))
        return f"GitSkills({address!r:.200}, {self.commit[:40]!r})"


class _Fetch:
    """A fetch into a temporary folder, within the limits of its source."""

    def __init__(self, source: GitSkills, room: Path, inner: str) -> None:
        self._source, self._room, self._inner = source, room, inner
        self._until = time.monotonic() + source.timeout
        # GIT_SSL_CAINFO and its like name the certificates to trust, which the user's network may need.
        env = {name: value for name, value in os.environ.items() if not name.startswith("GIT_") or "_SSL_" in name}
        self._environment = {**env, **_ENVIRONMENT, "GIT_ALLOW_PROTOCOL": ":".join(source.protocols)}

    def write(self, target: Path) -> None:
        """Fetch the commit, check it, and write its files.

        Raises:
            UsageError: The commit cannot be fetched, or its files are not allowed.
        """
        source = self._source
        self._git("init", "--quiet", "--bare", "--template=", ".")  # a template could have hooks
        self._git("fetch", "--quiet", "--depth=1", "--no-tags", "--no-auto-gc", "--", source.url, source.commit)
        if self._git("rev-parse", "--verify", f"{source.commit}^{{commit}}").decode().strip() != source.commit:
            raise UsageError(f"{source}: this is not the hash of a commit. A tag has another hash.")
        listed = self._git("ls-tree", "-r", "-l", "-z", f"{source.commit}:{self._inner}")
        entries: list[tuple[str, str, str, int]] = []
        for line in listed.split(b"\0")[:-1]:
            about, _, name = line.partition(b"\t")
            mode, _, identity, size = about.decode().split()
            if mode in (_LINK, _FILE, _SCRIPT):
                entries.append((self._name(name), mode, identity, int(size)))
        if len(entries) > _MAX_FILES or sum(size for *_, size in entries) > source.max_bytes:
            raise UsageError(
                f"{source}: more than {_MAX_FILES} files or {source.max_bytes} bytes. Set path= or max_bytes=."
            )
        data = self._git("cat-file", "--batch", text="".join(f"{identity}\n" for _, _, identity, _ in entries))
        target.mkdir()
        for name, mode, identity, size in entries:
            begin = len(f"{identity} blob {size}\n")  # `cat-file --batch`: this header, the content, a line break
            content, data = data[begin : begin + size], data[begin + size + 1 :]
            if mode == _LINK:
                self._check_link(name, content)
                continue
            file = target / name
            try:
                file.parent.mkdir(parents=True, exist_ok=True)
                with file.open("xb") as opened:
                    opened.write(content)
                file.chmod(0o555 if mode == _SCRIPT else 0o444)
            except OSError as error:  # for example if two names are equal for this file system
                raise UsageError(f"{source}: {name!r:.200} cannot be written: {error.strerror}.") from error

    def _name(self, name: bytes) -> str:
        try:
            text = name.decode("utf-8")
            parts = text.split("/")
            if one_line(text) == text and not any(
                p in ("", ".", "..") or p.lower() == ".git" or set(p) & set("\\:") for p in parts
            ):
                return text
        except UnicodeDecodeError:
            pass
        raise UsageError(f"{self._source}: the file name {name!r:.200} is not allowed.")

    def _check_link(self, name: str, target: bytes) -> None:
        """Refuse a symbolic link that leads out of the folder; others are skipped."""
        to = posixpath.normpath(posixpath.join(posixpath.dirname(name), target.decode("utf-8", "replace")))
        if posixpath.isabs(to) or to.split("/")[0] == "..":
            raise UsageError(f"{self._source}: the symbolic link {name!r:.200} leads out of its folder.")

    def _git(self, *arguments: str, text: str = "") -> bytes:
        """Run git in the temporary folder, and return its output."""
        repository, out, err, into = (self._room / name for name in ("repository", "out", "err", "in"))
        repository.mkdir(exist_ok=True)
        into.write_text(text, "ascii")
        settings = [part for pair in _SETTINGS.items() for part in ("-c", "=".join(pair))]
        # Files instead of pipes: their size can be limited while git runs, and none of them can fill up and block it.
        with out.open("wb") as stdout, err.open("wb") as stderr, into.open("rb") as stdin:
            try:
                running = subprocess.Popen(
                    ["git", *settings, *arguments],
                    cwd=repository, env=self._environment, stdin=stdin, stdout=stdout, stderr=stderr, start_new_session=True,
                )  # fmt: skip
            except OSError as error:
                raise UsageError(f"{self._source}: git cannot be started: {error.strerror}. Install git.") from error
            try:
                while running.poll() is None:
                    if time.monotonic() > self._until:
                        raise UsageError(
                            f"{self._source}: git {arguments[0]} took more than timeout={self._source.timeout} s."
                        )
                    if self._size() > 2 * self._source.max_bytes:  # the folder contains the repository and the output
                        raise UsageError(f"{self._source}: it is larger than max_bytes={self._source.max_bytes}.")
                    time.sleep(_POLL)
            finally:
                _kill(running)
        if running.returncode:
            reason = one_line(err.read_text("utf-8", "replace").strip())[-300:] or f"exit code {running.returncode}"
            raise UsageError(
                f"{self._source}: git {arguments[0]} failed: {reason}. Check the address, the commit and the path."
            )
        return out.read_bytes()

    def _size(self) -> int:
        total = 0
        for folder, _, names in os.walk(self._room):
            for name in names:
                with suppress(OSError):  # git removes its temporary files
                    total += os.lstat(os.path.join(folder, name)).st_size
        return total


def _kill(running: subprocess.Popen[bytes]) -> None:
    """Kill a process and its children, unless it has ended."""
    if running.poll() is None:
        with suppress(OSError):
            # The group, since git starts helpers such as ssh.
            os.killpg(running.pid, signal.SIGKILL) if hasattr(os, "killpg") else running.kill()
        running.wait()


def _inner(path: str, source: object) -> str:
    """Return a path within a source, without a `/` at the end.

    Raises:
        UsageError: The path is absolute, or has parts such as `..`.
    """
    inner = path.rstrip("/")
    if one_line(path) != path or (path and any(part in ("", ".", "..") for part in inner.split("/"))):
        raise UsageError(f"{source}: path={path!r:.200} must be a folder in it, such as 'skills'.")
    return inner


def _default_cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "agentflow" / "skills"
