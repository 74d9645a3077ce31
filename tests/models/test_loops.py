"""The owners of connections: several event loops, in threads and one after the other, and nothing left open."""

import asyncio
import gc
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncGenerator

import pytest

from agentflow.models.clients import close_clients
from agentflow.vocabulary.chunks import ModelChunk
from agentflow.vocabulary.messages import Msg
from agentflow.vocabulary.ports.model import Model, ModelRequest
from agentflow.vocabulary.specs import ModelOptions

from .catcher import WORDS, KeepAlive
from .conftest import ADAPTERS, adapter_of

NAMES = {"openai": "openai/gpt-4o", "anthropic": "anthropic/claude-sonnet-4-5"}
CASES = [(adapter, wire) for adapter in ADAPTERS for wire in NAMES]
wires = pytest.mark.parametrize(("adapter", "wire"), CASES, ids=["-".join(case) for case in CASES])


def model_of(adapter: str, wire: str, port: int) -> Model:
    base = f"http://127.0.0.1:{port}" + ("/v1" if wire == "openai" else "")
    return adapter_of(adapter, wire)(NAMES[wire], api_base=base, api_key="k", retries=0, timeout=20)


def pieces(model: Model) -> AsyncGenerator[ModelChunk, None]:
    return model.stream(ModelRequest([Msg.user("hi")], (), ModelOptions(), model.name))


async def ask(model: Model) -> str:
    return "".join([chunk.text async for chunk in pieces(model)])


@pytest.mark.ci
@wires
def test_eight_threads_with_a_loop_each(adapter: str, wire: str) -> None:
    """One model answers in eight loops at once; two of them close their clients in between without affecting others."""
    with KeepAlive(together=8) as server:
        model = model_of(adapter, wire, server.port)
        told: list[str | BaseException] = []

        async def thrice(closing: bool) -> str:
            for _ in range(3):
                said = await ask(model)
                if closing:
                    await close_clients()
            return said

        def work(number: int) -> None:
            try:
                told.append(asyncio.run(thrice(number < 2)))
            except BaseException as error:  # any: the assertion reports it
                told.append(error)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert told == ["".join(WORDS)] * 8


@wires
async def test_closing_is_of_this_loop_and_not_for_good(adapter: str, wire: str) -> None:
    """A reply of another loop is read to its end; the closed model makes a new request on the same loop."""
    with KeepAlive() as server:
        model = model_of(adapter, wire, server.port)
        half = pieces(model)
        text = (await anext(half)).text

        async def elsewhere() -> None:
            await ask(model)
            await close_clients()

        await asyncio.to_thread(lambda: asyncio.run(elsewhere()))
        text += "".join([chunk.text async for chunk in half])
        await close_clients()
        assert text == await ask(model)
        assert server.answered == 3


def connections(port: int) -> list[socket.socket]:
    """Return the sockets of this process that are connected to a port."""
    gc.collect()
    found = [o for o in gc.get_objects() if issubclass(type(o), socket.socket) and o.family == socket.AF_INET]
    return [one for one in found if _peer(one) == port]


def _peer(one: socket.socket) -> int | None:
    try:
        return one.getpeername()[1]
    except OSError:
        return None


@pytest.mark.ci
@wires
def test_loops_one_after_the_other_leave_nothing_open(adapter: str, wire: str) -> None:
    """Each loop closes its own connections when it ends, without a request, and the next one opens its own."""
    with KeepAlive() as server:
        model = model_of(adapter, wire, server.port)
        open_during: list[int] = []

        async def asked() -> str:
            reply = pieces(model)
            first = (await anext(reply)).text
            # Counted within the reply: after it a client may keep the connection, or not.
            open_during.append(len(connections(server.port)))
            return first + "".join([chunk.text async for chunk in reply])

        first = asyncio.run(asked())
        assert connections(server.port) == []
        assert asyncio.run(asked()) == first
        assert connections(server.port) == []
    assert open_during == [1, 1]


@pytest.mark.ci
def test_no_connection_but_the_models() -> None:
    """LiteLLM is loaded in a thread, without the network (it uses the price list that it ships with), and prints nothing.

    Calling opens the model's connection only, also for a name whose tokenizer LiteLLM would download. Data that it has cached
    for an earlier loop with the same id are not used.
    """
    code = """
import asyncio, os, sys, threading
from agentflow.models.litellm_library import library
loading = []
sys.addaudithook(lambda event, args: loading.append(event) if event.startswith("socket.") else None)
where = set()
imported = lambda event, args: event == "import" and args[0].startswith("litellm.")
sys.addaudithook(lambda *told: where.add(threading.current_thread()) if imported(*told) else None)
litellm = asyncio.run(library())
assert os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] == "True"
assert not {"socket.connect", "socket.getaddrinfo"} & set(loading)
assert litellm.modify_params is False and litellm.drop_params is False and litellm.telemetry is False
assert where and threading.main_thread() not in where
clients = litellm.in_memory_llm_clients_cache

async def on_another_loop():
    old = clients.update_cache_key_with_event_loop("old")
    clients.cache_dict[old] = object()
    await library()
    return old in clients.cache_dict

assert not asyncio.run(on_another_loop())
seen = set()
def hook(event, args):
    if event in ("socket.connect", "socket.getaddrinfo"):
        seen.add((event, str(args[1][:2] if event == "socket.connect" else args[:2])))
sys.addaudithook(hook)
from agentflow.vocabulary.messages import Msg
from agentflow.models.litellm import LiteLLMModel
from agentflow.vocabulary.ports.model import ModelRequest
from agentflow.vocabulary.specs import ModelOptions
from agentflow.testing.wire import Fault, Say, WireServer

NAMES = ("openai/meta-llama/Llama-3.1-8B-Instruct", "hosted_vllm/llama-3.3-70b", "openai/llama-2", "openai/command-r")

async def main():
    for name in NAMES:
        async with WireServer.openai([Say("hello", faults=Fault.no_usage())]) as server:
            model = LiteLLMModel(name, api_base=server.base_url, api_key="k", retries=0)
            request = ModelRequest([Msg.user("hi")], (), ModelOptions(), name)
            assert "".join([chunk.text async for chunk in model.stream(request)]) == "hello"
            port = server.base_url.split(":")[2].split("/")[0]
            own = {str(("127.0.0.1", int(port))), str(("127.0.0.1", port)), str((b"127.0.0.1", port))}
            own |= {str(("127.0.0.1", None)), str((b"127.0.0.1", int(port)))}
            strange = {one for one in seen if one[1] not in own}
            assert not strange, strange
            seen.clear()

asyncio.run(main())
"""
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
