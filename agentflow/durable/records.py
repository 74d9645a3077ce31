"""What travels between processes, as JSON: what is asked for, what came of it, what is told on the way."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple, NotRequired, TypeAlias, TypeVar, cast

from pydantic import Field, ValidationError
from typing_extensions import TypedDict

from agentflow.errors import AgentFlowError, CallTimeoutError, StoreError, UsageError
from agentflow.event_json import Json
from agentflow.ground.frozen import EMPTY
from agentflow.ground.validation import adapter_of
from agentflow.messages import Msg, Outcome, Pending, Reply
from agentflow.ports.store import SessionInfo
from agentflow.saving.codec import (
    decisions_from_dict,
    msg_from_dict,
    msg_to_dict,
    reply_from_dict,
    verdict_to_dict,
)
from agentflow.saving.forms import CODEC_VERSION, check_form
from agentflow.verdicts import Resolution

__all__ = [
    "Pruned",
    "Request",
    "RunEvent",
    "RunFailedError",
    "RunInfo",
    "RunStatus",
    "decisions_out",
    "error_out",
    "events_in",
    "result_in",
    "run_of",
    "segment_id",
    "segment_number",
]

RunStatus: TypeAlias = Literal["queued", "running", "suspended", "ended", "lost", "damaged"]
"""`queued`: no worker has it; `running`: one has; `suspended`: it waits for `decide`; `ended`: `outcome` says how;
`lost`: it was given up after many workers died with it; `damaged`: what is stored of it cannot be read."""


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


class Pruned(NamedTuple):
    """What `prune` has deleted.

    Attributes:
        runs: The ids of runs.
        sessions: The sessions, as they were.
    """

    runs: list[str]
    sessions: list[SessionInfo]


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
        damage: What cannot be read, if its status is `damaged`.
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
        deadline: When it has to end, by the database's clock.
        timeout: The seconds that were given for it.
        trace: Where in a trace it was submitted (see `tracing`).
    """

    run_id: str
    agent: str
    session: str
    messages: tuple[Msg, ...] = ()
    decisions: Mapping[str, Any] | None = None
    deadline: float | None = None
    timeout: float | None = None
    trace: Mapping[str, str] = EMPTY

    def to_dict(self) -> dict[str, Any]:
        """As JSON-compatible data."""
        messages = [msg_to_dict(msg) for msg in self.messages]
        decisions = None if self.decisions is None else dict(self.decisions)
        data = {"form": CODEC_VERSION, **self._asdict(), "messages": messages, "decisions": decisions}
        del data["trace"]
        return {**data, "trace": dict(self.trace)} if self.trace else data

    @staticmethod
    def from_data(workflow_id: str, data: object) -> Request:
        """Read what `to_dict` made.

        Args:
            workflow_id: The workflow that it is the request of.
            data: What is stored.

        Raises:
            StoreError: It is no request, not this run's, or a newer agentflow made it.
        """
        what = f"The stored request of run {workflow_id!r}"
        stored = _checked(_StoredRequest, data, what)
        if stored["run_id"] != run_of(workflow_id):
            raise StoreError(f"{what} is damaged: it is that of run {stored['run_id']!r}.")
        try:
            decisions_from_dict(stored["decisions"] or {})
        except ValueError as error:
            raise _damaged(what)(f"decisions: {error}") from error
        values: dict[str, Any] = {"trace": EMPTY, **{name: stored[name] for name in Request._fields if name in stored}}
        values["messages"] = tuple([msg_from_dict(msg) for msg in stored["messages"]])
        return Request(**values)

    def same_as(self, other: Request) -> bool:
        """Whether another request asks for the same (ids of messages, the deadline's clock time and the trace apart)."""
        return self._asked() == other._asked()

    def _asked(self) -> dict[str, Any]:
        messages = [{**msg_to_dict(msg), "id": None} for msg in self.messages]
        return {**self._replace(trace=EMPTY).to_dict(), "messages": messages, "deadline": None}


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


class _StoredError(TypedDict):
    kind: str
    said: str
    timeout: _Seconds | None


class _StoredFailure(TypedDict):
    form: int
    error: _StoredError


D = TypeVar("D")


def _checked(form: type[D], data: object, what: str) -> D:
    return check_form(form, data, what, _damaged(what))


def _damaged(what: str) -> Callable[[str], StoreError]:
    return lambda problem: StoreError(f"{what} is damaged, or not in the portable form: {problem}.")


# ---- ids: a run's first call has the run's id, the ones that go on with it "run/2", "run/3" ...


def segment_id(run_id: str, number: int) -> str:
    """The workflow of a run's n-th call."""
    return run_id if number == 1 else f"{run_id}/{number}"


def run_of(workflow_id: str) -> str:
    """The run that a workflow belongs to."""
    run_id, slash, number = workflow_id.partition("/")
    return workflow_id if slash and not number.isdecimal() else run_id  # what we have not made is a run of its own


def segment_number(workflow_id: str) -> int:
    """Which of its run's calls a workflow is."""
    number = workflow_id.partition("/")[2]
    return int(number) if number.isdecimal() else 1


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
        if not isinstance(decision, Resolution):  # pyright: ignore[reportUnnecessaryIsInstance] - input from outside
            raise UsageError(
                f"The decision for {key!r} is {decision!r:.60}; legal are Approve(), Approve(input=...), Deny(reason), "
                "Answer(value)."
            )
        found[key] = verdict_to_dict(decision, f"The decision for {key!r}")
    return found


# ---- results


def result_in(workflow_id: str, agent: str, data: object) -> Reply | AgentFlowError:
    """A reply or a failure from data.

    Raises:
        StoreError: It is neither.
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
    """A failure as data."""
    notes = "; ".join(getattr(error, "__notes__", ()))
    said = f"{error} ({notes})" if notes else str(error)
    timeout = error.timeout if isinstance(error, CallTimeoutError) else None
    return {
        "form": CODEC_VERSION,
        "outcome": "failed",
        "error": {"kind": type(error).__name__, "said": said, "timeout": timeout},
    }


# ---- events


def events_in(run_id: str, first: int, last: int, body: str) -> list[RunEvent]:
    """The events of a batch.

    Raises:
        StoreError: They are damaged.
    """
    try:
        found = adapter_of(list[dict[str, Any]]).validate_json(body)
        return [RunEvent(run_id, seq, str(data["type"]), data) for seq, data in enumerate(found, first)]
    except (ValidationError, KeyError) as error:
        raise StoreError(
            f"The stored events {first} to {last} of run {run_id!r} are damaged. Those behind them can be read: "
            f"since={last}. What was done is kept in the session."
        ) from error
