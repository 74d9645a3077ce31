"""What travels between processes, as JSON: what is asked for, what came of it, what is told on the way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, NamedTuple, TypeAlias, cast

from pydantic import TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError, to_jsonable_python

from agentflow.codec import msg_from_dict, msg_to_dict
from agentflow.errors import AgentFlowError, CallTimeoutError, StoreError, UsageError
from agentflow.event_json import Json
from agentflow.messages import Msg, Outcome, Pending, Reply
from agentflow.specs import Usage
from agentflow.verdicts import Answer, Approve, Deny, Resolution

__all__ = [
    "FORM",
    "Request",
    "RunEvent",
    "RunFailedError",
    "RunInfo",
    "RunStatus",
    "decisions_in",
    "decisions_out",
    "error_in",
    "error_out",
    "reply_in",
    "reply_out",
    "run_of",
    "segment_id",
    "segment_number",
]

FORM = 1
"""The version of the form of requests and results."""

RunStatus: TypeAlias = Literal["queued", "running", "suspended", "ended", "lost"]
"""`queued`: no worker has it; `running`: one has; `suspended`: it waits for `decide`; `ended`: `outcome` says how;
`lost`: it was given up after many workers died with it."""


class RunFailedError(AgentFlowError):
    """A run failed in its worker.

    Args:
        run_id: The run.
        kind: The class of the original error.
        said: Its text.
    """

    def __init__(self, run_id: str, kind: str, said: str) -> None:
        super().__init__(f"Run {run_id!r} failed with {kind}: {said} (What was done before is kept in its session.)")
        self.run_id = run_id
        self.kind = kind


class RunInfo(NamedTuple):
    """One run, as `runs` lists it.

    Attributes:
        run_id: The run.
        agent: The agent's name.
        session: The session's id.
        status: Where it stands.
        outcome: How its last call ended; None: it has not.
        created: When it was submitted, in seconds since the epoch.
        updated: When its status last changed.
        worker: Who has it, or had it last.
        attempts: How often a worker has taken its last call up; 2 and more: a worker has died with it.
    """

    run_id: str
    agent: str
    session: str
    status: RunStatus
    outcome: Outcome | None
    created: float
    updated: float
    worker: str | None
    attempts: int


@dataclass(frozen=True, slots=True)
class RunEvent:
    """An event of a run in another process, as data: what `agentflow.event_json.event_to_dict` makes of it.

    What the session holds already is left out (`input_messages`, `history` and `tools` of `PreCall` and `PreReasoning`).

    Attributes:
        run_id: The run.
        seq: The event's number in the run, from 1, without gaps; `stream(run_id, since=seq)` goes on after it.
        type: The event's name, such as `"ReasoningChunk"`. `"RunTaken"`: a worker has taken the run up (`data["attempt"]`
            counts them); text that an earlier attempt had streamed and not finished is void.
        data: Its fields.
    """

    run_id: str
    seq: int
    type: str
    data: Mapping[str, Json]

    @property
    def text(self) -> str:
        """The text of a streamed piece; empty for other events.

        Example:
            >>> RunEvent("r", 3, "ReasoningChunk", {"incremental_chunk": {"text": "Hel"}}).text
            'Hel'
        """
        chunk = self.data.get("incremental_chunk") if self.type == "ReasoningChunk" else None
        said = chunk.get("text") if isinstance(chunk, dict) else None
        return said if isinstance(said, str) else ""


class Request(NamedTuple):
    """What a worker is asked to do: open a call, or go on with a suspended one.

    Attributes:
        run_id: The run.
        agent: The agent's name.
        session: The session's id.
        messages: What the user says; empty where it goes on.
        decisions: What was decided, by the keys of `reply.pending`, as data.
        deadline: When it shall end, by the database's clock.
        timeout: The seconds that were given for it.
    """

    run_id: str
    agent: str
    session: str
    messages: tuple[Msg, ...] = ()
    decisions: Mapping[str, Any] | None = None
    deadline: float | None = None
    timeout: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """As JSON-compatible data."""
        messages = [msg_to_dict(msg) for msg in self.messages]
        decisions = None if self.decisions is None else dict(self.decisions)
        return {"form": FORM, **self._asdict(), "messages": messages, "decisions": decisions}

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> Request:
        """Read what `to_dict` made.

        Raises:
            StoreError: It is no request, or a newer agentflow made it.
        """
        form = data.get("form")
        if form != FORM:
            raise StoreError(
                f"A stored request has the form {form!r}; this agentflow reads {FORM}. A newer one made it: upgrade the "
                "workers."
            )
        values = {name: data[name] for name in Request._fields}
        values["messages"] = tuple([msg_from_dict(msg) for msg in data["messages"]])
        return Request(**values)

    def same_as(self, other: Mapping[str, Any]) -> bool:
        """Whether another request asks for the same (ids of messages and the deadline's clock time apart)."""
        return _asked(self.to_dict()) == _asked(other)


def _asked(data: Mapping[str, Any]) -> object:
    messages = [{**msg, "id": None} for msg in cast("list[dict[str, Any]]", data["messages"])]
    return [data["run_id"], data["agent"], data["session"], messages, data["decisions"], data["timeout"]]


# ---- ids: a run's first call has the run's id, the ones that go on with it "run/2", "run/3" ...


def segment_id(run_id: str, number: int) -> str:
    """The workflow of a run's n-th call."""
    return run_id if number == 1 else f"{run_id}/{number}"


def run_of(workflow_id: str) -> str:
    """The run that a workflow belongs to."""
    return workflow_id.partition("/")[0]


def segment_number(workflow_id: str) -> int:
    """Which of its run's calls a workflow is."""
    number = workflow_id.partition("/")[2]
    return int(number) if number else 1


# ---- decisions


def decisions_out(run_id: str, decisions: Mapping[str, Resolution], pending: Sequence[Pending]) -> dict[str, Any]:
    """Decisions as data.

    Raises:
        UsageError: They do not fit what the run waits for.
    """
    keys = [waits.id for waits in pending]
    unknown = [key for key in decisions if key not in keys]
    missing = [waits.id for waits in pending if waits.id not in decisions and waits.kind != "parked"]
    if unknown or missing:
        raise UsageError(
            f"Run {run_id!r} waits for decisions on {keys}; unknown: {unknown}, missing: {missing}. Give one for each "
            "call that waits (reply.pending)."
        )
    found: dict[str, Any] = {}
    for key, decision in decisions.items():
        match decision:
            case Approve(input=given):
                found[key] = {"decision": "approve", "value": None if given is None else _data(key, dict(given))}
            case Deny(reason=reason):
                found[key] = {"decision": "deny", "value": reason}
            case Answer(value=value):
                found[key] = {"decision": "answer", "value": _data(key, value)}
            case _:
                raise UsageError(
                    f"The decision for {key!r} is {decision!r:.60}; legal are Approve(), Approve(input=...), Deny(reason), "
                    "Answer(value)."
                )
    return found


def _data(key: str, value: object) -> Any:
    try:
        return to_jsonable_python(value)
    except PydanticSerializationError as error:
        raise UsageError(
            f"The decision for {key!r} holds what JSON does not know, so it cannot travel: {error}."
        ) from error


def decisions_in(data: Mapping[str, Any]) -> dict[str, Resolution]:
    """Decisions from data."""
    made: dict[str, Resolution] = {}
    for key, said in data.items():
        value = said["value"]
        match said["decision"]:
            case "approve":
                made[key] = Approve() if value is None else Approve(input=value)
            case "deny":
                made[key] = Deny(value)
            case _:
                made[key] = Answer(value)
    return made


# ---- results


@cache
def _adapter(form: Any) -> TypeAdapter[Any]:
    return TypeAdapter(form)


def reply_out(reply: Reply) -> dict[str, Any]:
    """A reply as data."""
    pending = _adapter(tuple[Pending, ...]).dump_python(reply.pending, mode="json", fallback=str)
    return {
        "form": FORM,
        "outcome": reply.outcome,
        "run_id": reply.run_id,
        "message": msg_to_dict(reply.to_message()),
        "usage": _adapter(Usage).dump_python(reply.usage, mode="json"),
        "pending": pending,
    }


def reply_in(data: Mapping[str, Any]) -> Reply:
    """A reply from data.

    Raises:
        StoreError: It is none.
    """
    try:
        usage = _adapter(Usage).validate_python(data["usage"])
        pending = _adapter(tuple[Pending, ...]).validate_python(data["pending"])
        return Reply.of(msg_from_dict(data["message"]), data["outcome"], data["run_id"], usage, pending)
    except (KeyError, ValidationError) as error:
        raise StoreError(
            f"A stored result cannot be read ({error}). A newer agentflow made it, or it is damaged."
        ) from error


def error_out(error: BaseException) -> dict[str, Any]:
    """A failure as data."""
    notes = "; ".join(getattr(error, "__notes__", ()))
    said = f"{error} ({notes})" if notes else str(error)
    timeout = error.timeout if isinstance(error, CallTimeoutError) else None
    return {
        "form": FORM,
        "outcome": "failed",
        "error": {"kind": type(error).__name__, "said": said, "timeout": timeout},
    }


def error_in(run_id: str, agent: str, data: Mapping[str, Any]) -> AgentFlowError:
    """A failure from data."""
    timeout = data["timeout"]
    if timeout is not None:
        return CallTimeoutError(timeout, agent)
    return RunFailedError(run_id, data["kind"], data["said"])
