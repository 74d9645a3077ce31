"""Encode values for a run log. Each message, call, result and tool is written once; later entries contain its ref.

Rules:

1. Encoding never raises: a value that JSON cannot represent is written as its text.
2. A ref is the id of the object. Another object with the same id, such as a changed message, gets `id#2`, `id#3` ...
3. The tables of known objects and refs are bounded: an object that was evicted is written again, under another ref. After
   `_REMEMBERED` objects of a kind, each ref has a number (`id#20001`), so that no ref has to be remembered.
"""

from __future__ import annotations

import json
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from hashlib import sha256
from importlib import metadata
from typing import Any, NamedTuple, TypeAlias, cast

from agentflow.recording.entries import FORM, VERSION
from agentflow.vocabulary.chunks import ModelChunk
from agentflow.vocabulary.facts import Fact
from agentflow.vocabulary.messages import Msg, ToolResultBlock, ToolUseBlock
from agentflow.vocabulary.saving.codec import fact_kind, msg_to_dict
from agentflow.vocabulary.saving.plain import plain, text_of
from agentflow.vocabulary.specs import ModelOptions, ToolSpec, Usage
from agentflow.vocabulary.transcript import MessageView
from agentflow.vocabulary.verdicts import AnyVerdict, verdict_value

__all__ = ["SCALARS", "Clean", "Encoder", "ErrorText", "Line", "digest_of", "header_line", "set_fields"]

Line: TypeAlias = dict[str, Any]
"""An entry as data."""
Clean: TypeAlias = Callable[[Any, str], Any]
"""Takes a value and its run id, and returns the value without secrets."""

_REMEMBERED = 20_000  # objects of each kind, so that a recorder that runs for weeks does not keep all of them alive
SCALARS = (str, int, float, bool, type(None))


def header_line(mark: str = "", content: bool = True, origin: str = "recorder") -> Line:
    """Return the first line of a log.

    Args:
        mark: The suffix of this writer's refs.
        content: Whether texts are recorded.
        origin: The source of the log.
    """
    try:
        version = metadata.version("agentflow-hooks")
    except metadata.PackageNotFoundError:
        version = ""
    line: Line = {"kind": "log", "form": FORM, "version": VERSION, "writer": mark[1:] or secrets.token_hex(3)}
    return {**line, "time": time.time(), "library": version, "content": content, "origin": origin}


class ErrorText(NamedTuple):
    """The text of an exception. It is stored instead of the exception, which would keep its frames alive.

    Attributes:
        fields: Its class, its text, and its attributes that are data.
    """

    fields: Line

    @classmethod
    def of(cls, error: BaseException) -> ErrorText:
        """Describe an exception."""
        kind = type(error)
        described: Line = {"type": kind.__qualname__, "module": kind.__module__, "message": text_of(error)}
        # Read by name, since they may be class attributes, which `__dict__` lacks.
        slots = {
            name: value
            for name in ("retryable", "retry_after", "status")
            if (value := getattr(error, name, None)) is not None
        }
        known = {
            name: value for name, value in {**slots, **getattr(error, "__dict__", {})}.items() if type(value) in SCALARS
        }
        if known:
            described["attributes"] = plain(known)
        return cls(described)


def digest_of(text: str) -> str:
    """Return sixteen hexadecimal digits as the digest of a text."""
    # 64 bits are enough to compare values within a log, and keep it short.
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _compact(data: object) -> str:
    return json.dumps(data, sort_keys=True, separators=(",", ":"), default=str)


class _Known:
    """Objects that have a ref, by identity (fast) and by content."""

    def __init__(self, mark: str) -> None:
        self._mark = mark
        self._by_identity: OrderedDict[int, tuple[object, str]] = OrderedDict()
        self._by_content: OrderedDict[tuple[str, str], str] = OrderedDict()
        self._taken: dict[str, int] = {}
        self._count = 0

    def ref_of(self, value: object) -> str | None:
        found = self._by_identity.get(id(value))
        return found[1] if found is not None and found[0] is value else None

    def by_content(self, key: tuple[str, str]) -> str | None:
        return self._by_content.get(key)

    def note(self, value: object, ref: str) -> str:
        self._by_identity[id(value)] = value, ref  # the reference keeps the id from being reused
        if len(self._by_identity) > _REMEMBERED:
            self._by_identity.popitem(last=False)
        return ref

    def new_ref(self, base: str, key: tuple[str, str]) -> str:
        self._count += 1
        numbered = self._count > _REMEMBERED
        ref = base = f"{base}{self._mark}#{self._count}" if numbered else f"{base}{self._mark}"
        while ref in self._taken:
            self._taken[base] += 1
            ref = f"{base}#{self._taken[base]}"
        if not numbered:
            self._taken[ref] = 1
        self._by_content[key] = ref
        if len(self._by_content) > _REMEMBERED:
            self._by_content.popitem(last=False)
        return ref


class Encoder:
    """Turns values into log entries; the entries are appended to `out`.

    Args:
        content: Whether to record texts; if False, digests replace them.
        clean: Removes secrets from values.
        mark: Suffix of each ref; unique for each of several writers to the same log.

    Attributes:
        out: The entries so far; the writer takes them from here.
        run: The run id of the values to encode next.
    """

    def __init__(self, content: bool = True, clean: Clean | None = None, mark: str = "") -> None:
        self.out: list[Line] = []
        self.run = ""
        self.content = content
        self._clean = clean
        self._messages, self._uses, self._results, self._tools = (_Known(mark) for _ in range(4))
        self._lists: dict[str, tuple[Sequence[Msg], list[str]]] = {}

    # ---- objects with a ref

    def message(self, msg: Msg) -> str:
        """Return the ref of a message, writing the message if needed."""
        return self._messages.ref_of(msg) or self._messages.note(msg, self._write_message(msg))

    def _write_message(self, msg: Msg) -> str:
        shown = self.cleaned(msg)
        blocks: list[Any] = []
        for block in shown.content:
            if isinstance(block, ToolUseBlock):
                blocks.append({"type": "tool_use", "ref": self.tool_use(block)})
            elif isinstance(block, ToolResultBlock):
                blocks.append({"type": "tool_result", "ref": self.tool_result(block)})
            else:
                blocks.append(plain(block))
        rest = msg_to_dict(Msg(shown.role, (), shown.name, shown.id, shown.metadata, shown.usage, shown.finish_reason))
        data: Line = {name: value for name, value in {**rest, "content": blocks}.items() if value not in (None, {})}
        digest = digest_of(_compact(data))
        key = (msg.id, digest)
        ref = self._messages.by_content(key)
        if ref is None:
            ref = self._messages.new_ref(msg.id or "m", key)
            line: Line = {"kind": "message", "ref": ref}
            if self.content:
                line["message"] = data
            else:
                line["digest"] = digest
                line["message"] = {"role": msg.role, "id": msg.id, "content": [b for b in blocks if "ref" in b]}
            self.out.append(line)
        return ref

    def tool_use(self, use: ToolUseBlock) -> str:
        """Return the ref of a tool call."""
        return self._uses.ref_of(use) or self._uses.note(use, self._write_use(use))

    def _write_use(self, use: ToolUseBlock) -> str:
        shown = self.cleaned(use)
        arguments = {"input": plain(shown.input)} if shown.input_error is None else {"raw": plain(shown.raw)}
        value: Line = {"id": shown.id, "name": shown.name, **arguments}
        return self._written("tool_use", self._uses, use.id or "t", value, ("input", "raw"))

    def tool_result(self, result: ToolResultBlock) -> str:
        """Return the ref of a tool's result."""
        return self._results.ref_of(result) or self._results.note(result, self._write_result(result))

    def _write_result(self, result: ToolResultBlock) -> str:
        shown = self.cleaned(result)
        value: Line = {"tool_use_id": shown.tool_use_id, "name": shown.name}
        value.update({"content": plain(shown.content), "state": shown.state})
        return self._written("tool_result", self._results, result.tool_use_id or "t", value, ("content",))

    def tool(self, spec: ToolSpec) -> str:
        """Return the ref of a tool's description."""
        return self._tools.ref_of(spec) or self._tools.note(spec, self._write_tool(spec))

    def _write_tool(self, spec: ToolSpec) -> str:
        value: Line = {"name": spec.name, "description": self.cleaned(spec.description)}
        value["parameters"] = plain(self.cleaned(spec.parameters))
        value["type"] = spec.type
        if spec.requires_approval:
            value["requires_approval"] = True
        return self._written("tool", self._tools, spec.name, value, ("description", "parameters"))

    def _written(self, kind: str, known: _Known, base: str, value: Line, content: Sequence[str]) -> str:
        digest = digest_of(_compact(value))
        key = (base, digest)
        ref = known.by_content(key)
        if ref is None:
            ref = known.new_ref(base, key)
            if not self.content:
                value = {name: item for name, item in value.items() if name not in content}
                value["digest"] = digest
            self.out.append({"kind": kind, "ref": ref, "value": value})
        return ref

    def messages(self, call: str, messages: Sequence[Msg]) -> Line:
        """Encode a list of messages by its difference from the call's previous list."""
        return self.message_list(call, messages)[0]

    def message_list(
        self, call: str, messages: Sequence[Msg], known: Sequence[str] | None = None
    ) -> tuple[Line, list[str]]:
        """Encode a list as `messages` does, and return all its refs too.

        Args:
            call: The call.
            messages: The list.
            known: If the list has these refs, the caller does not write it, so the call's next list does not build on it.
        """
        last, refs = self._lists.get(call, ((), []))
        # Views of one history share its messages, so the common start is known without comparing them.
        keep = messages.shared(last) if isinstance(messages, MessageView) else 0
        added = [self.message(messages[index]) for index in range(keep, len(messages))]
        most = min(len(refs) - keep, len(added))
        same = next((n for n in range(most) if refs[keep + n] != added[n]), most)
        keep, added = keep + same, added[same:]
        every = [*refs[:keep], *added]
        # The reader of the log builds each list on the last one that was written.
        if every != known:
            self._lists[call] = messages, every
        data: Line = {}
        if keep:
            data["keep"] = keep
        if added:
            data["add"] = added
        return data, every

    def forget(self, call: str) -> None:
        """Discard the state of a finished call."""
        self._lists.pop(call, None)

    # ---- other values

    def cleaned(self, value: Any) -> Any:
        """Return a value without its secrets."""
        return value if self._clean is None else self._clean(value, self.run)

    def text(self, text: str) -> str:
        """Clean a text; return an empty text if only digests are recorded."""
        return str(self.cleaned(text)) if self.content else ""

    def value(self, call: str, value: Any) -> Any:
        """Encode the value of a field of an event, a verdict or a fact."""
        if value is None or value is True or value is False or isinstance(value, int | float):
            return plain(value)
        if isinstance(value, str):
            return plain(self.cleaned(value)) if self.content else digest_of(value)
        if isinstance(value, Msg):
            return self.message(value)
        if isinstance(value, ToolUseBlock):
            return self.tool_use(value)
        if isinstance(value, ToolResultBlock):
            return self.tool_result(value)
        if isinstance(value, ToolSpec):
            return self.tool(value)
        if isinstance(value, ModelOptions):
            options = set_fields(value)
            if "extra" in options:  # may contain secrets, such as keys in headers
                options["extra"] = self.value(call, options["extra"])
            return options
        if isinstance(value, Usage):
            return set_fields(value)
        if isinstance(value, AnyVerdict):
            return self.verdict(call, value)
        if isinstance(value, ErrorText):
            return self.error(value)
        return self._several(call, value)

    def _several(self, call: str, value: Any) -> Any:
        if isinstance(value, Mapping):
            items = cast("Mapping[object, object]", value).items()
            return {text_of(name): self.value(call, item) for name, item in items}
        if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
            return [self.value(call, item) for item in cast("Sequence[Any]", value)]
        if is_dataclass(value) and not isinstance(value, type):
            return {item.name: self.value(call, getattr(value, item.name)) for item in fields(value)}
        return plain(self.cleaned(value)) if self.content else None

    def verdict(self, call: str, verdict: AnyVerdict) -> Line:
        """Encode a verdict: its name, and its value under the name of its field."""
        field, value = verdict.__match_args__[0], verdict_value(verdict)
        data: Line = {"verdict": type(verdict).__name__}
        if isinstance(value, Msg):
            value = {"message": self.message(value)}
        elif isinstance(value, ToolResultBlock):
            value = {"tool_result": self.tool_result(value)}
        elif isinstance(value, list | tuple) and value and _are_messages(cast("Sequence[Any]", value)):
            value = {"messages": [self.message(msg) for msg in cast("Sequence[Msg]", value)]}
        elif not self.content:
            return data
        else:
            value = plain(self.cleaned(value))
            # The user's data may look like a ref, so it is wrapped.
            if isinstance(value, dict) and list(cast("Line", value)) in _LIKE_REFS:
                value = cast("Line", {"data": value})
        data[field] = value
        return data

    def error(self, error: ErrorText) -> Line:
        """Encode an exception."""
        described = error.fields
        if not self.content:
            return {"type": described["type"], "module": described["module"]}
        cleaned: Line = {**described, "message": self.cleaned(described["message"])}
        if "attributes" in described:
            cleaned["attributes"] = {
                name: self.cleaned(value) if isinstance(value, str) else value
                for name, value in described["attributes"].items()
            }
        return plain(cleaned)

    def piece(self, chunk: ModelChunk) -> str | Line:
        """Encode a chunk of a reply, as a plain text if the chunk contains only text."""
        if not self.content:
            return ""
        data: Line = {}
        for field in _CHUNK:
            value = getattr(chunk, field)
            if value is None or value is False or value == "" or value == ():
                continue
            if field == "usage":
                value = set_fields(value)
            elif field == "tool_uses":
                value = [set_fields(delta, keep=("index",)) for delta in value]
            data[field] = plain(value)
        if len(data) == 1 and "text" in data:
            return data["text"]
        return data or ""

    def fact(self, fact: Fact) -> Line:
        """Encode a fact's kind and fields."""
        call = str(getattr(fact, "call_id", ""))
        data: Line = {}
        for name, value in fact._asdict().items():  # `_asdict` and similar methods of named tuples are public
            if name in fact._field_defaults and value == fact._field_defaults[name]:
                continue
            if isinstance(value, tuple) and value and _are_messages(cast("tuple[Any, ...]", value)):
                data[name] = [self.message(msg) for msg in cast("tuple[Msg, ...]", value)]
            elif isinstance(value, str):
                # All other strings of facts are ids, keys and names.
                data[name] = value if name != "stop" else self.text(value)
            else:
                data[name] = self.value(call, value)
        return {"kind": "fact", "fact": fact_kind(fact), "call": call, "fields": data}


_LIKE_REFS = (["message"], ["messages"], ["tool_result"], ["data"])
_CHUNK = tuple(field.name for field in fields(ModelChunk))


def _are_messages(values: Sequence[Any]) -> bool:
    return all(isinstance(value, Msg) for value in values)


def set_fields(value: Any, keep: Sequence[str] = ()) -> Line:
    """Return the fields of a frozen value that differ from their defaults or are named in `keep`."""
    data: Line = {}
    for field in fields(value):
        held = getattr(value, field.name)
        if field.name in keep or not (
            # The types must be equal too, because `True == 1` and `1 == 1.0`.
            held is None or held == {} or (type(held) is type(field.default) and held == field.default)
        ):
            data[field.name] = plain(held)
    return data
