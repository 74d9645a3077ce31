"""The JSON form of stored data: facts, sessions, verdicts, decisions, messages, replies and pending calls.

Turns, queues, agents and requests to workers are composed of these; their own fields are defined next to their classes.

Rules:

1. A fact can always be written. If a value has no JSON form (such as NaN), its text is stored. Data that a person saves
   (a verdict, a turn, an agent) is refused instead if it contains such a value, unless it is NaN or infinite.
2. Reading returns an equal value or raises an error with advice. It never guesses and never reads partially.
3. Fields with a default may be missing. Data with a field that this code does not know is newer than the code. So
   `CODEC_VERSION` should be increased if a field or a kind of fact is added.
4. Verdicts and facts are listed in their unions. This file lists facts again only if each of them needs a rule of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, assert_never, cast, get_args

from pydantic_core import from_json
from typing_extensions import TypedDict

from agentflow._support.frozen import EMPTY
from agentflow._support.validation import adapter_of, first_problem
from agentflow._support.values import NamedTuple
from agentflow.errors import StoreError
from agentflow.vocabulary.facts import (
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
from agentflow.vocabulary.messages import DataBlock, Msg, Outcome, Pending, Reply, TextBlock, ToolResultBlock
from agentflow.vocabulary.saving.forms import CODEC_VERSION, check_form, check_version
from agentflow.vocabulary.saving.plain import as_data, dumps, plain, text_of
from agentflow.vocabulary.specs import Usage
from agentflow.vocabulary.verdicts import AnyVerdict, Resolution, verdict_value

__all__ = [
    "CODEC_VERSION",
    "SavedSession",
    "decisions_from_dict",
    "fact_from_json",
    "fact_key",
    "fact_kind",
    "fact_to_json",
    "msg_from_dict",
    "msg_to_dict",
    "reply_from_dict",
    "reply_to_dict",
    "resolution_from_dict",
    "session_from_dict",
    "session_to_dict",
    "verdict_from_dict",
    "verdict_to_dict",
]


def _snake(name: str) -> str:
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name).lstrip("_")


# Stored with each fact, so renaming a class of facts would make stored sessions unreadable.
_KINDS: dict[str, type[Fact]] = {_snake(kind.__name__): kind for kind in get_args(Fact)}
_NAMES: dict[type, str] = {kind: name for name, kind in _KINDS.items()}
_OPTIONAL = {"answer", "decisions", "key", "call_id", "number", "waited_ms"}
_OMITTED: dict[type, dict[str, Any]] = {
    kind: {name: kind._field_defaults[name] for name in _OPTIONAL & kind._field_defaults.keys()}
    for kind in get_args(Fact)
}
"""The fields of each kind that are left out if they have these default values."""


def fact_kind(fact: Fact) -> str:
    """Return the name under which a kind of fact is stored.

    Example:
        >>> fact_kind(CallResumed("run_1", "call_2"))
        'call_resumed'
    """
    return _NAMES[type(fact)]


def fact_key(fact: Fact) -> str | None:
    """Return the natural key of a fact. Two facts of one session with the same key are one fact, delivered twice.

    Returns:
        The key. None for a session's state, which is stored with another fact, and for facts that do not name their
        call.

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
        # Without the call and the attempt: a run has one result for each tool call, whichever of them produced it.
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


# ---- writing facts


def fact_to_json(fact: Fact) -> str:
    """Return a fact as JSON text, with its kind and the version of the format.

    Example:
        >>> fact_to_json(CallResumed("run_1", "call_2"))
        '{"kind":"call_resumed","version":2,"fact":{"run_id":"run_1","call_id":"call_2"}}'
    """
    return dumps({"kind": _NAMES[type(fact)], "version": CODEC_VERSION, "fact": _fields_of(fact)})


def _fields_of(fact: Fact) -> dict[str, Any]:
    found: dict[str, Any] = fact._asdict()
    for name, default in _OMITTED[type(fact)].items():
        if found[name] == default:
            del found[name]
    for name, value in found.items():
        if name == "verdict":
            found[name] = None if value is None else _verdict_out(cast("AnyVerdict", value))
        elif name == "decisions":
            found[name] = {key: _verdict_out(decision) for key, decision in value.items()}
        elif isinstance(value, Reply):
            found[name] = value.to_message()
        elif type(value) is tuple and value and isinstance(value[0], Msg):
            found[name] = [_message(msg) for msg in cast("tuple[Msg, ...]", value)]
    return found


def _message(msg: Msg) -> Msg:
    """Return a reply that is used as input as a plain message, without the fields about its call."""
    return msg.to_message() if isinstance(msg, Reply) else msg


# ---- verdicts

# Stored with each verdict, so renaming a class of verdicts would make stored data unreadable.
_VERDICTS: dict[str, type[AnyVerdict]] = {kind.__name__.lower(): kind for kind in get_args(AnyVerdict)}


def verdict_to_dict(verdict: AnyVerdict, label: str = "A verdict") -> dict[str, Any]:
    """Return a verdict or a decision as JSON-compatible data, as used in facts, saved turns and requests to workers.

    Args:
        verdict: The verdict to convert.
        label: The name of the value in errors.

    Raises:
        UsageError: A value in it has no JSON form (a fact would store its text).

    Example:
        >>> verdict_to_dict(Deny("not today"))
        {'verdict': 'deny', 'reason': 'not today'}
    """
    return as_data(label, _verdict_out(verdict))


def verdict_from_dict(data: Mapping[str, Any]) -> AnyVerdict:
    """Build a verdict from the data of `verdict_to_dict`. Messages, results and blocks in it have their original type.

    Raises:
        ValueError: The data is not a verdict.

    Example:
        >>> verdict_from_dict({"verdict": "approve", "input": {"cents": 5}})
        Approve(input={'cents': 5})
    """
    try:
        name = data["verdict"] if "verdict" in data else data["decision"]  # the name in requests of version 1
        kind = _VERDICTS.get(name)
        if kind is None:
            raise ValueError(f"unknown verdict {name!r}")
        return kind(_value_in(data, kind.__match_args__[0]))
    except (KeyError, TypeError, AttributeError) as error:  # data of any other form
        raise ValueError(f"it is not a verdict ({type(error).__name__}: {error})") from error


def resolution_from_dict(data: Mapping[str, Any]) -> Resolution:
    """Build a decision on a call from the data of `verdict_to_dict`.

    Raises:
        ValueError: The data is not a decision.
    """
    found = verdict_from_dict(data)
    if isinstance(found, Resolution):
        return found
    raise ValueError(f"a {type(found).__name__} is not a decision")


def decisions_from_dict(data: Mapping[str, Any]) -> dict[str, Resolution]:
    """Build decisions, by the keys of their calls, from JSON-compatible data.

    Raises:
        ValueError: The data is not a mapping of decisions.
    """
    return {key: resolution_from_dict(encoded) for key, encoded in data.items()}


def _verdict_out(verdict: AnyVerdict) -> dict[str, object]:
    field = verdict.__match_args__[0]
    return {"verdict": type(verdict).__name__.lower(), **_value_out(field, verdict_value(verdict))}


def _value_out(field: str, value: object) -> dict[str, object]:
    """Return the value of a verdict as data: messages, results and blocks with a tag, other values as they are."""
    form, encoded = _form_of(value)
    return {field: encoded} if form is None else {"form": form, field: encoded}


def _form_of(value: object) -> tuple[str | None, object]:
    if isinstance(value, Msg):
        return "message", _message(value)
    if isinstance(value, ToolResultBlock):
        return "result", value
    if isinstance(value, TextBlock | DataBlock):
        return "block", value
    if isinstance(value, Mapping):
        return None, dict(cast("Mapping[object, object]", value))
    return _form_of_list(cast("Sequence[object]", value)) if isinstance(value, list | tuple) else (None, value)


def _form_of_list(items: Sequence[object]) -> tuple[str | None, object]:
    if items and all(isinstance(item, Msg) for item in items):
        return "messages", [_message(item) for item in cast("Sequence[Msg]", items)]
    # A tool may return blocks together with other values.
    if any(isinstance(item, TextBlock | DataBlock) for item in items):
        return "blocks", [item if isinstance(item, TextBlock | DataBlock | str) else text_of(item) for item in items]
    return None, items


def _value_in(data: Mapping[str, Any], field: str) -> Any:
    value = data[field] if field in data else data["value"]  # the name in turns and requests of version 1
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


# ---- reading facts


def fact_from_json(text: str | bytes) -> Fact:
    """Read a fact that `fact_to_json` wrote.

    Raises:
        StoreError: The text is not a fact, or was written by a newer agentflow.

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
        raise _damaged(f"it is a JSON {type(data).__name__} instead of an object with kind, version and fact")
    entry = cast("dict[str, Any]", data)
    check_version("A stored fact", entry.get("version"))
    name, found = entry.get("kind"), entry.get("fact")
    kind = _KINDS.get(name) if isinstance(name, str) else None
    if kind is None:
        raise StoreError(
            f"A stored fact has the unknown kind {name!r} (known: {', '.join(_KINDS)}). If a newer agentflow wrote it, "
            "upgrade this one; otherwise restore it from a backup."
        )
    if not isinstance(found, dict):
        raise _damaged(f"the data of the {name} is not an object with fields")
    values = {**cast("dict[str, Any]", found)}  # a copy: the data may be read again
    try:
        if kind is ToolDecided:
            encoded = values.get("verdict")
            values["verdict"] = None if encoded is None else verdict_from_dict(encoded)
        elif "decisions" in values:
            values["decisions"] = {key: verdict_from_dict(decision) for key, decision in values["decisions"].items()}
        return adapter_of(kind).validate_python(values)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise _damaged(f"the {name} has wrong fields: {first_problem(error)}") from error


def _damaged(problem: str) -> StoreError:
    return StoreError(
        f"A stored fact cannot be read: {problem}. Restore it from a backup, or fork the session at an earlier point."
    )


# ---- messages


def msg_to_dict(msg: Msg) -> dict[str, Any]:
    """Return a message as JSON-compatible data. Unlike `Msg.to_dict`, this accepts any metadata, as facts do."""
    return plain(_message(msg))


def msg_from_dict(data: Mapping[str, Any]) -> Msg:
    """Build a message from the data of `msg_to_dict`.

    Raises:
        StoreError: The data is not a message.
    """
    try:
        return adapter_of(Msg).validate_python(data)
    except (ValueError, TypeError) as error:
        raise StoreError(
            f"A saved message cannot be read: {first_problem(error)}. Restore it from a backup."
        ) from error


# ---- replies


class _ReplyData(TypedDict):
    form: int
    outcome: Outcome
    run_id: str
    message: dict[str, Any]
    usage: Usage
    pending: tuple[Pending, ...]


def reply_to_dict(reply: Reply) -> dict[str, Any]:
    """Return a reply as JSON-compatible data. Values in its pending calls that have no JSON form become text.

    Example:
        >>> reply_to_dict(Reply.of(Msg.assistant("Hi"), "completed", "run_1", Usage(), ()))["outcome"]
        'completed'
    """
    return {
        "form": CODEC_VERSION,
        "outcome": reply.outcome,
        "run_id": reply.run_id,
        "message": msg_to_dict(reply),
        "usage": plain(reply.usage),
        "pending": [pending.to_dict() for pending in reply.pending],
    }


def reply_from_dict(data: object, label: str, wrong: Callable[[str], StoreError]) -> Reply:
    """Build a reply from the data of `reply_to_dict`; for `label` and `wrong` see `check_form`.

    Raises:
        StoreError: The data is not a reply, or was written by a newer agentflow.
    """
    found = check_form(_ReplyData, data, label, wrong)
    return Reply.of(
        msg_from_dict(found["message"]), found["outcome"], found["run_id"], found["usage"], found["pending"]
    )


# ---- sessions


class SavedSession(NamedTuple):
    """A session as data: its initial messages, and the later facts.

    Attributes:
        id: The session's id.
        messages: The initial messages of the conversation.
        facts: The later facts; the session is the fold of messages and facts.
        state: The session's typed state as JSON data, by the `"module:qualname"` of its class.
        seq: The number of events of the open run so far, including events that were not built.
        run_state: The typed state of the open run, in the same form.
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
        "state": plain(saved.state),
        "seq": saved.seq,
        "run_state": plain(saved.run_state),
    }


def session_from_dict(saved: object) -> SavedSession:
    """Build a session from the data of `session_to_dict`.

    Raises:
        StoreError: The data is not a session, or was written by a newer agentflow.
    """
    data = cast("Mapping[str, Any]", saved if isinstance(saved, Mapping) else {})
    if data.get("format") != _FORMAT:
        raise StoreError(
            f"This is not a saved session: it must be an object with format={_FORMAT!r}, as written by "
            "session.to_dict() and store.export()."
        )
    check_version("A saved session", data.get("version"))
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
            "A saved session must have id (a string), messages and facts (lists), state and run_state (objects) and seq "
            "(an integer). This one was changed by hand or is damaged: save the session again."
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
