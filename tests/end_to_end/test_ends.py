"""However a call ends while a reply comes over HTTP: the connection is closed, one CallEnded, and the next call works."""

import asyncio
from typing import Any

import pytest
from eventlog import Recorder, history
from wired import Wired, normal

from agentflow import Agent
from agentflow.errors import ModelError
from agentflow.testing.wire import Fault, Say
from agentflow.vocabulary.events import CallEnded, Error, ReasoningChunk


def ends(recorder: Recorder) -> list[str]:
    return [event.outcome for event in recorder.seen if isinstance(event, CallEnded)]


def held() -> Say:
    """A reply that falls silent after its first text, until the client leaves."""
    return Say("Once upon a time there was a story", chunk=5, faults=Fault.hang("text"))


async def _aclose(agent: Agent, recorder: Recorder) -> None:
    del recorder
    async with agent.stream("go") as events:
        async for event in events:
            if isinstance(event, ReasoningChunk):
                break


async def _cancel(agent: Agent, recorder: Recorder) -> None:
    async def called() -> None:
        await agent.call("go")

    task = asyncio.create_task(called())
    await first_chunk(recorder)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def _dispose(agent: Agent, recorder: Recorder) -> None:
    subscription = agent.call("go").subscribe(lambda reply: None)
    await first_chunk(recorder)
    subscription.dispose()
    await subscription.closed()


async def _dispose_stream(agent: Agent, recorder: Recorder) -> None:
    subscription = agent.stream("go").subscribe(lambda event: None)
    await first_chunk(recorder)
    subscription.dispose()
    await subscription.closed()


async def _interrupt(agent: Agent, recorder: Recorder) -> None:
    async def called() -> Any:
        return await agent.call("go")

    task = asyncio.create_task(called())
    await first_chunk(recorder)
    agent.interrupt(reason="enough")
    assert (await task).outcome == "interrupted"


class Watch(Recorder):
    """A recorder that reports when the first chunk with text arrived."""

    def __init__(self) -> None:
        super().__init__()
        self.begun = asyncio.Event()

    def on_event(self, event: Any) -> None:
        super().on_event(event)
        if isinstance(event, ReasoningChunk) and event.incremental_chunk.text:
            self.begun.set()


async def first_chunk(recorder: Recorder) -> None:
    assert isinstance(recorder, Watch)
    async with asyncio.timeout(5):
        await recorder.begun.wait()


@pytest.mark.parametrize(
    "leave", [_aclose, _cancel, _dispose, _dispose_stream, _interrupt], ids=lambda f: f.__name__[1:]
)
async def test_leaving_closes_the_connection(wired: Wired, leave: Any) -> None:
    """Closing the stream, cancelling the task, disposing and interrupting close the connection, and the next call works."""
    recorder = Watch()
    async with wired.serve([held(), Say("Next.")]) as server:
        agent = Agent("a", wired.model(server), hooks=[recorder])
        await leave(agent, recorder)
        assert ends(recorder) == ["interrupted"]
        async with asyncio.timeout(5):
            await server.wait_closed_connections()
        assert server.requests[0].ending == "client left"
        assert (await agent.call("next")).text == "Next."
    assert ends(recorder) == ["interrupted", "completed"]
    assert history(agent.session()) == ["user: go", "assistant: Once ", "user: next", "assistant: Next."]
    assert agent.session().messages[1].metadata["interrupted"] is True
    assert [message["role"] for message in server.requests[1].messages] == ["user", "assistant", "user"]


async def test_a_torn_reply_starts_over(wired: Wired) -> None:
    """If the connection of a reply breaks, it starts over with a restart chunk; reader, reply and history have it once."""
    script = [Say("Half a sen", chunk=5, faults=Fault.cut("text")), Say("A whole sentence.", chunk=5)]
    async with wired.serve(script) as server:
        agent = Agent("a", wired.model(server))
        async with agent.stream("go") as stream:
            events = [event async for event in stream]
    assert normal(events) == [
        "PreCall user: go",
        "PreReasoning 1 reason",
        "ReasoningChunk assistant: Half",
        "ReasoningChunk restart assistant: A whole sentence. (stop)",
        "PostReasoning A whole sentence. <>",
        "PostCall completed 'A whole sentence.'",
        "CallEnded completed",
    ]
    assert history(agent.session()) == ["user: go", "assistant: A whole sentence."]


async def test_a_reply_torn_for_good(wired: Wired) -> None:
    """With no attempt left the caller gets the ModelError itself, the log ends in Error and CallEnded, the next call works."""
    recorder = Recorder()
    torn = Say("Half a sen", chunk=5, faults=Fault.cut("text"))
    async with wired.serve([torn, torn, Say("Next.")]) as server:
        agent = Agent("a", wired.model(server, retries=1), hooks=[recorder])
        with pytest.raises(ModelError) as caught:
            await agent.call("go")
        kinds = [type(event).__name__ for event in recorder.seen if not isinstance(event, ReasoningChunk)]
        assert kinds == ["PreCall", "PreReasoning", "Error", "CallEnded"]
        error, ended = recorder.seen[-2:]
        assert isinstance(error, Error)
        assert isinstance(ended, CallEnded)
        assert (error.fatal, ended.outcome) == (True, "failed")
        assert error.error is ended.error is caught.value
        assert caught.value.retryable
        assert (await agent.call("next")).text == "Next."
    assert history(agent.session()) == ["user: go", "user: next", "assistant: Next."]
    assert "Half" not in repr(server.requests[2].body)
