"""A hook that fails and is skipped is visible to the person who runs the program, once per place."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from loguru import logger

from agentflow import Agent, CallEnded, Hook, PostActing, PreCall, PreReasoning, ReasoningChunk, ToolUseBlock, on, tool
from agentflow._support import once
from agentflow.errors import Veto
from agentflow.hooks.recording import ChangeListener, HookCall
from agentflow.plugins.guardrails import InputGuardrail, OutputGuardrail
from agentflow.testing import ScriptedModel, check_hook


@pytest.fixture
def warned(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """Return the records that are logged by default, in a process that has not warned yet."""
    records: list[Any] = []
    monkeypatch.setattr(once, "_warned", set[tuple[str, str, str, int]]())
    sink = logger.add(lambda message: records.append(message.record), level="DEBUG", filter="agentflow.hooks.skipped")
    yield records
    logger.remove(sink)


async def test_a_notification_whose_hook_fails(warned: list[Any]) -> None:
    """The warning names hook and event, shows the hook's own frames, and is logged once for all chunks and runs."""

    @on(ReasoningChunk)
    def counts(event: ReasoningChunk) -> None:
        raise KeyError("tokens")

    agent = Agent("a", ScriptedModel(lambda _: ["one ", "two"]), hooks=[counts])
    for _ in range(3):
        assert (await agent.call("go", session="s")).outcome == "completed"
    (record,) = warned
    text = record["message"].splitlines()
    assert record["level"].name == "WARNING"
    assert text[0] == (
        "hook counts (priority 100) failed on ReasoningChunk and was skipped; it is logged only once, unless "
        "logger.enable('agentflow') is called."
    )
    assert text[1] == "Traceback (most recent call last):"
    assert __file__ in text[2]
    assert "KeyError: 'tokens'" in text
    assert record["extra"]["session_id"] == "s"


async def test_a_hook_that_denies_because_it_failed(warned: list[Any]) -> None:
    """The reply names only the class of the error, so the log shows the rest; a `Veto` is a decision and is not logged."""

    @on(PreCall, guard=True, on_failure="deny")
    def checks(event: PreCall) -> None:
        if event.input_messages[-1].text == "no":
            raise Veto("not today")
        raise KeyError("rules")

    @on(PostActing, on_failure="deny")
    def reads(event: PostActing) -> None:
        raise KeyError("result")

    def fails(text: str) -> None:
        raise KeyError("check")

    @tool
    async def look() -> str:
        """Look."""
        return "seen"

    for word in ("no", "go", "go"):
        assert (await Agent("a", ScriptedModel(["hi"]), hooks=[checks]).call(word)).outcome == "denied"
    await Agent("a", ScriptedModel([ToolUseBlock("t1", "look"), "hi"]), tools=[look], hooks=[reads]).call("go")
    for guardrail in (InputGuardrail(fails, racing=True), OutputGuardrail(fails)):
        await Agent("a", ScriptedModel(["hi"]), hooks=[guardrail]).call("go")
    denied = "so the request was denied; this failure is logged only once."
    assert [record["message"].splitlines()[0] for record in warned] == [
        f"hook checks (priority 100) failed on PreCall, {denied}",
        f"hook reads (priority 100) failed on PostActing, {denied}",
        f"hook InputGuardrail (priority 70) failed on PreReasoning, {denied}",
        f"hook OutputGuardrail (priority 800) failed on PostReasoning, {denied}",
    ]
    assert "KeyError: 'rules'" in warned[0]["message"].splitlines()


async def test_a_decision_whose_hook_is_skipped_by_choice(warned: list[Any]) -> None:
    """The same holds here; a failure that ends the call is raised to the caller, without a warning."""

    class Fails(Hook):
        events = (PreReasoning,)

        def on_event(self, event: Any) -> Any:
            raise RuntimeError("broken")

    skipped, fatal = Fails(), Fails()
    skipped.on_failure = "skip"
    await Agent("a", ScriptedModel(["hi"]), hooks=[skipped]).call("go")
    assert [record["message"].splitlines()[0][:43] for record in warned] == [
        "hook Fails (priority 100) failed on PreReas"
    ]
    with pytest.raises(RuntimeError, match="broken"):
        await Agent("b", ScriptedModel(["hi"]), hooks=[fatal]).call("go")
    assert len(warned) == 1


async def test_what_the_library_says_of_a_hook_has_no_traceback(warned: list[Any]) -> None:
    """Its frames are those of the library."""

    @on(CallEnded)
    def answers(event: CallEnded) -> Any:
        return True

    await Agent("a", ScriptedModel(["hi"]), hooks=[answers]).call("go")
    (record,) = warned
    assert "Traceback" not in record["message"]
    assert "HookContractError: Hook 'answers (priority 100)' answered CallEnded with bool" in record["message"]


async def test_a_listener_that_fails(warned: list[Any]) -> None:
    """It follows all hooks, and its failure would be as invisible as theirs."""

    class Broken(ChangeListener):
        events = ()

        def on_call(self, call: HookCall) -> None:
            raise KeyError("listened")

    @on(PreReasoning)
    def edits(event: PreReasoning) -> None:
        event.input_messages = event.input_messages[-1:]

    await Agent("a", ScriptedModel(["hi"]), hooks=[edits, Broken()]).call("go")
    assert {record["message"].splitlines()[0] for record in warned} == {
        "listener Broken failed and was skipped; it is logged only once, unless logger.enable('agentflow') is called."
    }


def test_a_hook_under_test_may_fail(warned: list[Any]) -> None:
    """`check_hook` makes hooks fail on purpose."""

    class Counts(Hook):
        observer = True

        def on_event(self, event: Any) -> None:
            pass

    check_hook(Counts)
    assert warned == []
