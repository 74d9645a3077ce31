"""An agent as an MCP server, driven by the SDK's own client."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from mcp import Client
from mcp.client.stdio import StdioServerParameters
from mcp_types import ElicitResult, ImageContent, TextContent
from offered import agent, log
from thorough import THOROUGH
from ways import HERE, STDIO, demo, results, served

from agentflow import Agent, DataBlock, Msg, TextBlock, ToolUseBlock, tool
from agentflow.errors import UsageError
from agentflow.mcp import MCPServer, agent_server
from agentflow.terminal.cli.failures import CommandError
from agentflow.terminal.cli.mcp_command import mcp
from agentflow.testing import ScriptedModel
from agentflow.vocabulary.ports.model import ModelRequest

WAYS = ("memory", "memory-legacy", STDIO, "http", "http-legacy")


@pytest.fixture(autouse=True)
def clean() -> None:
    log.clear()


@asynccontextmanager
async def client(way: str, tools: bool = False, sessions: bool = False, **options: Any) -> AsyncIterator[Client]:
    """The SDK's client, connected to the agent in some way."""
    if way.endswith("legacy"):
        options["mode"] = "legacy"
    if way.startswith("memory"):
        async with Client(agent_server(agent, tools=tools, sessions=sessions), **options) as made:
            yield made
    elif way == "stdio":
        flags = [flag for flag, given in (("--tools", tools), ("--sessions", sessions)) if given]
        command = StdioServerParameters(
            command=sys.executable, args=["-m", "agentflow", "mcp", "offered:agent", *flags], cwd=HERE, env=paths()
        )
        async with Client(command, **options) as made:
            yield made
    else:
        app = agent_server(agent, tools=tools, sessions=sessions).streamable_http_app()
        async with served(app) as address, Client(f"{address}/mcp", **options) as made:
            yield made


def paths() -> dict[str, str]:
    return {"PYTHONPATH": str(Path(sys.modules["agentflow"].__path__[0]).parent)}


def text(result: Any) -> str:
    return "\n".join(part.text for part in result.content if isinstance(part, TextContent))


@pytest.mark.parametrize("way", WAYS)
async def test_an_agent_is_asked(way: str) -> None:
    """The client sees one tool, and reads the agent's answer; its rounds and tool calls are progress."""
    told: list[str | None] = []

    async def progress(done: float, total: float | None, message: str | None) -> None:
        told.append(message)

    async with client(way) as made:
        [listed] = (await made.list_tools()).tools
        assert (listed.name, listed.description, list(listed.input_schema["properties"])) == (
            "scout",
            "Looks at things.",
            ["message"],
        )
        result = await made.call_tool("scout", {"message": "look: stars"}, progress_callback=progress)
        assert (text(result), result.is_error) == ("saw stars", False)
        denied = await made.call_tool("scout", {"message": "look: sun"})
        assert text(denied) == "Denied: too bright"
    assert sorted(filter(None, told)) == sorted(["round 1", "calls look", "look: success", "round 2"])


@pytest.mark.parametrize("way", WAYS)
async def test_its_tools_are_offered_if_asked(way: str) -> None:
    """They run with the agent's hooks; a failure is an error result, without passwords."""
    told: list[str | None] = []

    async def progress(done: float, total: float | None, message: str | None) -> None:
        told.append(message)

    async with client(way, tools=True) as made:
        listed = {one.name: one for one in (await made.list_tools()).tools}
        assert list(listed) == ["scout", "look", "wait", "pay", "picture", "steps", "broken"]
        assert listed["look"].input_schema["properties"]["at"]["description"] == "What."
        assert [listed[name].annotations.read_only_hint for name in ("look", "wait")] == [True, False]  # type: ignore[union-attr]
        assert text(await made.call_tool("look", {"at": "moon"})) == "saw moon"
        for name, arguments, expected in (
            ("look", {"at": "sun"}, "Denied: too bright"),
            ("look", {"to": "moon"}, "its arguments do not fit"),
            ("pay", {"euros": 3}, "pay needs approval, but this client cannot ask its user."),
            ("broken", {}, "ConnectionError: postgresql://ann:***@db is away"),
            ("nothing", {}, "There is no tool 'nothing' here."),
        ):
            result = await made.call_tool(name, arguments)
            assert (result.is_error, expected in text(result)) == (True, True), text(result)
        [image] = (await made.call_tool("picture", {})).content
        assert (image.type, getattr(image, "mime_type", "")) == ("image", "image/png")
        assert text(await made.call_tool("steps", {}, progress_callback=progress)) == "done"
    assert sorted(filter(None, told)) == ["one", "two"]


@pytest.mark.parametrize("way", WAYS)
async def test_a_conversation_goes_on_where_that_is_allowed(way: str) -> None:
    """Without a name each call is a new conversation; without the option a name is refused."""
    async with client(way, sessions=True) as made:
        await made.call_tool("scout", {"message": "Hello", "session": f"s-{way}"})
        result = await made.call_tool("scout", {"message": "history", "session": f"s-{way}"})
        assert text(result) == "Hello | You said 'Hello'. | history"
        assert text(await made.call_tool("scout", {"message": "history"})) == "history"
    async with client(way) as made:
        assert text(await made.call_tool("scout", {"message": "history", "session": f"s-{way}"})) == "history"


@pytest.mark.parametrize("way", WAYS)
async def test_what_fails_is_told(way: str) -> None:
    """A model that is away, an empty message: results that say so."""
    async with client(way) as made:
        for arguments, expected in (
            ({"message": "fail"}, "ConnectionError: the model is away"),
            ({"message": " "}, "'message' must be a non-empty string."),
            ({}, "'message' must be a non-empty string."),
        ):
            result = await made.call_tool("scout", arguments)
            assert (result.is_error, text(result)) == (True, expected)


@pytest.mark.parametrize("way", WAYS)
async def test_what_waits_for_a_person_is_asked_of_the_clients_user(way: str) -> None:
    """Approved it runs, declined it does not; a client that cannot ask reads what it waits for."""
    asked: list[str] = []

    def answering(**content: Any) -> Callable[..., Any]:
        async def answer(context: Any, params: Any) -> ElicitResult:
            asked.append(params.message)
            return ElicitResult(action="accept", content=content)

        return answer

    async with client(way, elicitation_callback=answering(approve=True)) as made:
        assert text(await made.call_tool("scout", {"message": "pay: 7"})) == "paid 7"
    async with client(way, elicitation_callback=answering(approve=False, reason="too much")) as made:
        assert text(await made.call_tool("scout", {"message": "pay: 8"})) == "Denied: too much"
    assert asked == ["May pay(euros=7) run?", "May pay(euros=8) run?"]
    async with client(way) as made:
        result = await made.call_tool("scout", {"message": "pay: 9"})
        assert (result.is_error, text(result)) == (
            True,
            "The agent waits for a person's decision: May pay(euros=9) run?.",
        )
    if way != "stdio":
        assert log == ["paid 7"]


@pytest.mark.parametrize("way", ["memory-legacy", "http-legacy"])
async def test_a_tool_that_needs_an_approval(way: str) -> None:
    """Offered by itself it asks too, where the protocol lets it."""

    async def answer(context: Any, params: Any) -> ElicitResult:
        return ElicitResult(action="accept", content={"approve": True})

    async with client(way, tools=True, elicitation_callback=answer) as made:
        assert text(await made.call_tool("pay", {"euros": 5})) == "paid 5"


@pytest.mark.parametrize("way", ["memory", "memory-legacy", "http", "http-legacy"])
@pytest.mark.parametrize("name", ["scout", "wait"])
async def test_a_client_that_cancels_cancels_the_call(way: str, name: str) -> None:
    """The tool that runs is cancelled, cleanup included, and the server serves on."""
    async with client(way, tools=True) as made:
        task = asyncio.create_task(made.call_tool(name, {"message": "wait: x"} if name == "scout" else {}))
        while "waiting" not in log:  # noqa: ASYNC110 - it is far away
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        while "cancelled" not in log:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert text(await made.call_tool("scout", {"message": "look: stars"})) == "saw stars"


async def test_our_client_and_our_server() -> None:
    """An agent uses another one through the protocol, over standard input and output."""
    server = MCPServer.stdio(
        sys.executable, "-m", "agentflow", "mcp", "offered:agent", env=paths(), cwd=HERE, name="scout"
    )
    asker = Agent(
        "asker", ScriptedModel([ToolUseBlock("t1", "scout", {"message": "look: stars"}), "Stars."]), tools=[server]
    )
    async with asker:
        assert (await asker.call("What is there?")).text == "Stars."
    assert results(asker)[0].text == "saw stars"


async def test_a_reply_is_passed_on_with_its_images() -> None:
    """In the order of its parts; one without a part is an empty text."""
    drawn = Msg.assistant([TextBlock("Look:"), DataBlock("image/png", data="iVBORw=="), TextBlock("Done.")])
    artist = Agent("artist", ScriptedModel([drawn, Msg.assistant([])]), default_hooks=())
    async with Client(agent_server(artist)) as made:
        answers = [(await made.call_tool("artist", {"message": text})).content for text in ("Draw", "And?")]
    assert answers == [
        [TextContent(text="Look:"), ImageContent(data="iVBORw==", mime_type="image/png"), TextContent(text="Done.")],
        [TextContent(text="")],
    ]


def test_a_tool_of_the_agents_name() -> None:
    """Both cannot be offered."""
    from agentflow import tool

    @tool
    async def twin() -> str:
        return ""

    with pytest.raises(UsageError, match="has a tool with the agent's name"):
        agent_server(Agent("twin", ScriptedModel([]), tools=[twin]), tools=True)


@pytest.mark.ci
@pytest.mark.parametrize(
    ("address", "url", "ending"),
    [
        ("0", "http://127.0.0.1:", signal.SIGINT),
        pytest.param("localhost:0", "http://127.0.0.1:", signal.SIGTERM, marks=pytest.mark.ci),
        pytest.param("[::1]:0", "http://[::1]:", signal.SIGTERM, marks=pytest.mark.ci),
    ],
)
async def test_the_command_over_http(address: str, url: str, ending: signal.Signals) -> None:
    """`agentflow mcp --http` says where it listens, serves, and ends at Ctrl-C or SIGTERM with success."""
    process = await asyncio.create_subprocess_exec(
        *[sys.executable, "-m", "agentflow", "mcp", "offered:agent", "--http", address],
        cwd=HERE,
        env={"PATH": "/usr/bin:/bin", **paths()},
        stderr=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stderr is not None
    said = (await asyncio.wait_for(process.stderr.readline(), 120)).decode()
    assert said.startswith(f"agentflow: scout is served over MCP at {url}")
    async with Client(said.split()[-1]) as made:
        assert text(await made.call_tool("scout", {"message": "look: stars"})) == "saw stars"
    process.send_signal(ending)
    rest = await asyncio.wait_for(process.communicate(), 60)
    assert (process.returncode, rest) == (0, (b"", b""))


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("x", "expected HOST:PORT or PORT"),
        ("127.0.0.1:99999", "with a port up to 65535"),
        ("no.such.host.invalid:0", "not an address or name of this machine"),
    ],
)
def test_an_address_that_is_none(address: str, why: str) -> None:
    """The command says what would be legal."""
    with pytest.raises(CommandError, match=why) as refused:
        mcp.main(["offered:agent", "--http", address], standalone_mode=False)
    assert refused.value.exit_code == 2


MANY = 60 if THOROUGH else 20


@pytest.mark.ci
@pytest.mark.parametrize("way", ["memory", "http", "http-legacy"])
async def test_many_clients_list_the_tools_at_once(way: str) -> None:
    """Each gets all of them: in memory, and over HTTP with and without a session of its own."""

    @tool
    async def look(at: str) -> str:
        """Look."""
        return at

    server = agent_server(Agent("clerk", ScriptedModel(["x"]), tools=[look]), tools=True)
    connected, all_connected = 0, asyncio.Event()

    async def names(to: Any) -> tuple[str, ...]:
        nonlocal connected
        async with Client(to, mode="legacy" if way == "http-legacy" else "auto") as made:
            connected += 1
            if connected == MANY:
                all_connected.set()
            await all_connected.wait()
            return tuple([one.name for one in (await made.list_tools()).tools])

    if way == "memory":
        listed = await asyncio.gather(*[names(server) for _ in range(MANY)])
    else:
        async with served(server.streamable_http_app()) as address:
            listed = await asyncio.gather(*[names(f"{address}/mcp") for _ in range(MANY)])
    assert (len(listed), set(listed)) == (MANY, {("clerk", "look")})


@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_a_question_of_the_agents_own_server_is_passed_on(mode: str) -> None:
    """The client's user fills in the form of the agent's MCP server, with its schema; a decline reaches the server."""
    forms: list[tuple[str, list[str]]] = []

    def answering(answer: ElicitResult) -> Callable[..., Any]:
        async def asked(context: Any, params: Any) -> ElicitResult:
            forms.append((params.message, sorted(params.requested_schema["properties"])))
            return answer

        return asked

    async with demo("memory-legacy", approve="never") as server:
        brain = ScriptedModel(lambda request: text_of(request) or ToolUseBlock("t", "ask_name"))
        offered = agent_server(Agent("desk", brain, tools=[server]), tools=["ask_name"])
        filled = answering(ElicitResult(action="accept", content={"name": "Ada"}))
        async with Client(offered, mode=mode, elicitation_callback=filled) as made:
            by_agent = await made.call_tool("desk", {"message": "Go"})
            directly = await made.call_tool("ask_name", {}) if mode == "legacy" else None
        asked = [("demo: What is your name?", ["name"]), ("demo: Is it Ada?", ["name"])]
        assert forms == asked * (2 if mode == "legacy" else 1)
        assert text(by_agent) == "Ada, Ada"
        assert directly is None or text(directly) == "Ada, Ada"
        async with Client(offered, mode=mode, elicitation_callback=answering(ElicitResult(action="decline"))) as made:
            assert text(await made.call_tool("desk", {"message": "Go"})) == "nobody said: decline"


def text_of(request: ModelRequest) -> str:
    """The last tool result in a request."""
    return "".join(result.text for result in request.messages[-1].tool_results)
