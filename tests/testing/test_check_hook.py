"""`check_hook` finds each planted defect, and nothing else; clean hooks pass."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Any, get_args

import pytest
from loguru import logger
from planted import DEFECTS, Counts, EditsStreams, Remembers, SaysTrue, Waits
from thorough import THOROUGH

from agentflow import (
    Agent,
    Answer,
    CallEnded,
    Deny,
    Flux,
    Hook,
    Mono,
    Msg,
    PostActing,
    PostReasoning,
    PreActing,
    PreCall,
    PreReasoning,
    on,
)
from agentflow._support import virtual_time
from agentflow.errors import UsageError
from agentflow.hooks.defaults import RetryEmptyAnswers, RetryTruncatedAnswers
from agentflow.testing import ScriptedModel, pytest_plugin
from agentflow.testing.check_hook import check_hook, check_hook_async
from agentflow.testing.findings import Finding, FindingsError
from agentflow.testing.hook_checks.report import FindingKind
from agentflow.vocabulary.events import EVENT_TYPES

check = pytest_plugin.check_hook


pytestmark = pytest.mark.usefixtures("quiet")


SMALL = {"runs": 6, "orders": 1, "cancellations": 3}
"""Enough to find each defect; the clean hooks have the whole suite in a CI."""


def rows() -> Iterator[Any]:
    """The first defect of each kind, and the others for `.ci/run`."""
    kinds: set[str] = set()
    for row in DEFECTS:
        yield pytest.param(*row, id=f"{row[0]}-{row[1].__name__}", marks=[pytest.mark.ci] if row[0] in kinds else [])
        kinds.add(row[0])


@pytest.mark.ci
@pytest.mark.parametrize(("kind", "hook", "options"), list(rows()))
def test_a_planted_defect_is_found_and_nothing_else(kind: FindingKind, hook: Any, options: dict[str, Any]) -> None:
    """A hook with one defect gets findings of that kind only."""
    report = check_hook(hook, **{**SMALL, **options})
    assert report.kinds == {kind}, str(report)


def test_every_kind_of_finding_has_a_planted_defect() -> None:
    """No kind is listed that nothing can show."""
    assert {row[0] for row in DEFECTS} == set(get_args(FindingKind))


# ---- clean hooks


class Sees(Hook):
    """Lets everything pass."""

    def on_event(self, event: Any) -> Any:
        return event


class Wraps(Hook):
    """Wraps every stage with operators."""

    def around(self, event: Any, source: Any) -> Any:
        if isinstance(source, Flux):
            return source.retry(2).timeout(60)
        return source.map(lambda value: value)


class Works(Hook):
    """Does what hooks may do: edits, injects, asks on the side, keeps its state in the run."""

    @dataclass
    class Seen:
        """What belongs to one run."""

        asked: str = ""
        again: int = 0

    async def on_event(self, event: Any) -> Any:
        match event:
            case PreCall():
                event.context.state[self.Seen].asked = event.input_messages[-1].text
            case PreReasoning():
                asked = event.context.state[self.Seen].asked
                event.input_messages = (*event.input_messages, Msg.user(f"Remember: {asked}"))
            case PreActing() if event.tool_use.name == "save":
                await event.context.clock.sleep(0.5)
                return Answer("saved already")
            case PostActing() if event.tool_result.state == "error":
                event.context.inject("Mind the error.")
            case PostReasoning() if not event.reasoning_result.tool_uses:
                try:
                    await event.context.complete("Is it good?")
                except Exception:
                    return event
            case _:
                pass
        return event


@on(PreActing, guard=True)
def refuses(event: PreActing) -> Any:
    """A guard as a function."""
    return Deny("no") if event.tool_use.name == "boom" else None


@on(PreReasoning)
def later(event: PreReasoning) -> Any:
    """A reactive handler."""
    return Mono.just(event).delay(0.01)


@on(PostActing, in_thread=True, serial=True)
def threaded(event: PostActing) -> None:
    """A blocking handler where it may block."""


CLEAN: list[Any] = [
    Works,
    later,
    threaded,
    *[
        pytest.param(hook, marks=pytest.mark.ci)
        for hook in (Sees, Wraps, RetryEmptyAnswers, RetryTruncatedAnswers, refuses)
    ],
]


@pytest.mark.parametrize("hook", CLEAN, ids=lambda hook: getattr(hook, "__name__", None) or hook.name)
def test_a_clean_hook_passes(hook: Any) -> None:
    """No findings for hooks that keep to the contract, whatever style they are written in."""
    check_hook(hook, **({} if THOROUGH else SMALL)).assert_clean()


def test_every_event_is_fired() -> None:
    """The suite shows a hook all events that there are, those of turn queues included."""
    assert check_hook(Sees, runs=2, orders=0, cancellations=0).events == {kind.__name__ for kind in EVENT_TYPES}


# ---- what is checked, and how


class Draws(Hook):
    """Says something else each time."""

    def __init__(self) -> None:
        self.random = Random()

    def on_event(self, event: Any) -> Any:
        if isinstance(event, PreReasoning):
            number = self.random.random()
            event.input_messages = (*event.input_messages, Msg.user(f"{number}"))
        return event


def test_a_hook_that_draws_numbers_is_noted_and_not_blamed() -> None:
    """What differs between two equal runs already is no sign of shared state or of a difference between the paths."""
    report = check_hook(Draws, **SMALL)
    assert report.clean, str(report)
    assert report.notes == ("its results vary: its requests cannot be compared",)


class OutOfBudget(Exception):  # noqa: N818 - a state
    """What `Spends` raises by design."""


@on(PreReasoning)
def spends(event: PreReasoning) -> None:
    """Raises an error of its own."""
    raise OutOfBudget("no money left")


def test_errors_raised_by_design_are_named() -> None:
    """An exception is a crash unless the author says that the hook raises it."""
    assert check_hook(spends, runs=5, orders=2, cancellations=4).kinds == {"crash"}
    assert check_hook(spends, runs=5, orders=2, cancellations=4, raises=(OutOfBudget,)).clean


class Settings:
    """A dependency."""

    word = "please"


@on(PreReasoning)
def polite(event: PreReasoning) -> None:
    """Asks for a dependency."""
    word = event.context.deps(Settings).word
    event.input_messages = (*event.input_messages, Msg.user(word))


def test_a_missing_dependency_is_the_callers_fault() -> None:
    """The error for a missing dependency is no crash of the hook; with `deps=` the hook is really played."""
    assert check_hook(polite, deps=Settings(), **SMALL).clean
    assert check_hook(polite, runs=2, orders=0, cancellations=0).clean


def test_an_instance_is_judged_with_the_state_it_shares() -> None:
    """Passing an instance checks what many agents with one instance would see."""
    assert check_hook(Remembers(), runs=10, orders=0, cancellations=0).kinds == {"shared_state"}


def test_the_same_seed_gives_the_same_report() -> None:
    """Everything random comes from the seed."""
    reports = [check_hook(Counts, seed=7, **SMALL) for _ in range(2)]
    assert reports[0] == reports[1]
    assert str(reports[0]) == str(reports[1])
    assert "seed 7" in str(reports[0])


# ---- the report and its forms


def test_the_report_reads_well() -> None:
    """One line for the hook, one for each finding, and what was seen below it."""
    report = check_hook(SaysTrue, runs=2, orders=0, cancellations=0)
    (finding,) = report.findings
    assert (finding.kind, finding.event) == ("contract", "PreActing")
    assert str(report).splitlines()[0].startswith("SaysTrue: 1 finding (")
    assert str(report).splitlines()[1].startswith("  contract on PreActing (")
    assert "answered PreActing with bool (True)" in str(report).splitlines()[2]
    with pytest.raises(FindingsError) as failed:
        report.assert_clean()
    assert str(failed.value) == str(report)
    assert failed.value.report is report


def test_a_finding_is_a_value() -> None:
    """Two findings are equal if they say the same; how often it was seen does not matter."""
    assert Finding("crash", "fails", "PreCall", "there", 3) == Finding("crash", "fails", "PreCall", "there")


def test_the_fixture_fails_with_the_report(check: pytest_plugin.HookCheck) -> None:
    """In a test, the fixture is all one needs."""
    assert check(Sees, runs=2, orders=0, cancellations=0).clean
    with pytest.raises(FindingsError, match=r"EditsStreams: 3 findings .*\n  streaming"):
        check(EditsStreams, runs=2, orders=0, cancellations=0)


@pytest.mark.parametrize("on_before", [True, False])
def test_the_log_is_on_afterwards_if_it_was_before(on_before: bool) -> None:
    """During a check nothing is logged of the planted failures, later the program's own ones are again."""
    lines: list[str] = []
    logger.add(lines.append, format="{message}")
    (logger.enable if on_before else logger.disable)("agentflow")
    try:
        assert check_hook(Sees, runs=2, orders=0, cancellations=0).clean
        during = len(lines)
        agent = Agent("a", ScriptedModel(["Hi."]), hooks=[on(CallEnded, observer=True)(lambda event: 1 / 0)])
        agent.call("Go").block()
    finally:
        logger.remove()
    assert (during, ["division by zero" in line for line in lines]) == (0, [True] * on_before)


async def test_the_asynchronous_form_leaves_the_loop_free() -> None:
    """In a coroutine, `check_hook` says what to write, and that runs beside other work."""
    with pytest.raises(UsageError, match="await check_hook_async"):
        check_hook(Sees)
    report, _ = await asyncio.gather(check_hook_async(Sees, runs=2, orders=0, cancellations=0), asyncio.sleep(0))
    assert report.clean


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (lambda: 42, "returned int, not a Hook"),
        (int, "not int"),
        (42, "not 42"),
        (type("Odd", (Hook,), {"priority": "high", "on_event": lambda self, event: event}), "priority='high'"),
        (type("Odd", (Hook,), {"onEvent": lambda self, event: event}), "Did you mean 'on_event'"),
        (type("Needy", (Hook,), {"__init__": lambda self, key: None}), r"check_hook\(lambda: Needy\(\.\.\.\)\)"),
    ],
)
def test_what_is_no_hook_is_refused(given: Any, says: str) -> None:
    """The error names what came and what to write."""
    with pytest.raises(UsageError, match=says):
        check_hook(given)


def test_a_timeout_beyond_the_patience_of_a_loop_reports_a_hanging_hook(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loop in virtual time raises an error if it is stuck for long; the suite's own limit decides instead."""
    monkeypatch.setattr(virtual_time, "_PATIENCE", 0.1)
    assert check_hook(Waits, timeout=0.5, **SMALL).kinds == {"hang"}
