"""Guardrails: before the work or racing it, on answers, and on tools."""

import asyncio
from typing import Any

import pytest
from eventlog import history, use
from wired import Wired

from agentflow import Agent, Approve, Hook, MemoryStore, Msg, Session, on, tool
from agentflow.errors import ModelError, UsageError
from agentflow.plugins.guardrails import InputGuardrail, ModelCheck, OutputGuardrail, ToolGuardrail
from agentflow.plugins.reminders import SystemReminder
from agentflow.testing import ScriptedModel
from agentflow.testing.faults import Crash, ProcessDied
from agentflow.testing.wire import Say, ScriptedCall, WireReply
from agentflow.vocabulary.events import PreCall, PreReasoning, ReasoningChunk


def no_bombs(text: str) -> str | None:
    """A check."""
    return "no bombs" if "bomb" in text else None


@tool(requires_approval=True)
async def pay(cents: int) -> str:
    """Pay."""
    return f"paid {cents}"


@tool
async def send(text: str) -> str:
    """Send."""
    return f"sent {text}"


async def run(agent: Agent, text: str, how: str) -> tuple[str, str, list[Any]]:
    """One call either way: the reply's text, its outcome, and the events that were read."""
    if how == "call":
        reply = await agent.call(text)
        return reply.text, reply.outcome, []
    async with agent.stream(text) as stream:
        events = [event async for event in stream]
    final = next(event for event in events if type(event).__name__ == "PostCall")
    return final.final_message.text, final.outcome, events


# ---- over the wire


@pytest.mark.parametrize("how", ["call", "stream"])
async def test_input_before_the_work(wired: Wired, how: str) -> None:
    """A refused input never reaches the provider and is not stored; the next one does."""
    async with wired.serve([Say("Hello.")]) as server:
        agent = Agent("a", wired.model(server), hooks=[InputGuardrail(no_bombs)])
        assert (await run(agent, "build a bomb", how))[:2] == ("no bombs", "denied")
        assert len(agent.session().messages) == 0
        assert (await run(agent, "hi", how))[:2] == ("Hello.", "completed")
    assert [request.user_text for request in server.requests] == ["hi"]


@pytest.mark.parametrize("how", ["call", "stream"])
@pytest.mark.parametrize("hold", [True, False])
async def test_racing_the_model(wired: Wired, how: str, hold: bool) -> None:
    """A refusal cancels the reply under way, closes its connection, and no tool runs; the next call is legal."""
    asked = asyncio.Event()

    async def slow(text: str) -> str | None:
        if "bomb" not in text:
            return None
        await asked.wait()
        return "no bombs"

    def brain(request: Any) -> WireReply:
        asked.set()
        if "bomb" in request.user_text:
            return WireReply("Well, first you", calls=(ScriptedCall("send", {"text": "boom"}, "t1"),), chunk=3)
        return WireReply("Hello.")

    async with wired.serve(brain) as server:
        agent = Agent("a", wired.model(server), tools=[send], hooks=[InputGuardrail(slow, racing=True, hold=hold)])
        text, outcome, events = await run(agent, "build a bomb", how)
        assert (text, outcome) == ("no bombs", "denied")
        assert (await run(agent, "hi", how))[:2] == ("Hello.", "completed")
    shown = "".join(e.incremental_chunk.text for e in events if isinstance(e, ReasoningChunk))
    assert shown == "" or not hold
    assert history(agent.session()) == [
        "user: build a bomb",
        "assistant: no bombs",
        "user: hi",
        "assistant: Hello.",
    ]


@pytest.mark.parametrize("how", ["call", "stream"])
async def test_output_is_asked_for_again(wired: Wired, how: str) -> None:
    """A refused answer goes back with the reason, which the provider gets; the accepted one is the reply."""
    async with wired.serve([Say("A bomb is"), Say("I would rather not.")]) as server:
        agent = Agent("a", wired.model(server), hooks=[OutputGuardrail(no_bombs)])
        assert (await run(agent, "What is it?", how))[:2] == ("I would rather not.", "completed")
    assert server.requests[1].user_text == "Your answer was not accepted: no bombs. Answer again."


@pytest.mark.parametrize("how", ["call", "stream"])
async def test_tools(wired: Wired, how: str) -> None:
    """The provider gets the refusal of a tool call, the others run; other tools are not checked."""

    async def check(event: Any) -> str | None:
        return no_bombs(event.tool_use.input["text"])

    @tool
    async def note(text: str) -> str:
        """Note."""
        return f"noted {text}"

    calls = (
        ScriptedCall("send", {"text": "bomb"}, "t1"),
        ScriptedCall("send", {"text": "hi"}, "t2"),
        ScriptedCall("note", {"text": "bomb"}, "t3"),
    )
    async with wired.serve([WireReply("", calls=calls), Say("Done.")]) as server:
        agent = Agent("a", wired.model(server), tools=[send, note], hooks=[ToolGuardrail(check, tools=["se*"])])
        assert (await run(agent, "go", how))[:2] == ("Done.", "completed")
    assert [answer.text for answer in server.requests[1].results] == ["Denied: no bombs", "sent hi", "noted bomb"]


async def test_a_judge_over_the_wire_is_billed(wired: Wired) -> None:
    """A `ModelCheck` is a model call of the run: the provider sees it, and the reply's usage counts it."""
    async with wired.serve([Say("OK"), Say("Hello.")]) as server:
        agent = Agent("a", wired.model(server), hooks=[InputGuardrail(ModelCheck("Is it rude?"))])
        reply = await agent.call("hi")
    assert (reply.text, reply.usage.model_calls) == ("Hello.", 2)
    assert "<<<\nhi\n>>>" in server.requests[0].user_text
    assert history(agent.session()) == ["user: hi", "assistant: Hello."]


# ---- checks


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ("OK", None),
        ("ok.", None),
        ("NO: it is rude", "it is rude"),
        ("no:", "refused by the judge"),
        ("Well, perhaps", "the judge gave no clear answer"),
        ("OK, but NO: it is rude", "the judge gave no clear answer"),
    ],
)
async def test_what_a_judge_may_say(answer: str, reason: str | None) -> None:
    """Only a plain OK passes; whatever is unclear refuses."""
    guard = InputGuardrail(ModelCheck("Is it rude?", ScriptedModel([answer])))
    reply = await Agent("a", ScriptedModel(["Hello."]), hooks=[guard]).call("hi")
    assert reply.text == (reason or "Hello.")


def _fails(text: Any) -> str | None:
    raise ConnectionError("gone")


@pytest.mark.parametrize("racing", [False, True])
@pytest.mark.parametrize("check", [_fails, lambda text: 7, lambda text: "", lambda text: False, lambda text: True])
async def test_a_check_that_fails_refuses(check: Any, racing: bool) -> None:
    """An exception, or an answer that is none, lets nothing through."""
    model = ScriptedModel(["Hello."])
    reply = await Agent("a", model, hooks=[InputGuardrail(check, racing=racing)]).call("hi")
    assert reply.outcome == "denied"
    assert "Hello" not in reply.text
    agent = Agent(
        "a", ScriptedModel([use("t1", "send", text="x"), "Done."]), tools=[send], hooks=[ToolGuardrail(check)]
    )
    await agent.call("go")
    assert agent.session().messages[2].tool_results[0].state == "denied"
    model = ScriptedModel(["Secret."] * 3)
    reply = await Agent("a", model, hooks=[OutputGuardrail(check)]).call("go")
    assert (reply.outcome, "Secret" in reply.text) == ("stopped", False)


def test_what_is_no_check_is_refused() -> None:
    """A check that is no function, tools that are one text, a negative number: refused when the hook is made."""
    for make in (
        lambda: InputGuardrail("rude"),  # pyright: ignore[reportArgumentType]
        lambda: OutputGuardrail(None),  # pyright: ignore[reportArgumentType]
        lambda: OutputGuardrail(no_bombs, times=-1),
        lambda: ToolGuardrail(lambda event: None, tools="send"),
        lambda: ToolGuardrail(ModelCheck("Is it rude?")),  # pyright: ignore[reportArgumentType]
    ):
        with pytest.raises(UsageError):
            make()


# ---- racing


async def test_nothing_is_shown_before_the_check_has_passed() -> None:
    """With `hold` the reply waits for a slow check; without, it is shown as it comes, and the call waits for the check."""
    for hold, expected in ((True, []), (False, ["One, ", "two."])):
        gate = asyncio.Event()
        shown: list[str] = []
        all_said = asyncio.Event()

        async def check(text: str, gate: asyncio.Event = gate) -> None:
            await gate.wait()

        def said(done: asyncio.Event = all_said) -> None:
            done.set()

        agent = Agent(
            "a", ScriptedModel([["One, ", "two.", said]]), hooks=[InputGuardrail(check, racing=True, hold=hold)]
        )

        async def read(agent: Agent = agent, shown: list[str] = shown) -> None:
            async with agent.stream("hi") as events:
                async for event in events:
                    if isinstance(event, ReasoningChunk) and event.incremental_chunk.text:
                        shown.append(event.incremental_chunk.text)  # noqa: PERF401 - looked at while it grows

        reading = asyncio.ensure_future(read())
        await all_said.wait()
        assert shown == expected
        gate.set()
        await reading
        assert shown == ["One, ", "two."]


async def test_a_race_checks_once() -> None:
    """Retries, a fallback model and later rounds do not run the check again; a refusal leaves no model stream open."""
    checked: list[str] = []

    def check(text: str) -> str | None:
        checked.append(text)
        return no_bombs(text)

    backup = ScriptedModel([use("t1", "send", text="x"), "Done."], name="backup")

    class Fallback(Hook):
        priority = 10

        def around(self, event: Any, source: Any) -> Any:
            if not isinstance(event, PreReasoning):
                return source
            return source.retry(2).catch(lambda error, _: source.using(model=backup))

    model = ScriptedModel([ModelError("a"), ModelError("b"), *[ModelError("c")] * 2])
    agent = Agent("a", model, tools=[send], hooks=[Fallback(), InputGuardrail(check, racing=True)])
    assert (await agent.call("hi")).text == "Done."
    assert checked == ["hi"]

    forever = asyncio.Event()
    model = ScriptedModel([["Well, ", forever.wait]])
    reply = await Agent("b", model, hooks=[InputGuardrail(check, racing=True)]).call("bomb")
    assert (reply.text, model.open_streams) == ("no bombs", 0)


@pytest.mark.parametrize("dies_at", [2, 3, 4, 5, 6])
async def test_a_race_is_run_again_after_a_crash(dies_at: int) -> None:
    """If the process ends before the first reply is stored, the input is checked again on resuming the call."""
    store, crash = MemoryStore(), Crash(at=dies_at)
    model = ScriptedModel(lambda request: "This is how.")
    agent = Agent("a", crash.model(model), hooks=[InputGuardrail(no_bombs, racing=True)], store=crash.store(store))
    with pytest.raises(ProcessDied):
        await agent.call("build a bomb", session="s")
    again = Agent("a", model, hooks=[InputGuardrail(no_bombs, racing=True)], store=store)
    reply = await again.resume("s")
    assert (reply.text, reply.outcome) == ("no bombs", "denied")


async def test_fifty_runs_at_once() -> None:
    """One instance, fifty runs: each gets the verdict on its own input."""
    for racing in (False, True):
        guard = InputGuardrail(no_bombs, racing=racing)
        agent = Agent("a", ScriptedModel(lambda request: "Hello."), hooks=[guard])
        texts = ["bomb" if n % 2 else "hi" for n in range(50)]
        replies = await asyncio.gather(*(agent.call(t, session=f"{racing}{n}") for n, t in enumerate(texts)))
        assert [reply.text for reply in replies] == ["no bombs" if n % 2 else "Hello." for n in range(50)]


# ---- output


@pytest.mark.parametrize("times", [1, 2])
async def test_refusals_are_counted_over_a_restart(times: int) -> None:
    """What was refused before the call was suspended counts, for a guardrail in another process too."""

    def rude(text: str) -> str | None:
        return "be polite" if "fool" in text.lower() else None

    def made(script: list[Any]) -> Agent:
        return Agent("a", ScriptedModel(script), tools=[pay], hooks=[OutputGuardrail(rude, times=times)])

    first = made(["You fool.", use("t1", "pay", cents=5)])
    reply = await first.call("pay")
    assert reply.outcome == "suspended"
    text = first.session().to_json()

    second = made(["Fool!"] * (times - 1) + ["Fool, last."])
    session = Session.from_json(text)
    reply = await second.resume(session, decisions={"t1": Approve()})
    assert (reply.outcome, reply.text) == ("stopped", "be polite")


async def test_an_output_that_never_passes_stops() -> None:
    """After `times` refusals the reply is the reason (or `fallback`); the last refused answer is nowhere in the history."""
    for fallback, said in ((None, "no bombs"), ("I cannot say.", "I cannot say.")):
        agent = Agent(
            "a", ScriptedModel(["bomb 1", "bomb 2"]), hooks=[OutputGuardrail(no_bombs, times=1, fallback=fallback)]
        )
        reply = await agent.call("go")
        assert (reply.text, reply.outcome) == (said, "stopped")
        assert history(agent.session()) == [
            "user: go",
            "assistant: bomb 1",
            "user: Your answer was not accepted: no bombs. Answer again.",
            f"assistant: {said}",
        ]


async def test_the_summary_at_the_limit_is_judged_too() -> None:
    """There is no asking again after it: a refused summary is replaced."""
    model = ScriptedModel([use("t1", "send", text="x"), "a bomb"])
    agent = Agent("a", model, tools=[send], max_iterations=1, hooks=[OutputGuardrail(no_bombs)])
    reply = await agent.call("go")
    assert reply.text == "no bombs"
    assert "a bomb" not in repr(agent.session().messages)


async def test_words_beside_tool_calls() -> None:
    """They are checked with `every` only; a refused round is answered as superseded, and its tools do not run."""
    results = {}
    for every in (False, True):
        script = [["bomb", use("t1", "send", text="x")], "Done."]
        agent = Agent("a", ScriptedModel(script), tools=[send], hooks=[OutputGuardrail(no_bombs, every=every)])
        assert (await agent.call("go")).text == "Done."
        results[every] = [(r.text, r.state) for msg in agent.session().messages for r in msg.tool_results]
    assert results[False] == [("sent x", "success")]
    assert [state for _, state in results[True]] == ["denied"]


@pytest.mark.parametrize("racing", [False, True])
async def test_the_check_gets_the_input_as_hooks_have_changed_it(racing: bool) -> None:
    """A later hook replaces the user's message: the replacement is sent, so it is checked."""

    @on(PreCall, priority=300)
    def rewrite(event: PreCall) -> None:
        event.input_messages = (Msg.user(f"{event.input_messages[0].text}, and how to build a bomb"),)

    model = ScriptedModel(["never read"])
    agent = Agent("a", model, hooks=[InputGuardrail(no_bombs, racing=racing), rewrite])
    reply = await agent.call("Tell me a tale")
    assert (reply.text, reply.outcome) == (no_bombs("bomb"), "denied")


async def test_a_race_judges_no_notes_of_hooks_and_no_earlier_words() -> None:
    """Reminders, and messages of earlier calls, are not the input of this one."""
    checked: list[str] = []
    hooks = [InputGuardrail(checked.append, racing=True), SystemReminder("Never build a bomb.")]
    agent = Agent("a", ScriptedModel(["One.", "Two."]), hooks=hooks)
    await agent.call("first")
    await agent.call("second")
    assert checked == ["first", "second"]
