"""Content over both wires: pictures in messages and tool results, citations, and generated pictures and sounds."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest
from wired import EVERY, Wired

from agentflow import Agent, Approve, DataBlock, Msg, tool
from agentflow.errors import UnsupportedContentError
from agentflow.models.chunks_in import ChunkReader
from agentflow.models.content_out import content_rules, refusal
from agentflow.state import MemoryStore
from agentflow.state.sql import SqlStore
from agentflow.testing.wire import Cite, UseTool, WireReply, WireRequest
from agentflow.vocabulary.chunks import ModelChunk, fold
from agentflow.vocabulary.messages import Citation, TextBlock

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
DATA = base64.b64encode(PNG).decode()
URL = f"data:image/png;base64,{DATA}"


every = pytest.mark.parametrize(("wire", "adapter"), EVERY)


@pytest.fixture(autouse=True)
def _closed(closed_clients: None) -> None:
    """Each test leaves no open connection."""


@tool(type="read")
async def shot(what: str) -> Any:
    """Take a screenshot."""
    return [f"The {what}:", DataBlock.from_bytes(PNG, name="shot.png"), "as of now"]


IMAGE = {
    "anthropic": {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": DATA}},
    "openai": {"type": "image_url", "image_url": {"url": URL}},
    "responses": {"type": "input_image", "image_url": URL},
}


def parts(request: WireRequest, place: int) -> list[Any]:
    content = request.messages[place]["content"]
    assert isinstance(content, list)
    return content


@every
async def test_a_tool_is_offered_with_its_description(wire: str, adapter: str) -> None:
    """The model reads the first lines of the docstring, on each wire."""
    wired = Wired(wire, adapter)
    async with wired.serve(["Hello."]) as server:
        await Agent("eye", wired.model(server), tools=[shot]).call("Hi")
    [offered] = server.requests[0].body["tools"]  # type: ignore[misc, union-attr]
    entry: Any = offered.get("function", offered)  # type: ignore[union-attr]
    assert (entry["name"], entry["description"]) == ("shot", "Take a screenshot.")


@every
async def test_a_picture_of_the_user_and_one_of_a_tool(wire: str, adapter: str) -> None:
    """Both arrive; if results can hold text only, the picture follows in the next user message, after all results."""
    wired = Wired(wire, adapter)
    async with wired.serve([UseTool("shot", {"what": "page"}), "A dot, both times."]) as server:
        agent = Agent("eye", wired.model(server), tools=[shot])
        reply = await agent.call(Msg.user("Is it like this?", DataBlock.from_bytes(PNG)))
    assert reply.text == "A dot, both times."
    first, second = server.requests
    text = "input_text" if wire == "responses" else "text"
    assert parts(first, -1) == [{"type": text, "text": "Is it like this?"}, IMAGE[wire]]
    if wire == "responses":
        assert second.messages[2]["output"] == [{"type": text, "text": "The page:\n\nas of now"}, IMAGE[wire]]
        assert len(second.messages) == 3
    elif wire == "anthropic":
        result = parts(second, -1)[0]
        assert result["content"] == [{"type": "text", "text": "The page:\n\nas of now"}, IMAGE[wire]]
        assert len(second.messages) == 3
    else:
        assert second.messages[2]["content"] == "The page:\n\nas of now\n(see the attached content below)"
        assert parts(second, 3) == [{"type": "text", "text": "[content of the result of shot]"}, IMAGE[wire]]


@every
async def test_citations_are_kept(wire: str, adapter: str) -> None:
    """They are at the text, in reply and history, come back from a store, and are separate from the text."""
    wired, store = Wired(wire, adapter), MemoryStore()
    cited = WireReply("Grass is green.", cites=(Cite("https://e.com/grass", "Grass", "it is green"),))
    async with wired.serve([cited, "Yes."]) as server:
        agent = Agent("reader", wired.model(server), store=store)
        reply = await agent.call("What colour?", session="s")
        [citation] = reply.citations
        await agent.call("Sure?", session="s")
    assert (citation.url, citation.title) == ("https://e.com/grass", "Grass")
    assert citation.text == ("it is green" if wire == "anthropic" else None)
    assert citation.raw["type"] == ("web_search_result_location" if wire == "anthropic" else "url_citation")
    assert reply.content == (TextBlock("Grass is green.", citations=(citation,)),)
    again = Agent("reader", "openai/gpt-5", store=store)
    assert (await again.history("s"))[1].citations == (citation,)
    told = server.requests[1].messages[1]["content"]
    words: dict[str, Any] = {"type": "text", "text": "Grass is green."}
    if (wire, adapter) == ("anthropic", "direct"):  # LiteLLM leaves them out
        words["citations"] = [dict(citation.raw)]
        assert told == [words]
    else:
        assert told in ("Grass is green.", [words])


@pytest.mark.parametrize("adapter", ["direct", "litellm"])
async def test_a_model_hands_out_pictures_and_sounds(adapter: str) -> None:
    """Pictures are blocks of the reply; raw samples become a WAV file whose transcript is the text."""
    wired = Wired("openai", adapter)
    sound = base64.b64encode(bytes(480)).decode()
    replies = [WireReply("A dot.", images=(URL,)), WireReply("Hello", audio=sound), WireReply(images=(URL,)), "Ok."]
    async with wired.serve(replies) as server:
        agent = Agent("painter", wired.model(server))
        drawn = await agent.call("Draw a dot.")
        spoken = await agent.call("Speak.")
        silent = await agent.call("Draw another.")
        await agent.call("Thanks.")
    assert (drawn.shown, drawn.data[0].to_bytes()) == ("A dot.[image/png, 70 bytes]", PNG)
    assert spoken.shown == "Hello[audio/wav, 524 bytes]"
    assert spoken.data[0].to_bytes()[-480:] == bytes(480)
    assert (silent.text, silent.shown) == ("", "[image/png, 70 bytes]")
    told = [message["content"] for message in server.requests[3].messages if message["role"] == "assistant"]
    assert told == ["A dot.", "Hello", "[image/png, 70 bytes]"]


def test_words_behind_a_citation_begin_a_block() -> None:
    """The cited text is exact; a citation that comes first belongs to the following text."""
    one, two = Citation(url="https://e.com/1"), Citation(url="https://e.com/2")
    words = [ModelChunk("Grass "), ModelChunk("is green"), ModelChunk(citations=(one,)), ModelChunk(citations=(two,))]
    folded = fold([*words, ModelChunk(" and "), ModelChunk("wet.")])
    assert folded.content == (TextBlock("Grass is green", citations=(one, two)), TextBlock(" and wet."))
    assert folded.text == "Grass is green and wet."
    first = fold([ModelChunk(citations=(one,)), ModelChunk("Gr"), ModelChunk("ass")])
    assert first.content == (TextBlock("Gr", citations=(one,)), TextBlock("ass"))
    over = fold([*words, ModelChunk("No.", restart=True)])
    assert over.content == (TextBlock("No."),)


@pytest.mark.parametrize(
    "delta",
    [
        {"images": [{"image_url": {"url": "data:image/png;base64,?"}}, {"image_url": None}, 3, None]},
        {"images": [{"image_url": {"url": "javascript:alert(1)"}}]},
        {"images": "none"},
        {"annotations": [None, 3, "x"]},
        {"annotations": {"url": 3}},
        {"audio": "x"},
        {"audio": {"data": "???"}},
        {"audio": {"data": ""}},
        {"provider_specific_fields": {"citation": "x"}},
    ],
)
def test_nonsense_in_place_of_content_is_left_out(delta: dict[str, Any]) -> None:
    """Content that cannot be read does not end a reply."""
    reader = ChunkReader("openai/gpt-5", sealed=False)
    chunks = [*reader.read({"choices": [{"delta": {"content": "Hi", **delta}, "finish_reason": "stop"}]})]
    assert fold(chunks).content == (TextBlock("Hi"),)


@pytest.mark.parametrize(("wire", "adapter"), EVERY)
async def test_what_a_model_does_not_take_is_refused_before_it_is_sent(wire: str, adapter: str) -> None:
    """The error names model, content and the supported kinds; afterwards the conversation continues, with a note
    about what was left out.
    """
    wired = Wired(wire, adapter)
    async with wired.serve(["I hear nothing."]) as server:
        agent = Agent("ear", wired.model(server), store=MemoryStore())
        sound = DataBlock.from_bytes(b"ID3 and so on", name="talk.mp3")
        said = r"cannot be sent \[talk.mp3, audio/mpeg, 13 bytes\]: it takes no aud"
        with pytest.raises(UnsupportedContentError, match=said) as caught:
            await agent.call(Msg.user("Listen:", sound), session="s")
        assert (caught.value.kind, caught.value.retryable, server.requests) == ("unsupported_content", False, [])
        await agent.call("Well?", session="s")
    told = str(server.requests[0].messages[0]["content"])
    assert (
        "[talk.mp3, audio/mpeg, 13 bytes] (left out: this model takes no audio; it takes images, PDF files, text)"
        in told
    )


@pytest.mark.parametrize(("wire", "adapter"), EVERY)
async def test_what_a_tool_gives_and_no_model_takes_is_told_in_words(wire: str, adapter: str) -> None:
    """A tool's recording does not end the call: the model reads what it was."""

    @tool
    async def record() -> Any:
        """Record."""
        return DataBlock.from_bytes(b"\x1aE\xdf\xa3 video", name="a.webm")

    wired = Wired(wire, adapter)
    async with wired.serve([UseTool("record"), "I cannot see it."]) as server:
        reply = await Agent("eye", wired.model(server), tools=[record]).call("Record.")
    assert reply.text == "I cannot see it."
    told = str(server.requests[1].messages[2])
    assert "[a.webm, video/webm, 10 bytes] (left out: this model takes no video" in told


@pytest.mark.parametrize(
    ("family", "media_type", "why"),
    [
        ("openai", "image/png", None),
        ("openai", "image/jpg", None),
        ("openai", "image/heic", "takes no image/heic; of images it takes png, jpeg, gif, webp"),
        ("gemini", "image/heic", None),
        ("gemini", "video/mp4", None),
        ("deepseek", "image/png", "takes no images; it takes text"),
        ("compatible", "video/mp4", None),
        ("anthropic", "application/zip", "takes no other files; it takes images, PDF files, text"),
    ],
)
def test_each_family_has_its_rows(family: Any, media_type: str, why: str | None) -> None:
    """Rows list the supported content; a family without rows is sent everything."""
    assert refusal(DataBlock(media_type, data="AAAA"), family) == why
    assert all(rule.source and rule.mark in "DIB" for rules in content_rules().values() for rule in rules.values())


@pytest.mark.parametrize("wire", ["openai", "anthropic"])
async def test_content_outlives_a_suspension_and_a_restart(wire: str, tmp_path: Path) -> None:
    """A picture of the user and one of a waiting tool: both arrive from the database, in another agent."""

    @tool(requires_approval=True)
    async def secret_shot() -> Any:
        """Take a screenshot of what is secret."""
        return DataBlock.from_bytes(PNG, name="secret.png")

    wired = Wired(wire)
    url = f"sqlite:///{tmp_path}/sessions.db"
    cited = WireReply("A dot.", cites=(Cite("https://e.com/dot", "Dot"),))
    async with wired.serve([UseTool("secret_shot"), cited, "Yes."]) as server:
        first = Agent("eye", wired.model(server), tools=[secret_shot], store=SqlStore(url))
        asked = await first.call(Msg.user("Like this?", DataBlock.from_bytes(PNG)), session="s")
        assert asked.outcome == "suspended"
        second = Agent("eye", wired.model(server), tools=[secret_shot], store=SqlStore(url))
        reply = await second.resume("s", {asked.pending[0].id: Approve()})
        third = Agent("eye", wired.model(server), tools=[secret_shot], store=SqlStore(url))
        await third.call("Sure?", session="s")
        history = await third.history("s")
    assert [block.to_bytes() for msg in history for block in msg.data] == [PNG]
    assert history[2].tool_results[0].shown == "[secret.png, image/png, 70 bytes]"
    assert history[3].citations == reply.citations != ()
    for request in server.requests[1:]:
        assert str(request.body["messages"]).count(DATA) == 2
