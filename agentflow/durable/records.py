"""The data that processes exchange as JSON: requests, results and events."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple, NotRequired, TypeAlias, TypeVar, cast

from pydantic import Field, ValidationError
from typing_extensions import TypedDict

from agentflow._support.frozen import EMPTY
from agentflow._support.validation import adapter_of
from agentflow.durable.client_side import ClientSide, StoredClientSide
from agentflow.errors import AgentFlowError, CallTimeoutError, StoreError, UsageError
from agentflow.vocabulary.event_json import Json
from agentflow.vocabulary.messages import Msg, Outcome, Pending, Reply, undecided
from agentflow.vocabulary.ports.store import SessionInfo
from agentflow.vocabulary.saving.codec import (
    decisions_from_dict,
    msg_from_dict,
    msg_to_dict,
    reply_from_dict,
    verdict_to_dict,
)
from agentflow.vocabulary.saving.forms import CODEC_VERSION, check_form
from agentflow.vocabulary.saving.plain import dumps
from agentflow.vocabulary.verdicts import Resolution

RunStatus: TypeAlias = Literal["queued", "running", "suspended", "ended", "lost", "damaged"]
"""`queued`: no worker has it; `running`: a worker runs it; `suspended`: it waits for `decide`; `ended`: see `outcome`;
`lost`: it is no longer run, because many workers died while running it; `damaged`: its stored data is unreadable."""


class RunFailedError(AgentFlowError):
    """A run failed in its worker.

    Args:
        run_id: The run's id.
        kind: The class of the original error.
        message: The message of the original error.
    """

    def __init__(self, run_id: str, kind: str, message: str) -> None:
        super().__init__(
            f"Run {run_id!r} failed with {kind}: {message} (Work finished before the failure is kept in the run's session.)"
        )
        self.run_id = run_id
        self.kind = kind


class Pruned(NamedTuple):
    """The result of `prune`.

    Attributes:
        runs: The ids of the deleted runs.
        sessions: The deleted sessions.
    """

    runs: list[str]
    sessions: list[SessionInfo]


class RunInfo(NamedTuple):
    """One run, as `runs` lists it.

    Attributes:
        run_id: The run's id.
        agent: The agent's name.
        session: The session's id.
        status: The run's status.
        outcome: The outcome of its last call; None if it has not ended.
        created: When it was submitted, in seconds since the epoch.
        updated: When its status last changed.
        worker: The current or last worker.
        attempts: How many times a worker has started its last call; 2 or more if a worker died during it.
        damage: A description of the damage, if the status is `damaged`.
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
    damage: str | None = None


@dataclass(frozen=True, slots=True)
class RunEvent:
    """An event of a run in another process, as data in the form of `agentflow.vocabulary.event_json.event_to_dict`.

    Data that is in the session or in other events is omitted (`input_messages`, `history`, `tools`, `accumulated_message`).

    Attributes:
        run_id: The run's id.
        seq: The event's number in the run, from 1, without gaps; `stream(run_id, since=seq)` continues after it.
        type: The event's name, such as `"ReasoningChunk"`. `"RunTaken"`: a worker has started an attempt at the run
            (`data["attempt"]` counts them); unfinished text of an earlier attempt should be discarded. `"SessionState"`: the
            values of `DurableAgent(state=...)` have changed (`data["values"]`).
        data: The event's fields.
    """

    run_id: str
    seq: int
    type: str
    data: Mapping[str, Json]

    @property
    def text(self) -> str:
        """The text of a streamed chunk; empty for other events.

        Example:
            >>> RunEvent("r", 3, "ReasoningChunk", {"incremental_chunk": {"text": "Hel"}}).text
            'Hel'
        """
        chunk = self.data.get("incremental_chunk") if self.type == "ReasoningChunk" else None
        text = chunk.get("text") if isinstance(chunk, dict) else None
        return text if isinstance(text, str) else ""


class Request(NamedTuple):
    """A request to a worker: open a call, or resume a suspended one.

    Attributes:
        run_id: The run's id.
        agent: The agent's name.
        session: The session's id.
        messages: The user's messages; empty if it resumes a call.
        decisions: The decisions by the keys of `reply.pending`, as data.
        deadline: The time at which it must end, by the database's clock.
        timeout: The time limit in seconds, as submitted.
        trace: The trace context of its submission (see `tracing`).
        side: The sender's additions to the agent.
        key: The sender's id for the request.
    """

    run_id: str
    agent: str
    session: str
    messages: tuple[Msg, ...] = ()
    decisions: Mapping[str, Any] | None = None
    deadline: float | None = None
    timeout: float | None = None
    trace: Mapping[str, str] = EMPTY
    side: ClientSide | None = None
    key: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the request as JSON-compatible data."""
        messages = [msg_to_dict(msg) for msg in self.messages]
        decisions = None if self.decisions is None else dict(self.decisions)
        data = {"form": CODEC_VERSION, **self._asdict(), "messages": messages, "decisions": decisions}
        side = None if self.side is None else self.side.to_dict()
        # Left out if unset, so that older workers, which do not know these fields, accept the request.
        optional = {"trace": dict(self.trace), "side": side, "key": self.key}
        return {**{name: value for name, value in data.items() if name not in optional}, **_set_values(optional)}

    @staticmethod
    def from_data(workflow_id: str, data: object) -> Request:
        """Read the data of `to_dict`.

        Args:
            workflow_id: The request's workflow.
            data: The stored data.

        Raises:
            StoreError: The data is not a request, belongs to another run, or is from a newer agentflow.
        """
        what = f"The stored request of run {workflow_id!r}"
        stored = _checked(_StoredRequest, data, what)
        if stored["run_id"] != run_of(workflow_id):
            raise StoreError(f"{what} is damaged: it belongs to run {stored['run_id']!r}.")
        try:
            decisions_from_dict(stored["decisions"] or {})
        except ValueError as error:
            raise _damaged(what)(f"decisions: {error}") from error
        values: dict[str, Any] = {name: stored[name] for name in Request._fields if name in stored}
        values["messages"] = tuple([msg_from_dict(msg) for msg in stored["messages"]])
        if "side" in stored:
            try:
                values["side"] = ClientSide.from_dict(stored["side"])
            except ValueError as error:
                raise _damaged(what)(f"side: {error}") from error
        return Request(**values)

    def same_as(self, other: Request) -> bool:
        """Return whether two requests are equal, ignoring message ids, the time of the deadline, and the trace."""
        return self._compared() == other._compared()

    def _compared(self) -> dict[str, Any]:
        messages = [{**msg_to_dict(msg), "id": None} for msg in self.messages]
        return {**self._replace(trace=EMPTY).to_dict(), "messages": messages, "deadline": None}


def _set_values(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value}


# Python's JSON parser accepts NaN, with which every comparison of a deadline is false.
_Seconds = Annotated[float, Field(allow_inf_nan=False)]


class _StoredRequest(TypedDict):
    form: int
    run_id: str
    agent: str
    session: str
    messages: list[dict[str, Any]]
    decisions: dict[str, dict[str, Any]] | None
    deadline: _Seconds | None
    timeout: _Seconds | None
    trace: NotRequired[dict[str, str]]
    side: NotRequired[StoredClientSide]
    key: NotRequired[str]


class _StoredError(TypedDict):
    kind: str
    said: str
    timeout: _Seconds | None


class _StoredFailure(TypedDict):
    form: int
    error: _StoredError


class _StoredMessage(TypedDict):
    form: int
    message: dict[str, Any]


D = TypeVar("D")


def _checked(form: type[D], data: object, what: str) -> D:
    return check_form(form, data, what, _damaged(what))


def _damaged(what: str) -> Callable[[str], StoreError]:
    return lambda problem: StoreError(f"{what} is damaged, or not in the portable form: {problem}.")


# ---- ids: the first call of a run has the run's id, the calls that resume it are "run/2", "run/3" ...


def segment_id(run_id: str, number: int) -> str:
    """Return the workflow id of a run's n-th call."""
    return run_id if number == 1 else f"{run_id}/{number}"


def run_of(workflow_id: str) -> str:
    """Return the run that a workflow belongs to."""
    run_id, slash, number = workflow_id.partition("/")
    return workflow_id if slash and not number.isdecimal() else run_id  # an id in another form counts as a separate run


def segment_number(workflow_id: str) -> int:
    """Return the number of a workflow's call within its run."""
    number = workflow_id.partition("/")[2]
    return int(number) if number.isdecimal() else 1


# ---- decisions


def decisions_out(run_id: str, decisions: Mapping[str, object], pending: Sequence[Pending]) -> dict[str, Any]:
    """Return decisions as data.

    Raises:
        UsageError: The decisions do not match the pending calls of the run.
    """
    keys = [wait.id for wait in pending]
    unknown = [key for key in decisions if key not in keys]
    missing = [wait.id for wait in undecided(pending, decisions)]
    if unknown or missing:
        raise UsageError(
            f"Run {run_id!r} waits for decisions on {keys}; unknown: {unknown}, missing: {missing}. Pass one decision for "
            "each pending call (reply.pending)."
        )
    found: dict[str, Any] = {}
    for key, decision in decisions.items():
        if not isinstance(decision, Resolution):
            raise UsageError(
                f"The decision for {key!r} is {decision!r:.60}. Use Approve(), Approve(input=...), Deny(reason) or "
                "Answer(value)."
            )
        found[key] = verdict_to_dict(decision, f"The decision for {key!r}")
    return found


# ---- messages to sessions


def message_out(message: Msg) -> str:
    """Return a message as text."""
    return dumps({"form": CODEC_VERSION, "message": msg_to_dict(message)})


def message_in(body: str) -> Msg:
    """Read a message.

    Raises:
        StoreError: The message is damaged.
    """
    what = "A stored message to a session"
    try:
        data: object = adapter_of(dict[str, Any]).validate_json(body)
    except ValidationError as error:
        raise _damaged(what)("it is not JSON") from error
    return msg_from_dict(_checked(_StoredMessage, data, what)["message"])


# ---- results


def result_in(workflow_id: str, agent: str, data: object) -> Reply | AgentFlowError:
    """Read a reply or a failure.

    Raises:
        StoreError: The data is neither.
    """
    what = f"The stored result of run {workflow_id!r}"
    if isinstance(data, dict) and "error" in data:
        failed = _checked(_StoredFailure, cast("object", data), what)["error"]
        timeout = failed["timeout"]
        if timeout is not None:
            return CallTimeoutError(timeout, agent)
        return RunFailedError(run_of(workflow_id), failed["kind"], failed["said"])
    return reply_from_dict(cast("object", data), what, _damaged(what))


def error_out(error: BaseException) -> dict[str, Any]:
    """Return a failure as data."""
    # The notes describe failures during cleanup. The exception itself stays in the worker's process.
    notes = "; ".join(getattr(error, "__notes__", ()))
    text = f"{error} ({notes})" if notes else str(error)
    timeout = error.timeout if isinstance(error, CallTimeoutError) else None
    return {
        "form": CODEC_VERSION,
        "outcome": "failed",
        "error": {"kind": type(error).__name__, "said": text, "timeout": timeout},
    }


# ---- events


def events_in(run_id: str, first: int, last: int, body: str) -> list[RunEvent]:
    """Read the events of a batch.

    Raises:
        StoreError: The events are damaged.
    """
    try:
        found = adapter_of(list[dict[str, Any]]).validate_json(body)
        return [RunEvent(run_id, seq, str(data["type"]), data) for seq, data in enumerate(found, first)]
    except (ValidationError, KeyError) as error:
        raise StoreError(
            f"The stored events {first} to {last} of run {run_id!r} are damaged. Skip them with since={last} to read the "
            "events after them. The facts in the session are not affected."
        ) from error
