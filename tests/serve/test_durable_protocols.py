"""The protocols of chat pages, models and other agents over a durable agent: two web processes and a worker, each a process
of its own, over one database."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import AsyncIterator, Callable, Generator
from contextlib import asynccontextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import anthropic
import httpx
import openai
import pytest
from a2a.client import A2ACardResolver, Client, ClientConfig, ClientFactory
from a2a.helpers import new_text_part
from a2a.types import (
    CancelTaskRequest,
    GetTaskRequest,
    Message,
    Role,
    SendMessageRequest,
    SubscribeToTaskRequest,
    Task,
    TaskState,
)
from npm_client import NodeProgram, run
from nursery import Nursery
from serve_client import LIMIT, connected, sent_by

pytestmark = pytest.mark.ci

HERE = Path(__file__).parent
TOKEN = "a-long-random-token"
HEADERS = {"Authorization": f"Bearer {TOKEN}"}
CHART: Any = {
    "name": "chart",
    "description": "Draws a chart.",
    "parameters": {"type": "object", "properties": {"kind": {"type": "string"}}, "required": ["kind"]},
}


class Webs(NamedTuple):
    """The addresses of the two web processes, and what starts a further one, and returns its address and process id."""

    one: str
    two: str
    start: Callable[[], tuple[str, int]]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture(scope="module")
def webs(tmp_path_factory: pytest.TempPathFactory) -> Generator[Webs]:
    """Two web processes and a worker."""
    url = f"sqlite:///{tmp_path_factory.mktemp('site') / 'site.db'}"
    nursery = Nursery("page_processes", paths=(HERE,))
    env = {**os.environ, "PYTHONPATH": str(HERE.parents[1])}
    pids: list[int] = []

    def start(*command: str) -> int:
        pids.append(nursery.start([str(HERE / "page_processes.py"), *command], env, {}))
        return pids[-1]

    def web() -> tuple[str, int]:
        port = _free_port()
        return f"http://127.0.0.1:{port}", start("web", url, str(port))

    try:
        start("worker", url)
        found = Webs(web()[0], web()[0], web)
        asyncio.run(asyncio.wait_for(ready(found.one, found.two), LIMIT))
        yield found
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
            nursery.code(pid)
        nursery.end()


async def ready(*urls: str) -> None:
    """Wait until web processes answer."""
    async with aiohttp.ClientSession() as http:
        for url in urls:
            while True:
                try:
                    async with http.get(f"{url}/ready") as response:
                        assert response.status == 200
                        break
                except aiohttp.ClientError:
                    await asyncio.sleep(0.05)


# ---- AG-UI


@pytest.fixture(scope="module")
def ag_ui() -> Generator[NodeProgram]:
    """AG-UI's official client."""
    with NodeProgram("ag_ui.mjs") as program:
        yield program


async def page(node: NodeProgram, web: str, thread: str, query: str = "", messages: Any = ()) -> None:
    """Open a page, at a web process."""
    url = f"{web}/agents/a/ag-ui{query}"
    await node.ask(new={"url": url, "threadId": thread, "headers": HEADERS, "initialMessages": list(messages)})


def texts(seen: dict[str, Any]) -> list[tuple[str, Any]]:
    """The page's conversation."""
    return [(one["role"], one.get("content")) for one in seen["messages"]]


def kinds(seen: dict[str, Any]) -> list[str]:
    """The kinds of a run's events, without those of the state."""
    return [event["type"] for event in seen["events"] if not event["type"].startswith("STATE")]


async def test_an_ag_ui_page_decides_at_another_process(ag_ui: NodeProgram, webs: Webs) -> None:
    """The interrupt of one process is decided, with edited arguments, at another one, which reads the rest of the run; each
    run can be read again by its id at any process."""
    await page(ag_ui, webs.one, "pays")
    asked = await run(ag_ui, "pay 5", runId="r1")
    answer = {"interruptId": asked["interrupts"][0]["id"], "status": "resolved"}
    payload = {"approved": True, "editedArgs": {"euros": 3}}
    await page(ag_ui, webs.two, "pays", messages=asked["messages"])
    done = await run(ag_ui, runId="r2", resume=[{**answer, "payload": payload}])
    await page(ag_ui, webs.one, "pays", messages=asked["messages"])
    again = await run(ag_ui, runId="r2", resume=[{**answer, "payload": payload}])
    await page(ag_ui, webs.two, "pays", messages=asked["messages"][:1])
    first = await run(ag_ui, runId="r1")
    async with connected(webs.one, **HEADERS) as client:
        body = {"threadId": "pays", "runId": "r3", "messages": [], "resume": [{**answer, "payload": payload}]}
        late = await client.ask("POST", "/agents/a/ag-ui", body)
    assert kinds(asked) == [
        "RUN_STARTED",
        "TEXT_MESSAGE_START",
        "TEXT_MESSAGE_CONTENT",
        "TEXT_MESSAGE_END",
        "TOOL_CALL_START",
        "TOOL_CALL_ARGS",
        "TOOL_CALL_END",
        "RUN_FINISHED",
    ]
    assert kinds(done) == [
        "RUN_STARTED",
        "TOOL_CALL_RESULT",
        *["TEXT_MESSAGE_START", "TEXT_MESSAGE_CONTENT", "TEXT_MESSAGE_CONTENT", "TEXT_MESSAGE_END"],
        "RUN_FINISHED",
    ]
    assert texts(done)[-2:] == [("tool", "paid 3"), ("assistant", "done: paid 3")]
    assert (again["events"], first["events"]) == (done["events"], asked["events"])
    assert (late[0], late[1]["error"]["code"]) == (409, "nothing_new")


async def test_a_tool_of_an_ag_ui_page(ag_ui: NodeProgram, webs: Webs) -> None:
    """The worker offers it to the model with the page's instructions; its result, with a new message, continues the run at
    another process."""
    await page(ag_ui, webs.one, "draws")
    asked = await run(ag_ui, "draw pie", tools=[CHART])
    await page(ag_ui, webs.two, "draws", messages=asked["messages"])
    use = next(event["toolCallId"] for event in asked["events"] if event["type"] == "TOOL_CALL_START")
    await ag_ui.ask(tool={"toolCallId": use, "content": "drawn"})
    done = await run(ag_ui, "And now?", tools=[CHART])
    told = await run(ag_ui, "system?", context=[{"description": "The page", "value": "/shop"}])
    assert asked["events"][-1]["outcome"] == {"type": "success", "pendingToolCallIds": [use]}
    assert texts(done)[-2:] == [("user", "And now?"), ("assistant", "Hello And now?")]
    assert texts(told)[-1] == ("assistant", "Be exact.\n\nThe page: /shop")
    async with connected(webs.one, **HEADERS) as client:
        history = await client.good("GET", "/agents/a/sessions/draws")
    assert [one["text"] for one in history["messages"] if one["role"] == "user"] == ["draw pie", "And now?", "system?"]


async def test_an_ag_ui_page_stops_and_retries(ag_ui: NodeProgram, webs: Webs) -> None:
    """An abort interrupts the run in the worker; the same message again starts its call again. With
    `on_disconnect=continue` the run continues, and another process reads it meanwhile.
    """
    await page(ag_ui, webs.one, "stops")
    await run(ag_ui, "count", runId="c1", abortAfter="TEXT_MESSAGE_CONTENT")
    stopped = await run(ag_ui, runId="c1")
    await page(ag_ui, webs.two, "stops", "?on_disconnect=continue", stopped["messages"][:1])
    await run(ag_ui, runId="c2", abortAfter="TEXT_MESSAGE_CONTENT")
    await page(ag_ui, webs.one, "stops", "", stopped["messages"][:1])
    retried = await run(ag_ui, runId="c2")
    async with connected(webs.one, **HEADERS) as client:
        history = await client.good("GET", "/agents/a/sessions/stops")
    whole = "".join(f"{n} " for n in range(100))
    assert stopped["events"][-1]["outcome"] == {"type": "cancelled"}
    assert texts(retried) == [("user", "count"), ("assistant", whole)]
    assert [(one["role"], one["text"]) for one in history["messages"]] == texts(retried)


async def test_an_ag_ui_page_has_the_sessions_state(ag_ui: NodeProgram, webs: Webs) -> None:
    """The values that the view allows come from the worker, a snapshot first and then patches; the next run begins with the
    current ones, at the other process too."""
    await page(ag_ui, webs.one, "cart")
    seen = await run(ag_ui, "add tea")
    await page(ag_ui, webs.two, "cart", messages=seen["messages"])
    more = await run(ag_ui, "add jam")

    def states(found: dict[str, Any]) -> list[Any]:
        return [one.get("snapshot", one.get("delta")) for one in found["events"] if "STATE" in one["type"]]

    tea = {"items": ["tea"]}
    assert states(seen) == [{}, [{"op": "add", "path": "/Cart", "value": tea}]]
    change = {"op": "replace", "path": "/Cart/items", "value": ["tea", "jam"]}
    assert (states(more), more["state"]) == ([{"Cart": tea}, [change]], {"Cart": {"items": ["tea", "jam"]}})


# ---- AI SDK


@pytest.fixture(scope="module")
def ai_sdk() -> Generator[NodeProgram]:
    """The AI SDK's own chat and transport."""
    with NodeProgram("ai_sdk.mjs") as program:
        yield program


async def chat(node: NodeProgram, web: str, name: str, query: str = "", messages: Any = (), **body: Any) -> None:
    """Open a chat, at a web process."""
    api = f"{web}/agents/a/ai-sdk{query}"
    await node.ask(new={"id": name, "api": api, "headers": HEADERS, "messages": list(messages), "body": body})


def parts(seen: dict[str, Any]) -> list[Any]:
    """Return the parts of the last message, each as its kind and content."""
    keys = ("text", "state", "input", "output")
    return [
        (part["type"], *[part[key] for key in keys if key in part])
        for part in seen["messages"][-1]["parts"]
        if part["type"] != "data-state"
    ]


async def test_an_ai_sdk_chat_decides_at_another_process(ai_sdk: NodeProgram, webs: Webs) -> None:
    """An approval, and a tool of the page, each answered at the other process."""
    await chat(ai_sdk, webs.one, "pays")
    asked = await ai_sdk.ask(send={"text": "pay 5"})
    use = asked["messages"][-1]["parts"][-1]["toolCallId"]
    await chat(ai_sdk, webs.two, "pays", messages=asked["messages"], tools={"chart": CHART})
    paid = await ai_sdk.ask(approve={"id": use, "approved": True})
    drawn = await ai_sdk.ask(send={"text": "draw pie"})
    use = drawn["messages"][-1]["parts"][-1]["toolCallId"]
    await chat(ai_sdk, webs.one, "pays", messages=drawn["messages"], tools={"chart": CHART})
    done = await ai_sdk.ask(output={"tool": "chart", "toolCallId": use, "output": "drawn"})
    assert parts(paid) == [
        ("step-start",),
        ("text", "Let me pay.", "done"),
        ("tool-pay", "output-available", {"euros": 5}, "paid 5"),
        ("step-start",),
        ("text", "done: paid 5", "done"),
    ]
    assert parts(drawn)[-1] == ("tool-chart", "input-available", {"kind": "pie"})
    assert parts(done)[-1] == ("text", "done: drawn", "done")


async def test_an_ai_sdk_chat_resumes_at_another_process(ai_sdk: NodeProgram, webs: Webs) -> None:
    """A page that was loaded again reads the run that works on its chat; a stop interrupts the run in its worker, and the next
    message waits for that."""
    await chat(ai_sdk, webs.one, "counts", "?on_disconnect=continue")
    stopped = await ai_sdk.ask(send={"text": "count"}, stop="text-delta")
    await chat(ai_sdk, webs.two, "counts", messages=stopped["messages"][:1])
    whole = await ai_sdk.ask(resume={})
    nothing = await ai_sdk.ask(resume={})
    await ai_sdk.ask(send={"text": "count"}, stop="text-delta")
    again = await ai_sdk.ask(send={"text": "you"})
    async with connected(webs.one, **HEADERS) as client:
        runs = [one for one in await client.good("GET", "/runs") if one["session"] == "counts"]
    assert parts(whole) == [("step-start",), ("text", "".join(f"{n} " for n in range(100)), "done")]
    assert nothing["chunks"] == []
    assert [one["end"]["outcome"] for one in runs] == ["completed", "interrupted", "completed"]
    assert parts(again)[-1] == ("text", "Hello you", "done")


# ---- messages to a running call


async def test_a_running_call_is_steered_at_another_process(webs: Webs) -> None:
    """The model reads the message after its reply; it is in the history once."""
    async with connected(webs.one, **HEADERS) as one, connected(webs.two, **HEADERS) as two:
        started = await one.started("count", session="steered")
        async with two.stream(f"/runs/{started['id']}/events") as response:
            async for event in sent_by(response):
                if event.type == "text":  # the model writes its reply
                    break
        status = await two.ask("POST", f"/runs/{started['id']}/steer", {"text": "you"})
        end = await one.ended(started["id"])
        late = await two.ask("POST", f"/runs/{started['id']}/steer", {"text": "late"})
        await two.ended((await two.started("me", session="steered"))["id"])
        history = await one.good("GET", "/agents/a/sessions/steered")
    counted = "".join(f"{n} " for n in range(100))
    assert (status[0], end["text"], late[0], late[1]["error"]["code"]) == (202, "Hello you", 409, "run_ended")
    assert [one["text"] for one in history["messages"]] == ["count", counted, "you", "Hello you", "me", "Hello me"]


# ---- an agent as a model

CHAT_TOOL: Any = {"type": "function", "function": CHART}
MESSAGES_TOOL: Any = {"name": "chart", "description": "Draws a chart.", "input_schema": CHART["parameters"]}


def openai_at(web: str) -> openai.AsyncOpenAI:
    """OpenAI's client of a web process."""
    return openai.AsyncOpenAI(api_key=TOKEN, base_url=f"{web}/v1", max_retries=0, timeout=LIMIT)


async def test_chat_completions(webs: Webs) -> None:
    """The conversation and the instructions reach the worker; a client's tool is answered at the other process, and repeating
    the request repeats the answer."""
    messages: list[Any] = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello."},
        {"role": "user", "content": "system?"},
    ]
    asks: list[Any] = [{"role": "user", "content": "draw pie"}]
    async with openai_at(webs.one) as one, openai_at(webs.two) as two, connected(webs.one, **HEADERS) as plain:
        told = await one.chat.completions.create(model="a", messages=messages)
        stream = await one.chat.completions.create(
            model="a",
            messages=[{"role": "user", "content": "you"}],
            stream=True,
            stream_options={"include_usage": True},
        )
        chunks = [chunk async for chunk in stream]
        asked = (await one.chat.completions.create(model="a", messages=asks, tools=[CHAT_TOOL])).choices[0]
        assert asked.message.tool_calls
        asks.append(asked.message.model_dump(exclude_none=True))
        asks.append({"role": "tool", "tool_call_id": asked.message.tool_calls[0].id, "content": "drawn"})
        drawn = [
            (await client.chat.completions.create(model="a", messages=asks, tools=[CHAT_TOOL]))
            .choices[0]
            .message.content
            for client in (two, one)
        ]
        with pytest.raises(openai.ConflictError, match="does not wait"):
            await two.chat.completions.create(model="a", messages=[*asks[:-1], {**asks[-1], "content": "other"}])
        with pytest.raises(openai.BadRequestError, match="no longer kept"):
            await two.chat.completions.create(model="a", messages=[{**asks[-1], "tool_call_id": "call_x_1_0"}])
        with pytest.raises(openai.ConflictError, match="a person's decision"):
            await two.chat.completions.create(model="a", messages=[{"role": "user", "content": "pay 5"}])
        models = [model.id async for model in two.models.list()]
        sessions = await plain.good("GET", "/agents/a/sessions")
    assert told.choices[0].message.content == "Be exact.\n\nBe brief."
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == "Hello you"
    assert (asked.message.content, asked.finish_reason) == ("Look: ", "tool_calls")
    assert drawn == ["done: drawn"] * 2
    assert models == ["a"]
    assert not [one["id"] for one in sessions["sessions"] if "~" in one["id"] or not one["id"]]


async def test_responses_and_messages(webs: Webs) -> None:
    """A response is continued at the other process, again and again; Anthropic's client streams and uses its tool."""
    async with (
        openai_at(webs.one) as one,
        openai_at(webs.two) as two,
        anthropic.AsyncAnthropic(api_key=TOKEN, base_url=webs.two, max_retries=0, timeout=LIMIT) as other,
    ):
        first = await one.responses.create(model="a", input="I am Ada")
        second = [await two.responses.create(model="a", input=text, previous_response_id=first.id) for text in "xy"]
        third = await one.responses.create(model="a", input="z", previous_response_id=second[0].id, stream=True)
        ended = [event async for event in third][-1]
        asks: list[Any] = [{"role": "user", "content": "draw pie"}]
        async with other.messages.stream(model="a", messages=asks, max_tokens=9, tools=[MESSAGES_TOOL]) as events:
            asked = await events.get_final_message()
        use = asked.content[-1]
        assert use.type == "tool_use"
        result = {"type": "tool_result", "tool_use_id": use.id, "content": "drawn"}
        asks += [{"role": "assistant", "content": [use.model_dump()]}, {"role": "user", "content": [result]}]
        done = await other.messages.create(model="a", messages=asks, max_tokens=9, tools=[MESSAGES_TOOL])
    assert [one.output_text for one in second] == ["Hello x", "Hello y"]
    assert ended.type == "response.completed"
    assert ended.response.output_text == "Hello z"
    assert (asked.stop_reason, use.input, done.content[0].type) == ("tool_use", {"kind": "pie"}, "text")
    assert done.content[0].text == "done: drawn"


async def test_a_disconnected_client_of_a_model_interrupts_the_run(webs: Webs) -> None:
    """The worker ends it, whether the answer is streamed or not."""
    outcomes: list[str] = []
    async with connected(webs.one, **HEADERS) as client:
        for stream in (False, True):
            body = {"model": "a", "messages": [{"role": "user", "content": "count"}], "stream": stream}
            asking = asyncio.create_task(client.ask("POST", "/v1/chat/completions", body))
            runs: list[Any] = []
            while not runs or runs[0].get("end") is not None:
                runs = await client.good("GET", "/runs")
            asking.cancel()
            outcomes.append((await client.ended(runs[0]["id"]))["outcome"])
    assert outcomes == ["interrupted"] * 2


# ---- A2A


@asynccontextmanager
async def a2a_client(web: str, *, streaming: bool = False) -> AsyncIterator[Client]:
    """The official client of a web process."""
    async with httpx.AsyncClient(headers=HEADERS, timeout=LIMIT, trust_env=False) as http:
        card = await A2ACardResolver(http, f"{web}/a2a/a").get_agent_card()
        yield ClientFactory(ClientConfig(httpx_client=http, streaming=streaming)).create(card)


def said(text: str, task: str = "", context: str = "") -> SendMessageRequest:
    """A message."""
    parts = [new_text_part(text)]
    return SendMessageRequest(
        message=Message(message_id="m", role=Role.ROLE_USER, parts=parts, task_id=task, context_id=context)
    )


async def task_of(client: Client, request: SendMessageRequest) -> Task:
    """The task that a message leads to."""
    [response] = [event async for event in client.send_message(request)]
    return response.task


def state_of(task: Task) -> tuple[str, str]:
    """A task's state and reply."""
    reply = "|".join(part.text for artifact in task.artifacts for part in artifact.parts)
    return TaskState.Name(task.status.state).removeprefix("TASK_STATE_").lower(), reply


@pytest.mark.skipif(find_spec("aiosqlite") is None, reason="the driver of the tasks is not installed")
async def test_a2a_tasks_are_those_of_every_process(webs: Webs) -> None:
    """A question of one process is answered at the other one, which also reads the stream of a task that works there, and
    cancels it; a cancelled task that waits leaves its context free."""
    async with (
        a2a_client(webs.one) as one,
        a2a_client(webs.two) as two,
        a2a_client(webs.one, streaming=True) as streaming,
        a2a_client(webs.two, streaming=True) as watching,
    ):
        asked = await task_of(one, said("pay 5"))
        paid = await task_of(two, said("approve", asked.id))
        known = await one.get_task(GetTaskRequest(id=asked.id))
        events = streaming.send_message(said("count"))
        counting = (await anext(events)).task
        watched = watching.subscribe(SubscribeToTaskRequest(id=counting.id))
        first = (await anext(watched)).task
        seen = (await anext(event async for event in watched if event.HasField("artifact_update"))).artifact_update
        cancelled = await two.cancel_task(CancelTaskRequest(id=counting.id))
        rest = [event async for event in events]
        await watched.aclose()  # type: ignore[attr-defined]
        waits = await task_of(one, said("pay 7"))
        dropped = await two.cancel_task(CancelTaskRequest(id=waits.id))
        free = await task_of(one, said("you", context=waits.context_id))
        async with connected(webs.one, **HEADERS) as client:
            runs = await client.good("GET", "/runs")
    assert (state_of(asked), state_of(paid)) == (("input_required", "Let me pay."), ("completed", "done: paid 5"))
    assert state_of(known) == state_of(paid)
    assert (first.id, seen.artifact.parts[0].text[:2] != "", state_of(cancelled)[0]) == (counting.id, True, "canceled")
    last = rest[-1].task if rest[-1].HasField("task") else rest[-1].status_update
    assert last.status.state == TaskState.TASK_STATE_CANCELED
    assert [one["end"]["outcome"] for one in runs if one["session"] == counting.context_id] == ["interrupted"]
    assert (state_of(dropped)[0], state_of(free)) == ("canceled", ("completed", "Hello you"))


@pytest.mark.skipif(find_spec("aiosqlite") is None, reason="the driver of the tasks is not installed")
async def test_an_a2a_task_survives_its_process(webs: Webs) -> None:
    """The process that follows the call is killed; a client that watches the task at another one gets the whole reply."""
    url, pid = webs.start()
    await ready(url)
    async with a2a_client(url, streaming=True) as killed, a2a_client(webs.two, streaming=True) as other:
        events = killed.send_message(said("count"))
        task = (await anext(events)).task
        await anext(event async for event in events if event.HasField("artifact_update"))
        os.kill(pid, signal.SIGKILL)
        watched = [event async for event in other.subscribe(SubscribeToTaskRequest(id=task.id))]
        found = await other.get_task(GetTaskRequest(id=task.id))
    counted = "".join(f"{n} " for n in range(100))
    assert watched[-1].status_update.status.state == TaskState.TASK_STATE_COMPLETED
    assert state_of(found) == ("completed", counted)
