"""The application inside others: Starlette, FastAPI, Litestar and Django; and the command `agentflow serve`."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import django
import pytest
from django.conf import settings
from django.core.asgi import get_asgi_application
from fastapi import FastAPI
from litestar import Litestar, asgi
from serve_client import LIMIT, Client, connected, served
from starlette.applications import Starlette
from starlette.routing import Mount

from agentflow import Agent
from agentflow.serve import App
from agentflow.testing import ScriptedModel


def in_starlette(app: App) -> Any:
    return Starlette(routes=[Mount("/ai", app)], lifespan=app.lifespan)


def in_fastapi(app: App) -> Any:
    made = FastAPI(lifespan=app.lifespan)
    made.mount("/ai", app)
    return made


def in_litestar(app: App) -> Any:
    """Litestar removes its part of the path without saying so in `root_path`."""

    @asgi("/ai", is_mount=True, copy_scope=True)
    async def mounted(scope: Any, receive: Any, send: Any) -> None:
        await app({**scope, "path": scope["raw_path"].decode(), "root_path": "/ai"}, receive, send)

    return Litestar(route_handlers=[mounted], lifespan=[app.lifespan()])


def in_django(app: App) -> Any:
    """Django has no mounts: its ASGI file chooses by the path."""
    if not settings.configured:
        settings.configure(ROOT_URLCONF=__name__, ALLOWED_HOSTS=["*"], SECRET_KEY="x" * 50)
        django.setup()
    pages = get_asgi_application()

    async def application(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan" or scope["path"].startswith("/ai/"):
            await app({**scope, "root_path": "/ai"}, receive, send)
        else:
            await pages(scope, receive, send)

    return application


urlpatterns: list[Any] = []


@pytest.mark.parametrize("mount", [in_starlette, in_fastapi, in_litestar, in_django])
async def test_a_mounted_application(mount: Callable[[App], Any]) -> None:
    """Its routes work below a path, and the shutdown of the outer application is its own."""
    app = App(Agent("a", ScriptedModel(["Hello."])))
    async with served(mount(app)) as url, connected(url) as outside:
        client = Client(outside.http, f"{url}/ai")
        async with client.http.post(f"{url}/ai/agents/a/runs", json={"input": "Hi"}) as response:
            assert response.status == 202
            run = await response.json()
            assert response.headers["Location"] == f"/ai/runs/{run['id']}"
        assert (await client.ended(run["id"]))["text"] == "Hello."
        assert await client.ask("GET", "/ready") == (200, {"status": "ok"})
        assert (await client.good("GET", "/openapi.json"))["servers"] == [{"url": "/ai"}]
        assert (await outside.ask_status("GET", "/elsewhere")) == 404
    assert app.service.runs.closed


MODULE = """
from agentflow import Agent
from agentflow.testing import ScriptedModel
assistant = Agent("a", ScriptedModel(lambda request: "Hello."))
"""


async def test_the_command(tmp_path: Path) -> None:
    """It serves with a token from the environment, and a shutdown by SIGTERM is a success."""
    (tmp_path / "shop.py").write_text(MODULE)
    command = [sys.executable, "-m", "agentflow", "serve", "shop:assistant", "--port", "0", "--token-env", "TOKEN"]
    process = await asyncio.create_subprocess_exec(
        *[*command, "--store", f"sqlite:///{tmp_path / 'chat.db'}"],
        cwd=tmp_path,
        env={**os.environ, "TOKEN": "a-long-random-token"},
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        line = (await asyncio.wait_for(process.stdout.readline(), LIMIT)).decode()
        assert line.startswith("agentflow: serving a at http://127.0.0.1:")
        url = line.split()[-1]
        async with connected(url, Authorization="Bearer a-long-random-token") as client:
            assert (await client.ended((await client.started("Hi"))["id"]))["text"] == "Hello."
        async with connected(url) as client:
            assert (await client.ask("GET", "/agents"))[0] == 401
    finally:
        process.send_signal(signal.SIGTERM)
    assert await asyncio.wait_for(process.wait(), LIMIT) == 0


async def test_the_command_refuses_to_be_open_to_all(tmp_path: Path) -> None:
    """Without a token it listens on this machine only, and says how to change that."""
    (tmp_path / "shop.py").write_text(MODULE)
    process = await asyncio.create_subprocess_exec(
        *[sys.executable, "-m", "agentflow", "serve", "shop:assistant", "--host", "0.0.0.0"],
        cwd=tmp_path,
        stderr=asyncio.subprocess.PIPE,
    )
    _, said = await asyncio.wait_for(process.communicate(), LIMIT)
    assert process.returncode == 2
    assert b"--token-env" in said
