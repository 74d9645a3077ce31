"""Compare two logs: normalise entries so that equal runs give equal data.

Rules:

1. Times, durations and the ids of messages are ignored.
2. An id is replaced by its number in its call (by first appearance), whether a provider, the loop or other code
   created it. This applies to ids of tool calls everywhere, and to ids from `new_id` within texts too.
3. Exceptions are compared by class and text; cancellations by class only, since their text depends on their path.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from pydantic_core import from_json

from agentflow._support.ids import GENERATED
from agentflow._support.shown import one_line
from agentflow.recording.entries import ChunksEntry, EventEntry, HookEntry, PiecesEntry, RequestEntry
from agentflow.recording.fields import EventFields
from agentflow.recording.log import LISTS, RunLog

__all__ = ["ComparableStep", "Divergence", "LogNormalizer", "divergence_at"]

_SKIPPED = ("duration_ms", "waited_ms", "turn")
_MESSAGE = ("reasoning_result", "final_message")
_USE = ("tool_use", "original_tool_use")


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparableStep:
    """An event in comparable form.

    Attributes:
        type: The name of its class.
        fields: Its normalised fields.
        seq: Its number in its call.
        iteration: Its round.
    """

    type: str
    fields: Mapping[str, Any]
    seq: int = 0
    iteration: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Divergence:
    """The first difference between a run and its recording.

    Attributes:
        source: The path of sub-agent names; empty at the top.
        event: The event's class; `"request"` for a request to a model.
        seq: Its number in the recording or, if the event is not recorded, in the new run.
        iteration: Its round.
        field: The field that differs; empty if the events themselves do.
        recorded: The recorded value; None if there is none.
        now: The value in the new run; None if there is none.
        hooks: The hooks that changed the event, or decided on it, in the new run.
        no_data: Whether the recording lacks the data with which the new run could continue.
    """

    event: str
    seq: int = 0
    iteration: int = 0
    source: str = ""
    field: str = ""
    recorded: Any = None
    now: Any = None
    hooks: tuple[str, ...] = ()
    no_data: bool = False

    def __str__(self) -> str:
        where = f"{self.event} (event {self.seq}, round {self.iteration}{f', in {self.source}' if self.source else ''})"
        what = f"{where}: {self.field}" if self.field else where
        lines = [f"differs at {what}", f"  recorded: {_shown(self.recorded)}", f"  now:      {_shown(self.now)}"]
        if self.hooks:
            lines.append(f"  by:       {', '.join(self.hooks)}")
        return "\n".join(lines)


def _shown(value: Any) -> str:
    return "(nothing)" if value is None else one_line(value if isinstance(value, str) else repr(value))


class LogNormalizer:
    """Normalises one log for comparison with another.

    Args:
        log: The log to normalise.
        numbered: Whether to distinguish ids by the order in which they appear; if False, all ids are equal.
    """

    def __init__(self, log: RunLog, numbered: bool = True) -> None:
        self.log = log
        self._numbered = numbered
        self._known: dict[str, dict[str, Any]] = {}
        self._ids: dict[str, dict[str, str]] = {}
        self._requests: dict[str, EventEntry] = {}

    def number(self, call: str, id: str) -> str:  # noqa: A002 - the field's name in a log
        """Return the number of an id in its call: its position in the order of appearance."""
        if not self._numbered or not id:
            return "#"
        numbers = self._ids.setdefault(call, {})
        return numbers.setdefault(id, f"#{len(numbers) + 1}")

    def steps(self, entry: EventEntry | ChunksEntry | PiecesEntry) -> list[ComparableStep]:
        """Return the events of an entry in comparable form."""
        if isinstance(entry, ChunksEntry):
            steps = [
                ComparableStep(
                    type="ReasoningChunk",
                    fields={
                        "chunk": self._data(entry.call, piece),
                        "attempt": entry.attempt,
                        "restart": entry.restart and not n,
                    },
                    seq=entry.seq + n,
                    iteration=entry.iteration,
                )
                for n, piece in enumerate(entry.pieces)
            ]
            return self._with_failure(entry, steps)
        if isinstance(entry, PiecesEntry):
            use = self._use(entry.call, entry.tool_use)
            steps = [
                ComparableStep(
                    type="ActingChunk",
                    fields={"tool_use": use, "chunk": self._data(entry.call, piece)},
                    seq=entry.seq + n,
                    iteration=entry.iteration,
                )
                for n, piece in enumerate(entry.pieces)
            ]
            return self._with_failure(entry, steps)
        if entry.type == "PreReasoning":
            self._requests[entry.call] = entry
        fields: dict[str, Any] = {}
        for name, value in entry.fields.items():
            if name in LISTS:
                fields[name] = [self._message(entry.call, ref) for ref in self.log.messages(entry, name)]
            elif name not in _SKIPPED:
                fields[name] = self._field(entry.call, name, value)
        if entry.decision is not None:
            fields["decision"] = self._decision(entry.call, entry.decision)
        return [ComparableStep(type=entry.type, fields=fields, seq=entry.seq, iteration=entry.iteration)]

    def _with_failure(self, entry: ChunksEntry | PiecesEntry, steps: list[ComparableStep]) -> list[ComparableStep]:
        """Add the failure of a hook to the last event of an entry."""
        if entry.decision is not None and steps:
            steps[-1] = replace(
                steps[-1], fields={**steps[-1].fields, "decision": self._decision(entry.call, entry.decision)}
            )
        return steps

    def request(self, entry: RequestEntry) -> ComparableStep:
        """Return a request to a model in comparable form."""
        before = self._requests.get(entry.call)
        fields = EventFields() if before is None else before.fields
        refs = () if before is None else self.log.messages(before)
        if entry.messages is not None:
            refs = self.log.messages(entry)
        tools = fields.get("tools", []) if entry.tools is None else entry.tools
        options = fields.get("options", {}) if entry.options is None else entry.options
        data = {
            "messages": [self._message(entry.call, ref) for ref in refs],
            "tools": [self.log.tool(ref) for ref in tools],
            "options": options,
            "model": entry.model,
        }
        kind = f"request ({entry.side})" if entry.side else "request"
        return ComparableStep(
            type=kind, fields=data, seq=0 if before is None else before.seq, iteration=entry.iteration
        )

    # ---- values

    def _field(self, call: str, name: str, value: Any) -> Any:
        if name in _MESSAGE:
            return self._message(call, value)
        if name in _USE:
            return self._use(call, value)
        if name == "tool_result":
            return self._result(call, value)
        if name == "tool_uses":
            return [self._use(call, ref) for ref in value]
        if name == "tool_results":
            return [self._result(call, ref) for ref in value]
        if name == "messages":
            return [self._message(call, ref) for ref in value]
        if name == "tools":
            return [self.log.tool(ref) for ref in value]
        if name == "error":
            kind = value.get("type")
            text = None if kind == "CancelledError" else value.get("message")  # rule 3
            return {"type": kind, "message": self._data(call, text)}
        if name == "approval":
            return self._verdict(call, value)
        return self._data(call, value)

    def _decision(self, call: str, decision: Mapping[str, Any]) -> Any:
        fields: dict[str, Any] = {"hook": decision["hook"]}
        if "verdict" in decision:
            fields["verdict"] = self._verdict(call, decision["verdict"])
        if "error" in decision:
            fields["error"] = self._field(call, "error", decision["error"])
        return fields

    def _verdict(self, call: str, verdict: Mapping[str, Any]) -> Any:
        return {name: self._carried(call, value) for name, value in verdict.items()}

    def _carried(self, call: str, value: Any) -> Any:
        kind, refs = self.log.carried_refs(value)
        if kind == "tool result" and refs:
            return self._result(call, refs[0])
        if refs:
            return [self._message(call, ref) for ref in refs]
        return self._data(call, value)

    def _message(self, call: str, ref: str) -> Any:
        return self._cached(call, f"m {ref}", lambda: self._build_message(call, ref))

    def _build_message(self, call: str, ref: str) -> Any:
        msg = self.log.message(ref)
        fields: dict[str, Any] = {"role": msg.role, "content": []}
        for block in self.log.blocks(ref):
            kind, inner = block.get("type"), block.get("ref")
            if inner is not None:
                fields["content"].append(self._use(call, inner) if kind == "tool_use" else self._result(call, inner))
            else:
                fields["content"].append(self._data(call, block))
        for name in ("name", "finish_reason"):
            if getattr(msg, name):
                fields[name] = getattr(msg, name)
        if msg.metadata:
            fields["metadata"] = self._data(call, dict(msg.metadata))
        if digest := self.log.digest(ref):
            fields["digest"] = digest
        return fields

    def _use(self, call: str, ref: str) -> Any:
        return self._cached(call, f"u {ref}", lambda: self._with_id(call, self.log.use_data(ref), "id"))

    def _result(self, call: str, ref: str) -> Any:
        return self._cached(call, f"r {ref}", lambda: self._with_id(call, self.log.result_data(ref), "tool_use_id"))

    def _with_id(self, call: str, data: Mapping[str, Any], name: str) -> Any:
        number = self.number(call, data[name])
        return {key: number if key == name else self._data(call, value, key) for key, value in data.items()}

    def _data(self, call: str, value: Any, name: str = "") -> Any:
        """Replace the ids in data by numbers."""
        if isinstance(value, str):
            if name == "raw":  # arguments as the model's JSON text
                try:
                    return self._data(call, from_json(value))
                except ValueError:
                    pass
            return GENERATED.sub(lambda found: self.number(call, found[0]), value)
        if isinstance(value, Mapping):
            mapping = cast("Mapping[str, Any]", value)
            ids = _ids_in(mapping)
            return {
                self._data(call, key): self.number(call, item) if key in ids else self._data(call, item, key)
                for key, item in mapping.items()
            }
        if isinstance(value, list | tuple):
            return [self._data(call, item) for item in cast("Sequence[Any]", value)]
        return value

    def _cached(self, call: str, key: str, make: Callable[[], Any]) -> Any:
        known = self._known.setdefault(call, {})
        # Messages occur in the history of each later event, so without a cache a long run would normalise each many times.
        found = known.get(key)
        if found is None:
            found = known[key] = make()
        return found


def _ids_in(data: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the name of the id field if data is a message, a tool call or its fragment, or a result."""
    keys = data.keys()
    if (
        keys >= {"role", "content", "id"}
        or keys >= {"index", "id"}
        or (data.get("type") == "tool_use" and "id" in keys)
    ):
        found = "id"
    elif data.get("type") == "tool_result":
        found = "tool_use_id"
    else:
        return ()
    return (found,) if isinstance(data.get(found), str) else ()


def _changed_by(log: RunLog, call: str, step: ComparableStep) -> tuple[str, ...]:
    """Return the hooks that changed a recent event of a call, or decided on it."""
    found: dict[str, None] = {}
    # A hook's entry is written shortly before that of its event, so the last entries are enough.
    for entry in log.entries[-50:]:
        if isinstance(entry, HookEntry) and entry.call == call and entry.seq == step.seq and entry.via != "shadow":
            found[entry.hook] = None
    return tuple(found)


def divergence_at(
    log: RunLog, call: str, recorded: ComparableStep | None, now: ComparableStep | None
) -> Divergence | None:
    """Compare an event of a recording with the one of a new run; either may be missing.

    Args:
        log: The log of the new run.
        call: The call in the new run.
        recorded: The recorded event.
        now: The event of the new run.

    Returns:
        The first difference; None if there is none.
    """
    if recorded is None or now is None:
        found = ("", recorded and recorded.type, now and now.type)
    else:
        found = _first_difference(recorded, now)
    step = recorded or now  # the position in the recording, if there is one
    if found is None or step is None:
        return None
    field, was, new = found
    return Divergence(
        event=step.type,
        seq=step.seq,
        iteration=step.iteration,
        source=log.calls[call].source,
        field=field,
        recorded=was,
        now=new,
        hooks=() if now is None else _changed_by(log, call, now),
    )


def _first_difference(recorded: ComparableStep, now: ComparableStep) -> tuple[str, Any, Any] | None:
    """Return the first field in which two events differ, with both values; None if they are equal."""
    if recorded.type != now.type:
        return "", recorded.type, now.type
    for name in dict.fromkeys((*recorded.fields, *now.fields)):
        one, other = recorded.fields.get(name), now.fields.get(name)
        if one != other:
            return _locate(name, one, other)
    return None


def _locate(name: str, one: Any, other: Any) -> tuple[str, Any, Any]:
    """Return the path of the innermost difference within a field, and both values there."""
    parts = _parts(one), _parts(other)
    if parts[0] is not None and parts[1] is not None and type(one) is type(other):
        for key in dict.fromkeys((*parts[0], *parts[1])):
            ours, theirs = parts[0].get(key), parts[1].get(key)
            if ours != theirs:
                return _locate(f"{name}[{key}]" if isinstance(key, int) else f"{name}.{key}", ours, theirs)
    return name, one, other


def _parts(value: Any) -> dict[Any, Any] | None:
    """Return the items of a container by name or position; None for other data."""
    if isinstance(value, dict):
        return cast("dict[Any, Any]", value)
    if isinstance(value, list | tuple):
        return dict(enumerate(cast("Sequence[Any]", value)))
    return None
