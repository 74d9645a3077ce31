"""`RunLog`: a recorded run, with the objects that its entries refer to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, cast

from agentflow._support.validation import adapter_of, first_problem
from agentflow.errors import StoreError
from agentflow.recording.entries import (
    CallEntry,
    Entry,
    EventEntry,
    FactEntry,
    HookEntry,
    LogEntry,
    MessageEntry,
    RequestEntry,
    ToolEntry,
    ToolResultEntry,
    ToolUseEntry,
)
from agentflow.recording.fields import MessageList, ToolData, ToolResultData, ToolUseData, UsageData, VerdictData
from agentflow.vocabulary.chunks import ModelChunk
from agentflow.vocabulary.messages import Msg, ToolResultBlock, ToolUseBlock
from agentflow.vocabulary.saving.codec import decisions_from_dict
from agentflow.vocabulary.specs import ToolSpec, Usage
from agentflow.vocabulary.verdicts import Resolution

__all__ = ["LISTS", "RunLog", "chunk_of", "usage_of"]

LISTS: Final = ("input_messages", "history")
"""The fields that hold a list of messages, encoded by its difference from the previous list."""


class RunLog:
    """A run log: its entries in the order of events, and the objects that they refer to.

    Args:
        entries: The entries.
        name: The source of the log.

    Attributes:
        calls: The first entry of each call, by its id.
    """

    def __init__(self, entries: Sequence[Entry], name: str = "") -> None:
        self._entries: list[Entry] = []
        self.name = name
        self.calls: dict[str, CallEntry] = {}
        self._messages: dict[str, MessageEntry] = {}
        self._uses: dict[str, ToolUseEntry] = {}
        self._results: dict[str, ToolResultEntry] = {}
        self._tools: dict[str, ToolEntry] = {}
        self._tables = {
            "message": self._messages,
            "tool call": self._uses,
            "tool result": self._results,
            "tool": self._tools,
            "call": self.calls,
        }
        self._made: dict[str, Msg] = {}
        # The keys contain the id of an entry, since entries contain dicts and cannot be hashed; `_entries` keeps them alive.
        self._lists: dict[tuple[int, str], _List] = {}
        self._last: dict[str, _List] = {}
        for entry in entries:
            self.add(entry)

    @property
    def entries(self) -> Sequence[Entry]:
        """All entries, in the order of events."""
        return self._entries

    def has(self, kind: str, ref: str) -> bool:
        """Return whether the log contains an object.

        Args:
            kind: `"message"`, `"tool call"`, `"tool result"`, `"tool"` or `"call"`.
            ref: Its ref; for a call, its id.
        """
        return ref in self._tables[kind]

    def add(self, entry: Entry) -> None:
        """Add the next entry, which `LogReader` has validated against the earlier ones.

        Raises:
            ValueError: The entry's list claims to share more messages with the previous list than that list has.
        """
        self._entries.append(entry)
        match entry:
            case MessageEntry():
                self._messages[entry.ref] = entry
                self._made.pop(entry.ref, None)  # a later entry with this ref replaces the message
            case ToolUseEntry():
                self._uses[entry.ref] = entry
            case ToolResultEntry():
                self._results[entry.ref] = entry
            case ToolEntry():
                self._tools[entry.ref] = entry
            case CallEntry():
                self.calls.setdefault(entry.call, entry)  # another writer may add one too
            case EventEntry():
                for name in LISTS:
                    listed = entry.fields.get(name)
                    if listed is not None:
                        self._link(entry, entry.call, name, listed)
            case HookEntry():
                for change in entry.changes:
                    if change.field in LISTS:
                        for side, value in (("before", change.before), ("after", change.after)):
                            self._link(entry, entry.call, side, adapter_of(MessageList).validate_python(value))
            case RequestEntry() if entry.messages is not None:
                self._link(entry, entry.call, "messages", entry.messages, separate=bool(entry.side))
            case _:
                pass

    def _link(self, entry: Entry, call: str, name: str, data: MessageList, separate: bool = False) -> None:
        """Record a list of messages as the latest of its call."""
        last = self._last.get(call)
        if data.keep > (0 if last is None else last.length):
            raise ValueError(f"{name}: keep is {data.keep}, but the previous list has fewer messages")
        record = _List(last, data.keep, data.add)
        self._lists[id(entry), name] = record
        if not separate:  # the next list does not build on the list of a side call
            self._last[call] = record

    def __repr__(self) -> str:
        return f"RunLog({self.name!r}, {len(self.calls)} calls, {len(self.entries)} entries)"

    @property
    def header(self) -> LogEntry:
        """The first line of the log."""
        return next(entry for entry in self.entries if isinstance(entry, LogEntry))

    def events(self, call: str | None = None) -> Iterator[EventEntry]:
        """Iterate over the events except chunks, of one call or of all."""
        for entry in self.entries:
            if isinstance(entry, EventEntry) and (call is None or entry.call == call):
                yield entry

    # ---- runs

    def root_of(self, call: str) -> CallEntry:
        """Return the top-level call to which a sub-agent's call belongs."""
        entry = self.calls[call]
        while entry.parent is not None and entry.parent.call in self.calls:
            entry = self.calls[entry.parent.call]
        return entry

    @property
    def run_ids(self) -> tuple[str, ...]:
        """The top-level runs; a file for a single run has one."""
        return tuple(dict.fromkeys(self.root_of(call).run for call in self.calls))

    def run(self, run_id: str) -> RunLog:
        """Return the log of one run, including its sub-agents.

        Raises:
            StoreError: The run is not in the log.
        """
        if run_id not in self.run_ids:
            known = ", ".join(self.run_ids) or "none"
            raise StoreError(f"{self.name or 'This log'} has no run {run_id!r}; its runs: {known}.")
        calls = {call for call in self.calls if self.root_of(call).run == run_id}
        return RunLog([entry for entry in self.entries if getattr(entry, "call", None) in (None, *calls)], self.name)

    # ---- objects that entries refer to

    def message(self, ref: str) -> Msg:
        """Return a message, without texts if the log records only digests.

        Raises:
            StoreError: The message is not in the log.
        """
        msg = self._made.get(ref)
        if msg is None:
            data = _found(self._messages, ref, "message").message
            blocks = [self._block(block) for block in data.get("content", ())]
            msg = self._made[ref] = _checked(Msg, {**data, "content": blocks}, "message", ref)
        return msg

    def _block(self, block: dict[str, Any]) -> dict[str, Any]:
        match block:
            case {"type": "tool_use", "ref": str(ref)}:
                return {"type": "tool_use", **self.use_data(ref)}
            case {"type": "tool_result", "ref": str(ref)}:
                return {"type": "tool_result", **self.result_data(ref)}
            case _:
                return block

    def blocks(self, ref: str) -> list[dict[str, Any]]:
        """Return a message's blocks as data, with calls and results by their `ref`."""
        return _found(self._messages, ref, "message").message.get("content", [])

    def use_data(self, ref: str) -> ToolUseData:
        """Return a tool call as data."""
        return _found(self._uses, ref, "tool call").value

    def result_data(self, ref: str) -> ToolResultData:
        """Return a tool's result as data."""
        return _found(self._results, ref, "tool result").value

    def tool_use(self, ref: str) -> ToolUseBlock:
        """Return a tool call."""
        return _checked(ToolUseBlock, {"type": "tool_use", **self.use_data(ref)}, "tool call", ref)

    def tool_result(self, ref: str) -> ToolResultBlock:
        """Return a tool's result."""
        return _checked(ToolResultBlock, {"type": "tool_result", **self.result_data(ref)}, "tool result", ref)

    def tool(self, ref: str) -> ToolData:
        """Return a tool's description as data."""
        return _found(self._tools, ref, "tool").value

    def tool_spec(self, ref: str) -> ToolSpec:
        """Return a tool's description; without its schema if the log records only digests."""
        value = self.tool(ref)
        return ToolSpec(value["name"], value.get("description", ""), value.get("parameters"))

    def carried(self, value: object) -> Any:
        """Decode the value of a verdict: messages and results as objects, anything else as data.

        Args:
            value: The value of the verdict's field.
        """
        name, held = _only(value)
        kind, refs = self.carried_refs(value)
        if refs and name == "messages":
            return tuple(map(self.message, refs))
        if refs:
            return self.message(refs[0]) if kind == "message" else self.tool_result(refs[0])
        return held if name == "data" else value

    def carried_refs(self, value: object, *, known: bool = True) -> tuple[str, tuple[str, ...]]:
        """Return the refs in a verdict's value.

        Args:
            value: The value of the verdict's field.
            known: Whether a value with refs that are not in the log is plain data. Logs without entry numbers do not wrap
                plain data that looks like a ref.

        Returns:
            The kind of object, as for `has`, and the refs; no refs if the value is plain data.
        """
        name, held = _only(value)
        kind = "tool result" if name == "tool_result" else "message"
        refs = cast("list[object]", held) if name == "messages" and isinstance(held, list) else [held]
        found = tuple([ref for ref in refs if isinstance(ref, str) and (not known or self.has(kind, ref))])
        return kind, found if name in _REFERS and len(found) == len(refs) else ()

    def decisions(self, entry: FactEntry) -> dict[str, Resolution]:
        """Return the decisions with which a call was resumed, by the key of the request that each answers.

        Raises:
            ValueError: The decisions are invalid. (`LogReader` refuses a log with invalid decisions.)
        """
        if entry.fact != "call_resumed":
            return {}
        decisions = entry.fields.get("decisions", {})
        if not all(len(decision) > 1 for decision in decisions.values()):  # the log records no texts
            return {}
        return decisions_from_dict({key: self._as_saved(decision) for key, decision in decisions.items()})

    def _as_saved(self, decision: VerdictData) -> dict[str, Any]:
        """Convert a decision to the codec's form."""
        data: dict[str, Any] = {**decision, "verdict": decision["verdict"].lower()}
        for name, value in decision.items():
            carried = self.carried(value)
            if isinstance(carried, Msg | ToolResultBlock):
                data.update({name: carried, "form": "message" if isinstance(carried, Msg) else "result"})
            elif carried is not value:
                data[name] = carried
        return data

    def digest(self, ref: str) -> str:
        """Return the digest of a message, call or result in a log without texts; otherwise an empty string."""
        message = self._messages.get(ref)
        if message is not None and message.digest:
            return message.digest
        for table in (self._uses, self._results):
            value = table.get(ref)
            if value is not None and "digest" in value.value:
                return value.value["digest"]
        return ""

    def message_refs(self) -> tuple[str, ...]:
        """Return the refs of all messages."""
        return tuple(self._messages)

    def messages(self, entry: EventEntry | HookEntry | RequestEntry, field: str = "input_messages") -> tuple[str, ...]:
        """Return the refs of a list of messages.

        Args:
            entry: The entry that contains the list.
            field: `"input_messages"` or `"history"`; for a hook's entry `"before"` or `"after"`; unused for a request.

        Raises:
            StoreError: The entry has no such list.
        """
        if isinstance(entry, RequestEntry):
            field = "messages"
        found = self._lists.get((id(entry), field))
        if found is None:
            raise StoreError(f"This {type(entry).__name__} has no list of messages {field!r}.")
        return found.refs()


class _List:
    """A list of messages: the first `keep` of the previous list, then others."""

    __slots__ = ("add", "before", "keep", "known", "length")

    def __init__(self, before: _List | None, keep: int, add: tuple[str, ...]) -> None:
        self.before = before if keep else None  # a list that shares nothing ends the chain
        self.keep = keep
        self.add = add
        self.length = keep + len(add)
        self.known: tuple[str, ...] | None = None

    def refs(self) -> tuple[str, ...]:
        # A loop, not recursion: a long conversation has thousands of lists. `known` saves a second walk.
        chain: list[_List] = [self]
        while chain[-1].known is None and chain[-1].before is not None:
            chain.append(chain[-1].before)
        refs = chain[-1].known or chain[-1].add
        for change in reversed(chain[:-1]):
            refs = (*refs[: change.keep], *change.add)
        self.known = refs
        return refs


_REFERS = ("message", "messages", "tool_result")


def _only(value: object) -> tuple[str, object]:
    """Return the only key of an object and its value; an empty key if it has none or several."""
    if isinstance(value, Mapping) and len(items := cast("Mapping[str, object]", value)) == 1:
        return next(iter(items.items()))
    return "", None


def _found(table: Mapping[str, Any], ref: str, what: str) -> Any:
    found = table.get(ref)
    if found is None:
        raise StoreError(f"The log does not contain the {what} {ref!r:.80}: its line is missing.")
    return found


def _checked(kind: Any, data: object, what: str, ref: str) -> Any:
    try:
        return adapter_of(kind).validate_python(data)
    except (ValueError, TypeError) as error:
        raise StoreError(f"The {what} {ref!r:.80} of this log cannot be read: {first_problem(error)}.") from error


def chunk_of(piece: str | Mapping[str, Any]) -> ModelChunk:
    """Convert a recorded chunk of a reply to a `ModelChunk`."""
    if isinstance(piece, str):
        return ModelChunk(piece)
    return cast("ModelChunk", adapter_of(ModelChunk).validate_python(piece))


def usage_of(data: UsageData | None) -> Usage:
    """Convert the usage of an entry."""
    return Usage(**(data or {}))
