"""Agents served over A2A: the official client of the SDK drives them over loopback."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from a2a.client import A2ACardResolver, Client, ClientConfig, ClientFactory
from a2a.helpers import get_data_parts, new_data_part, new_text_part
from a2a.types import (
    CancelTaskRequest,
    GetTaskRequest,
    ListTasksRequest,
    Message,
    Role,
    SendMessageRequest,
    StreamResponse,
    SubscribeToTaskRequest,
    Task,
    TaskNotFoundError,
    TaskState,
)
from serve_client import LIMIT, Gate, served

from agentflow import Agent, MemoryStore, ToolUseBlock, tool
from agentflow.serve import STANDARD, App, View, bearer_tokens
from agentflow.serve.a2a import A2A
from agentflow.testing import ScriptedModel

OWNER = hashlib.sha256(b"").hexdigest()[:32]
ADA, BOB = "ada-has-a-long-token", "bob-has-a-long-token"
AUTH = bearer_tokens({ADA: "ada", BOB: "bob"})


@tool(requires_approval=True)
async def pay(euros: int) -> str:
    """Pay an amount."""
    return f"paid {euros}"


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
    gate = Gate()
    agent = Agent("a", ScriptedModel([["One ", gate, "three."]]))
    async with served(app_of(agent)) as url, client_of(url) as client:
        events: list[StreamResponse] = []
        async for event in client.send_message(said("Count")):
            events.append(event)
            if event.HasField("artifact_update"):
                gate.open.set()
    assert texts(events) in (
        [("One ", False), ("opened three.", True), ("One opened three.", False)],
        [("One ", False), ("One opened three.", False)],
    )


def paying() -> Agent:
    """An agent that pays after an approval, and says what became of it."""

    def answer(request: Any) -> Any:
        last = request.messages[-1]
        if last.role == "user":
            return ToolUseBlock("t1", "pay", {"euros": 30})
        return f"Result: {last.tool_results[0].text}"

    return Agent("a", ScriptedModel(answer), tools=[pay])


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


async def test_a_new_task_in_a_waiting_context_gets_the_questions() -> None:
    """So a client that lost its task, or a server that lost its tasks, can go on; the message is not taken as an answer."""
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
