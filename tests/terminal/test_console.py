"""`Console(stream)`: the output of a call, in a pipe and on a real terminal (a pty with a screen emulator)."""

from __future__ import annotations

import asyncio
import io
import re
from inspect import signature
from typing import Any, get_args

import pytest

from agentflow import (
    Agent,
    Answer,
    Console,
    Deny,
    MessagesAdded,
    ModelChunk,
    Msg,
    PreCall,
    PreReasoning,
    PreToolRound,
    Reply,
    Stop,
    ToolUseBlock,
    Usage,
    on,
    tool,
)
from agentflow._support.shown import controls
from agentflow.errors import ModelError
from agentflow.plugins import ModelRetry
from agentflow.plugins.approval.terminal import questions
from agentflow.terminal.phrases import duration_text, shorten
from agentflow.terminal.printer import make_console
from agentflow.terminal.screen import Screen
from agentflow.terminal.tally import Tally
from agentflow.testing import ScriptedModel, run_context
from agentflow.vocabulary.events import Origin
from agentflow.vocabulary.ports.waits import Wait

ADD = ToolUseBlock("t1", "add", {"a": 1, "b": 2})


@tool(type="read")
async def add(a: int, b: int) -> int:
    """Add."""
    return a + b


@tool(type="read")
async def fails() -> str:
    """Fail."""
    raise ValueError("broken")


def steady(text: str) -> str:
    """Without durations, and with rules of one length."""
    text = re.sub(r"<1 ms|\d+ ms|\d+\.\d+ s", "TIME", text)
    return re.sub(r"^(── .*?) ?─*$", r"\1", text, flags=re.MULTILINE)


async def printed(agent: Agent, prompt: str = "Hi", **options: Any) -> tuple[Reply, str]:
    """The reply of a call, and its printed output."""
    file = io.StringIO()
    reply = await Console(agent.stream(prompt), file=file, **options)
    return reply, steady(file.getvalue())


async def test_it_shows_a_call_and_gives_its_reply() -> None:
    """Text, tool calls with results, a rule per round, a summary; awaited again, it is a new call."""
    agent = Agent("a", ScriptedModel([["Let me ", "add.", ADD], "It is 3.", "Again."]), tools=[add])
    reply, text = await printed(agent, "1 + 2?")
    assert (reply.text, reply.outcome) == ("It is 3.", "completed")
    assert text == (
        "── round 1 · scripted\n"
        "  Let me add.\n"
        "  → add(a=1, b=2)\n"
        "  ✓ add: 3  TIME\n"
        "── round 2 · scripted\n"
        "  It is 3.\n"
        "── completed · 2 rounds · 1 tool call · TIME\n"
    )
    console = Console(agent.stream("And now?"), quiet=True, file=(file := io.StringIO()))
    assert (await console).text == "Again."
    assert file.getvalue() == "Again.\n"


def test_a_console_that_nobody_awaits_warns() -> None:
    """It shows nothing, since nothing has run."""
    model = ScriptedModel(["ok"])
    with pytest.warns(
        RuntimeWarning, match=r"Console\(agent.stream\(...\)\) was never awaited, so the call did not run"
    ):
        Console(Agent("a", model).stream("hi"))
    assert not model.requests


@on(PreCall)
def closed(event: PreCall) -> Deny:
    return Deny("we are closed")


@on(PreReasoning)
def known(event: PreReasoning) -> Answer:
    return Answer("I knew that.")


@on(PreToolRound)
def enough(event: PreToolRound) -> Stop:
    return Stop("enough for today")


@pytest.mark.parametrize(
    ("hook", "words"),
    [(closed, "we are closed"), (known, "I knew that."), (enough, "enough for today")],
    ids=["deny", "answer", "stop"],
)
@pytest.mark.parametrize("quiet", [False, True], ids=["", "quiet"])
async def test_words_that_were_not_streamed_are_shown(hook: Any, words: str, quiet: bool) -> None:
    """A reply without chunks, and the closing texts of verdicts, are there, once."""
    agent = Agent("a", ScriptedModel([["On it. ", ADD], "Done."]), tools=[add], hooks=[hook])
    reply, text = await printed(agent, quiet=quiet)
    assert words in reply.text
    lines = [line.strip() for line in text.splitlines()]
    assert lines.count(reply.text) == 1


async def test_a_limit_is_shown_with_its_summary() -> None:
    """The model's text at the iteration limit is shown like any other text."""
    agent = Agent("a", ScriptedModel([ADD, "I ran out of rounds."]), tools=[add], max_iterations=1)
    reply, text = await printed(agent)
    assert reply.outcome == "limited"
    assert "  I ran out of rounds.\n── limited · 2 rounds" in text


async def test_a_failure_is_raised_and_not_printed() -> None:
    """The caller receives the error; the line in progress is ended."""
    agent = Agent("a", ScriptedModel([["Half a ", ModelError("the provider is down")]]))
    file = io.StringIO()
    with pytest.raises(ModelError, match="the provider is down"):
        await Console(agent.stream("Hi"), file=file)
    assert steady(file.getvalue()) == "── round 1 · scripted\n  Half a \n"


@pytest.mark.parametrize("children", [True, False])
async def test_sub_agents_are_shown_or_only_run(children: bool) -> None:
    """With their name in front, or not at all: their text is never the caller's."""
    helper = Agent("helper", ScriptedModel(["From below."]), description="Helps.")
    boss = Agent(
        "boss", ScriptedModel([ToolUseBlock("h", "helper", {"message": "help"}), "From above."]), tools=[helper]
    )
    file = io.StringIO()
    reply = await Console(boss.stream("Hi", children=True), children=children, file=file)
    assert ("[helper] From below." in file.getvalue()) == children
    assert "  ✓ helper: From below." in file.getvalue()
    assert reply.text == "From above."


class Tty(io.StringIO):
    """A file that says it is a terminal."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


async def test_a_console_leaves_no_watcher_behind(shown: Any) -> None:
    """What a screen registers with the asker of approvals is removed at the end of each call."""
    agent = Agent("a", ScriptedModel(lambda _: "Hello."))
    for _ in range(3):
        await Console(agent.stream("Hi"), file=Tty())
    assert questions._watchers == []


@pytest.mark.parametrize(
    ("terminal", "quiet", "text", "drawn"),
    [
        (True, False, "", True),
        (True, False, "An open line", False),
        (True, True, "", False),
        (False, False, "", False),
    ],
)
async def test_a_wait_is_drawn_below_whole_lines_of_a_terminal(
    shown: Any, terminal: bool, quiet: bool, text: str, drawn: bool
) -> None:
    """Not in a file, not if it is quiet, and not in a line of the model's that is not complete."""
    screen = Screen(make_console(file=(file := Tty() if terminal else io.StringIO())), quiet=quiet, markdown=False)
    screen._printer._open = text
    screen.waiting("connects")
    before = file.getvalue()
    screen.end()
    assert ("connects" in before, questions._watchers) == (drawn, [])


async def test_quiet_is_the_words_alone_on_a_terminal_too(shown: Any) -> None:
    """Nothing is drawn, not even a wait."""
    busy = ModelError("busy", retryable=True, retry_after=0.0)
    model = ScriptedModel([busy, ["Let me add. ", ADD], "It is 3."])
    agent = Agent("a", model, tools=[add], hooks=[ModelRetry()])
    await Console(agent.stream("Hi"), quiet=True, file=(file := Tty()))
    assert file.getvalue().split() == ["Let", "me", "add.", "It", "is", "3."]
    assert "\x1b[?25l" not in file.getvalue()


async def test_what_a_model_says_cannot_steer_the_terminal(shown: Any) -> None:
    """Names, texts, chunks and results are shown with their control characters as escapes, also when they are drawn
    again.
    """
    evil = "\x1b]52;c;ZXZpbA==\x07\x1b[2J\x9b3J\r\u202e"

    @tool(type="read")
    async def pieces(what: str):
        """Chunks."""
        yield "piece" + evil

    script = [
        ["words" + evil, ToolUseBlock("t1", "pieces", {"what": evil}), ToolUseBlock("t2", "no" + evil, {})],
        "end",
    ]
    file = Tty()
    await Console(Agent("a", ScriptedModel(script, name="model" + evil), tools=[pieces]).stream("Hi"), file=file)
    drawn = re.sub(r"\x1b\[(?:[0-9;]*m|\?25[lh]|1A|2K)|\r", "", file.getvalue())
    assert controls().search(drawn) is None, drawn
    assert "\\x1b]52" in drawn


# ---- at a terminal


def test_ctrl_c_ends_the_call_and_the_program_goes_on(program: Any) -> None:
    """The reply is `interrupted`, the history is legal, and the next call works; the drawn lines are removed."""
    at = program.at_terminal("""
        async def main():
            model = ScriptedModel([["On it.", ToolUseBlock("h1", "hang", {"name": "the job"})], "Here again."])
            agent = Agent("a", model, tools=[hang])
            reply = await Console(agent.stream("Hi"))
            print("outcome:", reply.outcome, [result.state for m in agent.session().messages for result in m.tool_results])
            reply = await Console(agent.stream("And now?"))
            print("outcome:", reply.outcome)

        asyncio.run(main())
    """)
    at.see("the job has begun")
    at.type("\x03")
    at.wait_for("outcome: interrupted ['interrupted']")
    at.wait_for("Here again.")
    at.wait_for("outcome: completed")
    assert at.end() == 0
    assert "has begun" not in at.shown
    assert "Traceback" not in at.shown
    assert not at.screen.cursor.hidden


def test_a_second_ctrl_c_leaves(program: Any) -> None:
    """A tool that does not let itself be cancelled cannot hold the terminal: KeyboardInterrupt, and the cursor is back."""
    at = program.at_terminal("""
        @tool(type="read")
        async def stubborn():
            \"\"\"Stubborn.\"\"\"
            yield "stuck"
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                print("not yet")
                await asyncio.Event().wait()

        async def main():
            await Console(Agent("a", ScriptedModel([ToolUseBlock("s", "stubborn", {})]), tools=[stubborn]).stream("Hi"))

        try:
            asyncio.run(main())
        except KeyboardInterrupt:
            print("left")
    """)
    at.see("stuck")
    at.type("\x03")
    at.wait_for("not yet")
    at.type("\x03")
    at.wait_for("left")
    assert at.end() == 0
    assert not at.screen.cursor.hidden


def test_who_handles_ctrl_c_goes_on_doing_so(program: Any) -> None:
    """A handler of the program's own is neither replaced nor lost."""
    at = program.at_terminal("""
        import signal

        async def main():
            stop = asyncio.Event()
            asyncio.get_running_loop().add_signal_handler(signal.SIGINT, stop.set)
            call = asyncio.create_task(asyncio.wait_for(show(), 30))
            await stop.wait()
            print("mine")
            call.cancel()
            await asyncio.gather(call, return_exceptions=True)

        async def show():
            await Console(Agent("a", ScriptedModel([ToolUseBlock("h", "hang", {"name": "it"})]), tools=[hang]).stream("Hi"))

        asyncio.run(main())
    """)
    at.see("it has begun")
    at.type("\x03")
    at.wait_for("mine")
    assert at.end() == 0


ASKED = """
    from agentflow.plugins import Approval, TerminalAsker

    @tool
    async def pay(cents: int) -> str:
        \"\"\"Pay.\"\"\"
        return f"paid {cents}"

    async def main():
        model = ScriptedModel([["I pay. ", ToolUseBlock("p1", "pay", {"cents": 5})], "Paid."])
        agent = Agent("a", model, tools=[pay], hooks=[Approval(ask=TerminalAsker())])
        reply = await Console(agent.stream("Hi"))
        print("outcome:", reply.outcome, [result.state for m in agent.session().messages for result in m.tool_results])

    asyncio.run(main())
"""


def test_an_answer_to_a_question(program: Any) -> None:
    """The question is alone on the screen, and the call continues with the answer."""
    at = program.at_terminal(ASKED)
    at.wait_for("n [reason] = no: ")
    assert "pay(cents=5)  0 s" not in at.shown
    at.type("y\r")
    at.wait_for("✓ pay: paid 5")
    at.wait_for("outcome: completed ['success']")
    assert at.end() == 0


def test_ctrl_c_at_a_question_takes_it_back(program: Any) -> None:
    """The call is interrupted, nothing runs, and the terminal is as it was."""
    at = program.at_terminal(ASKED)
    at.wait_for("n [reason] = no: ")
    at.type("\x03")
    at.wait_for("(withdrawn: the call was cancelled)")
    at.wait_for("outcome: interrupted ['interrupted']")
    assert at.end() == 0
    assert "Traceback" not in at.shown
    assert not at.screen.cursor.hidden


TALK = """
    async def main():
        agent = Agent("a", ScriptedModel([["Hello. ", ToolUseBlock("t1", "add", {"a": 1, "b": 2})], "3."]), tools=[add])
        await Console(agent.stream("Hi"))

    asyncio.run(main())
"""
COLOUR = re.compile(r"\x1b\[[0-9;]*3[0-7]m")


def test_colours_on_a_terminal_and_none_with_no_color(program: Any) -> None:
    """`NO_COLOR` leaves the text as it is."""
    coloured = program.at_terminal(TALK)
    assert coloured.end() == 0
    plain = program.at_terminal(TALK, NO_COLOR="1")
    assert plain.end() == 0
    assert COLOUR.search(coloured.raw)
    assert not COLOUR.search(plain.raw)
    assert steady(coloured.shown) == steady(plain.shown)
    assert "  ✓ add: 3  TIME\n" in steady(plain.shown)


def test_in_a_pipe_it_is_plain_text(program: Any) -> None:
    """The same text, and no control character; a dumb terminal gets colours at most, and no line is drawn again."""
    ran = program.piped(TALK)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert controls().search(ran.stdout) is None
    assert "  ✓ add: 3  " in ran.stdout


def test_words_that_the_encoding_has_not_are_escapes(program: Any) -> None:
    """A pipe that takes ASCII only gets the signs as ASCII, and all else as escapes; the call continues."""
    program.environment.update(PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    ran = program.piped("""
        async def main():
            model = ScriptedModel([["K\\u00e4se \\u2192 \\U0001f9c0 ", ToolUseBlock("t", "add", {"a": 1, "b": 2})], "3"])
            await Console(Agent("a", model, tools=[add]).stream("Hi"))

        asyncio.run(main())
    """)
    assert (ran.returncode, ran.stderr) == (0, "")
    lines = [line.strip() for line in ran.stdout.splitlines()]
    assert lines[1:3] == ["K\\xe4se > \\U0001f9c0", "> add(a=1, b=2)"]


def test_resizing_the_window(program: Any) -> None:
    """Lines of running work are shortened to the new width, and later output is complete."""
    at = program.at_terminal(
        """
        async def main():
            model = ScriptedModel([[ToolUseBlock("h1", "hang", {"name": "word " * 40})], "Here again."])
            agent = Agent("a", model, tools=[hang])
            await Console(agent.stream("Hi"))
            print("over")

        asyncio.run(main())
        """,
        rows=40,
        columns=100,
    )
    at.see("word has begun")
    at.resize(40, 50)
    narrow = at.wait_until(
        lambda: next((row for row in at.shown.splitlines()[-4:] if re.search(r" hang.*…", row)), None)
    )
    assert len(narrow) <= 50
    at.type("\x03")
    at.wait_for("over")
    assert at.end() == 0
    assert [row for row in at.shown.splitlines() if "interrupted ·" in row] != []


async def test_every_retry_leaves_a_line() -> None:
    """However short its wait is: of the model, and of a tool; a wait for a rate limit does so from a second on."""
    fails = [OSError("flaky")]

    @tool(retries=1)
    async def once() -> str:
        """Fail once."""
        if fails:
            raise fails.pop()
        return "fine"

    script = [ToolUseBlock("t", "once"), ModelError("overloaded", retryable=True), "ok"]
    _, text = await printed(
        Agent("a", ScriptedModel(script), tools=[once], hooks=[ModelRetry(first_wait=0.01, jitter=0)])
    )
    assert [line for line in text.splitlines() if line[:3] in ("  ↻", "  →", "  ✓")] == [
        "  → once()",
        "  ↻ attempt 1 failed; Tool 'once' retries in TIME: OSError: flaky",
        "  ✓ once: fine  TIME",
        "  ↻ attempt 1 failed; ModelRetry retries in TIME: ModelError: overloaded",
    ]
    screen = Screen(make_console(io.StringIO()))
    screen.wait(Wait(who="RateLimit", seconds=0.5))
    assert screen.console.file.getvalue() == ""


@pytest.mark.parametrize("origin", get_args(Origin))
async def test_a_message_that_was_added_says_why(origin: Origin) -> None:
    """As a phrase, not by the name of the origin."""
    file = io.StringIO()
    screen = Screen(make_console(file))
    screen.show(MessagesAdded(messages=(Msg.user("Let me"),), origin=origin).within(run_context()))
    (line,) = file.getvalue().splitlines()
    assert line.endswith(": Let me")
    assert f"+ {origin}" not in line


@pytest.mark.parametrize("quiet", [False, True])
async def test_thoughts_are_shown_unless_it_is_quiet(quiet: bool) -> None:
    """On a line of their own, marked as such; a quiet screen prints the answer alone."""
    agent = Agent("a", ScriptedModel([[ModelChunk(thinking="Two and two"), "It is 4."]]))
    _, text = await printed(agent, quiet=quiet)
    assert ("  (thinking) Two and two\n" in text) == (not quiet)
    assert text.startswith("It is 4.\n" if quiet else "── round 1")


async def test_a_failure_names_the_hook_or_the_tool() -> None:
    """A tool's failure has a line of its own only among all events: its result says it, too."""

    @on(PreReasoning, on_failure="skip")
    def breaks(event: PreReasoning) -> None:
        raise RuntimeError("no sums")

    for events in (False, True):
        agent = Agent("a", ScriptedModel([ToolUseBlock("t1", "fails"), "Done."]), tools=[fails], hooks=[breaks])
        _, text = await printed(agent, events=events)
        assert "✗ failure of hook breaks: RuntimeError: no sums" in text
        assert ("✗ failure of tool fails: ValueError: broken" in text) == events


def test_a_console_and_its_screen_have_the_same_defaults() -> None:
    """Both show the same by default."""
    of_console, of_screen = (signature(kind).parameters for kind in (Console, Screen))
    shared = of_console.keys() & of_screen.keys()
    assert shared >= {"events", "quiet", "children", "markdown"}
    assert {name: of_console[name].default for name in shared} == {name: of_screen[name].default for name in shared}


async def test_a_long_line_is_left_to_the_terminal(shown: Any) -> None:
    """Lines are not broken up by us: text copied from the screen is the original text."""
    said = "word " * 60 + "https://example.com/" + "x" * 200
    file = Tty()
    agent = Agent("a", ScriptedModel([[said]]))
    await Console(agent.stream("Hi"), quiet=True, markdown=False, file=file)
    assert said in file.getvalue()


async def test_paragraphs_are_previewed_and_printed_with_a_blank_line_between(shown: Any) -> None:
    """The one that still grows is shown as far as it has come."""
    file = Tty()
    model = ScriptedModel([["One.\n\nTw", lambda: asyncio.sleep(0.5), "o.\n\nThree."]])
    await Console(Agent("a", model).stream("Hi"), file=file)
    lines = [re.sub(r"\x1b\[[\d;?]*[a-zA-Z]|\r", "", line).strip() for line in file.getvalue().split("\n")]
    assert any(re.search(r"\bTw\b", line) for line in lines)
    assert lines[-5:-2] == ["Two.", "", "Three."]


def test_a_text_is_shortened_to_its_room() -> None:
    """A text that fits is unchanged; else it ends in an ellipsis, and is as long as the limit."""
    for room in range(1, 12):
        text = "one two three"[:10]
        short = shorten(text, room)
        assert short == (text if room >= 10 else f"{text[: room - 1]}…")
        assert len(short) == min(room, 10)


async def test_a_tally_counts_one_call() -> None:
    """Rounds, tools by how they ended, usage and time of the call itself; before its end the outcome is unknown."""
    tally = Tally()
    assert tally.rows() == [
        ("outcome", "unknown"),
        ("rounds", "0"),
        ("tools", "none"),
        ("tokens", "0 in, 0 out"),
        ("cost", "unknown"),
        ("time", "<1 ms"),
    ]
    usage = ModelChunk(usage=Usage(input_tokens=1200, output_tokens=80, cost=0.5, model_calls=1))
    helper = Agent("helper", ScriptedModel([ADD, "From below."]), description="Helps.", tools=[add])
    uses = [ADD, ToolUseBlock("t2", "fails"), ToolUseBlock("t3", "helper", {"message": "help"}), usage]
    agent = Agent("a", ScriptedModel([uses, "Done."]), tools=[add, fails, helper])
    async for event in agent.stream("Hi", children=True):
        tally.count(event)
    assert tally.rows()[:5] == [
        ("outcome", "completed"),
        ("rounds", "2"),
        ("tools", "3 calls: 2 succeeded, 1 failed"),
        ("tokens", "1,200 in, 80 out"),
        ("cost", "$0.5"),
    ]
    assert tally.line().startswith("completed · 2 rounds · 3 tool calls · 1,280 tokens · ")


def test_durations_are_shown_in_the_unit_that_suits_them() -> None:
    """Of minutes, the rest is in seconds; while something waits, whole seconds are enough."""
    shown = [duration_text(seconds) for seconds in (0.0005, 0.0124, 0.9994, 0.9996, 59.4, 60, 83.9, 3_725)]
    assert shown == ["<1 ms", "12 ms", "999 ms", "1.0 s", "59.4 s", "1 min 0 s", "1 min 23 s", "62 min 5 s"]
    assert [duration_text(seconds, whole=True) for seconds in (0.2, 12.6, 83.9)] == ["0 s", "13 s", "1 min 23 s"]
