"""`samples/deploy` without a container engine: its files fit together, and its commands work with a real PostgreSQL."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tomllib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml
from postgres import Postgres
from web_client import LIMIT, ROOT

pytestmark = pytest.mark.ci

if sys.platform == "win32":
    pytest.skip("needs signals", allow_module_level=True)

DEPLOY = ROOT / "samples" / "deploy"
COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text("utf-8"))
DOCKERFILE = [
    line.split(" ", 1) for line in (DEPLOY / "Dockerfile").read_text("utf-8").splitlines() if line and line[0] != "#"
]
SECRETS = {"POSTGRES_PASSWORD": "secret", "SHOP_TOKEN": "a-long-random-token"}


def filled(value: str) -> str:
    """Replace `${NAME:?}` and `${NAME:-}` as compose does."""
    return re.sub(r"\$\{(\w+):([?-])\}", lambda found: SECRETS[found[1]] if found[2] == "?" else "", value)


def test_the_files_fit_together() -> None:
    """The image installs extras that exist, copies files that exist, and runs as another user than root."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    [installed] = [re.findall(r"\[(.*?)\]", text) for kind, text in DOCKERFILE if kind == "RUN" and "pip" in text]
    [copied] = [text.split()[:-1] for kind, text in DOCKERFILE if kind == "COPY"]
    assert set(installed[0].split(",")) <= set(extras)
    assert all((DEPLOY / name).is_file() for name in copied)
    assert [text for kind, text in DOCKERFILE if kind == "USER"] == ["app"]
    assert all("healthcheck" in COMPOSE["services"][name] for name in ("web", "db"))
    ports = [port for service in COMPOSE["services"].values() for port in service.get("ports", [])]
    assert ports == ["127.0.0.1:8000-8001:8000"]  # neither the database nor plain HTTP is open to other machines
    text = (DEPLOY / "compose.yaml").read_text("utf-8")
    assert re.findall(r"(?:PASSWORD|TOKEN|KEY): (?!\$\{)", text) == []
    assert all(int(COMPOSE["services"][name]["stop_grace_period"][:-1]) >= 40 for name in ("web", "worker"))


@asynccontextmanager
async def started(folder: Path, database: str, service: str, ready: bytes) -> AsyncIterator[bytes]:
    """Run a service's command, with its environment, until the block ends; SIGTERM ends it."""
    config = COMPOSE["services"][service]
    [own] = [json.loads(text) for kind, text in DOCKERFILE if kind == "CMD"]
    command = ["0" if part == "8000" else part for part in config.get("command", own)]
    assert command[0] == "agentflow"
    given = {name: filled(value) for name, value in config["environment"].items()}
    given = {name: database if "@db:" in value else value for name, value in given.items()}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", *command),
        cwd=folder,
        env={**os.environ, **given, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(LIMIT):
            while ready not in (line := await process.stdout.readline()):
                assert line, f"{service} did not start"
        yield line
    finally:
        process.send_signal(signal.SIGTERM)
        log = (await asyncio.wait_for(process.stdout.read(), LIMIT)).decode()
        code = await asyncio.wait_for(process.wait(), LIMIT)
        assert (code, "Traceback" in log) == (0, False), log


async def test_the_commands_work(postgres: Postgres, tmp_path: Path) -> None:
    """A web process serves the page, and takes calls with a token; a worker runs them, and the README's job."""
    shutil.copy(DEPLOY / "shop.py", tmp_path)
    readme = (DEPLOY / "README.md").read_text("utf-8")
    [(job, reply)] = re.findall(r"exec web (python .*?)  +#.*\n(.*?) …", readme)
    with postgres.database() as database:
        async with (
            started(tmp_path, database, "worker", b" runs clerk"),
            started(tmp_path, database, "web", b"serving clerk") as line,
            aiohttp.ClientSession() as http,
        ):
            port = re.findall(rb":(\d+)\s*$", line)[0].decode()
            url = f"http://127.0.0.1:{port}"
            token = {"Authorization": f"Bearer {SECRETS['SHOP_TOKEN']}"}
            async with (
                http.get(f"{url}/") as page,
                http.get(f"{url}/ready") as ready,
                http.get(f"{url}/agents") as closed,
            ):
                assert (page.status, ready.status, closed.status) == (200, 200, 401)
            body = {"input": "Count the pears"}
            async with http.post(f"{url}/agents/clerk/call", json=body, headers=token) as response:
                assert (await response.json())["end"]["text"].startswith("There are 12 pears")
            submitted = await asyncio.create_subprocess_exec(
                *(sys.executable, *shlex.split(job)[1:]),
                cwd=tmp_path,
                env={**os.environ, "AGENTFLOW_DATABASE": database, "PYTHONPATH": str(ROOT)},
                stdout=subprocess.PIPE,
            )
            printed, _ = await asyncio.wait_for(submitted.communicate(), LIMIT)
        assert printed.decode().startswith(reply)
