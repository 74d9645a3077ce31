"""Facts and sessions as JSON: what every store that outlives the process writes, and what a session is saved as.

Rules:

1. A fact can always be written. What JSON does not know, NaN included, is stored as what the run used of it: its text.
2. Reading gives back an equal fact, or a `StoreError` that says what to do; nothing is guessed, nothing half read.
3. Text without a field that has a default is read; text with a field that this code does not know is newer than it.
   So whoever adds a field, or a kind of fact, raises `CODEC_VERSION`.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, NamedTuple, assert_never, cast, get_args

from pydantic_core import ValidationError, from_json, to_json

from agentflow.errors import StoreError
from agentflow.facts import (
    CallClosed,
    CallOpened,
    CallResumed,
    Compacted,
    Fact,
    Injected,
    Reasoned,
    RoundClosed,
    RoundSuspended,
    SessionBegan,
    StateKept,
    ToolDecided,
    ToolFinished,
    ToolStarted,
)
from agentflow.ground.frozen import EMPTY
from agentflow.ground.validation import adapter_of
from agentflow.messages import DataBlock, Msg, Reply, TextBlock, ToolResultBlock, ToolUseBlock
from agentflow.verdicts import Again, Answer, AnyVerdict, Approve, Deny, Recover, Resolution, Stop, Suspend

__all__ = [
    "CODEC_VERSION",
    "SavedSession",
    "fact_from_json",
    "fact_key",
    "fact_kind",
    "fact_to_json",
    "msg_from_dict",
    "msg_to_dict",
    "resolution_from_dict",
    "session_from_dict",
    "session_to_dict",
    "verdict_from_dict",
    "verdict_to_dict",
]

CODEC_VERSION = 2
"""The version of the JSON form of facts and sessions, written into each."""

_DEEPEST = 100
"""Levels of nesting after which a value is stored as its text (readers stop at 200)."""


def _snake(name: str) -> str:
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name).lstrip("_")


_KINDS: dict[str, type[Fact]] = {_snake(kind.__name__): kind for kind in get_args(Fact)}
_NAMES: dict[type, str] = {kind: name for name, kind in _KINDS.items()}


def fact_kind(fact: Fact) -> str:
    """The name under which a kind of fact is stored.

    Example:
        >>> fact_kind(CallResumed("run_1", "call_2"))
        'call_resumed'
    """
    return _NAMES[type(fact)]


def fact_key(fact: Fact) -> str | None:
    """The natural key of a fact: two facts of one session with the same key are the same fact, delivered twice.

    Returns:
        The key; None for a session's state, which goes along with another fact, and for facts that do not name their call.

    Example:
        >>> fact_key(CallResumed("run_1", "call_2"))
        'run_1:call_2:resumed'
    """
    match fact:
        case CallOpened():
            return f"{fact.run_id}:{fact.call_id}:opened"
        case CallResumed():
            return f"{fact.run_id}:{fact.call_id}:resumed"
        case CallClosed():
            return f"{fact.run_id}:{fact.call_id}:closed"
        case Reasoned():
            return f"{fact.run_id}:{fact.iteration}:reasoned"
        case ToolDecided():
            return f"{fact.run_id}:{fact.call_id}:{fact.tool_use_id}:decided" if fact.call_id else None
        case ToolStarted():
            return f"{fact.run_id}:{fact.call_id}:{fact.tool_use_id}:{fact.attempt}:started" if fact.call_id else None
        case ToolFinished():
            return f"{fact.run_id}:{fact.tool_use_id}:finished"
        case RoundClosed():
            return f"{fact.run_id}:{fact.message_id}:round"
        case RoundSuspended():
            return f"{fact.run_id}:{fact.call_id}:suspended" if fact.call_id else None
        case Injected():
            return f"{fact.run_id}:{fact.call_id}:{fact.number}:injected" if fact.call_id else None
        case Compacted():
            return f"{fact.run_id}:{fact.call_id}:{fact.number}:compacted" if fact.call_id else None
        case SessionBegan():
            return "began"
        case StateKept():
            return None
        case _:
            assert_never(fact)


# ---- facts out


def fact_to_json(fact: Fact) -> str:
    """Return a fact as JSON text, with its kind and the version of the form.

    Example:
        >>> fact_to_json(CallResumed("run_1", "call_2"))
        '{"kind":"call_resumed","version":2,"fact":{"run_id":"run_1","call_id":"call_2"}}'
    """
    return _dumps({"kind": _NAMES[type(fact)], "version": CODEC_VERSION, "fact": _fields_of(fact)})


def _fields_of(fact: Fact) -> dict[str, Any]:
    found: dict[str, Any] = fact._asdict()
    for name in ("answer", "decisions", "key", "call_id", "number"):  # mostly not there
        if name in fact._field_defaults and found[name] == fact._field_defaults[name]:
            del found[name]
    for name, value in found.items():
        if name == "verdict":
            found[name] = None if value is None else _verdict_out(cast("AnyVerdict", value))
        elif name == "decisions":
            found[name] = {key: _verdict_out(decision) for key, decision in value.items()}
        elif isinstance(value, Reply):
            found[name] = value.to_message()
        elif type(value) is tuple and value and isinstance(value[0], Msg):
            found[name] = [_plain_msg(msg) for msg in cast("tuple[Msg, ...]", value)]
    return found


def _plain_msg(msg: Msg) -> Msg:
    """A reply that is used as input says nothing of its call."""
    return msg.to_message() if isinstance(msg, Reply) else msg


def _dumps(value: object) -> str:
    try:
        return to_json(value, fallback=_fallback, inf_nan_mode="strings").decode()
    except (ValueError, RecursionError):  # half a surrogate pair, bytes that are no text, a value that holds itself
        return to_json(_simple(value, 0), inf_nan_mode="strings").decode()


def _fallback(value: object) -> object:
    if isinstance(value, ToolUseBlock):
        return adapter_of(ToolUseBlock).dump_python(value)
    return _text(value)


def _text(value: object) -> str:
    try:
        return _utf8(str(value))
    except Exception:  # noqa: BLE001, RUF100 - a broken __str__ must not lose the fact
        return f"({type(value).__name__} without a readable text)"


def _utf8(text: str) -> str:
    """Halves of surrogate pairs are put together (streams cut them apart), single ones replaced."""
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _simple(value: object, depth: int) -> object:
    """The slow way: the value as plain data that JSON certainly knows."""
    if value is None or isinstance(value, bool | int | float):
        return value  # `to_json` writes NaN as its text
    if isinstance(value, str):
        return _utf8(value)
    if isinstance(value, bytes | bytearray):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return base64.b64encode(value).decode()
    if depth > _DEEPEST:
        return _text(type(value))
    if isinstance(value, ToolUseBlock):
        value = adapter_of(ToolUseBlock).dump_python(value)
    if isinstance(value, Mapping):
        return {_text(k): _simple(v, depth + 1) for k, v in cast("Mapping[object, object]", value).items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_simple(item, depth + 1) for item in cast("Iterable[object]", value)]
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: _simple(getattr(value, f.name, None), depth + 1) for f in fields(value)}
    try:
        return from_json(to_json(value, fallback=_text, inf_nan_mode="strings"))
    except (ValueError, RecursionError):
        return _text(value)


# ---- verdicts


def verdict_to_dict(verdict: AnyVerdict) -> dict[str, Any]:
    """Return a verdict or a decision as JSON-compatible data, as it stands in facts, saved turns and requests to workers.

    Raises:
        PydanticSerializationError: It holds what JSON does not know. (A fact keeps the text of it.)

    Example:
        >>> verdict_to_dict(Deny("not today"))
        {'verdict': 'deny', 'reason': 'not today'}
    """
    return from_json(to_json(_verdict_out(verdict), fallback=_strictly, inf_nan_mode="strings"))


def verdict_from_dict(data: Mapping[str, Any]) -> AnyVerdict:
    """Read what `verdict_to_dict` made; what it carried is of the type that it was.

    Raises:
        ValueError: It is none.

    Example:
        >>> verdict_from_dict({"verdict": "approve", "input": {"cents": 5}})
        Approve(input={'cents': 5})
    """
    try:
        return _verdict_in(data)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"it is no verdict ({type(error).__name__}: {error})") from error


def resolution_from_dict(data: Mapping[str, Any]) -> Resolution:
    """Read what `verdict_to_dict` made of a decision on a call.

    Raises:
        ValueError: It is none.
    """
    found = verdict_from_dict(data)
    if isinstance(found, Approve | Deny | Answer):
        return found
    raise ValueError(f"a {type(found).__name__} decides nothing")


def _verdict_in(data: Mapping[str, Any]) -> AnyVerdict:
    name = data["verdict"] if "verdict" in data else data["decision"]  # as the first version named it in requests
    match name:
        case "deny":
            return Deny(_field(data, "reason"))
        case "stop":
            return Stop(_field(data, "reason"))
        case "suspend":
            return Suspend(_field(data, "request"))
        case "approve":
            return Approve(_field(data, "input"))
        case "answer":
            return Answer(_value_in(data))
        case "recover":
            return Recover(_value_in(data))
        case "again":
            return Again(_value_in(data))
        case other:
            raise ValueError(f"unknown verdict {other!r}")


def _field(data: Mapping[str, Any], name: str) -> Any:
    return data[name] if name in data else data["value"]  # as the first version named it in turns and requests


def _strictly(value: object) -> object:
    if isinstance(value, ToolUseBlock):
        return adapter_of(ToolUseBlock).dump_python(value)
    raise TypeError(f"a {type(value).__name__} is no data")


def _verdict_out(verdict: AnyVerdict) -> dict[str, object]:
    match verdict:
        case Deny(reason=reason):
            return {"verdict": "deny", "reason": reason}
        case Stop(reason=reason):
            return {"verdict": "stop", "reason": reason}
        case Suspend(request=request):
            return {"verdict": "suspend", "request": request}
        case Approve(input=given):
            return {"verdict": "approve", "input": None if given is None else dict(given)}
        case Answer(value=value):
            return {"verdict": "answer", **_value_out(value)}
        case Recover(value=value):
            return {"verdict": "recover", **_value_out(value)}
        case Again(messages=messages):
            return {"verdict": "again", **_value_out(messages)}
        case _:
            assert_never(verdict)


def _value_out(value: object) -> dict[str, object]:
    """What a verdict carries: words of ours are tagged, all else is data."""
    if isinstance(value, Msg):
        return {"form": "message", "value": _plain_msg(value)}
    if isinstance(value, ToolResultBlock):
        return {"form": "result", "value": value}
    if isinstance(value, TextBlock | DataBlock):
        return {"form": "block", "value": value}
    if isinstance(value, list | tuple) and value:
        items = cast("Sequence[object]", value)
        if all(isinstance(item, Msg) for item in items):
            return {"form": "messages", "value": [_plain_msg(item) for item in cast("Sequence[Msg]", items)]}
        if any(isinstance(item, TextBlock | DataBlock) for item in items):
            known = [item if isinstance(item, TextBlock | DataBlock | str) else _text(item) for item in items]
            return {"form": "blocks", "value": known}
    return {"value": value}


def _value_in(data: Mapping[str, Any]) -> Any:
    value = data["value"]
    match data.get("form"):
        case None:
            return value
        case "message":
            return adapter_of(Msg).validate_python(value)
        case "messages":
            return tuple([adapter_of(Msg).validate_python(item) for item in value])
        case "result":
            return adapter_of(ToolResultBlock).validate_python(value)
        case "block":
            return _block_in(value)
        case "blocks":
            return [item if isinstance(item, str) else _block_in(item) for item in value]
        case other:
            raise ValueError(f"unknown form {other!r}")


def _block_in(data: Any) -> TextBlock | DataBlock:
    kind = DataBlock if data["type"] == "data" else TextBlock
    return adapter_of(kind).validate_python(data)


# ---- facts in


def fact_from_json(text: str | bytes) -> Fact:
    """Read a fact that `fact_to_json` wrote.

    Raises:
        StoreError: The text is no fact, or was written by a newer agentflow.

    Example:
        >>> fact_from_json('{"kind":"call_resumed","version":1,"fact":{"run_id":"run_1","call_id":"call_2"}}')
        CallResumed(run_id='run_1', call_id='call_2', decisions={})
    """
    try:
        data: object = from_json(text)
    except (ValueError, TypeError) as error:
        raise _damaged(f"it is not JSON ({error})") from error
    return _fact_in(data)


def _fact_in(data: object) -> Fact:
    if not isinstance(data, dict):
        raise _damaged(f"it is a JSON {type(data).__name__}, and must be an object with kind, version and fact")
    given = cast("dict[str, Any]", data)
    _check_version(given.get("version"), "A stored fact")
    name, found = given.get("kind"), given.get("fact")
    kind = _KINDS.get(name) if isinstance(name, str) else None
    if kind is None:
        raise StoreError(
            f"A stored fact is of kind {name!r}, which this agentflow does not know (known: {', '.join(_KINDS)}). If a "
            "newer agentflow wrote it, upgrade this one; if another program did, it is no fact: restore it from a backup."
        )
    if not isinstance(found, dict):
        raise _damaged(f"the {name} has no fields")
    values = cast("dict[str, Any]", found)
    try:
        if kind is ToolDecided:
            said = values.get("verdict")
            values["verdict"] = None if said is None else verdict_from_dict(said)
        elif "decisions" in values:
            values["decisions"] = {key: verdict_from_dict(decision) for key, decision in values["decisions"].items()}
        return adapter_of(kind).validate_python(values)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise _damaged(f"the {name} has wrong fields: {_first_problem(error)}") from error


def _damaged(what: str) -> StoreError:
    return StoreError(
        f"A stored fact cannot be read: {what}. Restore it from a backup, or fork the session at an earlier point."
    )


def _first_problem(error: Exception) -> str:
    if isinstance(error, ValidationError):
        found = error.errors(include_url=False, include_input=False)
        where = ".".join(str(part) for part in found[0]["loc"])
        return f"{where}: {found[0]['msg']}"
    return f"{type(error).__name__}: {error}"


def _check_version(version: object, what: str) -> None:
    if type(version) is not int or version < 1:
        raise StoreError(
            f"{what} has the version {version!r}, and must have a whole number from 1 to {CODEC_VERSION}. It was not "
            "written by agentflow, or is damaged: restore it from a backup."
        )
    if version > CODEC_VERSION:
        raise StoreError(
            f"{what} has version {version}; this agentflow reads versions up to {CODEC_VERSION}. A newer one wrote it: "
            "upgrade agentflow here. Nothing was changed."
        )


# ---- messages


def msg_to_dict(msg: Msg) -> dict[str, Any]:
    """Return a message as JSON-compatible data; unlike `Msg.to_dict` it takes any metadata, as facts do."""
    return from_json(_dumps(_plain_msg(msg)))


def msg_from_dict(data: Mapping[str, Any]) -> Msg:
    """Build a message from what `msg_to_dict` made.

    Raises:
        StoreError: The data is not a message.
    """
    try:
        return adapter_of(Msg).validate_python(data)
    except (ValueError, TypeError) as error:
        raise StoreError(
            f"A saved message cannot be read: {_first_problem(error)}. Restore it from a backup."
        ) from error


# ---- sessions


class SavedSession(NamedTuple):
    """A session as data: the messages that it begins with, and the facts since.

    Attributes:
        id: The session's id.
        messages: What the conversation starts with.
        facts: What happened since; the fold of both is the session.
        state: The session's typed state as JSON data, by `"module:qualname"` of its class.
        seq: How many emission points the open run has passed.
        run_state: The typed state of the open run, likewise.
    """

    id: str
    messages: tuple[Msg, ...] = ()
    facts: tuple[Fact, ...] = ()
    state: Mapping[str, Any] = EMPTY
    seq: int = 0
    run_state: Mapping[str, Any] = EMPTY


_FORMAT = "agentflow.session"


def session_to_dict(saved: SavedSession) -> dict[str, Any]:
    """Return a session as JSON-compatible data.

    Example:
        >>> session_to_dict(SavedSession("s"))["format"]
        'agentflow.session'
    """
    return {
        "format": _FORMAT,
        "version": CODEC_VERSION,
        "id": saved.id,
        "messages": [msg_to_dict(msg) for msg in saved.messages],
        "facts": [from_json(fact_to_json(fact)) for fact in saved.facts],
        "state": from_json(_dumps(saved.state)),
        "seq": saved.seq,
        "run_state": from_json(_dumps(saved.run_state)),
    }


def session_from_dict(data: Mapping[str, Any]) -> SavedSession:
    """Read what `session_to_dict` made.

    Raises:
        StoreError: The data is no session, or was written by a newer agentflow.
    """
    if not isinstance(data, Mapping) or data.get("format") != _FORMAT:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise StoreError(
            f"This is no saved session: it must be an object with format={_FORMAT!r}, as session.to_dict() and "
            "store.export() write it."
        )
    _check_version(data.get("version"), "A saved session")
    session_id, seq = data.get("id"), data.get("seq", 0)
    lists = [data.get(name, []) for name in ("messages", "facts")]
    states = [data.get(name, {}) for name in ("state", "run_state")]
    if (
        not isinstance(session_id, str)
        or type(seq) is not int
        or not all(isinstance(value, list) for value in lists)
        or not all(isinstance(value, Mapping) for value in states)
    ):
        raise StoreError(
            "A saved session must have id (text), messages and facts (lists), state and run_state (objects) and seq (a "
            "number). This one was changed by hand, or is damaged: save the session again."
        )
    messages, facts = cast("list[list[Any]]", lists)
    return SavedSession(
        session_id,
        tuple([msg_from_dict(msg) for msg in messages]),
        tuple([_fact_in(fact) for fact in facts]),
        states[0],
        seq,
        states[1],
    )
