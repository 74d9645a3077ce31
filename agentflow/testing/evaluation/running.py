"""`evaluate`: run an agent or a function on a list of cases, in parallel.

Rules:

1. Each trial of an agent is a call in its own session. A failed call is a failed trial, with its error; others continue.
2. Only calls and checks that raise an error are retried, if the error may be temporary. A wrong answer is never retried.
3. Trials share the state of the agent's hooks and tools, unless a function creates an agent for each trial.
"""

from __future__ import annotations

import asyncio
import inspect
import sys
import time
from collections.abc import Callable, Coroutine, Iterable
from contextlib import nullcontext
from contextvars import ContextVar
from dataclasses import replace
from typing import Any, Final, TypeAlias, cast

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from agentflow._support.time_limit import strict
from agentflow.agent.agent import Agent
from agentflow.errors import UsageError
from agentflow.hooks.hook import Hook
from agentflow.hooks.scope import process_hooks
from agentflow.loop.session import Session
from agentflow.plugins.evaluation import Case, Check, Trial, graded
from agentflow.testing.evaluation.report import Evaluation
from agentflow.vocabulary.events import ActingChunk, HookEvent, ReasoningChunk
from agentflow.vocabulary.messages import Reply
from agentflow.vocabulary.ports.retry import RetryPolicy
from agentflow.vocabulary.specs import Usage

Task: TypeAlias = "Agent[Any] | Callable[[], Agent[Any]] | Callable[[Any], Any]"
"""The object to evaluate: an agent, a function without parameters that creates one per trial, or a function of the input."""

_events_of_trial: ContextVar[list[HookEvent] | None] = ContextVar("agentflow_evaluated_events", default=None)


class _Collector(Hook):
    """Collects the events of the trial in which it runs, without chunks."""

    observer = True
    on_failure = "skip"

    def on_event(self, event: HookEvent) -> HookEvent:
        collected = _events_of_trial.get()
        if collected is not None and not isinstance(event, ReasoningChunk | ActingChunk):
            collected.append(event)
        return event


class _CallCollector(_Collector):
    scope = "tree"  # the sub-agents' events too


_CALL_COLLECTOR: Final = _CallCollector()
_PROCESS_COLLECTOR: Final = _Collector()


async def evaluate(
    task: Task,
    cases: Iterable[Case | str],
    checks: Iterable[Check] = (),
    *,
    concurrency: int = 8,
    repeats: int = 1,
    retries: int | RetryPolicy = 0,
    timeout: float | None = None,
    progress: bool | None = None,
) -> Evaluation:
    """Run an agent or a function on each case, and check the results.

    Args:
        task: The agent, a function that creates one for each trial, or a function of the input, which
            blocks the event loop unless it is async.
        cases: The cases; a plain text is the input of a case without expectations.
        checks: Checks for every case, in addition to its own.
        concurrency: The maximum number of concurrent trials.
        repeats: How often each case is run.
        retries: How often a call or check that raises an error is retried, if the error may be temporary; or the policy.
        timeout: The time limit of a call, in seconds.
        progress: Whether to draw a progress bar on standard error; by default, only if it is a terminal.

    Returns:
        The report: `print(report)`, `report.assert_passed()`, `report.save("report.xml")`.

    Raises:
        UsageError: There are no cases, two have the same name, or a number is below its limit.

    Example:
        >>> def short(trial: Trial) -> bool:
        ...     return len(trial.text) < 80
        >>> report = await evaluate(Agent("a", ScriptedModel(["3"])), [Case("1 + 2?", "3")], [short])
        >>> [trial.passed for trial in report.trials]
        [True]
    """
    all_cases = named_cases(cases)
    for name, number, least in (("concurrency", concurrency, 1), ("repeats", repeats, 1)):
        if number < least:
            raise UsageError(f"evaluate: {name}={number}; it must be at least {least}.")
    common_checks = tuple(checks)
    policy = retries if isinstance(retries, RetryPolicy) else RetryPolicy(who="evaluate", attempts=retries + 1)
    trials = [(case, number) for case in all_cases for number in range(1, repeats + 1)]
    slots = asyncio.Semaphore(concurrency)
    bar = _Bar(len(trials)) if (sys.stderr.isatty() if progress is None else progress) else None
    is_function = not isinstance(task, Agent) and _takes_input(task)
    unchecked = cast("Any", task)
    names: list[str] = []

    async def run_case(case: Case, number: int) -> Trial:
        async with slots:
            target = unchecked if is_function or isinstance(task, Agent) else _agent_of(unchecked)
            names.append(_name(target))
            trial = await graded(await _run_with_retries(target, case, policy, timeout), common_checks, policy)
        if bar is not None:
            bar.add(trial)
        return replace(trial, number=number)

    # A function can call any agent, and only a hook of the process receives the events of all agents.
    observed = process_hooks.hook(_PROCESS_COLLECTOR) if is_function else nullcontext()
    with nullcontext() if bar is None else bar.progress, observed:
        finished = await _run_all(run_case(*trial) for trial in trials)
    return Evaluation(names[0], finished)


async def _run_all(works: Iterable[Coroutine[Any, Any, Trial]]) -> tuple[Trial, ...]:
    """Run trials concurrently; if one raises an error, cancel the others, and raise the error itself instead of a group."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(work) for work in works]
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return tuple(task.result() for task in tasks)


def named_cases(cases: Iterable[Case | str]) -> list[Case]:
    """Return the cases with their names; the name of a nameless case is its position, from 1.

    Raises:
        UsageError: There are none, or two have the same name.
    """
    all_cases = [Case(case) if isinstance(case, str) else case for case in cases]
    if not all_cases:
        raise UsageError("evaluate: there are no cases. Pass a list of Case(input, expected).")
    named = [case if case.name else replace(case, name=str(number)) for number, case in enumerate(all_cases, 1)]
    names = [case.name for case in named]
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise UsageError(f"evaluate: two cases are named {min(twice)!r}. Names must be unique.")
    return named


def _agent_of(make: Callable[..., Any]) -> Agent[Any]:
    """Call a function that makes the agent of a trial."""
    agent = make()
    if not isinstance(agent, Agent):
        raise UsageError(
            f"evaluate: {_name(make)}() returned {agent!r:.80}; a function without parameters must "
            "return an Agent. A function of the input needs one parameter."
        )
    return cast("Agent[Any]", agent)


def _takes_input(function: Callable[..., Any]) -> bool:
    """Return whether a function requires an argument, which is the input."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:  # a builtin without a signature, such as `int`
        return True
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return any(each.default is each.empty and each.kind in kinds for each in parameters)


def _name(task: object) -> str:
    if isinstance(task, Agent):
        return cast("Agent[Any]", task).name
    return str(getattr(task, "__name__", type(task).__name__))


async def _run_with_retries(task: Any, case: Case, policy: RetryPolicy, timeout: float | None) -> Trial:
    attempts = policy.start()
    count, retried = 1, Usage()
    while True:
        trial = await _run_once(task, case, timeout)
        if trial.error is None or not await attempts.another(trial.error):
            return replace(trial, attempts=count, retried=retried)
        count, retried = count + 1, retried + trial.usage


async def _run_once(task: Any, case: Case, timeout: float | None) -> Trial:
    session = Session.fresh()
    events: list[HookEvent] = []
    reply: Reply[Any] | None = None
    error: Exception | None = None
    value: Any = None
    began = time.perf_counter()
    token = _events_of_trial.set(events)
    try:
        async with strict(asyncio.timeout(timeout)):
            if isinstance(task, Agent):
                agent = cast("Agent[Any]", task)
                reply = await agent.call(case.input, session=session, hooks=[_CALL_COLLECTOR])
            else:
                value = task(case.input)
                value = await value if inspect.isawaitable(value) else value
    except Exception as failed:
        reply, value, error = None, None, failed
    finally:
        _events_of_trial.reset(token)
    seconds = time.perf_counter() - began
    return Trial(case, reply, error, tuple(session.messages), seconds, value=value, events=tuple(events))


class _Bar:
    """A progress bar on standard error that counts finished and failed trials."""

    def __init__(self, total: int) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        failures = TextColumn("{task.fields[failed]}", style="red")
        self.progress = Progress(*columns, failures, console=Console(stderr=True), transient=True)
        self._task = self.progress.add_task("trials", total=total, failed="")
        self._failed = 0

    def add(self, trial: Trial) -> None:
        """Count a finished trial."""
        self._failed += not trial.passed
        self.progress.update(self._task, advance=1, failed=f"{self._failed} failed" if self._failed else "")
