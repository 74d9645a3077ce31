"""The records of a `Recorder`: the effects of hooks in a run log, and the explanation of a message from them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, TypeAlias, cast

from agentflow.recording.encoding import digest_of
from agentflow.recording.entries import (
    EventEntry,
    FinishedEntry,
    HookChange,
    HookEntry,
    Injection,
    LogEntry,
    StartedEntry,
)
from agentflow.recording.log import LISTS, RunLog
from agentflow.vocabulary.messages import Msg, TextBlock, ToolResultBlock, ToolUseBlock
from agentflow.vocabulary.saving.codec import msg_to_dict
from agentflow.vocabulary.specs import ModelOptions, ToolSpec
from agentflow.vocabulary.text import message_text

__all__ = [
    "AddedRecord",
    "Edit",
    "Explanation",
    "HookRecord",
    "InjectedRecord",
    "MessageRecord",
    "Recording",
    "RunRecord",
    "Shown",
    "records_of",
    "show",
]

Via: TypeAlias = Literal["on_event", "around", "shadow"]

# ---- values


@dataclass(frozen=True, slots=True)
class Shown:
    """A value in a record.

    Attributes:
        digest: The same for equal values, ignoring message ids. Empty if there was no value.
        short: Its beginning, as text; empty if the recorder keeps digests only.
        parts: The id and digest of each message, call or result in it.
    """

    digest: str
    short: str = ""
    parts: tuple[tuple[str, str], ...] = ()


def _shortened(text: str, short: int) -> str:
    if len(text) <= short:
        return text
    return f"{text[: max(0, short - 3)]}..."[:short]


def _message_digest(msg: Msg) -> str:
    """Return a digest that messages with equal role and content share, whatever their ids."""
    return digest_of(json.dumps([msg.role, msg.to_dict()["content"]], sort_keys=True, default=str))


def show(value: Any, short: int) -> Shown:
    """Convert a value of a writable field.

    Args:
        value: Messages, a message, a call, a result, results, tools, options or text; None if there was no value.
        short: The maximum number of characters of the short form.
    """
    match value:
        case None:
            return Shown("")
        case Msg():
            digest = _message_digest(value)  # without the id, so that copies of a message have equal digests
            return Shown(digest, _shortened(message_text(value, " "), short), ((value.id, digest),))
        case ToolUseBlock():
            digest = digest_of(f"{value.name} {value.raw}")
            return Shown(digest, _shortened(f"{value.name} {value.raw}", short), ((value.id, digest),))
        case ToolResultBlock():
            blocks = value.content if isinstance(value.content, str) else [_plain(block) for block in value.content]
            digest = digest_of(json.dumps([value.state, blocks], default=str))
            return Shown(digest, _shortened(f"{value.state}: {value.shown}", short), ((value.tool_use_id, digest),))
        case str():
            return Shown(digest_of(value), _shortened(value, short))
        case ModelOptions():
            options = {
                f.name: option for f in fields(value) if (option := getattr(value, f.name)) is not None and option != {}
            }
            text = ", ".join(f"{name}={option!r}" for name, option in options.items()) or "(none set)"
            return Shown(digest_of(text), _shortened(text, short))
        case Sequence():
            return _show_many(cast("Sequence[Any]", value), short)
        case _:
            return Shown(digest_of(repr(value)), _shortened(repr(value), short))


def _plain(block: Any) -> object:
    return block.text if isinstance(block, TextBlock) else asdict(block)


def _show_many(values: Sequence[Any], short: int) -> Shown:
    if values and all(isinstance(value, ToolSpec) for value in values):
        names = ", ".join(spec.name for spec in values)
        whole = json.dumps([[spec.name, spec.description, dict(spec.parameters)] for spec in values], default=str)
        return Shown(digest_of(whole), _shortened(names, short))
    return _joined([show(value, short) for value in values], short)


def _joined(shown: Sequence[Shown], short: int) -> Shown:
    """Combine several values into one."""
    if not shown:
        return Shown(digest_of(""), _shortened("(none)", short))
    parts = tuple(part for item in shown for part in item.parts)
    texts = " | ".join(item.short for item in shown) if short else ""
    return Shown(digest_of(" ".join(item.digest for item in shown)), _shortened(texts, short), parts)


# ---- records


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """The base of all records: the position in the run."""

    run_id: str = ""
    call_id: str = ""
    session_id: str = ""
    source: str = ""
    iteration: int = 0
    seq: int = 0
    time: float = 0.0


@dataclass(frozen=True, slots=True)
class Edit:
    """A field before and after a hook; for an `around` wrapper, the result of the work and the result of the wrapper."""

    field: str
    before: Shown
    after: Shown


@dataclass(frozen=True, slots=True, kw_only=True)
class HookRecord(RunRecord):
    """A call of a hook with an effect (or any call, if `every_call` of the recorder is set).

    Attributes:
        hook: The hook's name.
        event: The event's name.
        via: How the hook was called: by `on_event`, by `around`, or as a shadow hook, whose effects are not applied.
        edits: The changes by the hook.
        verdict: The verdict's name, empty if there is none.
        detail: The text of the verdict or the error, shortened.
        error: The name of the exception that it raised, empty if there is none.
        duration_ms: Its duration, by the run's clock.
        tool_use_id: The tool call of the event.
    """

    hook: str
    event: str
    via: Via = "on_event"
    edits: tuple[Edit, ...] = ()
    verdict: str = ""
    detail: str = ""
    error: str = ""
    duration_ms: float = 0.0
    tool_use_id: str = ""
    priority: float = 100

    def __str__(self) -> str:
        effects: list[str] = []
        for edit in self.edits:
            texts = f": {edit.before.short!r} became {edit.after.short!r}" if edit.after.short else ""
            digests = f"{edit.before.digest or '(nothing)'} became {edit.after.digest}"
            effects.append(f"changed {edit.field}{texts or f': {digests}'}")
        if self.verdict:
            effects.append(f"returned {self.verdict}" + (f" ({self.detail})" if self.detail else ""))
        if self.error:
            effects.append(f"failed with {self.error}" + (f" ({self.detail})" if self.detail else ""))
        how = {"on_event": "on", "around": "around", "shadow": "(shadow) on"}[self.via]
        return f"{self.hook} {how} {self.event}: {'; '.join(effects) or 'let it pass'}"


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageRecord(RunRecord):
    """The first observation of a message with this content.

    Attributes:
        id: The message's id.
        digest: The digest of its role and content.
        role: Its role.
        event: The event of its first observation.
        calls: The ids of the tool calls that it makes or answers.
        message: The whole message as JSON-like data; None if the recorder keeps digests only.
    """

    id: str
    digest: str
    role: str
    event: str
    calls: tuple[str, ...] = ()
    message: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AddedRecord(RunRecord):
    """Stored messages that no other event contains: injected, superseded, or created by a verdict.

    Attributes:
        origin: Their origin, as in `MessagesAdded`.
        messages: The id and digest of each.
        sources: The `metadata["synthetic"]` of each, empty if there is none.
    """

    origin: str
    messages: tuple[tuple[str, str], ...]
    sources: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class InjectedRecord(RunRecord):
    """Messages that a hook or a tool added to the conversation with `context.inject`.

    Attributes:
        by: The name of the hook or tool.
        event: The hook's event; empty for a tool.
        messages: The id and digest of each.
        keep: Whether they are stored; False: they are part of the next request only.
    """

    by: str
    messages: tuple[tuple[str, str], ...]
    keep: bool = True
    event: str = ""

    def __str__(self) -> str:
        where = f"{self.by} on {self.event}" if self.event else f"the tool {self.by}"
        return f"injected by {where}" + ("" if self.keep else ", for the next request only")


# ---- records of a run log


def records_of(log: RunLog, short: int = 80) -> tuple[RunRecord, ...]:
    """Return the records in a run log, oldest first.

    Args:
        log: The run log.
        short: The maximum number of characters of the short forms.
    """
    return tuple(_RecordReader(log, short if log.header.content else 0).records())


class _RecordReader:
    """Extracts the records from a log."""

    def __init__(self, log: RunLog, short: int) -> None:
        self._log = log
        self._short = short
        self._known: set[str | tuple[str, str]] = set()
        self._started: dict[int, StartedEntry] = {}

    def records(self) -> Iterable[RunRecord]:
        for entry in self._log.entries:
            if isinstance(entry, LogEntry):  # another writer begins, or entries were lost: messages are reported again
                self._known.clear()
            elif isinstance(entry, EventEntry):
                yield from self._of_event(entry)
            elif isinstance(entry, HookEntry):
                yield from self._of_hook(entry)
                where = self._where(entry)
                yield from self._of_injections(entry.hook, entry.injected, where, entry.event)
            elif isinstance(entry, StartedEntry):
                self._started[entry.n] = entry
            elif isinstance(entry, FinishedEntry) and (began := self._started.pop(entry.n, None)) is not None:
                where = {**self._where(entry), "iteration": began.iteration}
                yield from self._of_injections(self._log.tool_use(began.tool_use).name, entry.injected, where)

    def _of_event(self, entry: EventEntry) -> Iterable[RunRecord]:
        where = self._where(entry)
        fields = entry.fields
        match entry.type:
            case "PreCall" | "PreReasoning":
                yield from self._new(self._log.messages(entry), entry.type, where)
            case "PostReasoning":
                yield from self._new([entry.ref("reasoning_result")], entry.type, where)
            case "PostCall":
                yield from self._new([entry.ref("final_message")], entry.type, where)
            case "MessagesAdded":
                refs: list[str] = fields.get("messages", [])
                yield from self._new(refs, entry.type, where)
                messages = [self._log.message(ref) for ref in refs]
                yield AddedRecord(
                    origin=entry.ref("origin"),
                    messages=tuple((msg.id, self._digest(ref)) for ref, msg in zip(refs, messages, strict=True)),
                    sources=tuple(str(msg.metadata.get("synthetic", "")) for msg in messages),
                    **where,
                )
            case _:
                pass

    def _of_hook(self, entry: HookEntry) -> Iterable[RunRecord]:
        where = self._where(entry)
        edits: list[Edit] = []
        for change in entry.changes:
            found = [self._refs(entry, change, side) for side in ("before", "after")]
            refs = [of_side if kind == "message" else () for kind, of_side in found]
            if entry.via != "around":
                for of_side in refs:
                    yield from self._new(of_side, entry.event, where)
            was, now = (self._shown(entry, change, side) for side in ("before", "after"))
            if was != now:
                edits.append(Edit(change.field, was, now))
            if entry.via != "around":
                edits.extend(self._metadata_edits(change.field, *refs))
        # Either only ids have changed, which digests ignore, or the effect is an injection, which has its own record.
        if (entry.changes or entry.injected) and not (edits or entry.verdict or entry.error):
            return
        verdict, failed = entry.verdict, entry.error
        yield HookRecord(
            hook=entry.hook,
            priority=entry.priority,
            event=entry.event,
            via=entry.via,
            edits=tuple(edits),
            verdict="" if verdict is None else str(verdict["verdict"]),
            detail=self._detail(verdict, failed),
            error="" if failed is None else str(failed["type"]),
            duration_ms=entry.duration_ms,
            tool_use_id="" if entry.tool_use is None else self._log.tool_use(entry.tool_use).id,
            **where,
        )

    def _of_injections(
        self, by: str, injected: Iterable[Injection], where: dict[str, Any], event: str = ""
    ) -> Iterable[RunRecord]:
        for injection in injected:
            yield from self._new(injection.messages, event, where)
            messages = tuple((self._log.message(ref).id, self._digest(ref)) for ref in injection.messages)
            yield InjectedRecord(by=by, event=event, messages=messages, keep=injection.keep, **where)

    # ---- calls and messages

    def _where(self, entry: EventEntry | HookEntry | FinishedEntry) -> dict[str, Any]:
        call = self._log.calls.get(entry.call)
        run = ("", "", "") if call is None else (call.run, call.session, call.source)
        ids = dict(zip(("run_id", "session_id", "source"), run, strict=True))
        where = {**ids, "call_id": entry.call, "time": entry.time}
        if not isinstance(entry, FinishedEntry):
            where.update({"iteration": entry.iteration, "seq": entry.seq})
        return where

    def _digest(self, ref: str) -> str:
        kept = self._log.digest(ref)
        return kept or _message_digest(self._log.message(ref))

    def _new(self, refs: Iterable[str], event: str, where: dict[str, Any]) -> Iterable[RunRecord]:
        for ref in refs:
            if ref in self._known:
                continue
            msg = self._log.message(ref)
            key = msg.id, self._digest(ref)
            self._known.add(ref)  # so that the next look-up needs no digest
            if key in self._known:
                continue
            self._known.add(key)
            calls = [*(use.id for use in msg.tool_uses), *(result.tool_use_id for result in msg.tool_results)]
            yield MessageRecord(
                id=msg.id,
                digest=key[1],
                role=msg.role,
                event=event,
                calls=tuple(calls),
                message=msg_to_dict(msg) if self._short else None,
                **where,
            )

    # ---- values

    def _refs(self, entry: HookEntry, change: HookChange, side: str) -> tuple[str, tuple[str, ...]]:
        """Return the kind and the refs of the objects in a changed field; no refs if the value is something else."""
        value = getattr(change, side)
        if change.field in LISTS:
            return "message", self._log.messages(entry, side)
        kind = _KIND_OF.get(change.field, "message" if change.field in _MESSAGE_FIELDS else "")
        refs = cast("list[object]", value if change.field == "tool_results" and isinstance(value, list) else [value])
        found = tuple([ref for ref in refs if kind and isinstance(ref, str) and self._log.has(kind, ref)])
        return kind, found if len(found) == len(refs) else ()

    def _shown(self, entry: HookEntry, change: HookChange, side: str) -> Shown:
        value: Any = getattr(change, side)
        kind, refs = self._refs(entry, change, side)
        if refs or change.field in LISTS or value == []:
            shown = [self._object(kind, ref) for ref in refs]
            return shown[0] if isinstance(value, str) else _joined(shown, self._short)
        match change.field, value:
            case "tools", [*refs]:
                return show([self._log.tool_spec(ref) for ref in refs], self._short)
            case "options", {**options}:
                return show(ModelOptions(**options), self._short)
            case _ if not self._short and value is not None:
                return Shown(str(value))
            case _:
                return show(value, self._short)

    def _object(self, kind: str, ref: str) -> Shown:
        log, kept = self._log, self._log.digest(ref)
        value = {"message": log.message, "tool call": log.tool_use, "tool result": log.tool_result}[kind](ref)
        if not kept:
            return show(value, self._short)
        return Shown(kept, "", ((value.tool_use_id if isinstance(value, ToolResultBlock) else value.id, kept),))

    def _metadata_edits(self, field: str, before: Sequence[str], after: Sequence[str]) -> Iterable[Edit]:
        """Return the changes in the metadata of messages that exist before and after. (Digests ignore metadata.)"""
        old = {msg.id: msg for msg in map(self._log.message, before)}
        for msg in map(self._log.message, after):
            was = old.get(msg.id)
            if was is None or was.metadata == msg.metadata:
                continue
            texts = [", ".join(f"{k}={v!r}" for k, v in sorted(message.metadata.items())) for message in (was, msg)]
            shown = [show(text, self._short) for text in texts]
            yield Edit(
                f"{field}.metadata", *(Shown(text.digest, text.short, ((msg.id, text.digest),)) for text in shown)
            )

    def _detail(self, verdict: Mapping[str, Any] | None, error: Mapping[str, Any] | None) -> str:
        if not self._short:
            return ""
        if verdict is None:
            return "" if error is None else show(str(error.get("message", "")), self._short).short
        value = self._log.carried(next((value for name, value in verdict.items() if name != "verdict"), None))
        return "" if value is None or value == "" or value == () else show(value, self._short).short


_MESSAGE_FIELDS = ("reasoning_result", "final_message", "reply", "message")
"""The fields that contain a message."""
_KIND_OF = {"tool_use": "tool call", "tool_result": "tool result", "tool_results": "tool result"}


# ---- the explanation of a message


@dataclass(frozen=True, slots=True)
class Explanation:
    """The hooks that shaped a message. `str(explanation)` is readable.

    Attributes:
        message_id: The message's id.
        known: Whether the records contain it at all.
        changes: The effects of hooks on it (or on the messages that it was made from), in order: edits, verdicts that created
            it, `around` wrappers that changed its chunks.
        request_changes: For a reply, the hooks' changes to its request.
        shadows: The effects that shadow hooks would have had on it.
        additions: The records of its addition, if only `MessagesAdded` events contain it.
        injections: The records of its injection by a hook or a tool, even if for one request only.
    """

    message_id: str
    known: bool
    changes: tuple[HookRecord, ...] = ()
    request_changes: tuple[HookRecord, ...] = ()
    shadows: tuple[HookRecord, ...] = ()
    additions: tuple[AddedRecord, ...] = ()
    injections: tuple[InjectedRecord, ...] = ()

    @property
    def hooks(self) -> tuple[str, ...]:
        """The names of the hooks that injected or shaped it, each once, in order."""
        injected = [record.by for record in self.injections if record.event]
        return tuple(dict.fromkeys([*injected, *[record.hook for record in self.changes]]))

    def __str__(self) -> str:
        if not self.known:
            return f"{self.message_id}: not in the records"
        shaped = f"shaped by {', '.join(self.hooks)}" if self.hooks else "no hook shaped it"
        lines = [f"{self.message_id}: {shaped}", *[f"  {record}" for record in (*self.injections, *self.changes)]]
        for record in self.additions:
            places = [n for n, (message_id, _) in enumerate(record.messages) if message_id == self.message_id]
            sources = ", ".join(record.sources[n] for n in places if record.sources[n])
            lines.append(f"  stored as {record.origin}" + (f", from {sources}" if sources else ""))
        if self.request_changes:
            lines.append("  the request it answers:")
            lines += [f"    {record}" for record in self.request_changes]
        lines += [f"  {record}" for record in self.shadows]
        return "\n".join(lines)


class Recording:
    """A sequence of records.

    Args:
        records: The records, in the order of writing.
    """

    def __init__(self, records: Iterable[RunRecord]) -> None:
        self.records: tuple[RunRecord, ...] = tuple(records)

    @property
    def hook_records(self) -> tuple[HookRecord, ...]:
        """The effects of hooks."""
        return tuple(record for record in self.records if isinstance(record, HookRecord))

    def explain(self, message: Msg | str) -> Explanation:
        """Return the hooks that shaped a message.

        Args:
            message: The message, or its id.
        """
        message_id = message if isinstance(message, str) else message.id
        ids = self._ancestors(message_id)
        messages = [record for record in self.records if isinstance(record, MessageRecord) and record.id in ids]
        calls = {call for record in messages if record.role == "tool" for call in record.calls}
        if isinstance(message, Msg):
            calls |= {result.tool_use_id for result in message.tool_results}
        born = {(r.call_id, r.iteration) for r in messages if r.event == "PostReasoning" and r.role == "assistant"}
        # A reply of the model is attributed to its round. Only other final messages come from verdicts on the whole call.
        ends = {r.call_id for r in messages if r.event == "PostCall"} if not born else set[str]()
        shaped: list[HookRecord] = []
        shadows: list[HookRecord] = []
        request_edits: list[HookRecord] = []
        for record in self.hook_records:
            if record.via == "shadow":
                if _would_shape(record, ids, calls):
                    shadows.append(record)
            elif _shapes(record, ids, calls, born, ends):
                shaped.append(record)
            elif record.event == "PreReasoning" and record.edits and (record.call_id, record.iteration) in born:
                request_edits.append(record)
        added = tuple(
            record
            for record in self.records
            if isinstance(record, AddedRecord) and any(shown_id in ids for shown_id, _ in record.messages)
        )
        injected = tuple(
            record
            for record in self.records
            if isinstance(record, InjectedRecord) and any(shown_id in ids for shown_id, _ in record.messages)
        )
        known = bool(messages or shaped or added or injected)
        return Explanation(message_id, known, tuple(shaped), tuple(request_edits), tuple(shadows), added, injected)

    def _ancestors(self, message_id: str) -> set[str]:
        """Return the ids of the message and of those from which hooks made it."""
        ids = {message_id}
        # Backwards, so that one pass follows a chain of edits to its beginning.
        for record in reversed(self.hook_records):
            if record.via == "shadow":
                continue
            for edit in record.edits:
                if edit.field in _MESSAGE_FIELDS and any(shown_id in ids for shown_id, _ in edit.after.parts):
                    ids.update(shown_id for shown_id, _ in edit.before.parts if shown_id)
                # An edited message of the user can have a new id, so messages at the same position belong together.
                elif record.event == "PreCall" and len(edit.before.parts) == len(edit.after.parts):
                    pairs = zip(edit.before.parts, edit.after.parts, strict=True)
                    ids.update(before for (before, _), (after, _) in pairs if after in ids)
        return ids


def _shapes(record: HookRecord, ids: set[str], calls: set[str], born: set[tuple[str, int]], ends: set[str]) -> bool:
    """Return whether the message contains the effect of a hook."""
    same_round = (record.call_id, record.iteration) in born
    if calls and (record.tool_use_id in calls or (record.event == "PreToolRound" and _touches(record, calls))):
        return bool(record.edits or record.verdict or record.error)
    if record.event == "PreReasoning":
        return same_round and (record.verdict == "Answer" or (record.via == "around" and bool(record.edits)))
    if record.verdict in ("Answer", "Deny") and record.event == "PreCall":
        return record.call_id in ends
    if record.verdict == "Recover":
        return same_round or record.call_id in ends
    if record.event in ("PreCall", "PostReasoning", "PostCall"):
        return _touches(record, ids)
    return False


def _would_shape(record: HookRecord, ids: set[str], calls: set[str]) -> bool:
    """Return whether a shadow hook's effect concerns the message."""
    return record.tool_use_id in calls or any(part[0] in ids for edit in record.edits for part in edit.before.parts)


def _touches(record: HookRecord, ids: set[str]) -> bool:
    """Return whether an edit changed anything with one of these ids."""
    for edit in record.edits:
        before = set(edit.before.parts)
        if any(part[0] in ids and part not in before for part in edit.after.parts):
            return True
    return False
