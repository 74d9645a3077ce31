"""The laws of a whole program: its call, its resumes, and the next call, which works."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from laws_checks import (
    check_brackets,
    check_budget,
    check_cancelled,
    check_chunks,
    check_ended,
    check_error,
    check_fatal,
    check_folds,
    check_history,
    check_numbers,
    check_order,
    check_reader,
    check_request,
    check_time,
    check_told,
    check_wires,
)
from laws_harness import Seen, World
from laws_programs import Path, Program

from agentflow.errors import SuspendedError
from agentflow.loop.states import State

__all__ = ["CALM", "check_call", "check_program", "check_still"]

CALM = Path("call")
HIDES = ("retry", "catch", "swallow", "twice", "at-once", "hedge")


def check_call(world: World, seen: Seen, path: Path) -> None:
    """Check the laws that concern one call."""
    if not seen.observed and seen.left is not None:
        return  # cancelled before the call began
    ordered = not world.program.parallel
    ended = check_ended(seen)
    check_error(seen, ended)
    check_cancelled(seen)
    check_told(seen)
    check_fatal(seen, ended, any(plan.action in HIDES for plan in world.program.arounds))
    check_time(seen, world.program, path.timeout)
    check_numbers(seen, ordered)
    check_brackets(seen)
    check_chunks(seen)
    check_order(seen)
    if path.kind not in ("call", "cancel-call", "cancel-task", "interrupt"):
        check_reader(seen, path.kind == "stream" and seen.left is None and not seen.hooked_cancel, ordered)


def check_still(world: World) -> None:
    """Check that nothing is left: no task, stream, or busy session."""
    others = world.tasks()
    assert not others, f"tasks left running: {others}"
    assert world.model.open_streams == 0, "a model's stream is still open"
    assert not world.session.busy, "the session is still busy"


async def check_program(program: Program, make: Callable[[Program], World] = World) -> World:
    """Call in the program's way, check, resume the suspended session, call again; return the world."""
    world = make(program)
    session = world.session
    start = await world.agent.history(world.session_key)
    path = program.path
    seen = await world.call("hi")
    if path.kind == "break":
        await world.settle()
    await world.subscribe_late()
    check_still(world)
    check_call(world, seen, path)
    if not seen.hooked_cancel:  # a hook that cancels without the run's knowledge is called again
        check_budget(seen, program.max_iterations)
    check_history(world.history, bool(session.machine.transcript.open_round))
    for turn in range(12):  # a round of calls that suspend one after the other takes a turn for each
        if session.machine.state is not State.SUSPENDED:
            break
        with pytest.raises(SuspendedError):
            await world.agent.call("too early", session=world.session_key)
        world.save()
        session = world.session
        world.armed = turn < 1
        seen = await world.call(resume=world.decisions(turn), path=CALM)
        await world.subscribe_late()
        check_still(world)
        check_call(world, seen, CALM)
    world.armed = False
    assert session.machine.state is not State.SUSPENDED
    before, seen = seen, await world.call("and now?", path=CALM)
    assert seen.error is None, (
        f"the next call fails: {seen.error!r}; before it: {before.error!r}, {before.reply!r:.200}"
    )
    assert seen.reply is not None
    assert (seen.reply.text, seen.reply.outcome) == ("done", "completed")
    check_call(world, seen, CALM)
    check_still(world)
    check_history(world.history)
    for request in world.model.requests:
        if len(request.messages) == 1 and request.messages[0].text == "a side question":
            continue
        check_request(request.messages)
        check_wires(request.messages, request.tools)
    await check_folds(world, start)
    return world
