"""Content: data blocks from bytes, files and addresses, how they are shown, and that what they hold is kept once."""

from __future__ import annotations

import base64
import os
from pathlib import Path
from typing import Any

import pytest
from eventlog import Recorder
from loguru import logger

from agentflow import Agent, DataBlock, Msg, TextBlock, ToolUseBlock, tool
from agentflow._support.media import in_bytes, name_in, sniff, type_of_bytes
from agentflow.errors import UsageError
from agentflow.loop.history import fold_events
from agentflow.plugins import EventLog
from agentflow.state import MemoryStore
from agentflow.testing import ScriptedModel
from agentflow.vocabulary.facts import Fact
from agentflow.vocabulary.messages import as_messages
from agentflow.vocabulary.saving.codec import fact_from_json, fact_to_json

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
"""One transparent pixel."""


@pytest.mark.parametrize(
    ("data", "name", "expected"),
    [
        (PNG, None, "image/png"),
        (PNG, "lies.jpg", "image/png"),
        (b"\xff\xd8\xff\xe0", None, "image/jpeg"),
        (b"GIF87a...", None, "image/gif"),
        (b"GIF89a...", None, "image/gif"),
        (b"BM\x66\0\0\0\0\0\0\0\x36", None, "image/bmp"),
        (b"BM" + (20_000_000).to_bytes(4, "little") + b"\0\0\0\0\x36", None, "image/bmp"),
        (b"BM is no picture", None, "text/plain"),
        (b"II*\0", None, "image/tiff"),
        (b"MM\0*", None, "image/tiff"),
        (b"RIFF1234AVI LIST", None, "video/x-msvideo"),
        (b"\xff\xfb\x90", None, "audio/mpeg"),
        (b"\xff\xf1\x50", None, "audio/aac"),
        (b"OggS\0", None, "audio/ogg"),
        (b"fLaC\0", None, "audio/flac"),
        (b"\x1aE\xdf\xa3", None, "video/webm"),
        (b"\x1f\x8b\x08", None, "application/gzip"),
        (b"\0\0\0\x18ftypheic", None, "image/heic"),
        (b"\0\0\0\x18ftypmif1", None, "image/heif"),
        (b"\0\0\0\x14ftypqt  ", None, "video/quicktime"),
        (b"RIFF1234WEBPVP8 ", None, "image/webp"),
        (b"RIFF1234WAVEfmt ", "x.bin", "audio/wav"),
        (b"\0\0\0\x18ftypM4A mp42", None, "audio/mp4"),
        (b"\0\0\0\x18ftypisomiso2", None, "video/mp4"),
        (b"\0\0\0\x1cftypavif", None, "image/avif"),
        (b"%PDF-1.7", None, "application/pdf"),
        (b"ID3\x04", None, "audio/mpeg"),
        (b"# Title", "notes.md", "text/markdown"),
        (b"a,b\n", "t.csv", "text/csv"),
        ("ä".encode() * 2048 + "€".encode(), None, "text/plain"),
        (b"x" + "€".encode() * 2000, None, "text/plain"),
        (b"\x93\x94 no text", None, "application/octet-stream"),
        (b"\0\0\0", None, "application/octet-stream"),
        (b"", None, "application/octet-stream"),
        (b"PK\x03\x04...", None, "application/zip"),
        (b"PK\x03\x04...", "a.docx", "application/vnd.openxmlformats-officedocument.wordprocessingml.document"),
    ],
)
def test_the_type_is_told_from_the_bytes_then_from_the_name(data: bytes, name: str | None, expected: str) -> None:
    """What bytes begin with beats the name; text is what reads as text, also where the part looked at cuts a character."""
    assert type_of_bytes(data, name) == expected


def test_nothing_is_sniffed_where_nothing_is_told() -> None:
    """Text and unknown bytes have no signature."""
    assert [sniff(b"hello"), sniff(bytes(20)), sniff(b"")] == [None, None, None]


def test_a_file_becomes_a_block(tmp_path: Path) -> None:
    """Type, name and size are the file's; the bytes come back as they were."""
    path = tmp_path / "pixel.png"
    path.write_bytes(PNG)
    block = DataBlock.from_path(path)
    assert (block.media_type, block.name, block.size, block.kind) == ("image/png", "pixel.png", len(PNG), "image")
    assert block.to_bytes() == PNG
    assert DataBlock.from_path(path, "image/x-mine", name="a").media_type == "image/x-mine"


def test_what_is_no_fit_file_is_refused(tmp_path: Path) -> None:
    """Too large, empty, a folder, a pipe without a writer: each is refused at once, with the remedy."""
    big, empty, pipe = tmp_path / "big", tmp_path / "empty", tmp_path / "pipe"
    big.write_bytes(bytes(2000))
    empty.touch()
    os.mkfifo(pipe)
    with pytest.raises(UsageError, match=r"'.*big' has more than the 1 kB that max_bytes= allows\. .*max_bytes=2000"):
        DataBlock.from_path(big, max_bytes=1000)
    with pytest.raises(UsageError, match="empty is empty"):
        DataBlock.from_path(empty)
    with pytest.raises(UsageError, match="not a regular file"):
        DataBlock.from_path(pipe)
    with pytest.raises(IsADirectoryError):
        DataBlock.from_path(tmp_path)
    with pytest.raises(FileNotFoundError):
        DataBlock.from_path(tmp_path / "nothing")
    assert DataBlock.from_path(big, max_bytes=None).size == 2000


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 1000])
def test_the_size_is_that_of_the_content(size: int) -> None:
    """Padding is not counted."""
    assert DataBlock.from_bytes(bytes(size)).size == size


def test_an_address_is_passed_on_and_not_fetched() -> None:
    """The type comes from the ending or the argument; a data address becomes content."""
    block = DataBlock.from_url("https://example.com/a/cat.webp?size=2#x")
    assert (block.media_type, block.url, block.data, block.size) == ("image/webp", block.url, None, None)
    assert DataBlock.from_url("https://example.com/cat", "image/png").media_type == "image/png"
    assert DataBlock.from_url("gs://bucket/talk.mp3").kind == "audio"
    held = DataBlock.from_url("data:image/png;base64," + base64.b64encode(PNG).decode())
    assert (held.media_type, held.to_bytes(), held.url) == ("image/png", PNG, None)
    assert DataBlock.from_url("data:text/plain,caf%C3%A9").to_bytes() == "café".encode()


def test_a_name_from_an_address_is_no_path() -> None:
    """What is escaped in the last part stays in one part."""
    assert name_in("https://e.com/a/%2e%2e%2f%2e%2e%2fetc%2fpasswd%00") == ".._.._etc_passwd_"
    assert name_in("https://e.com/..%5c..%5cwin.ini") == ".._.._win.ini"


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("https://example.com/cat", "media_type='image/png'"),
        ("file:///etc/passwd", r"DataBlock\.from_path"),
        ("cat.png", r"DataBlock\.from_path"),
        ("data:image/png;base64", "no comma"),
        ("data:image/png;base64,???", "not base64"),
    ],
)
def test_what_is_no_fit_address_is_refused(url: str, said: str) -> None:
    """The error shows the right form."""
    with pytest.raises(UsageError, match=said):
        DataBlock.from_url(url)


def test_blocks_of_wrong_parts_are_refused() -> None:
    """Bytes instead of base64 text, text instead of bytes, content of an address, and invalid base64."""
    with pytest.raises(UsageError, match="from_bytes"):
        DataBlock("image/png", data=PNG)  # pyright: ignore[reportArgumentType]
    with pytest.raises(UsageError, match="from_path"):
        DataBlock.from_bytes("a.png")  # pyright: ignore[reportArgumentType]
    with pytest.raises(UsageError, match=r"agentflow\.models\.fetch"):
        DataBlock.from_url("https://example.com/a.png").to_bytes()
    with pytest.raises(UsageError, match="not base64"):
        DataBlock("image/png", data="?").to_bytes()


def test_a_message_is_made_of_words_and_blocks() -> None:
    """Several parts, lists among them; what is shown names the data in its place."""
    image = DataBlock.from_bytes(PNG)
    msg = Msg.user("What is this?", image, ["And", TextBlock("this?")])
    assert msg.content == (TextBlock("What is this?"), image, TextBlock("And"), TextBlock("this?"))
    assert (msg.data, msg.shown) == ((image,), "What is this?[image/png, 70 bytes]Andthis?")
    with pytest.raises(UsageError, match=r"Msg\.user\('What is this\?', block\)"):
        as_messages(image)  # pyright: ignore[reportArgumentType]
    with pytest.raises(UsageError, match=r"Msg\.user\('What is this\?', block\)"):
        as_messages(["What is this?", image])  # pyright: ignore[reportArgumentType]


def test_what_a_block_holds_is_never_shown() -> None:
    """Type and size are shown instead."""
    block = DataBlock.from_bytes(bytes(34_120), "image/png", name="a.png")
    assert (str(block), repr(block)) == (
        "[a.png, image/png, 34 kB]",
        "DataBlock('image/png', data=<34 kB>, name='a.png')",
    )
    assert repr(DataBlock("image/png", url="https://e.com/a")) == "DataBlock('image/png', url='https://e.com/a')"
    assert [in_bytes(n) for n in (0, 999, 1000, 1499, 999_499, 999_500, 9_960_000, 5 * 10**9)] == [
        "0 bytes",
        "999 bytes",
        "1 kB",
        "1.5 kB",
        "999 kB",
        "1 MB",
        "10 MB",
        "5 GB",
    ]


@tool(type="read")
async def photo() -> Any:
    """Take a photo."""
    return ["Here:", DataBlock.from_bytes(PNG, name="photo.png")]


def looking(**options: Any) -> Agent:
    script = ScriptedModel([Msg.assistant(ToolUseBlock("t1", "photo")), "A pixel."])
    return Agent("eye", script, tools=[photo], **options)


async def test_logs_say_type_and_size() -> None:
    """No line of the log holds what a picture is made of, whole values in JSON included."""
    lines: list[str] = []
    sink = logger.add(lambda line: lines.append(str(line)), level="DEBUG", format="{message}")
    try:
        await looking(hooks=[EventLog(json=True)]).call(Msg.user("Like this?", DataBlock.from_bytes(PNG)))
    finally:
        logger.remove(sink)
    text = "".join(lines)
    assert "[image/png, 70 bytes]" in text
    assert "[photo.png, image/png, 70 bytes]" in text
    assert "iVBOR" not in text


async def test_content_is_stored_once() -> None:
    """A picture of the input is in one fact, and comes back from it."""
    store = MemoryStore()
    seen = Recorder()
    agent = looking(store=store, hooks=[seen])
    reply = await agent.call(Msg.user("Like this?", DataBlock.from_bytes(b"GIF89a of yesterday")), session="s")
    facts: list[Fact] = list(store.load("s"))
    texts = [fact_to_json(fact) for fact in facts]
    gif = base64.b64encode(b"GIF89a of yesterday").decode()
    assert sum(text.count(gif) for text in texts) == 1
    assert [fact_from_json(text) for text in texts] == facts
    history = await agent.history("s")
    assert [block.to_bytes() for msg in history for block in msg.data] == [b"GIF89a of yesterday"]
    assert history[2].tool_results[0].shown == "Here:[photo.png, image/png, 70 bytes]"
    assert reply.text == "A pixel."
    assert tuple(fold_events(seen.seen)) == tuple(history)


async def test_an_agent_as_a_tool_hands_its_pictures_on() -> None:
    """What the inner reply shows is part of the result that the asking model gets."""
    painter = Agent("painter", ScriptedModel([Msg.assistant("Done.", DataBlock.from_bytes(PNG))]))
    boss = Agent(
        "boss",
        ScriptedModel([Msg.assistant(ToolUseBlock("t1", "painter", {"message": "a dot"})), "Thanks."]),
        tools=[painter.as_tool()],
    )
    await boss.call("Paint a dot.")
    assert boss.session().messages[2].tool_results[0].shown == "Done.[image/png, 70 bytes]"
