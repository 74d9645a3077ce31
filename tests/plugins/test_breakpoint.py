"""`Breakpoint`: a run pauses, a program in a person's place looks, edits, decides, steps; limits and cancellation hold."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from io import StringIO
from typing import Any

import pytest
from clocks import LoopClock, in_virtual_time
from garbage import garbage_of

from agentflow import (
    Agent,
    Answer,
    CallEnded,
    Deny,
    Hook,
    HookEvent,
    PostActing,
    PostReasoning,
    PreActing,
    PreCall,
    PreReasoning,
    ReasoningChunk,
    Session,
    Stop,
    ToolUseBlock,
    on,
    tool,
)
from agentflow.errors import UsageError
from agentflow.plugins import Breakpoint, Pause
from agentflow.terminal import TerminalDebugger
from agentflow.testing import ScriptedModel, run_virtual
from agentflow.vocabulary.events import Decision, Error

DELETE = ToolUseBlock("t1", "delete_file", {"path": "/a"})


@tool
async def delete_file(path: str) -> str:
    """Delete."""
    return f"deleted {path}"


@tool(type="read")
async def read_file(path: str) -> str:
    """Read."""
    return f"{path} says hello"


def agent_with(*hooks: Any, script: Any = None, **options: Any) -> Agent:
    """An agent that deletes a file, and says so."""
    made = ScriptedModel(script or [DELETE, "Done."])
    return Agent("ada", made, tools=[delete_file, read_file], hooks=list(hooks), **options)


def acts(*steps: Callable[[Pause], object]) -> Callable[[Pause], Awaitable[None]]:
    """A debugger that acts once at each pause, and continues otherwise."""
    left = list(steps)

    async def ask(pause: Pause) -> None:
        (left.pop(0) if left else Pause.resume)(pause)

    return ask


def results(agent: Agent) -> list[str]:
    return [result.text for msg in agent.session().messages for result in msg.tool_results]


async def typed(*lines: str) -> AsyncIterator[str]:
    """Lines of a person's."""
    for line in lines:
        yield line


# ---- what a person may do


async def test_what_is_edited_is_what_runs() -> None:
    """A part of a writable field is set by its path; later guards evaluate the edited call, and the history keeps the
    model's.
    """
    judged: list[object] = []

    class Guard(Hook):
        guard = True

        def on_event(self, event: HookEvent) -> None:
            if isinstance(event, PreActing):
                judged.append(event.tool_use.input["path"])

    def edit(pause: Pause) -> None:
        pause.edit("tool_use.input.path", "/b")
        pause.resume()

    agent = agent_with(Breakpoint(PreActing, ask=acts(edit)), Guard())
    assert (await agent.call("Delete it.")).text == "Done."
    assert results(agent) == ["deleted /b"]
    assert judged == ["/b"]
    assert agent.session().messages[1].tool_uses == (DELETE,)


@pytest.mark.parametrize(
    ("kind", "path", "value", "seen"),
    [
        (PreCall, "input_messages[0].content[0].text", "Sing.", "Sing."),
        (PreCall, "input_messages", ["Dance."], "Dance."),
        (PreReasoning, "input_messages[0]", "Whisper.", "Whisper."),
        (PostReasoning, "reasoning_result", "Nothing to do.", "Nothing to do."),
        (PostActing, "tool_result.content", "gone", "gone"),
    ],
)
async def test_each_writable_field_takes_what_it_shows(kind: type[HookEvent], path: str, value: Any, seen: str) -> None:
    """Messages, replies and results are edited as JSON; a text stands for a message with this text."""

    def edit(pause: Pause) -> None:
        for field in pause.writable:  # what is shown can be put back
            before = pause.value(field)
            pause.edit(field, before)
            assert pause.value(field) == before
        pause.edit(path, value)
        pause.resume()

    agent = agent_with(Breakpoint(kind, ask=acts(edit)))
    model = agent._config.model  # pyright: ignore[reportPrivateUsage] - what it was asked
    await agent.call("Delete it.")
    said = [msg.text for request in model.requests for msg in request.messages]
    said += [msg.text for msg in agent.session().messages]
    assert seen in said + results(agent)


async def test_tools_model_and_options_of_a_request() -> None:
    """Tools are set by name or described, options merged, and a model is a text."""
    requests: list[PreReasoning] = []

    def edit(pause: Pause) -> None:
        pause.edit("tools", ["read_file"])
        pause.edit("tools[0].description", "Read one.")
        pause.edit("options.temperature", 0.5)
        with pytest.raises(UsageError, match="there is no tool 'fly'; the tools are delete_file, read_file"):
            pause.edit("tools", ["fly"])
        pause.resume()

    watch = on(PreReasoning, priority=500)(requests.append)
    agent = agent_with(Breakpoint(PreReasoning, ask=acts(edit)), watch, script=["Hello."])
    await agent.call("Hi")
    (event,) = requests
    assert [(spec.name, spec.description, spec.type) for spec in event.tools] == [("read_file", "Read one.", "read")]
    assert event.options.temperature == 0.5


async def test_a_tool_that_is_built_into_the_model_cannot_be_edited() -> None:
    """With a description it would be sent to other models too, which do not know it. It can be removed and added again."""
    seen: list[PreReasoning] = []

    @tool
    async def computer() -> str:
        """Use the computer."""
        return "clicked"

    def edit(pause: Pause) -> None:
        with pytest.raises(UsageError, match="the tool computer cannot be edited, because models know it"):
            pause.edit("tools[1].description", "Click.")
        pause.edit("tools", [])
        pause.edit("tools", ["computer"])
        pause.resume()

    computer.spec.native_only = True
    hooks = [Breakpoint(PreReasoning, ask=acts(edit)), on(PreReasoning, priority=500)(seen.append)]
    await Agent("ada", ScriptedModel(["Hello."]), tools=[read_file, computer], hooks=hooks).call("Hi")
    assert [spec is computer.spec for spec in seen[0].tools] == [True]


@pytest.mark.parametrize(
    ("path", "value", "why"),
    [
        ("tool_use", 3, "expected an object in braces, not 3"),
        ("tool_use.name", 3, "the name of a tool call must be a text, and its input an object"),
        ("tool_use.id", "t9", "the id of a tool call cannot be changed"),
        ("tool_use.nme", "x", "a tool call has only name and input, not nme"),
        ("tool_use.input[0]", "x", "tool_use.input[0] does not exist: there is no 0 at that position."),
        ("approval", None, "PreActing.approval is not writable. Writable: tool_use."),
        ("", None, "'' is not a path. Use a field's name, such as tool_use."),
        ("tool_use..input", None, "'tool_use..input' is not a path. Use a field's name, such as tool_use."),
    ],
)
async def test_what_does_not_fit_is_refused_and_changes_nothing(path: str, value: Any, why: str) -> None:
    """An edit is checked when it is made; the pause lasts."""

    def edit(pause: Pause) -> None:
        with pytest.raises(UsageError) as refused:
            pause.edit(path, value)
        assert str(refused.value) == f"PreActing, paused: {path} was not changed: {why}"
        pause.resume()

    agent = agent_with(Breakpoint(PreActing, ask=acts(edit)))
    await agent.call("Delete it.")
    assert results(agent) == ["deleted /a"]


async def test_a_person_denies_answers_and_stops() -> None:
    """A decision at a pause is a hook's verdict; where it is not legal, it is refused, and the pause lasts."""
    agent = agent_with(Breakpoint(PreActing, ask=acts(lambda pause: pause.decide(Deny("not today")))))
    await agent.call("Delete it.")
    assert results(agent) == ["Denied: not today"]

    def answer(pause: Pause) -> None:
        with pytest.raises(UsageError, match=r"Stop is not allowed for this event. Allowed: Deny, Answer, Suspend"):
            pause.decide(Stop("no"))
        pause.decide(Answer("as good as gone"))
        with pytest.raises(
            UsageError, match=r"This pause has ended \(answered: as good as gone\), so it is too late to continue."
        ):
            pause.resume()

    agent = agent_with(Breakpoint(PreActing, ask=acts(answer)))
    await agent.call("Delete it.")
    assert results(agent) == ["as good as gone"]
    agent = agent_with(Breakpoint(PostActing, ask=acts(lambda pause: pause.decide(Stop("enough")))))
    assert (await agent.call("Delete it.")).text == "enough"


async def test_stepping_pauses_at_each_event_but_pieces() -> None:
    """From the first to the last, in sub-agents too if the breakpoint has that scope; then no run is stepped through."""
    seen: list[str] = []

    def step(pause: Pause) -> None:
        seen.append(f"{pause.event.source}/{type(pause.event).__name__}")
        pause.resume(step=True)

    inner = Agent("inner", ScriptedModel(["All is well."]))
    outer = Agent(
        "outer",
        ScriptedModel([ToolUseBlock("t1", "inner", {"message": "How is it?"}), "Fine."]),
        tools=[inner.as_tool()],
        hooks=[Breakpoint(PreCall, scope="tree", ask=acts(*[step] * 100), when=lambda event: not event.source)],
    )
    await outer.call("Ask.")
    round_trip = ["PreReasoning", "PostReasoning"]
    inside = ["PreCall", *round_trip, "PostCall", "CallEnded"]
    assert seen == [
        "/PreCall",
        *[f"/{name}" for name in [*round_trip, "PreToolRound", "PreActing"]],
        *[f"inner/{name}" for name in inside],
        *[f"/{name}" for name in ["PostActing", "PostToolRound", *round_trip, "PostCall", "CallEnded"]],
    ]


async def test_going_on_ends_the_stepping() -> None:
    """The next pause is where the breakpoint is."""
    seen: list[str] = []

    def note(pause: Pause, *, step: bool) -> None:
        seen.append(type(pause.event).__name__)
        pause.resume(step=step)

    steps = [lambda pause: note(pause, step=True)] * 2 + [lambda pause: note(pause, step=False)] * 9
    await agent_with(Breakpoint(PreReasoning, ask=acts(*steps))).call("Delete it.")
    assert seen == ["PreReasoning", "PostReasoning", "PreToolRound", "PreReasoning"]


async def test_tools_and_when_narrow_it() -> None:
    """Patterns are for events about tools, rounds included; `when` has to say yes too."""
    seen: list[str] = []

    async def note(pause: Pause) -> None:
        seen.append(type(pause.event).__name__)
        pause.resume()

    script = [[ToolUseBlock("r1", "read_file", {"path": "/a"}), DELETE], "Done."]
    point = Breakpoint(Decision, tools=["delete_*"], when=lambda event: event.iteration == 1, ask=note)
    await agent_with(point, script=script).call("Delete it.")
    assert seen == ["PreReasoning", "PostReasoning", "PreToolRound", "PreActing", "PostActing", "PostToolRound"]
    assert point.paused == ()


async def test_the_chain_is_shown_with_the_place_of_the_breakpoint() -> None:
    """Hooks of a tool included."""
    shown: list[str] = []

    @tool
    async def pay() -> str:
        """Pay."""
        return "paid"

    pay.on("before_each_tool", lambda event: None)

    async def look(pause: Pause) -> None:
        shown.extend(f"{place.kind} {place.hook}{' <' if place.here else ''}" for place in pause.chain)
        pause.resume()

    class Late(Hook):
        guard = True

        def on_event(self, event: HookEvent) -> None:
            pass

    model = ScriptedModel([ToolUseBlock("t", "pay"), "Done."])
    await Agent("a", model, tools=[pay], hooks=[Late(), Breakpoint(PreActing, ask=look)]).call("Pay")
    assert shown == ["edit <lambda>", "edit Breakpoint <", "guard Late"]


# ---- limits, no answer, several debuggers


async def forever(pause: Pause) -> None:
    """A debugger that never answers."""
    await asyncio.Event().wait()


@pytest.mark.parametrize(
    ("otherwise", "result"), [("deny", "Denied: it was not approved in time"), ("continue", "deleted /a")]
)
def test_a_limit_is_kept_by_the_runs_clock(otherwise: Any, result: str) -> None:
    """After it the run continues or the work is denied, as configured; a later answer is refused."""
    pauses: list[Pause] = []

    async def late(pause: Pause) -> None:
        pauses.append(pause)
        await forever(pause)

    async def main() -> float:
        agent = agent_with(Breakpoint(PreActing, ask=late, limit=60, otherwise=otherwise), clock=LoopClock())
        await agent.call("Delete it.")
        assert results(agent) == [result]
        with pytest.raises(UsageError, match="too late to continue"):
            pauses[0].resume()
        return asyncio.get_running_loop().time()

    assert run_virtual(main()) == 60


@pytest.mark.parametrize(("beside", "worked"), [(False, 0.0), (True, 8_000.0)])
def test_a_pause_in_a_sub_agent_is_a_wait_of_its_tool_unless_another_works(beside: bool, worked: float) -> None:
    """The duration of the tool's work is without the time in which all its parts wait."""
    durations: list[float | None] = []

    @on(PostActing)
    def note(event: PostActing) -> None:
        durations.append(event.duration_ms)

    def inner(*hooks: Hook) -> Agent:
        said = ["Fine."] if hooks else [lambda: asyncio.sleep(8), "Fine."]
        return Agent("inner", ScriptedModel([said]), hooks=hooks, clock=LoopClock())

    agents = [inner(Breakpoint(PreReasoning, ask=forever, limit=60, otherwise="continue")), *[inner()] * beside]

    @tool(timeout=None)
    async def asks_all() -> str:
        """Ask."""
        await asyncio.gather(*[agent.call("Hm?") for agent in agents])
        return "asked"

    async def main() -> float:
        script = ScriptedModel([ToolUseBlock("t", "asks_all", {}), "Done."])
        await Agent("outer", script, tools=[asks_all], hooks=[note], clock=LoopClock()).call("Ask.")
        return asyncio.get_running_loop().time()

    assert (run_virtual(main()), durations) == (60.0, [worked])


async def test_the_end_of_a_pause_is_the_same_for_all_who_wait_for_it() -> None:
    """A debugger that waits for the end continues after a decision and after the limit, and can tell which it was."""
    seen: list[str] = []

    async def waits(pause: Pause) -> None:
        try:
            await forever(pause)
        finally:
            seen.append("cancelled" if pause.over.cancelled() else repr(pause).rpartition(": ")[2])

    agent = agent_with(Breakpoint(PreActing, ask=waits, limit=0.01))
    await agent.call("Delete it.")
    assert seen == ["no decision in time; it continued>"]


@pytest.mark.parametrize(
    ("verdict", "said"),
    [
        (Deny("not that"), "denied: not that>"),
        (Deny(""), "denied>"),
        (Answer({"a": 1}), "answered>"),
        (Answer("yes"), "answered: yes>"),
    ],
)
async def test_a_pause_says_what_was_decided(verdict: Any, said: str) -> None:
    """The verdict, with its text where it has one."""
    pauses: list[Pause] = []

    async def decides(pause: Pause) -> None:
        pauses.append(pause)
        pause.decide(verdict)

    await agent_with(Breakpoint(PreActing, ask=decides)).call("Delete it.")
    assert repr(pauses[0]).endswith(f"{pauses[0].event.run_id}: {said}")


async def test_the_terminal_shows_where_a_run_is_and_what_is_legal_there() -> None:
    """Before the first round there is none to name; `help` lists the verdicts of the event after the commands."""
    shown = StringIO()
    asks = TerminalDebugger(typed("help", "c", "help", "c"), file=shown)
    await agent_with(Breakpoint(PreCall, PreActing, ask=asks)).call("Delete it.")
    first, second = shown.getvalue().split("\n‖ ")[1:]
    assert first.startswith("PreCall  ada · event ")
    assert second.startswith("PreActing  ada · round 1 · event ")
    for text, forms in ((first, 2), (second, 3)):
        lines = [line.strip().split()[0] for line in text.splitlines() if line.startswith("  ")]
        assert len({"deny", "answer", "suspend"} & {*lines}) == forms


async def test_a_debugger_that_fails_or_leaves_is_nobody() -> None:
    """Then the same happens as after the limit."""

    async def fails(pause: Pause) -> None:
        raise OSError("no terminal")

    async def leaves(pause: Pause) -> None:
        pass

    agent = agent_with(Breakpoint(PreActing, ask=[fails, leaves], otherwise="deny"))
    await agent.call("Delete it.")
    assert results(agent) == ["Denied: it was not approved in time"]


async def test_who_decides_first_counts() -> None:
    """The others are cancelled, and have ended before the run continues."""
    ended: list[str] = []

    async def slow(pause: Pause) -> None:
        try:
            await forever(pause)
        finally:
            ended.append("slow")

    agent = agent_with(
        Breakpoint(PreActing, ask=[slow, acts(lambda pause: pause.decide(Deny("no")))]),
        on(PostActing)(lambda event: ended.append("acted")),
    )
    await agent.call("Delete it.")
    assert ended == ["slow", "acted"]


async def test_another_thread_may_decide() -> None:
    """Such as a server's, whose loop is another one."""

    async def elsewhere(pause: Pause) -> None:
        await asyncio.to_thread(pause.decide, Deny("from afar"))
        await forever(pause)

    agent = agent_with(Breakpoint(PreActing, ask=elsewhere))
    await agent.call("Delete it.")
    assert results(agent) == ["Denied: from afar"]


# ---- the ends of runs


@pytest.mark.parametrize("how", ["cancel", "interrupt", "timeout"])
@in_virtual_time
async def test_a_paused_run_can_be_ended(how: str) -> None:
    """It ends at once, pauses nowhere else, and leaves no task."""
    waits = asyncio.Event()
    pauses: list[Pause] = []

    async def ask(pause: Pause) -> None:
        pauses.append(pause)
        waits.set()
        await forever(pause)

    point = Breakpoint(PreActing, Decision, CallEnded, ask=ask, when=lambda event: not isinstance(event, PreCall))
    agent = agent_with(point, script=[DELETE, "Done."])
    before = asyncio.all_tasks()
    task = asyncio.create_task(agent.call("Delete it.", timeout=0.05 if how == "timeout" else None))
    await waits.wait()
    if how == "interrupt":
        agent.interrupt(None, "Ctrl-C")
        assert (await task).outcome == "interrupted"
    elif how == "timeout":
        with pytest.raises(TimeoutError):
            await task
    else:
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert [type(pause.event).__name__ for pause in pauses] == ["PreReasoning"]
    assert (pauses[0].ended, point.paused) == ("cancelled", ())
    del task
    assert asyncio.all_tasks() == before


async def test_parallel_calls_pause_beside_each_other() -> None:
    """Each has its own pause; they are decided in any order."""
    both = asyncio.Event()
    uses = [ToolUseBlock(f"r{n}", "read_file", {"path": f"/{n}"}) for n in (1, 2)]

    async def ask(pause: Pause) -> None:
        if len(point.paused) == 2:
            both.set()
        await both.wait()
        _, two = sorted(point.paused, key=lambda p: str(p.fields["tool_use"]))
        if pause is two:
            pause.resume()
        else:
            await two.over
            pause.decide(Deny("late"))

    point = Breakpoint(PreActing, ask=ask)
    agent = agent_with(point, script=[uses, "Done."])
    await asyncio.wait_for(asyncio.ensure_future(agent.call("Read.")), 10)
    assert sorted(results(agent)) == ["/2 says hello", "Denied: late"]


async def test_no_garbage() -> None:
    """A paused call leaves nothing for the collector."""
    edits = Breakpoint(PreActing, ask=acts(lambda pause: pause.edit("tool_use.input.path", "/b")))
    for point in (edits, Breakpoint(PreActing, ask=acts(Pause.resume))):
        agent = agent_with(point, script=lambda request: "Done." if request.messages[-1].role == "tool" else DELETE)
        assert await garbage_of(lambda agent=agent: agent.call("Delete it.", session=Session.fresh())) == []


# ---- arguments


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (Breakpoint, "pass the event classes to pause at"),
        (lambda: Breakpoint("PreActing"), "pass the event classes to pause at"),  # pyright: ignore[reportArgumentType]
        (lambda: Breakpoint(PreActing, tools="delete_*"), r"tools=\['delete_\*'\]"),
        (lambda: Breakpoint(PreActing, limit=0), "a number of seconds above 0"),
        (lambda: Breakpoint(PreActing, otherwise="stop"), "'continue' or 'deny'"),  # pyright: ignore[reportArgumentType]
        (lambda: Breakpoint(PreActing, ask=[]), "omit ask= for the terminal"),
        (lambda: Breakpoint(PreActing, scope="all"), "'own' or 'tree'"),  # pyright: ignore[reportArgumentType]
    ],
)
def test_wrong_arguments(made: Callable[[], object], why: str) -> None:
    """Each is refused with the correction."""
    with pytest.raises(UsageError, match=why):
        made()


# ---- lines in a person's place


async def test_a_dialogue() -> None:
    """Every command and its output; a model's text cannot move the cursor."""
    shown = StringIO()
    lines = typed(
        "set tool_use.input.path /b",
        "set tool_use.input {",
        "set tool_use",
        "edit",
        '{"input": {"path": "/c"}}',
        "what",
        "show approval",
        "show nothing",
        "continue now",
        "history 1",
        "history",
        "d not \x1b[31m now",
    )
    point = Breakpoint(PreActing, ask=TerminalDebugger(lines, file=shown))
    agent = agent_with(
        point, script=[["\x1b[2Jhello", ToolUseBlock("t1", "delete_file", {"path": "\x1b[31m"})], "Done."]
    )
    await agent.call("Delete it.")
    text = shown.getvalue()
    assert "\x1b" not in text
    assert [line.rstrip() for line in text.splitlines()][2:] == [
        '  *tool_use             {"id": "t1", "name": "delete_file", "input": {"path": "\\u001b[31m"}}',
        "   approval             null",
        "   hooks                ▸ Breakpoint (edit, 990)",
        "  continue · step · set · edit · deny · answer · suspend · show · history · help",
        "debug> set tool_use.input.path /b",
        '  *tool_use             {"id": "t1", "name": "delete_file", "input": {"path": "/b"}}',
        "debug> set tool_use.input {",
        "  This looks like JSON but is not valid: EOF while parsing an object at line 1 column 1.",
        "debug> set tool_use",
        "  Usage: set FIELD VALUE. Writable fields: tool_use.",
        "debug> edit",
        'tool_use = {"input": {"path": "/c"}}',
        '  *tool_use             {"id": "t1", "name": "delete_file", "input": {"path": "/c"}}',
        "debug> what",
        "  Unknown command 'what'. Type help for a list.",
        "debug> show approval",
        "null",
        "debug> show nothing",
        (
            "  PreActing has no field 'nothing'. Its fields: type, seq, iteration, time, source, run_id, call_id, session_id, "
            "tool_use, approval."
        ),
        "debug> continue now",
        "  continue takes no arguments.",
        "debug> history 1",
        "  (1 message before)",
        "  assistant \\x1b[2Jhello",
        '            [delete_file {"path":"\\u001b[31m"}]',
        "debug> history",
        "  user      Delete it.",
        "  assistant \\x1b[2Jhello",
        '            [delete_file {"path":"\\u001b[31m"}]',
        "debug> d not \\x1b[31m now",
    ]
    assert results(agent) == ["Denied: not \x1b[31m now"]


async def test_the_end_of_the_lines_is_nobody() -> None:
    """The run continues, or is denied, as configured."""
    agent = agent_with(Breakpoint(PreActing, ask=TerminalDebugger(typed("h"), file=StringIO()), otherwise="deny"))
    await agent.call("Delete it.")
    assert results(agent) == ["Denied: it was not approved in time"]


async def test_one_dialogue_at_a_time() -> None:
    """Of parallel calls the second is shown when the first is decided; one that is cancelled while it waits takes no turn."""
    shown = StringIO()
    uses = [ToolUseBlock(f"r{n}", "read_file", {"path": f"/{n}"}) for n in (1, 2, 3)]
    asks = TerminalDebugger(typed("set tool_use.input.path /x", "c", "d no", "c"), file=shown)
    agent = agent_with(Breakpoint(PreActing, ask=asks), script=[uses, "Done."])
    await agent.call("Read.")
    assert sorted(results(agent)) == ["/3 says hello", "/x says hello", "Denied: no"]
    prompts = [line for line in shown.getvalue().splitlines() if line.startswith(("‖", "debug>"))]
    assert [line.split()[0] for line in prompts] == ["‖", "debug>", "debug>", "‖", "debug>", "‖", "debug>"]


async def test_events_that_cannot_be_decided_can_be_looked_at() -> None:
    """Pieces and the last event too: where the breakpoint names them."""
    seen: list[str] = []

    async def look(pause: Pause) -> None:
        seen.append(type(pause.event).__name__)
        assert pause.writable == ()
        pause.resume()

    agent = agent_with(Breakpoint(ReasoningChunk, Error, CallEnded, ask=look), script=["Hi."])
    await agent.call("Hi")
    assert seen == ["ReasoningChunk", "CallEnded"]
