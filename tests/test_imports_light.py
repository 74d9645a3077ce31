"""`import agentflow` loads nothing that a program may never use."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

_SCRIPT = """
import gc, sys  # `gc` is part of the interpreter
import reactivex, pydantic, loguru
before = set(sys.modules)
import agentflow
print(*sorted(name for name in sys.modules if name.startswith("agentflow")))
from agentflow import Agent, Flux, GracefulShutdown, Session, Turn, TurnQueue, on, tool
print(*sorted(name for name in sys.modules if name not in before and not name.startswith("agentflow")))
"""


def test_the_root_imports_nothing_beyond_what_it_stands_on() -> None:
    """The root loads its names when they are used; then, beyond `reactivex`, `pydantic` and `loguru`, only our own modules are
    loaded, and pydantic's lazy imports stay lazy."""
    ended = subprocess.run([sys.executable, "-c", _SCRIPT], capture_output=True, text=True, check=True)
    own = ["", "._support", "._support.lazy", ".errors"]
    assert ended.stdout.splitlines() == [" ".join(f"agentflow{name}" for name in own), ""]


_CALLING = """
import asyncio, sys
from agentflow import Agent, tool
from benchmarks.bare import Script, answer, tool_reply

@tool
async def add(a: int, b: int) -> int:
    return a + b

asyncio.run(Agent("adder", Script(tool_reply(1), answer()), tools=[add]).call("Add."))
print(*sorted(name.removeprefix("agentflow.") for name in sys.modules if name.startswith("agentflow.")))
"""

_LATER = {
    "_support.json_schema",
    "agent.agent_data",
    "agent.agent_flux",
    "agent.graceful",
    "agent.graph",
    "agent.queue",
    "agent.typed_call",
    "hooks.discovery",
    "hooks.recorded_calls",
    "hooks.recorded_layers",
    "loop.output.output",
    "loop.output.replying",
    "loop.store_link",
    "loop.stream",
    "loop.turn",
    "reactive.operators.many",
    "reactive.operators.recovering",
    "reactive.operators.timed",
    "tools.code_names",
    "tools.computer",
    "tools.schema_tools",
    "tools.toolset",
    "vocabulary.event_json",
    "vocabulary.ports.memory_store",
    "vocabulary.ports.store",
    "vocabulary.saving.codec",
}
"""Modules that a call with a tool does not use."""


def test_a_call_loads_no_module_that_it_does_not_use() -> None:
    """Typed outputs, turns, stores, JSON schemas from outside and saved data are loaded when they are used."""
    assert {name for name in _LATER if not importlib.util.find_spec(f"agentflow.{name}")} == set()
    ended = subprocess.run([sys.executable, "-c", _CALLING], capture_output=True, text=True, check=True)
    loaded = set(ended.stdout.split())
    assert loaded & _LATER == set()
    assert len(loaded) <= 130


_COLLECTING = """
import gc, sys
import agentflow


class Watch:
    def find_spec(self, name, path=None, target=None):
        if name in ("agentflow.agent.agent", "agentflow.terminal.console"):
            print(name, gc.isenabled())


sys.meta_path.insert(0, Watch())
agentflow.Agent
print(gc.isenabled())
gc.disable()
agentflow.Console
print(gc.isenabled())
gc.enable()
try:
    agentflow.Nothing
except AttributeError:
    print(gc.isenabled())
"""


def test_no_garbage_is_looked_for_while_a_name_is_imported() -> None:
    """The garbage collector pauses while the root imports a name, and afterwards is on or off as before."""
    ended = subprocess.run([sys.executable, "-c", _COLLECTING], capture_output=True, text=True, check=True)
    paused = ["agentflow.agent.agent False", "True", "agentflow.terminal.console False", "False", "True"]
    assert ended.stdout.splitlines() == paused


_WIRES = """
import asyncio, sys, threading
from agentflow.models import AnthropicWire, OpenAIWire
from agentflow.models.http import loaded

OpenAIWire("gpt-5"), AnthropicWire("claude-sonnet-4-5")
print(*sorted({"aiohttp", "litellm", "csv", "email", "http"} & set(sys.modules)))


class Watch:
    def find_spec(self, name, path=None, target=None):
        if name == "aiohttp":
            print(threading.current_thread() is threading.main_thread())


sys.meta_path.insert(0, Watch())
asyncio.run(loaded())
print("aiohttp" in sys.modules)
"""


def test_a_wire_is_imported_and_built_without_its_http_client_which_is_loaded_in_a_thread() -> None:
    """aiohttp takes longer to import than all the rest of a wire: it is there when a request is made, and no loop waits."""
    ended = subprocess.run([sys.executable, "-c", _WIRES], capture_output=True, text=True, check=True)
    assert ended.stdout.splitlines() == ["", "False", "True"]
