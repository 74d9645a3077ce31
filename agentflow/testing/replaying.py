"""`assert_replays`: a recorded run as a test that nothing has changed."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Unpack, cast

from agentflow.agent.agent import Agent
from agentflow.errors import AgentFlowError
from agentflow.replay.comparing import Departure
from agentflow.replay.player import Goes
from agentflow.replay.replay import Replay, Replayed, ReplayOptions

__all__ = ["RunChangedError", "assert_replays"]


class RunChangedError(AssertionError, AgentFlowError):
    """A recorded run, run again, departed from its recording."""


def assert_replays(
    path: str | Path,
    agent: Agent[Any] | Callable[[], Agent[Any]],
    *,
    update: bool | None = None,
    **options: Unpack[ReplayOptions],
) -> Replayed:
    """Run a recorded run again, and fail where it first departs from its recording.

    Args:
        path: The run log.
        agent: The agent, or a function that makes it.
        update: Write what the agent does now into the file, after showing where it departs; None: as
            `pytest --update-runs` says.
        options: As `Replay.arun` takes them.

    Returns:
        What came of it.

    Raises:
        RunChangedError: It departs; the text says where, what was recorded, and what is now.

    Example:
        >>> def test_the_guard_still_holds():
        ...     assert_replays("runs/guard.jsonl", make_agent)
    """
    made: Agent[Any] = cast("Agent[Any]", agent) if isinstance(agent, Agent) else agent()
    renews = bool(os.environ.get("AGENTFLOW_UPDATE_RUNS")) if update is None else update
    if not renews:
        done = Replay(path).run(made, **options)
        if done.departure is not None:
            raise RunChangedError(
                f"{path} {done.departure}\nIf that is meant: pytest --update-runs writes what the agent does now into the file."
            )
        return done
    options["departed"] = _goes_on
    done = Replay(path).run(made, **options)
    if done.departure is None:
        return done
    print(f"{path} {done.departure}")
    if done.stopped:
        raise RunChangedError(
            f"{path} cannot be renewed from itself: {done.departure}\nThe recording does not say what a model or a tool would "
            "have given. Record the run anew."
        )
    Path(path).write_text("".join(f"{json.dumps(line, ensure_ascii=False)}\n" for line in done.lines), "utf-8")
    return done


def _goes_on(_: Departure) -> Goes:
    return "on"
