"""Calling an agent: input, options, dependencies, the system prompt, hooks of a call, timeouts, and the three ways to run."""

import asyncio
import gc
import re
import warnings
from dataclasses import dataclass
from typing import Any

import pytest
from eventlog import Recorder, history, log, streamed, use
from toolbox import add

from agentflow import Agent, Dep, Hook, ModelOptions, Msg, PreReasoning, Reply, RunContext, ToolUseBlock, on, tool
from agentflow._support.virtual_time import run_virtual
from agentflow.errors import CallTimeoutError, UsageError
from agentflow.testing import ScriptedModel


@dataclass
class Settings:
    """A dependency of a tool."""

    region: str


class Client:
    """A class that no JSON schema can describe."""


@tool
async def where(settings: Dep[Settings]) -> str:
    """Where."""
    return settings.region


async def test_options_merge_and_the_nearer_one_wins() -> None:
    """Options of the hook override the call's, and those the agent's; unset ones stay."""

    class Sets(Hook):
        def on_event(self, event: Any) -> Any:
            if isinstance(event, PreReasoning):
                event.options = ModelOptions(seed=3, extra={"hook": 1})
            return event

    model = ScriptedModel(["x"])
    agent_options = ModelOptions(temperature=0.1, max_tokens=10, seed=1, extra={"agent": 1})
    agent = Agent("a", model, options=agent_options, hooks=[Sets()])
    await agent.call("go", options=ModelOptions(max_tokens=20, seed=2, extra={"call": 1}))
    assert model.requests[0].options == ModelOptions(
        temperature=0.1, max_tokens=20, seed=3, extra={"agent": 1, "call": 1, "hook": 1}
    )


@pytest.mark.parametrize("deps", [Settings("eu"), [Client(), Settings("eu")], {Settings: Settings("eu")}])
async def test_deps_fill_tool_parameters(deps: Any) -> None:
    """deps= fills parameters by type: an object, a list of objects, or a mapping by type; hooks read them too."""
    read: list[str] = []

    class Reads(Hook):
        def on_event(self, event: Any) -> Any:
            read.append(event.context.deps(Settings).region)

    agent = Agent("a", ScriptedModel([[use("t1", "where")], "x"]), tools=[where], hooks=[Reads()])
    await agent.call("go", deps=deps)
    assert history(agent.session())[2] == "tool: t1 success 'eu'"
    assert set(read) == {"eu"}


@pytest.mark.parametrize("deps", [None, Client(), [], {}])
async def test_a_missing_dep_is_refused_before_the_first_model_call(deps: Any) -> None:
    """A dependency that is missing is a UsageError before the first model call, and before any event."""
    model = ScriptedModel(["x"])
    recorder = Recorder()
    agent = Agent("a", model, tools=[where], hooks=[recorder])
    with pytest.raises(UsageError, match="A dependency of type Settings is needed"):
        await agent.call("go", deps=deps)
    assert (model.requests, recorder.log) == ([], [])
    assert (await agent.call("go", deps=Settings("eu"))).text == "x"


@pytest.mark.parametrize("form", ["text", "message", "function", "async function", "function of a message"])
async def test_the_system_prompt(form: str) -> None:
    """system= is a text, a message, or a function of the RunContext, sync or async; it is first, and never stored."""

    async def later(context: RunContext) -> str:
        await asyncio.sleep(0)
        return f"you are {context.agent.name}"

    system: Any = {
        "text": "you are a",
        "message": Msg.system("you are a"),
        "function": lambda context: f"you are {context.agent.name}",
        "async function": later,
        "function of a message": lambda context: Msg.system("you are a"),
    }[form]
    model = ScriptedModel(["x", "y"])
    agent = Agent("a", model, system=system)
    await agent.call("1")
    await agent.call("2")
    for request in model.requests:
        assert [msg.role for msg in request.messages if msg.role == "system"] == ["system"]
        assert request.messages[0].text == "you are a"
    assert [msg.role for msg in agent.session().messages] == ["user", "assistant"] * 2


async def test_a_system_function_that_gives_nothing() -> None:
    """None and an empty text mean: no system prompt."""
    model = ScriptedModel(["x"])
    await Agent("a", model, system=lambda context: None).call("go")
    assert [msg.role for msg in model.requests[0].messages] == ["user"]


@pytest.mark.parametrize(
    ("given", "stored"),
    [
        ("hi", ["user: hi"]),
        (Msg.user("hi"), ["user: hi"]),
        ([Msg.user("hi"), Msg.user("there")], ["user: hi", "user: there"]),
        ([Msg.user("hi"), Msg.assistant("yes?"), Msg.user("go")], ["user: hi", "assistant: yes?", "user: go"]),
    ],
)
async def test_forms_of_input(given: Any, stored: list[str]) -> None:
    """Input is a text, a message, or several."""
    agent = Agent("a", ScriptedModel(["x"]))
    await agent.call(given)
    assert history(agent.session()) == [*stored, "assistant: x"]


@pytest.mark.parametrize(
    "given",
    ["", "  ", [], 3, None, Msg.system("s"), Msg.assistant([ToolUseBlock("t", "x")]), [Msg.user("a"), 4], b"bytes"],
)
async def test_what_is_no_input(given: Any) -> None:
    """Empty input, and input that is no message, is a UsageError; nothing is fired, and the session stays usable."""
    recorder = Recorder()
    agent = Agent("a", ScriptedModel(["x"]), hooks=[recorder])
    with pytest.raises(UsageError):
        await agent.call(given)
    assert recorder.log == []
    assert (await agent.call("go")).text == "x"


@pytest.mark.parametrize("timeout", [0, -1, float("nan"), "x", True, [2]])
async def test_what_is_no_timeout(timeout: Any) -> None:
    """timeout= is seconds above 0, for a call, a stream and a tool; other values raise before anything happens."""
    recorder = Recorder()
    agent = Agent("a", ScriptedModel(["x"]), hooks=[recorder])
    for refused in (
        lambda: agent.call("go", timeout=timeout),
        lambda: agent.stream("go", timeout=timeout).to_list(),
    ):
        with pytest.raises(UsageError, match=r"timeout=.* seconds above 0"):
            await refused()
    with pytest.raises(UsageError, match=r"timeout=.*seconds above 0"):
        tool(timeout=timeout)(_nothing)
    assert recorder.seen == []
    assert (await agent.call("go")).text == "x"


async def _nothing() -> None:
    """Do nothing."""


@pytest.mark.parametrize(
    ("options", "wrong"),
    [
        ({"temperature": float("nan")}, "temperature=nan"),
        ({"top_p": float("-inf")}, "top_p=-inf"),
        ({"extra": {"penalties": [0.5, {"repeat": float("inf")}]}}, "extra={'penalties': [0.5, {'repeat': inf}]}"),
    ],
)
def test_options_that_no_request_could_hold(options: dict[str, Any], wrong: str) -> None:
    """JSON has finite numbers only: others are refused where they are set, not by the provider's client."""
    with pytest.raises(UsageError) as caught:
        ModelOptions(**options)
    assert str(caught.value) == (
        f"ModelOptions({wrong}): a request is JSON, which allows only finite numbers. Leave it out for the provider's default."
    )


@pytest.mark.parametrize(
    ("given", "fix"),
    [
        ({"temperature": 0.3}, "ModelOptions(temperature=0.3)"),
        ({"top_k": 5}, "ModelOptions(extra={'top_k': 5})"),
        ("hot", "ModelOptions()"),
        ([("seed", 1)], "ModelOptions()"),
    ],
)
async def test_what_are_no_options(given: Any, fix: str) -> None:
    """options= is ModelOptions everywhere; the error shows how to write it, and nothing has happened."""
    recorder = Recorder()
    model = ScriptedModel(["x"])
    agent = Agent("a", model, hooks=[recorder])

    async def complete(event: Any) -> None:
        await event.context.complete("and?", options=given)

    class Using(Hook):
        def around(self, event: Any, source: Any) -> Any:
            return source.using(options=given) if isinstance(event, PreReasoning) else source

    text = re.escape(f"Write options={fix}.")
    with pytest.raises(UsageError, match=text):
        Agent("a", model, options=given)
    with pytest.raises(UsageError, match=text):
        await agent.call("go", options=given)
    with pytest.raises(UsageError, match=text):
        await agent.stream("go", options=given).to_list()
    assert (recorder.seen, model.requests) == ([], [])
    for hook in (on(PreReasoning)(complete), Using()):
        with pytest.raises(UsageError, match=text):
            await agent.call("go", hooks=[hook])
    assert model.requests == []


@pytest.mark.parametrize("limit", [0, -1, 1.5, 2.0, True, None])
def test_what_is_no_limit(limit: Any) -> None:
    """max_iterations is a whole number of at least 1; 0 is an error."""
    with pytest.raises(UsageError, match="max_iterations"):
        Agent("a", "m/x", max_iterations=limit)


async def test_hooks_of_a_call() -> None:
    """call(hooks=...) adds hooks for this call only."""
    recorder = Recorder()
    agent = Agent("a", ScriptedModel(["x", "y"]))
    await agent.call("go", hooks=[recorder])
    seen = len(recorder.seen)
    await agent.call("go")
    assert seen == len(recorder.seen) > 0


def test_the_timeout_of_a_call() -> None:
    """timeout= raises CallTimeoutError, a TimeoutError, after CallEnded; the session can be used at once."""

    async def hang() -> None:
        await asyncio.sleep(3600)

    recorder = Recorder()
    agent = Agent("a", ScriptedModel([["so ", hang], "again"]), hooks=[recorder])

    async def main() -> None:
        with pytest.raises(CallTimeoutError) as caught:
            await agent.call("go", timeout=2)
        assert isinstance(caught.value, TimeoutError)
        assert str(caught.value) == (
            "The call on agent 'a' did not end within timeout=2 s. Finished tool results are kept in the session; call "
            "again to continue, or give it more time."
        )
        assert recorder.log[-1] == f"CallEnded interrupted CallTimeoutError: {caught.value}"
        assert asyncio.get_running_loop().time() == 2
        assert (await agent.call("more", timeout=2)).text == "again"

    run_virtual(main())


def test_a_timeout_of_a_stream() -> None:
    """timeout= of a stream raises CallTimeoutError to the reader after CallEnded was delivered."""

    async def hang() -> None:
        await asyncio.sleep(3600)

    async def main() -> list[Any]:
        agent = Agent("a", ScriptedModel([["so ", hang]]))
        seen: list[Any] = []

        async def read() -> None:
            async for event in agent.stream("go", timeout=2):
                seen.append(event)  # noqa: PERF401 - the stream ends with an error

        with pytest.raises(CallTimeoutError):
            await read()
        return seen

    assert log(run_virtual(main()))[-1].startswith("CallEnded interrupted CallTimeoutError")


def test_a_deadline_does_not_strike_an_ended_call() -> None:
    """A call that ends in time leaves no timer that cancels later work."""

    async def main() -> str:
        agent = Agent("a", ScriptedModel(["x"]))
        reply = await agent.call("go", timeout=1)
        await asyncio.sleep(5)
        return reply.text

    assert run_virtual(main()) == "x"


SCRIPT = [[use("t1", "add", a=1, b=2), use("t2", "add", a=3, b=4)], ["e", "nd"]]


def test_the_same_events_whoever_asks() -> None:
    """call, stream, block, subscribe and an abandoned stream: the same log, the same seq."""
    logs: dict[str, tuple[list[str], list[int]]] = {}

    def made(name: str) -> tuple[Recorder, Agent]:
        recorder = Recorder()
        return recorder, Agent("a", ScriptedModel(SCRIPT), tools=[add], hooks=[recorder])

    def keep(name: str, recorder: Recorder) -> None:
        logs[name] = (recorder.log, sorted(event.seq for event in recorder.seen))

    async def called() -> None:
        recorder, agent = made("call")
        await agent.call("go")
        keep("call", recorder)
        recorder, agent = made("stream")
        handed = await streamed(agent)
        keep("stream", recorder)
        assert handed == recorder.log
        recorder, agent = made("subscribe")
        done = agent.stream("go").subscribe(lambda event: None)
        await done.closed()
        keep("subscribe", recorder)

    asyncio.run(called())
    recorder, agent = made("block")
    assert agent.call("go").block().text == "end"
    keep("block", recorder)
    assert logs["stream"] == logs["subscribe"] == logs["call"] == logs["block"]
    assert logs["call"][1] == list(range(1, len(logs["call"][1]) + 1))


async def test_unbuilt_events_are_counted() -> None:
    """seq counts emission points with and without listeners: a single listener sees the numbers of a full log."""

    class Last(Hook):
        def __init__(self) -> None:
            self.seqs: list[int] = []

        events = (PreReasoning,)

        def on_event(self, event: Any) -> Any:
            self.seqs.append(event.seq)
            return event

    full, last = Recorder(), Last()
    await Agent("a", ScriptedModel(SCRIPT), tools=[add], hooks=[full]).call("go")
    await Agent("a", ScriptedModel(SCRIPT), tools=[add], hooks=[last]).call("go")
    assert last.seqs == [event.seq for event in full.seen if isinstance(event, PreReasoning)]


async def test_a_call_is_cold() -> None:
    """Each await of one Mono is a new call."""
    agent = Agent("a", ScriptedModel(["one", "two"]))
    call = agent.call("go")
    assert ((await call).text, (await call).text) == ("one", "two")


async def test_a_call_that_was_disposed_at_once_was_still_used() -> None:
    """A call that was subscribed to and disposed before it began does not warn that it was dropped."""
    replies: list[Reply] = []
    with warnings.catch_warnings(record=True) as warned:
        subscription = Agent("a", ScriptedModel(["x"])).call("go").subscribe(replies.append)
        subscription.dispose()
        await subscription.closed()
        gc.collect()
    assert (replies, warned) == ([], [])


def test_a_dropped_call_warns() -> None:
    """A call that is neither awaited nor subscribed to logs a warning at the line that drops it."""
    with pytest.warns(RuntimeWarning, match="was never awaited") as warned:
        Agent("a", ScriptedModel(["x"])).call("go")
    assert [warning.filename for warning in warned] == [__file__]


async def test_the_reply() -> None:
    """A reply is a message with the outcome of its call; str() is its text."""
    reply = await Agent("a", ScriptedModel(["x"])).call("go")
    assert isinstance(reply, Reply)
    assert isinstance(reply, Msg)
    assert (str(reply), reply.outcome, reply.usage.model_calls, reply.pending) == ("x", "completed", 1, ())


def test_the_builder_makes_the_same_agent() -> None:
    """Builder methods are named like the constructor's arguments; a missing one is named in the error."""
    model = ScriptedModel(["x"])
    agent = Agent.builder().name("a").model(model).system("s").tools([add]).hook(Recorder()).max_iterations(3).build()
    assert (agent.name, [t.name for t in agent.tools], agent.config.max_iterations) == ("a", ["add"], 3)
    with pytest.raises(UsageError, match="lacks model"):
        Agent.builder().name("a").build()


@pytest.mark.parametrize("bad", ["", None])
def test_an_agent_needs_a_name(bad: Any) -> None:
    """A name that is missing or not text is refused."""
    with pytest.raises(UsageError):
        Agent(bad, "m/x")
