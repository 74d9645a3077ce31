"""`OffloadResults`: big results are stored elsewhere, and the model reads them in parts."""

import asyncio
import json
import string
from pathlib import Path
from typing import Any

import pytest
from eventlog import use
from hypothesis import given, settings
from hypothesis import strategies as st
from wired import Wired

from agentflow import Agent, Hook, Msg, Session, tool
from agentflow.errors import UsageError
from agentflow.plugins.offload import OffloadResults
from agentflow.testing.scripted import ScriptedModel
from agentflow.testing.wire import Say, UseTool
from agentflow.vocabulary.events import PostActing
from agentflow.vocabulary.messages import DataBlock, TextBlock, ToolUseBlock

NUMBERS = " ".join(map(str, range(2000)))
"""A text of 8889 characters; each part of it can be told from every other."""


@tool(type="read")
async def numbers() -> str:
    """Many numbers."""
    return NUMBERS


def id_in(text: str) -> str:
    """The id that a preview names."""
    return text.split('id="')[1].split('"')[0]


def files(folder: Path) -> list[Path]:
    """What was written."""
    return sorted(folder.rglob("*.txt"))


def last(messages: Any) -> str:
    return messages[-1].text


def stored_in(kind: str, folder: Path) -> OffloadResults:
    """A hook that puts things where the test's parameter says."""
    if kind == "files":
        return OffloadResults(1000, preview_chars=100, directory=folder)
    if kind == "mapping":
        return OffloadResults(1000, preview_chars=100, store={})
    return OffloadResults(1000, preview_chars=100)


@pytest.mark.parametrize("how", ["call", "stream"])
@pytest.mark.parametrize("kind", ["memory", "files"])
async def test_the_model_reads_what_was_put_aside(wired: Wired, how: str, kind: str, tmp_path: Path) -> None:
    """The provider gets a preview with an id, the model asks for the rest, and gets exactly that part."""

    def brain(request: Any) -> Any:
        calls = sum(message["role"] == "assistant" for message in request.messages)
        if calls == 0:
            return UseTool("numbers")
        if calls == 1:
            return UseTool("read_offloaded", {"id": id_in(request.results[0].text), "offset": 4000, "length": 50})
        return Say("Read.")

    async with wired.serve(brain) as server:
        agent = Agent("a", wired.model(server), tools=[numbers], hooks=[stored_in(kind, tmp_path)])
        if how == "stream":
            async with agent.stream("Go") as events:
                shown = [event.tool_result.text async for event in events if isinstance(event, PostActing)]
        else:
            await agent.call("Go")
            shown = [result.text for msg in agent.session().messages for result in msg.tool_results]
    assert server.requests[0].tool_names == ("numbers", "read_offloaded")
    preview, part = (server.requests[1].results[0].text, server.requests[2].results[0].text)
    assert shown == [preview, part]
    assert preview.startswith(NUMBERS[:100] + "\n[This result has 8889 characters; the first 100 are above.")
    assert part == f"{NUMBERS[4000:4050]}\n[Characters 4000 to 4050 of 8889; read on with offset=4050.]"
    assert NUMBERS[:200] not in json.dumps([request.body for request in server.requests])


@pytest.mark.parametrize("kind", ["memory", "files", "mapping"])
async def test_the_pieces_make_the_whole(kind: str, tmp_path: Path) -> None:
    """Reading on from the end of the last part gives the text without a gap, and reports its end."""
    read: list[str] = []

    def brain(request: Any) -> Any:
        text = last(request.messages)
        if len(request.messages) == 1:
            return use("t0", "numbers")
        piece, _, rest = text.rpartition("\n[")
        if "This result has" in rest:
            brain.id = id_in(text)  # type: ignore[attr-defined]
            return use("t1", "read_offloaded", id=brain.id, length=900)  # type: ignore[attr-defined]
        read.append(piece)
        if "this is the end" in rest:
            return "Done."
        offset = int(rest.split("offset=")[1].split(".")[0])
        return use(f"t{len(request.messages)}", "read_offloaded", id=brain.id, offset=offset, length=900)  # type: ignore[attr-defined]

    agent = Agent("a", ScriptedModel(brain), tools=[numbers], hooks=[stored_in(kind, tmp_path)])
    await agent.call("Go")
    assert "".join(read) == NUMBERS


BAD_IDS = [
    "../../secret",
    "..",
    "/etc/passwd",
    "a/b",
    "a\\b",
    "",
    "x" * 65,
    "result_unknown",
    "secret.txt",
    "a\0b",
    "é",
]


@pytest.mark.parametrize("id_", BAD_IDS)
async def test_an_id_is_no_path(id_: str, tmp_path: Path) -> None:
    """Whatever a model writes as an id: it reads only results of its own session."""
    (tmp_path / "secret.txt").write_text("hidden")
    (tmp_path / "results").mkdir()
    hook = OffloadResults(1000, directory=tmp_path / "results")
    model = ScriptedModel([use("t0", "numbers"), use("t1", "read_offloaded", id=id_), "Done."])
    agent = Agent("a", model, tools=[numbers], hooks=[hook])
    await agent.call("Go", session="s")
    (result,) = model.requests[-1].messages[-1].tool_results
    assert result.state == "error"
    assert "No result is stored under the id" in result.text
    assert "hidden" not in result.text


@pytest.mark.parametrize("kind", ["memory", "files", "mapping"])
async def test_a_session_reads_its_own_only(kind: str, tmp_path: Path) -> None:
    """An id of another session is unknown, and sessions with odd names stay inside the directory."""
    hook = stored_in(kind, tmp_path / "in" / "here")
    model = ScriptedModel([use("t0", "numbers"), "Done."])
    agent = Agent("a", model, tools=[numbers], hooks=[hook])
    await agent.call("Go", session="../..")
    id_ = id_in(model.requests[-1].messages[-1].text)
    for session, found in (("../..", "success"), (".", "error"), ("../../x", "error")):
        model = ScriptedModel([use("t1", "read_offloaded", id=id_), "Done."])
        reader = Agent("b", model, hooks=[hook])
        await reader.call("Go", session=agent.session(session) if kind == "memory" else session)
        assert model.requests[-1].messages[-1].tool_results[0].state == found
    assert [path.relative_to(tmp_path).parts[0] for path in files(tmp_path)] == ["in"] * (kind == "files")


async def test_an_odd_id_of_a_call_gives_a_safe_one(tmp_path: Path) -> None:
    """Ids of calls come from outside: one that would be a path is not used as one."""
    model = ScriptedModel([use("../../t 0", "numbers"), "Done."])
    hook = OffloadResults(1000, directory=tmp_path / "results")
    await Agent("a", model, tools=[numbers], hooks=[hook]).call("Go", session="s")
    (path,) = files(tmp_path)
    assert (path.parent.parent, path.stem) == (tmp_path / "results", id_in(last(model.requests[-1].messages)))
    assert set(path.stem) <= set(string.ascii_letters + string.digits + "_-")


async def test_files_are_forgotten_on_request(tmp_path: Path) -> None:
    """`forget` deletes one session's files and no others; reading a deleted one reports that."""
    hook = OffloadResults(1000, directory=tmp_path)
    model = ScriptedModel([use("t0", "numbers"), "Done.", use("t0", "numbers"), "Done."])
    agent = Agent("a", model, tools=[numbers], hooks=[hook])
    await agent.call("Go", session="one")
    await agent.call("Go", session="two")
    assert len(files(tmp_path)) == 2
    assert await hook.forget("one") == 1
    assert await hook.forget("one") == 0
    assert len(files(tmp_path)) == 1
    assert await OffloadResults().forget("one") == 0


async def test_a_store_that_fails_keeps_the_result_whole() -> None:
    """A full disk costs the saving, not the result."""

    class Full(dict[tuple[str, str], str]):
        def __setitem__(self, key: tuple[str, str], value: str) -> None:
            raise OSError("no space left on device")

    model = ScriptedModel([use("t0", "numbers"), "Done."])
    agent = Agent("a", model, tools=[numbers], hooks=[OffloadResults(1000, store=Full())])
    assert (await agent.call("Go")).outcome == "completed"
    assert last(model.requests[-1].messages) == NUMBERS


async def test_pictures_stay_and_states_stay() -> None:
    """Only text is stored elsewhere; a failed result is still a failure."""

    @tool(type="read")
    async def draw() -> list[Any]:
        """Draw."""
        return [TextBlock(NUMBERS), DataBlock("image/png", "AAAA")]

    @tool(type="read")
    async def fail() -> str:
        """Fail."""
        raise ValueError(NUMBERS)

    model = ScriptedModel([[use("t1", "draw"), use("t2", "fail")], "Done."])
    await Agent("a", model, tools=[draw, fail], hooks=[OffloadResults(1000, preview_chars=10)]).call("Go")
    drawn, failed = model.requests[-1].messages[-1].tool_results
    assert isinstance(drawn.content, tuple)
    assert drawn.content[1] == DataBlock("image/png", "AAAA")
    assert drawn.text.startswith("0 1 2 3 4 \n[This result has 8889")
    assert failed.state == "error"
    assert failed.text.startswith("ValueError\n[This result has 4024 characters")


async def test_what_a_redacting_hook_took_out_is_not_put_aside(tmp_path: Path) -> None:
    """Offloading comes last: files hold what the model may see."""

    class Redact(Hook):
        priority = 500
        events = (PostActing,)

        def on_event(self, event: Any) -> Any:
            old = event.tool_result
            event.tool_result = type(old)(old.tool_use_id, old.name, old.text.replace("1999", "****"), old.state)
            return event

    model = ScriptedModel([use("t0", "numbers"), "Done."])
    hooks = [OffloadResults(1000, directory=tmp_path), Redact()]
    await Agent("a", model, tools=[numbers], hooks=hooks).call("Go")
    (path,) = files(tmp_path)
    assert path.read_text().endswith("1998 ****")


async def test_fifty_runs_share_one_hook(tmp_path: Path) -> None:
    """Runs of two agents at once: each reads back its own result."""

    @tool(type="read")
    async def name(who: str) -> str:
        """Say a name very often."""
        return " ".join([who] * 500)

    def brain(request: Any) -> Any:
        who, text = request.messages[0].text, last(request.messages)
        if len(request.messages) == 1:
            return [ToolUseBlock(Msg.user("").id, "name", {"who": who})]
        if len(request.messages) == 3:
            arguments = {"id": id_in(text), "offset": 200, "length": 300}
            return [ToolUseBlock(Msg.user("").id, "read_offloaded", arguments)]
        return "mine" if set(text.partition("\n")[0].split()) == {who} else "mixed up"

    for hook in (stored_in("memory", tmp_path), stored_in("files", tmp_path)):
        agents = [Agent(n, ScriptedModel(brain), tools=[name], hooks=[hook]) for n in "ab"]
        calls = [agents[n % 2].call(f"w{n:02}", session=Session.fresh()) for n in range(50)]
        assert [reply.text for reply in await asyncio.gather(*calls)] == ["mine"] * 50


@settings(max_examples=40, deadline=None)
@given(text=st.text(max_size=300), over=st.integers(1, 100), preview=st.integers(0, 100), offset=st.integers(-5, 320))
def test_any_text_comes_back(text: str, over: int, preview: int, offset: int) -> None:
    """Preview and parts are split by characters, and any text survives a store."""
    preview = min(preview, over)
    store: dict[tuple[str, str], str] = {}

    @tool(type="read")
    async def say() -> str:
        """Say it."""
        return text

    def brain(request: Any) -> Any:
        if len(request.messages) == 1:
            return use("t0", "say")
        if len(request.messages) == 3 and store:
            ((_, id_),) = store
            return use("t1", "read_offloaded", id=id_, offset=offset)
        return "Done."

    async def run() -> None:
        hook = OffloadResults(over, preview_chars=preview, store=store)
        model = ScriptedModel(brain)
        await Agent("a", model, tools=[say], hooks=[hook]).call("Go")
        found = model.requests[1].messages[-1].text
        if not store:
            assert len(found) <= over or len(text) <= over
            return
        (kept,) = store.values()
        assert len(kept) > over
        assert found.startswith(kept[:preview])
        piece = model.requests[2].messages[-1].tool_results[0]
        assert piece.state == ("success" if offset >= 0 else "error")
        if offset >= 0:
            assert piece.text.startswith(kept[offset : offset + over])

    asyncio.run(run())


def test_arguments_that_make_no_sense() -> None:
    """They are refused when the hook is built."""
    with pytest.raises(UsageError, match="not both"):
        OffloadResults(directory="x", store={})
    with pytest.raises(UsageError, match="preview"):
        OffloadResults(10, preview_chars=11)


async def test_several_results_of_a_session_are_stored(tmp_path: Path) -> None:
    """In one folder, each in a file of its own."""
    calls = [ToolUseBlock(f"t{n}", "numbers") for n in range(3)]
    agent = Agent(
        "a", ScriptedModel([calls[:2], calls[2], "Done."]), tools=[numbers], hooks=[stored_in("files", tmp_path)]
    )
    await agent.call("Go")
    assert [path.read_text("utf-8") for path in files(tmp_path)] == [NUMBERS] * 3
    assert len({path.parent for path in files(tmp_path)}) == 1
