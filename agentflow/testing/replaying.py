"""`assert_replays`: use a recorded run as a regression test."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Unpack, cast

from agentflow.agent.agent import Agent
from agentflow.errors import AgentFlowError
from agentflow.recording.replay.comparing import Divergence
from agentflow.recording.replay.player import Reaction
from agentflow.recording.replay.replay import Replay, ReplayOptions, ReplayResult


class RunChangedError(AssertionError, AgentFlowError):
    """A replayed run differs from its recording."""


def assert_replays(
    path: str | Path,
    agent: Agent[Any] | Callable[[], Agent[Any]],
    *,
    update: bool | None = None,
    **options: Unpack[ReplayOptions],
) -> ReplayResult:
    """Replay a recorded run, and fail at the first difference from its recording.

    Args:
        path: The run log.
        agent: The agent, or a function that creates it.
        update: Whether to show the difference and update the file to the current behaviour; by default, only with
            `pytest --update-runs`.
        options: The options of `Replay.arun`.

    Returns:
        The result of the replay.

    Raises:
        RunChangedError: There is a difference; the message has its position, and the recorded and the current value.

    Example:
        >>> def test_the_guard_still_holds():
        ...     assert_replays("runs/guard.jsonl", make_agent)
    """
    subject: Agent[Any] = cast("Agent[Any]", agent) if isinstance(agent, Agent) else agent()
    updates = bool(os.environ.get("AGENTFLOW_UPDATE_RUNS")) if update is None else update
    if not updates:
        done = Replay(path).run(subject, **options)
        if done.divergence is not None:
            raise RunChangedError(
                f"{path} {done.divergence}\nIf this change is intended, run pytest --update-runs to update the file."
            )
        return done
    options["diverged"] = _continue
    done = Replay(path).run(subject, **options)
    if done.divergence is None:
        return done
    print(f"{path} {done.divergence}")
    if done.stopped:
        raise RunChangedError(
            f"{path} cannot be updated from itself: {done.divergence}\nThe recording lacks the data of a model or tool "
            "that is needed now. Record the run again."
        )
    Path(path).write_text("".join(f"{json.dumps(line, ensure_ascii=False)}\n" for line in done.lines), "utf-8")
    return done


def _continue(_: Divergence) -> Reaction:
    return "continue"
