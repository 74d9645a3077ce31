"""`OffloadResults`: long tool results are stored elsewhere; the model gets a preview, and a tool to read the rest."""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Awaitable, Iterable, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentflow._support.logs import log_failure
from agentflow.errors import ToolArgumentError, UsageError
from agentflow.hooks.hook import Hook
from agentflow.tools.tool import Tool, tool
from agentflow.vocabulary.context import RunContext
from agentflow.vocabulary.events import HookEvent, PostActing
from agentflow.vocabulary.messages import DataBlock, TextBlock, ToolResultBlock, tool_result

__all__ = ["OffloadResults"]

NOTE = (
    "{preview}\n[This result has {size} characters; the first {shown} are above. "
    'Read on with read_offloaded(id="{id}", offset={shown}).]'
)
READER = "read_offloaded"
_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
_UNSAFE = re.compile(r"[^A-Za-z0-9_-]+")


@dataclass
class _Stored:
    """The texts that a session has stored in memory."""

    def __post_init__(self) -> None:
        self.texts: dict[str, str] = {}  # not a dataclass field: large texts should not be saved with the session


class OffloadResults(Hook):
    """Stores long tool results outside the conversation: history and model get the start and an id, and a tool reads the rest.

    Results are stored in the session's memory (the default; lost with the session), in files (`directory/SESSION/ID.txt`), or
    in your own mapping, by (session id, result id). A session cannot read another session's results. Images and files in a
    result are not stored; they remain in the result.

    Priority 910 (output), after `Redaction`: data removed from a result is not stored either.

    Args:
        over_chars: Results with more characters are stored.
        preview_chars: The length of the preview.
        directory: The folder of the files; created with the first one. `forget(session_id)` deletes a session's files.
        store: Instead of a directory, any mutable mapping, such as one that drops old entries.

    Example:
        >>> agent = Agent("reader", "openai/gpt-5", tools=[search], hooks=[OffloadResults(over_chars=20_000)])
    """

    priority = 910
    on_failure = "skip"
    events = (PostActing,)

    def __init__(
        self,
        over_chars: int = 8_000,
        *,
        preview_chars: int = 1_000,
        directory: str | Path | None = None,
        store: MutableMapping[tuple[str, str], str] | None = None,
    ) -> None:
        if directory is not None and store is not None:
            raise UsageError("OffloadResults takes directory= or store=, not both.")
        if not 0 <= preview_chars <= over_chars or over_chars < 1:
            raise UsageError(
                f"OffloadResults(over_chars={over_chars}, preview_chars={preview_chars}): preview_chars must not exceed "
                "over_chars, and over_chars must be at least 1."
            )
        self.over_chars = over_chars
        self.preview_chars = preview_chars
        self.directory = Path(directory) if directory is not None else None
        self.store = store

    def on_event(self, event: HookEvent) -> HookEvent | Awaitable[HookEvent]:
        """Store a long result, and replace it with a preview."""
        # A result of the reading tool is a part of a stored result.
        if not isinstance(event, PostActing) or event.tool_use.name == READER:
            return event
        text = event.tool_result.text
        return event if len(text) <= self.over_chars else self._offload(event, text)

    async def _offload(self, event: PostActing, text: str) -> PostActing:
        id_ = _id_for(event.tool_use.id)
        try:
            await self._write(event.context, id_, text)
        except Exception as error:  # for example because the disk is full or the store fails
            log_failure(
                "WARNING",
                error,
                "a result of {} ({} characters) could not be stored elsewhere, and stays in the history in full",
                event.tool_use.name,
                len(text),
                where=event,
            )
            return event
        shown = self.preview_chars
        note = NOTE.format(preview=text[:shown], size=len(text), shown=shown, id=id_)
        event.tool_result = _with_text(event.tool_result, note)
        return event

    def tools(self) -> Iterable[Tool[..., Any]]:
        """Return the tool that reads stored results."""
        return (self.read_offloaded,)

    @tool(type="read")
    async def read_offloaded(self, context: RunContext, id: str, offset: int = 0, length: int = 4_000) -> str:  # noqa: A002
        """Read a part of a long tool result that was stored.

        Args:
            id: The id below the preview of the result.
            offset: The first character.
            length: The number of characters.
        """
        text = await self._read(context, id) if _ID.fullmatch(id) else None
        if text is None:
            raise ToolArgumentError(
                f"No result is stored under the id {id!r:.80} in this conversation. Use an id from a preview, or call the tool "
                "that returned the result again."
            )
        if offset < 0 or length < 1:
            raise ToolArgumentError(
                f"offset={offset}, length={length}: offset must be 0 or more and length 1 or more; the result has {len(text)} "
                "characters."
            )
        # A read returns at most as much as the longest result that is not stored.
        end = min(offset + min(length, self.over_chars), len(text))
        rest = f"read on with offset={end}" if end < len(text) else "this is the end"
        return f"{text[offset:end]}\n[Characters {min(offset, end)} to {end} of {len(text)}; {rest}.]"

    async def forget(self, session_id: str) -> int:
        """Delete the files of a session.

        Args:
            session_id: The session's id.

        Returns:
            The number of deleted results.
        """
        if self.directory is None:
            return 0
        return await asyncio.to_thread(_delete, self._folder(session_id))

    async def _write(self, context: RunContext, id_: str, text: str) -> None:
        if self.directory is not None:
            await asyncio.to_thread(_write_file, self._folder(context.session_id) / f"{id_}.txt", text)
        elif self.store is not None:
            self.store[context.session_id, id_] = text
        else:
            context.session_state[_Stored].texts[id_] = text

    async def _read(self, context: RunContext, id_: str) -> str | None:
        if self.directory is not None:
            return await asyncio.to_thread(_read_file, self._folder(context.session_id) / f"{id_}.txt")
        if self.store is not None:
            return self.store.get((context.session_id, id_))
        return context.session_state[_Stored].texts.get(id_)

    def _folder(self, session_id: str) -> Path:
        """Return the folder of a session, for ids with any characters."""
        assert self.directory is not None
        digest = hashlib.sha256(session_id.encode("utf-8", "surrogatepass")).hexdigest()[:16]
        # Different ids may have the same readable part; the hash makes the names different.
        return self.directory / f"{_UNSAFE.sub('-', session_id)[:40]}-{digest}"


def _id_for(tool_use_id: str) -> str:
    """Return the id of a stored result: the id of its call, which is unique in the conversation and the same in a replay, or
    the hash of that id if it is not safe as a file name.
    """
    if _ID.fullmatch(tool_use_id):
        return tool_use_id
    return hashlib.sha256(tool_use_id.encode("utf-8", "surrogatepass")).hexdigest()[:24]


def _with_text(result: ToolResultBlock, text: str) -> ToolResultBlock:
    content = result.content
    if isinstance(content, str):
        return tool_result(result.tool_use_id, result.name, text, result.state)
    data = [block for block in content if isinstance(block, DataBlock)]
    return tool_result(result.tool_use_id, result.name, (TextBlock(text), *data), result.state)


def _write_file(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode("utf-8", "surrogatepass"))


def _read_file(path: Path) -> str | None:
    try:
        return path.read_bytes().decode("utf-8", "surrogatepass")
    except FileNotFoundError:
        return None


def _delete(folder: Path) -> int:
    if not folder.is_dir():
        return 0
    files = list(folder.glob("*.txt"))
    for path in files:
        path.unlink(missing_ok=True)
    if not any(folder.iterdir()):
        folder.rmdir()
    return len(files)
