"""Reads the calls of a run from DBOS's workflows: requests, results, and the run's status.

The calls of a run are one workflow each; damaged data leads to an error or a status, never to a guess.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from agentflow.durable.records import (
    Request,
    RunFailedError,
    RunInfo,
    RunStatus,
    result_in,
    run_of,
    segment_number,
)
from agentflow.durable.sdk import WorkflowStatus
from agentflow.errors import AgentFlowError, StoreError
from agentflow.vocabulary.messages import Outcome, Pending, Reply

QUEUE: Final = "agentflow-"
"""The prefix of an agent's queue; the agent's name follows."""


def request_of(status: WorkflowStatus) -> Request:
    """Return the stored request.

    Raises:
        StoreError: The stored data is damaged, or not in the portable form.
    """
    stored: object = status.input  # text, if DBOS could not parse it
    args: object = stored.get("args") if isinstance(stored, dict) else None
    return Request.from_data(status.workflow_id, args[0] if isinstance(args, tuple) and len(args) == 1 else None)


def _result_of(status: WorkflowStatus) -> Reply | AgentFlowError | None:
    """Return the stored result; None if there is none yet.

    Raises:
        StoreError: The stored data is damaged, or not in the portable form.
    """
    if status.status != "SUCCESS":
        return None
    return result_in(status.workflow_id, agent_of(status), status.output)


def agent_of(status: WorkflowStatus) -> str:
    return (status.queue_name or "").removeprefix(QUEUE)


def pending_of(status: WorkflowStatus) -> tuple[Pending, ...] | None:
    """Return the pending calls of a suspended run; None if it is not suspended."""
    result = _result_of(status)
    return result.pending if isinstance(result, Reply) and result.outcome == "suspended" else None


def reply_of(run_id: str, status: WorkflowStatus) -> Reply:
    result = _result_of(status)
    if isinstance(result, Reply):
        return result
    if result is not None:
        raise result
    error: object = status.error
    text = f"{status.status}: {error}" if isinstance(error, Exception) else f"its workflow is {status.status}"
    raise RunFailedError(run_id, "WorkerError", text)


def by_run(statuses: Iterable[WorkflowStatus]) -> dict[str, list[WorkflowStatus]]:
    """Return the calls of each run."""
    found: dict[str, list[WorkflowStatus]] = {}
    for status in statuses:
        found.setdefault(run_of(status.workflow_id), []).append(status)
    return found


def session_of(status: WorkflowStatus) -> str:
    return str(status.queue_partition_key or "")


def last_call(segments: Sequence[WorkflowStatus]) -> WorkflowStatus:
    return max(segments, key=lambda status: segment_number(status.workflow_id))


def is_suspended(status: WorkflowStatus) -> bool:
    """Return whether a run is suspended."""
    try:
        return pending_of(status) is not None
    except StoreError:  # a damaged run cannot be resumed
        return False


_STATUSES: Final[Mapping[str, RunStatus]] = {
    "ENQUEUED": "queued",
    "DELAYED": "queued",
    "PENDING": "running",
    "SUCCESS": "ended",
    "ERROR": "ended",
}


def info_of(segments: Sequence[WorkflowStatus]) -> RunInfo:
    """Summarise a run from its calls, in any order. Damaged data becomes a status, so it does not hide other runs."""
    newest = last_call(segments)
    outcome: Outcome | None = None
    damage: str | None = None
    try:
        request_of(newest)
        result = _result_of(newest)
        if isinstance(result, Reply):
            outcome = result.outcome
        elif result is not None or newest.status == "ERROR":  # a failure of the agent, or of the worker itself
            outcome = "failed"
    except StoreError as error:
        damage = str(error)
    status: RunStatus = _STATUSES.get(newest.status, "lost")
    if damage is not None or outcome == "suspended":
        status = "suspended" if damage is None else "damaged"
    return RunInfo(
        run_of(newest.workflow_id),
        agent_of(newest),
        session_of(newest),
        status,
        outcome,
        min(number_of(status.created_at) for status in segments) / 1000,  # DBOS stores milliseconds
        number_of(newest.updated_at) / 1000,
        newest.executor_id,
        int(number_of(newest.recovery_attempts)),
        damage,
    )


def number_of(stored: object) -> float:
    return stored if isinstance(stored, int | float) else 0  # a damaged row has something else
