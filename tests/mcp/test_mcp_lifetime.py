"""When a server is connected and closed, the fate of cancelled calls, and the errors of a missing server."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
import weakref
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from demo_server import make
from garbage import garbage_of
from hypothesis import given
from hypothesis import strategies as st
from lines import Lines
from mcp import StdioServerParameters
from mcp.server import MCPServer as Server
from mcp.server.mcpserver import Context
from pydantic import BaseModel
from ways import HERE, demo, demo_over_stdio, results, run, served

from agentflow import ActingChunk, Agent, PreActing, ToolUseBlock, on
from agentflow.errors import CallTimeoutError, ToolError, UsageError
from agentflow.mcp import MCPServer, stdio
from agentflow.mcp.connection import ConnectionLost
from agentflow.mcp.tools_in import legal_name
from agentflow.testing import ScriptedModel, run_virtual

ADD = ToolUseBlock("t1", "add", {"a": 1, "b": 2})
WAIT = ToolUseBlock("t1", "wait")


def children() -> list[str]:
    """The demo servers below this process that live."""
    listed = subprocess.run(
        ["ps", "-ww", "-o", "stat=,args=", "--ppid", str(os.getpid())], capture_output=True, text=True, check=False
    )
    return [line for line in listed.stdout.splitlines() if "demo_server.py" in line and not line.startswith("Z")]


async def test_nothing_is_started_before_it_is_needed() -> None:
    """Making a server and an agent starts no process; the first call does; closing the agent ends it."""
    server = demo_over_stdio()
    agent = Agent("a", ScriptedModel([ADD, "Three."]), tools=[server])
    assert (children(), server.tools) == ([], ())
    async with agent:
        assert (await agent.call("Go")).text == "Three."
        assert len(children()) == 1
    assert children() == []
    assert [task for task in asyncio.all_tasks() if task is not asyncio.current_task()] == []


@pytest.mark.ci
def test_block_and_a_loop_that_ends() -> None:
    """A call that is blocked on has a connection for itself, which ends with its event loop."""
    agent = Agent("a", ScriptedModel([ADD, "Three.", ADD, "Again."]), tools=[demo_over_stdio()])
    assert agent.call("Go").block().text == "Three."
    assert agent.call("Go").block().text == "Again."
    assert [result.text for result in results(agent)] == ["3", "3"]
    assert children() == []


def test_a_loop_that_has_ended_is_let_go() -> None:
    """A connection that was closed keeps nothing of its loop: a program with a loop per request does not grow."""
    server = MCPServer.in_memory(make())
    loops: list[weakref.ref[asyncio.AbstractEventLoop]] = []

    async def use() -> None:
        loops.append(weakref.ref(asyncio.get_running_loop()))
        await server.open()
        await server.close()

    for _ in range(2):
        asyncio.run(use())
    for _ in range(3):  # what a finalizer has held goes with the next collection
        gc.collect()
    assert [loop() for loop in loops] == [None, None]


@pytest.mark.ci
def test_loops_that_end_without_closing_do_not_accumulate() -> None:
    """Only the latest connection is kept: a program that never closes one, with a loop per request, does not grow."""
    server = demo_over_stdio()
    loops: list[weakref.ref[asyncio.AbstractEventLoop]] = []

    async def use() -> None:
        loops.append(weakref.ref(asyncio.get_running_loop()))
        await server.open()

    for _ in range(2):
        asyncio.run(use())
    for _ in range(3):
        gc.collect()
    assert [loop() is None for loop in loops] == [True, False]


def test_closing_ends_an_attempt_to_connect() -> None:
    """A server that does not answer holds up `close` for ten seconds at most, and the caller that connects gets an error."""

    @asynccontextmanager
    async def stuck(server: Any) -> AsyncIterator[None]:
        await asyncio.sleep(1_000)
        yield

    async def closed() -> tuple[float, str]:
        loop = asyncio.get_running_loop()
        began = loop.time()
        server = MCPServer.in_memory(Server("stuck", lifespan=stuck), name="stuck", connect_timeout=100.0, attempts=1)
        opening = asyncio.create_task(server.open())
        await asyncio.sleep(1.0)
        await server.close()
        with pytest.raises(ToolError) as caught:
            await opening
        return loop.time() - began, str(caught.value)

    assert run_virtual(closed()) == (11.0, "MCP server 'stuck' was not connected, because the event loop is ending.")


@pytest.mark.ci
def test_two_event_loops_at_once() -> None:
    """Each has a connection of its own; closing one leaves the other."""
    server = MCPServer.in_memory(make())
    both = threading.Barrier(2, timeout=20)
    told: list[Any] = []

    async def work(name: str) -> None:
        agent = Agent(name, ScriptedModel([ADD, "Three."]), tools=[server])
        async with agent:
            both.wait()
            await agent.call("Go")
            told.append(results(agent)[0].text)
            both.wait()
        both.wait()

    threads = [threading.Thread(target=lambda name=name: asyncio.run(work(name))) for name in ("one", "two")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert told == ["3", "3"]


@pytest.mark.parametrize("way", ["memory", "memory-legacy", "http"])
@pytest.mark.parametrize("cut", ["interrupt", "cancel", "timeout", "stream"])
async def test_a_call_that_is_cut_is_cancelled_at_the_server(way: str, cut: str) -> None:
    """However the call ends, the server's tool is cancelled, and the connection serves the next call."""
    said: list[str] = []
    news = asyncio.Event()

    def say(text: str) -> None:
        said.append(text)
        news.set()

    async with demo(way, say) as server:
        agent = Agent("a", ScriptedModel([WAIT, ADD, "Three."]), tools=[server])
        async with agent:
            if cut == "stream":
                async with agent.stream("Go") as stream:
                    async for event in stream:
                        if isinstance(event, PreActing):
                            break
                    reading = asyncio.create_task(anext(aiter(stream)))
                    await asyncio.wait_for(news.wait(), 10)
                    reading.cancel()
                    with contextlib.suppress(asyncio.CancelledError, StopAsyncIteration):
                        await reading
            else:
                timeout = 1.0 if cut == "timeout" else None
                task = asyncio.ensure_future(agent.call("Go", timeout=timeout))
                await asyncio.wait_for(news.wait(), 10)
                news.clear()
                if cut == "interrupt":
                    agent.interrupt()
                    assert (await task).outcome == "interrupted"
                elif cut == "cancel":
                    task.cancel()
                    with pytest.raises(asyncio.CancelledError):
                        await task
                else:
                    with pytest.raises(CallTimeoutError):
                        await task
            while said[-1] != "cancelled":
                news.clear()
                await asyncio.wait_for(news.wait(), 10)
            assert said == ["waiting", "cancelled"]
            assert (await agent.call("Go on")).text == "Three."
            assert results(agent)[-1].text == "3"


@pytest.mark.ci
async def test_a_cancelled_call_over_stdio(logged: Lines) -> None:
    """The process gets the cancellation, too."""
    async with demo("stdio") as server:
        agent = Agent("a", ScriptedModel([WAIT, ADD, "Three."]), tools=[server])
        async with agent:
            task = asyncio.ensure_future(agent.call("Go"))
            await logged.until("waiting")
            agent.interrupt()
            assert (await task).outcome == "interrupted"
            assert (await agent.call("Go on")).text == "Three."
            await logged.until("cancelled")


@pytest.mark.ci
async def test_a_server_that_dies_is_started_again(tmp_path: Path) -> None:
    """A read-only tool is called again after the crash; one that may have had an effect is not."""
    async with demo("stdio") as server:
        mark = str(tmp_path / "mark")
        agent = await run(server, ToolUseBlock("t1", "die_once", {"mark": mark}), ToolUseBlock("t2", "die"), ADD)
        once, died, added = results(agent)
        assert (once.text, died.state, added.text) == ("alive", "error", "3")
        assert "It is unknown whether die took effect" in died.text


async def test_a_server_that_is_away_at_a_later_call() -> None:
    """Known tools stay, and say that the server is not there; when it is back they work."""
    app = make()
    async with served(app.streamable_http_app()) as address:
        server = MCPServer.http(f"{address}/mcp", name="demo", attempts=1, connect_timeout=2.0)
        agent = Agent("a", ScriptedModel([ADD, "Three.", ADD, "Away."]), tools=[server])
        assert (await agent.call("Go")).text == "Three."
        await server.close()
    assert (await agent.call("Go")).text == "Away."
    away = results(agent)[-1]
    assert (away.state, "cannot be reached" in away.text) == ("error", True)
    await server.close()


async def test_a_server_that_cannot_be_reached(logged: Lines) -> None:
    """The call is refused before its first event, or continues without the server's tools."""
    missing = MCPServer.stdio("no-such-command-here", name="missing")
    agent = Agent("a", ScriptedModel(["Hi."]), tools=[missing])
    with pytest.raises(
        ToolError, match=r"MCP server 'missing' \(stdio: no-such-command-here\) cannot be reached.*installed"
    ):
        await agent.call("Go")
    assert list(agent.session().messages) == []
    refused = MCPServer.http("http://127.0.0.1:9/mcp", attempts=2, name="refused", required=False)
    agent = Agent("a", ScriptedModel(["Hi."]), tools=[refused])
    assert (await agent.call("Go")).text == "Hi."
    assert any("continues without the MCP server refused" in line for line in logged)
    await refused.close()


@pytest.mark.parametrize(
    ("failure", "attempts"),
    [
        (FileNotFoundError("No file."), 1),
        (PermissionError("Forbidden."), 1),
        (NotADirectoryError("No folder."), 1),
        (ConnectionError("Refused."), 3),
        (RuntimeError("Busy."), 3),
        (None, 1),
    ],
    ids=repr,
)
def test_only_temporary_failures_are_retried(failure: Exception | None, attempts: int) -> None:
    """A missing command, forbidden access and a passed time limit are final; other failures have all their attempts."""
    started: list[float] = []

    @asynccontextmanager
    async def failing(_: object) -> AsyncIterator[None]:
        started.append(asyncio.get_running_loop().time())
        if failure is not None:
            raise failure
        await asyncio.Event().wait()
        yield

    async def main() -> None:
        made = Server("failing", lifespan=failing)
        server = MCPServer.in_memory(made, name="failing", connect_timeout=100.0, attempts=3)
        with pytest.raises(ToolError, match="was not connected within" if failure is None else "cannot be reached"):
            await Agent("a", ScriptedModel(["Hi."]), tools=[server]).call("Go")
        await server.close()

    run_virtual(main())
    assert len(started) == attempts
    assert ConnectionLost("It has ended.").temporary


async def test_secrets_are_not_shown(logged: Lines) -> None:
    """Values of the environment and of headers, and what an address holds, are in no error, log line or repr."""
    secret = "very-secret-value-1"
    server = demo_over_stdio(env={"TOKEN": secret}, log_level="debug")
    agent = await run(server, ToolUseBlock("t1", "environment", {"name": "TOKEN"}))
    assert results(agent)[0].text == secret  # the server has it, and may say it: to the model
    await server.close()
    secrets = {place: f"very-secret-{place}" for place in ("login", "query", "header")}
    remote = MCPServer.http(
        f"http://ann:{secrets['login']}@127.0.0.1:9/mcp?a=b&key={secrets['query']}",
        headers={"Authorization": f"Bearer {secrets['header']}"},
        attempts=1,
    )
    with pytest.raises(ToolError) as raised:
        await remote.open(agent)
    await remote.close()
    shown = [repr(server), repr(remote), str(raised.value), repr(remote.settings), *logged]
    assert not [text for text in shown if "very-secret" in text]


@pytest.mark.ci
async def test_a_server_that_does_not_end_is_asked_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that continues after the end of its input gets SIGTERM, so that it can clean up, before it is killed."""
    monkeypatch.setattr(stdio, "_GRACE", 0.5)
    mark = tmp_path / "terminated"
    program = f"""
        import os, signal, sys, time
        sys.path.insert(0, {str(HERE)!r})
        from demo_server import make

        def end(*_):
            open({str(mark)!r}, "w").close()
            os._exit(0)

        signal.signal(signal.SIGTERM, end)
        make(lambda text: None).run("stdio")
        time.sleep(60)
    """
    server = MCPServer.stdio(sys.executable, "-c", textwrap.dedent(program), name="slow")
    agent = await run(server, ADD)
    assert results(agent)[0].text == "3"
    await server.close()
    assert mark.exists()


@pytest.mark.ci
@pytest.mark.skipif(sys.platform == "win32", reason="process groups")
@pytest.mark.parametrize("block", ["ends", "fails", "is cancelled", "is cancelled again"])
async def test_a_process_leaves_nothing_however_its_block_ends(block: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No task, open stream or pipe is left, also if a child in another process group has the pipes."""
    monkeypatch.setattr(stdio, "_GRACE", 0.1)
    code = "import subprocess as s, sys; print(s.Popen(['sleep', '60'], start_new_session=True).pid, file=sys.stderr)"
    parameters = StdioServerParameters(command=sys.executable, args=["-c", f"{code}; input()"])
    streams, child = list[Any](), asyncio.get_running_loop().create_future()

    async def use() -> None:
        async with stdio.stdio_transport(parameters, 10_000, child.set_result) as opened:
            streams.extend(opened)
            await child
            if block == "fails":
                raise ValueError(block)
            if block.startswith("is"):
                task = asyncio.current_task()
                assert task is not None
                asyncio.get_running_loop().call_later(0.02, task.cancel)
                if block == "is cancelled again":
                    asyncio.get_running_loop().call_later(0.05, task.cancel)
                await asyncio.sleep(60)

    before, files = asyncio.all_tasks(), len(os.listdir("/dev/fd"))
    try:
        (ended,) = await asyncio.wait_for(asyncio.gather(asyncio.ensure_future(use()), return_exceptions=True), 20)
    finally:
        os.kill(int(child.result()), signal.SIGKILL)
    expected = {"ends": type(None), "fails": ValueError}.get(block, asyncio.CancelledError)
    counts = [stream.statistics() for stream in streams]
    assert (type(ended), asyncio.all_tasks()) == (expected, before)
    assert [(one.open_send_streams, one.open_receive_streams) for one in counts] == [(0, 0), (0, 0)]
    await asyncio.sleep(0)
    assert len(os.listdir("/dev/fd")) <= files


@given(st.text(max_size=120), st.text(max_size=120))
def test_a_name_is_made_legal(name: str, other: str) -> None:
    """Of at most 64 letters, digits, `-` and `_`; a legal one stays; long ones keep their beginning and remain distinct."""
    legal = legal_name(name)
    assert re.fullmatch(r"[A-Za-z_][A-Za-z0-9_-]{0,63}", legal)
    assert legal_name(legal) == legal
    long, longer = legal + "x" * 64, legal + "x" * 65
    assert legal_name(long)[:55] == long[:55]
    assert legal_name(long) != legal_name(longer)


def test_wrong_options() -> None:
    """What cannot be meant is refused when the server is made."""
    wrong: list[Any] = [
        {"timeout": 0},
        {"connect_timeout": None},
        {"attempts": 0},
        {"sampling": True},
        {"elicitation": "maybe"},
        {"approve": "sometimes"},
        {"max_size": 1},
        {"protocol": "1999-01-01"},
        {"allows": "x"},
        {"name": ""},
    ]
    for options in wrong:
        with pytest.raises(UsageError):
            MCPServer.stdio("x", **options)
    with pytest.raises(UsageError, match="must begin with http"):
        MCPServer.http("ftp://x")
    with pytest.raises(UsageError, match="without NUL"):
        MCPServer.stdio("x", "a\0b")


def test_without_the_sdk() -> None:
    """The package is imported without it; what needs it says how to get it."""
    script = textwrap.dedent("""
        import sys

        class Missing:
            def find_spec(self, name, path=None, target=None):
                if name.split(".")[0] in ("mcp", "mcp_types", "httpx2", "anyio"):
                    raise ModuleNotFoundError(f"No module named {name!r}", name=name)

        sys.meta_path.insert(0, Missing())
        import agentflow, agentflow.mcp
        try:
            agentflow.mcp.MCPServer
        except ImportError as error:
            print(error)
    """)
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert ended.stdout == "agentflow.mcp needs the MCP SDK: pip install 'agentflow-hooks[mcp]'\n", ended.stderr


async def test_a_call_leaves_no_cyclic_garbage() -> None:
    """A call over an open connection leaves nothing that a collection would find of ours."""
    async with demo("memory") as server:
        agent = Agent(
            "a", ScriptedModel(lambda request: "Done." if request.messages[-1].role == "tool" else ADD), tools=[server]
        )
        async with agent:
            for _ in range(3):
                await agent.call("Go", session="warm")
            left = await garbage_of(lambda: agent.call("Go", session="warm"))
            assert [one for one in left if one.startswith("agentflow.")] == []


async def test_a_slow_reader_loses_old_progress_only() -> None:
    """What the reader does not take in time is thinned out; the newest is there, and the result."""
    done = asyncio.Event()
    async with demo("memory-legacy", lambda _: done.set()) as server:
        agent = Agent("a", ScriptedModel([ToolUseBlock("t1", "steps", {"count": 500}), "Done."]), tools=[server])
        pieces: list[float] = []

        @on
        async def slow(event: ActingChunk) -> None:
            await done.wait()
            pieces.append(event.chunk.done)

        agent.hook(slow)
        async with agent.stream("Go") as stream:
            async for _ in stream:
                pass
        assert results(agent)[0].text == "500 steps"
        assert pieces == sorted(set(pieces))
        assert (pieces[0], pieces[-1]) == (1, 500)
        assert len(pieces) < 100
        assert pieces[-1] == 500


@pytest.mark.ci
def test_a_servers_process_ends_with_ours() -> None:
    """Ctrl-C in the middle of a call ends both."""
    script = textwrap.dedent(f"""
        import asyncio, os, subprocess, sys, signal, threading
        sys.path.insert(0, {str(HERE)!r})
        from ways import demo_over_stdio
        from agentflow import Agent, ToolUseBlock, PreActing, on
        from agentflow.testing import ScriptedModel
        from loguru import logger
        logger.remove()
        mark = f"for-{{os.getpid()}}-alone"  # an argument of this server: other tests run theirs at the same time

        def interrupt() -> None:
            print(mark, flush=True)
            subprocess.run(["pgrep", "--count", "--full", mark])
            os.kill(os.getpid(), signal.SIGINT)

        @on
        def started(event: PreActing) -> None:
            threading.Timer(0.5, interrupt).start()

        agent = Agent("a", ScriptedModel([ToolUseBlock("t1", "wait")]), tools=[demo_over_stdio(mark)], hooks=[started])
        asyncio.run(agent.call("Go"))
    """)
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=300)
    mark, alive = ended.stdout.split()
    assert alive == "1"
    assert "KeyboardInterrupt" in ended.stderr
    left = subprocess.run(["pgrep", "--full", mark], capture_output=True, text=True, check=False)
    assert left.stdout == ""


def test_an_older_server_in_memory_leaves_no_coroutine_behind(recwarn: pytest.WarningsRecorder) -> None:
    """A call is suspended, and the event loop ends at once: no handler is left that never took its first step."""
    shop = Server("shop")

    class Order(BaseModel):
        article: str

    @shop.tool()
    async def order(ctx: Context) -> str:
        return (await ctx.elicit("Which?", Order)).action

    async def main() -> Agent:
        server = MCPServer.in_memory(shop, protocol="legacy")
        agent = Agent("a", ScriptedModel([ToolUseBlock("t1", "order"), "Done."]), tools=[server])
        assert (await agent.call("Go")).outcome == "suspended"
        return agent  # not closed

    agent = asyncio.run(main())
    gc.collect()
    assert ([str(one.message) for one in recwarn], len(agent.session().pending)) == ([], 1)
