"""The recipe of the web backend: the browser's data, disconnects, decisions, tabs, fifty clients."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import socket
import struct
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from web_client import LIMIT, connected, events, served, text_of  # isort: skip - it finds the sample
import backend
from backend import make_app

from agentflow import (
    Agent,
    CallEnded,
    MemoryStore,
    ModelChunk,
    ModelRequest,
    Msg,
    PreActing,
    Stop,
    Suspend,
    ToolUseBlock,
    on,
    tool,
)
from agentflow.testing import ScriptedModel

LABELS = {"search": "Searching", "pay": "Paying"}


@tool(type="read")
async def search(query: str) -> AsyncIterator[str]:
    yield "SECRET progress"
    if "fail" in query:
        raise RuntimeError("SECRET password of the database")
    yield "SECRET result"


class Ends:
    """How the calls of an agent end; each can be waited for."""

    def __init__(self) -> None:
        self.queue: asyncio.Queue[str] = asyncio.Queue()
        self.hook = on(CallEnded)(self._ended)

    def _ended(self, event: CallEnded) -> None:
        self.queue.put_nowait(event.outcome)

    async def next(self) -> str:
        """The next end."""
        return await asyncio.wait_for(self.queue.get(), LIMIT)


def without_ids(seen: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{key: value for key, value in event.items() if key != "id"} for event in seen]


async def test_a_browser_gets_what_is_listed_and_nothing_else() -> None:
    """Text and labelled tool states; no thoughts, arguments, progress, results, errors, names of tools or notes of hooks."""
    calls = [ToolUseBlock("t1", "search", {"query": "SECRET"}), ToolUseBlock("t2", "search", {"query": "SECRET fail"})]
    model = ScriptedModel(
        [
            [ModelChunk(thinking="SECRET thought"), "Let me ", "see.", *calls],
            [ToolUseBlock("t3", "SECRET_tool", {"key": "SECRET"})],
            ["Here it ", "is."],
        ]
    )

    @on(PreActing)
    def note(event: PreActing) -> None:
        event.context.inject(Msg.user("SECRET note"), Msg.assistant("SECRET thought of a hook"))

    agent = Agent("a", model, tools=[search], hooks=[note])
    async with served(make_app(agent, LABELS)) as url, connected(url) as client:
        seen = await client.chat("Find it\u2028, \u202eplease")
        stored = await client.history()
    assert "SECRET" not in json.dumps([seen, stored])
    tools = {event["id"]: event["state"] for event in seen if event["type"] == "tool"}
    assert tools == {"t1": "success", "t2": "error", "t3": "not_found"}
    assert without_ids([event for event in seen if event["type"] != "tool"]) == [
        {"type": "text", "text": "Let me ", "restart": False},
        {"type": "text", "text": "see.", "restart": False},
        {"type": "reply", "text": "Let me see."},
        {"type": "text", "text": "Here it ", "restart": False},
        {"type": "text", "text": "is.", "restart": False},
        {"type": "reply", "text": "Here it is."},
        {"type": "end", "outcome": "completed", "text": "Here it is.", "questions": []},
    ]
    assert without_ids(stored["messages"]) == [
        {"type": "user", "text": "Find it\u2028, \u202eplease"},
        {"type": "reply", "text": "Let me see."},
        {"type": "tool", "label": "Searching", "state": "success"},
        {"type": "tool", "label": "Searching", "state": "error"},
        {"type": "tool", "label": "Working", "state": "not_found"},
        {"type": "reply", "text": "Here it is."},
    ]
    said = {event["id"] for event in seen if event["type"] == "reply"}
    assert said == {message["id"] for message in stored["messages"] if message["type"] == "reply"}


async def test_a_failure_is_a_reference_for_the_browser_and_a_text_for_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A failure is in the log, under the browser's reference; the conversation continues."""
    agent = Agent("a", ScriptedModel([["I am ", ConnectionError("SECRET key is wrong")], "Better."]))
    async with served(make_app(agent, {})) as url, connected(url) as client:
        with caplog.at_level(logging.ERROR, "backend"):
            *_, end = await client.chat("Hi")
        assert (await client.chat("Again"))[-1]["text"] == "Better."
    assert end == {"type": "end", "outcome": "failed", "reference": end["reference"]}
    assert re.fullmatch("[0-9a-f]{8}", end["reference"])
    assert end["reference"] in caplog.text
    assert "SECRET key is wrong" in caplog.text


async def test_a_script_that_is_used_up_is_a_failure_too() -> None:
    """If the script of an offline trial is exhausted, the user reads that the call failed."""
    async with served(make_app(Agent("a", ScriptedModel(["One."])), {})) as url, connected(url) as client:
        assert (await client.chat("Hi"))[-1]["text"] == "One."
        assert (await client.chat("Again"))[-1]["outcome"] == "failed"


async def test_closing_texts_are_shown() -> None:
    """The reason of a `Stop`, which no model has said, is shown at the end, and in the history."""

    @on("before_llm")
    def stop(event: Any) -> Stop:
        return Stop("We are closed today.")

    agent = Agent("a", ScriptedModel([]), hooks=[stop])
    async with served(make_app(agent, {})) as url, connected(url) as client:
        [end] = await client.chat("Hi")
        assert (end["outcome"], end["text"]) == ("stopped", "We are closed today.")
        assert (await client.history())["messages"][-1] == {"type": "reply", "id": end["id"], "text": end["text"]}


@pytest.mark.parametrize("kept", ["memory", "sqlite"])
@pytest.mark.parametrize("where", ["the model speaks", "a tool runs"])
async def test_a_client_that_goes_interrupts_its_call(tmp_path: Path, kept: str, where: str) -> None:
    """The call ends at once, its history is closed and legal, and the next call continues."""
    ends = Ends()
    held = asyncio.Event()

    @tool(timeout=None)
    async def work() -> str:
        held.set()
        await asyncio.Event().wait()
        return "never"

    speaks = where == "the model speaks"
    line: Any = ["Once upon ", "a time", asyncio.Event().wait] if speaks else ["Once upon ", ToolUseBlock("t1", "work")]
    model = ScriptedModel([line, "And?"])
    store = MemoryStore() if kept == "memory" else f"sqlite:///{tmp_path / 'web.db'}"
    agent = Agent("a", model, tools=[work], hooks=[ends.hook], store=store)
    async with served(make_app(agent, {})) as url, connected(url) as client:
        async with client.post("chat", {"text": "A story"}) as response:
            async for event in events(response):
                if event.get("text") == "a time" or event.get("state") == "running":
                    break
            if not speaks:
                await held.wait()
            response.close()  # the connection, as when a tab is closed or its process is killed
        assert await ends.next() == "interrupted"
        assert model.open_streams == 0
        while (stored := await client.history())["running"]:
            pass  # each look is a round trip
        shown = [message.get("text", message.get("state")) for message in stored["messages"]]
        assert shown == ["A story", "Once upon a time"] if speaks else ["A story", "Once upon ", "interrupted"]
        assert (await client.chat("Go on"))[-1]["text"] == "And?"
    await agent.close()


async def test_a_client_that_does_not_read_holds_its_own_call_only_and_may_go() -> None:
    """A flood stops at a reader that reads nothing; others are answered; when the connection breaks the call is interrupted."""
    ends = Ends()
    said = 0

    async def flood(request: ModelRequest) -> Any:
        nonlocal said
        if request.messages[-1].text != "Flood":
            return "Yes."

        async def piece() -> str:
            nonlocal said
            said += 1
            await asyncio.sleep(0)  # a wire is waited for
            return "x" * 10_000

        return [piece] * 100_000

    agent = Agent("a", ScriptedModel(flood), hooks=[ends.hook])
    async with served(make_app(agent, {})) as url, connected(url) as client, connected(url) as other:
        [cookie] = client.http.cookie_jar
        port = int(url.rsplit(":", 1)[1])
        body = json.dumps({"text": "Flood"})
        head = f"POST /chat HTTP/1.1\r\nHost: x\r\nCookie: {cookie.key}={cookie.value}\r\nContent-Type: application/json\r\n"
        raw = socket.create_connection(("127.0.0.1", port))
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # closing it resets it
        raw.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode())
        while not (await client.history())["running"]:
            pass
        assert (await other.chat("Are you there?"))[-1]["text"] == "Yes."
        assert await ends.next() == "completed"
        raw.close()
        assert await ends.next() == "interrupted"
    assert said < 100_000


async def test_a_second_tab() -> None:
    """While a call runs another one is refused, the history says that it runs, and any tab can stop it."""
    model = ScriptedModel([["One, ", asyncio.Event().wait], "Two."])
    async with (
        served(make_app(Agent("a", model), {})) as url,
        connected(url) as client,
        connected(url, client.http.cookie_jar) as tab,
        connected(url) as stranger,
        client.post("chat", {"text": "Count"}) as response,
    ):
        first = events(response)
        assert (await anext(first))["text"] == "One, "
        assert await tab.status("chat", {"text": "Me too"}) == 409
        assert await tab.status("resume", {}) == 409
        assert (await tab.history())["running"]
        assert not (await stranger.history())["running"]
        async with stranger.post("stop", {}) as refused:
            assert await refused.json() == {"stopped": False}
        async with tab.post("stop", {}) as stopped:
            assert await stopped.json() == {"stopped": True}
        assert [event async for event in first][-1]["outcome"] == "interrupted"
        assert not (await tab.history())["running"]
        assert (await tab.chat("Me too"))[-1]["text"] == "Two."
        async with tab.post("stop", {}) as idle:
            assert await idle.json() == {"stopped": False}


def cashier(log: list[int]) -> Agent:
    """An agent that asks before it pays."""

    @tool
    async def pay(euros: int, to: str) -> str:
        log.append(euros)
        return "SECRET receipt"

    @on(PreActing)
    def ask(event: PreActing) -> Suspend:
        return Suspend({"question": f"Pay {event.tool_use.input['to']}?", "SECRET": "for the log"})

    def brain(request: ModelRequest) -> Any:
        if request.messages[-1].role == "tool":
            return "Paid." if request.messages[-1].tool_results[0].state == "success" else "As you like."
        return ToolUseBlock("t1", "pay", {"euros": 5, "to": "Ann\u202e\u200b\x07\n<b>Bob</b>"})

    return Agent("cashier", ScriptedModel(brain), tools=[pay], hooks=[ask])


async def test_a_decision_by_the_web() -> None:
    """The question is the hook's text, without invisible characters; only its answer is legal next."""
    paid: list[int] = []
    async with served(make_app(cashier(paid), LABELS)) as url, connected(url) as client:
        seen = await client.chat("Pay Ann")
        question = {"id": "t1", "question": "Pay Ann\\u202e\\u200b\\x07\n<b>Bob</b>?"}
        assert (seen[-1]["outcome"], seen[-1]["questions"], seen[-1]["text"]) == ("suspended", [question], "")
        assert (await client.history())["questions"] == [question]
        assert "SECRET" not in json.dumps([seen, await client.history()])
        for path, data in (
            ("chat", {"text": "Hello?"}),
            ("resume", {}),
            ("resume", {"decisions": {"t2": True}}),
            ("resume", {"decisions": {"t1": True, "t2": True}}),
            ("resume", {"decisions": [["t1", True]]}),
        ):
            assert await client.status(path, data) == 409
        assert paid == []
        assert (await client.call("resume", {"decisions": {"t1": True}}))[-1]["text"] == "Paid."
        assert await client.status("resume", {"decisions": {"t1": True}}) == 409
        assert paid == [5]
        await client.chat("And Bob")
        [waits] = (await client.history())["questions"]
        no = await client.call("resume", {"decisions": {waits["id"]: "true"}})  # only `true` is a yes
        assert (no[-1]["text"], paid) == ("As you like.", [5])


async def test_two_tabs_decide_at_once() -> None:
    """One of them continues, the other is refused, and the tool runs once."""
    paid: list[int] = []
    async with (
        served(make_app(cashier(paid), LABELS)) as url,
        connected(url) as client,
        connected(url, client.http.cookie_jar) as tab,
    ):
        await client.chat("Pay Ann")
        both = [one.status("resume", {"decisions": {"t1": True}}) for one in (client, tab)]
        assert sorted(await asyncio.gather(*both)) == [200, 409]
        while (await client.history())["running"]:
            pass
    assert paid == [5]


async def test_fifty_clients_at_once() -> None:
    """All fifty calls are under way together, and each client reads its own conversation only."""
    together = asyncio.Barrier(50)

    async def meet() -> None:
        await together.wait()

    def brain(request: ModelRequest) -> Any:
        said = request.messages[-1].text
        return ["You ", meet, f"said {said}."] if len(request.messages) == 1 else "Yes."

    async def one(url: str, number: int) -> None:
        async with connected(url) as client:
            seen = await client.chat(f"number {number}")
            assert text_of(seen) == seen[-1]["text"] == f"You said number {number}."
            assert (await client.chat("again"))[-1]["text"] == "Yes."
            stored = (await client.history())["messages"]
            assert [message["text"] for message in stored if message["type"] == "user"] == [f"number {number}", "again"]

    agent = Agent("a", ScriptedModel(brain))
    async with served(make_app(agent, {})) as url:
        await asyncio.gather(*[one(url, number) for number in range(50)])


async def test_silence_is_filled(monkeypatch: pytest.MonkeyPatch) -> None:
    """While nothing happens a comment is sent now and then: no proxy takes the response for dead."""
    monkeypatch.setattr(backend, "HEARTBEAT", 0.01)
    go = asyncio.Event()

    async def wait() -> None:
        await go.wait()

    agent = Agent("a", ScriptedModel([[wait, "Here."]]))
    async with (
        served(make_app(agent, {})) as url,
        connected(url) as client,
        client.post("chat", {"text": "Hi"}) as response,
    ):
        for _ in range(3):
            assert await response.content.readuntil(b"\n\n") == b":\n\n"
        go.set()
        assert [event async for event in events(response)][-1]["text"] == "Here."


JSON = {"Content-Type": "application/json"}


@pytest.mark.parametrize(
    ("path", "headers", "body", "status"),
    [
        ("chat", {"Content-Type": "text/plain"}, '{"text": "Hi"}', 415),
        ("chat", {"Content-Type": "application/x-www-form-urlencoded"}, "text=Hi", 415),
        ("chat", JSON, "{", 400),
        ("chat", JSON, "[" * 50_000, 400),
        ("chat", JSON, '["text"]', 400),
        ("chat", JSON, b"\xff\xfe", 400),
        ("chat", JSON, '{"text": 1}', 400),
        ("chat", JSON, '{"text": " \\n"}', 400),
        ("chat", JSON, json.dumps({"text": "x" * 8_001}), 413),
        ("chat", JSON, json.dumps({"text": "x" * 70_000}), 413),
        ("resume", JSON, "{}", 409),
        ("stop", JSON, "nothing", 400),
    ],
)
async def test_what_is_refused(path: str, headers: dict[str, str], body: Any, status: int) -> None:
    """A request that is not one is refused before anything happens, as JSON, with the headers of every response."""
    agent = Agent("a", ScriptedModel([]))
    async with (
        served(make_app(agent, {})) as url,
        connected(url) as client,
        client.http.post(f"{url}/{path}", data=body, headers=headers) as response,
    ):
        assert (response.status, list(await response.json())) == (status, ["error"])
        assert "default-src 'none'" in response.headers["Content-Security-Policy"]
        assert response.headers["X-Content-Type-Options"] == "nosniff"
        assert (await client.history())["messages"] == []


async def test_whose_conversation_it_is() -> None:
    """A request without our cookie has no session; scripts and other sites cannot read it, and the store has no id of it."""
    store = MemoryStore()
    agent = Agent("a", ScriptedModel(["Hello."]), store=store)
    async with served(make_app(agent, {})) as url:
        async with aiohttp.ClientSession(cookies={"conversation": "../../etc/passwd"}) as http:
            async with http.post(f"{url}/chat", json={"text": "Hi"}) as response:
                assert response.status == 401
            async with http.get(f"{url}/history") as response:
                given = response.headers["Set-Cookie"]
            assert await store.sessions() == []
            assert "HttpOnly" in given
            assert "SameSite=strict" in given
        async with connected(url) as client:
            await client.chat("Hi")
            [cookie] = client.http.cookie_jar
        [session] = [info.id for info in await store.sessions()]
        assert cookie.value not in session
