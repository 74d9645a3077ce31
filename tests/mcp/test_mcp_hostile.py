"""A server that lies ends in a tool error, or in nothing at all: never in a broken run."""

from __future__ import annotations

import asyncio
import resource
import subprocess
import sys
import time
from typing import Any, Unpack

import pytest
from lines import Lines
from ways import HERE, results, run, served

from agentflow import ActingChunk, Agent, ToolUseBlock
from agentflow.errors import ToolError
from agentflow.mcp import MCPServer, ProgressReport, ServerOptions
from agentflow.testing import ScriptedModel

ACT = ToolUseBlock("t1", "act")
TOKEN = "token-1234567890"


def hostile(mode: str, **options: Unpack[ServerOptions]) -> MCPServer:
    return MCPServer.stdio(
        sys.executable, str(HERE / "hostile_server.py"), mode, env={"TOKEN": TOKEN}, **{"name": "hostile", **options}
    )


async def acted(mode: str, *script: Any, **options: Unpack[ServerOptions]) -> Agent:
    server = hostile(mode, **options)
    try:
        return await run(server, *(script or [ACT]))
    finally:
        await server.close()


async def test_it_never_answers() -> None:
    """The tool's limit ends the call; the connection is there for the next one."""
    agent = await acted("never", timeout=0.3)
    assert [result.state for result in results(agent)] == ["timeout"]


async def test_it_never_says_hello() -> None:
    """The call is refused when the limit has passed, and nothing is left."""
    server = hostile("mute", connect_timeout=0.5)
    with pytest.raises(ToolError, match=r"was not connected within 0\.5 s"):
        await run(server)
    await server.close()


async def test_it_dies_at_once() -> None:
    """The error says what the process wrote last."""
    server = hostile("dies_at_once", attempts=1)
    with pytest.raises(ToolError, match=r"cannot be reached.*cannot find the \\x1b\[31mdatabase"):
        await run(server)
    await server.close()


async def test_it_dies_in_the_middle() -> None:
    """The model reads that the outcome is unknown; the next call has a new process."""
    agent = await acted("dies", ACT, ToolUseBlock("t2", "act"))
    assert ["It is unknown whether act took effect" in result.text for result in results(agent)] == [True, True]


async def test_it_sends_control_characters(logged: Lines) -> None:
    """They are nowhere in the log; a result keeps its text, which is the model's to read."""
    agent = await acted("controls", log_level="debug")
    assert results(agent)[0].state == "success"
    assert not any(sign in line for line in logged for sign in ("\x1b", "\x07"))
    assert any(r"\x1b[2J\x07wiped" in line for line in logged)


async def test_it_writes_what_is_no_message() -> None:
    """Lines that are no messages are left out; who writes little else is given up."""
    assert results(await acted("junk"))[0].text == "after junk"
    assert "has ended" in results(await acted("much_junk"))[0].text


async def test_it_answers_for_others() -> None:
    """Answers without a request are ignored, and so is a second answer."""
    calls = [ACT, ToolUseBlock("t2", "act")]
    agent = await acted("other_id", calls, ToolUseBlock("t3", "act"))
    assert [result.text for result in results(agent)] == ["right"] * 3


async def test_it_floods(logged: Lines) -> None:
    """A slow reader gets the last progress, the log is bounded (20 lines a second), and the tools are listed now and then."""
    began = time.monotonic()
    server = hostile("flood", log_level="debug", timeout=None, connect_timeout=600)  # neither is about this
    agent = Agent("a", ScriptedModel([ACT, "Done."]), tools=[server])
    progress: list[float] = []
    async for event in agent.stream("Go").of_type(ActingChunk):
        assert isinstance(event.chunk, ProgressReport)
        if not progress:
            with pytest.raises(ToolError, match="Method not found"):
                await server.read("test://nothing")  # is answered after the flood
        progress.append(event.chunk.done)
        assert "\x1b" not in str(event.chunk)
    async with asyncio.timeout(60):  # the last announcement is followed, but not before the tool's result is read
        while (listed := int(server.tools[0].spec.description)) < 2:  # noqa: ASYNC110 - an answer of another process
            await asyncio.sleep(0.02)
    await server.close()
    assert results(agent)[0].text == "flooded"
    assert progress[-64:] == [*range(3000 - 64, 3000)]
    assert len(progress) < 64 + 20, (
        "a few were on their way when the reader stopped; of those behind, the last are kept"
    )
    assert listed < 300, "each announcement is one of 3,000"
    assert sum("line " in line for line in logged) <= 20 * (time.monotonic() - began + 1)


async def test_it_changes_its_tools_in_mid_run() -> None:
    """What it says now is in the next request: nothing but names and texts has changed. Pinned, nothing has."""
    for follow, expected in ((True, [["act"], ["evil", "act"], ["evil", "act"]]), (False, [["act"]] * 3)):
        server = hostile("changes", follow=follow)
        model = ScriptedModel([ACT, ToolUseBlock("t2", "act"), "Done."])
        agent = Agent("a", model, tools=[server])
        await agent.call("Go")
        await server.close()
        assert [[spec.name for spec in request.tools] for request in model.requests] == expected


async def test_its_names_and_schemas(logged: Lines) -> None:
    """Names are made legal, descriptions shortened and cleaned, invalid schemas left out."""
    server = hostile("names")
    async with server:
        names = [tool.name for tool in server.tools]
        assert names[0] == "______etc_passwd"
        assert all(len(name) <= 64 and name.replace("-", "_").isidentifier() for name in names)
        assert "bad_schema" not in names
        [wipe] = [tool for tool in server.tools if "wipe" in tool.name]
        assert wipe.spec.description.startswith("Safe.[2J y")
        assert len(wipe.spec.description) == 8000
    assert any("bad_schema is left out" in line for line in logged)


async def test_a_list_that_is_not_legal() -> None:
    """The SDK refuses it whole: the server cannot be used, and that is said once."""
    server = hostile("no_object")
    with pytest.raises(ToolError, match=r"sent an invalid answer: tools\.1\.inputSchema\.type"):
        await run(server)
    await server.close()


async def test_a_schema_that_leads_elsewhere_fetches_nothing(logged: Lines) -> None:
    """A tool whose schema refers to something outside is left out."""
    server = hostile("names")
    agent = await run(server, ToolUseBlock("t1", "remote", {"a": 1}))
    await server.close()
    assert [result.state for result in results(agent)] == ["not_found"]
    assert any("its tool remote is left out" in line and "nothing is fetched" in line for line in logged)


@pytest.mark.ci
def test_its_patterns_hold_nobody() -> None:
    """Patterns that backtrack, for arguments and for structured content, and schemas that go round in circles."""
    ended = subprocess.run(
        [sys.executable, str(HERE / "patterns.py")],
        capture_output=True,
        text=True,
        check=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (60, 60)),
    )
    said, bad_arguments, *lines = ended.stdout.splitlines()
    assert (said, bad_arguments) == (
        "completed ['act', 'tell']",
        "error Tool 'act' was not run: its arguments do not fit.",
    )
    assert lines[0].startswith('- a: should match the pattern "^(a+)+$"; got "aaa')
    assert lines[1].startswith(
        "error The MCP server 'hostile' sent an invalid answer (tell): structured content does not match its schema: a"
    )
    assert lines[2:] == []
    for name, why in (("circle", "in a cycle"), ("circle_out", "in a cycle"), ("looks", "looks around")):
        assert any(f"its tool {name} is left out" in line and why in line for line in ended.stderr.splitlines())


@pytest.mark.ci
async def test_its_schemas_are_limited_together(logged: Lines) -> None:
    """Each within its limit, and too much in sum: the first tools are taken, and the rest is left out in one line."""
    async with hostile("large_schemas") as server:
        assert [tool.name for tool in server.tools] == [f"t{number}" for number in range(67)]
    assert sum("left out" in line for line in logged) == 1


@pytest.mark.parametrize("mode", ["wrong_shape", "error_text"])
async def test_its_answer_is_not_legal(mode: str) -> None:
    """A tool error, on one line, without our secrets and its control characters."""
    result = results(await acted(mode))[0]
    assert (result.state, "hostile" in result.text) == ("error", True)
    assert "\x1b" not in result.text
    assert TOKEN not in result.text


async def test_it_sends_a_line_without_an_end() -> None:
    """It is given up when the line is too long, and costs no memory beyond."""
    agent = await acted("long_line", max_size=1_000_000)
    assert "has ended" in results(agent)[0].text


async def test_a_result_that_is_too_long_is_cut() -> None:
    """The model reads how much was left out."""
    text = results(await acted("huge", max_size=4_000_000))[0].text
    assert len(text) == 3_000_000
    server = MCPServer.stdio(sys.executable, str(HERE / "demo_server.py"), max_size=1024 * 1024, name="demo")
    await server.close()


async def test_it_asks_for_more_than_it_may() -> None:
    """Sampling beyond the limit, roots and unknown methods are refused, and harm nothing."""
    agent = await acted("asks", ACT, *["x"] * 3, sampling=2)
    assert results(agent)[0].text == "asked"
    assert len(agent.config.model.requests) <= 4  # type: ignore[union-attr]


async def test_what_it_writes_to_its_standard_error(logged: Lines) -> None:
    """It is logged, without control characters and secrets, and bounded."""
    agent = await acted("stderr")
    assert results(agent)[0].text == "told"
    assert not any(TOKEN in line or "\x1b" in line for line in logged)


async def test_a_list_without_an_end() -> None:
    """It is read for so many pages."""
    server = hostile("endless_list")
    async with server:
        assert len(server.tools) == 100


async def test_an_http_answer_that_is_too_long() -> None:
    """It is not read to its end."""

    async def endless(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await receive()
            await send({"type": "lifespan.startup.complete"})
            await receive()
            await send({"type": "lifespan.shutdown.complete"})
            return
        headers = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for _ in range(200):
            await send({"type": "http.response.body", "body": b"x" * 100_000, "more_body": True})

    async with served(endless) as address:
        server = MCPServer.http(address, attempts=1, connect_timeout=5.0, max_size=200_000)
        with pytest.raises(ToolError, match="an answer of more than 200000 bytes"):
            await run(server)
        await server.close()


async def test_nothing_is_left() -> None:
    """Behind all that no task is left."""
    assert [task for task in asyncio.all_tasks() if task is not asyncio.current_task()] == []
