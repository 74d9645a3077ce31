"""`import agentflow` loads nothing that a program may never use."""

from __future__ import annotations

import subprocess
import sys

_SCRIPT = """
import sys
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
