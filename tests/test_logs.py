"""The library's log: silent until enabled, bound to its run, and forwarded to the standard `logging` on request."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from loguru import logger

from agentflow import Agent, CallEnded, ToolUseBlock, on
from agentflow._support.logs import ids_of
from agentflow.testing import ScriptedModel

ROOT = Path(__file__).parent.parent

PROGRAM = """
import asyncio, logging, sys
from loguru import logger
import agentflow
from agentflow import Agent, CallEnded, MessagesAdded, ToolUseBlock, on, tool
from agentflow._support.logs import reset_to_default
from agentflow.plugins import EventLog
from agentflow.testing import ScriptedModel

logging.getLogger("asyncio").setLevel("INFO")


@on(CallEnded)
def broken(event):
    raise RuntimeError("by hand")


def ask(*hooks, session=None):
    asyncio.run(Agent("ada", ScriptedModel(["Hello."]), hooks=[broken, *hooks]).call("Hi", session=session).resolve())


def known():
    logger.disable("agentflow.hooks.skipped")
    ask()


"""


def said(program: str, **environment: str) -> list[str]:
    """Return the lines that a program writes to standard error."""
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", PROGRAM + program],
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUTF8": "1", **environment},
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=60,
        check=False,
    )
    assert (ran.returncode, ran.stdout) == (0, ""), ran.stderr
    return ran.stderr.splitlines()


SKIPPED = "hook broken (priority 100) failed on CallEnded and was skipped: RuntimeError: by hand"


def test_it_is_silent_until_it_is_enabled() -> None:
    """The library writes nothing to standard error until its log is enabled."""
    assert said("known(); ask()") == []
    (line,) = said("known(); logger.enable('agentflow'); ask()")
    assert line.endswith(SKIPPED)
    assert said("logger.enable('agentflow'); logger.disable('agentflow'); ask()") == []


def test_a_bug_in_a_hook_is_seen_without_that() -> None:
    """A skipped hook is reported, once per place, since the run continues without it."""
    lines = said("ask(); ask()")
    assert lines[0].endswith("was skipped; it is logged only once, unless logger.enable('agentflow') is called.")
    assert [line for line in lines if "RuntimeError: by hand" in line] == ["RuntimeError: by hand"]
    again = said("ask(); logger.enable('agentflow'); ask()")
    assert (again[0].endswith("is called."), again[-1].endswith(SKIPPED)) == (True, True)
    assert said("logger.disable('agentflow.hooks.skipped'); ask()") == []


def test_a_bug_in_a_tool_is_seen_without_that() -> None:
    """A model reads of it, and no person would; ending `log_to_std` brings that back."""
    bug = """
@tool
async def buggy() -> str:
    raise KeyError("by hand")

def fail():
    asyncio.run(Agent("ada", ScriptedModel([ToolUseBlock("t", "buggy"), "ok"]), tools=[buggy]).call("Hi").resolve())
"""
    lines = said(f"{bug}fail(); fail()")
    assert lines[0].endswith("this failure is logged only once.")
    assert [line for line in lines if "KeyError: 'by hand'" in line] == ["KeyError: 'by hand'"]
    assert said(f"{bug}logger.disable('agentflow'); fail()") == []
    assert (
        said(f"{bug}agentflow.log_to_std()(); known(); logger.add(sys.stderr); fail(); ask()")[-1]
        == "KeyError: 'by hand'"
    )


def test_an_event_log_is_heard_without_that() -> None:
    """An attached `EventLog` writes its lines; disabling the library's log disables it too."""
    (line,) = said("known(); ask(EventLog(only=[CallEnded]))")
    assert "ada#1 CallEnded outcome=completed" in line
    assert said("logger.disable('agentflow'); ask(EventLog())") == []


def test_the_programs_own_log_is_untouched() -> None:
    """Loguru's handler writes the same as before, with agentflow's log enabled, forwarded or neither."""
    for first in ("", "logger.enable('agentflow')", "agentflow.log_to_std()"):
        (line,) = said(f"{first}\nlogger.info('mine')")
        assert line.endswith("mine")


def test_standard_logging_gets_it_by_module_with_the_ids() -> None:
    """Names are those of modules, levels and handlers are the program's, ids are attributes; nothing is said twice."""
    lines = said(
        """
logging.basicConfig(format="%(levelname)s %(name)s [%(session_id)s|%(source)s|%(run_id).4s] %(message)s", level="INFO")
known()
agentflow.log_to_std()
ask(session="s1")
logging.getLogger("agentflow.loop").setLevel("ERROR")
ask(session="s2")
"""
    )
    assert lines == [f"WARNING agentflow.loop.emitting [s1||run_] {SKIPPED}"]


def test_the_lines_of_an_event_log_are_forwarded_too() -> None:
    """With levels as the log has them, SUCCESS and TRACE by name."""
    lines = said(
        """
logging.basicConfig(format="%(levelname)s %(name)s %(event)s %(message)s", level=1)
agentflow.log_to_std("TRACE")
ask(EventLog(only=[CallEnded], levels={CallEnded: "SUCCESS"}))
"""
    )
    assert any(line.startswith("SUCCESS agentflow.plugins.logging CallEnded ada#1 CallEnded") for line in lines)
    assert any(line.startswith("TRACE agentflow.loop.emitting") or "by hand" in line for line in lines)


def test_tracebacks_come_with_trace_as_standard_logging_prints_them() -> None:
    """The exception is the record's, so formatters, and services behind them, see it."""
    lines = said(
        """
logging.basicConfig(format="%(levelname)s %(message)s", level=1)
known()
agentflow.log_to_std("TRACE")
ask()
"""
    )
    assert lines[0] == f"WARNING {SKIPPED}"
    assert lines[1].startswith("TRACE hook broken")
    assert lines[2] == "Traceback (most recent call last):"
    assert lines[-2:] == ["RuntimeError: by hand", "raised by hook broken (priority 100) on CallEnded"]


def test_forwarding_twice_is_forwarding_once_and_it_can_be_ended() -> None:
    """The second one replaces the first; the function that it returns makes the log silent again."""
    lines = said(
        """
logging.basicConfig(format="%(message)s", level=1)
known()
first = agentflow.log_to_std()
stop = agentflow.log_to_std("INFO")
first()
ask()
stop()
stop()
ask()
"""
    )
    assert lines == [SKIPPED]


def test_sinks_of_a_programs_own_stay() -> None:
    """If the program has configured loguru, its configuration is unchanged."""
    lines = said(
        """
logger.remove()
logger.add(sys.stderr, format="loguru {extra[session_id]} {message}")
logging.basicConfig(format="std %(message)s", level=1)
known()
agentflow.log_to_std()
ask(session="s")
"""
    )
    assert sorted(lines) == [f"loguru s {SKIPPED}", f"std {SKIPPED}"]


def test_a_level_that_there_is_not() -> None:
    """It is refused when it is given, and nothing is enabled."""
    lines = said(
        """
try:
    agentflow.log_to_std("LOUD")
except ValueError as error:
    print(error, file=sys.stderr)
known()
reset_to_default()
ask()
"""
    )
    assert lines == ["Level 'LOUD' does not exist"]


# ---- what records are bound to


@pytest.fixture
def records() -> Iterator[list[Any]]:
    """Return the logged records."""
    found: list[Any] = []
    sink = logger.add(lambda message: found.append(message.record), level="WARNING", format="{extra[run_id]} {message}")
    yield found
    logger.remove(sink)


async def test_a_record_knows_its_run(records: list[Any]) -> None:
    """Run, call, session and source, in sub-agents too."""

    @on(CallEnded, scope="tree")
    def broken(event: CallEnded) -> None:
        seen.append(event)
        raise RuntimeError("by hand")

    seen: list[CallEnded] = []
    below = Agent("below", ScriptedModel(["Found."]), description="Finds.")
    script = [ToolUseBlock("t1", "below", {"message": "find"}), "Done."]
    top = Agent("top", ScriptedModel(script), tools=[below], hooks=[broken])
    await top.call("Hi", session="s1")
    assert [record["extra"] for record in records] == [ids_of(event) for event in seen]
    assert [event.source for event in seen] == ["below", ""]
    assert records[1]["extra"]["session_id"] == "s1"


async def test_a_record_of_no_run_has_the_names_all_the_same(records: list[Any]) -> None:
    """So that a format may name them."""
    from agentflow._support.logs import logger as ours

    ours.warning("nobody's")
    assert records[0]["extra"] == {"run_id": "", "call_id": "", "session_id": "", "source": ""}
