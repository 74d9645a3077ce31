"""A server under load, in a process and an environment of its own: `python -m benchmarks.serve.server ours`.

Rules:

1. It prints its port, then its processor time and memory for each line that it reads, and stops when its input ends.
2. All sides run under uvicorn as it is without extras: `h11`, and asyncio's event loop.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import json
import socket
import sys
import threading
import time

import uvicorn

from benchmarks.peers.kit import Plan
from benchmarks.peers.runner import resident


def _answer(server: uvicorn.Server) -> None:
    for _ in sys.stdin:
        print(json.dumps({"cpu": time.process_time(), "memory": resident()}), flush=True)
    server.should_exit = True


def main() -> None:
    """Serve until the input ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("app")
    parser.add_argument("--streams", type=int, default=1)
    parser.add_argument("--chunks", type=int, default=10)
    parser.add_argument("--pause", type=float, default=0.01)
    options = parser.parse_args()
    made = importlib.import_module(f"benchmarks.serve.apps.{options.app}")
    app = made.app(Plan(chunks=options.chunks, pause=options.pause), options.streams)
    config = uvicorn.Config(app, http="h11", loop="asyncio", ws="none", log_level="warning", access_log=False)
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0), backlog=config.backlog) as listening:
        print(listening.getsockname()[1], flush=True)
        threading.Thread(target=_answer, args=(server,), daemon=True).start()
        asyncio.run(server.serve([listening]))


if __name__ == "__main__":
    main()
