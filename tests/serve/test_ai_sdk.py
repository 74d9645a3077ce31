"""The AI SDK's own chat and transport (npm) use a served agent."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from npm_client import NodeProgram
from serve_client import Gate, connected, served

from agentflow import Agent, DataBlock, Msg, PostReasoning, RunContext, TextBlock, ToolEmitter, ToolUseBlock, on, tool
from agentflow.errors import StoreError
from agentflow.serve import App, View, bearer_tokens
from agentflow.testing import ScriptedModel
from agentflow.vocabulary.blocks import Citation
from agentflow.vocabulary.chunks import ModelChunk
from agentflow.vocabulary.ports.memory_store import MemoryStore
from agentflow.vocabulary.ports.store import SessionStore
from agentflow.vocabulary.ports.store_wrapper import StoreWrapper

TOKENS = {"a-long-random-token": "ada", "another-random-token": "bob"}
FULL = View(tools="full", thinking=True)
CHART: Any = {
    "description": "Draws a chart.",
    "parameters": {"type": "object", "properties": {"kind": {"type": "string"}}, "required": ["kind"]},
}


@tool(type="read")
async def search(query: str) -> str:
    if query == "bad":
        raise ValueError("no such thing")
    return f"found {query}"


@tool(requires_approval=True)
async def pay(euros: int) -> str:
    return f"paid {euros}"


@pytest.fixture(scope="module")
def node() -> Generator[NodeProgram]:
    with NodeProgram("ai_sdk.mjs") as program:
        yield program


@asynccontextmanager
async def page(node: NodeProgram, agent: Agent[Any], query: str = "", **app: Any) -> AsyncGenerator[str]:
    """A page with a chat with the agent; gives the server's address."""
    body = app.pop("body", {})
    async with served(App(agent, auth=bearer_tokens(TOKENS), **app)) as url:
        await new_chat(node, f"{url}{query}", body=body)
        yield url


async def new_chat(node: NodeProgram, url: str, token: str = "a-long-random-token", **more: Any) -> None:
    base, question, query = url.partition("?")
    headers = {"Authorization": f"Bearer {token}"}
    await node.ask(new={"id": "c", "api": f"{base}/agents/a/ai-sdk{question}{query}", "headers": headers, **more})


def parts(seen: dict[str, Any], index: int = -1) -> list[Any]:
    """Return the parts of a message, each as its kind and content."""
    found: list[Any] = []
    for part in seen["messages"][index]["parts"]:
        keys = ("text", "state", "input", "output", "errorText", "url", "title", "data")
        found.append((part["type"], *[part[key] for key in keys if part.get(key) is not None]))
    return found


def kinds(chunks: Sequence[dict[str, Any]]) -> list[str]:
    return [chunk["type"] for chunk in chunks]


async def test_text_reasoning_and_tools(node: NodeProgram) -> None:
    """A full view streams everything, in steps."""
    script = [
        [ModelChunk(thinking="Hm."), "Let me ", "see.", ToolUseBlock("t1", "search", {"query": "x"})],
        [ToolUseBlock("t2", "search", {"query": "bad"})],
        "Done.",
    ]
    async with page(node, Agent("a", ScriptedModel(script), tools=[search]), view=FULL):
        seen = await node.ask(send={"text": "Hi"})
    assert parts(seen) == [
        ("step-start",),
        ("reasoning", "Hm.", "done"),
        ("text", "Let me see.", "done"),
        ("tool-search", "output-available", {"query": "x"}, "found x"),
        ("step-start",),
        ("tool-search", "output-error", {"query": "bad"}, seen["messages"][-1]["parts"][5]["errorText"]),
        ("step-start",),
        ("text", "Done.", "done"),
    ]
    assert "no such thing" in seen["messages"][-1]["parts"][5]["errorText"]
    assert (seen["status"], seen.get("error")) == ("ready", None)
    assert seen["chunks"][-1] == {
        "type": "finish",
        "finishReason": "stop",
        "messageMetadata": {"outcome": "completed", "usage": {"input_tokens": 0, "output_tokens": 0}},
    }
    assert kinds(seen["chunks"])[8:11] == ["text-end", "tool-input-start", "tool-input-available"]


async def test_the_view_decides_what_is_sent(node: NodeProgram) -> None:
    """By default neither reasoning nor input and output of tools; with labels no names."""
    script = [[ModelChunk(thinking="SECRET"), ToolUseBlock("t1", "search", {"query": "SECRET"})], "Done."]
    found: list[Any] = []
    for view in (View(), View(tools="label", labels={"search": "Searching"})):
        async with page(node, Agent("a", ScriptedModel(script), tools=[search]), view=view):
            found.append(parts(await node.ask(send={"text": "Hi"}))[1])
    assert found == [
        ("tool-search", "output-available", {}, "success"),
        ("tool-Searching", "output-available", {}, "success", "Searching"),
    ]


async def test_approvals(node: NodeProgram) -> None:
    """The page's answer continues the message: the call runs, or is denied with the person's reason."""
    use = [[ToolUseBlock(f"t{n}", "pay", {"euros": n})] for n in (1, 2)]
    model = ScriptedModel([use[0], "Paid.", use[1], "Not paid."])
    async with page(node, Agent("a", model, tools=[pay])):
        asked = await node.ask(send={"text": "Pay 1"})
        paid = await node.ask(approve={"id": "t1", "approved": True})
        await node.ask(send={"text": "Pay 2"})
        denied = await node.ask(approve={"id": "t2", "approved": False, "reason": "Too much."})
    assert parts(asked) == [("step-start",), ("tool-pay", "approval-requested", {"euros": 1})]
    assert asked["chunks"][-1]["finishReason"] == "tool-calls"
    assert parts(paid) == [
        ("step-start",),
        ("tool-pay", "output-available", {"euros": 1}, "success"),
        ("step-start",),
        ("text", "Paid.", "done"),
    ]
    assert parts(denied)[1] == ("tool-pay", "output-denied", {"euros": 2})
    assert [one["role"] for one in denied["messages"]] == ["user", "assistant"] * 2
    assert [msg.text for msg in model.requests[-1].messages if msg.role == "tool"] == ["paid 1", "Denied: Too much."]


async def test_a_tool_of_the_page(node: NodeProgram) -> None:
    """It comes from the transport's body; its output, or error, continues the message."""
    calls = [["Look: ", ToolUseBlock(f"t{n}", "chart", {"kind": "pie"})] for n in (1, 2)]
    model = ScriptedModel([calls[0], "Nice.", calls[1], "Sorry."])
    async with page(node, Agent("a", model), body={"tools": {"chart": CHART}, "system": "Be brief."}):
        asked = await node.ask(send={"text": "Draw"})
        done = await node.ask(output={"tool": "chart", "toolCallId": "t1", "output": {"width": 3}})
        await node.ask(send={"text": "Again"})
        failed = {"tool": "chart", "toolCallId": "t2", "state": "output-error", "errorText": "no canvas"}
        last = await node.ask(output=failed)
    assert parts(asked)[2] == ("tool-chart", "input-available", {"kind": "pie"})
    assert parts(done)[2:] == [
        ("tool-chart", "output-available", {"kind": "pie"}, {"width": 3}),
        ("step-start",),
        ("text", "Nice.", "done"),
    ]
    results = [block for msg in model.requests[-1].messages for block in msg.tool_results]
    assert [(block.text, block.state) for block in results] == [('{"width":3}', "success"), ("no canvas", "error")]
    assert parts(last)[-1] == ("text", "Sorry.", "done")
    assert model.requests[0].messages[0].text == "Be brief."


async def test_a_page_does_not_answer_calls_of_the_agents_tools(node: NodeProgram) -> None:
    """An output for a call that needs approval is no answer."""
    model = ScriptedModel([[ToolUseBlock("t1", "pay", {"euros": 5})]])
    async with page(node, Agent("a", model, tools=[pay])):
        await node.ask(send={"text": "Pay"})
        forged = await node.ask(output={"tool": "pay", "toolCallId": "t1", "output": "paid"})
    assert (forged["status"], json.loads(forged["error"])["error"]["code"]) == ("error", "suspended")
    assert len(model.requests) == 1


async def test_failures(node: NodeProgram) -> None:
    """A failed run ends with an error, after which there is nothing; a refused one has no chunks."""
    agent = Agent("a", ScriptedModel([["Let me ", ConnectionError("SECRET")]]))
    async with page(node, agent) as url:
        failed = await node.ask(send={"text": "Hi"})
        await new_chat(node, url, token="a-wrong-random-token")
        refused = await node.ask(send={"text": "Hi"})
    assert kinds(failed["chunks"])[-3:] == ["text-end", "finish-step", "error"]
    assert failed["error"].startswith("The run failed (reference ")
    assert "SECRET" not in json.dumps(failed)
    assert (refused["chunks"], json.loads(refused["error"])["error"]["code"]) == ([], "unauthenticated")


async def test_a_run_is_read_again_or_stopped(node: NodeProgram) -> None:
    """A page that was loaded again resumes the chat's run; by default, stopping the stream interrupts the run."""
    gate, closed = Gate(), Gate()
    model = ScriptedModel([["One ", gate, "three."], ["Four ", closed], "Six."])
    async with page(node, Agent("a", model), "?on_disconnect=continue") as url, connected(url, **bearer()) as client:
        stopped = await node.ask(send={"text": "Count"}, stop="text-delta")
        await new_chat(node, f"{url}?on_disconnect=continue", messages=stopped["messages"][:1])
        node.send(resume={}, mark="text-delta")
        await node.answer()
        gate.open.set()
        whole = await node.answer()
        nothing = await node.ask(resume={})
        await new_chat(node, url, messages=whole["messages"])
        await node.ask(send={"text": "Count on"}, stop="text-delta")
        again = await node.ask(send={"text": "And?"})
        outcomes = [one["end"]["outcome"] for one in await client.good("GET", "/runs")]
    assert parts(whole) == [("step-start",), ("text", "One opened three.", "done")]
    assert (nothing["chunks"], nothing["status"]) == ([], "ready")
    assert outcomes == ["completed", "interrupted", "completed"]
    assert parts(again)[-1] == ("text", "Six.", "done")


async def test_retry_and_edit(node: NodeProgram) -> None:
    """A message that is sent again, as it was or edited, replaces what followed it in the session."""
    model = ScriptedModel(["One.", "Two.", "Zwei.", "New.", ConnectionError("lost"), "Retried."])
    async with page(node, Agent("a", model)):
        await node.ask(send={"text": "Say 1"})
        second = await node.ask(send={"text": "Say 2"})
        again = await node.ask(regenerate={})
        first = second["messages"][0]["id"]
        edited = await node.ask(send={"text": "Say new", "messageId": first})
        failed = await node.ask(send={"text": "Say more"})
        retried = await node.ask(regenerate={})
    assert [parts(again, n)[-1][1] for n in range(4)] == ["Say 1", "One.", "Say 2", "Zwei."]
    assert [parts(edited, n)[-1][1] for n in range(2)] == ["Say new", "New."]
    assert [parts(retried, n)[-1][1] for n in range(4)] == ["Say new", "New.", "Say more", "Retried."]
    assert failed["status"] == "error"
    assert [[msg.text for msg in request.messages] for request in model.requests] == [
        ["Say 1"],
        ["Say 1", "One.", "Say 2"],
        ["Say 1", "One.", "Say 2"],
        ["Say new"],
        ["Say new", "New.", "Say more"],
        ["Say new", "New.", "Say more"],
    ]


async def test_a_request_that_overtakes_the_disconnect_before_it() -> None:
    """It waits for the run that the page has stopped."""
    model = ScriptedModel([["One ", Gate()], "Two."])
    app = App(Agent("a", model))
    first, second = ({"id": "c", "messages": [{**USER, "id": key}]} for key in ("u1", "u2"))
    async with served(app) as url, connected(url) as client:
        async with client.http.post(f"{url}/agents/a/ai-sdk", json=first) as stopped:
            await stopped.content.readline()
            later = asyncio.create_task(client.http.post(f"{url}/agents/a/ai-sdk", json=second))
            for _ in range(5):
                await client.good("GET", "/runs")
        async with await later as response:
            found = (response.status, response.headers["x-vercel-ai-ui-message-stream"], await response.text())
    assert (*found[:2], found[2].endswith("data: [DONE]\n\n")) == (200, "v1", True)


def bearer(token: str = "a-long-random-token") -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


async def test_chats_are_of_one_user(node: NodeProgram) -> None:
    """The same chat id of another user is another session, also for resuming."""
    gate = Gate()
    model = ScriptedModel([["For Ada.", gate], "For Bob."])
    async with page(node, Agent("a", model), "?on_disconnect=continue") as url:
        await node.ask(send={"text": "I am Ada"}, stop="text-delta")
        await new_chat(node, url, token="another-random-token")
        nothing = await node.ask(resume={})
        other = await node.ask(send={"text": "I am Bob"})
        gate.open.set()
    assert nothing["chunks"] == []
    assert parts(other)[-1] == ("text", "For Bob.", "done")
    assert [msg.text for msg in model.requests[1].messages] == ["I am Bob"]


@dataclass
class Cart:
    """A part of the session's state that the page may see."""

    total: int = 0


@tool
async def add(context: RunContext, emitter: ToolEmitter) -> str:
    await emitter.emit("half")
    context.session_state[Cart].total += 1
    return "added"


async def test_sources_files_data_and_changed_replies(node: NodeProgram) -> None:
    """Sources and files of the reply, the session's state, and a reply that a hook changed after it streamed."""

    @on(PostReasoning)
    def rewrite(event: PostReasoning) -> None:
        if event.reasoning_result.text == "Damn.":
            cited = (Citation("https://x.test/a", "A"), Citation(title="Contract"))
            image = DataBlock.from_bytes(b"\x89PNG", "image/png")
            event.reasoning_result = Msg.assistant(TextBlock("Sorry.", citations=cited), image)

    model = ScriptedModel([[ToolUseBlock("t1", "add", {})], "Damn."])
    view = View(tools="full", state=[Cart])
    async with page(node, Agent("a", model, tools=[add], hooks=[rewrite]), view=view):
        seen = await node.ask(send={"text": "Hi"})
    assert [part for part in parts(seen) if part[0] not in ("step-start", "tool-add")] == [
        ("data-state", {"Cart": {"total": 1}}),
        ("text", "Damn.", "done"),
        ("data-reply", {"text": "Sorry."}),
        ("source-url", "https://x.test/a", "A"),
        ("source-document", "Contract"),
        ("file", "data:image/png;base64,iVBORw=="),
    ]
    assert {"type": "tool-output-available", "toolCallId": "t1", "output": "half", "preliminary": True} in seen[
        "chunks"
    ]


async def test_files_of_the_user_reach_the_model(node: NodeProgram) -> None:
    """As data URLs and addresses; one that cannot be used is left out."""
    image = {"type": "file", "mediaType": "image/png", "url": "data:image/png;base64,iVBORw0KGgo="}
    document = {"type": "file", "mediaType": "application/pdf", "url": "https://x.test/a.pdf"}
    broken = {"type": "file", "mediaType": "image/png", "url": "file:///etc/passwd"}
    model = ScriptedModel(["A picture."])
    async with page(node, Agent("a", model)):
        sent = [{"type": "text", "text": "What is this?"}, image, document, broken]
        seen = await node.ask(send={"parts": sent})
    (asked,) = model.requests[0].messages
    assert [asked.text, *[block.media_type for block in asked.data]] == [
        "What is this?",
        "image/png",
        "application/pdf",
    ]
    assert parts(seen)[-1] == ("text", "A picture.", "done")


USER: Any = {"id": "u1", "role": "user", "parts": [{"type": "text", "text": "Hi"}]}


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        ({"id": "c"}, 422, "invalid_body"),
        ({"id": "c", "messages": []}, 422, "invalid_body"),
        ({"id": "../c", "messages": [USER]}, 422, "invalid_body"),
        ({"id": "c", "messages": [{**USER, "parts": []}]}, 422, "invalid_body"),
        ({"id": "c", "messages": [{**USER, "role": "tool"}]}, 422, "invalid_body"),
        ({"id": "c", "messages": [{**USER, "role": "assistant"}]}, 409, "nothing_new"),
        ({"id": "c", "messages": [USER], "tools": {"pay": {}}}, 422, "tool_exists"),
    ],
)
async def test_requests_that_do_not_fit(body: Any, status: int, code: str) -> None:
    """They are refused, each with its status."""
    async with served(App(Agent("a", ScriptedModel([]), tools=[pay]))) as url, connected(url) as client:
        found, refused = await client.ask("POST", "/agents/a/ai-sdk", body)
    assert (found, refused["error"]["code"]) == (status, code)


class Stops(StoreWrapper):
    """A store that is lost, or waits, after it has deleted a session."""

    def __init__(self, inner: SessionStore) -> None:
        super().__init__(inner)
        self.lost = False
        self.gate: Gate | None = None

    async def delete(self, session_id: str) -> bool:
        existed = await super().delete(session_id)
        self.lost = self.gate is None
        if self.gate is not None:
            self.gate.reached.set()
            await self.gate.open.wait()
        return existed

    async def fork(self, session_id: str, new_id: str, at: int | str | None = None) -> None:
        self._check()
        await super().fork(session_id, new_id, at)

    async def rename(self, session_id: str, new_id: str) -> None:
        self._check()
        await super().rename(session_id, new_id)

    def _check(self) -> None:
        if self.lost:
            raise StoreError("lost")


def chat(*ids: str) -> dict[str, Any]:
    return {"id": "c", "messages": [{**USER, "id": key} for key in ids]}


async def test_a_retry_that_a_crash_interrupts_leaves_a_copy_until_the_session_is_deleted() -> None:
    """The copy can be renamed by hand; a deleted conversation leaves none."""
    inner = MemoryStore()
    async with (
        served(App(Agent("a", ScriptedModel(["One.", "Two."])), store=Stops(inner))) as url,
        connected(url) as client,
    ):
        for ids in (("u1",), ("u1", "u2")):
            async with client.http.post(f"{url}/agents/a/ai-sdk", json=chat(*ids)) as response:
                await response.text()
        status, _ = await client.ask("POST", "/agents/a/ai-sdk", {**chat("u1", "u2"), "trigger": "regenerate-message"})
    assert status == 503
    [copy] = await inner.sessions()
    found = await Agent("a", ScriptedModel([]), store=inner).history(copy.id)
    assert [msg.text for msg in found] == ["Hi", "One."]
    async with served(App(Agent("a", ScriptedModel(["One."])), store=inner)) as url, connected(url) as client:
        async with client.http.post(f"{url}/agents/a/ai-sdk", json=chat("u1")) as response:
            await response.text()
        await client.ask("DELETE", "/agents/a/sessions/c")
    assert await inner.sessions() == []


async def test_a_session_that_is_being_shortened_is_busy() -> None:
    """No other request begins a session of the same id in between, which would replace the conversation."""
    store = Stops(MemoryStore())
    async with (
        served(App(Agent("a", ScriptedModel(["One.", "Two.", "Again."])), store=store)) as url,
        connected(url) as client,
    ):
        for ids in (("u1",), ("u1", "u2")):
            async with client.http.post(f"{url}/agents/a/ai-sdk", json=chat(*ids)) as response:
                await response.text()
        store.gate = Gate()
        retry = asyncio.create_task(client.http.post(f"{url}/agents/a/ai-sdk", json=chat("u1", "u2")))
        await store.gate.reached.wait()
        busy = [
            await client.ask("POST", "/agents/a/ai-sdk", chat("u1", "u2")),
            await client.ask("POST", "/agents/a/runs", {"input": "Hello", "session": "c"}),
        ]
        store.gate.open.set()
        async with await retry as response:
            await response.text()
        history = await client.good("GET", "/agents/a/sessions/c")
    assert [(status, body["error"]["code"]) for status, body in busy] == [(409, "session_busy")] * 2
    assert [msg["text"] for msg in history["messages"]] == ["Hi", "One.", "Hi", "Again."]


async def test_the_run_of_a_chat_is_named_in_its_session() -> None:
    """`GET` of a session names the run that works on it, which can be read and interrupted."""
    gate = Gate()
    async with served(App(Agent("a", ScriptedModel([[gate, "One."]])))) as url, connected(url) as client:
        chatting = asyncio.create_task(client.http.post(f"{url}/agents/a/ai-sdk", json=chat("u1")))
        await gate.reached.wait()
        session = await client.good("GET", "/agents/a/sessions/c")
        run = await client.good("GET", f"/runs/{session['run']}")
        gate.open.set()
        async with await chatting as response:
            await response.text()
    assert (session["status"], run["session"]) == ("running", "c")
