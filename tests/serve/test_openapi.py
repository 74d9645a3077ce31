"""The OpenAPI document: valid, complete, true of the responses, and good enough to generate a client from."""

from __future__ import annotations

import asyncio
import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from openapi_spec_validator import OpenAPIV31SpecValidator
from serve_client import connected, served

from agentflow import Agent, tool
from agentflow.serve import App, View
from agentflow.serve.openapi import openapi
from agentflow.serve.plain import plain
from agentflow.testing import ScriptedModel
from agentflow.vocabulary import ToolUseBlock


@tool(requires_approval=True)
async def pay(euros: int) -> str:
    return f"paid {euros}"


def app() -> App:
    script = [ToolUseBlock("t1", "pay", {"euros": 5}), "Paid."]
    return App(Agent("a", ScriptedModel(script), tools=[pay]), view=View(tools="full"))


def test_the_document_is_valid_and_lists_every_route() -> None:
    """The official validator accepts it; each route is described, and nothing else."""
    document = openapi("/ai", "1")
    OpenAPIV31SpecValidator(document).validate()  # type: ignore[arg-type]
    described = {(method.upper(), path) for path, methods in document["paths"].items() for method in methods}
    routed = {
        (method, route.path)  # type: ignore[attr-defined]
        for route in plain(app().service)
        for method in route.methods - {"HEAD"}  # type: ignore[attr-defined]
    }
    assert described == routed


async def test_responses_fit_the_document() -> None:
    """Each response of a whole conversation is validated with its schema, and each event too."""
    async with served(app()) as url, connected(url) as client:
        document = await client.good("GET", "/openapi.json")

        async def check(method: str, path: str, route: str, data: Any = None) -> Any:
            found = await client.good(method, path, data)
            described = document["paths"][route][method.lower()]["responses"]
            [success] = [response for status, response in described.items() if status.startswith("2")]
            validate(found, success["content"]["application/json"]["schema"])
            return found

        def validate(value: Any, schema: Any) -> None:
            jsonschema.Draft202012Validator({**schema, "components": document["components"]}).validate(value)

        session = "/agents/{agent}/sessions/{session}"
        run = await check("POST", "/agents/a/runs", "/agents/{agent}/runs", {"input": "Pay", "session": "s"})
        events = await client.events(run["id"])
        await check("GET", "/agents/a/sessions/s", session)
        decisions = {"decisions": {"t1": {"action": "approve"}}}
        await check("POST", "/agents/a/sessions/s/resume", f"{session}/resume", decisions)
        events += await client.events(run["id"], events[-1].id)
        for event in events:
            validate(event.data, {"$ref": "#/components/schemas/Event"})
        await check("GET", f"/runs/{run['id']}", "/runs/{run}")
        await check("POST", f"/runs/{run['id']}/interrupt", "/runs/{run}/interrupt", {})
        await check("POST", "/agents/a/sessions/s/fork", f"{session}/fork", {})
        await check("GET", "/agents/a/sessions", "/agents/{agent}/sessions")
        await check("GET", "/agents", "/agents")
        await check("GET", "/runs", "/runs")
        status, refused = await client.ask("GET", "/runs/none")
    assert status == 404
    validate(refused, {"$ref": "#/components/schemas/ErrorBody"})
    assert {event.type for event in events} == {"run", "reply", "text", "tool", "end"} | set()


async def test_a_generated_client_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`openapi-python-client` makes a typed client of the document, which starts a run and reads a session."""
    async with served(app()) as url, connected(url) as client:
        document = tmp_path / "openapi.json"
        document.write_text(json.dumps(await client.good("GET", "/openapi.json")))
        command = [sys.executable, "-m", "openapi_python_client", "generate", "--path", str(document), "--meta", "none"]
        command += ["--output-path", str(tmp_path / "generated_client"), "--fail-on-warning"]
        config = tmp_path / "config.yml"
        config.write_text("post_hooks: []\n")
        made = await asyncio.to_thread(
            subprocess.run, [*command, "--config", str(config)], capture_output=True, text=True, check=False
        )
        assert made.returncode == 0, made.stdout + made.stderr
        monkeypatch.syspath_prepend(str(tmp_path))
        generated: Any = importlib.import_module("generated_client")
        start = importlib.import_module("generated_client.api.default.start_run")
        read = importlib.import_module("generated_client.api.default.get_session")
        models = importlib.import_module("generated_client.models")
        async with generated.Client(base_url=url) as api:
            run = await start.asyncio("a", client=api, body=models.CallBody(input_="Pay", session="s"))
            await client.events(run.id)
            session = await read.asyncio("a", "s", client=api)
    assert run.session == "s"
    assert [msg.text for msg in session.messages][:1] == ["Pay"]
    assert session.questions[0].input_.to_dict() == {"euros": 5}
