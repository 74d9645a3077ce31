"""Runs and sessions over HTTP: events with reconnects, decisions, steering, interruptions, the list of sessions."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from serve_client import LIMIT, Client, Gate, Sent, connected, sent_by, served

from agentflow import Agent, CallEnded, MemoryStore, ModelChunk, Msg, PreActing, Suspend, ToolUseBlock, on, tool
from agentflow.serve import App, Limits, View
from agentflow.state import SqlStore
from agentflow.testing import ScriptedModel
from agentflow.vocabulary import Citation


@tool(type="read")
async def search(query: str) -> AsyncIterator[str]:
    yield "SECRET progress"
    if "fail" in query:
        raise RuntimeError("SECRET password")
    yield "SECRET result"


@tool(requires_approval=True)
async def pay(euros: int, to: str) -> str:
    return f"paid {euros} to {to}"


def payment(euros: int = 5) -> ToolUseBlock:
    return ToolUseBlock("t1", "pay", {"euros": euros, "to": "Ann"})


def shapes(events: list[Sent]) -> list[tuple[str, Any]]:
    """The types and texts of events."""
    told = {"text": "text", "reply": "text", "tool": "state", "end": "outcome", "tool_output": "text"}
    return [(one.type, one.data.get(told.get(one.type, ""))) for one in events]


async def test_a_run_from_its_start_to_its_end() -> None:
    """A started run needs no client; all its events can be read afterwards, numbered from 1."""
    agent = Agent("a", ScriptedModel([["Hel", "lo."]]))
    async with served(App(agent)) as url, connected(url) as client:
        run = await client.started("Hi")
        events = await client.events(run["id"])
        shown = await client.good("GET", f"/runs/{run['id']}")
        history = await client.good("GET", f"/agents/a/sessions/{run['session']}")
    assert shapes(events) == [
        ("run", None),
        ("text", "Hel"),
        ("text", "lo."),
        ("reply", "Hello."),
        ("end", "completed"),
    ]
    epoch = events[0].id.partition("-")[0]
    assert [one.id for one in events] == [f"{epoch}-{n}" for n in range(1, 6)]
    assert events[0].data == {"type": "run", "run": run["id"], "agent": "a", "session": run["session"]}
    assert shown["end"] == events[-1].data
    assert [(msg["role"], msg["text"]) for msg in history["messages"]] == [("user", "Hi"), ("assistant", "Hello.")]
    assert (history["status"], history["questions"]) == ("idle", [])


async def test_a_reconnect_at_any_place_loses_and_repeats_nothing() -> None:
    """Whichever event was the last one received, the events after it follow, and no others."""
    gate = Gate()
    agent = Agent("a", ScriptedModel([["One ", gate, "two ", "three."]]))
    async with served(App(agent)) as url, connected(url) as client:
        run = (await client.started("Count"))["id"]
        await asyncio.wait_for(gate.reached.wait(), LIMIT)
        async with client.stream(f"/runs/{run}/events") as response:  # it leaves in the middle
            stream = sent_by(response)
            first = [await anext(stream), await anext(stream)]
        later = asyncio.create_task(client.events(run, first[-1].id))
        gate.open.set()
        rest = await later
        complete = await client.events(run)
        assert [*first, *rest] == complete
        for place, event in enumerate(complete[:-1], 1):
            assert await client.events(run, event.id) == complete[place:]
        async with client.stream(f"/runs/{run}/events", complete[-1].id) as response:
            assert response.status == 204  # a browser's EventSource stops


async def test_dropped_events_are_reported_as_a_gap() -> None:
    """With a full buffer, or after a restart, a client learns that events are missing."""
    agent = Agent("a", ScriptedModel([[f"{n} " for n in range(50)]]))
    async with served(App(agent, limits=Limits(buffer=10))) as url, connected(url) as client:
        run = (await client.started("Count"))["id"]
        await client.ended(run)
        events = await client.events(run)
        other = await client.events(run, "0123abcd-3")
        status, refused = await client.ask("GET", f"/runs/{run}/events", Last_Event_ID="junk")
    assert events[0] == Sent("", "gap", {"type": "gap"})
    assert len(events) == 11
    assert events[-1].data["outcome"] == "completed"
    assert other == events
    assert (status, refused["error"]["code"]) == (400, "wrong_event_id")


async def test_the_default_view_shows_no_secrets() -> None:
    """System prompts, thoughts, arguments, results, errors and the notes of hooks stay in the server."""
    calls = [ToolUseBlock("t1", "search", {"query": "SECRET"}), ToolUseBlock("t2", "search", {"query": "SECRET fail"})]
    script = [[ModelChunk(thinking="SECRET thought"), "Let me see.", *calls], "Done.", ConnectionError("SECRET key")]

    @on(PreActing)
    def note(event: PreActing) -> None:
        event.context.inject(Msg.user("SECRET note"), Msg.assistant("SECRET thought of a hook"))

    agent = Agent("a", ScriptedModel(script), system="SECRET prompt", tools=[search], hooks=[note])
    async with served(App(agent)) as url, connected(url) as client:
        run = await client.started("Find it")
        events = await client.events(run["id"])
        history = await client.good("GET", f"/agents/a/sessions/{run['session']}")
        failed = await client.ended((await client.started("Again", session=run["session"]))["id"])
        everything = json.dumps([events, history, failed, await client.good("GET", "/runs")])
    assert "SECRET" not in everything
    assert [one.data["state"] for one in events if one.type == "tool" and one.data["id"] == "t2"] == [
        "running",
        "error",
    ]
    assert failed["outcome"] == "failed"
    assert len(failed["reference"]) == 8


async def test_a_full_view_shows_thinking_and_tools() -> None:
    """What the default hides can be chosen; sub-agents stay hidden."""
    script = [[ModelChunk(thinking="Hm."), ToolUseBlock("t1", "search", {"query": "x"})], "Done."]
    agent = Agent("a", ScriptedModel(script), tools=[search])
    view = View(tools="full", thinking=True, labels={"search": "Searching"})
    async with served(App(agent, view=view)) as url, connected(url) as client:
        events = await client.events((await client.started("Find it"))["id"])
    started, ended = [one.data for one in events if one.type == "tool"]
    assert started == {
        "type": "tool",
        "id": "t1",
        "name": "search",
        "label": "Searching",
        "state": "running",
        "input": {"query": "x"},
    }
    assert ended["result"] == "SECRET progressSECRET result"
    assert ("tool_output", "SECRET progress") in shapes(events)
    assert [one.data["text"] for one in events if one.type == "thinking"] == ["Hm."]


async def test_a_redacted_view_sends_whole_replies_only() -> None:
    """A secret that is split over two chunks is redacted too, in arguments and in the history as well."""
    agent = Agent("a", ScriptedModel([["The SEC", "RET is", payment()]]), tools=[pay])
    view = View(redact=lambda text: text.replace("SECRET", "***").replace("Ann", "***"))
    async with served(App(agent, view=view)) as url, connected(url) as client:
        run = await client.started("my SECRET")
        events = await client.events(run["id"])
        history = await client.good("GET", f"/agents/a/sessions/{run['session']}")
    assert shapes(events)[1] == ("reply", "The *** is")
    assert events[-1].data["questions"][0]["input"] == {"euros": 5, "to": "***"}
    assert history["messages"][0]["text"] == "my ***"
    assert "Ann" not in json.dumps(history)


async def test_a_decision_continues_the_same_run_and_its_numbers() -> None:
    """After an approval with edited arguments, a client that reconnects gets only the new events."""
    agent = Agent("a", ScriptedModel([payment(), "It is paid."]), tools=[pay])
    view = View(tools="full")
    async with served(App(agent, view=view)) as url, connected(url) as client:
        run = await client.started("Pay Ann")
        before = await client.events(run["id"])
        [question] = before[-1].data["questions"]
        path = f"/agents/a/sessions/{run['session']}"
        waiting = await client.good("GET", path)
        edited = {"decisions": {"t1": {"action": "approve", "input": {"euros": 3, "to": "Ann"}}}}
        again = await client.good("POST", f"{path}/resume", edited)
        after = await client.events(run["id"], before[-1].id)
        replayed = await client.ask("POST", f"{path}/resume", edited)
    assert question == {"id": "t1", "kind": "approval", "name": "pay", "input": {"euros": 5, "to": "Ann"}}
    assert (waiting["status"], waiting["run"], waiting["questions"]) == ("suspended", run["id"], [question])
    assert again["id"] == run["id"]
    assert [one.data["result"] for one in after if one.type == "tool" and "result" in one.data] == ["paid 3 to Ann"]
    assert shapes(after)[-2:] == [("reply", "It is paid."), ("end", "completed")]
    assert after[0].id == f"{before[0].id[:8]}-{len(before) + 1}"
    assert (replayed[0], replayed[1]["error"]["code"]) == (409, "not_waiting")


async def test_decisions_that_do_not_fit_change_nothing() -> None:
    """Each is refused with its reason, and the call still waits."""
    agent = Agent("a", ScriptedModel([payment(), "Denied, then."]), tools=[pay])
    async with served(App(agent)) as url, connected(url) as client:
        run = await client.started("Pay Ann")
        await client.ended(run["id"])
        path = f"/agents/a/sessions/{run['session']}/resume"

        async def code(decisions: Any) -> tuple[int, str]:
            status, found = await client.ask("POST", path, {"decisions": decisions})
            return status, found["error"]["code"]

        assert await code({}) == (422, "decisions_missing")
        assert await code({"t2": {"action": "approve"}}) == (409, "not_waiting")
        assert await code({"t1": {"action": "answer", "value": "paid, honestly"}}) == (422, "wrong_decision")
        assert await code({"t1": {"action": "approve", "input": {"euros": "many", "to": "Ann"}}}) == (
            422,
            "wrong_arguments",
        )
        assert await code({"t1": {"action": "sudo"}}) == (422, "invalid_body")
        status, found = await client.ask("POST", "/agents/a/runs", {"input": "Hello?", "session": run["session"]})
        assert (status, found["error"]["code"]) == (409, "suspended")
        await client.good("POST", path, {"decisions": {"t1": {"action": "deny", "reason": "too much"}}})
        assert (await client.ended(run["id"]))["text"] == "Denied, then."


async def test_a_question_of_a_hook_is_shown_with_its_text() -> None:
    """Of `Suspend(request)` only the question is sent."""

    @on
    def ask(event: PreActing) -> Suspend:
        return Suspend({"question": "Really?", "risk": "SECRET"})

    agent = Agent("a", ScriptedModel([ToolUseBlock("t1", "search", {"query": "x"})]), tools=[search], hooks=[ask])
    async with served(App(agent, view=View(tools="label"))) as url, connected(url) as client:
        end = await client.ended((await client.started("Find"))["id"])
    assert end["questions"][0]["question"] == "Really?"
    assert "SECRET" not in json.dumps(end)


async def test_a_run_is_steered_and_interrupted() -> None:
    """A message reaches the model before its next reply; an interrupted run ends at once."""
    first, second = Gate(), Gate()
    model = ScriptedModel([["One ", first], ["Two ", second]])
    async with served(App(Agent("a", model))) as url, connected(url) as client:
        run = (await client.started("Go"))["id"]
        await asyncio.wait_for(first.reached.wait(), LIMIT)
        texts = ("Be brief.", "", "?")
        statuses = [(await client.ask("POST", f"/runs/{run}/steer", {"text": text}))[0] for text in texts]
        assert statuses == [202, 422, 202]
        first.open.set()
        await asyncio.wait_for(second.reached.wait(), LIMIT)
        assert [message.text for message in model.requests[1].messages[-2:]] == ["Be brief.", "?"]
        assert await client.good("POST", f"/runs/{run}/interrupt", {}) == {"interrupted": True}
        assert (await client.ended(run))["outcome"] == "interrupted"
        assert await client.good("POST", f"/runs/{run}/interrupt", {}) == {"interrupted": False}
        status, refused = await client.ask("POST", f"/runs/{run}/steer", {"text": "Hello?"})
        assert (status, refused["error"]["code"]) == (409, "run_ended")


async def test_a_copy_before_a_message() -> None:
    """A copy that ends before an input can be continued with another one; before the first it is a new session."""
    agent = Agent(
        "a", ScriptedModel(lambda request: " ".join(msg.text for msg in request.messages if msg.role == "user"))
    )
    async with served(App(agent)) as url, connected(url) as client:
        for text in ("one", "two"):
            await client.ended((await client.started(text, session="mine"))["id"])
        first, _, second, _ = (await client.good("GET", "/agents/a/sessions/mine"))["messages"]
        replies = []
        for message in (first, second):
            fork = await client.good("POST", "/agents/a/sessions/mine/fork", {"before": message["id"]})
            end = await client.ended((await client.started("other", session=fork["session"]))["id"])
            replies.append(end["text"])
        assert replies == ["other", "one other"]
        for body in ({"before": "msg_x"}, {"before": second["id"], "after": "run_x"}):
            assert (await client.ask("POST", "/agents/a/sessions/mine/fork", body))[0] == 422


async def test_sources_are_sent_once() -> None:
    """A reply has the sources that the model cites, without the provider's annotations."""
    source = Citation(url="https://example.com/", title="Example", text="SECRET quote", raw={"internal": 1})
    agent = Agent(
        "a", ScriptedModel([["It is so.", ModelChunk(citations=(source,)), " It is.", ModelChunk(citations=(source,))]])
    )
    view = View(redact=lambda text: text.replace("SECRET", "***"))
    async with served(App(agent, view=view)) as url, connected(url) as client:
        run = await client.started("Is it?")
        [reply] = [event.data for event in await client.events(run["id"]) if event.type == "reply"]
        history = await client.good("GET", f"/agents/a/sessions/{run['session']}")
    sources = [{"title": "Example", "url": "https://example.com/", "quote": "*** quote"}]
    assert (reply["sources"], history["messages"][-1]["sources"]) == (sources, sources)


async def test_sessions_are_listed_copied_and_deleted() -> None:
    """A copy can stop after a run; a deleted session is gone from the store, and so are its events."""
    store = MemoryStore()
    agent = Agent("a", ScriptedModel(["One.", "Two.", "Three."]))
    async with served(App(agent, store=store)) as url, connected(url) as client:
        first = await client.started("1", session="mine")
        await client.ended(first["id"])
        await client.ended((await client.started("2", session="mine"))["id"])
        copy = await client.good("POST", "/agents/a/sessions/mine/fork", {"after": first["id"], "session": "copy"})
        listed = await client.good("GET", "/agents/a/sessions")
        page = await client.good("GET", "/agents/a/sessions?limit=1&offset=1&titles=1")
        history = await client.good("GET", "/agents/a/sessions/copy")
        taken = await client.ask("POST", "/agents/a/sessions/mine/fork", {"session": "copy"})
        unknown = await client.ask("POST", "/agents/a/sessions/mine/fork", {"after": "run_x"})
        assert (await client.ask("DELETE", "/agents/a/sessions/mine"))[0] == 204
        assert (await client.ask("GET", "/agents/a/sessions/mine"))[0] == 404
        assert (await client.ask("DELETE", "/agents/a/sessions/mine"))[0] == 404
        assert (await client.ask("GET", f"/runs/{first['id']}"))[0] == 404
    assert copy == {"session": "copy"}
    assert [entry["id"] for entry in listed["sessions"]] == ["copy", "mine"]
    assert (page["total"], [(entry["id"], entry["title"]) for entry in page["sessions"]]) == (2, [("mine", "1")])
    assert not [entry for entry in listed["sessions"] if "title" in entry]
    assert [msg["text"] for msg in history["messages"]] == ["1", "One."]
    assert (taken[0], unknown[0]) == (409, 422)
    assert [info.id.rpartition(".")[2] for info in await store.sessions()] == ["copy"]


async def test_deleting_a_session_deletes_those_of_its_sub_agents() -> None:
    """Nothing of a conversation stays in the store."""
    store = MemoryStore()
    inner = Agent("inner", ScriptedModel([payment()]), tools=[pay], store=store)
    agent = Agent("a", ScriptedModel([ToolUseBlock("t9", "inner", {"message": "Pay"})]), tools=[inner], store=store)
    async with served(App(agent)) as url, connected(url) as client:
        run = await client.started("Pay Ann", session="s")
        end = await client.ended(run["id"])
        assert [question["id"] for question in end["questions"]] == ["t9/t1"]
        assert len(await store.sessions()) == 2
        assert [entry["id"] for entry in (await client.good("GET", "/agents/a/sessions"))["sessions"]] == ["s"]
        await client.good("DELETE", "/agents/a/sessions/s")
    assert await store.sessions() == []


async def test_a_call_answers_in_one_response() -> None:
    """With or without a stream; a disconnect interrupts the run, which a started run survives."""
    gate, ends = Gate(), asyncio.Queue[str]()

    @on(CallEnded)
    def ended(event: CallEnded) -> None:
        ends.put_nowait(event.outcome)

    agent = Agent("a", ScriptedModel(["Hello.", ["Hel", "lo."], ["One ", gate]]), hooks=[ended])
    async with served(App(agent)) as url, connected(url) as client:
        done = await client.good("POST", "/agents/a/call", {"input": "Hi"})
        assert (done["end"]["outcome"], done["end"]["text"]) == ("completed", "Hello.")
        post = client.http.post(f"{url}/agents/a/call", json={"input": "Hi"}, headers={"Accept": "text/event-stream"})
        async with post as response:
            events = [sent async for sent in sent_by(response)]
        assert shapes(events)[-1] == ("end", "completed")
        leaving = asyncio.create_task(client.ask("POST", "/agents/a/call", {"input": "Hi"}))
        await asyncio.wait_for(gate.reached.wait(), LIMIT)
        leaving.cancel()
        assert [await asyncio.wait_for(ends.get(), LIMIT) for _ in range(3)] == [
            "completed",
            "completed",
            "interrupted",
        ]


async def test_one_run_at_a_time_works_on_a_session() -> None:
    """A second one, a copy and a deletion are refused while it works."""
    gate = Gate()
    async with served(App(Agent("a", ScriptedModel([["One ", gate]])))) as url, connected(url) as client:
        run = await client.started("Go", session="s")
        await asyncio.wait_for(gate.reached.wait(), LIMIT)
        refused = [
            await client.ask("POST", "/agents/a/runs", {"input": "Go", "session": "s"}),
            await client.ask("POST", "/agents/a/sessions/s/fork", {}),
            await client.ask("DELETE", "/agents/a/sessions/s"),
        ]
        running = await client.good("GET", "/agents/a/sessions/s")
        gate.open.set()
        await client.ended(run["id"])
    assert [(status, found["error"]["code"]) for status, found in refused] == [(409, "session_busy")] * 3
    assert (running["status"], running["run"]) == ("running", run["id"])


async def test_runs_are_parked_at_a_shutdown_and_continue_in_the_next_process(tmp_path: Any) -> None:
    """The stream ends with `parked`; the next application continues the same run for the same user."""
    url = f"sqlite:///{tmp_path / 'data.db'}"
    gate = Gate()
    call = ToolUseBlock("t1", "search", {"query": "x"})
    first = App(Agent("a", ScriptedModel([["One ", gate, call]]), tools=[search]), store=SqlStore(url))
    async with served(first) as address, connected(address) as client:
        run = await client.started("Go", session="s")
        await asyncio.wait_for(gate.reached.wait(), LIMIT)
        reading: asyncio.Task[list[Sent]] | None = asyncio.create_task(client.events(run["id"]))
        async with client.stream(f"/runs/{run['id']}/events") as response:
            assert response.status == 200
            stopping = asyncio.create_task(_shut_down(first, gate))
            assert reading is not None
            events = await reading
            await stopping
    assert shapes(events)[-1] == ("end", "parked")
    await first.service.agents["a"].session("s").store.close()  # type: ignore[union-attr]
    second = App(Agent("a", ScriptedModel(["Found."]), tools=[search]), store=SqlStore(url), resume=True)
    async with served(second) as address, connected(address) as client:
        end = await _found(client, run["id"])
        history = await client.good("GET", "/agents/a/sessions/s")
        missed = await client.events(run["id"], events[-1].id)
    await second.service.agents["a"].session("s").store.close()  # type: ignore[union-attr]
    assert (end["outcome"], end["text"]) == ("completed", "Found.")
    assert [msg["text"] for msg in history["messages"]] == ["Go", "One opened ", "Found."]
    assert missed[0].type == "gap"


async def _shut_down(app: App, gate: Gate) -> None:
    shutdown = app._shutdown
    assert shutdown is not None
    shutdown.begin()
    gate.open.set()


async def _found(client: Client, run: str) -> dict[str, Any]:
    """The end of a run that a new process continues as soon as it can."""
    async with asyncio.timeout(LIMIT):
        while True:
            if (await client.ask("GET", f"/runs/{run}"))[0] == 200:
                return await client.ended(run)
            await asyncio.sleep(0.02)


async def test_reading_a_session_does_not_make_it_busy(tmp_path: Path) -> None:
    """While other requests read a suspended session from its store, it stays suspended, and its decision is accepted."""
    agent = Agent("a", ScriptedModel([payment(), "Paid."]), tools=[pay])
    async with served(App(agent, store=f"sqlite:///{tmp_path / 'a.db'}")) as url, connected(url) as client:
        run = await client.started("Pay")
        await client.events(run["id"])
        path = f"/agents/a/sessions/{run['session']}"
        states: set[str] = set()
        finished, resumed = asyncio.Semaphore(0), asyncio.Event()

        async def read() -> None:
            while not resumed.is_set():
                states.add((await client.good("GET", path))["status"])
                finished.release()

        async with asyncio.TaskGroup() as group:
            reads = [group.create_task(read()) for _ in range(8)]
            for _ in range(5 * len(reads)):
                await finished.acquire()
            before = set(states)
            status, answer = await client.ask("POST", f"{path}/resume", {"decisions": {"t1": {"action": "approve"}}})
            resumed.set()
        end = await client.ended(run["id"])
    assert (status, answer["id"], end["outcome"], before) == (202, run["id"], "completed", {"suspended"})
