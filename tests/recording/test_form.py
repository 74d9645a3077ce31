"""The form of a run log: what real runs write fits its schema, is written once, and is read back unchanged."""

from __future__ import annotations

import asyncio
import json
import pickle
from collections import Counter
from contextlib import suppress
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any, get_args

import jsonschema
import pytest
from clocks import LoopClock

from agentflow import Agent, Deny, Flux, Hook, Msg, PostReasoning, PreActing, PreReasoning, ToolUseBlock, tool
from agentflow.errors import ModelError, StoreError, UsageError
from agentflow.plugins.redaction import Redaction
from agentflow.recording import RunLog, RunLogError, entries, json_schema, load, read_lines
from agentflow.recording.encoding import Encoder
from agentflow.recording.entries import (
    ChunksEntry,
    EventEntry,
    FactEntry,
    HookEntry,
    MessageEntry,
    ReplyEntry,
    RequestEntry,
)
from agentflow.recording.fields import EventFields, FactFields, VerdictData
from agentflow.recording.recorder import Recorder
from agentflow.testing import ScriptedModel, run_virtual
from agentflow.tools import schema_tool
from agentflow.vocabulary.events import EVENT_TYPES, ReasoningChunk
from agentflow.vocabulary.facts import Compacted, Fact, Injected, RoundSuspended, ToolDecided, ToolStarted
from agentflow.vocabulary.messages import DataBlock
from agentflow.vocabulary.saving.codec import fact_from_json, msg_to_dict
from agentflow.vocabulary.specs import ModelOptions
from agentflow.vocabulary.verdicts import AnyVerdict

ROOT = Path(__file__).parent.parent.parent


@tool(type="read")
async def add(a: int, b: int) -> str:
    """Add."""
    return str(a + b)


@tool(type="read")
async def shows() -> Any:
    """Show a picture."""
    return DataBlock("image/png", data="aGk=")


class Guard(Hook):
    guard = True

    def on_event(self, event: Any) -> Any:
        if isinstance(event, PreActing) and event.tool_use.input.get("a", 0) > 5:
            return Deny("too big")
        return event


class Judge(Hook):
    events = (PostReasoning,)

    async def on_event(self, event: Any) -> None:
        await event.context.complete("is it fine?", source="judge", model=ScriptedModel(["yes"]))


class Lays(Hook):
    """Adds a message to each request, retries failing models, and changes replies."""

    def on_event(self, event: Any) -> None:
        if isinstance(event, PreReasoning):
            event.input_messages = [*event.input_messages, Msg.user("Be kind.", id="kind")]

    def around_model(self, event: Any, source: Any) -> Any:
        return source.retry(2)


SCRIPT: list[Any] = [
    ["Let ", "me. ", ModelError("down", retryable=True)],
    [
        "Let ",
        *(ToolUseBlock(f"t{n}", "add", {"a": n, "b": 2}) for n in (1, 9)),
        ToolUseBlock("h", "other", {"message": "hi"}),
    ],
    [ToolUseBlock("t2", "gone", {}), ToolUseBlock.from_json("t3", "add", "{"), ToolUseBlock("t4", "shows", {})],
    ["It ", "is ", "3."],
]


def only(folder: Path) -> Path:
    """Return the only log in a folder."""
    (path,) = folder.glob("*.jsonl")
    return path


async def record(where: Any, **options: Any) -> tuple[Recorder, Agent[Any]]:
    """Record a run with many features."""
    recorder = Recorder(where, **options)
    other = Agent("other", ScriptedModel([["I ", "help."]]))
    hooks = [Guard(), Judge(), Lays(), recorder]
    agent = Agent("a", ScriptedModel(SCRIPT), system="Be brief.", tools=[add, shows, other], hooks=hooks)
    assert (await agent.call("1 + 2? ☂")).text == "It is 3."
    recorder.close()
    return recorder, agent


async def test_what_is_written_fits_the_schema(tmp_path: Path) -> None:
    """Each line of a real log fits the JSON Schema in the documentation, which is that of this code."""
    schema = json.loads((ROOT / "docs" / "run-log.schema.json").read_text("utf-8"))
    assert schema == json_schema(), "docs/run-log.schema.json is out of date: python -m website.schema"
    validator = jsonschema.Draft202012Validator(schema)
    await record(tmp_path / "runs")
    await record(tmp_path / "quiet", short=0)
    kinds: set[str] = set()
    for name in ("runs", "quiet"):
        for line in only(tmp_path / name).read_text("utf-8").splitlines():
            validator.validate(json.loads(line))
            kinds.add(json.loads(line)["kind"])
    assert kinds == {
        *("log", "call", "message", "tool_use", "tool_result", "tool", "event", "chunks", "hook", "request"),
        *("reply", "answered", "started", "finished", "mark", "fact"),
    }
    with pytest.raises(jsonschema.ValidationError):
        validator.validate({"kind": "event", "type": "PreCall"})


async def test_everything_stands_once_and_is_read_back(tmp_path: Path) -> None:
    """Events, messages and facts are read back unchanged; no message is written twice."""
    events: list[Any] = []

    class Watches(Hook):
        observer = True

        def on_event(self, event: Any) -> None:
            events.append((type(event).__name__, event.seq, event.iteration))

    recorder = Recorder(tmp_path / "runs")
    agent = Agent("a", ScriptedModel(SCRIPT[1:]), tools=[add, shows], hooks=[Watches(), recorder])
    reply = await agent.call("1 + 2?")
    recorder.close()
    path = only(tmp_path / "runs")
    log = load(path)
    assert path.stem == reply.run_id
    assert log.run_ids == (reply.run_id,)

    written = [
        (entry.type, entry.seq, entry.iteration)
        if isinstance(entry, EventEntry)
        else [("ReasoningChunk", entry.seq + n, entry.iteration) for n in range(len(entry.pieces))]
        for entry in log.entries
        if isinstance(entry, EventEntry | ChunksEntry)
    ]
    assert sorted(_flat(written)) == sorted(events)
    assert {name for name, _, _ in events} <= {kind.__name__ for kind in EVENT_TYPES}
    assert ReasoningChunk.__name__ in {name for name, _, _ in events}

    history = list(agent.session().messages)
    by_id = {msg.id: msg for msg in map(log.message, log.message_refs())}
    assert [by_id[msg.id] for msg in history] == history
    assert max(Counter(entry.message["id"] for entry in log.entries if isinstance(entry, MessageEntry)).values()) == 1
    requests = [entry for entry in log.events() if entry.type == "PreReasoning"]
    assert [log.message(ref) for ref in log.messages(requests[-1])] == history[:-1]
    facts = [entry.fact for entry in log.entries if isinstance(entry, FactEntry)]
    assert facts[0] == "call_opened"
    assert facts[-1] == "call_closed"
    assert fact_from_json  # facts are in the codec's words
    assert msg_to_dict(history[0])["id"] in by_id


def _flat(values: list[Any]) -> list[Any]:
    return [one for value in values for one in (value if isinstance(value, list) else [value])]


async def test_what_was_laid_over_a_request_is_told(tmp_path: Path) -> None:
    """A request is recorded by what it shares with the one before it; a failed attempt is listed before the next one."""
    recorder, _ = await record(tmp_path / "runs")
    log = load(only(tmp_path / "runs"))
    requests = [
        entry for entry in log.entries if isinstance(entry, RequestEntry) and not entry.side and entry.messages is None
    ]
    top = next(iter(log.calls))
    own = [entry for entry in requests if entry.call == top]
    assert [entry.n for entry in own][:2] == [1, 2]
    ends = {entry.n: (entry.end, entry.error) for entry in log.entries if entry.kind == "answered"}
    assert ends[1][0] == "failed"
    assert ends[1][1] is not None
    assert ends[1][1]["type"] == "ModelError"
    edits = [entry for entry in log.entries if isinstance(entry, HookEntry) and entry.hook == "Lays"]
    first = edits[0]
    assert [log.message(ref).text for ref in log.messages(first, "before")] == ["Be brief.", "1 + 2? ☂"]
    assert [log.message(ref).text for ref in log.messages(first, "after")] == ["Be brief.", "1 + 2? ☂", "Be kind."]
    assert recorder.log.run_ids == log.run_ids


def test_a_late_request_of_an_earlier_round_does_not_change_later_lists() -> None:
    """Each list is a difference from the one before it in the log, whatever else was requested in between."""

    class Rereads(Hook):
        earlier: Any = None

        def around(self, event: Any, source: Any) -> Any:
            if not isinstance(event, PreReasoning):
                return source
            earlier, self.earlier = self.earlier, source
            return source if earlier is None else Flux(lambda: read(earlier, source))

    async def read(earlier: Any, source: Any) -> Any:
        with suppress(UsageError):  # its round is finished
            async for _ in earlier:
                pass
        async for chunk in source:
            yield chunk

    recorder = Recorder()
    script = [ToolUseBlock(f"t{n}", "add", {"a": n, "b": 1}) for n in range(3)]
    agent = Agent("a", ScriptedModel([*script, "Done."]), tools=[add], hooks=[Rereads(), recorder])
    run_virtual(agent.call("1 + 2?"))
    log = recorder.log
    assert Counter(entry.iteration for entry in log.entries if isinstance(entry, RequestEntry)) == {
        1: 2,
        2: 2,
        3: 2,
        4: 1,
    }
    texts = [["1 + 2?", *["", "1", "", "2", "", "3"][: 2 * n]] for n in range(4)]
    lists = [log.messages(entry) for entry in log.events() if entry.type == "PreReasoning"]
    assert [[log.message(ref).text for ref in refs] for refs in lists] == texts


async def test_sub_agents_stand_in_the_log_of_who_called_them(tmp_path: Path) -> None:
    """One file for a top run; a sub-agent's call names the call and the tool call that started it."""
    await record(tmp_path / "runs")
    path = only(tmp_path / "runs")
    log = load(path)
    top, inner = log.calls.values()
    assert (top.source, top.parent) == ("", None)
    assert inner.source == "other"
    assert inner.parent is not None
    assert (inner.parent.call, inner.parent.tool_use) == (top.call, "h")
    assert log.root_of(inner.call) is top


@pytest.mark.parametrize("keep", [1.0, 0.97, 0.5])
async def test_a_torn_line_is_read_over(tmp_path: Path, keep: float) -> None:
    """However much of the end a crash has cut off, complete lines are read; the next writer loses no line by it."""
    await record(tmp_path / "runs.jsonl")
    path = tmp_path / "runs.jsonl"
    data = path.read_bytes()
    cut = data[: int(len(data) * keep) - 5]
    path.write_bytes(cut)
    whole = cut.count(b"\n") + (data[len(cut) : len(cut) + 1] == b"\n")  # a line may lack its end alone
    assert len(load(path).entries) == whole
    await record(path)
    assert len(load(path).run_ids) == 2


def test_what_is_no_log_is_refused(tmp_path: Path) -> None:
    """Each refusal names the problem and the remedy."""
    with pytest.raises(RunLogError, match="No such file"):
        load(tmp_path / "none.jsonl")
    for text, said in (
        ("", "is not a run log"),
        ('{"a": 1}', "is not a run log"),
        ("[1]", "not a JSON object"),
        ('{"kind":"log","form":"agentflow.run-log","version":9,"writer":"w","time":0}', "Upgrade"),
        ('{"kind":"log","form":"agentflow.run-log","version":1,"writer":"w","time":0}\n{"kind":"novel"}', "line 2"),
        ('{"kind":"log","form":"agentflow.run-log","version":1,"writer":"w","time":0}\n{"kind":"event"}', "line 2"),
    ):
        with pytest.raises(RunLogError, match=said):
            read_lines(text.splitlines())
    log = read_lines(['{"kind":"log","form":"agentflow.run-log","version":1,"writer":"w","time":0,"new":1}'])
    assert isinstance(log, RunLog)
    with pytest.raises(StoreError, match="does not contain the message"):
        log.message("m")


def test_how_long_a_run_waits_for_its_reader_is_recorded() -> None:
    """They are recorded after each chunk, in milliseconds; zeros at the end are left out."""
    recorder = Recorder()
    agent = Agent("a", ScriptedModel([["a", "b", "c", "d"]]), hooks=[recorder], clock=LoopClock())

    async def main() -> None:
        async with agent.stream("go", buffer=0) as events:
            async for event in events:
                if isinstance(event, ReasoningChunk):
                    await asyncio.sleep({"b": 2.0, "c": 0.25}.get(event.incremental_chunk.text, 0.0))

    run_virtual(main())
    batches = [entry for entry in recorder.log.entries if isinstance(entry, ChunksEntry)]
    waits = {
        str(piece): wait
        for entry in batches
        for piece, wait in zip(
            entry.pieces, [*entry.paused, *[0.0] * (len(entry.pieces) - len(entry.paused))], strict=True
        )
    }
    assert {piece: waits[piece] for piece in "abc"} == {"a": 0.0, "b": 2000.0, "c": 250.0}


async def test_secrets_are_taken_out_by_the_rules_of_a_redaction(tmp_path: Path) -> None:
    """With `redaction=` no secret is in the log, even if it is split over chunks or comes from a hook's change."""
    secret = "ada@example.com"
    recorder = Recorder(tmp_path / "runs", redaction=Redaction())
    model = ScriptedModel(
        [["Write to ada@exa", "mple.com", ToolUseBlock("t1", "add", {"a": 1, "b": 2, "c": secret})], "Bye."]
    )
    agent = Agent("a", model, system=f"Ask {secret}.", tools=[add], hooks=[recorder, Redaction()])
    await agent.call(f"I am {secret}")
    recorder.close()
    text = only(tmp_path / "runs").read_text("utf-8")
    assert secret not in text
    assert "example.com" not in text
    assert "<email>" in text


async def test_secrets_are_taken_out_of_options_and_descriptions(tmp_path: Path) -> None:
    """Such as a key in a header, or an address in the description of a tool or an agent."""

    async def answers(arguments: Any, context: Any) -> str:
        return ""

    recorder = Recorder(tmp_path / "runs", redaction=Redaction())
    ask = schema_tool(
        "ask", "Ask ada@example.com.", {"type": "object", "description": "As bob@example.com said"}, answers
    )
    options = ModelOptions(temperature=0.5, extra={"extra_headers": {"x-user": "eve@example.com"}, "n": 1})
    agent = Agent("a", ScriptedModel(["Bye."]), tools=[ask], description="Of mia@example.com.", hooks=[recorder])
    await agent.call("Go", options=options)
    recorder.close()
    text = only(tmp_path / "runs").read_text("utf-8")
    assert "example.com" not in text
    assert text.count('"options":{"temperature":0.5,"extra":{"extra_headers":{"x-user":"<email>"},"n":1}}') == 2
    assert all(one in text for one in ("Ask <email>.", "As <email> said", "Of <email>."))


async def test_what_is_a_secret_in_its_session_is_one_in_every_chunk(tmp_path: Path) -> None:
    """A text that only its context made a secret is removed from streamed texts too, also if they are written at the
    end.
    """
    redaction = Redaction()
    recorder = Recorder(tmp_path / "runs.jsonl", redaction=redaction, interval=1000.0)
    model = ScriptedModel([["You said hun", "ter22, ", "I think."]])
    await Agent("a", model, hooks=[recorder, redaction]).call("password: hunter22")
    recorder.close()
    log = load(tmp_path / "runs.jsonl")
    batches = [entry.pieces for entry in log.entries if isinstance(entry, ChunksEntry | ReplyEntry)]
    said = [piece if isinstance(piece, str) else piece.get("text", "") for pieces in batches for piece in pieces]
    assert "hunter22" not in "".join(said)
    assert "hunter22" not in (tmp_path / "runs.jsonl").read_text("utf-8")


async def test_secrets_are_taken_out_of_what_an_exception_carries(tmp_path: Path) -> None:
    """The text of an exception and its attributes are redacted alike; a number stays."""

    class RefusedError(Exception):
        def __init__(self, text: str) -> None:
            super().__init__(text)
            self.message, self.code = text, 7

    @tool
    async def refuses() -> str:
        raise RefusedError("ada@example.com is unknown")

    recorder = Recorder(tmp_path / "runs", redaction=Redaction())
    model = ScriptedModel([ToolUseBlock("t1", "refuses"), "Bye."])
    await Agent("a", model, tools=[refuses], hooks=[recorder, Redaction()]).call("Go")
    recorder.close()
    text = only(tmp_path / "runs").read_text("utf-8")
    assert "example.com" not in text
    assert '"attributes":{"message":"<email> is unknown","code":7}' in text


async def test_without_content_no_word_is_kept(tmp_path: Path) -> None:
    """`short=0` records who did what and when, and no text."""
    await record(tmp_path / "runs", short=0)
    text = only(tmp_path / "runs").read_text("utf-8")
    assert not [
        word for word in ("Be brief", "☂", "Let ", "It is", "too big", "Be kind", "is it fine", "help.") if word in text
    ]
    assert '"Deny"' in text


def test_no_field_is_lost_in_reading() -> None:
    """Every recorded field of an event, a fact or a verdict is known to the reader of a log; unknown ones are left out."""
    streamed = {"ActingChunk", "ReasoningChunk"}  # recorded as pieces, not as fields
    for kind in EVENT_TYPES:
        if kind.__name__ not in streamed:
            own = {
                name
                for base in kind.__mro__
                if base.__module__ == kind.__module__
                for name, said in base.__annotations__.items()
                if "ClassVar" not in str(said)
            }
            assert own <= EventFields.__annotations__.keys(), kind
    for fact in get_args(Fact):
        assert set(fact._fields) <= FactFields.__annotations__.keys(), fact
    for verdict in get_args(AnyVerdict):
        assert set(verdict.__match_args__) <= VerdictData.__annotations__.keys(), verdict


def test_what_a_line_leaves_out() -> None:
    """A field that a line lacks is empty, with these exceptions, on which existing logs rely. No entry can be
    changed.
    """
    found: dict[str, object] = {}
    kind: Any
    for kind in (*get_args(entries.Entry), entries.ParentCall, entries.HookChange, entries.Injection):
        assert kind.__dataclass_params__.frozen
        for one in fields(kind):
            if one.default not in (MISSING, None, 0, "", ()) and one.name != "kind":
                found[f"{kind.__name__}.{one.name}"] = one.default
    assert found == {
        "LogEntry.form": "agentflow.run-log",
        "LogEntry.version": 1,
        "LogEntry.content": True,
        "LogEntry.origin": "recorder",
        "CallEntry.streamed": True,
        "ChunksEntry.attempt": 1,
        "HookEntry.priority": 100,
        "HookEntry.via": "on_event",
        "AnsweredEntry.end": "done",
        "AnsweredEntry.waited": True,
        "FinishedEntry.end": "done",
        "InterruptEntry.how": "interrupt",
        "Injection.keep": True,
    }


FACTS: list[Fact] = [
    Injected("run_1", (Msg.user("psst", id="i"),), None, None, "call_1", 2),
    Compacted("run_1", 1, (), "call_1", 3),
    ToolStarted("run_1", "t", 2, "call_1"),
    ToolDecided("run_1", "t", ToolUseBlock("t", "n", {}), None, "call_1"),
    RoundSuspended("run_1", (), "call_1"),
]


@pytest.mark.parametrize("fact", FACTS, ids=lambda fact: type(fact).__name__)
def test_a_fact_is_written_but_for_its_defaults(fact: Fact) -> None:
    """All fields that differ from their defaults are written, also those after one that does not."""
    written = Encoder().fact(fact)["fields"]
    defaults = fact._field_defaults
    assert set(written) == {
        name for name, value in fact._asdict().items() if name not in defaults or defaults[name] != value
    }


def test_an_encoder_that_works_for_weeks_keeps_a_bounded_number_of_refs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each object has a ref of its own, also one that is written again, and one whose id looks like another's ref."""
    monkeypatch.setattr("agentflow.recording.encoding._REMEMBERED", 20)
    encoder = Encoder()
    refs: list[str] = []
    sizes: list[int] = []
    for n in range(600):
        for msg_id in (f"m{n % 100}", "m7#22", f"m7#{n}"):
            msg = Msg.user(f"{n} {len(refs)}", id=msg_id)
            refs.append(encoder.message(msg))
            assert encoder.message(msg) == refs[-1]
        encoder.out.clear()
        sizes.append(len(pickle.dumps(encoder)))
    assert refs[:2] == ["m0", "m7#22"]
    assert len(set(refs)) == len(refs)
    assert sizes[-1] < 1.2 * sizes[99]
