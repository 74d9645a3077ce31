"""`Recorder`: every change is recorded, and the changes that shaped a message can be listed."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from dataclasses import MISSING, fields
from pathlib import Path
from random import Random
from typing import Any

import pytest
from loguru import logger
from toolbox import add

from agentflow import (
    Agent,
    Answer,
    Deny,
    Hook,
    ModelChunk,
    ModelOptions,
    Mono,
    Msg,
    PostActing,
    PostCall,
    PostReasoning,
    PreActing,
    PreCall,
    PreReasoning,
    PreToolRound,
    Recover,
    RunContext,
    Stop,
    ToolUseBlock,
    Veto,
    on,
    tool,
)
from agentflow.errors import ModelError, StoreError, UsageError
from agentflow.hooks import HookSet
from agentflow.loop.session import Session
from agentflow.recording import RunLogError, read_lines
from agentflow.recording.entries import AnsweredEntry, LogEntry
from agentflow.recording.recorder import Recorder
from agentflow.recording.recorder.records import (
    AddedRecord,
    Edit,
    HookRecord,
    InjectedRecord,
    MessageRecord,
    RunRecord,
    show,
)
from agentflow.recording.replay import Replay
from agentflow.testing import ScriptedModel
from agentflow.testing.hook_checks.isolation import run_watched
from agentflow.testing.hook_checks.neighbours import neighbours
from agentflow.testing.hook_checks.playing import PATHS, play
from agentflow.testing.hook_checks.scenes import SCENES
from agentflow.testing.hook_checks.watchdog import Watchdog
from agentflow.tools.tool_context import ToolEmitter
from agentflow.vocabulary.events import EVENT_TYPES, ActingChunk, CallEnded, Error, Event
from agentflow.vocabulary.messages import with_metadata
from agentflow.vocabulary.ports.model import ModelRequest
from agentflow.vocabulary.specs import ToolSpec

pytestmark = pytest.mark.usefixtures("quiet")


class Still:
    """A clock that advances by a millisecond each time a duration is read."""

    def __init__(self) -> None:
        self.ticks = 0

    def now(self) -> float:
        return 1000.0

    def monotonic(self) -> float:
        self.ticks += 1
        return self.ticks / 1000

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(0)


def numbered() -> Callable[[str], str]:
    """Predictable ids."""
    counts: Counter[str] = Counter()

    def new_id(prefix: str) -> str:
        counts[prefix] += 1
        return f"{prefix}{counts[prefix]}"

    return new_id


SCRIPT: list[Any] = [ToolUseBlock("t1", "add", {"a": 1, "b": 2}), ["It ", "is 3."]]


def agent_with(*hooks: Hook, script: Any = SCRIPT, **options: Any) -> Agent:
    """An agent with a tool, and nothing that varies."""
    model = ScriptedModel(script)
    return Agent(
        "a", model, tools=[add], hooks=list(hooks), default_hooks=(), clock=Still(), new_id=numbered(), **options
    )


class EditsAll(Hook):
    """Changes each writable field of each event, in every form of answer."""

    def on_event(self, event: Any) -> Any:
        match event:
            case PreCall():
                event.input_messages = (*event.input_messages, Msg.user("Be nice.", id="nice"))
            case PreReasoning(iteration=1):
                changes = {"model": "other", "tools": (), "options": ModelOptions(temperature=0.0)}
                return event.replace(input_messages=[Msg.user("Now.", id="now")], **changes)
            case PostReasoning(iteration=2):
                return Mono.just(event.replace(reasoning_result=Msg.assistant("Three.", id="three")))
            case PreActing():
                event.tool_use = event.tool_use.replace(input={"a": 2, "b": 2})
            case PostActing():
                return self._later(event)
            case PostCall():
                event.final_message = Msg.assistant("Three!", id="three!")
            case _:
                pass
        return event

    async def _later(self, event: PostActing) -> PostActing:
        await asyncio.sleep(0)
        result = event.tool_result
        return event.replace(tool_result=type(result)(result.tool_use_id, result.name, "four", result.state))


@on(PreReasoning, priority=900)
def calls_add(event: PreReasoning) -> Answer | None:
    """Answers instead of the model that `EditsAll` names, which does not exist."""
    return Answer(Msg.assistant([SCRIPT[0]])) if event.iteration == 1 else None


async def test_each_writable_field_of_each_event_is_recorded() -> None:
    """Event, hook, field, before and after: one record for each hook call that changed something."""
    recorder = Recorder()
    agent = agent_with(EditsAll(), calls_add, recorder, script=SCRIPT[1:], system="Be brief.")
    await agent.call("1 + 2?")
    assert [str(record) for record in recorder.records if isinstance(record, HookRecord)] == [
        "EditsAll on PreCall: changed input_messages: '1 + 2?' became '1 + 2? | Be nice.'",
        (
            "EditsAll on PreReasoning: changed input_messages: 'Be brief. | 1 + 2? | Be nice.' became 'Now.'; "
            "changed tools: 'add' became '(none)'; changed model: 'scripted' became 'other'; "
            "changed options: '(none set)' became 'temperature=0.0'"
        ),
        'calls_add on PreReasoning: returned Answer ([add {"a":1,"b":2}])',
        'EditsAll on PreActing: changed tool_use: \'add {"a":1,"b":2}\' became \'add {"a":2,"b":2}\'',
        "EditsAll on PostActing: changed tool_result: 'success: 4' became 'success: four'",
        "EditsAll on PostReasoning: changed reasoning_result: 'It is 3.' became 'Three.'",
        "EditsAll on PostCall: changed final_message: 'Three.' became 'Three!'",
    ]
    changed = {(r.event, e.field) for r in recorder.records if isinstance(r, HookRecord) for e in r.edits}
    assert changed == {(kind.__name__, name) for kind in EVENT_TYPES for name in kind.writable}


async def test_what_one_hook_adds_and_another_one_takes_away_is_recorded() -> None:
    """A message that only hooks have seen is a record too; a change of metadata alone is a change."""
    recorder = Recorder()

    @on(PreReasoning, priority=1)
    def adds(event: PreReasoning) -> None:
        first, *others = event.input_messages
        event.input_messages = [with_metadata(first, tone="kind"), *others, Msg.user("Psst.", id="added")]

    @on(PreReasoning, priority=2)
    def takes(event: PreReasoning) -> None:
        event.input_messages = event.input_messages[:-1]

    await agent_with(adds, takes, recorder, script=["4"]).call(Msg.user("2 + 2?", metadata={"tone": "rude"}))
    found = recorder.records
    assert [(r.id, r.event) for r in found if isinstance(r, MessageRecord) and r.id == "added"] == [
        ("added", "PreReasoning")
    ]
    assert [str(record) for record in found if isinstance(record, HookRecord)] == [
        (
            "adds on PreReasoning: changed input_messages: '2 + 2?' became '2 + 2? | Psst.'; "
            "changed input_messages.metadata: \"tone='rude'\" became \"tone='kind'\""
        ),
        "takes on PreReasoning: changed input_messages: '2 + 2? | Psst.' became '2 + 2?'",
    ]


async def test_a_record_says_where_when_and_how_long() -> None:
    """A whole record, value by value."""
    recorder = Recorder()

    @on(PreActing, priority=7)
    def doubles(event: PreActing) -> None:
        event.tool_use = event.tool_use.replace(input={"a": 2, "b": 2})

    await agent_with(doubles, recorder).call("1 + 2?", session="s")
    before, after = ToolUseBlock("t1", "add", {"a": 1, "b": 2}), ToolUseBlock("t1", "add", {"a": 2, "b": 2})
    (record,) = [record for record in recorder.records if isinstance(record, HookRecord)]
    assert record == HookRecord(
        hook="doubles",
        priority=7,
        event="PreActing",
        edits=(Edit("tool_use", show(before, 80), show(after, 80)),),
        duration_ms=pytest.approx(1.0),
        tool_use_id="t1",
        run_id="run_1",
        call_id="call_1",
        session_id="s",
        iteration=1,
        seq=6,
        time=1000.0,
    )


async def test_verdicts_and_failures_are_recorded() -> None:
    """They are recorded for guards and editing hooks alike; `raise Veto` is a Deny."""
    recorder = Recorder()

    @on(PreActing, guard=True)
    async def judge(event: PreActing) -> Deny:
        return Deny("not that")

    @on(PreToolRound)
    def vetoes(event: PreToolRound) -> None:
        if event.iteration == 2:
            raise Veto("no more rounds")

    @on(PreReasoning, on_failure="skip")
    def fails(event: PreReasoning) -> None:
        event.input_messages = ()
        raise RuntimeError("half done")

    @on(PostReasoning)
    def ends(event: PostReasoning) -> Stop | None:
        return Stop("enough") if event.iteration == 3 else None

    calls = [ToolUseBlock(f"t{n}", "add", {"a": 1, "b": n}) for n in range(2)]
    await agent_with(judge, vetoes, fails, ends, recorder, script=[*calls, "end"]).call("go")
    failed = "fails on PreReasoning: failed with RuntimeError (half done)"
    assert [str(record) for record in recorder.records if isinstance(record, HookRecord)] == [
        failed,
        "judge on PreActing: returned Deny (not that)",
        failed,
        "vetoes on PreToolRound: returned Deny (no more rounds)",
        failed,
        "ends on PostReasoning: returned Stop (enough)",
    ]


async def test_shadows_are_recorded_as_what_would_have_been() -> None:
    """A shadow hook changes nothing, and what it would have done is in the records."""
    recorder = Recorder()

    class Strict(Hook):
        shadow = True

        def on_event(self, event: Any) -> Any:
            if isinstance(event, PostReasoning) and event.iteration == 2:
                event.reasoning_result = Msg.assistant("I cannot say.")
            return Deny("no sums") if isinstance(event, PreActing) else None

    reply = await agent_with(Strict(), recorder).call("1 + 2?")
    assert reply.text == "It is 3."
    assert [str(record) for record in recorder.records if isinstance(record, HookRecord)] == [
        "Strict (shadow) on PreActing: returned Deny (no sums)",
        "Strict (shadow) on PostReasoning: changed reasoning_result: 'It is 3.' became 'I cannot say.'",
    ]
    explained = recorder.explain(reply)
    assert (explained.hooks, [record.event for record in explained.shadows]) == ((), ["PostReasoning"])


class Shouts(Hook):
    """Changes chunks, results and replies in a wrapper."""

    priority = 50

    def around(self, event: Any, source: Any) -> Any:
        if isinstance(event, PreReasoning):
            return source.map(lambda chunk: ModelChunk(chunk.text.upper()) if chunk.text else chunk)
        if isinstance(event, PreActing):
            return source.map(lambda result: type(result)(result.tool_use_id, result.name, "LOUD", result.state))
        return source


class Signs(Hook):
    """Adds a word to the answer."""

    def __init__(self, word: str, priority: int) -> None:
        self.word = word
        self.priority = priority

    @property
    def name(self) -> str:
        return f"Signs {self.word}"

    def on_event(self, event: Any) -> Any:
        if isinstance(event, PostReasoning) and not event.reasoning_result.tool_uses:
            event.reasoning_result = Msg.assistant(f"{event.reasoning_result.text} {self.word}")
        elif isinstance(event, PreReasoning):
            event.input_messages = (*event.input_messages, Msg.user(f"({self.word})"))
        return event


@pytest.mark.parametrize("path", ["call", "stream"])
async def test_explain_tells_of_edits_and_of_chunk_transforms(path: str) -> None:
    """A reply that two hooks edited and whose chunks a third one changed: all three, in order, and the changes of its
    request.
    """
    recorder = Recorder()
    agent = agent_with(Signs("B", 200), Signs("A", 100), Shouts(), recorder)
    if path == "call":
        await agent.call("1 + 2?")
    else:
        async with agent.stream("1 + 2?") as events:
            assert [event async for event in events]
    final = agent.session().messages[-1]
    assert final.text == "IT IS 3. A B"
    explained = recorder.explain(final)
    assert explained.hooks == ("Shouts", "Signs A", "Signs B")
    assert str(explained) == (
        f"{final.id}: shaped by Shouts, Signs A, Signs B\n"
        "  Shouts around PreReasoning: changed reply: 'It is 3.' became 'IT IS 3.'\n"
        "  Signs A on PostReasoning: changed reasoning_result: 'IT IS 3.' became 'IT IS 3. A'\n"
        "  Signs B on PostReasoning: changed reasoning_result: 'IT IS 3. A' became 'IT IS 3. A B'\n"
        "  the request it answers:\n"
        '    Signs A on PreReasoning: changed input_messages: \'1 + 2? | [add {"a":1,"b":2}] | [add: success: LOUD]\' became '
        '\'1 + 2? | [add {"a":1,"b":2}] | [add: success: LOUD] | (A)\'\n'
        "    Signs B on PreReasoning: changed input_messages: "
        '\'1 + 2? | [add {"a":1,"b":2}] | [add: success: LOUD] | (A)\' became '
        '\'1 + 2? | [add {"a":1,"b":2}] | [add: success: LOUD] | (A) | (B)\''
    )
    results = agent.session().messages[2]
    assert [str(record) for record in recorder.explain(results).changes] == [
        "Shouts around PreActing: changed tool_result: 'success: 3' became 'success: LOUD'"
    ]
    assert recorder.explain(agent.session().messages[0].id).changes == ()
    assert str(recorder.explain("msg_unknown")) == "msg_unknown: not in the records"


async def test_explain_tells_of_verdicts_that_stand_for_the_work() -> None:
    """An Answer instead of the model, and a Recover after its failure, made the reply."""

    @on(PreReasoning)
    def answers(event: PreReasoning) -> Answer:
        return Answer("I know that.")

    @on(Error)
    def recovers(event: Error) -> Recover | None:
        return Recover("Sorry.") if event.fatal else None

    recorder = Recorder()
    reply = await agent_with(answers, recorder).call("1 + 2?")
    assert [str(record) for record in recorder.explain(reply).changes] == [
        "answers on PreReasoning: returned Answer (I know that.)"
    ]
    recorder = Recorder()
    reply = await agent_with(recovers, recorder, script=[ModelError("down")]).call("1 + 2?")
    assert [str(record) for record in recorder.explain(reply).changes] == [
        "recovers on Error: returned Recover (Sorry.)"
    ]


async def test_explain_tells_what_became_of_a_tool_call() -> None:
    """A verdict, an edit and a failure each shape the result; a shadow hook only would have."""

    @on(PreActing, tools=["add"])
    def refuses(event: PreActing) -> Deny | None:
        return Deny("not that") if event.tool_use.id == "t2" else None

    @on(PostActing, on_failure="skip")
    def fails(event: PostActing) -> None:
        if event.tool_use.id == "t3":
            raise RuntimeError("broken")

    @on(PostActing, shadow=True)
    def would(event: PostActing) -> None:
        event.tool_result = event.tool_result.replace(content="?")

    recorder = Recorder()
    calls = [ToolUseBlock(f"t{n}", "add", {"a": 1, "b": n}) for n in (1, 2, 3)]
    agent = agent_with(would, fails, refuses, recorder, script=[*calls, "Done."])
    await agent.call("go")
    results = [msg for msg in agent.session().messages if msg.role == "tool"]
    explained = [recorder.explain(msg) for msg in results]
    assert [[str(record) for record in one.changes] for one in explained] == [
        [],
        ["refuses on PreActing: returned Deny (not that)"],
        ["fails on PostActing: failed with RuntimeError (broken)"],
    ]
    assert [[record.tool_use_id for record in one.shadows] for one in explained] == [["t1"], ["t2"], ["t3"]]


@pytest.mark.parametrize("priority", [50, 150, 250])
async def test_explain_follows_a_reply_past_a_shadow(priority: int) -> None:
    """Whether a shadow hook comes before, between or after the edits, all of them are listed."""

    @on(PostReasoning, shadow=True, priority=priority)
    def would(event: PostReasoning) -> None:
        event.reasoning_result = Msg.assistant("No.")

    recorder = Recorder()
    reply = await agent_with(Signs("B", 200), Signs("A", 100), would, recorder, script=["Yes."]).call("go")
    assert reply.text == "Yes. A B"
    assert recorder.explain(reply).hooks == ("Signs A", "Signs B")


async def test_injected_messages_are_known_by_who_injects_them() -> None:
    """No event of its own stores an injected message; the record has the hook, and the source that it named."""
    recorder = Recorder()

    @on(PostActing)
    def reminds(event: PostActing) -> None:
        event.context.inject("Mind the sum.", source="reminder")

    agent = agent_with(reminds, recorder)
    await agent.call("1 + 2?")
    injected = agent.session().messages[3]
    assert injected.text == "Mind the sum."
    explained = recorder.explain(injected)
    assert explained.hooks == ("reminds",)
    assert str(explained) == (
        f"{injected.id}: shaped by reminds\n  injected by reminds on PostActing\n  stored as injected, from reminder"
    )


class Adds(Hook):
    """Injects a message, in one of the ways in which a hook runs."""

    def __init__(self, event: type[Event], way: str, role: str, keep: bool) -> None:
        self.events = (event,)
        self.way = way
        self.keep = keep
        self.guard, self.observer = role == "guard", role == "observer"

    @property
    def name(self) -> str:
        return f"Adds {self.way}"

    def on_event(self, event: Any) -> Any:
        if self.way == "sync":
            event.context.inject("added", keep=self.keep)
            return None
        return self._later(event) if self.way == "async" else None

    async def _later(self, event: Any) -> None:
        await asyncio.sleep(0)
        event.context.inject("added", keep=self.keep)


class Wraps(Hook):
    """Injects a message around a tool, before or after its work."""

    def __init__(self, keep: bool) -> None:
        self.keep = keep

    def around_tool(self, event: PreActing, source: Any) -> Any:
        async def work() -> Any:
            result = await source
            event.context.inject("added", keep=self.keep)
            return result

        return Mono(work)

    def around_model(self, event: PreReasoning, source: Any) -> Any:
        return source.map(lambda chunk: chunk)


@tool(type="read")
async def adds(context: RunContext, emitter: ToolEmitter, keep: bool) -> str:
    """Inject a message."""
    await emitter.emit("now")
    context.inject("added", keep=keep)
    return "done"


def _adding() -> list[tuple[str, Hook | None, bool]]:
    ways: list[tuple[str, Hook | None, bool]] = []
    for keep in (True, False):
        for event in (PreReasoning, ActingChunk, PostActing):
            for role in ("edit", "guard", "observer"):
                ways += [(f"Adds {way}", Adds(event, way, role, keep), keep) for way in ("sync", "async")]
        ways += [("Wraps", Wraps(keep), keep), ("adds", None, keep)]
    return ways


@pytest.mark.parametrize(("by", "hook", "keep"), _adding())
async def test_who_has_injected_a_message_is_known(by: str, hook: Hook | None, keep: bool) -> None:
    """A hook in any role, a wrapper, or a tool; also for a message of one request only. It is replayed once."""
    recorder = Recorder()
    own = [] if hook is None else [hook]
    uses = ToolUseBlock("t1", "adds", {"keep": keep}) if hook is None else ToolUseBlock("t1", "says", {})

    @tool(type="read")
    async def says(emitter: ToolEmitter) -> str:
        await emitter.emit("now")
        return "done"

    def make(*more: Hook) -> Agent[Any]:
        return Agent("a", ScriptedModel([uses, "Done."]), tools=[adds, says], hooks=[*own, *more])

    await make(recorder).call("go")
    injected = [record for record in recorder.records if isinstance(record, InjectedRecord)]
    assert injected
    assert {(record.by, record.keep, bool(record.event)) for record in injected} == {(by, keep, hook is not None)}
    explained = recorder.explain(injected[0].messages[0][0])
    assert explained.known
    assert (by in explained.hooks) == (hook is not None)
    assert ("for the next request only" in str(explained)) == (not keep)
    done = await Replay(recorder.log).arun(make())
    assert done.divergence is None, str(done)


# ---- memory and files


async def test_a_message_is_written_once(tmp_path: Path) -> None:
    """Over many rounds and calls, each message has one record; later it is referred to by id and digest."""
    recorder = Recorder(tmp_path / "log" / "run.jsonl")
    agent = agent_with(Signs("A", 100), recorder, script=[*SCRIPT, "Two.", "Three."])
    for text in ("one", "two", "three"):
        await agent.call(text)
    written = [(r.id, r.digest) for r in recorder.records if isinstance(r, MessageRecord)]
    assert len(written) == len(set(written))
    assert {msg.id for msg in agent.session().messages} <= {one for one, _ in written}


async def test_a_file_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    """The file has what memory has; a line that a crash has truncated is left out; explanations are the same."""
    path = tmp_path / "run.jsonl"
    recorder = Recorder(path)
    reply = await agent_with(Signs("A", 100), Shouts(), recorder).call("1 + 2? ☂")
    assert len(path.read_text("utf-8").splitlines()) == len(recorder.log.entries)  # written when the call has ended
    recorder.close()
    with path.open("a", encoding="utf-8") as file:
        file.write('{"kind": "hook", "ho')
    recording = Recorder.read(path)
    assert recording.records == recorder.records
    assert recording.explain(reply.id) == recorder.explain(reply.id)
    later = Recorder(path)
    await agent_with(later).call("2 + 2?")
    assert Recorder.read(path).records == (*recorder.records, *later.records)
    path.write_text('{"kind": "novel"}\n', "utf-8")
    with pytest.raises(RunLogError, match="is not a run log"):
        Recorder.read(path)


async def test_the_file_grows_while_the_call_runs(tmp_path: Path) -> None:
    """A reader need not wait for the end of a call: a thread writes every `interval` seconds."""
    path = tmp_path / "run.jsonl"
    seen: list[str] = []

    @tool(type="read")
    async def waits() -> str:
        """Wait until the start of this tool call is written."""
        while not (path.exists() and '"started"' in path.read_text("utf-8")):  # noqa: ASYNC110 - another thread writes it
            await asyncio.sleep(0.005)
        seen.extend(json.loads(line)["kind"] for line in path.read_text("utf-8").splitlines())
        return "written"

    recorder = Recorder(path, interval=0.01)
    model = ScriptedModel([ToolUseBlock("t1", "waits"), "Done."])
    async with asyncio.timeout(10):
        await Agent("a", model, tools=[waits], hooks=[recorder]).call("go")
    assert {"message", "started"} <= set(seen)
    assert len(seen) < len(path.read_text("utf-8").splitlines())
    assert Recorder.read(path).records == recorder.records
    assert "agentflow-recorder" not in {thread.name for thread in threading.enumerate()}


async def test_an_idle_recorder_has_no_thread(tmp_path: Path) -> None:
    """Its thread ends while nothing happens, such as in a long tool call. What comes later is written too."""

    @tool(type="read")
    async def waits() -> str:
        """Wait until the recorder has no thread."""
        while "agentflow-recorder" in {thread.name for thread in threading.enumerate()}:  # noqa: ASYNC110 - not a task
            await asyncio.sleep(0.005)
        return "ended"

    recorder = Recorder(tmp_path / "run.jsonl", interval=0.01)
    model = ScriptedModel([ToolUseBlock("t1", "waits"), "Done."])
    async with asyncio.timeout(10):
        await Agent("a", model, tools=[waits], hooks=[recorder]).call("go")
    assert Recorder.read(tmp_path / "run.jsonl").records == recorder.records


KILLED = """
import asyncio, os, signal, sys
from agentflow import Agent, ToolUseBlock, tool
from agentflow.recording.recorder import Recorder
from agentflow.recording.replay import Replay
from agentflow.recording import RunLogError, read_lines
from agentflow.recording.entries import LogEntry
from agentflow.testing import ScriptedModel

@tool(type="read")
async def dies() -> str:
    \"\"\"Kill this process.\"\"\"
    recorder.flush()
    os.kill(os.getpid(), signal.SIGKILL)

recorder = Recorder(sys.argv[1], interval=1000.0)
agent = Agent("a", ScriptedModel([ToolUseBlock("t1", "dies"), "Done."]), tools=[dies], hooks=[recorder])
asyncio.run(agent.call("go").resolve())
"""


def test_a_killed_process_loses_nothing_from_before_the_last_write(tmp_path: Path) -> None:
    """Entries up to the last write are read back after `kill -9`: the input, and the reply that requests the tool."""
    path = tmp_path / "run.jsonl"
    ended = subprocess.run([sys.executable, "-c", KILLED, str(path)], timeout=60, check=False)
    assert ended.returncode == -signal.SIGKILL
    records = [record for record in Recorder.read(path).records if isinstance(record, MessageRecord)]
    assert [(record.role, record.event, record.calls) for record in records] == [
        ("user", "PreCall", ()),
        ("assistant", "PostReasoning", ("t1",)),
    ]


async def test_without_a_file_the_oldest_is_forgotten() -> None:
    """However much is recorded and never read, the waiting entries are bounded, and memory holds the newest records."""
    recorder = Recorder(max_records=9)
    agent = Agent("a", ScriptedModel(lambda request: "Done."), hooks=[recorder])
    for number in range(1_200):
        await agent.call(f"go {number}", session=Session.fresh())
    texts = [r.message["content"][0]["text"] for r in recorder.records if isinstance(r, MessageRecord) and r.message]
    assert texts == ["go 1199", "Done."]
    assert len(recorder.log.calls) == 1


async def test_a_full_disk_does_not_break_the_run(tmp_path: Path) -> None:
    """The failure is logged once; runs continue, and recording continues in memory."""
    logged: list[str] = []
    (tmp_path / "file").touch()
    sink = logger.add(lambda message: logged.append(message.record["message"]), level="ERROR")
    try:
        recorder = Recorder(tmp_path / "file" / "runs.jsonl")  # a file has the folder's name
        agent = agent_with(Signs("A", 100), recorder, script=[*SCRIPT, "Two."])
        with pytest.warns(RuntimeWarning, match="the recorder stops writing"):
            assert (await agent.call("one")).text == "It is 3. A"
        assert (await agent.call("two")).text == "Two. A"
    finally:
        logger.remove(sink)
    assert [line.partition(":")[0] for line in logged] == ["the recorder stops writing"]
    assert recorder.explain(agent.session().messages[-1]).hooks == ("Signs A",)


async def test_a_file_changes_no_order(tmp_path: Path) -> None:
    """A sub-agent's end waits for no write, so concurrent work does not overtake it; nor does a direct call in a
    tool.
    """
    recorders = [Recorder(), Recorder(tmp_path / "run.jsonl"), Recorder(tmp_path / "runs/")]

    def helper(*hooks: Hook) -> Agent[Any]:
        return Agent("helper", ScriptedModel(["Helped."]), hooks=hooks)

    async def order(*hooks: Hook) -> list[str]:
        seen: list[str] = []

        class Sees(Hook):
            observer = True

            def on_event(self, event: Any) -> None:
                if isinstance(event, PreActing | PostActing):
                    seen.append(f"{type(event).__name__} {event.tool_use.name}")

        @tool(type="read")
        async def look() -> str:
            return "seen"

        @tool(type="read")
        async def by_hand() -> str:
            return (await helper(*hooks).call("go")).text

        names = ("helper", "look", "by_hand", "look")
        uses = [
            ToolUseBlock(f"t{n}", name, {"message": "go"} if name == "helper" else {}) for n, name in enumerate(names)
        ]
        tools = [look, by_hand, helper().as_tool(type="read")]
        await Agent("a", ScriptedModel([uses, "Done."]), tools=tools, hooks=[Sees(), *hooks]).call("q")
        return seen

    bare = await order()
    for recorder in recorders:
        assert await order(recorder) == bare
        recorder.close()


class Stuck:
    """A store that writes no line until it is released."""

    def __init__(self) -> None:
        self.may = threading.Event()
        self.lines: list[str] = []
        self.error: Exception | None = None

    def keep_log(self, run_id: str, writer: str, number: int, lines: str) -> Future[None]:
        self.may.wait(30)
        kept: Future[None] = Future()
        if self.error is not None:
            kept.set_exception(self.error)
        else:
            self.lines += lines.split("\n")
            kept.set_result(None)
        return kept

    def log_lines(self, run_id: str, begin: int = 0) -> Any:
        raise NotImplementedError

    logs = prune_logs = log_lines


async def test_a_store_that_hangs_delays_nothing_before_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """The queue is bounded, and entries without a place are dropped. That is reported once, and in the log, which is
    not replayed then.
    """
    monkeypatch.setattr("agentflow.recording.recorder.writer._CAPACITY_WITH_THREAD", 50)
    store = Stuck()
    recorder = Recorder(store, max_records=10, interval=0.001)

    class Ends(Hook):
        observer = True
        events = (CallEnded,)

        def on_event(self, event: Any) -> None:
            assert store.lines == []
            store.may.set()

    agent = Agent("a", ScriptedModel([["word "] * 500]), hooks=[Ends(), recorder])
    with pytest.warns(RuntimeWarning, match="the recorder cannot keep up: 50 entries wait"):
        reply = await agent.call("go")
    recorder.close()
    assert len(reply.text) == 500 * len("word ")
    log = read_lines(store.lines)
    lost = sum(entry.lost for entry in log.entries if isinstance(entry, LogEntry))
    assert lost > 100
    assert [entry.type for entry in log.events()][-1] == "CallEnded"
    with pytest.raises(StoreError, match=f"{lost} entries are missing"):
        Replay(log)


async def test_a_log_that_cannot_be_written_says_so() -> None:
    """There is a warning, and the error stays in `failure`; the run is not affected."""
    store = Stuck()
    store.may.set()
    store.error = StoreError("no such table")
    recorder = Recorder(store)
    agent = Agent("a", ScriptedModel(["Hello!"]), hooks=[recorder])
    with pytest.warns(RuntimeWarning, match="the recorder stops writing: no such table"):
        assert (await agent.call("go")).text == "Hello!"
    assert recorder.failure is store.error
    assert len(recorder.log.calls) == 1


async def test_memory_is_bounded() -> None:
    """The oldest records are dropped."""
    recorder = Recorder(max_records=5)
    await agent_with(Signs("A", 100), recorder).call("1 + 2?")
    kinds = [entry.kind for entry in recorder.log.entries]
    assert kinds.count("event") + kinds.count("hook") <= 5
    assert recorder.log.entries[-1].kind == "event"
    with pytest.raises(UsageError, match="at least 1"):
        Recorder(max_records=0)


async def test_digests_only_keep_no_word(tmp_path: Path) -> None:
    """With `short=0` neither memory nor the file has any text of the conversation."""
    path = tmp_path / "run.jsonl"
    recorder = Recorder(path, short=0)

    @on(PreActing)
    def refuses(event: PreActing) -> Deny:
        return Deny("hush: sesame")

    reply = await agent_with(Signs("sesame", 100), refuses, recorder, script=[SCRIPT[0], "sesame"]).call("sesame?")
    assert recorder.explain(reply).hooks == ("Signs sesame",)
    text = path.read_text("utf-8").replace("Signs sesame", "")  # the hook's name is no content
    assert "sesame" not in text
    assert "sesame" not in repr(recorder.records).replace("Signs sesame", "")


async def test_every_call_is_recorded_if_asked() -> None:
    """Calls that change nothing are left out, unless their durations are requested."""

    @on(PreReasoning)
    def looks(event: PreReasoning) -> None:
        pass

    quiet, loud = Recorder(), Recorder(every_call=True)
    await agent_with(looks, quiet, loud).call("1 + 2?")
    assert [r for r in quiet.records if isinstance(r, HookRecord)] == []
    told = [(r.hook, r.event, r.edits) for r in loud.records if isinstance(r, HookRecord)]
    assert told == [("looks", "PreReasoning", ())] * 2


# ---- what it costs, and what it must not change


def test_without_a_recorder_the_calls_are_the_hooks_own() -> None:
    """The compiled calls are bound methods, without a wrapper; with a recorder they are wrapped."""
    edits, guard = EditsAll(), EditsAll()
    guard.guard = True
    shouts = Shouts()
    bare, watched = HookSet([edits, guard, shouts]), HookSet([edits, guard, shouts, Recorder()])
    for kind in EVENT_TYPES:
        chain = bare.chain(kind)
        assert chain is not None
        assert [entry.call for entry in chain] == [edits.on_event, guard.on_event]
        with_recorder = watched.chain(kind)
        assert with_recorder is not None
        assert not {edits.on_event, guard.on_event} & {entry.call for entry in with_recorder}
    assert bare.arounds(PreReasoning) == ((shouts.around, shouts),)


async def test_a_layer_keeps_what_only_sources_can_do() -> None:
    """`source.using(...)` and `source.chunks(...)` work with a recorder, also through a wrapper that changed nothing."""

    class FallsBack(Hook):
        def around(self, event: Any, source: Any) -> Any:
            if isinstance(event, PreReasoning):
                return source.catch(lambda error, _: source.using(model=ScriptedModel(["From the other."])))
            if isinstance(event, PreActing):
                return source.chunks(lambda pieces: pieces)
            return source

    class Passes(Hook):
        priority = 500

        def around(self, event: Any, source: Any) -> Any:
            return source

    recorder = Recorder()
    reply = await agent_with(FallsBack(), Passes(), recorder, script=[ModelError("down")]).call("go")
    assert reply.text == "From the other."
    assert [str(record) for record in recorder.explain(reply).changes] == [
        "FallsBack around PreReasoning: changed reply: '' became 'From the other.'"
    ]


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize("path", PATHS)
def test_a_recorder_changes_nothing(seed: int, path: Any) -> None:
    """Runs with random hooks, of which some wrap and some fail, have the same result with and without a recorder."""
    scene = Random(seed).choice([*SCENES.values()])

    def played(*more: Hook) -> Any:
        hooks = [*neighbours(Random(seed)), *neighbours(Random(seed + 1000)), *more]
        with Watchdog(frozenset()) as watchdog:
            return run_watched(lambda: play(scene, 1, path, hooks, None), watchdog, 10)

    bare, watched = played(), played(Recorder())
    assert bare.value is not None
    assert watched == bare


async def test_a_listener_that_fails_harms_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error in the recorder is logged, and the run continues as it would without it."""
    recorder = Recorder()

    def broken(*_: object) -> None:
        raise RuntimeError("a defect")

    monkeypatch.setattr(recorder, "on_call", broken)
    monkeypatch.setattr(recorder, "on_layer", broken)
    assert (await agent_with(Signs("A", 100), Shouts(), recorder).call("1 + 2?")).text == "IT IS 3. A"


def test_what_a_record_leaves_out_is_empty() -> None:
    """It is empty, with these exceptions."""
    found = {
        f"{kind.__name__}.{one.name}": one.default
        for kind in (RunRecord, HookRecord, MessageRecord, AddedRecord, InjectedRecord)
        for one in fields(kind)
        if one.default not in (MISSING, None, 0, "", ())
    }
    assert found == {"HookRecord.via": "on_event", "HookRecord.priority": 100, "InjectedRecord.keep": True}


def test_tools_are_shown_by_name() -> None:
    """A short form of tools is their names; their descriptions count in the digest."""
    one, other = ToolSpec("add", "Add."), ToolSpec("add", "Add two.")
    assert show((one,), 80).short == show((other,), 80).short == "add"
    assert show((one,), 80).digest != show((other,), 80).digest


class _CannotClose:
    """A model whose streams are no generators, and raise when they are closed."""

    name = "m"

    def __init__(self, failure: Exception | None) -> None:
        self._failure = failure
        self._chunks = [ModelChunk("hi")]

    def stream(self, request: ModelRequest) -> AsyncIterator[ModelChunk]:
        """Return the stream."""
        return self

    def __aiter__(self) -> AsyncIterator[ModelChunk]:
        return self

    async def __anext__(self) -> ModelChunk:
        if self._chunks:
            return self._chunks.pop()
        raise self._failure or StopAsyncIteration

    async def aclose(self) -> None:
        """Fail."""
        raise RuntimeError("the connection is lost")


@pytest.mark.parametrize(
    ("failure", "end", "outcome"), [(None, "done", "hi"), (ValueError("broken"), "failed", "broken")]
)
async def test_a_reply_stays_if_its_stream_cannot_be_closed(failure: Exception | None, end: str, outcome: str) -> None:
    """The call ends as without a recorder, and the end of the request is recorded."""
    recorder = Recorder()
    try:
        got = (await Agent("a", _CannotClose(failure), hooks=[recorder]).call("go")).text
    except ValueError as error:
        got = str(error)
    ends = [entry.end for entry in recorder.log.entries if isinstance(entry, AnsweredEntry)]
    assert (got, ends) == (outcome, [end])
