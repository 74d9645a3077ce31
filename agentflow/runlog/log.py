"""`RunLog`: a run as it was written down, with what its entries refer to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from agentflow.chunks import ModelChunk
from agentflow.errors import StoreError
from agentflow.ground.validation import adapter_of, first_problem
from agentflow.messages import Msg, ToolResultBlock, ToolUseBlock
from agentflow.runlog.entries import (
    CallEntry,
    Entry,
    EventEntry,
    HookEntry,
    LogEntry,
    MessageEntry,
    RequestEntry,
    ToolEntry,
    ToolResultEntry,
    ToolUseEntry,
)
from agentflow.specs import Usage

__all__ = ["LISTS", "RunLog", "chunk_of", "usage_of"]

LISTS = ("input_messages", "history")
"""The fields that hold a list of messages by what it has in common with the one before it."""


class RunLog:
    """A run log: its entries, in the order in which things happened, and what they refer to.

    Args:
        entries: The entries.
        name: Where it is from.

    Attributes:
        calls: Each call's first entry, by its id.
    """

    def __init__(self, entries: Sequence[Entry], name: str = "") -> None:
        self._entries: list[Entry] = []
        self.name = name
        self.calls: dict[str, CallEntry] = {}
        self._messages: dict[str, MessageEntry] = {}
        self._uses: dict[str, ToolUseEntry] = {}
        self._results: dict[str, ToolResultEntry] = {}
        self._tools: dict[str, ToolEntry] = {}
        self._made: dict[str, Msg] = {}
        self._lists: dict[tuple[int, str], _List] = {}
        self._last: dict[str, _List] = {}
        for entry in entries:
            self.add(entry)

    @property
    def entries(self) -> Sequence[Entry]:
        """All entries, in the order in which things happened."""
        return self._entries

    def add(self, entry: Entry) -> None:
        """Take in an entry that was written behind the others."""
        self._entries.append(entry)
        match entry:
            case MessageEntry():
                self._messages[entry.ref] = entry
            case ToolUseEntry():
                self._uses[entry.ref] = entry
            case ToolResultEntry():
                self._results[entry.ref] = entry
            case ToolEntry():
                self._tools[entry.ref] = entry
            case CallEntry():
                self.calls.setdefault(entry.call, entry)
            case EventEntry():
                for name in LISTS:
                    if name in entry.fields:
                        self._link(entry, entry.call, name, entry.fields[name])
            case HookEntry():
                for change in entry.changes:
                    if change.field in LISTS:
                        self._link(entry, entry.call, "before", change.before)
                        self._link(entry, entry.call, "after", change.after)
            case RequestEntry() if entry.messages is not None:
                listed = {"keep": entry.messages.keep, "add": entry.messages.add}
                self._link(entry, entry.call, "messages", listed, apart=bool(entry.side))
            case _:
                pass

    def _link(self, entry: Entry, call: str, name: str, data: Mapping[str, Any], apart: bool = False) -> None:
        """Note a list of messages, behind the one before it in its call."""
        one = _List(self._last.get(call), data.get("keep", 0), tuple(data.get("add", ())))
        self._lists[id(entry), name] = one
        if not apart:  # what is asked on the side has nothing in common with it
            self._last[call] = one

    def __repr__(self) -> str:
        return f"RunLog({self.name!r}, {len(self.calls)} calls, {len(self.entries)} entries)"

    @property
    def header(self) -> LogEntry:
        """Its first line."""
        return next(entry for entry in self.entries if isinstance(entry, LogEntry))

    def events(self, call: str | None = None) -> Iterator[EventEntry]:
        """The events but the chunks, of one call or of all."""
        for entry in self.entries:
            if isinstance(entry, EventEntry) and (call is None or entry.call == call):
                yield entry

    # ---- runs

    def root_of(self, call: str) -> CallEntry:
        """The call at the top, of which a sub-agent's call is a part."""
        entry = self.calls[call]
        while entry.parent is not None and entry.parent.call in self.calls:
            entry = self.calls[entry.parent.call]
        return entry

    @property
    def run_ids(self) -> tuple[str, ...]:
        """The runs at the top: a file of its own holds one."""
        return tuple(dict.fromkeys(self.root_of(call).run for call in self.calls))

    def run(self, run_id: str) -> RunLog:
        """The log of one of them, with its sub-agents.

        Raises:
            StoreError: It is not in here.
        """
        if run_id not in self.run_ids:
            known = ", ".join(self.run_ids) or "none"
            raise StoreError(f"{self.name or 'This log'} does not tell of a run {run_id!r}; its runs: {known}.")
        mine = {call for call in self.calls if self.root_of(call).run == run_id}
        return RunLog([entry for entry in self.entries if getattr(entry, "call", None) in (None, *mine)], self.name)

    # ---- what entries refer to

    def message(self, ref: str) -> Msg:
        """A message; without its texts where the log keeps digests only.

        Raises:
            StoreError: It is not in here.
        """
        made = self._made.get(ref)
        if made is None:
            data = _found(self._messages, ref, "message").message
            blocks = [self._block(block) for block in data.get("content", ())]
            made = self._made[ref] = _checked(Msg, {**data, "content": blocks}, "message", ref)
        return made

    def _block(self, block: dict[str, Any]) -> dict[str, Any]:
        ref = block.get("ref")
        if ref is None:
            return block
        if block["type"] == "tool_use":
            return {"type": "tool_use", **_found(self._uses, ref, "tool call").value}
        return {"type": "tool_result", **_found(self._results, ref, "tool result").value}

    def blocks(self, ref: str) -> list[dict[str, Any]]:
        """A message's blocks as data; calls and results by their `ref`."""
        return _found(self._messages, ref, "message").message.get("content", [])

    def use_data(self, ref: str) -> dict[str, Any]:
        """A tool call as data."""
        return _found(self._uses, ref, "tool call").value

    def result_data(self, ref: str) -> dict[str, Any]:
        """A tool's result as data."""
        return _found(self._results, ref, "tool result").value

    def tool_use(self, ref: str) -> ToolUseBlock:
        """A tool call, by its ref."""
        value = _found(self._uses, ref, "tool call").value
        return _checked(ToolUseBlock, {"type": "tool_use", **value}, "tool call", ref)

    def tool_result(self, ref: str) -> ToolResultBlock:
        """A tool's result, by its ref."""
        value = _found(self._results, ref, "tool result").value
        return _checked(ToolResultBlock, {"type": "tool_result", **value}, "tool result", ref)

    def tool(self, ref: str) -> dict[str, Any]:
        """What a model is told of a tool: `name`, `description`, `parameters`, `type`."""
        return _found(self._tools, ref, "tool").value

    def digest(self, ref: str) -> str:
        """What stands for a message, a call or a result in a log that keeps no texts; else empty."""
        message = self._messages.get(ref)
        if message is not None and message.digest:
            return message.digest
        for table in (self._uses, self._results):
            value = table.get(ref)
            if value is not None and "digest" in value.value:
                return str(value.value["digest"])
        return ""

    def message_refs(self) -> tuple[str, ...]:
        """The refs of all messages."""
        return tuple(self._messages)

    def messages(self, entry: EventEntry | HookEntry | RequestEntry, field: str = "input_messages") -> tuple[str, ...]:
        """The refs of a list of messages.

        Args:
            entry: The entry that holds it.
            field: `"input_messages"`, `"history"`; of a hook's entry `"before"` or `"after"`. A request has one list.

        Raises:
            StoreError: The entry has no such list.
        """
        if isinstance(entry, RequestEntry):
            field = "messages"
        found = self._lists.get((id(entry), field))
        if found is None:
            raise StoreError(f"A {type(entry).__name__} without a list of messages {field!r}.")
        return found.refs()


class _List:
    """A list of messages: so many of the one before it, then others."""

    __slots__ = ("add", "before", "keep", "known")

    def __init__(self, before: _List | None, keep: int, add: tuple[str, ...]) -> None:
        self.before = before if keep else None
        self.keep = keep
        self.add = add
        self.known: tuple[str, ...] | None = None

    def refs(self) -> tuple[str, ...]:
        chain: list[_List] = [self]
        while chain[-1].known is None and chain[-1].before is not None:
            chain.append(chain[-1].before)
        refs = chain[-1].known or chain[-1].add
        for one in reversed(chain[:-1]):
            refs = (*refs[: one.keep], *one.add)
        self.known = refs
        return refs


def _found(table: Mapping[str, Any], ref: str, what: str) -> Any:
    found = table.get(ref)
    if found is None:
        raise StoreError(f"The log does not tell of the {what} {ref!r}: the line that says it is missing.")
    return found


def _checked(kind: Any, data: object, what: str, ref: str) -> Any:
    try:
        return adapter_of(kind).validate_python(data)
    except (ValueError, TypeError) as error:
        raise StoreError(f"The {what} {ref!r} of this log cannot be read: {first_problem(error)}.") from error


def chunk_of(piece: str | Mapping[str, Any]) -> ModelChunk:
    """A piece of a reply as the chunk that it was."""
    if isinstance(piece, str):
        return ModelChunk(piece)
    return cast("ModelChunk", adapter_of(ModelChunk).validate_python(piece))


def usage_of(data: Mapping[str, Any] | None) -> Usage:
    """A usage as it stands in an entry."""
    return Usage(**(data or {}))
