"""Servers that others wrote, each set up to answer as `driving` expects."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from agentflow.testing.wire import Fault, Say, UseTool, WireReply, WireRequest, WireServer, WireServerThread

__all__ = ["KEY", "SERVERS", "Running", "Server", "run"]

KEY = "sk-right"
HELLO, LONG, TOTAL, POINT = "Hello world", "word " * 400, "The total is 3", '{"x": 1, "y": "b"}'
FAILURES = {"busy": (429, "rate_limit_error"), "broken": (500, "server_error"), "locked": (401, "authentication_error")}
"""What is said to a server that it may fail, and how it does."""


@dataclass(frozen=True)
class Running:
    """A server that answers.

    Attributes:
        url: Its address, without a path.
        behind: The upstream wire servers.
    """

    url: str
    behind: tuple[WireServer, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Server:
    """One of others' servers.

    Attributes:
        name: Its name, and its environment's.
        command: How it is started in a folder of its own, which has its files; a port is appended.
        files: Its scripted answers.
        environ: Variables that it reads.
        checks_keys: Whether it refuses a wrong key.
        backends: Whether it is a gateway, in front of our wire servers.
        theirs: Cases that fail by its own doing, `"adapter: case"` or `"case"`, and why.
    """

    name: str
    command: tuple[str, ...]
    files: Callable[[Mapping[str, str]], Mapping[str, str]]
    environ: Mapping[str, str] = field(default_factory=dict[str, str])
    checks_keys: bool = False
    backends: bool = False
    theirs: Mapping[str, str] = field(default_factory=dict[str, str])


def brain(request: WireRequest) -> WireReply:
    """Answers of our wire servers through a gateway."""
    if request.results:
        return Say(TOTAL)
    if failure := FAILURES.get(request.user_text):
        return WireReply(faults=Fault.status(failure[0]))
    if request.user_text == "long":
        return Say(LONG, faults=Fault.hang("text"))
    if request.user_text == "json":
        return Say(POINT)
    return UseTool("add", {"a": 1, "b": 2}) if request.tools else Say(HELLO, chunk=3)


def _litellm(behind: Mapping[str, str]) -> dict[str, str]:
    rows = [
        {"model_name": name, "litellm_params": {"model": f"{wire}/{name}", "api_base": behind[wire], "api_key": "k"}}
        for wire, name in (("openai", "gpt-4o"), ("anthropic", "claude-sonnet-4-5"))
    ]
    settings = {"num_retries": 0, "disable_cooldowns": True}
    config = {"model_list": rows, "router_settings": settings, "general_settings": {"master_key": KEY}}
    return {"config.yaml": json.dumps(config)}  # JSON is YAML


def _fakellm(behind: Mapping[str, str]) -> dict[str, str]:
    del behind
    rules = [
        {"name": "total", "when": {"tool_result_contains": "3"}, "respond": {"content": TOTAL}},
        {"name": "add", "when": {"tools_include": "add"}, "respond": {"tool_calls": [_ADD]}},
        {"name": "json", "when": {"messages_contain": "json"}, "respond": {"content": POINT}},
        {"name": "long", "when": {"messages_contain": "long"}, "respond": {"content": LONG}},
        {"name": "hello", "when": {"messages_contain": "hello"}, "respond": {"content": HELLO}},
        *(
            {"name": word, "when": {"messages_contain": word}, "respond": {"status": status, "error": kind}}
            for word, (status, kind) in FAILURES.items()
        ),
    ]
    return {"fakellm.yaml": json.dumps({"version": 1, "rules": rules})}


def _aimock(behind: Mapping[str, str]) -> dict[str, str]:
    del behind
    call = _ADD | {"arguments": json.dumps(_ADD["arguments"])}
    rows = [
        {"match": {"toolResultContains": "3"}, "response": {"content": TOTAL}},
        {"match": {"userMessage": "add"}, "response": {"toolCalls": [call]}},
        {"match": {"userMessage": "json"}, "response": {"content": POINT}},
        {"match": {"userMessage": "long"}, "response": {"content": LONG}, "latency": 50, "chunkSize": 5},
        {"match": {"userMessage": "hello"}, "response": {"content": HELLO}, "chunkSize": 3},
        *(
            {"match": {"userMessage": word}, "response": {"error": {"message": kind, "type": kind}, "status": status}}
            for word, (status, kind) in FAILURES.items()
        ),
    ]
    return {"fixtures.json": json.dumps({"fixtures": rows})}


_ADD = {"name": "add", "arguments": {"a": 1, "b": 2}}
SERVERS = (
    Server(
        name="litellm-proxy",
        command=("bin/litellm", "--config", "config.yaml", "--host", "127.0.0.1", "--port"),
        files=_litellm,
        environ={"LITELLM_LOCAL_MODEL_COST_MAP": "True"},
        checks_keys=True,
        backends=True,
        theirs={"a wrong key": "it answers 400 (no database where it could look the key up), not 401"},
    ),
    Server(
        name="aimock",
        command=("node_modules/.bin/llmock", "-f", "fixtures.json", "-p"),
        files=_aimock,
        environ={"AIMOCK_API_KEYS": KEY},
        checks_keys=True,
    ),
    Server(
        name="fakellm",
        command=("bin/fakellm", "serve", "--port"),
        files=_fakellm,
        theirs=dict.fromkeys(("429", "500", "401"), "it answers 200 to every request that streams"),
    ),
)


@contextmanager
def run(server: Server, home: Path) -> Iterator[Running]:
    """Start a server on loopback, and kill it in the end.

    Args:
        server: Which.
        home: Its environment.
    """
    with ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        ours = (WireServer.openai(brain), WireServer.anthropic(brain)) if server.backends else ()
        for wire in ours:
            stack.enter_context(WireServerThread(wire))
        for name, text in server.files({wire.rules[0].wire: wire.base_url for wire in ours}).items():
            (place / name).parent.mkdir(exist_ok=True)
            (place / name).write_text(text, "utf-8")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        log = stack.enter_context((place / "log").open("w"))
        program, *more = server.command
        process = stack.enter_context(
            subprocess.Popen(
                [home / program, *more, str(port)], cwd=place, stdout=log, stderr=log, env=os.environ | server.environ
            )
        )
        stack.callback(process.kill)
        if not asyncio.run(_answers(process, port)):
            raise RuntimeError(f"{server.name} ended with {process.returncode}: {(place / 'log').read_text()[-800:]}")
        yield Running(f"http://127.0.0.1:{port}", ours)


async def _answers(process: subprocess.Popen[bytes], port: int) -> bool:
    """Wait until the port accepts connections; return False if the server ends before."""
    async with asyncio.timeout(600):
        while process.poll() is None:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                await asyncio.sleep(0.1)
                continue
            writer.close()
            return True
    return False
