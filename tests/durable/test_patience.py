"""How often a worker tries a call: what may pass without an end, what does not pass a few times."""

from __future__ import annotations

from agentflow.durable.worker import ATTEMPTS, CONFLICTS, _patience
from agentflow.errors import SessionConflictError, StoreError


def tries(error: StoreError, most: int = 200) -> int:
    """After how many failures of a kind a call is given up."""
    should_retry = _patience()
    return next((n for n in range(1, most) if not should_retry(error)), most)


def test_patience_ends_where_nothing_will_change() -> None:
    """A store that fails for good, a session that others keep writing into, and a database that is away."""
    assert tries(StoreError("broken for good")) == ATTEMPTS
    assert tries(SessionConflictError("written by another")) == CONFLICTS
    assert tries(StoreError("away", retryable=True)) == 200


def test_failures_are_counted_apart() -> None:
    """What passes in between, and conflicts, use up no attempt of the other kind."""
    should_retry = _patience()
    for _ in range(ATTEMPTS - 1):
        assert should_retry(StoreError("broken"))
        assert should_retry(StoreError("away", retryable=True))
        assert should_retry(SessionConflictError("written"))
    assert not should_retry(StoreError("broken"))
