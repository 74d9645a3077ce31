"""Whole agents on a real model: what it says is random; what our side makes of it is not."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable
from typing import Any, ClassVar

import pytest
from laws_checks import check_budget, check_folds, check_history, check_request, check_wires
from laws_harness import World
from laws_programs import AroundPlan, HookPlan, Path, Program
from laws_whole import check_call, check_still
from pydantic import BaseModel
from real_models import DIRECT, Counted, Real

from agentflow import Agent, Msg, tool
from agentflow.errors import CallTimeoutError, ModelError, OutputError
from agentflow.loop.output import Output
from agentflow.loop.session import Session
from agentflow.reactive.iterators import close
from agentflow.vocabulary.events import PostReasoning, PostToolRound, PreReasoning, PreToolRound, ReasoningChunk
from agentflow.vocabulary.messages import Reply, ToolResultBlock, ToolUseBlock
from agentflow.vocabulary.ports.model import ModelRequest
from agentflow.vocabulary.specs import ModelOptions

ENDS = {"stop", "length", "tool_calls"}
LINE = ModelOptions(tool_choice="none", stop=("\n",))
EARLIER = (
    Msg.user("Add 1 and 4."),
    Msg.assistant([ToolUseBlock("call_0", "add", {"a": 1, "b": 4})]),
    Msg("tool", (ToolResultBlock("call_0", "add", "5"),)),
    Msg.assistant("5"),
)


class RealWorld(World):
    """The world of the laws with a real model in it, one small tool, and short answers."""

    given: ClassVar[dict[str, Any]] = {
        "default_hooks": ()
    }  # most answers are truncated here, and none is requested again

    def __init__(self, real: Real, program: Program) -> None:
        self.real = real
        super().__init__(program)
        self.agent.hook(self.short)

    def make_model(self) -> Any:
        return self.real.model()

    def make_tools(self) -> list[Any]:
        ran = self.ran

        @tool(type="read")
        async def add(a: int, b: int) -> int:
            """Add two numbers."""
            ran["add"] += 1
            return a + b

        return [add]

    @property
    def session_key(self) -> str | Session | None:
        """A caller's own session has a call in its history, which small models imitate."""
        if self.program.session == "fresh" and self.fresh is None:
            self.fresh = Session.fresh(EARLIER)
        return super().session_key

    def short(self, event: PreReasoning) -> None:
        """Answers are a line; the first reply of an armed world is to call the tool."""
        calls = self.armed and event.purpose == "reason" and event.iteration == 1
        asked = ModelOptions(max_tokens=30, tool_choice="required", temperature=0.0) if calls else LINE
        event.options = self.real.options.merge(asked)


async def dropped() -> None:
    """LiteLLM drops iterators of its own; the loop closes them when they are collected."""
    gc.collect()
    async with asyncio.timeout(60):
        while asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.sleep(0.01)
            gc.collect()


async def check_real(world: RealWorld) -> None:
    """Call, check, call again: the laws of `tests/laws`, with a model without a script."""
    start = await world.agent.history(world.session_key)
    seen = await world.call("Add 2 and 3.")
    assert seen.error is None
    if "litellm" in world.real.adapter:
        await dropped()
    check_still(world)
    check_call(world, seen, world.program.path)
    world.real.tally.rounds += sum(isinstance(event, PreToolRound) for event in seen.observed)
    check_budget(seen, world.program.max_iterations)
    world.armed = False
    again = await world.call("Thanks.", path=Path("call"))
    assert again.error is None
    assert again.reply is not None
    check_call(world, again, Path("call"))
    if "litellm" in world.real.adapter:
        await dropped()
    check_still(world)
    check_history(world.history)
    for request in world.model.requests:
        check_request(request.messages)
        check_wires(request.messages, request.tools)
    await check_folds(world, start)


WATCHED = Program(replies=(), path=Path("stream"), max_iterations=2, session="fresh")
CLOSED = Program(replies=(), path=Path("close", at=8), max_iterations=2, session="named")
DENIED = Program(
    replies=(),
    hooks=(HookPlan("PreActing", "Deny", role="guard"), HookPlan("ReasoningChunk", "raise", role="observer")),
    arounds=(AroundPlan("PreReasoning", "map"), AroundPlan("PreActing", "retry")),
    max_iterations=2,
    session="named",
)
AGAIN = Program(
    replies=(),
    hooks=(HookPlan("PostReasoning", "Again"), HookPlan("PostToolRound", "inject", style="mono")),
    arounds=(AroundPlan("PreReasoning", "tap"),),
    path=Path("stream", slow_reader=True),
    max_iterations=2,
    session="fresh",
)


async def test_the_laws_hold_of_a_real_model(real: Real) -> None:
    """Events, facts and history agree, requests are legal on every wire, nothing is left; the next call works."""
    await check_real(RealWorld(real, WATCHED))


@pytest.mark.parametrize("real", DIRECT, indirect=True)
@pytest.mark.parametrize("program", [CLOSED, DENIED, AGAIN], ids=["closed in mid-stream", "denied", "asked again"])
async def test_the_laws_hold_whatever_hooks_and_callers_do_with_it(real: Real, program: Program) -> None:
    """The same, with hooks that veto, fail, wrap and ask again, and a reader that goes away."""
    await check_real(RealWorld(real, program))


@pytest.mark.parametrize("real", DIRECT, indirect=True)
async def test_a_real_model_calls_a_tool_and_reads_what_it_gave(real: Real) -> None:
    """Held to the tool's schema by the server's grammar, it names arguments that the tool takes; the result goes back to it."""
    world = RealWorld(real, WATCHED)
    seen = await world.call("Add 2 and 3.")
    rounds = [event for event in seen.observed if isinstance(event, PostToolRound)]
    assert rounds, [msg.text for msg in world.history]
    assert all(result.name == "add" for result in rounds[0].tool_results)
    assert rounds[0].tool_results[0].state == "success"
    assert world.model.requests[1].messages[-1].tool_results == rounds[0].tool_results


async def test_a_stream_is_told_piece_by_piece_with_its_tokens_and_its_end(real: Real) -> None:
    """The chunks fold to the reply, which has the provider's count and finish reason."""
    model = real.model()
    agent = Agent("a", model, options=real.options, default_hooks=())
    async with agent.stream("Say hello.") as events:
        seen = [event async for event in events]
    chunks = [event for event in seen if isinstance(event, ReasoningChunk)]
    replied = next(event for event in seen if isinstance(event, PostReasoning))
    assert len(chunks) > 2
    assert "".join(event.incremental_chunk.text for event in chunks) == replied.reasoning_result.text
    assert replied.reasoning_result.finish_reason in ENDS
    assert replied.usage.input_tokens > 3
    assert 0 < replied.usage.output_tokens <= 12


class Mood(BaseModel):
    good: bool


@pytest.mark.parametrize("real", DIRECT, indirect=True)
@pytest.mark.parametrize("via", ["native", "tool", "prompt"])
async def test_a_typed_answer_is_valid_or_a_clear_error_behind_a_bounded_number_of_tries(real: Real, via: Any) -> None:
    """270 million parameters often miss the form: they are called again, and then the error has the problem."""
    model = real.model()
    options = real.options.merge(ModelOptions(max_tokens=32 if via == "native" else 14, temperature=0.0))
    agent = Agent("a", model, output=Output(Mood, via=via, retries=1), options=options, default_hooks=())
    session = agent.session("s")
    reply, error = await _tried(agent.call("I feel great.", session=session))
    if error is None:
        assert isinstance(reply.output, Mood)
        assert len(model.requests) <= 2
        real.tally.outcomes.append(repr(reply.output))
    else:
        assert isinstance(error, OutputError)
        if (via, real.adapter) == ("native", "openai"):  # there the server's grammar holds it to the form
            assert error.answer.finish_reason == "length"
        assert error.times == len(model.requests) == 2
        assert error.problem
        real.tally.outcomes.append(f"refused: {error.answer.text[:40]!r}")
    check_history(session.messages)


async def _tried(call: Awaitable[Any]) -> tuple[Any, Exception | None]:
    try:
        return await call, None
    except (OutputError, ModelError) as error:
        return None, error


@pytest.mark.parametrize("real", DIRECT, indirect=True)
async def test_an_answer_that_is_cut_off_is_asked_for_a_bounded_number_of_times(real: Real) -> None:
    """With the default hooks: a complete reply, or an error with the remedy."""
    model = real.model()
    agent = Agent("a", model, options=real.options.merge(ModelOptions(max_tokens=3)))
    reply, error = await _tried(agent.call("Write a long story."))
    if error is None:
        assert reply.finish_reason == "stop"
    else:
        assert isinstance(error, ModelError)
        assert not error.retryable
        assert "max_tokens" in str(error)
        assert len(model.requests) == 3
    check_history(agent.session().messages)


@pytest.mark.parametrize("way", ["close", "cancel", "timeout"])
async def test_who_leaves_in_mid_stream_frees_the_servers_slot(real: Real, way: str) -> None:
    """Closed, cancelled or out of time: the connection is closed, and the server stops generating at once."""
    model = real.model()
    agent = Agent("a", model, options=real.options.merge(ModelOptions(max_tokens=900)))
    started = asyncio.Event()
    agent.on(ReasoningChunk, lambda _event: started.set())
    if way == "close":
        async with agent.stream("Write a long story.") as events:
            async for event in events:
                if isinstance(event, ReasoningChunk):
                    assert await asyncio.to_thread(real.server.busy) == 1
                    break
    elif way == "cancel":
        task = asyncio.ensure_future(agent.call("Write a long story."))
        await started.wait()
        assert await asyncio.to_thread(real.server.busy) == 1
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    else:
        with pytest.raises(CallTimeoutError):
            await agent.call("Write a long story.", timeout=2)
    assert model.open_streams == 0
    await real.idle()


async def test_eight_calls_at_once_share_two_slots_and_stay_apart(real: Real) -> None:
    """Six wait in the server; each ends with its own tokens and its own history."""
    model = real.model()
    agent = Agent("a", model, options=real.options.merge(ModelOptions(max_tokens=5)), default_hooks=())
    replies = await asyncio.gather(*(agent.call(f"Say {n}.", session=f"s{n}") for n in range(8)))
    for n, reply in enumerate(replies):
        assert isinstance(reply, Reply)
        assert reply.outcome == "completed"
        assert 0 < reply.usage.output_tokens <= 5
        first, second = agent.session(f"s{n}").messages
        assert (first.text, second.text) == (f"Say {n}.", reply.text)
    assert model.open_streams == 0


async def test_a_conversation_beyond_the_context_is_said_to_be_so_and_not_sent_again(real: Real) -> None:
    """The error has its kind, on which hooks can act; it is not retried."""
    model = real.model(retries=3)
    agent = Agent("a", model, options=real.options, default_hooks=())
    with pytest.raises(ModelError) as caught:
        await agent.call("word " * 2000)
    assert (caught.value.kind, caught.value.retryable) == ("context_overflow", False)
    assert real.tally.retries == 0
    assert (await agent.call("Say hello.", session="other")).outcome == "completed"


async def _break_off(real: Real, model: Counted) -> tuple[list[Any], BaseException | None]:
    """Read a reply; its server is killed after the second chunk."""
    chunks: list[Any] = []
    options = real.options.merge(ModelOptions(max_tokens=200))
    stream = model.stream(ModelRequest([Msg.user("Count.")], (), options, "gemma"))
    try:
        async for chunk in stream:
            chunks.append(chunk)
            if len(chunks) == 2:
                real.server.kill()
            if chunk.restart:
                break
    except ModelError as error:
        return chunks, error
    finally:
        await close(stream)
    return chunks, None


async def test_a_server_that_is_killed_in_mid_stream_and_comes_back_is_asked_again(real: Real) -> None:
    """The reply starts over, and its first new chunk has restart."""

    async def come_back(seconds: float) -> None:
        if not real.server.running:
            await asyncio.to_thread(real.server.start)

    chunks, error = await _break_off(real, real.model(retries=3, sleep=come_back))
    assert error is None
    assert [chunk.restart for chunk in chunks].count(True) == 1
    assert chunks[-1].restart
    assert real.tally.retries >= 1


@pytest.mark.parametrize("real", ["openai"], indirect=True)
async def test_a_server_that_stays_away_is_given_up_on(real: Real) -> None:
    """After the last attempt the error says that it may pass, and the half of a reply is not taken for the whole."""
    chunks, error = await _break_off(real, real.model(retries=2))
    assert isinstance(error, ModelError)
    assert error.retryable
    assert chunks
    assert real.tally.retries == 2
