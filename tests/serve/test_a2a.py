"""Agents served over A2A: the official client of the SDK drives them over loopback."""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import sqlalchemy
from a2a.client import A2ACardResolver, Client, ClientConfig, ClientFactory
from a2a.helpers import get_data_parts, new_data_part, new_text_part
from a2a.server.context import ServerCallContext
from a2a.server.tasks import InMemoryTaskStore
from a2a.types import (
    AgentCard,
    CancelTaskRequest,
    GetTaskRequest,
    InvalidParamsError,
    ListTasksRequest,
    Message,
    Role,
    SendMessageRequest,
    StreamResponse,
    SubscribeToTaskRequest,
    Task,
    TaskNotFoundError,
    TaskPushNotificationConfig,
    TaskState,
)
from serve_client import LIMIT, Gate, connected, pay, paying, served
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route

from agentflow import Agent, Deny, MemoryStore, PreCall, ToolUseBlock, on, tool
from agentflow.errors import UsageError
from agentflow.serve import STANDARD, App, Limits, View, bearer_tokens
from agentflow.serve.a2a import A2A
from agentflow.serve.a2a.routes import _OwnerUser
from agentflow.serve.a2a.task_stores import TaskDatabase
from agentflow.testing import ScriptedModel

OWNER = hashlib.sha256(b"").hexdigest()[:32]
CALL = ServerCallContext(user=_OwnerUser(OWNER))
ADA, BOB = "ada-has-a-long-token", "bob-has-a-long-token"
AUTH = bearer_tokens({ADA: "ada", BOB: "bob"})


def app_of(agent: Agent, *, options: A2A | None = None, **more: Any) -> App:
    return App(agent, routes=[*STANDARD, options or A2A()], **more)


def said(*parts: Any, task: str = "", context: str = "") -> SendMessageRequest:
    made = [new_text_part(part) if isinstance(part, str) else new_data_part(part) for part in parts]
    return SendMessageRequest(
        message=Message(message_id="m", role=Role.ROLE_USER, parts=made, task_id=task, context_id=context)
    )


@asynccontextmanager
async def client_of(url: str, token: str = ADA, *, streaming: bool = True, agent: str = "a") -> AsyncIterator[Client]:
    """The official client of a served agent."""
    headers = {"Authorization": f"Bearer {token}"}
    async with httpx.AsyncClient(headers=headers, timeout=LIMIT, trust_env=False) as http:
        card = await A2ACardResolver(http, f"{url}/a2a/{agent}").get_agent_card()
        yield ClientFactory(ClientConfig(httpx_client=http, streaming=streaming)).create(card)


async def sent(client: Client, request: SendMessageRequest) -> list[StreamResponse]:
    return [event async for event in client.send_message(request)]


async def task_of(client: Client, request: SendMessageRequest) -> Task:
    """The task that a message leads to, without streaming."""
    [response] = await sent(client, request)
    return response.task


def state(task: Task) -> str:
    return TaskState.Name(task.status.state).removeprefix("TASK_STATE_").lower()


def texts(events: list[StreamResponse]) -> list[tuple[str, bool]]:
    """Each text of the artifact, and whether it is appended."""
    updates = [event.artifact_update for event in events if event.HasField("artifact_update")]
    return [(update.artifact.parts[0].text, update.append) for update in updates]


def reply(task: Task) -> str:
    return "|".join(part.text for artifact in task.artifacts for part in artifact.parts)


async def test_a_message_and_its_stream() -> None:
    """Sent without and with streaming; the context is the session, so the agent knows what was said."""
    seen: list[int] = []

    def answer(request: Any) -> list[str]:
        seen.append(len(request.messages))
        return ["Hel", "lo."]

    async with served(app_of(Agent("a", ScriptedModel(answer)), auth=AUTH)) as url:
        async with client_of(url, streaming=False) as client:
            task = await task_of(client, said("Hi"))
            assert (state(task), reply(task), task.history[0].parts[0].text) == ("completed", "Hello.", "Hi")
            assert await client.get_task(GetTaskRequest(id=task.id)) == task
        async with client_of(url) as client:
            events = await sent(client, said("Again", context=task.context_id))
    kinds = [event.WhichOneof("payload") for event in events]
    assert (kinds[0], kinds[-1]) == ("task", "status_update")
    assert events[-1].status_update.status.state == TaskState.TASK_STATE_COMPLETED
    assert texts(events)[-1] == ("Hello.", False)
    assert seen == [1, 3]


async def test_text_streams_while_the_model_works() -> None:
    """What was streamed before is appended to; the complete reply replaces it."""
    gates = [Gate(), Gate()]
    agent = Agent("a", ScriptedModel([["One ", gates[0], gates[1]]]))
    async with served(app_of(agent)) as url, client_of(url) as client:
        events: list[StreamResponse] = []
        opened = iter(gates)
        async for event in client.send_message(said("Count")):
            events.append(event)
            if event.HasField("artifact_update") and (gate := next(opened, None)):
                gate.open.set()
    assert texts(events)[:2] == [("One ", False), ("opened ", True)]
    assert texts(events)[-1] == ("One opened opened ", False)


async def test_a_suspension_is_answered_on_its_task() -> None:
    """As a word, with a reason, or as data with edited arguments; whatever does not decide changes nothing."""
    app = app_of(paying(), view=View(labels={"pay": "Paying"}))
    async with served(app) as url, client_of(url, streaming=False) as client:

        async def answered(*answer: Any) -> tuple[str, str]:
            waits = await task_of(client, said("Pay"))
            assert state(waits) == "input_required"
            shown, data = waits.status.message.parts
            assert "Approve Paying?" in shown.text
            assert get_data_parts([data])[0]["questions"] == [
                {"id": "t1", "kind": "approval", "name": "pay", "label": "Paying", "input": {"euros": 30}}
            ]
            ended = await task_of(client, said(*answer, task=waits.id, context=waits.context_id))
            assert ended.id == waits.id
            return state(ended), reply(ended)

        assert await answered("approve") == ("completed", "Result: paid 30")
        assert await answered("Deny: too much") == ("completed", "Result: Denied: too much")
        edited = {"decisions": {"t1": {"action": "approve", "input": {"euros": 3}}}}
        assert await answered(edited) == ("completed", "Result: paid 3")
        for wrong in ("yes, please", "approve: all", {"decisions": {}}, {"decisions": {"t1": {"action": "pay"}}}):
            assert await answered(wrong) == ("input_required", "")


async def test_an_answer_with_the_context_of_another_task_is_refused() -> None:
    """The task continues to wait, and can be answered with its own context, or without one."""
    async with served(app_of(paying())) as url, client_of(url, streaming=False) as client:
        waits, other = [await task_of(client, said("Pay")) for _ in range(2)]
        with pytest.raises(InvalidParamsError):
            await task_of(client, said("approve", task=waits.id, context=other.context_id))
        assert state(await client.get_task(GetTaskRequest(id=waits.id))) == "input_required"
        assert reply(await task_of(client, said("approve", task=waits.id))) == "Result: paid 30"


async def test_a_new_task_in_a_waiting_context_gets_the_questions() -> None:
    """So a client that lost its task, or a server that lost its tasks, can continue; the message is not taken as an
    answer.
    """
    store = MemoryStore()
    async with served(app_of(paying(), store=store)) as url, client_of(url, streaming=False) as client:
        first = await task_of(client, said("Pay"))
    async with served(app_of(paying(), store=store)) as url, client_of(url, streaming=False) as client:
        with pytest.raises(TaskNotFoundError):
            await client.get_task(GetTaskRequest(id=first.id))
        second = await task_of(client, said("approve", context=first.context_id))
        assert (state(second), second.id != first.id) == ("input_required", True)
        ended = await task_of(client, said("approve", task=second.id))
        assert (state(ended), reply(ended)) == ("completed", "Result: paid 30")


async def test_cancelling_a_task_ends_its_run_and_a_disconnect_does_not() -> None:
    """The stream of another client of the task ends with it."""
    gate = Gate()
    agent = Agent("a", ScriptedModel(lambda request: ["One ", gate]))
    app = app_of(agent)
    async with served(app) as url, client_of(url) as client, client_of(url) as other:
        events = client.send_message(said("Go"))
        task = (await anext(events)).task
        await gate.reached.wait()
        await events.aclose()  # type: ignore[attr-defined]
        again = other.subscribe(SubscribeToTaskRequest(id=task.id))
        assert state((await anext(again)).task) == "working"
        assert state(await client.cancel_task(CancelTaskRequest(id=task.id))) == "canceled"
        assert [event.status_update.status.state async for event in again][-1:] in (
            [TaskState.TASK_STATE_CANCELED],
            [],  # the SDK may close the stream first
        )
        assert state(await client.get_task(GetTaskRequest(id=task.id))) == "canceled"
        async with asyncio.timeout(LIMIT):
            while True:
                if not app.service.runs.busy(agent.session(f"{OWNER}.a.{task.context_id}")):
                    break
                await asyncio.sleep(0.01)


async def test_a_task_of_another_user_does_not_exist() -> None:
    """For no method, and the same context id is another session."""
    async with (
        served(app_of(paying(), auth=AUTH)) as url,
        client_of(url, ADA, streaming=False) as ada,
        client_of(url, BOB, streaming=False) as bob,
        client_of(url, BOB) as streaming,
    ):
        task = await task_of(ada, said("Pay", context="shared"))
        for asked in (
            bob.get_task(GetTaskRequest(id=task.id)),
            bob.cancel_task(CancelTaskRequest(id=task.id)),
            sent(bob, said("approve", task=task.id)),
            sent(streaming, said("approve", task=task.id)),
            anext(streaming.subscribe(SubscribeToTaskRequest(id=task.id))),
        ):
            with pytest.raises(TaskNotFoundError):
                await asked
        assert (await bob.list_tasks(ListTasksRequest())).total_size == 0
        assert [one.id for one in (await ada.list_tasks(ListTasksRequest())).tasks] == [task.id]
        other = await task_of(bob, said("Pay", context="shared"))
        assert state(other) == "input_required"
        assert state(await task_of(ada, said("approve", task=task.id))) == "completed"
        assert state(await bob.get_task(GetTaskRequest(id=other.id))) == "input_required"


async def test_the_card() -> None:
    """From the agent and its tools, as the view shows them, and with the address that the client used."""
    agent = Agent("a", ScriptedModel([]), description="Pays.", tools=[pay])

    async def cards(app: Any, base: str) -> list[Any]:
        async with served(app) as url, httpx.AsyncClient(trust_env=False) as http:
            found = [await A2ACardResolver(http, f"{url}{base}{path}").get_agent_card() for path in ("", "/a2a/a")]
            assert found[0] == found[1]
            assert [one.url.removeprefix(url) for one in found[0].supported_interfaces] == [f"{base}/a2a/a"] * 2
            return [(skill.id, skill.name, skill.description) for skill in found[0].skills]

    both = [("a", "a", "Pays."), ("pay", "pay", "Pay an amount.")]
    assert await cards(app_of(agent), "") == both
    assert await cards(Starlette(routes=[Mount("/ai", app_of(agent))]), "/ai") == both
    labelled = View(tools="label", labels={"pay": "Paying"})
    assert await cards(app_of(agent, view=labelled), "") == [both[0], ("skill-1", "Paying", "Paying")]
    assert await cards(app_of(agent, view=View(tools="label")), "") == both[:1]

    def change(agent: Agent, card: AgentCard) -> None:
        card.documentation_url = f"https://example.com/{agent.name}"

    options = A2A(url="https://shop.example.com/ai/", version="7", card=change, push=True)
    async with served(app_of(agent, options=options)) as url, httpx.AsyncClient(trust_env=False) as http:
        card = await A2ACardResolver(http, url).get_agent_card()
    assert card.supported_interfaces[0].url == "https://shop.example.com/ai/a2a/a"
    assert (card.version, card.documentation_url) == ("7", "https://example.com/a")
    assert card.capabilities.push_notifications


def rpc(method: str, params: Any, **more: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": params, **more}


def message(*parts: Any, **more: Any) -> dict[str, Any]:
    return {"message": {"messageId": "m", "role": "ROLE_USER", "parts": list(parts), **more}}


async def test_every_route_requires_a_user_and_a_known_host() -> None:
    """The card too."""
    async with served(app_of(paying(), auth=AUTH)) as url, connected(url) as client:
        for path, method in (("/.well-known/agent-card.json", "GET"), ("/a2a/a/.well-known/agent-card.json", "GET")):
            assert (await client.ask(method, path))[0] == 401
        assert (await client.ask("POST", "/a2a/a", rpc("GetTask", {"id": "x"})))[0] == 401
        token = {"Authorization": f"Bearer {ADA}"}
        assert (await client.ask("POST", "/a2a/a", rpc("GetTask", {"id": "x"}), Host="evil.example", **token))[0] == 421
        cross = {"Origin": "https://evil.example", **token}
        assert (await client.ask("POST", "/a2a/a", rpc("GetTask", {"id": "x"}), **cross))[0] == 403


async def test_hostile_requests_get_a_clear_answer() -> None:
    """A status for what HTTP knows, an error of the protocol for the rest; nothing reaches the agent."""
    reached: list[Any] = []
    agent = Agent("a", ScriptedModel(lambda request: reached.append(request) or "Hello."))
    app = app_of(agent, limits=Limits(body=5_000, message=100))
    good = rpc("SendMessage", message({"text": "Hi"}))
    version = {"A2A_Version": "1.0"}
    async with served(app) as url, connected(url) as client:

        async def code(data: Any) -> int:
            status, body = await client.ask("POST", "/a2a/a", data, **version)
            assert status == 200, body
            return body["error"]["code"]

        async def status(data: Any, kind: str = "application/json", path: str = "/a2a/a") -> int:
            headers = {"Content-Type": kind, "A2A-Version": "1.0"}
            body = data if isinstance(data, str) else json.dumps(data)
            async with client.http.post(f"{url}{path}", data=body.encode(), headers=headers) as response:
                assert response.headers["content-type"].startswith(("application/json", "text/plain"))
                return response.status

        assert [await status(good, kind) for kind in ("text/plain", "application/x-www-form-urlencoded")] == [415, 415]
        assert [await status(text) for text in ("{", "[" * 4_000, '{"id": NaN}')] == [400, 400, 400]
        assert await status(rpc("SendMessage", message({"text": "x" * 6_000}))) == 413
        assert await status(rpc("SendMessage", message({"text": "x" * 101}))) == 413
        assert await status(rpc("SendMessage", message({"data": json.loads("[" * 200 + "]" * 200)}))) == 400
        assert await status(good, path="/a2a/other") == 404
        for wrong in ([], [good], 5, {}, {"jsonrpc": "2.0"}, rpc("SendMessage", {}, jsonrpc="1.0")):
            assert await code(wrong) == -32600
        assert await code(rpc("Nothing", {})) == -32601
        for params in (
            {},
            [],
            {"message": 5},
            message(),
            message({"text": ""}),
            message({"text": " \n"}),
            message({"text": "Hi"}, contextId="../other"),
            message({"text": "Hi"}, contextId="x" * 65),
            message({"text": {"a": 1}}),
        ):
            assert await code(rpc("SendMessage", params)) == -32602, params
        assert await code(rpc("SendMessage", message({"raw": "aGk=", "mediaType": "image/png"}))) == -32005
        assert await code(rpc("SendMessage", message({"url": "http://127.0.0.1/"}))) == -32005
        for number in ("x", "../x", "<script>", "x" * 3_000):
            assert await code(rpc("GetTask", {"id": number})) == -32001
        asked = {"taskId": "x", "url": "https://example.com/"}
        assert await code(rpc("CreateTaskPushNotificationConfig", asked)) == -32003
        assert reached == []
        assert (await client.ask("POST", "/a2a/a", good, **version))[1]["result"]["task"]["status"]["state"]


async def test_script_in_every_field_stays_text() -> None:
    """Of the client, the model, a tool and the agent; and no text forges an event."""
    hostile = "<script>alert(1)</script>\n\nevent: error\ndata: {}\n\n\u2028\r\ndata: x\x1b[31m"
    uses = [ToolUseBlock("t1", hostile[:8], {hostile: hostile}), hostile]
    agent = Agent("a", ScriptedModel(uses), description=hostile)
    async with served(app_of(agent)) as url:
        async with client_of(url) as client:
            events = await sent(client, said(hostile, {hostile: hostile}))
        async with connected(url) as client_, client_.http.get(f"{url}/.well-known/agent-card.json") as response:
            assert response.headers["content-type"] == "application/json"
            assert response.headers["x-content-type-options"] == "nosniff"
            assert (await response.json())["description"] == hostile
    assert texts(events)[-1] == (hostile, False)
    assert events[0].task.history[0].parts[0].text == hostile
    assert events[-1].status_update.status.state == TaskState.TASK_STATE_COMPLETED


async def test_limits_on_runs_and_streams() -> None:
    """Refused before a task begins, with the status and `Retry-After` of the other routes."""
    gate = Gate()
    agent = Agent("a", ScriptedModel(lambda request: ["One ", gate]))
    app = app_of(agent, limits=Limits(runs_per_user=2, streams_per_user=1, retry_after=7))
    ask = rpc("SendMessage", message({"text": "Hi"}, contextId="c"))
    async with served(app) as url, client_of(url) as client, connected(url, **{"A2A-Version": "1.0"}) as plain:
        first = asyncio.create_task(sent(client, said("Go", context="c")))
        await gate.reached.wait()
        assert (await plain.ask("POST", "/a2a/a", ask))[0] == 409
        del ask["params"]["message"]["contextId"]
        async with plain.http.post(f"{url}/a2a/a", json={**ask, "method": "SendStreamingMessage"}) as response:
            assert (response.status, response.headers["Retry-After"]) == (429, "7")
        second = asyncio.create_task(plain.ask("POST", "/a2a/a", ask))
        while len(app.service.runs.of(OWNER)) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        async with plain.http.post(f"{url}/a2a/a", json=ask) as response:
            assert (response.status, response.headers["Retry-After"]) == (429, "7")
        gate.open.set()
        await first
        assert (await second)[0] == 200


async def test_the_last_tasks_are_kept() -> None:
    """A task that has ended makes room for others."""
    agent = Agent("a", ScriptedModel(lambda request: "Hello."))
    app = app_of(agent, limits=Limits(finished=2), options=A2A(push=allow))
    async with served(app) as url, client_of(url, streaming=False) as client:
        tasks = [(await task_of(client, said(str(number)))).id for number in range(4)]
        with pytest.raises(TaskNotFoundError):
            await client.get_task(GetTaskRequest(id=tasks[1]))
        assert [one.id for one in (await client.list_tasks(ListTasksRequest())).tasks] == [tasks[3], tasks[2]]


async def allow(url: str) -> bool:
    """The application's decision about addresses."""
    return not url.endswith("/no")


async def test_a_notification_is_sent_when_a_task_waits_and_has_ended() -> None:
    """To the addresses of the task, with their token; not for every event."""
    received: asyncio.Queue[tuple[str | None, str]] = asyncio.Queue()

    async def hook(request: Request) -> Response:
        update = (await request.json())["statusUpdate"]
        token = request.headers.get("x-a2a-notification-token")
        await received.put((token, update["status"]["state"]))
        return Response(status_code=500)  # it does not matter

    other = Starlette(routes=[Route("/hook", hook, methods=["POST"])])
    async with (
        served(other) as target,
        served(app_of(paying(), options=A2A(push=allow))) as url,
        client_of(url, streaming=False) as client,
    ):
        request = said("Pay")
        config = request.configuration.task_push_notification_config
        config.url, config.token = f"{target}/hook", "t"
        task = await task_of(client, request)
        assert await asyncio.wait_for(received.get(), LIMIT) == ("t", "TASK_STATE_INPUT_REQUIRED")
        for number in range(4):
            more = TaskPushNotificationConfig(task_id=task.id, id=str(number), url="http://127.0.0.1:1/")
            await client.create_task_push_notification_config(more)
        with pytest.raises(InvalidParamsError, match="maximum of 5"):
            await client.create_task_push_notification_config(
                TaskPushNotificationConfig(task_id=task.id, id="x", url=target)
            )
        with pytest.raises(InvalidParamsError, match="Invalid push"):
            await client.create_task_push_notification_config(
                TaskPushNotificationConfig(task_id=task.id, id="1", url=f"{target}/no")
            )
        assert state(await task_of(client, said("approve", task=task.id))) == "completed"
        assert await asyncio.wait_for(received.get(), LIMIT) == ("t", "TASK_STATE_COMPLETED")
        assert received.empty()


async def test_notifications_are_sent_to_public_addresses_only() -> None:
    """By default: literal addresses are refused at once, names when they are called."""
    called = asyncio.Event()

    async def hook(request: Request) -> Response:
        called.set()
        return Response()

    other = Starlette(routes=[Route("/{path:path}", hook, methods=["POST"])])
    async with (
        served(other) as target,
        served(app_of(paying(), options=A2A(push=True))) as url,
        client_of(url, streaming=False) as client,
    ):
        for wrong in (target, "http://169.254.169.254/x", "http://[::1]/", "file:///etc/passwd", "http://a:b@x/", ""):
            request = said("Pay")
            request.configuration.task_push_notification_config.url = wrong
            with pytest.raises(InvalidParamsError):
                await sent(client, request)
        request = said("Pay")
        named = target.replace("127.0.0.1", "localhost")
        request.configuration.task_push_notification_config.url = named
        assert state(await task_of(client, request)) == "input_required"
        while any(one.get_name() == "agentflow: push notification" for one in asyncio.all_tasks()):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert not called.is_set()


async def test_a_client_of_version_0_3() -> None:
    """Its methods and forms are understood too."""
    sent = {"message": {"messageId": "m", "role": "user", "kind": "message", "parts": [{"kind": "text", "text": "Hi"}]}}
    async with served(app_of(Agent("a", ScriptedModel(["Hello."])))) as url, connected(url) as client:
        task = (await client.good("POST", "/a2a/a", rpc("message/send", sent)))["result"]
        again = (await client.good("POST", "/a2a/a", rpc("tasks/get", {"id": task["id"]})))["result"]
    assert task["status"]["state"] == again["status"]["state"] == "completed"
    assert task["artifacts"][0]["parts"] == [{"kind": "text", "text": "Hello."}]


async def test_a_failure_and_a_denial() -> None:
    """The text of an error stays in the server; a hook's reason is for the client."""

    def fails(request: Any) -> str:
        raise ValueError("the password is open-sesame")

    @on(PreCall)
    def deny(event: PreCall) -> Deny:
        return Deny("Closed today.")

    for agent, ended, text in (
        (Agent("a", ScriptedModel(fails)), "failed", "The agent failed (reference "),
        (Agent("a", ScriptedModel([]), hooks=[deny]), "rejected", "Closed today."),
    ):
        async with served(app_of(agent)) as url, client_of(url, streaming=False) as client:
            task = await task_of(client, said("Hi"))
            assert state(task) == ended
            assert task.status.message.parts[0].text.startswith(text)
            assert "open-sesame" not in str(task)


async def test_an_error_of_the_server_stays_in_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """The task fails with a reference."""
    app = app_of(paying())

    async def broken(*args: Any) -> Any:
        raise RuntimeError("the password is open-sesame")

    monkeypatch.setattr(app.service, "load", broken)
    async with served(app) as url, client_of(url, streaming=False) as client:
        task = await task_of(client, said("Hi"))
    assert (state(task), "open-sesame" in str(task)) == ("failed", False)


async def test_a_shutdown_parks_a_task_and_the_next_process_continues_it() -> None:
    """With its sessions and tasks in stores that outlive the process."""
    gate = Gate()
    store, tasks = MemoryStore(), InMemoryTaskStore()
    agent = Agent("a", ScriptedModel([ToolUseBlock("t1", "wait", {}), "Done."]), tools=[waiting_for(gate)])
    app = app_of(agent, store=store, options=A2A(tasks=tasks), shutdown_seconds=5)
    async with served(app) as url, client_of(url) as client:
        running = asyncio.create_task(sent(client, said("Go")))
        await gate.reached.wait()
        assert app._shutdown is not None
        app._shutdown.begin()
        gate.open.set()
        events = await running
    assert events[-1].status_update.status.state == TaskState.TASK_STATE_INPUT_REQUIRED
    app = app_of(Agent("a", ScriptedModel(["Done."]), tools=[waiting_for(gate)]), store=store, options=A2A(tasks=tasks))
    async with served(app) as url, client_of(url, streaming=False) as client:
        task = await task_of(client, said("go on", task=events[0].task.id))
    assert (state(task), reply(task)) == ("completed", "Done.")


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A database for tasks."""
    if request.param == "sqlite":
        pytest.importorskip("aiosqlite")
        yield f"sqlite:///{tmp_path / 'tasks.db'}"
    else:
        with request.getfixturevalue("postgres").database() as url:
            yield url


@pytest.mark.ci
async def test_tasks_in_a_database_survive_their_process(database: str) -> None:
    """A waiting one is answered at the next process, or cancelled, which denies its question and leaves its context free. One
    that worked when its process died is completed from its session."""
    store = MemoryStore()
    script = [
        ToolUseBlock("t1", "pay", {"euros": 5}),
        ToolUseBlock("t2", "pay", {"euros": 7}),
        "Hello.",
        "Paid.",
        "Free.",
    ]
    model = ScriptedModel(script)

    def app() -> App:
        return app_of(Agent("a", model, tools=[pay]), store=store, options=A2A(tasks=database))

    async with served(app()) as url, client_of(url, streaming=False) as client:
        first, second, third = [await task_of(client, said(text)) for text in ("Pay", "Pay more", "Hi")]
    tasks = TaskDatabase.open(database)
    seen: list[Task] = []
    for age in (0.0, 1e6):
        left = await tasks.store.get(third.id, CALL)
        assert left is not None
        left.task.status.state = TaskState.TASK_STATE_WORKING
        left.task.status.timestamp.FromSeconds(int(time.time() - age))
        await tasks.store.save(left.task, prev_version=left.version, context=CALL)
        async with served(app()) as url, client_of(url, streaming=False) as client:
            seen.append(await client.get_task(GetTaskRequest(id=third.id)))
    await tasks.engine.dispose()
    async with served(app()) as url, client_of(url, streaming=False) as client:
        paid = await task_of(client, said("approve", task=first.id))
        cancelled = await client.cancel_task(CancelTaskRequest(id=second.id))
        free = await task_of(client, said("And now?", context=second.context_id))
        with pytest.raises(TaskNotFoundError):
            await client.get_task(GetTaskRequest(id="unknown"))
    assert [state(one) for one in (first, second, third)] == ["input_required"] * 2 + ["completed"]
    assert [(state(one), reply(one)) for one in (*seen, paid, free)] == [
        ("working", "Hello."),
        ("completed", "Hello."),
        ("completed", "Paid."),
        ("completed", "Free."),
    ]
    assert state(cancelled) == "canceled"
    assert [msg.text for msg in model.requests[-1].messages if msg.role == "tool"] == [
        "Denied: cancelled by the client"
    ]


async def test_the_statements_of_the_page_delete_old_tasks(database: str) -> None:
    """With their versions and events; newer tasks stay."""
    page = (Path(__file__).parents[2] / "docs" / "a2a.md").read_text("utf-8")
    statements = page.partition("```sql\n")[2].partition("```")[0].strip().rstrip(";").split(";")
    tasks = TaskDatabase.open(database)
    options = A2A(tasks=database)
    async with served(app_of(Agent("a", ScriptedModel(["One.", "Two."])), options=options)) as url:
        async with client_of(url, streaming=False) as client:
            old, new = [await task_of(client, said(text)) for text in ("1", "2")]
        stored = await tasks.store.get(old.id, CALL)
        assert stored is not None
        stored.task.status.timestamp.FromSeconds(0)
        await tasks.store.save(stored.task, prev_version=stored.version, context=CALL)
        async with tasks.engine.begin() as connection:
            for statement in statements:
                await connection.execute(sqlalchemy.text(statement))
            counts = [
                (await connection.execute(sqlalchemy.text(f"SELECT count(DISTINCT {key}) FROM {table}"))).scalar_one()
                for table, key in (("tasks", "id"), ("task_versions", "task_id"), ("task_events", "task_id"))
            ]
        await tasks.engine.dispose()
        async with client_of(url, streaming=False) as client:
            found = await client.get_task(GetTaskRequest(id=new.id))
            with pytest.raises(TaskNotFoundError):
                await client.get_task(GetTaskRequest(id=old.id))
    assert (len(statements), counts, reply(found)) == (3, [1, 1, 1], "Two.")


def test_a_database_of_tasks_that_is_not_one() -> None:
    """The error names the forms."""
    with pytest.raises(UsageError, match="takes a database such as"):
        app_of(Agent("a", ScriptedModel([])), options=A2A(tasks="mysql://host/db"))


def waiting_for(gate: Gate) -> Any:
    @tool(type="read")
    async def wait() -> str:
        """Wait."""
        return await gate()

    return wait
