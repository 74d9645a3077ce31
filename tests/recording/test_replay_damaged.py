"""A log that has lost a line is refused, or diverges where that shows; nothing waits indefinitely."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from recorded_programs import PROGRAMS
from thorough import THOROUGH

from agentflow.errors import AgentFlowError, StoreError
from agentflow.recording import read_lines
from agentflow.recording.recorder import Recorder
from agentflow.recording.recorder.writer import as_text
from agentflow.recording.replay import Replay
from agentflow.testing import run_virtual

NAMES = ("sub-agents in parallel", "a handoff")


@cache
def lines_of(name: str) -> tuple[dict[str, Any], ...]:
    """Return the lines that a recorder writes of a program."""
    with TemporaryDirectory() as folder:
        recorder = Recorder(path := Path(folder, "run.jsonl"))
        run_virtual(PROGRAMS[name].record(recorder))
        recorder.close()
        return tuple(json.loads(line) for line in path.read_text("utf-8").splitlines())


def replayed(name: str, lines: Sequence[dict[str, Any]]) -> bool:
    """Whether lines replay as the same run, in virtual time, so that an endless wait fails at once."""
    log = read_lines([as_text(line) for line in lines], "the log")
    return Replay(log).run(PROGRAMS[name].make()).divergence is None


@pytest.mark.parametrize("name", NAMES)
def test_each_line_that_is_missing_is_missed(name: str) -> None:
    """Any line except the last: a log may break off where its process was killed."""
    lines = lines_of(name)
    for n in range(len(lines) - 1):
        with pytest.raises(AgentFlowError):
            replayed(name, [*lines[:n], *lines[n + 1 :]])
    assert replayed(name, lines[:-1])


@pytest.mark.parametrize("name", NAMES)
def test_logs_of_before_had_no_numbers(name: str) -> None:
    """A missing line may be unnoticed there, or a divergence, or refused; the replay ends in any case."""
    lines = [{key: value for key, value in line.items() if key != "number"} for line in lines_of(name)]
    assert replayed(name, lines)
    told = 0
    tried = range(0, len(lines), 1 if THOROUGH else 5)
    for n in tried:
        try:
            told += not replayed(name, [*lines[:n], *lines[n + 1 :]])
        except AgentFlowError:
            told += 1
    assert told > len(tried) / 2


def test_what_is_missing_is_said() -> None:
    """The error has its number in its call."""
    lines = lines_of("a handoff")
    place = next(n for n, line in enumerate(lines) if line["kind"] == "answered")
    with pytest.raises(StoreError, match=f"a line is missing, entry {lines[place]['number']} of call"):
        replayed("a handoff", [*lines[:place], *lines[place + 1 :]])


def test_what_a_recorder_had_no_room_for_is_said() -> None:
    """A writer that could not keep up has left a mark."""
    lines = [*lines_of("a handoff")]
    lines.insert(5, {**lines[0], "lost": 3})
    with pytest.raises(StoreError, match="3 entries are missing, because the recorder could not keep up"):
        replayed("a handoff", lines)


@pytest.mark.ci
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("later", [4e7, 1.6e10])
def test_a_line_of_another_century_holds_nothing_up(name: str, later: float) -> None:
    """A damaged time is waited for in virtual time; the replay ends, whatever it finds."""
    lines = lines_of(name)
    timed = [n for n, line in enumerate(lines) if "time" in line][:: 5 if THOROUGH else 20]
    assert timed
    for n in timed:
        with suppress(AgentFlowError):
            replayed(name, [*lines[:n], {**lines[n], "time": lines[n]["time"] + later}, *lines[n + 1 :]])
