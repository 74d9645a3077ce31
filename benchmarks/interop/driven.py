"""Others' clients and agents drive our wire servers: each script in an environment of its own."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from agentflow.testing.wire import Say, ScriptedCall, WireReply, WireRequest, WireServer

__all__ = ["CLIENTS", "Row", "drive"]

FOLDER = Path(__file__).parent / "clients"
CLIENTS = {
    "openai_client": "clients",
    "anthropic_client": "clients",
    "pydantic_ai_agent": "agents",
    "openai_agents_agent": "agents",
    "langgraph_agent": "agents",
}
"""Each script, and the environment that it runs in."""
_ASKED_FOR = (
    *("Invalid 'messages': empty array", "messages: at least one message is required"),
    "thread: Threads are not supported",  # Anthropic's tool runner asks, and then sends the whole conversation
)
"""What the scripts have refused on purpose."""
_CALLS = (ScriptedCall("add", {"a": 1, "b": 2}), ScriptedCall("add", {"a": 3, "b": 4}))


@dataclass
class Row:
    """A case that was tried; `theirs` is why it cannot go well."""

    who: str
    case: str
    ok: bool
    why: str = ""
    theirs: str = ""
    versions: dict[str, str] = field(default_factory=dict[str, str])


def _brain(request: WireRequest) -> WireReply:
    thinking = "Let me see." if request.thinking_on else ""
    if request.results:
        return WireReply("sum " + ",".join(result.text for result in request.results), thinking=thinking, chunk=3)
    if "json" in request.user_text:
        return Say('{"x": 1, "y": "b"}', chunk=4)
    if "add" in request.user_text and request.tools:
        return WireReply("I add." if thinking else "", thinking=thinking, calls=_CALLS, chunk=3)
    return WireReply("Hello world", thinking=thinking, chunk=3)


def drive(script: str, python: Path) -> Iterator[Row]:
    """Run a script's cases; an unexpected refusal of our servers is a case of its own.

    Args:
        script: One of `CLIENTS`.
        python: The interpreter with its requirements.
    """
    with WireServer.openai(_brain).in_thread() as openai, WireServer.anthropic(_brain).in_thread() as anthropic:
        command = [str(python), str(FOLDER / f"{script}.py"), openai.base_url, anthropic.base_url]
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=300)
        versions: dict[str, str] = {}
        for line in done.stdout.splitlines():
            said = json.loads(line)
            if "versions" in said:
                versions = said["versions"]
            else:
                yield Row(script, said["case"], said["ok"], said["why"], versions=versions)
        if done.returncode:
            yield Row(script, "the script", False, done.stderr.strip()[-400:], versions=versions)
        refused = [request.refused for request in (*openai.requests, *anthropic.requests) if request.refused]
        odd = [words for words in refused if not words.startswith(_ASKED_FOR)]
        yield Row(script, "nothing else was refused", not odd, "; ".join(odd), versions=versions)
