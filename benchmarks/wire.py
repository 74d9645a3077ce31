"""The cost of a streamed chunk over HTTP: the direct wires and LiteLLM, in one run; and the cost of importing a wire.

The server is a process of its own, so the time is the client's alone: its processor time, divided by the chunks. In bursts
64 chunks are written at once; singly, each write waits until the one before was read.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager

from agentflow.models.anthropic_wire import AnthropicWire
from agentflow.models.clients import close_clients
from agentflow.models.litellm import LiteLLMModel
from agentflow.models.openai_wire import OpenAIWire
from agentflow.vocabulary.messages import Msg
from agentflow.vocabulary.ports.model import Model, ModelRequest
from agentflow.vocabulary.specs import ModelOptions
from benchmarks.measure import Effort
from benchmarks.report import Figure

__all__ = ["wire"]

_SERVER = r"""
import asyncio, json, re, socket

WORD = " word%d"  # LiteLLM takes a word that comes again and again for a fault
OPENAI = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "system_fingerprint": "f"}

def event(data, name=None):
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {json.dumps(data)}\n\n".encode()

def openai(count):
    choice = lambda delta, reason: {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}
    words = [event({**OPENAI, "choices": [choice({"content": WORD % n}, None)], "usage": None}) for n in range(count)]
    end = event({**OPENAI, "choices": [choice({}, "stop")], "usage": None})
    used = event({**OPENAI, "choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": count}})
    return words, end + used + b"data: [DONE]\n\n"

def anthropic(count):
    start = {"type": "message_start", "message": {"id": "m", "type": "message", "role": "assistant", "model": "m",
             "content": [], "stop_reason": None, "usage": {"input_tokens": 1, "output_tokens": 1}}}
    block = {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
    delta = lambda n: {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": WORD % n}}
    stop = {"type": "content_block_stop", "index": 0}
    end = {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": count}}
    words = [event(delta(n), "content_block_delta") for n in range(count)]
    words[0] = event(start, start["type"]) + event(block, block["type"]) + words[0]
    return words, b"".join(event(e, e["type"]) for e in (stop, end, {"type": "message_stop"}))

async def serve(reader, writer):
    writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    try:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            size = int(re.search(rb"(?i)content-length: (\d+)", head)[1])
            how, count = json.loads(await reader.readexactly(size))["model"].split("-")
            words, end = (anthropic if b"/messages" in head.split(b"\r\n")[0] else openai)(int(count))
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
            step = 64 if how == "burst" else 1
            for place in range(0, len(words), step):
                part = b"".join(words[place:place + step])
                writer.write(b"%x\r\n%s\r\n" % (len(part), part))
                await asyncio.sleep(0.0003)
            writer.write(b"%x\r\n%s\r\n0\r\n\r\n" % (len(end), end))
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()

async def main():
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()

asyncio.run(main())
"""

_IMPORT = """
import time
import agentflow
started = time.process_time()
import agentflow.models.{module}
print(time.process_time() - started)
"""


@contextmanager
def _server() -> Iterator[str]:
    """The address of a server in a process of its own."""
    with subprocess.Popen([sys.executable, "-c", _SERVER], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{process.stdout.readline().strip()}"
        finally:
            process.terminate()


def _models(base: str, how: str, count: int, *, litellm: bool) -> dict[str, tuple[Model, int]]:
    """Each adapter on that server, and how many chunks it is to read; LiteLLM has fewer, for it takes its time."""
    name = f"{how}-{count}"
    found: dict[str, tuple[Model, int]] = {
        "OpenAIWire": (OpenAIWire(name, api_base=f"{base}/v1", api_key="k", retries=0), count),
        "AnthropicWire": (AnthropicWire(name, api_base=base, api_key="k", retries=0), count),
    }
    if litellm:
        few = count // 4
        openai, anthropic = f"openai/{how}-{few}", f"anthropic/{how}-{few}"
        found["LiteLLM, OpenAI"] = (LiteLLMModel(openai, api_base=f"{base}/v1", api_key="k", retries=0), few)
        found["LiteLLM, Anthropic"] = (LiteLLMModel(anthropic, api_base=base, api_key="k", retries=0), few)
    return found


async def _read(model: Model, count: int) -> float:
    """The processor's seconds for a chunk of one reply."""
    request = ModelRequest([Msg.user("hi")], (), ModelOptions(max_tokens=10), model.name)
    started = time.process_time()
    words = 0
    async for chunk in model.stream(request):
        words += bool(chunk.text)
    took = time.process_time() - started
    assert words == count, f"{model!r} gave {words} of {count} chunks"
    return took / count


def _importing(module: str, cache: str) -> float:
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    command = [sys.executable, "-c", _IMPORT.format(module=module)]
    ended = subprocess.run(
        command, capture_output=True, text=True, check=True, env={**env, "PYTHONPYCACHEPREFIX": cache}
    )
    return float(ended.stdout)


async def wire(effort: Effort) -> list[Figure]:
    """A streamed chunk from the server to the consumer of the model; importing a wire above `import agentflow`."""
    count, turns = (64, 1) if effort.quick else (1024, 5)
    figures: list[Figure] = []
    with _server() as base:
        for how, budget in (("burst", 10.0), ("single", 70.0)):
            models = _models(base, how, count, litellm=not effort.quick)
            times: dict[str, list[float]] = {name: [] for name in models}
            for turn in range(turns + 1):  # the first one opens connections, and loads modules
                for name, (model, chunks) in models.items():
                    took = await _read(model, chunks)
                    if turn or effort.quick:
                        times[name].append(took)
            for name, taken in times.items():
                limit = budget if name.endswith("Wire") else None
                what = f"chunk over {name}, {'in bursts' if how == 'burst' else 'one read each'}"
                detail = f"median {statistics.median(taken) * 1e6:.1f} µs"
                figures.append(Figure("wire", what, min(taken) * 1e6, "µs", limit, detail=detail))
    await close_clients()
    with tempfile.TemporaryDirectory() as cache:
        for module in ("openai_wire", "anthropic_wire"):
            took = [_importing(module, cache) for _ in range(2 if effort.quick else 8)][1:]
            detail = f"best {min(took) * 1e3:.1f} ms"
            what = f"import of {module} above agentflow"
            figures.append(Figure("wire", what, statistics.median(took) * 1e3, "ms", 60.0, detail=detail))
    return figures
