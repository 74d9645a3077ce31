"""`ModelFallback`: when a model fails the next one answers, and the run knows which."""

import asyncio
from typing import Any

import pytest
from clocks import JumpingClock, LoopClock
from eventlog import Recorder, history, run
from wired import WIRES, Wired, normal

from agentflow import Agent, Hook, Veto, tool
from agentflow.errors import ModelError, UsageError
from agentflow.plugins.fallback import ModelAnswer, ModelChoices, ModelFallback
from agentflow.plugins.retry import ModelRetry
from agentflow.testing import ScriptedModel, run_virtual
from agentflow.testing.wire import Fault, Say, UseTool
from agentflow.vocabulary.events import PostCall, PreReasoning, ReasoningChunk

PATHS = ("call", "stream")
DOWN = ModelError("down", retryable=True)


class Keep(Hook):
    """Records the answering models."""

    observer = True
    events = (PostCall,)

    def __init__(self) -> None:
        self.answered: list[ModelAnswer] = []

    def on_event(self, event: Any) -> None:
        self.answered.extend(event.context.state[ModelChoices].answered)


def scripted(name: str, *lines: Any) -> ScriptedModel:
    return ScriptedModel(list(lines), name=name)


# ---- over the wire


@pytest.mark.parametrize("path", PATHS)
async def test_a_whole_run_changes_providers_and_back(path: str) -> None:
    """OpenAI tears its reply, Anthropic takes over with a tool call, OpenAI answers the next request; both wires accept what
    they are sent, and reader and history have one reply."""

    @tool(type="read")
    async def look(at: str) -> str:
        """Look."""
        return f"seen {at}"

    openai, anthropic = (Wired(name) for name in WIRES)
    recorder, keep = Recorder(), Keep()
    torn = Say("Half a sen", chunk=5, faults=Fault.cut("text"))
    async with (
        openai.serve([torn, Say("All done.")]) as first,
        anthropic.serve([UseTool("look", {"at": "home"}, id="toolu_1")]) as second,
    ):
        models = openai.model(first, retries=0), anthropic.model(second, retries=0)
        agent = Agent(
            "a", models[0], tools=[look], hooks=[ModelFallback(models[1]), recorder, keep], clock=JumpingClock()
        )
        await run(agent, path)
    assert normal(recorder.seen) == [
        "PreCall user: go",
        "PreReasoning 1 reason",
        "ReasoningChunk assistant: Half",
        "ReasoningChunk restart assistant: [toolu_1:look(at='home')] (tool_calls)",
        "PostReasoning [toolu_1:look(at='home')] <>",
        "PreToolRound toolu_1:look(at='home')",
        "PreActing toolu_1:look(at='home')",
        "PostActing toolu_1 success 'seen home'",
        "PostToolRound toolu_1 success 'seen home'",
        "PreReasoning 2 reason",
        "ReasoningChunk assistant: All done. (stop)",
        "PostReasoning All done. <>",
        "PostCall completed 'All done.'",
        "CallEnded completed",
    ]
    assert [(entry.model, entry.iteration, [name for name, _ in entry.failed]) for entry in keep.answered] == [
        (models[1].name, 1, [models[0].name]),
        (models[0].name, 2, []),
    ]


async def test_a_wrong_key_is_a_reason_too(wired: Wired) -> None:
    """What asking the same model again would not help, asking another one may."""
    async with wired.serve([Fault.status(401)]) as broken, wired.serve([Say("Hello.")]) as sound:
        first, second = wired.model(broken), wired.model(sound)
        agent = Agent("a", first, hooks=[ModelFallback(second)])
        assert (await agent.call("go")).text == "Hello."


async def test_each_model_of_the_chain_is_retried(wired: Wired) -> None:
    """With ModelRetry each model gets its attempts before the next one is called."""
    clock = JumpingClock()
    overloaded = Fault.status(503, retry_after=3)
    async with wired.serve([overloaded] * 2) as broken, wired.serve([overloaded, Say("Hello.")]) as sound:
        hooks = [ModelRetry(attempts=2), ModelFallback(wired.model(sound, retries=0))]
        agent = Agent("a", wired.model(broken, retries=0), hooks=hooks, clock=clock)
        assert (await agent.call("go")).text == "Hello."
    assert clock.sleeps == [3, 3]


# ---- without a wire


async def test_a_chain_in_order_and_what_it_says_when_all_fail() -> None:
    """Each model is called once; the caller gets the last error, with a note on each model's error."""
    last = ModelError("no key")
    models = [
        scripted(name, error) for name, error in (("one", DOWN), ("two", ConnectionError("reset")), ("three", last))
    ]
    agent = Agent("a", models[0], hooks=[ModelFallback(*models[1:])])
    with pytest.raises(ModelError) as caught:
        await agent.call("go")
    assert caught.value is last
    assert caught.value.__notes__ == [
        "ModelFallback: one failed: ModelError: down; two failed: ConnectionError: reset; three failed: ModelError: no key"
    ]
    assert [len(model.requests) for model in models] == [1, 1, 1]


async def test_a_reply_that_was_seen_restarts_whichever_hook_repeats_it() -> None:
    """A torn reply, a retry that fails at once, then another model with its own retry: each that follows something seen says
    `restart`, and the reply is the last model's."""
    hooks = [ModelFallback(scripted("backup", DOWN, "Backup.")), ModelRetry(attempts=2, first_wait=0, jitter=0)]
    agent = Agent("a", scripted("main", ["Half", DOWN], DOWN), hooks=hooks)
    chunks = [event async for event in agent.stream("go").of_type(ReasoningChunk)]
    assert [(event.incremental_chunk.text, event.restart, event.attempt) for event in chunks] == [
        ("Half", False, 1),
        ("Backup.", True, 4),
    ]
    assert agent.session().messages[-1].text == "Backup."


async def test_a_seen_reply_is_not_replaced_if_that_was_asked() -> None:
    """after_first_chunk="raise": the next model is called only before a reader has got a chunk."""
    backup = scripted("backup", "Backup.")
    agent = Agent(
        "a", scripted("main", [DOWN], ["Half", DOWN]), hooks=[ModelFallback(backup, after_first_chunk="raise")]
    )
    assert (await agent.call("go")).text == "Backup."
    with pytest.raises(ModelError, match="down"):
        await agent.call("go")
    assert len(backup.requests) == 1


@pytest.mark.parametrize("error", [UsageError("wrong"), KeyError("bug")], ids=lambda error: type(error).__name__)
async def test_what_no_other_model_would_mend(error: Exception) -> None:
    """Mistakes and bugs reach the caller; no other model is called."""
    backup = scripted("backup")
    with pytest.raises(type(error)):
        await Agent("a", scripted("main", error), hooks=[ModelFallback(backup)]).call("go")
    assert backup.requests == []


async def test_a_veto_further_in_is_no_failure() -> None:
    """A veto of a later hook ends the stage; no other model is called, whatever `fallback_if` returns."""
    backup = scripted("backup")
    hook = ModelFallback(backup, fallback_if=lambda error: True)
    reply = await Agent("a", scripted("main", Veto("not that")), hooks=[hook]).call("go")
    assert (reply.text, reply.outcome) == ("not that", "denied")
    assert backup.requests == []


async def test_which_errors_is_the_users_choice() -> None:
    """`fallback_if` decides: here a full window falls back, an overloaded model does not."""
    full = ModelError("full", status=400)
    chosen = ModelFallback(scripted("large", "Fits."), fallback_if=lambda error: getattr(error, "status", None) == 400)
    agent = Agent("a", scripted("small", full, DOWN), hooks=[chosen])
    assert (await agent.call("go")).text == "Fits."
    with pytest.raises(ModelError, match="down"):
        await agent.call("go")


def test_a_failed_model_rests_for_all_agents() -> None:
    """cooldown=60: for a minute both agents ask the backup first; then the first model gets another chance, and is itself
    again at once when it answers."""
    main = scripted("main", DOWN, "Main again.", "And again.")
    backup = scripted("backup", "Backup 1.", "Backup 2.")
    keep = Keep()
    hooks = [ModelFallback(backup, cooldown=60), keep]
    ann, bob = (Agent(name, main, hooks=hooks, clock=LoopClock()) for name in ("ann", "bob"))

    async def spoken() -> list[str]:
        said = [(await ann.call("go")).text, (await bob.call("go")).text]
        await asyncio.sleep(60)
        return [*said, (await bob.call("go")).text, (await ann.call("go")).text]

    assert run_virtual(spoken()) == ["Backup 1.", "Backup 2.", "Main again.", "And again."]
    assert keep.answered == [
        ModelAnswer("backup", 1, (("main", "ModelError: down"),)),
        ModelAnswer("backup", 1, (), ("main",)),
        ModelAnswer("main", 1),
        ModelAnswer("main", 1),
    ]


def test_a_provider_may_ask_for_a_longer_rest() -> None:
    """`retry_after` counts where it is longer than the cooldown."""
    main = scripted("main", ModelError("busy", retryable=True, retry_after=300), "Main.")
    agent = Agent("a", main, hooks=[ModelFallback(scripted("backup", "B.", "B."), cooldown=60)], clock=LoopClock())

    async def spoken() -> list[str]:
        said = [(await agent.call("go")).text]
        for wait in (299, 1):
            await asyncio.sleep(wait)
            said.append((await agent.call("go")).text)
        return said

    assert run_virtual(spoken()) == ["B.", "B.", "Main."]


def test_a_resting_model_is_the_last_resort() -> None:
    """If the other models fail, those in their cooldown are called after all."""
    main, backup = scripted("main", DOWN, "Main."), scripted("backup", "Backup.", DOWN)
    agent = Agent("a", main, hooks=[ModelFallback(backup, cooldown=60)], clock=LoopClock())

    async def spoken() -> list[str]:
        return [(await agent.call("go")).text, (await agent.call("go")).text]

    assert run_virtual(spoken()) == ["Backup.", "Main."]


async def test_cancelling_asks_nobody_else() -> None:
    """A call that is cancelled while the model speaks ends there."""
    speaks = asyncio.Event()

    async def hang() -> None:
        speaks.set()
        await asyncio.Event().wait()

    backup = scripted("backup")
    task = asyncio.ensure_future(Agent("a", scripted("main", [hang]), hooks=[ModelFallback(backup)]).call("go"))
    await speaks.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert backup.requests == []


async def test_fifty_calls_at_once_share_one_hook() -> None:
    """Odd questions fail at the first model: each run knows its own answerer, on either agent."""

    def brain(request: Any) -> Any:
        asked = int(request.messages[-1].text)
        return [DOWN] if asked % 2 else f"main {asked}"

    backup = ScriptedModel(lambda request: f"backup {request.messages[-1].text}", name="backup")
    keep = Keep()
    agents = [Agent(n, ScriptedModel(brain, name="main"), hooks=[ModelFallback(backup), keep]) for n in ("ann", "bob")]
    calls = [agents[i // 25].call(str(i), session=f"s{i}") for i in range(50)]
    replies = await asyncio.gather(*calls)
    assert [reply.text for reply in replies] == [f"{'backup' if i % 2 else 'main'} {i}" for i in range(50)]
    assert sorted(entry.model for entry in keep.answered) == ["backup"] * 25 + ["main"] * 25


@pytest.mark.parametrize("priority", [10, 501])
async def test_a_plain_operator_of_another_hook_is_no_hindrance(priority: int) -> None:
    """Whether it is an inner or an outer wrapper, another model can be called."""

    class Mask(Hook):
        priority = 500

        def around(self, event: Any, source: Any) -> Any:
            return source.map(lambda chunk: chunk) if isinstance(event, PreReasoning) else source

    backup = scripted("backup", "Backup.")
    agent = Agent("a", scripted("main", DOWN), hooks=[Mask(), ModelFallback(backup, priority=priority)])
    assert (await agent.call("go")).text == "Backup."


def test_settings_that_cannot_be_meant() -> None:
    """No model and a negative rest are refused."""
    with pytest.raises(UsageError, match="needs at least one"):
        ModelFallback()
    with pytest.raises(UsageError, match="0 or more"):
        ModelFallback("openai/gpt-5-mini", cooldown=-1)


async def test_a_model_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name in the chain is resolved like an agent's model."""
    wired = Wired("openai")
    async with wired.serve([Say("By name.")]) as server:
        monkeypatch.setenv("OPENAI_API_BASE", server.base_url)
        monkeypatch.setenv("OPENAI_API_KEY", "k")
        agent = Agent("a", scripted("main", DOWN), hooks=[ModelFallback("openai/gpt-5-mini")])
        assert (await agent.call("go")).text == "By name."
    assert history(agent.session()) == ["user: go", "assistant: By name."]
