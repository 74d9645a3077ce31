"""Classify exceptions of a hook: as flaws of the hook, or as exceptions that it may raise."""

from __future__ import annotations

import re
import traceback
from asyncio import CancelledError
from collections.abc import Iterator

from agentflow.errors import AgentFlowError, HookContractError, TranscriptError, UsageError, Veto
from agentflow.testing.hook_checks.report import FindingKind
from agentflow.testing.hook_checks.scenes import PlantedError

_RAISED = re.compile(r"raised by hook (?P<hook>.*) \(priority [^)]*\) on (?P<event>\w+)")
# The files that check assignments to events.
_EVENTS = ("agentflow/vocabulary/events/base.py", "agentflow/vocabulary/events/checks.py")
# The functions that refuse illegal changes of the conversation with a `UsageError`.
_HISTORY = ("inject", "injected", "compact", "check_compacted", "as_messages")


def _notes(error: BaseException) -> Iterator[re.Match[str]]:
    for note in getattr(error, "__notes__", ()):
        if found := _RAISED.match(note):
            yield found


def hook_of(error: BaseException) -> str | None:
    """Return the name of the hook that failed, or None."""
    return next((found["hook"] for found in _notes(error)), None)


def event_of(error: BaseException) -> str:
    """Return the event on which the hook failed."""
    return next((found["event"] for found in _notes(error)), "")


def _chain(error: BaseException) -> Iterator[BaseException]:
    known: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in known:
        known.add(id(current))
        yield current
        current = current.__cause__ or current.__context__


def caused_by_cancellation(error: BaseException) -> bool:
    """Whether a `CancelledError` is among the causes of an exception."""
    return any(isinstance(cause, CancelledError) for cause in _chain(error))


def kind_of(error: BaseException, by_design: tuple[type[BaseException], ...]) -> tuple[FindingKind, str] | None:
    """Classify an exception from a hook.

    Args:
        error: The exception.
        by_design: The exceptions that the hook raises by design.

    Returns:
        The kind of the finding and its message; None if the exception is allowed.
    """
    if isinstance(error, HookContractError):
        return "contract", "returns an illegal value for an event"
    if isinstance(error, TranscriptError):
        return "history", "requests an illegal change of the conversation"
    if isinstance(error, (*by_design, Veto)) or not isinstance(error, Exception):
        return None
    if any(isinstance(cause, PlantedError) or "planted" in str(cause) for cause in _chain(error)):
        return None
    if caused_by_cancellation(error):
        return None  # the cancelling phase of `check_hook` reports it
    last = traceback.extract_tb(error.__traceback__, limit=-1)
    where = (last[0].filename.replace("\\", "/"), last[0].name) if last else ("", "")
    if isinstance(error, UsageError) and where[1] in _HISTORY:
        return "history", "requests an illegal change of the conversation"
    if isinstance(error, TypeError | AttributeError) and where[0].endswith(_EVENTS):
        return "contract", "assigns an illegal field or value"
    if isinstance(error, AgentFlowError):
        return None
    return "crash", f"fails with {type(error).__name__}"


def shown(error: BaseException) -> str:
    """Format an exception with the position where it was raised."""
    last = traceback.extract_tb(error.__traceback__, limit=-1)
    where = f" at {last[0].filename.rpartition('/')[2]}:{last[0].lineno} in {last[0].name}" if last else ""
    return f"{type(error).__name__}: {error}{where}"
