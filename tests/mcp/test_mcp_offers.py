"""What an agent's server has besides tools, where it is given: prompts, resources, suggestions, a log."""

from __future__ import annotations

import base64
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from mcp import Client, MCPError
from mcp_types import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    EmbeddedResource,
    EmptyResult,
    LoggingMessageNotificationParams,
    PromptReference,
    ResourceTemplateReference,
    SetLevelRequest,
    SetLevelRequestParams,
    TextResourceContents,
)
from offered import agent
from ways import served

from agentflow import Agent, DataBlock, Msg, TextBlock
from agentflow.errors import UsageError
from agentflow.mcp import Suggest, agent_server
from agentflow.mcp.offers import content_of
from agentflow.testing import ScriptedModel

WAYS = ("memory", "memory-legacy", "http", "http-legacy")


@asynccontextmanager
async def client(way: str, offered: dict[str, Any], who: Agent = agent, **options: Any) -> AsyncIterator[Client]:
    """The SDK's client of an agent with what is offered."""
    if way.endswith("legacy"):
        options["mode"] = "legacy"
    server = agent_server(who, **offered)
    if way.startswith("memory"):
        async with Client(server, **options) as made:
            yield made
    else:
        async with served(server.streamable_http_app()) as address, Client(f"{address}/mcp", **options) as made:
            yield made


async def cities(typed: str) -> list[str]:
    return [name for name in ("Bern", "Bonn", "Rome") if name.startswith(typed)]


async def review(
    code: str, style: Literal["short", "long"] = "short", city: Annotated[str, Suggest(cities)] = ""
) -> str:
    """Review code.

    Args:
        code: What is reviewed.
        style: How.
    """
    if code == "fail":
        raise ConnectionError("postgresql://ann:secret@db is away")
    return f"Review {code}, {style}{city}"


def picture() -> list[str | Msg]:
    return [Msg("user", (DataBlock("image/png", data="iVBORw=="),)), "What is this?", Msg.assistant("A picture.")]


def wrong() -> Any:
    return [Msg.system("obey")]


def silent() -> Any:
    return None


PROMPTS = {"prompts": [review, picture, wrong, silent]}


@pytest.mark.parametrize("way", WAYS)
async def test_prompts(way: str) -> None:
    """A function's name, docstring and parameters are what is listed; filled in, it gives messages."""
    async with client(way, PROMPTS) as made:
        [first, *others] = (await made.list_prompts()).prompts
        assert (first.name, first.description, [one.name for one in others]) == (
            "review",
            "Review code.",
            ["picture", "wrong", "silent"],
        )
        assert [(one.name, one.description, one.required) for one in first.arguments or []] == [
            ("code", "What is reviewed.", True),
            ("style", "How.", False),
            ("city", None, False),
        ]
        [message] = (await made.get_prompt("review", {"code": "x = 1"})).messages
        assert (message.role, getattr(message.content, "text", "")) == ("user", "Review x = 1, short")
        messages = (await made.get_prompt("picture")).messages
        assert [(one.role, one.content.type) for one in messages] == [
            ("user", "image"),
            ("user", "text"),
            ("assistant", "text"),
        ]


@pytest.mark.parametrize("way", WAYS)
async def test_prompts_that_are_asked_for_wrongly(way: str) -> None:
    """They are errors of the protocol that say what fits, and a function that fails is one without passwords."""
    async with client(way, PROMPTS) as made:
        for name, arguments, code, said in (
            ("nothing", {}, INVALID_PARAMS, "There is no prompt 'nothing' here."),
            ("x" * 300, {}, INVALID_PARAMS, f"There is no prompt '{'x' * 200}' here."),
            ("review", {}, INVALID_PARAMS, "review: missing ['code'], unknown []; it takes ['city', 'code', 'style']."),
            ("review", {"code": "x", "by": "y"}, INVALID_PARAMS, "unknown ['by']"),
            ("review", {"code": "x", "style": "odd"}, INVALID_PARAMS, "style must be one of ['short', 'long']"),
            ("review", {"code": "fail"}, INTERNAL_ERROR, "ConnectionError: postgresql://ann:***@db is away"),
            ("wrong", {}, INTERNAL_ERROR, "wrong did not return a prompt"),
            ("silent", {}, INTERNAL_ERROR, "silent did not return a prompt"),
        ):
            with pytest.raises(MCPError) as caught:
                await made.get_prompt(name, arguments)
            assert (caught.value.code, said in caught.value.message) == (code, True), caught.value.message


def note(day: str, place: str = "home") -> dict[str, str]:
    """A note by its day."""
    return {"day": day}


async def conversation(session: str) -> Any:
    return await agent.history(session)


def resources(folder: Path) -> dict[str, Any]:
    (folder / "notes.md").write_text("buy milk")
    (folder / "pixel.png").write_bytes(b"\x89PNG")
    (folder / "odd.txt").write_bytes(b"\xff\xfe")
    os.mkfifo(folder / "pipe")
    files = {f"files://{one.name}": one for one in sorted(folder.iterdir())}

    def raw() -> bytes:
        return b"\x00\x01"

    def today() -> str:
        return "sunny"

    def linked() -> list[DataBlock | TextBlock]:
        return [DataBlock("image/png", url="https://example.org/x.png")]

    def by_day(day: str) -> dict[str, str]:
        """A note by its day."""
        return {"day": day}

    more = {
        "notes://raw": raw,
        "notes://linked": linked,
        "notes://today": today,
        "notes://{day}/text": by_day,
        "talk://{session}": conversation,
    }
    return {"resources": {**files, "files://gone": folder / "gone", **more}}


def test_a_file_of_a_message_is_embedded_by_its_name() -> None:
    """Pictures and sounds have forms of their own, without a name."""
    files = [DataBlock(kind, data="aQ==", name=name) for kind, name in FILES]
    made = [content_of(file) for file in files]
    assert [one.type for one in made] == ["image", "audio", "resource", "resource"]
    assert [one.resource.uri for one in made if isinstance(one, EmbeddedResource)] == ["data:a.pdf", "data:"]


FILES = [("image/png", "a.png"), ("audio/wav", "a.wav"), ("application/pdf", "a.pdf"), ("application/pdf", None)]


@pytest.mark.parametrize("way", WAYS)
async def test_resources(way: str, tmp_path: Path) -> None:
    """Files and functions are read when a client reads them; conversations too, where a function gives them."""
    await agent.call("Hello", session=f"r-{way}")
    async with client(way, resources(tmp_path)) as made:
        listed = {one.uri: (one.name, one.mime_type) for one in (await made.list_resources()).resources}
        assert (listed["files://notes.md"], listed["notes://today"]) == (("notes.md", "text/markdown"), ("today", None))
        templates = (await made.list_resource_templates()).resource_templates
        assert [(one.uri_template, one.description) for one in templates] == [
            ("notes://{day}/text", "A note by its day."),
            ("talk://{session}", None),
        ]
        for uri, kind, said in (
            ("files://notes.md", "text/markdown", "buy milk"),
            ("files://pixel.png", "image/png", b"\x89PNG"),
            ("files://odd.txt", "text/plain", b"\xff\xfe"),
            ("notes://raw", "application/octet-stream", b"\x00\x01"),
            ("notes://today", "text/plain", "sunny"),
            ("notes://linked", "text/uri-list", "https://example.org/x.png"),
            ("notes://monday/text", "application/json", '{"day":"monday"}'),
        ):
            [content] = (await made.read_resource(uri)).contents
            given = content.text if isinstance(content, TextResourceContents) else base64.b64decode(content.blob)
            assert (str(content.uri), content.mime_type, given) == (uri, kind, said)
        [talk] = (await made.read_resource(f"talk://r-{way}")).contents
        assert isinstance(talk, TextResourceContents)
        assert "You said 'Hello'." in talk.text


@pytest.mark.parametrize("way", WAYS)
async def test_resources_that_cannot_be_read(way: str, tmp_path: Path) -> None:
    """What was not given is not there, ways up are refused, and no error shows a path of this machine."""
    async with client(way, resources(tmp_path)) as made:
        for uri, code, said in (
            ("files://other", INVALID_PARAMS, "There is no resource 'files://other' here."),
            ("file:///etc/passwd", INVALID_PARAMS, "There is no resource"),
            ("notes://..%2F..%2Fetc/text", INVALID_PARAMS, "text', day leads out of a folder"),
            ("notes://%2Fetc/text", INVALID_PARAMS, "leads out of a folder"),
            ("notes://a%00b/text", INVALID_PARAMS, "leads out of a folder"),
            ("files://pipe", INTERNAL_ERROR, "files://pipe cannot be read: it is not a file."),
            ("files://gone", INTERNAL_ERROR, "files://gone cannot be read: it is not a file."),
        ):
            with pytest.raises(MCPError) as caught:
                await made.read_resource(uri)
            said_all = caught.value.message
            assert (caught.value.code, said in said_all, str(tmp_path) in said_all) == (code, True, False), said_all


def many(day: Annotated[str, Suggest(lambda typed: [f"{typed}{number}" for number in range(150)])]) -> str:
    return day


def broken(typed: str) -> list[str]:
    raise OSError("away")


def odd(day: Annotated[str, Suggest(broken)]) -> str:
    return day


@pytest.mark.parametrize("way", WAYS)
async def test_suggestions(way: str) -> None:
    """A Literal suggests its values, a function what it likes, at most a hundred; other arguments nothing."""

    offered = {**PROMPTS, "resources": {"days://{day}": many, "odd://{day}": odd}}
    async with client(way, offered) as made:
        prompt = PromptReference(name="review")
        for argument, typed, expected in (
            ("style", "S", ["short"]),
            ("city", "B", ["Bern", "Bonn"]),
            ("code", "x", []),
        ):
            found = (await made.complete(prompt, {"name": argument, "value": typed})).completion
            assert (found.values, found.total, found.has_more) == (expected, len(expected), False)
        days = ResourceTemplateReference(uri="days://{day}")
        found = (await made.complete(days, {"name": "day", "value": "d"})).completion
        assert (len(found.values), found.total, found.has_more) == (100, 150, True)
        unknown, failing = PromptReference(name="x"), ResourceTemplateReference(uri="odd://{day}")
        for ref, name in ((prompt, "nothing"), (unknown, "y"), (failing, "day")):
            with pytest.raises(MCPError):
                await made.complete(ref, {"name": name, "value": ""})


@pytest.mark.parametrize("way", WAYS)
async def test_nothing_is_offered_by_itself(way: str) -> None:
    """The capabilities say so, and the requests are refused."""
    async with client(way, {}) as made:
        can = made.server_capabilities
        assert (can.prompts, can.resources, can.logging, can.completions) == (None, None, None, None)
        for ask in (made.list_prompts, made.list_resources, made.list_resource_templates):
            with pytest.raises(MCPError) as caught:
                await ask()
            assert caught.value.code == METHOD_NOT_FOUND

    def plain(text: str) -> str:
        return text

    async with client(way, {"prompts": [plain]}) as made:
        can = made.server_capabilities
        assert (can.prompts is None, can.resources, can.logging, can.completions) == (False, None, None, None)


def several(*texts: str) -> str:
    return ""


def number(count: int) -> str:
    return ""


def unreadable(text: Missing) -> str:  # type: ignore[name-defined]  # noqa: F821
    return ""


def levels(level: Literal["a", 2]) -> str:  # type: ignore[valid-type]
    return ""


@pytest.mark.parametrize(
    ("offered", "said"),
    [
        ({"prompts": [review, review]}, "two are named 'review'"),
        ({"prompts": [lambda: "x"]}, "is not a function with a name"),
        ({"prompts": ["review"]}, "is not a function with a name"),
        ({"prompts": [several]}, "has no name of its own"),
        ({"prompts": [number]}, "count must be a str, or a Literal"),
        ({"prompts": [unreadable]}, "annotations of unreadable cannot be resolved"),
        ({"prompts": [levels]}, "level must be a str, or a Literal"),
        ({"resources": {"notes": picture}}, "must begin with a scheme"),
        ({"resources": {"notes://{": picture}}, "resources"),
        ({"resources": {"notes://x": "notes.txt"}}, r"pass a pathlib\.Path for a file"),
        ({"resources": {"notes://{day}": Path("x")}}, "the URI of a file must not contain"),
        ({"resources": {"notes://{days*}": number}}, "Explode modifier"),
        ({"resources": {"notes://{day}": note}}, "parameters must be those of the URI"),
        ({"resources": {"notes://{/session*}": conversation}}, "parameters must be those of the URI"),
    ],
)
def test_what_cannot_be_offered(offered: dict[str, Any], said: str) -> None:
    """It is refused when the server is made."""
    with pytest.raises(UsageError, match=said):
        agent_server(agent, **offered)


@pytest.mark.parametrize("way", WAYS)
async def test_a_log(way: str) -> None:
    """A client gets the log of its own calls, from the requested level on; without the option, none."""
    for offered, level, expected in (
        (True, None, ["info round 1", "info calls look", "info look: success", "info round 2", "info completed"]),
        (True, "warning", []),
        (False, None, []),
    ):
        lines: list[str] = []

        async def take(params: LoggingMessageNotificationParams, lines: list[str] = lines) -> None:
            assert params.logger == "scout"
            lines.append(f"{params.level} {params.data}")

        asked = "info" if level is None else level
        async with client(way, {"log": offered}, logging_callback=take, log_level=asked) as made:
            assert (made.server_capabilities.logging is None) is not offered
            if offered and level is not None and way.endswith("legacy"):
                request = SetLevelRequest(params=SetLevelRequestParams(level="warning"))
                await made.session.send_request(request, EmptyResult)
            await made.call_tool("scout", {"message": "look: stars"})
            if way.endswith("legacy"):
                await made.session.send_ping()
        assert sorted(lines) == sorted(expected)


@pytest.mark.parametrize("way", WAYS)
async def test_a_log_of_what_fails(way: str) -> None:
    """A failure is a warning or an error, without passwords; a tool's own chunks come at level debug."""
    lines: list[str] = []

    async def take(params: LoggingMessageNotificationParams) -> None:
        lines.append(f"{params.level} {params.data}")

    async with client(way, {"log": True, "tools": True}, logging_callback=take, log_level="debug") as made:
        if way.endswith("legacy"):
            await made.session.send_request(SetLevelRequest(params=SetLevelRequestParams(level="debug")), EmptyResult)
        await made.call_tool("scout", {"message": "look: sun"})
        await made.call_tool("look", {"at": "sun"})
        await made.call_tool("broken", {})
        await made.call_tool("steps", {})
        await made.call_tool("scout", {"message": "fail"})
        if way.endswith("legacy"):
            await made.session.send_ping()
    for line in (
        *("warning look: denied", "error broken: ConnectionError: postgresql://ann:***@db is away"),
        *("debug steps: one", "debug steps: two", "info steps: success", "error ConnectionError: the model is away"),
        "info failed",
    ):
        assert line in lines, lines
    assert not any("secret" in line for line in lines)


async def test_two_clients_have_levels_of_their_own() -> None:
    """What one sets is not the other's."""
    server = agent_server(Agent("scout", ScriptedModel(lambda request: "Hello.")), log=True)
    counts: list[int] = []
    for level in ("warning", None):
        lines: list[object] = []

        async def take(params: LoggingMessageNotificationParams, lines: list[object] = lines) -> None:
            lines.append(params.data)

        async with Client(server, mode="legacy", logging_callback=take) as made:
            if level == "warning":
                await made.session.send_request(SetLevelRequest(params=SetLevelRequestParams(level=level)), EmptyResult)
            await made.call_tool("scout", {"message": "Hi"})
            await made.session.send_ping()
        counts.append(len(lines))
    assert counts == [0, 2]
