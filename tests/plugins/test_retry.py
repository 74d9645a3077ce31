"""`ModelRetry` and `ToolRetry`: temporary failures are retried, others are not, and no wait is longer than
configured.
"""

import asyncio
from typing import Any

import pytest
from clocks import JumpingClock, LoopClock
from eventlog import Recorder, history, run, use
from wired import Wired, normal

from agentflow import Agent, Hook, Veto, tool
from agentflow.errors import HookContractError, ModelError, ToolError, UsageError
from agentflow.plugins.limits import UsageLimits
from agentflow.plugins.retry import ModelRetry, Retries, RetryRecord, ToolRetry
from agentflow.testing import ScriptedModel, run_virtual
from agentflow.testing.wire import Fault, Say, UseTool
from agentflow.tools.tool_context import ToolContext
from agentflow.vocabulary.chunks import ModelChunk
from agentflow.vocabulary.events import ActingChunk, PostCall, PreActing, PreReasoning, ReasoningChunk
from agentflow.vocabulary.specs import Usage

BUSY = ModelError("busy", retryable=True)
PATHS = ("call", "stream")


class Keep(Hook):
    """Records the retries of runs."""

    observer = True
    events = (PostCall,)

    def __init__(self) -> None:
        self.made: list[RetryRecord] = []

    def on_event(self, event: Any) -> None:
        self.made.extend(event.context.state[Retries].made)


# ---- over the wire


@pytest.mark.parametrize("path", PATHS)
async def test_a_whole_run_with_an_overloaded_and_a_torn_reply(wired: Wired, path: str) -> None:
    """A 429 is waited for as the provider asks, a torn reply starts over; reader and history have the reply once."""
    script = [
        Fault.status(429, retry_after=7),
        Say("Half a sen", chunk=5, faults=Fault.cut("text")),
        Say("A whole sentence.", chunk=5),
    ]
    clock, recorder, keep = JumpingClock(), Recorder(), Keep()
    async with wired.serve(script) as server:
        model = wired.model(server, retries=0)
        agent = Agent("a", model, hooks=[ModelRetry(first_wait=1, jitter=0), recorder, keep], clock=clock)
        await run(agent, path)
    assert normal(recorder.seen) == [
        "PreCall user: go",
        "PreReasoning 1 reason",
        "ReasoningChunk assistant: Half",
        "ReasoningChunk restart assistant: A whole sentence. (stop)",
        "PostReasoning A whole sentence. <>",
        "PostCall completed 'A whole sentence.'",
        "CallEnded completed",
    ]
    assert history(agent.session()) == ["user: go", "assistant: A whole sentence."]
    assert clock.sleeps == [7, 2]
    assert [(entry.what, entry.attempt, entry.waited) for entry in keep.made] == [
        (model.name, 1, 7),
        (model.name, 2, 2),
    ]


@pytest.mark.parametrize("path", PATHS)
async def test_a_torn_reply_is_not_restarted_if_that_was_asked(wired: Wired, path: str) -> None:
    """after_first_chunk="raise": a failure before the first chunk is retried, one after it reaches the caller."""
    script = [Fault.status(503), Say("Half a sen", chunk=5, faults=Fault.cut("text"))]
    async with wired.serve(script) as server:
        retry = ModelRetry(after_first_chunk="raise")
        agent = Agent("a", wired.model(server, retries=0), hooks=[retry], clock=JumpingClock())
        with pytest.raises(ModelError) as caught:
            await run(agent, path)
    assert caught.value.retryable
    assert len(server.requests) == 2


async def test_a_refused_request_is_made_once(wired: Wired) -> None:
    """A wrong key or a full context window is no reason to ask again."""
    async with wired.serve([Fault.context_overflow(), Fault.status(401)]) as server:
        agent = Agent("a", wired.model(server, retries=0), hooks=[ModelRetry()], clock=JumpingClock())
        for status in (400, 401):
            with pytest.raises(ModelError) as caught:
                await agent.call("go")
            assert caught.value.status == status
    assert len(server.requests) == 2


@pytest.mark.parametrize(("inside", "requests"), [(0, 2), (2, 6)])
async def test_attempts_of_the_model_and_of_the_hook_multiply(wired: Wired, inside: int, requests: int) -> None:
    """A LiteLLMModel with retries=2 asks three times for each attempt of the hook; with retries=0 the hook alone counts."""
    async with wired.serve([Fault.status(503)] * requests) as server:
        model = wired.model(server, retries=inside)
        agent = Agent("a", model, hooks=[ModelRetry(attempts=2)], clock=JumpingClock())
        with pytest.raises(ModelError) as caught:
            await agent.call("go")
    assert len(server.requests) == requests
    each = [f"{model!r} gave up: 3 attempts failed"] if inside else []
    assert caught.value.__notes__ == [*each, "ModelRetry gave up: 2 attempts failed"]


@pytest.mark.parametrize("path", PATHS)
async def test_a_whole_run_with_a_flaky_tool(wired: Wired, path: str) -> None:
    """A tool that only reads is run again, and the model sees one success; one that writes fails once, as an error."""
    runs: list[str] = []

    @tool(type="read")
    async def look() -> str:
        """Look."""
        runs.append("look")
        if runs.count("look") < 3:
            raise ConnectionError("reset")
        return "seen"

    @tool
    async def send() -> str:
        """Send."""
        runs.append("send")
        raise ConnectionError("reset")

    recorder, clock = Recorder(), JumpingClock()
    async with wired.serve([UseTool("look"), UseTool("send"), Say("Done.")]) as server:
        hooks = [ToolRetry(first_wait=1, jitter=0), recorder]
        agent = Agent("a", wired.model(server), tools=[look, send], hooks=hooks, clock=clock)
        await run(agent, path)
    results = [block.text for msg in agent.session().messages for block in msg.tool_results]
    assert results == ["seen", "ConnectionError: reset"]
    assert runs == ["look", "look", "look", "send"]
    assert clock.sleeps == [1, 2]


# ---- model calls, in virtual time


def elapsed(model: ScriptedModel, *hooks: Hook) -> tuple[Any, float]:
    """The reply's text or the error, and the virtual seconds that the call took."""

    async def main() -> tuple[Any, float]:
        agent = Agent("a", model, hooks=list(hooks), clock=LoopClock())
        try:
            said: Any = (await agent.call("go")).text
        except Exception as error:
            said = error
        return said, asyncio.get_running_loop().time()

    return run_virtual(main())


def test_waits_double_up_to_the_longest() -> None:
    """Without a wish of the provider the waits are 1, 2, 4, 5, 5 seconds."""
    model = ScriptedModel([*[BUSY] * 5, "Here."])
    assert elapsed(model, ModelRetry(6, first_wait=1, max_wait=5, jitter=0)) == ("Here.", 17)


def test_jitter_adds_to_a_wait_and_never_passes_the_longest() -> None:
    """A wait lies between its plain length and that plus the jitter."""
    said, seconds = elapsed(ScriptedModel([BUSY, "Here."]), ModelRetry(first_wait=1, jitter=2))
    assert said == "Here."
    assert 1 <= seconds <= 3
    assert elapsed(ScriptedModel([BUSY, "Here."]), ModelRetry(first_wait=3, max_wait=3, jitter=50)) == ("Here.", 3)


def test_a_wait_that_is_too_long_is_not_begun() -> None:
    """A provider that asks for more than max_wait is not waited for: the caller gets the error, which says how long."""
    error = ModelError("come back tomorrow", retryable=True, retry_after=86_400)
    assert elapsed(ScriptedModel([error]), ModelRetry()) == (error, 0)


@pytest.mark.parametrize(
    "error",
    [
        UsageError("wrong"),
        HookContractError("Other", "PreReasoning", "nonsense", "sense"),
        ModelError("no such model"),
        KeyError("a bug"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_what_is_not_tried_again(error: Exception) -> None:
    """Mistakes of the caller and of hooks, errors that stay, and bugs reach the caller at once."""
    model = ScriptedModel([error, "Here."])
    assert elapsed(model, ModelRetry()) == (error, 0)
    assert len(model.requests) == 1


def test_not_even_the_users_own_choice_makes_a_veto_an_attempt() -> None:
    """`retry_if` chooses among failures; a veto of a later hook ends the stage as it would without it."""

    class Late(Hook):
        priority = 400

        def around(self, event: Any, source: Any) -> Any:
            def veto(chunk: Any) -> Any:
                raise Veto("not that")

            return source.map(veto) if isinstance(event, PreReasoning) else source

    model = ScriptedModel(["One.", "Two."])
    assert elapsed(model, ModelRetry(retry_if=lambda error: True), Late()) == ("not that", 0)
    assert len(model.requests) == 1


def test_connections_and_time_limits_of_any_model_are_tried_again() -> None:
    """A model that raises ConnectionError, and a limit of a hook further in, are failures that may pass."""

    class Patience(Hook):
        priority = 400

        def around(self, event: Any, source: Any) -> Any:
            return source.timeout(30) if isinstance(event, PreReasoning) else source

    async def hang() -> None:
        await asyncio.sleep(3600)

    model = ScriptedModel([ConnectionError("reset"), ["a", hang], "Here."])
    assert elapsed(model, ModelRetry(first_wait=1, jitter=0), Patience()) == ("Here.", 1 + 30 + 2)


def test_cancelling_ends_the_wait() -> None:
    """A call that is cancelled while it waits for the next attempt ends there, and asks no more."""
    model = ScriptedModel([BUSY, "Never."])

    async def main() -> float:
        task = asyncio.ensure_future(
            Agent("a", model, hooks=[ModelRetry(first_wait=100)], clock=LoopClock()).call("go")
        )
        await asyncio.sleep(10)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return asyncio.get_running_loop().time()

    assert run_virtual(main()) == 10
    assert len(model.requests) == 1


async def test_a_report_without_words_is_no_first_chunk() -> None:
    """after_first_chunk="raise": usage alone is nothing that a reader has seen, so the call may still be made again."""
    model = ScriptedModel([[ModelChunk(usage=Usage(input_tokens=3)), BUSY], "Here."])
    agent = Agent("a", model, hooks=[ModelRetry(after_first_chunk="raise", first_wait=0, jitter=0)])
    assert (await agent.call("go")).text == "Here."


async def test_fifty_calls_at_once_share_one_hook() -> None:
    """Each of fifty concurrent calls on two agents has its own attempts, which count for no other."""
    failed: set[str] = set()

    def brain(request: Any) -> Any:
        asked = request.messages[-1].text
        if asked in failed:
            return f"answer {asked}"
        failed.add(asked)
        return [BUSY]

    keep = Keep()
    hooks = [ModelRetry(attempts=2, first_wait=0, jitter=0), keep]
    agents = [Agent(name, ScriptedModel(brain), hooks=hooks) for name in ("ann", "bob")]
    calls = [agents[i % 2].call(f"{i}", session=f"s{i}") for i in range(50)]
    assert [reply.text for reply in await asyncio.gather(*calls)] == [f"answer {i}" for i in range(50)]
    assert [entry.attempt for entry in keep.made] == [1] * 50


@pytest.mark.parametrize("wrong", [{"attempts": 0}, {"first_wait": -1}, {"max_wait": -1}, {"jitter": -1}])
def test_settings_that_cannot_be_meant(wrong: dict[str, Any]) -> None:
    """Zero attempts and negative waits are refused, with the legal values."""
    for kind in (ModelRetry, ToolRetry):
        with pytest.raises(UsageError, match="`attempts` must be at least 1"):
            kind(**wrong)


# ---- tools


def retried(kind: str, error: Exception, retry: ToolRetry) -> tuple[int, str]:
    """How often a tool of a type ran that always fails, and the result that the model got."""
    runs: list[int] = []

    @tool(type=kind)  # pyright: ignore[reportArgumentType, reportCallIssue]
    async def probe() -> str:
        """Probe."""
        runs.append(1)
        raise error

    async def main() -> str:
        model = ScriptedModel([use("t1", "probe"), "Done."])
        agent = Agent("a", model, tools=[probe], hooks=[retry], clock=LoopClock())
        await agent.call("go")
        return agent.session().messages[2].text

    result = run_virtual(main())
    return len(runs), result


@pytest.mark.parametrize(
    ("kind", "options", "times"),
    [
        ("read", {}, 3),
        ("research", {}, 3),
        ("write", {}, 1),
        ("write", {"writes": True}, 3),
        ("read", {"tools": ("pro*",)}, 3),
        ("read", {"tools": ("other",)}, 1),
        ("read", {"attempts": 1}, 1),
    ],
)
def test_which_tools_are_run_again(kind: str, options: dict[str, Any], times: int) -> None:
    """Tools that read, if their name matches; tools that write only on request."""
    runs, result = retried(kind, ConnectionError("reset"), ToolRetry(**options))
    assert runs == times
    assert result == "ConnectionError: reset" + ("\nToolRetry gave up: 3 attempts failed" if times > 1 else "")


@pytest.mark.parametrize(
    ("error", "times"),
    [
        (TimeoutError("slow"), 3),
        (ToolError("the service hung up"), 3),
        (RuntimeError("who knows"), 3),
        (FileNotFoundError("no such file"), 1),
        (ValueError("bad"), 1),
        (UsageError("bad"), 1),
        (ModelError("judge failed", retryable=True), 3),
        (ModelError("judge failed"), 1),
    ],
    ids=lambda value: type(value).__name__,
)
def test_which_failures_of_a_tool_are_worth_it(error: Exception, times: int) -> None:
    """The model reads at once a failure that the same arguments would repeat."""
    assert retried("read", error, ToolRetry())[0] == times


async def test_the_idempotency_key_stays_the_same() -> None:
    """A write that is tried again gets the same idempotency key, so that the service can tell."""
    keys: list[str] = []

    @tool
    async def pay(context: ToolContext) -> str:
        """Pay."""
        keys.append(context.idempotency_key)
        if len(keys) == 1:
            raise ConnectionError("reset")
        return "paid"

    model = ScriptedModel([use("t1", "pay"), "Paid."])
    await Agent("a", model, tools=[pay], hooks=[ToolRetry(writes=True, first_wait=0, jitter=0)]).call("go")
    assert len(keys) == 2
    assert len(set(keys)) == 1


async def test_pieces_that_were_seen_are_not_shown_twice() -> None:
    """A streaming tool that fails after its first chunk is not run again; one that fails before it is."""
    runs: list[int] = []

    @tool(type="read")
    async def tail() -> Any:
        """Tail."""
        runs.append(1)
        if len(runs) == 1:
            raise ConnectionError("early")
        yield "one"
        raise ConnectionError("late")

    model = ScriptedModel([use("t1", "tail"), "Done."])
    agent = Agent("a", model, tools=[tail], hooks=[ToolRetry(first_wait=0, jitter=0)])
    pieces = [event.chunk async for event in agent.stream("go") if isinstance(event, ActingChunk)]
    assert pieces == ["one"]
    assert len(runs) == 2
    assert history(agent.session())[2] == "tool: t1 error 'ConnectionError: late'"


async def test_hooks_further_out_still_reach_pieces_and_other_models() -> None:
    """Behind the retries `source.using` and `source.chunks` work as on the bare source."""

    class Outer(Hook):
        def around(self, event: Any, source: Any) -> Any:
            if isinstance(event, PreReasoning):
                return source.using(
                    model=ScriptedModel([BUSY, "other"] if event.iteration == 2 else [use("t1", "echo")])
                )
            return source.chunks(lambda p: p.map(str.upper)) if isinstance(event, PreActing) else source

    @tool(type="read")
    async def echo() -> Any:
        """Echo."""
        yield "a"
        yield "b"

    hooks = [Outer(), ModelRetry(first_wait=0, jitter=0), ToolRetry()]
    agent = Agent("a", ScriptedModel([]), tools=[echo], hooks=hooks)
    assert (await agent.call("go")).text == "other"
    assert history(agent.session())[2] == "tool: t1 success 'AB'"


async def test_the_attempt_is_numbered() -> None:
    """Chunks have the number of their attempt; only the first one after delivered chunks restarts."""
    model = ScriptedModel([BUSY, ["a", BUSY], ["b", "c"]])
    agent = Agent("a", model, hooks=[ModelRetry(first_wait=0, jitter=0)])
    seen = [
        (event.incremental_chunk.text, event.attempt, event.restart)
        async for event in agent.stream("go")
        if isinstance(event, ReasoningChunk)
    ]
    assert seen == [("a", 2, False), ("b", 3, True), ("c", 3, False), ("", 3, False)]


@pytest.mark.parametrize("limit", [1, 2, 3, 9])
@pytest.mark.parametrize("attempts", [1, 2, 4])
@pytest.mark.parametrize("failures", [0, 1, 2, 4])
async def test_a_retry_that_a_limit_refuses_leaves_the_failure(failures: int, attempts: int, limit: int) -> None:
    """As many attempts as both allow. What the last one failed with is raised, and a note says where a limit was the reason."""
    errors = [ModelError(f"busy {n}", retryable=True, retry_after=0) for n in range(1, failures + 1)]
    model = ScriptedModel([*errors, "done"])
    retry = ModelRetry(attempts, first_wait=0, jitter=0)
    agent = Agent("a", model, hooks=[retry, UsageLimits(model_calls=limit)], default_hooks=())
    most = min(attempts, limit)
    if failures < most:
        assert (await agent.call("go")).text == "done"
    else:
        with pytest.raises(ModelError, match=f"busy {most}") as caught:
            await agent.call("go")
        notes = [note for note in getattr(caught.value, "__notes__", ()) if "There was no retry" in note]
        assert len(notes) == (limit < attempts)
    assert len(model.requests) == min(failures + 1, most)


async def test_a_tool_that_a_limit_keeps_from_another_attempt_says_why_it_failed() -> None:
    """The model reads the tool's failure, and not that a limit refused the retry."""

    @tool(type="read")
    async def look() -> str:
        raise ConnectionError("reset by peer")

    hooks = [ToolRetry(first_wait=0, jitter=0), UsageLimits(tool_calls=1)]
    agent = Agent("a", ScriptedModel([use("t1", "look"), "end"]), tools=[look], hooks=hooks)
    await agent.call("go")
    [result] = agent.session().messages[2].tool_results
    assert result.state == "error"
    assert "reset by peer" in result.text


async def test_a_list_without_tools_retries_none() -> None:
    """An empty list of patterns fits no tool."""
    tries: list[int] = []

    @tool(type="read")
    async def look() -> str:
        tries.append(1)
        raise ConnectionError("reset by peer")

    model = ScriptedModel([use("t1", "look"), "end"])
    await Agent("a", model, tools=[look], hooks=[ToolRetry(tools=(), first_wait=0, jitter=0)]).call("go")
    assert len(tries) == 1
