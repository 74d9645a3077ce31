"""`agentflow run` and `agentflow hooks`, as processes."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from typing import Any

import pytest

RULE = re.compile(r"^── (.*?) ?─*$", re.MULTILINE)


def steady(text: str) -> str:
    """Without durations, and with rules of one length."""
    text = re.sub(r"(<1 ms|\d+ ms|\d+\.\d+ s)", "TIME", text)
    return RULE.sub(lambda found: f"── {found[1]}", text)


def test_run_streams_plain_text_into_a_pipe(shop: Any) -> None:
    """Words, tool calls with arguments and results, a rule per round, a summary; no control codes."""
    ran = shop("run", "shop:clerk", "add it")
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "\x1b" not in ran.stdout
    assert steady(ran.stdout) == (
        "── round 1 · scripted\n"
        "  (add it) \n"
        "  → add(a=1, b=2)\n"
        "  ✓ add: 3  TIME\n"
        "── round 2 · scripted\n"
        "  The sum is 3.\n"
        "── completed · 2 rounds · 1 tool call · TIME\n"
    )


def test_quiet_is_the_words_alone(shop: Any) -> None:
    """`--quiet` prints what the model says, and `-` reads the prompt from standard input."""
    ran = shop("run", "shop:shelf.clerk", "-", "--quiet", stdin="from a pipe")
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "You said: from a pipe\n", "")


def test_every_event_has_a_line_with_events(shop: Any) -> None:
    """`--events` prints number and type of every event; chunks of one reply share a line."""
    ran = shop("run", "shop:clerk", "hello", "--events")
    kinds = re.findall(r"^ +\d+  (\w+)", ran.stdout, re.MULTILINE)
    assert kinds == ["PreCall", "PreReasoning", "ReasoningChunk", "PostReasoning", "PostCall", "CallEnded"]


def test_json_is_one_object_per_event(shop: Any) -> None:
    """`--json` prints each event as one JSON object on a line of its own, and nothing else."""
    ran = shop("run", "shop:clerk", "add it", "--json")
    events = [json.loads(line) for line in ran.stdout.splitlines()]
    assert (ran.returncode, ran.stderr) == (0, "")
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    assert events[0]["type"] == "PreCall"
    assert events[-1]["type"] == "CallEnded"
    assert events[-1]["outcome"] == "completed"
    words = [e["incremental_chunk"].get("text", "") for e in events if e["type"] == "ReasoningChunk"]
    assert "".join(words) == "(add it) The sum is 3."
    (acting,) = [event for event in events if event["type"] == "PreActing"]
    assert acting["tool_use"] == {"type": "tool_use", "id": "t1", "name": "add", "input": {"a": 1, "b": 2}}


def test_a_sub_agents_events_come_on_demand(shop: Any) -> None:
    """`--children` shows whose words they are; without it only the agent's own are shown."""
    assert "from below\n── round 2" not in shop("run", "shop:boss", "go").stdout
    shown = shop("run", "shop:boss", "go", "--children").stdout
    assert "── helper: round 1" in shown
    assert "[helper] from below" in shown
    assert "── completed · 2 rounds · 1 tool call" in shown


def test_what_a_hook_changed_is_said(shop: Any) -> None:
    """Streamed words that a hook replaced are followed by what the history holds."""
    assert "a hook changed the reply: You said: hi, please" in shop("run", "shop:friendly", "hi").stdout


def test_a_hooks_answer_is_named(shop: Any) -> None:
    """A result that a hook gave in the tool's place says whose it is."""
    assert "✓ add (answered by cached): 3\n" in shop("run", "shop:quick", "add").stdout


@pytest.mark.parametrize(
    ("agent", "prompt", "code", "said"),
    [
        ("shop:shut", "hi", 1, "the shop is closed"),
        ("shop:careful", "add", 1, "suspended"),
    ],
)
def test_a_call_that_did_not_complete_is_exit_code_1(shop: Any, agent: str, prompt: str, code: int, said: str) -> None:
    """A denied or suspended call ends with a reply that is shown, and exit code 1."""
    ran = shop("run", agent, prompt)
    assert ran.returncode == code
    assert said in ran.stdout


def test_a_suspended_call_says_what_it_waits_for(shop: Any) -> None:
    """Standard error names the call that waits."""
    assert shop("run", "shop:careful", "add").stderr == (
        "agentflow: clerk waits for add(a=1, b=2); `agentflow chat` asks you for it.\n"
    )


@pytest.mark.parametrize(
    ("arguments", "code", "line"),
    [
        (("run", "shop", "hi"), 2, "'shop' does not name an agent. Use module:name, such as shop.agents:assistant"),
        (("run", "./shop.py:clerk", "hi"), 2, "'./shop.py:clerk' does not name an agent."),
        (("run", "shopp:clerk", "hi"), 2, "There is no module 'shopp' (needed for 'shopp:clerk')"),
        (("run", "shop.below:clerk", "hi"), 2, "There is no module 'shop.below'"),
        (("run", "shop:missing", "hi"), 2, "The module 'shop' has no 'missing'. Its agents: clerk, careful, shut"),
        (("run", "json:loads2", "hi"), 2, "The module 'json' has no 'loads2'. Its agents: none."),
        (("run", "shop:number", "hi"), 2, "shop:number is of type int, not an Agent."),
        (("run", "shop:Agent", "hi"), 2, "shop:Agent is the class Agent, not an Agent."),
        (("run", "torn:clerk", "hi"), 2, "The module 'torn' cannot be imported: SyntaxError: '(' was never closed ("),
        (
            ("run", "lacking:clerk", "hi"),
            2,
            "cannot be imported: ModuleNotFoundError: No module named 'no_such_thing_h",
        ),
        (("run", "leaving:clerk", "hi"), 2, "The module 'leaving' cannot be imported: SystemExit: bye ("),
        (("run", "shop:clerk", " "), 2, "The input is empty"),
        (("run", "shop:clerk", "down"), 2, "the provider is down (second line)"),
        (
            ("run", "shop:keyless", "hi"),
            2,
            "There is no API key for openai/gpt-4o-mini: set the environment variable OP",
        ),
        (("run", "shop:faulty", "hi"), 1, "ZeroDivisionError: by hand (raised by hook broken (priority 7) on PreCall)"),
        (("run", "shop:clerk", "hang", "--timeout", "0.05"), 1, "CallTimeoutError: The call on agent 'clerk' did not"),
        (("hooks", "shop:number"), 2, "shop:number is of type int"),
        (("chat", "shopp:clerk"), 2, "There is no module 'shopp'"),
    ],
)
def test_what_goes_wrong_is_one_line(shop: Any, arguments: tuple[str, ...], code: int, line: str) -> None:
    """A failure is one line on standard error that says what would be right, and an exit code."""
    ran = shop(*arguments)
    assert ran.returncode == code
    assert ran.stderr.startswith("agentflow: ")
    assert line in ran.stderr
    assert ran.stderr.count("\n") == 1


def test_bad_options_are_exit_code_2(shop: Any) -> None:
    """What the parser refuses, it explains."""
    ran = shop("run", "shop:clerk")
    assert ran.returncode == 2
    assert "Missing argument 'PROMPT'" in ran.stderr


def test_ctrl_c_interrupts_the_call(shop: Any) -> None:
    """SIGINT ends the call as `agent.interrupt` does, with its last event, and exit code 130."""
    lines: list[str] = []
    with subprocess.Popen(
        shop.command("run", "shop:clerk", "hang", "--json"),
        cwd=shop.folder,
        env=shop.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        for line in process.stdout:
            lines.append(line)
            if '"ReasoningChunk"' in line:  # the only piece that comes
                process.send_signal(signal.SIGINT)
        assert process.stderr.read() == ""
        assert process.wait(timeout=30) == 130
    assert json.loads(lines[-1])["outcome"] == "interrupted"


def test_hooks_is_the_chain_as_a_table(shop: Any) -> None:
    """One row per hook and event, in the order in which they run, with the options that are not as usual."""
    ran = shop("hooks", "shop:shut")
    assert (ran.returncode, ran.stderr) == (0, "")
    assert [line.split() for line in ran.stdout.splitlines()] == [
        ["event", "role", "priority", "hook", "options"],
        ["PreCall", "guard", "100", "closed", "scope=tree", "on_failure=deny", "tags=night"],
        ["PostReasoning", "edit", "20", "RetryEmptyAnswers"],
        ["edit", "21", "RetryTruncatedAnswers"],
    ]


def test_an_agent_without_hooks_says_so(shop: Any) -> None:
    """No empty table."""
    assert shop("hooks", "shop:bare").stdout == "clerk has no hooks.\n"


def test_help_and_version(shop: Any) -> None:
    """`--help` lists the commands and exit codes, `--version` names the package."""
    told = shop("--help").stdout
    assert all(word in told for word in ("demo", "run", "chat", "hooks", "130"))
    assert shop("--version").stdout.startswith("agentflow ")


def test_what_happened_is_shown_before_a_hook_asks(shop: Any) -> None:
    """A hook that writes itself does so after the lines of all earlier events."""
    asks = "from shop import PreActing, agent_with, on\n\n\n@on(PreActing)\ndef asks(event):\n    print('Sure?')\n\n\n"
    (shop.folder / "asking.py").write_text(asks + "clerk = agent_with(asks)\n", "utf-8")
    lines = shop("run", "asking:clerk", "add it", "--json").stdout.splitlines()
    at = lines.index("Sure?")
    assert [json.loads(line)["type"] for line in (lines[at - 1], lines[at + 1])] == ["PreToolRound", "PreActing"]
