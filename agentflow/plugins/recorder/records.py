"""What a `Recorder` writes: one value per thing that happened, and how to read from them what shaped a message."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from agentflow.messages import Msg
from agentflow.plugins.recorder.rendering import Shown, joined, message_digest, show
from agentflow.runlog.entries import (
    EventEntry,
    FinishedEntry,
    HookChange,
    HookEntry,
    Injection,
    LogEntry,
    StartedEntry,
)
from agentflow.runlog.log import LISTS, RunLog
from agentflow.saving.codec import msg_to_dict
from agentflow.specs import ModelOptions

__all__ = [
    "AddedRecord",
    "Edit",
    "Explanation",
    "HookRecord",
    "InjectedRecord",
    "MessageRecord",
    "Record",
    "Recording",
    "Shown",
    "records_of",
    "show",
]

Via: TypeAlias = Literal["on_event", "around", "shadow"]


@dataclass(frozen=True, slots=True)
class Edit:
    """One field before and after; for a layer of `around`: what came in from the work, and what went out."""

    field: str
    before: Shown
    after: Shown


@dataclass(frozen=True, slots=True, kw_only=True)
class HookRecord:
    """One call of a hook that had an effect (or any call, if the recorder is asked for all).

    Attributes:
        hook: The hook's name.
        event: The event's name.
        via: Through `on_event` or `around`, or only in the shadow.
        edits: What it changed.
        verdict: The verdict's name, empty if it gave none.
        detail: What the verdict or the error says, in short.
        error: The name of the exception that it raised, empty if it raised none.
        duration_ms: How long it took, by the run's clock.
        tool_use_id: The tool call that the event is about.
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
    run_id: str = ""
    call_id: str = ""
    session_id: str = ""
    source: str = ""
    iteration: int = 0
    seq: int = 0
    time: float = 0.0

    def __str__(self) -> str:
        what: list[str] = []
        for edit in self.edits:
            texts = f": {edit.before.short!r} became {edit.after.short!r}" if edit.after.short else ""
            digests = f"{edit.before.digest or '(nothing)'} became {edit.after.digest}"
            what.append(f"changed {edit.field}{texts or f': {digests}'}")
        if self.verdict:
            what.append(f"said {self.verdict}" + (f" ({self.detail})" if self.detail else ""))
        if self.error:
            what.append(f"failed with {self.error}" + (f" ({self.detail})" if self.detail else ""))
        how = {"on_event": "on", "around": "around", "shadow": "in the shadow, on"}[self.via]
        return f"{self.hook} {how} {self.event}: {'; '.join(what) or 'let it pass'}"


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageRecord:
    """A message, written when it was first seen in this form.

    Attributes:
        id: The message's id.
        digest: Of its role and content.
        role: Who speaks.
        event: The event that it was first seen on.
        calls: The ids of the tool calls that it makes or answers.
        message: The whole message as JSON-like data; None if the recorder keeps digests only.
    """

    id: str
    digest: str
    role: str
    event: str
    calls: tuple[str, ...] = ()
    message: Mapping[str, Any] | None = None
    run_id: str = ""
    call_id: str = ""
    session_id: str = ""
    source: str = ""
    iteration: int = 0
    seq: int = 0
    time: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class AddedRecord:
    """Messages that were stored and that no other event carries: injected, superseded, made by a verdict.

    Attributes:
        origin: Why they exist, as `MessagesAdded` says it.
        messages: Each one's id and digest.
        sources: Each one's `metadata["synthetic"]`, empty where there is none.
    """

    origin: str
    messages: tuple[tuple[str, str], ...]
    sources: tuple[str, ...]
    run_id: str = ""
    call_id: str = ""
    session_id: str = ""
    source: str = ""
    iteration: int = 0
    seq: int = 0
    time: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class InjectedRecord:
    """Messages that a hook or a tool has put into the conversation, with `context.inject`.

    Attributes:
        by: The hook's name, or the tool's.
        event: The event that the hook had; of a tool empty.
        messages: Each one's id and digest.
        keep: Whether they are stored; False: they are part of the next request only.
    """

    by: str
    messages: tuple[tuple[str, str], ...]
    keep: bool = True
    event: str = ""
    run_id: str = ""
    call_id: str = ""
    session_id: str = ""
    source: str = ""
    iteration: int = 0
    seq: int = 0
    time: float = 0.0

    def __str__(self) -> str:
        where = f"{self.by} on {self.event}" if self.event else f"the tool {self.by}"
        return f"injected by {where}" + ("" if self.keep else ", for the next request only")


Record: TypeAlias = MessageRecord | HookRecord | AddedRecord | InjectedRecord

# ---- records of a run log


def records_of(log: RunLog, short: int = 80) -> tuple[Record, ...]:
    """What a run log tells of hooks, and of the messages that they did it to, oldest first.

    Args:
        log: The log.
        short: Most characters of the short forms.
    """
    return tuple(_Reading(log, short if log.header.content else 0).records())


class _Reading:
    """Reads the records out of a log."""

    def __init__(self, log: RunLog, short: int) -> None:
        self._log = log
        self._short = short
        self._known: set[str | tuple[str, str]] = set()
        self._started: dict[int, StartedEntry] = {}

    def records(self) -> Iterable[Record]:
        for entry in self._log.entries:
            if isinstance(entry, LogEntry):  # another writer begins
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

    def _of_event(self, entry: EventEntry) -> Iterable[Record]:
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

    def _of_hook(self, entry: HookEntry) -> Iterable[Record]:
        where = self._where(entry)
        edits: list[Edit] = []
        for change in entry.changes:
            refs = [self._refs(entry, change, side) for side in ("before", "after")]
            if entry.via != "around":
                for some in refs:
                    yield from self._new(some, entry.event, where)
            was, now = (self._shown(entry, change, side) for side in ("before", "after"))
            if was != now:
                edits.append(Edit(change.field, was, now))
            if entry.via != "around":
                edits.extend(self._marked(change.field, *refs))
        if (entry.changes or entry.injected) and not (edits or entry.verdict or entry.error):
            return
        said, failed = entry.verdict, entry.error
        yield HookRecord(
            hook=entry.hook,
            priority=entry.priority,
            event=entry.event,
            via=entry.via,
            edits=tuple(edits),
            verdict="" if said is None else str(said["verdict"]),
            detail=self._detail(said, failed),
            error="" if failed is None else str(failed["type"]),
            duration_ms=entry.duration_ms,
            tool_use_id="" if entry.tool_use is None else self._log.tool_use(entry.tool_use).id,
            **where,
        )

    def _of_injections(
        self, by: str, injected: Iterable[Injection], where: dict[str, Any], event: str = ""
    ) -> Iterable[Record]:
        for one in injected:
            yield from self._new(one.messages, event, where)
            messages = tuple((self._log.message(ref).id, self._digest(ref)) for ref in one.messages)
            yield InjectedRecord(by=by, event=event, messages=messages, keep=one.keep, **where)

    # ---- where, and which messages

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
        return kept or message_digest(self._log.message(ref))

    def _new(self, refs: Iterable[str], event: str, where: dict[str, Any]) -> Iterable[Record]:
        for ref in refs:
            if ref in self._known:
                continue
            msg = self._log.message(ref)
            key = msg.id, self._digest(ref)
            self._known.add(ref)
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

    def _refs(self, entry: HookEntry, change: HookChange, side: str) -> tuple[str, ...]:
        """The refs of the messages in a changed field."""
        value = getattr(change, side)
        if change.field in LISTS:
            return self._log.messages(entry, side)
        is_one = change.field in _ONE_MESSAGE and isinstance(value, str) and self._log.has("message", value)
        return (value,) if is_one else ()

    def _shown(self, entry: HookEntry, change: HookChange, side: str) -> Shown:
        value: Any = getattr(change, side)
        refs = self._refs(entry, change, side)
        if change.field in LISTS:
            return joined([self._message(ref) for ref in refs], self._short)
        if refs:
            return self._message(refs[0])
        match change.field, value:
            case _, None:
                return Shown("")
            case "tool_use", str(ref) if self._log.has("tool call", ref):
                return self._part(ref, self._log.tool_use(ref).id, self._log.tool_use)
            case "tool_result", str(ref) if self._log.has("tool result", ref):
                return self._part(ref, self._log.tool_result(ref).tool_use_id, self._log.tool_result)
            case "tool_results", [*refs] if all(
                isinstance(ref, str) and self._log.has("tool result", ref) for ref in refs
            ):
                results = [(ref, self._log.tool_result(ref)) for ref in refs]
                return joined(
                    [self._part(ref, one.tool_use_id, self._log.tool_result) for ref, one in results], self._short
                )
            case "tools", [*refs]:
                return show([self._log.tool_spec(ref) for ref in refs], self._short)
            case "options", {**options}:
                return show(ModelOptions(**options), self._short)
            case _ if not self._short:
                return Shown(str(value))
            case _:
                return show(value, self._short)

    def _message(self, ref: str) -> Shown:
        msg, digest = self._log.message(ref), self._digest(ref)
        return show(msg, self._short, lambda _: digest)

    def _part(self, ref: str, id: str, read: Callable[[str], Any]) -> Shown:  # noqa: A002
        kept = self._log.digest(ref)
        return Shown(kept, "", ((id, kept),)) if kept else show(read(ref), self._short)

    def _marked(self, field: str, before: Sequence[str], after: Sequence[str]) -> Iterable[Edit]:
        """What has changed in the metadata of messages that are there before and after."""
        old = {msg.id: msg for msg in map(self._log.message, before)}
        for msg in map(self._log.message, after):
            was = old.get(msg.id)
            if was is None or was.metadata == msg.metadata:
                continue
            texts = [", ".join(f"{k}={v!r}" for k, v in sorted(one.metadata.items())) for one in (was, msg)]
            shown = [show(text, self._short) for text in texts]
            yield Edit(f"{field}.metadata", *(Shown(one.digest, one.short, ((msg.id, one.digest),)) for one in shown))

    def _detail(self, verdict: Mapping[str, Any] | None, error: Mapping[str, Any] | None) -> str:
        if not self._short:
            return ""
        if verdict is None:
            return "" if error is None else show(str(error.get("message", "")), self._short).short
        given = self._log.carried(next((value for name, value in verdict.items() if name != "verdict"), None))
        return "" if given is None or given == "" or given == () else show(given, self._short).short


_ONE_MESSAGE = ("reasoning_result", "final_message", "message", "reply")
"""The fields that hold a message."""


# ---- what shaped a message


@dataclass(frozen=True, slots=True)
class Explanation:
    """Which hooks shaped a message. `str(explanation)` is meant for people.

    Attributes:
        message_id: The message.
        known: Whether the records tell of it at all.
        shaped: What hooks did to it (or to what it is made of), in order: edits, verdicts that stand for it, layers of
            `around` that changed its chunks.
        asked: For a reply: what hooks changed in the request that it answers.
        shadows: What hooks that run in the shadow would have done to it.
        added: Why it was stored, if no other event carried it: where it was injected from.
        injected: Which hook or tool injected it, also where it was for one request only.
    """

    message_id: str
    known: bool
    shaped: tuple[HookRecord, ...] = ()
    asked: tuple[HookRecord, ...] = ()
    shadows: tuple[HookRecord, ...] = ()
    added: tuple[AddedRecord, ...] = ()
    injected: tuple[InjectedRecord, ...] = ()

    @property
    def hooks(self) -> tuple[str, ...]:
        """The names of the hooks that injected or shaped it, each once, in order."""
        injected = [record.by for record in self.injected if record.event]
        return tuple(dict.fromkeys([*injected, *[record.hook for record in self.shaped]]))

    def __str__(self) -> str:
        if not self.known:
            return f"{self.message_id}: the records do not tell of it"
        shaped = f"shaped by {', '.join(self.hooks)}" if self.hooks else "no hook shaped it"
        lines = [f"{self.message_id}: {shaped}", *[f"  {record}" for record in (*self.injected, *self.shaped)]]
        for record in self.added:
            places = [n for n, (one, _) in enumerate(record.messages) if one == self.message_id]
            sources = ", ".join(record.sources[n] for n in places if record.sources[n])
            lines.append(f"  stored as {record.origin}" + (f", from {sources}" if sources else ""))
        if self.asked:
            lines.append("  the request it answers:")
            lines += [f"    {record}" for record in self.asked]
        lines += [f"  {record}" for record in self.shadows]
        return "\n".join(lines)


_MADE_OF = ("reasoning_result", "final_message", "reply", "message")


class Recording:
    """Records, and what can be read from them.

    Args:
        records: The records, in the order in which they were written.
    """

    def __init__(self, records: Iterable[Record]) -> None:
        self.records: tuple[Record, ...] = tuple(records)

    @property
    def hook_records(self) -> tuple[HookRecord, ...]:
        """What hooks did."""
        return tuple(record for record in self.records if isinstance(record, HookRecord))

    def explain(self, message: Msg | str) -> Explanation:
        """Say which hooks shaped a message.

        Args:
            message: The message, or its id.
        """
        message_id = message if isinstance(message, str) else message.id
        ids = self._ancestors(message_id)
        seen = [record for record in self.records if isinstance(record, MessageRecord) and record.id in ids]
        calls = {call for record in seen if record.role == "tool" for call in record.calls}
        if isinstance(message, Msg):
            calls |= {result.tool_use_id for result in message.tool_results}
        born = {(r.call_id, r.iteration) for r in seen if r.event == "PostReasoning" and r.role == "assistant"}
        ends = {r.call_id for r in seen if r.event == "PostCall"} if not born else set[str]()
        shaped: list[HookRecord] = []
        shadows: list[HookRecord] = []
        asked: list[HookRecord] = []
        for record in self.hook_records:
            if record.via == "shadow":
                if _would_shape(record, ids, calls):
                    shadows.append(record)
            elif _shapes(record, ids, calls, born, ends):
                shaped.append(record)
            elif record.event == "PreReasoning" and record.edits and (record.call_id, record.iteration) in born:
                asked.append(record)
        added = tuple(
            record
            for record in self.records
            if isinstance(record, AddedRecord) and any(one in ids for one, _ in record.messages)
        )
        injected = tuple(
            record
            for record in self.records
            if isinstance(record, InjectedRecord) and any(one in ids for one, _ in record.messages)
        )
        known = bool(seen or shaped or added or injected)
        return Explanation(message_id, known, tuple(shaped), tuple(asked), tuple(shadows), added, injected)

    def _ancestors(self, message_id: str) -> set[str]:
        """The message, and those that hooks have made it of."""
        ids = {message_id}
        for record in reversed(self.hook_records):
            if record.via == "shadow":
                continue
            for edit in record.edits:
                if edit.field in _MADE_OF and any(one in ids for one, _ in edit.after.parts):
                    ids.update(one for one, _ in edit.before.parts if one)
                elif record.event == "PreCall" and len(edit.before.parts) == len(edit.after.parts):
                    pairs = zip(edit.before.parts, edit.after.parts, strict=True)
                    ids.update(before for (before, _), (after, _) in pairs if after in ids)
        return ids


def _shapes(record: HookRecord, ids: set[str], calls: set[str], born: set[tuple[str, int]], ends: set[str]) -> bool:
    """Whether what a hook did is in the message."""
    here = (record.call_id, record.iteration) in born
    if calls and (record.tool_use_id in calls or (record.event == "PreToolRound" and _touches(record, calls))):
        return bool(record.edits or record.verdict or record.error)
    if record.event == "PreReasoning":
        return here and (record.verdict == "Answer" or (record.via == "around" and bool(record.edits)))
    if record.verdict in ("Answer", "Deny") and record.event == "PreCall":
        return record.call_id in ends
    if record.verdict == "Recover":
        return here or record.call_id in ends
    if record.event in ("PreCall", "PostReasoning", "PostCall"):
        return _touches(record, ids)
    return False


def _would_shape(record: HookRecord, ids: set[str], calls: set[str]) -> bool:
    """Whether what a hook would have done concerns the message."""
    return record.tool_use_id in calls or any(part[0] in ids for edit in record.edits for part in edit.before.parts)


def _touches(record: HookRecord, ids: set[str]) -> bool:
    """Whether an edit changed something with one of these ids."""
    for edit in record.edits:
        before = set(edit.before.parts)
        if any(part[0] in ids and part not in before for part in edit.after.parts):
            return True
    return False
