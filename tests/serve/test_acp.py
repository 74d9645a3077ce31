"""ACP: an agent as a process, driven by the official package's client over pipes."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from acp import RequestError, connect_to_agent, helpers, schema
from nursery import Nursery

from agentflow import DataBlock, TextBlock
from agentflow.serve.acp.content import block_of
from agentflow.state import SqlStore

HERE = Path(__file__).parent


class Editor:
    """The client side: it keeps all updates, and answers questions from a list."""

    def __init__(self, answers: Sequence[str] = ()) -> None:
        self.updates: list[tuple[str, Any]] = []
        self.asked: list[tuple[Any, list[schema.PermissionOption]]] = []
        self.answers = list(answers)
        self.changed = asyncio.Condition()

    async def session_update(self, session_id: str, update: Any, **_: Any) -> None:
        async with self.changed:
            self.updates.append((session_id, update))
            self.changed.notify_all()

    async def request_permission(self, session_id: str, tool_call: Any, options: Any, **_: Any) -> Any:
        async with self.changed:
            self.asked.append((tool_call, options))
            self.changed.notify_all()
        if not self.answers:
            await asyncio.Event().wait()
        answer = self.answers.pop(0)
        if answer == "cancelled":
            return schema.RequestPermissionResponse(outcome=schema.DeniedOutcome(outcome="cancelled"))
        return schema.RequestPermissionResponse(outcome=schema.AllowedOutcome(outcome="selected", option_id=answer))

    async def until(self, done: Any) -> None:
        async with self.changed:
            await self.changed.wait_for(done)

    def on_connect(self, conn: Any) -> None:
        pass

    def text(self, kind: str = "agent_message_chunk", session: str | None = None) -> str:
        return "".join(
            one.content.text
            for at, one in self.updates
            if one.session_update == kind and (session is None or at == session)
        )

    def tools(self) -> list[tuple[str, str | None]]:
        return [
            (one.session_update, one.status) for _, one in self.updates if one.session_update.startswith("tool_call")
        ]

    def last_text(self) -> str:
        """The text of the last tool call's result."""
        done = [one for _, one in self.updates if one.session_update.startswith("tool_call") and one.content]
        return done[-1].content[-1].content.text


class Forked:
    """A process of the nursery, with pipes as standard input and output; its members are those of asyncio's `Process`."""

    def __init__(self, pid: int, stdin: asyncio.StreamWriter, stdout: asyncio.StreamReader) -> None:
        self.pid, self.stdin, self.stdout = pid, stdin, stdout
        self._code: Any = None

    @property
    def returncode(self) -> int | None:
        if self._code is None:
            self._code = nursery().state(self.pid)["code"]
        return self._code

    async def wait(self) -> int:
        if self.returncode is None:
            self._code = await asyncio.to_thread(nursery().code, self.pid)
        return self._code

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)


class Running:
    """A started agent with its client."""

    def __init__(self, process: Forked, editor: Editor) -> None:
        self.process = process
        self.editor = editor
        self.conn: Any = connect_to_agent(editor, process.stdin, process.stdout, use_unstable_protocol=True)

    async def say(self, session: str, *lines: str) -> str:
        return (await self.conn.prompt(session, [helpers.text_block("\n".join(lines))])).stop_reason


@cache
def nursery() -> Nursery:
    """The process that has imported what the agents need, and is forked for each."""
    return Nursery(
        *("agentflow.terminal.cli.main", "agentflow.terminal.cli.acp_command", "agentflow.plugins.approval.terminal"),
        *("agentflow.state.sql", "sqlalchemy.dialects.sqlite.aiosqlite", "agentflow.testing"),
    )


@pytest.fixture(scope="module", autouse=True)
def _ended() -> Iterator[None]:
    yield
    nursery().end()
    nursery.cache_clear()


async def start(name: str, folder: Path, store: Path | None = None) -> Forked:
    loop = asyncio.get_running_loop()
    theirs_in, ours_in = os.pipe()
    ours_out, theirs_out = os.pipe()
    with (folder / "stderr").open("ab") as log:
        pid = nursery().start(
            ["agentflow", "acp", f"editor_agents:{name}"],
            {**os.environ, "STORE": "" if store is None else f"sqlite:///{store}"},
            {0: theirs_in, 1: theirs_out, 2: log.fileno()},
            cwd=str(HERE),
        )
    os.close(theirs_in)
    os.close(theirs_out)
    written, flow = await loop.connect_write_pipe(
        lambda: asyncio.StreamReaderProtocol(asyncio.StreamReader()), os.fdopen(ours_in, "wb", buffering=0)
    )
    stdout = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(stdout), os.fdopen(ours_out, "rb", buffering=0))
    return Forked(pid, asyncio.StreamWriter(written, flow, None, loop), stdout)


@asynccontextmanager
async def running(
    name: str, folder: Path, editor: Editor | None = None, store: Path | None = None
) -> AsyncGenerator[Running]:
    process = await start(name, folder, store)
    run = Running(process, editor or Editor())
    try:
        yield run
        assert process.returncode is None, "it ended by itself"
    finally:
        if process.returncode is None:
            process.stdin.close()
            code = await asyncio.wait_for(process.wait(), 30)
            assert code == 0, (folder / "stderr").read_text()
        await run.conn.close()


async def opened(run: Running, folder: Path) -> str:
    await run.conn.initialize(1)
    return (await run.conn.new_session(str(folder), mcp_servers=[])).session_id


async def test_a_prompt_streams_text_and_thinking(tmp_path: Path) -> None:
    async with running("plain", tmp_path) as run:
        about = await run.conn.initialize(1)
        assert (about.protocol_version, about.agent_info.name) == (1, "coder")
        session = (await run.conn.new_session(str(tmp_path), mcp_servers=[])).session_id
        assert await run.say(session, "hello there") == "end_turn"
        assert [one.content.text for _, one in run.editor.updates] == ["hello ", "there "]
        assert await run.say(session, "think") == "end_turn"
        assert run.editor.text("agent_thought_chunk") == "hm"
    async with running("careful", tmp_path) as run:
        assert await run.say(await opened(run, tmp_path), "cut") == "max_tokens"


async def test_a_file_in_a_prompt_is_a_link_with_its_title_or_name(tmp_path: Path) -> None:
    """The model reads the path; an editor sends a title for some files only."""
    links = [
        schema.ResourceContentBlock(type="resource_link", name="a.py", uri="file:///x/a.py", title=title)
        for title in ("Start", None)
    ]
    async with running("plain", tmp_path) as run:
        await run.conn.prompt(await opened(run, tmp_path), links)
        assert run.editor.text().split() == ["[Start](/x/a.py)[a.py](/x/a.py)"]


def test_content_has_the_protocols_own_forms() -> None:
    """A file of another kind is embedded, and a link stays one."""
    blocks = [DataBlock(kind, data="aQ==") for kind in ("image/png", "audio/wav", "application/pdf")]
    made = [block_of(block) for block in (TextBlock("i"), *blocks, DataBlock.from_url("https://x.example/a.png"))]
    assert [block.type for block in made] == ["text", "image", "audio", "resource", "resource_link"]


async def test_standard_output_is_the_protocols_alone(tmp_path: Path) -> None:
    """What the module, a tool and a child process print goes to standard error; a tool that reads finds nothing."""
    (tmp_path / "a.txt").write_text("inside")
    async with running("plain", tmp_path) as run:
        session = await opened(run, tmp_path)
        await run.say(session, 'call read_file {"path": "a.txt"}', "call read_stdin {}")
        assert run.editor.text() == "inside; ''"
    printed = (tmp_path / "stderr").read_text()
    assert [word in printed for word in ("while the module", "by a tool", "by a child")] == [True] * 3


async def test_a_tool_calls_updates(tmp_path: Path) -> None:
    async with running("plain", tmp_path) as run:
        session = await opened(run, tmp_path)
        await run.say(session, 'call fetch {"count": 2}')
        begun, *progress, done = [one for _, one in run.editor.updates if one.session_update.startswith("tool_call")]
        assert (begun.title, begun.kind, begun.status, begun.raw_input) == (
            "fetch",
            "search",
            "in_progress",
            {"count": 2},
        )
        assert [one.content[-1].content.text for one in progress] == ["0 ", "0 1 ", "0 1 "]
        diff, text, picture = done.content
        assert (diff.path, diff.old_text, diff.new_text) == (str(tmp_path / "notes.txt"), "old", "new")
        assert (text.content.text, picture.content.mime_type, done.status) == ("a picture", "image/png", "completed")
        await run.say(session, 'call read_file {"path": "missing", "line": 3}')
        begun = next(one for _, one in reversed(run.editor.updates) if one.session_update == "tool_call")
        assert (begun.kind, begun.locations[0].path, begun.locations[0].line) == ("read", str(tmp_path / "missing"), 3)
        assert run.editor.tools()[-1] == ("tool_call_update", "failed")
        await run.say(session, f'call read_file {{"path": "{"x" * 250}"}}')
        begun = next(one for _, one in reversed(run.editor.updates) if one.session_update == "tool_call")
        assert (begun.title, begun.raw_input) == (f"read_file: {'x' * 189}…", {"path": "x" * 250})


async def test_a_plan_is_shown(tmp_path: Path) -> None:
    async with running("plain", tmp_path) as run:
        session = await opened(run, tmp_path)
        await run.say(session, "plan")
        [plan] = [one for _, one in run.editor.updates if one.session_update == "plan"]
        assert [(step.content, step.status) for step in plan.entries] == [("look", "completed"), ("change", "pending")]


async def test_a_permission_shows_the_diff_and_allows_once(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("old")
    async with running("coder", tmp_path, Editor(["allow", "reject"])) as run:
        session = await opened(run, tmp_path)
        write = 'call write_file {"path": "a.txt", "text": "new ``` \\u202e"}'
        assert await run.say(session, write) == "end_turn"
        (call, options), *_ = run.editor.asked
        diff, arguments = call.content
        assert (diff.path, diff.old_text, diff.new_text) == (str(tmp_path / "a.txt"), "old", "new ``` \u202e")
        assert arguments.content.text == "````\npath: a.txt\ntext: new ``` \\u202e\n````"
        assert [option.kind for option in options] == ["allow_once", "allow_always", "reject_once", "reject_always"]
        assert run.editor.tools() == [
            ("tool_call", "in_progress"),
            ("tool_call_update", "pending"),
            ("tool_call_update", "in_progress"),
            ("tool_call_update", "completed"),
        ]
        assert (tmp_path / "a.txt").read_text() == "new ``` \u202e"
        await run.say(session, write.replace("new", "newer"))
        assert (tmp_path / "a.txt").read_text() == "new ``` \u202e"
        assert run.editor.text().endswith("Denied: The user refused it.")


@pytest.mark.parametrize("name", ["coder", "careful"])
async def test_a_lasting_answer_holds_for_its_session(name: str, tmp_path: Path) -> None:
    """It is stored: another process that loads the session does not ask again. Another session asks."""
    tool, arguments = (
        ("write_file", '{"path": "a", "text": "x"}') if name == "coder" else ("shell", '{"command": "ls"}')
    )
    call, store = f"call {tool} {arguments}", tmp_path / "store.db"
    async with running(name, tmp_path, Editor(["allow_always", "reject"]), store) as run:
        session = await opened(run, tmp_path)
        await run.say(session, call, call)
        await run.say(session, call)
        assert len(run.editor.asked) == 1
        other = (await run.conn.new_session(str(tmp_path), mcp_servers=[])).session_id
        await run.say(other, call)
        assert len(run.editor.asked) == 2
    async with running(name, tmp_path, store=store) as run:
        await run.conn.initialize(1)
        await run.conn.resume_session(session_id=session, cwd=str(tmp_path))
        assert run.editor.updates == []
        assert await run.say(session, call) == "end_turn"
        assert run.editor.text().strip() != ""


@pytest.mark.parametrize("name", ["coder", "careful"])
async def test_a_lasting_refusal_holds_too(name: str, tmp_path: Path) -> None:
    tool, arguments = (
        ("write_file", '{"path": "a", "text": "x"}') if name == "coder" else ("shell", '{"command": "ls"}')
    )
    async with running(name, tmp_path, Editor(["reject_always"])) as run:
        session = await opened(run, tmp_path)
        await run.say(session, f"call {tool} {arguments}")
        await run.say(session, f"call {tool} {arguments}")
        assert len(run.editor.asked) == 1
        assert run.editor.text().endswith(f"Denied: The user refuses {tool} in this session.")


async def test_a_hooks_own_question_has_no_lasting_answer(tmp_path: Path) -> None:
    async with running("coder", tmp_path, Editor(["allow_always"])) as run:
        session = await opened(run, tmp_path)
        await run.say(session, 'call transfer {"euros": 900}')
        [(call, options)] = run.editor.asked
        assert [option.option_id for option in options] == ["allow", "reject"]
        assert call.content[-1].content.text == "Really so much?\n```\neuros: 900\n```"
        assert run.editor.text() == "Denied: The user refused it.", "an option that was not offered is a refusal"


async def test_a_cancelled_prompt(tmp_path: Path) -> None:
    async with running("plain", tmp_path) as run:
        session = await opened(run, tmp_path)
        prompt = asyncio.create_task(run.say(session, "wait"))
        await run.editor.until(lambda: run.editor.text() == "I wait")
        with pytest.raises(RequestError, match="Invalid request"):
            await run.say(session, "a second one")
        await run.conn.cancel(session)
        assert await prompt == "cancelled"
        assert await run.say(session, "again") == "end_turn"


@pytest.mark.parametrize("how", ["notification", "answer"])
async def test_a_cancelled_question_runs_nothing(how: str, tmp_path: Path) -> None:
    """The waiting call is refused, later calls of its round do not run, and the session continues."""
    async with running("coder", tmp_path, Editor(["cancelled"] if how == "answer" else [])) as run:
        session = await opened(run, tmp_path)
        calls = ('call write_file {"path": "a", "text": "x"}', 'call touch {"path": "b"}')
        prompt = asyncio.create_task(run.say(session, *calls))
        await run.editor.until(lambda: len(run.editor.asked) == 1)
        if how == "notification":
            await run.conn.cancel(session)
        assert await prompt == "cancelled"
        assert os.listdir(tmp_path) == ["stderr"]
        assert await run.say(session, "again") == "end_turn"
        assert run.editor.text() == "again "


async def test_two_sessions_at_once(tmp_path: Path) -> None:
    async with running("plain", tmp_path) as run:
        first, second = await opened(run, tmp_path), await opened(run, tmp_path)
        waiting = asyncio.create_task(run.say(first, "wait"))
        await run.editor.until(lambda: run.editor.text(session=first) == "I wait")
        assert await run.say(second, "hello") == "end_turn"
        assert run.editor.text(session=second) == "hello "
        await run.conn.cancel(second)
        assert not waiting.done()
        await run.conn.close_session(first)
        assert await waiting == "cancelled"
        with pytest.raises(RequestError, match="not found"):
            await run.say(first, "closed")


async def test_modes_and_models(tmp_path: Path) -> None:
    async with running("coder", tmp_path) as run:
        await run.conn.initialize(1)
        made = await run.conn.new_session(str(tmp_path), mcp_servers=[])
        session = made.session_id
        assert [mode.id for mode in made.modes.available_modes] == ["ask", "read-only"]
        await run.conn.set_session_mode(session_id=session, mode_id="read-only")
        await run.say(session, 'call touch {"path": "b"}')
        assert run.editor.text() == "Denied: The session is read-only, and touch can change something."
        [option] = made.config_options
        assert (option.current_value, [one.value for one in option.options]) == ("scripted", ["scripted", "other/two"])
        changed = await run.conn.set_config_option(config_id="model", session_id=session, value="other/two")
        assert changed.config_options[0].current_value == "other/two"
        await run.say(session, "hello")
        assert run.editor.text().endswith("I am two.")
        for wrong in ({"mode_id": "root"},):
            with pytest.raises(RequestError, match="Invalid params"):
                await run.conn.set_session_mode(session_id=session, **wrong)
        with pytest.raises(RequestError, match="Invalid params"):
            await run.conn.set_config_option(config_id="model", session_id=session, value="other/three")


async def test_a_killed_agent_and_its_session(tmp_path: Path) -> None:
    """The client sees the end; the next process finishes the call that was running, then answers the next prompt."""
    store = tmp_path / "store.db"
    process = await start("plain", tmp_path, store)
    run = Running(process, Editor())
    session = await opened(run, tmp_path)
    prompt = asyncio.create_task(run.say(session, "hello", "wait for me"))
    assert await prompt == "end_turn"
    prompt = asyncio.create_task(run.say(session, "wait"))
    await run.editor.until(lambda: run.editor.text().endswith("I wait"))
    process.kill()
    with pytest.raises(ConnectionError):
        await prompt
    assert await process.wait() == -9
    await run.conn.close()
    async with running("plain", tmp_path, store=store) as run:
        await run.conn.initialize(1)
        await run.conn.resume_session(session_id=session, cwd=str(tmp_path))
        prompt = asyncio.create_task(run.say(session, "and now"))
        await run.editor.until(lambda: run.editor.text() == "I wait")  # the interrupted call is continued
        await run.conn.cancel(session)
        assert await prompt == "cancelled"
        assert await run.say(session, "and now") == "end_turn"
        assert run.editor.text() == "I waitand now "


async def test_closed_standard_input_ends_the_process(tmp_path: Path) -> None:
    """A running call is interrupted and closed first: its session can be called at once."""
    store = tmp_path / "store.db"
    async with running("plain", tmp_path, store=store) as run:
        session = await opened(run, tmp_path)
        prompt = asyncio.create_task(run.say(session, "wait"))
        await run.editor.until(lambda: run.editor.text() == "I wait")
    with pytest.raises(ConnectionError):
        await prompt
    async with SqlStore(f"sqlite:///{store}") as kept:
        assert [(info.id, info.status) for info in await kept.sessions()] == [(session, "idle")]


async def test_a_loaded_session_sends_its_conversation(tmp_path: Path) -> None:
    store = tmp_path / "store.db"
    async with running("plain", tmp_path, store=store) as run:
        session = await opened(run, tmp_path)
        await run.say(session, 'call fetch {"count": 0}')
        await run.say(session, "think")
    async with running("plain", tmp_path, store=store) as run:
        await run.conn.initialize(1)
        await run.conn.load_session(cwd=str(tmp_path), session_id=session, mcp_servers=[])
        assert [one.session_update for _, one in run.editor.updates] == [
            "user_message_chunk",
            "tool_call",
            "tool_call_update",
            "agent_message_chunk",
            "user_message_chunk",
            "agent_thought_chunk",
            "agent_message_chunk",
        ]
        for wrong in ("acp_" + "0" * 32, f"{session}/t1", "../x", session.upper()):
            with pytest.raises(RequestError, match="not found"):
                await run.conn.load_session(cwd=str(tmp_path), session_id=wrong, mcp_servers=[])


async def test_only_sessions_of_editors_are_opened(tmp_path: Path) -> None:
    """A store may hold other programs' sessions."""
    store = tmp_path / "store.db"
    async with running("plain", tmp_path, store=store) as run:
        session = await opened(run, tmp_path)
        await run.say(session, "secret")
    async with SqlStore(f"sqlite:///{store}") as kept:
        await kept.fork(session, "of-another-program")
    async with running("plain", tmp_path, store=store) as run:
        await run.conn.initialize(1)
        with pytest.raises(RequestError, match="not found"):
            await run.conn.load_session(cwd=str(tmp_path), session_id="of-another-program", mcp_servers=[])
        with pytest.raises(RequestError, match="not found"):
            await run.say(session, "not opened yet")


async def test_a_failure_is_an_error_without_passwords(tmp_path: Path) -> None:
    async with running("plain", tmp_path) as run:
        session = await opened(run, tmp_path)
        with pytest.raises(RequestError) as failed:
            await run.say(session, "fail")
        assert "secret" not in str(failed.value.data)
        assert "is gone" in str(failed.value.data)
        with pytest.raises(RequestError, match="Invalid params"):
            await run.say(session, "  ")
        with pytest.raises(RequestError, match="Invalid params"):
            await run.conn.new_session("relative", mcp_servers=[])
        assert await run.say(session, "hello") == "end_turn"


HOSTILE = [
    b"not json",
    b"[]",
    b"5",
    b'"text"',
    b"null",
    b"{}",
    b"\xff\xfe",
    b"[" * 100_000,
    b'{"a":' * 100_000,
    b'{"jsonrpc":"2.0","id":1,"method":"session/new","params":{"cwd":NaN}}',
    b'{"jsonrpc":"2.0","id":{"a":1},"result":{}}',
    b'{"jsonrpc":"2.0","id":[1],"method":"initialize"}',
    b'{"jsonrpc":"2.0","id":1,"method":["initialize"]}',
    b'{"jsonrpc":"2.0","id":0,"error":"text"}',
    b"x" * (33 * 1024 * 1024),
]


async def test_hostile_lines_are_answered_and_survived(tmp_path: Path) -> None:
    """Malformed, nested, huge: each has an error as its answer, and the connection works on."""
    process = await start("plain", tmp_path)
    try:
        for line in HOSTILE:
            process.stdin.write(line + b"\n")
            await process.stdin.drain()
            answer = json.loads(await process.stdout.readline())
            assert answer["error"]["code"] in (-32700, -32600), line[:80]
            assert answer["id"] is None
        for params in (
            {"cwd": "/", "mcpServers": "x"},
            {"cwd": 5, "mcpServers": []},
            None,
            [],
            {"sessionId": ["x"], "prompt": []},
        ):
            for method in ("session/new", "session/prompt", "session/load", "nonsense", "_x"):
                asked = {"jsonrpc": "2.0", "id": "n", "method": method, "params": params}
                process.stdin.write(json.dumps(asked).encode() + b"\n")
                answer = json.loads(await process.stdout.readline())
                assert answer["id"] == "n"
                assert "error" in answer
        process.stdin.write(b'{"jsonrpc":"2.0","id":2,"method":"session/new","params":{"cwd":"/","mcpServers":[]}}\n')
        mine = json.loads(await process.stdout.readline())["result"]["sessionId"]
        hidden = {"sessionId": "acp_x", "prompt": [{"type": "text", "text": "x"}], "_meta": {"session_id": mine}}
        asked = {"jsonrpc": "2.0", "id": 3, "method": "session/prompt", "params": hidden}
        process.stdin.write(json.dumps(asked).encode() + b"\n")
        assert json.loads(await process.stdout.readline())["error"]["message"] == "Resource not found"
        process.stdin.write(b'{"jsonrpc": "2.0", "id": 4, "method": "initialize"')  # a line without an end
        process.stdin.close()
        assert await process.stdout.read() == b""
        assert await asyncio.wait_for(process.wait(), 30) == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


@pytest.mark.ci
async def test_what_cannot_be_served_says_so(tmp_path: Path) -> None:
    for name, text in (("number", "not an Agent"), ("nothing", "has no 'nothing'")):
        process = await start(name, tmp_path)
        assert await process.stdout.read() == b""
        assert await process.wait() == 2
        assert text in (tmp_path / "stderr").read_text()
    with (tmp_path / "file").open("wb+") as file:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "agentflow", "acp", "editor_agents:plain"),
            stdin=file,
            stdout=file,
            stderr=-1,
            cwd=HERE,
        )
        _, said = await process.communicate()
    assert "is started by an editor" in said.decode()
