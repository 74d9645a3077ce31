"""Damaged documents: every reader raises an error of agentflow that names the damage, and terminates."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from thorough import THOROUGH

from agentflow import Agent, Answer, PreActing, ToolUseBlock, on
from agentflow.recording import RunLog, RunLogError, read_lines
from agentflow.recording.reading import LogReader
from agentflow.recording.recorder import Recorder
from agentflow.recording.replay.recorded_errors import rebuild_error
from agentflow.testing import ScriptedModel
from benchmarks.damaged import documents, fuzz, look, mutated

HEAD: dict[str, Any] = {"kind": "log", "form": "agentflow.run-log", "version": 1, "writer": "w", "time": 0}
CALL: dict[str, Any] = {"kind": "call", "call": "c", "run": "r", "session": "s"}
SAYS: dict[str, Any] = {"kind": "message", "ref": "m", "message": {"role": "user", "id": "m", "content": []}}


def lines(*entries: dict[str, Any] | bytes) -> list[bytes]:
    return [one if isinstance(one, bytes) else json.dumps(one).encode() for one in (HEAD, CALL, SAYS, *entries)]


def event(kind: str, seq: int = 1, **fields: Any) -> dict[str, Any]:
    return {"kind": "event", "type": kind, "call": "c", "seq": seq, "fields": fields}


def hook(field: str, after: Any, via: str = "on_event") -> dict[str, Any]:
    changes = [{"field": field, "before": None, "after": after}]
    return {"kind": "hook", "hook": "h", "event": "PostCall", "call": "c", "via": via, "changes": changes}


def test_damaged_documents() -> None:
    """A part of `python -m benchmarks.damaged`: all loaders and all four commands (docs/contributing.md)."""
    findings, came = fuzz(300 if THOROUGH else 150, seed=24)
    assert [str(one) for one in findings] == []
    assert came["log: refused"] > 25
    assert came["log: read"] > 10


def test_what_was_not_damaged_is_read() -> None:
    """Otherwise the trials would test nothing."""
    real = documents()
    logs = [data for name, data in real.items() if name.startswith("log")]
    assert [type(read_lines(data.split(b"\n"))) for data in logs] == [RunLog] * 3
    assert mutated(logs[0], random.Random(1)) == mutated(logs[0], random.Random(1)) != logs[0]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (event("PostReasoning", reasoning_result="n"), "no line before this one holds the message 'n'"),
        (event("PostReasoning"), "PostReasoning needs reasoning_result"),
        (event("Novel"), "event.type: Input should be"),
        (event("PreReasoning", input_messages={"keep": 1}), "keep is 1, but the previous list has fewer messages"),
        (event("CallEnded", usage={"cost": "much"}), "event.fields.usage.cost"),
        ({**event("CallEnded"), "call": "d"}, "no line before this one holds the call 'd'"),
        ({**event("CallEnded"), "time": 1e300}, "event.time: Input should be less than"),
        ({**event("CallEnded"), "seq": -1}, "event.seq: Input should be greater than"),
        ({"kind": "chunks", "call": "c", "seq": 1, "pieces": ["a"], "at": []}, "0 times for 1 pieces"),
        ({"kind": "chunks", "call": "c", "seq": 1, "pieces": [{"tool_uses": 1}], "at": [0]}, "chunks.pieces.0"),
        ({**CALL, "call": "d", "options": {"format": 1}}, "call.options: unknown field 'format'"),
        ({**CALL, "call": "d", "options": {"thinking": 0}}, "call.options: UsageError: ModelOptions(thinking=0)"),
        ({**CALL, "call": "d", "parent": {"call": "d"}}, "would run inside itself"),
        ({**SAYS, "ref": "n", "message": {"role": "robot"}}, "message.message.role"),
        (
            {**SAYS, "ref": "n", "message": {"role": "user", "content": [{"type": "tool_use", "ref": "t"}]}},
            "tool call 't'",
        ),
        ({"kind": "tool_use", "ref": "t", "value": {"id": "t"}}, "tool_use.value.name: Field required"),
        ({"kind": "tool", "ref": "t", "value": {"name": 3}}, "tool.value.name"),
        (hook("final_message", "n"), "no line before this one holds the message 'n'"),
        (hook("input_messages", [1]), "changes of input_messages: the value: Input should be"),
        (
            {
                "kind": "fact",
                "fact": "call_resumed",
                "call": "c",
                "fields": {"decisions": {"t": {"verdict": "Stop", "reason": ""}}},
            },
            "a Stop is not a decision",
        ),
        (
            b'{"kind": "tool", "ref": "t", "value": {"name": "t", "parameters": {"a": 1e999}}}',
            "it contains a number that is too large",
        ),
        (b"[1]", "it is not a JSON object"),
    ],
)
def test_what_is_wrong_with_a_line_is_said_where_it_is_read(wrong: Any, said: str) -> None:
    """The error has the line's number; nothing that has a log fails on the line later."""
    with pytest.raises(RunLogError) as refused:
        read_lines(lines(wrong), "x.jsonl")
    assert str(refused.value).startswith("x.jsonl, line 4, is not a run log entry: ")
    assert said in str(refused.value)


def test_what_a_wrapper_gave_out_may_be_anything() -> None:
    """A value from a hook's wrapper that is no message is recorded unchanged."""
    log = read_lines(lines(hook("message", "no ref", via="around")))
    assert len(log.entries) == 4


@pytest.mark.parametrize("torn", [b'{"kind": "ev', b"\xff\xff", b"\x00\x00", b"[" * 500, b'{"a": NaN}'])
def test_half_a_line_is_what_a_killed_process_leaves(torn: bytes) -> None:
    """This is allowed in the last line, or before another writer's first line; within the lines of one writer it is
    damage.
    """
    end = event("CallEnded")
    assert len(read_lines(lines(torn)).entries) == 3
    assert len(read_lines([*lines(torn), *lines(end)]).entries) == 7
    with pytest.raises(RunLogError, match=r"line 4, is not a run log entry: it is not JSON\."):
        read_lines(lines(torn, end))
    with pytest.raises(RunLogError, match=r"line 4, is not a run log entry: it is not JSON\."):
        read_lines(lines(torn, torn))


@pytest.mark.parametrize(
    ("begun", "ended", "said"),
    [
        ({"kind": "request", "n": 1, "call": "c"}, {"kind": "answered", "n": 1, "call": "c"}, "request 1"),
        (
            {"kind": "started", "n": 2, "call": "c", "tool_use": "t"},
            {"kind": "finished", "n": 2, "call": "c"},
            "tool call 2",
        ),
    ],
)
def test_a_log_that_has_lost_a_line_is_refused(begun: Any, ended: Any, said: str) -> None:
    """A call that has ended has waited for all its work; a log that breaks off has not."""
    use = {"kind": "tool_use", "ref": "t", "value": {"id": "t", "name": "look"}}
    read_lines(lines(use, begun, ended, event("CallEnded")))
    read_lines(lines(use, begun))
    with pytest.raises(RunLogError, match=f"is damaged: the line with the end of {said} of call 'c' is missing"):
        read_lines(lines(use, begun, event("CallEnded")))


def test_a_log_is_read_while_it_grows() -> None:
    """Each line is checked once, against those before it."""
    reader = LogReader("x")
    taken = [reader.take(line) for line in lines(event("CallEnded", outcome="completed"), b"")]
    assert [None if one is None else one.kind for one in taken] == ["log", "call", "message", "event", None]
    assert reader.end() is reader.log
    with pytest.raises(RunLogError, match="line 6"):
        reader.take(b'{"kind": "event"}')


@pytest.mark.parametrize(
    "words",
    [
        {"type": "ExceptionGroup", "module": "builtins"},
        {"type": "No\0Name", "module": "nowhere"},
        {"type": "ModuleType", "module": "types"},
        {"type": "OSError", "module": "builtins", "attributes": {"__class__": 1, "errno": 5, "args": 3}},
        {"type": "UnicodeDecodeError", "module": "builtins", "message": "x"},
    ],
    ids=lambda words: words["type"],
)
def test_any_recorded_exception_can_be_raised(words: Any) -> None:
    """If its class takes more than a text, or is no exception, it becomes a plain one with the same text."""
    made = rebuild_error(words)
    assert isinstance(made, Exception)
    assert str(made) == words.get("message", "")


async def test_data_that_looks_like_a_reference_is_data() -> None:
    """An object in the form of a reference, answered by a hook, is recorded unchanged."""
    recorder = Recorder()
    answers = on(PreActing)(lambda event: Answer({"message": "no ref"}))
    script = [ToolUseBlock("t", "look", {"n": 1}), "Done."]
    await Agent("a", ScriptedModel(script), tools=[look], hooks=[answers, recorder]).call("Hi")
    (decided,) = [entry.decision for entry in recorder.log.events() if entry.type == "PreActing"]
    assert decided is not None
    assert recorder.log.carried(decided["verdict"]["value"]) == {"message": "no ref"}
