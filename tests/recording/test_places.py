"""The destinations of a `Recorder`: a folder, SQLite, PostgreSQL. They make the same promises and are read in the
same ways.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Future
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from loguru import logger
from sqlalchemy import create_engine, text

from agentflow import Agent, Approve, Hook, PreActing, Suspend, ToolUseBlock, tool
from agentflow.errors import StoreError, UsageError
from agentflow.loop.session import Session
from agentflow.recording import RunLog, RunLogError
from agentflow.recording.diffing import diff_runs
from agentflow.recording.entries import ChunksEntry
from agentflow.recording.keeping import KeptLines, KeptLog, LogStore, load_from, logs_to_delete
from agentflow.recording.recorder import Recorder, files
from agentflow.recording.recorder.records import records_of
from agentflow.recording.replay import Replay
from agentflow.serve.inspector import export
from agentflow.serve.inspector.logs import Logs
from agentflow.serve.inspector.stored_runs import load_named
from agentflow.state import SqlStore
from agentflow.terminal.cli.inspect_command import inspect
from agentflow.terminal.cli.main import cli
from agentflow.testing import ScriptedModel


class Place:
    """A folder or a database, with the names of its logs."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.stores: list[SqlStore] = []

    def open(self) -> Any:
        """Open it as a `Recorder` takes it, each time as another process would."""
        if "://" not in self.where:
            return self.where
        self.stores.append(SqlStore(self.where))
        return self.stores[-1]

    def name(self, run_id: str) -> str:
        return f"{self.where}#{run_id}" if "://" in self.where else f"{self.where}{run_id}.jsonl"

    async def load(self, run_id: str) -> RunLog:
        return await asyncio.to_thread(load_named, self.name(run_id))

    def age(self, run_id: str, seconds: float) -> None:
        """Make a log older than it is."""
        then = time.time() - seconds
        if "://" not in self.where:
            os.utime(self.name(run_id), (then, then))
            return
        engine = create_engine(self.where)
        with engine.begin() as connection:
            values = {"then": then, "run": run_id}
            connection.execute(text("UPDATE agentflow_logs SET updated = :then WHERE run_id = :run"), values)
        engine.dispose()

    def runs(self) -> set[str]:
        return {run.run for run in Logs([self.where]).runs()}


@pytest.fixture(params=["folder", "sqlite", "postgresql"])
async def place(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Place]:
    """An empty place of each kind."""
    made = Place(f"{tmp_path}/runs/" if request.param == "folder" else f"sqlite:///{tmp_path}/runs.db")
    if request.param == "postgresql":
        with request.getfixturevalue("postgres").database() as url:
            made.where = url
            yield made
            for store in made.stores:
                await store.close()
        return
    yield made
    for store in made.stores:
        await store.close()


@tool(type="read")
async def look(x: int) -> str:
    """Look."""
    return f"result {x}"


class Asks(Hook):
    guard = True

    def on_event(self, event: Any) -> Any:
        return Suspend("may I?") if isinstance(event, PreActing) else event


def agent_with(*hooks: Hook, script: Any = None, **options: Any) -> Agent:
    model = ScriptedModel(script or [ToolUseBlock("t1", "look", {"x": 1}), ["It ", "is ☂ \x00."]])
    return Agent("a", model, tools=[look], hooks=list(hooks), **options)


async def test_a_run_is_read_back_as_it_was_seen(place: Place) -> None:
    """By name, it equals the log in memory, for records, comparisons, replays, the list of runs and the page; the
    input is not valid Unicode.
    """
    recorder = Recorder(place.open())
    reply = await agent_with(recorder).call("go \ud800")
    log = await place.load(reply.run_id)
    assert len(log.entries) == len(recorder.log.entries)
    assert [type(one) for one in records_of(log)] == [type(one) for one in recorder.records]
    assert diff_runs(log, log).first is None
    assert (await Replay(log).arun(agent_with())).divergence is None
    logs = Logs([place.where])
    (run,) = await asyncio.to_thread(logs.runs)
    assert (run.run, run.outcome, run.counts.tools, run.problem) == (reply.run_id, "completed", 1, "")
    assert run.prompt.startswith("go")
    source = await asyncio.to_thread(logs.source, run.id)
    assert source is not None
    lines, behind = await asyncio.to_thread(source.lines)
    assert [json.loads(line)["kind"] for line in lines.splitlines()] == [entry.kind for entry in log.entries]
    assert await asyncio.to_thread(source.lines, behind) == (b"", behind)


async def test_each_run_has_a_log_of_its_own(place: Place) -> None:
    """This holds also if one recorder has several runs at once; sub-agents are in the log of their caller."""
    recorder = Recorder(place.open())
    helper = Agent("helper", ScriptedModel(["Yes."]), description="Helps.")
    asking = ScriptedModel([ToolUseBlock("t1", "helper", {"message": "help"}), "Done."])
    calls = [Agent("a", asking, tools=[helper.as_tool()], hooks=[recorder]), agent_with(recorder)]
    replies = await asyncio.gather(*[agent.call("go", session=Session.fresh()) for agent in calls])
    with_helper, alone = [await place.load(reply.run_id) for reply in replies]
    assert [(call.agent, call.parent is not None) for call in with_helper.calls.values()] == [
        ("a", False),
        ("helper", True),
    ]
    assert [call.run for call in alone.calls.values()] == [replies[1].run_id]
    assert await asyncio.to_thread(place.runs) == {reply.run_id for reply in replies}


async def test_sub_agents_alone_share_the_log_of_their_run(place: Place) -> None:
    """If only sub-agents are recorded: one log, with the name of the outermost run, which does not wait for their
    end.
    """
    recorder = Recorder(place.open())
    helpers = [Agent(name, ScriptedModel(["Yes."]), hooks=[recorder]) for name in ("one", "two")]
    uses = [ToolUseBlock(f"t{n}", helper.name, {"message": "help"}) for n, helper in enumerate(helpers)]
    agent = Agent("a", ScriptedModel([uses, "Done."]), tools=[helper.as_tool() for helper in helpers])
    reply = await agent.call("go")
    recorder.close()
    log = await place.load(reply.run_id)
    assert sorted(call.agent for call in log.calls.values()) == ["one", "two"]
    assert {call.parent.tool_use for call in log.calls.values() if call.parent} == {"t0", "t1"}


async def test_a_run_goes_on_in_its_log(place: Place) -> None:
    """What another process resumes is written after the rest, and read as one run; a follower sees the new lines."""
    agent = agent_with(Asks(), Recorder(place.open()))
    reply = await agent.call("go", session="s")
    logs = Logs([place.where])
    (run,) = await asyncio.to_thread(logs.runs)
    assert run.outcome == "suspended"
    source = await asyncio.to_thread(logs.source, run.id)
    assert source is not None
    first, behind = await asyncio.to_thread(source.lines)
    stamp = await asyncio.to_thread(logs.stamp)
    assert stamp == await asyncio.to_thread(logs.stamp)

    other = agent.variant(hooks=[Asks(), Recorder(place.open())])
    await other.resume(decisions={reply.pending[0].id: Approve()}, session=agent.session("s"))
    log = await place.load(reply.run_id)
    assert [call.resumes for call in log.calls.values()] == [False, True]
    assert stamp != await asyncio.to_thread(logs.stamp)
    more, _ = await asyncio.to_thread(source.lines, behind)
    assert len((first + more).splitlines()) == len(log.entries)
    (run,) = await asyncio.to_thread(logs.runs)
    assert run.outcome == "completed"


PROCESS = """
import asyncio, sys
from agentflow import Agent, ToolUseBlock, tool
from agentflow.loop.session import Session
from agentflow.recording.recorder import Recorder
from agentflow.state import SqlStore
from agentflow.testing import ScriptedModel

where, calls = sys.argv[1], int(sys.argv[2])

async def main():
    recorder = Recorder(SqlStore(where) if "://" in where else where, interval=0.001)
    words = [f"word{n} " for n in range(50)]
    for reply in await asyncio.gather(*[
        Agent("a", ScriptedModel([words]), hooks=[recorder]).call(f"go {n}", session=Session.fresh()) for n in range(calls)
    ]):
        print(reply.run_id)

asyncio.run(main())
"""


@pytest.mark.ci
async def test_several_processes_write_at_once(place: Place) -> None:
    """They write to one folder or database, which the first one creates: every run is complete."""
    command = [sys.executable, "-c", PROCESS, place.where, "6"]
    processes = [await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE) for _ in range(2)]
    told = [(await process.communicate())[0].decode().split() for process in processes]
    runs = [run for one in told for run in one]
    assert len(runs) == 12
    logs = Logs([place.where])
    found = await asyncio.to_thread(logs.runs)
    assert sorted((run.run, run.outcome, run.problem) for run in found) == sorted(
        (run, "completed", "") for run in runs
    )
    for run in runs[::5]:
        batches = [entry.pieces for entry in (await place.load(run)).entries if isinstance(entry, ChunksEntry)]
        words = [piece for pieces in batches for piece in pieces if isinstance(piece, str)]
        assert words == [f"word{n} " for n in range(50)]


async def test_the_oldest_logs_go(place: Place) -> None:
    """They are deleted by size and by age, when a run has ended; logs written to within the last minute are kept."""
    recorder = Recorder(place.open(), max_age=timedelta(days=2))
    agent = agent_with(recorder, script=lambda request: "Done.")
    old, new, newest = [(await agent.call("go", session=Session.fresh())).run_id for _ in range(3)]
    place.age(old, 86400 * 3)
    place.age(new, 86400)
    last = (await agent.call("go", session=Session.fresh())).run_id
    assert await asyncio.to_thread(place.runs) == {new, newest, last}

    small = Recorder(place.open(), max_bytes=1)
    final = (await agent_with(small).call("go")).run_id
    assert await asyncio.to_thread(place.runs) == {newest, last, final}


async def test_a_log_that_cannot_be_deleted_stays(tmp_path: Path, warned: list[str]) -> None:
    """The failure is reported with the file's path, the other old logs are deleted, and the run ends as usual;
    vanished files are skipped.
    """
    recorder = Recorder(f"{tmp_path}/", max_bytes=1)
    stuck, old = tmp_path / "stuck.jsonl", tmp_path / "old.jsonl"
    stuck.mkdir()
    vanished = [tmp_path / f"{number}.jsonl" for number in range(8)]
    for path in vanished:
        path.symlink_to("nowhere")
    old.write_text("{}\n")
    for path, age in ((stuck, 300), (old, 200)):
        os.utime(path, (time.time() - age, time.time() - age))
    reply = await agent_with(recorder, script=["Done."]).call("go")
    assert [line.partition(" cannot be deleted: ")[0] for line in warned] == [f"the old run log {stuck}"]
    left = {path.name for path in await asyncio.to_thread(lambda: list(tmp_path.iterdir()))}
    assert left == {f"{reply.run_id}.jsonl", "stuck.jsonl", *[path.name for path in vanished]}


def test_a_log_is_a_plain_file(tmp_path: Path) -> None:
    """It has the mode of any file that a program creates, also when it is opened again: it is not executable."""
    plain = tmp_path / "plain"
    plain.touch(0o644)
    for _ in range(2):
        sink = files.FileSink(tmp_path / "logs" / "run.jsonl")
        sink.open()
        sink.close()
        assert (tmp_path / "logs" / "run.jsonl").stat().st_mode == plain.stat().st_mode


def test_an_incomplete_line_is_ended_on_windows_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next lines begin after a line end that is missing, and only then, without `os.pread`, which Windows lacks."""
    monkeypatch.delattr(os, "pread", raising=False)
    path = tmp_path / "run.jsonl"
    path.write_text("torn")
    sink = files.FileSink(path)
    sink.open()
    sink.write(["one"])
    sink.write(["two", "three"])
    sink.close()
    assert path.read_text() == "torn\none\ntwo\nthree\n"


def test_too_many_takes_the_oldest_first() -> None:
    """The oldest are deleted until the rest fits; a log in use is never deleted, however large the rest is."""
    logs = [
        KeptLog(name, 0, updated, 100) for name, updated in (("c", 300.0), ("a", 100.0), ("b", 200.0), ("d", 990.0))
    ]
    assert [log.run_id for log in logs_to_delete(logs, 1000, 250, None)] == ["a", "b"]
    assert [log.run_id for log in logs_to_delete(logs, 1000, 1, None)] == ["a", "b", "c"]
    assert [log.run_id for log in logs_to_delete(logs, 1000, None, timedelta(seconds=750))] == ["a", "b"]
    assert logs_to_delete(logs, 1000, None, None) == []


def test_a_log_counts_as_in_use_for_a_minute() -> None:
    """It counts for a minute after its last write; then it is deleted if the limits require it."""
    logs = [KeptLog(f"{age} s", 0, 1000 - age, 100) for age in (59, 60, 61)]
    assert [log.run_id for log in logs_to_delete(logs, 1000, 1, None)] == ["61 s", "60 s"]


# ---- stores


@pytest.fixture
async def store(url: str) -> AsyncIterator[SqlStore]:
    """An empty database of each kind."""
    async with SqlStore(url) as made:
        yield made


async def test_what_is_given_twice_is_kept_once(store: SqlStore) -> None:
    """Parts are returned in the order in which they were stored, from a position on; writers are distinguished."""
    for writer, number, lines in (("w", 1, "one\ntwo"), ("w", 2, "three"), ("w", 2, "three"), ("v", 1, "four")):
        await asyncio.wrap_future(store.keep_log("run", writer, number, lines))
    kept = await asyncio.wrap_future(store.log_lines("run"))
    assert kept.lines == ["one", "two", "three", "four"]
    assert await asyncio.wrap_future(store.log_lines("run", kept.end)) == KeptLines([], kept.end)
    assert (await asyncio.wrap_future(store.log_lines("run", 1))).lines == ["three", "four"]
    (log,) = await asyncio.wrap_future(store.logs())
    assert (log.run_id, log.size) == ("run", len("one two three four "))


async def test_a_log_that_was_deleted_stays_so(store: SqlStore) -> None:
    """A later part without its beginning could not be read; a new writer starts a new log."""
    await asyncio.wrap_future(store.keep_log("run", "w", 1, "one"))
    assert [log.run_id for log in await asyncio.wrap_future(store.prune_logs(max_bytes=1))] == []
    Place(store.url).age("run", 100)
    assert [log.run_id for log in await asyncio.wrap_future(store.prune_logs(max_bytes=1))] == ["run"]
    await asyncio.wrap_future(store.keep_log("run", "w", 2, "two"))
    assert (await asyncio.wrap_future(store.log_lines("run"))).lines == []
    await asyncio.wrap_future(store.keep_log("run", "v", 1, "three"))
    assert (await asyncio.wrap_future(store.log_lines("run"))).lines == ["three"]


async def test_ids_that_no_index_takes(store: SqlStore) -> None:
    """Ids of any length and content work; a cancelled caller does not stop the work."""
    for run in ("", "x" * 5000, "nul\x00", "☂"):
        store.keep_log(run, "w", 1, "one").cancel()
        assert (await asyncio.wrap_future(store.log_lines(run))).lines == ["one"]
    assert len(await asyncio.wrap_future(store.logs())) == 4


async def test_what_is_not_there_is_said(store: SqlStore, tmp_path: Path) -> None:
    """No such run, no run named, no database: the error says so, and reading creates nothing."""
    with pytest.raises(RunLogError, match="has no log of run 'run_9'"):
        await load_from(store, "run_9")
    name = store.url
    with pytest.raises(StoreError, match=r"holds no run log\. A Recorder writes run logs"):
        await asyncio.to_thread(load_named, name)
    for asked, what in ((name, "run log"), (f"{name}#run_9", "run 'run_9'")):
        with pytest.raises(StoreError, match=f"holds no {what}. A Recorder writes"):
            await asyncio.to_thread(export, tmp_path / "x.html", asked)
        answer = await asyncio.to_thread(CliRunner().invoke, inspect, [asked], standalone_mode=False)
        assert f"holds no {what}. A Recorder writes" in str(answer.exception)
    missing = tmp_path / "missing.db"
    with pytest.raises(StoreError, match="There is no database"):
        await asyncio.to_thread(load_named, f"sqlite:///{missing}")
    with pytest.raises(StoreError, match="There is no database"):
        Logs([f"sqlite:///{missing}"])
    assert not missing.exists()
    with pytest.raises(UsageError, match=r"pass the store itself, Recorder\(SqlStore"):
        Recorder("postgresql://ann:secret@host/db")
    with pytest.raises(UsageError, match="need a folder or a store"):
        Recorder(tmp_path / "runs.jsonl", max_bytes=5)
    with pytest.raises(UsageError, match="above 0"):
        Recorder(store, max_age=timedelta(0))


class Comes(LogStore):
    """A custom store in memory, which can be unavailable."""

    def __init__(self) -> None:
        self.away: StoreError | None = None
        self.kept: dict[tuple[str, str, int], str] = {}

    def keep_log(self, run_id: str, writer: str, number: int, lines: str) -> Future[None]:
        done: Future[None] = Future()
        if self.away is None:
            self.kept[run_id, writer, number] = lines
            done.set_result(None)
        else:
            done.set_exception(self.away)
        return done

    def log_lines(self, run_id: str, begin: int = 0) -> Future[KeptLines]:
        done: Future[KeptLines] = Future()
        parts = [lines for (run, _, _), lines in self.kept.items() if run == run_id]
        done.set_result(KeptLines([line for part in parts[begin:] for line in part.split("\n")], len(parts)))
        return done

    def logs(self) -> Future[list[KeptLog]]:
        done: Future[list[KeptLog]] = Future()
        done.set_result([KeptLog(run, 0, 0, 0) for run in dict.fromkeys(run for run, _, _ in self.kept)])
        return done

    def prune_logs(self, *, max_bytes: int | None = None, max_age: timedelta | None = None) -> Future[list[KeptLog]]:
        done: Future[list[KeptLog]] = Future()
        done.set_exception(StoreError("it cannot delete"))
        return done


@pytest.fixture
def warned() -> Iterator[list[str]]:
    """The logged warnings."""
    told: list[str] = []
    logger.remove()
    sink = logger.add(lambda message: told.append(message.record["message"]), level="WARNING")
    yield told
    logger.remove(sink)
    logger.add(sys.__stderr__)


async def test_a_store_that_comes_back_gets_what_it_missed(warned: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs continue while it is unavailable; their lines wait, in order, and none is lost; one warning is logged."""
    monkeypatch.setattr(files, "_PAUSE", 1e-9)  # until the next attempt
    store = Comes()
    agent = agent_with(Recorder(store), script=lambda request: "Done.")
    store.away = StoreError("it cannot be reached", retryable=True)
    missed = [(await agent.call(f"go {n}", session=Session.fresh())).run_id for n in range(3)]
    assert store.kept == {}
    store.away = None
    await agent.call("go", session=Session.fresh())
    for run in missed:
        log = await load_from(store, run)
        assert [entry.type for entry in log.events()][-1] == "CallEnded"
    assert warned == ["run logs are kept in memory until the store is reachable again: it cannot be reached"]


async def test_a_store_that_refuses_is_left_alone(warned: list[str]) -> None:
    """A permanent failure is reported once; runs continue. A store that cannot delete old logs stores new ones."""
    store = Comes()
    recorder = Recorder(store, max_bytes=1)
    agent = agent_with(recorder, script=lambda request: "Done.")
    kept = (await agent.call("go", session=Session.fresh())).run_id
    assert warned == ["old run logs cannot be deleted: it cannot delete"]
    store.away = StoreError("it is full")
    for _ in range(2):
        assert (await agent.call("go", session=Session.fresh())).text == "Done."
    assert [line.partition(":")[0] for line in warned[1:2]] == ["the recorder stops writing"]
    assert await asyncio.wrap_future(store.logs()) == [KeptLog(kept, 0, 0, 0)]


# ---- commands


async def test_commands_read_a_store_by_its_name(tmp_path: Path) -> None:
    """`diff`, `explain` and `inspect` take `sqlite:///runs.db#run`; one run needs no name."""
    name = f"sqlite:///{tmp_path}/runs.db"
    async with SqlStore(name) as store:
        recorder = Recorder(store)
        one = await agent_with(recorder, script=["One."]).call("go")
        two = await agent_with(recorder, script=["Two."]).call("go")
    empty = f"sqlite:///{tmp_path}/sessions.db"
    async with SqlStore(empty) as store:
        await Agent("a", ScriptedModel(["Hello!"]), store=store).call("Hi", session="s")

    def ran(*arguments: str) -> tuple[int, str]:
        done = CliRunner().invoke(cli, arguments, standalone_mode=False)
        return done.return_value or 0, done.output + ("" if done.exception is None else str(done.exception))

    def commands() -> None:
        code, said = ran("diff", f"{name}#{one.run_id}", f"{name}#{two.run_id}")
        assert (code, "- One." in said, "+ Two." in said) == (1, True, True)
        assert "no hook shaped it" in ran("explain", f"{name}#{two.run_id}", "last")[1]
        assert "holds 2 runs; name one after a #" in ran("explain", name, "last")[1]
        file = tmp_path / "report.html"
        assert "is complete" in ran("inspect", f"{name}#{one.run_id}", "--export", str(file))[1]
        for arguments in (("explain", empty, "last"), ("inspect", empty, "--export", str(file))):
            assert "`agentflow export` makes one from a session or a durable run" in ran(*arguments)[1]
        assert one.run_id in file.read_text("utf-8")
        assert two.run_id not in file.read_text("utf-8")
        assert "There is no database" in ran("inspect", f"sqlite:///{tmp_path}/none.db")[1]
        export(file, name)  # two runs, beside each other
        assert two.run_id in file.read_text("utf-8")

    await asyncio.to_thread(commands)
