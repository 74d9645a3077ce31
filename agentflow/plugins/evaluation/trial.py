"""`Case`, `Trial` and `Grade`: an input, the call with it, and its evaluation.

Rules:

1. A check passes unless it returns False, returns a text (the problem), or raises `AssertionError`. A number is a score, and a
   `Grade` can have all of these: passed, score, label, reason.
2. Any other exception, or any other value, is an error of the check on that trial. Then the trial does not pass, regardless of
   the other checks.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, Final, TypeAlias, cast

from agentflow._support.shown import described
from agentflow.errors import UsageError
from agentflow.vocabulary.events import CallEnded, HookEvent, PostReasoning, PreActing
from agentflow.vocabulary.messages import Msg, Reply, ToolUseBlock
from agentflow.vocabulary.ports.retry import RetryPolicy
from agentflow.vocabulary.specs import Usage


class _Unset:
    def __repr__(self) -> str:
        return "nothing in particular"


NOTHING: Final = _Unset()
"""The default of `Case.expected`."""

_ONCE: Final = RetryPolicy(attempts=1)


@dataclass(frozen=True, slots=True)
class Grade:
    """The result of a check.

    Attributes:
        passed: Whether the check passed; None if it only has a score or a label.
        score: A number; more is better.
        label: A category, such as `"polite"`.
        reason: The reason for the result.
        usage: The usage of a judging model.

    Raises:
        UsageError: No field is set, or the score is not a finite number.

    Example:
        >>> Grade(score=0.8, label="polite").passed is None
        True
    """

    passed: bool | None = None
    score: float | None = None
    label: str | None = None
    reason: str = ""
    usage: Usage = field(default_factory=Usage)

    def __post_init__(self) -> None:
        if self.passed is None and self.score is None and self.label is None:
            raise UsageError("Grade() is empty. Set passed, score or label.")
        number: Any = self.score
        # Not isinstance: a bool is an int too.
        if number is not None and (type(number) not in (int, float) or not math.isfinite(number)):
            raise UsageError(f"Grade(score={number!r}): it must be a finite number.")


@dataclass(frozen=True, slots=True)
class Trial:
    """A call with the input of a case, and its evaluation.

    Attributes:
        case: The case that the trial belongs to.
        reply: The agent's reply; None if the call failed, the task is a function, or for `OnlineEvaluation`.
        error: The error of the call or function, or None.
        messages: The conversation; for `OnlineEvaluation`, the part since the user's input.
        seconds: The duration.
        failures: Why it failed: the error of the call, an unexpected output, or failed checks.
        judging: The usage of the judging models.
        value: The result of a task that is a function; for `OnlineEvaluation`, the final message.
        events: The events of the call and its sub-agents, without chunks.
        number: Which trial of its case this is, from 1.
        grades: The results of the checks, by name.
        errors: The errors of checks that could not be evaluated.
        attempts: The number of attempts at the call; more than 1 after retries.
        retried: The usage of the failed attempts.
    """

    case: Case
    reply: Reply[Any] | None
    error: Exception | None
    messages: tuple[Msg, ...]
    seconds: float
    failures: tuple[str, ...] = ()
    judging: Usage = field(default_factory=Usage)
    value: Any = None
    events: tuple[HookEvent, ...] = field(default=(), repr=False)
    number: int = 1
    grades: Mapping[str, Grade] = field(default_factory=dict[str, Grade])
    errors: tuple[str, ...] = ()
    attempts: int = 1
    retried: Usage = field(default_factory=Usage)

    @property
    def passed(self) -> bool:
        """Whether the call succeeded, and every check was evaluated and passed."""
        return self.error is None and not self.failures and not self.errors

    @property
    def text(self) -> str:
        """The reply's text, or the function's result as text; empty if the call failed."""
        if self.reply is not None:
            return self.reply.text
        return "" if self.value is None else self.value.text if isinstance(self.value, Msg) else str(self.value)

    @property
    def output(self) -> Any:
        """The typed output, or the text if the agent has no output type, or the function's result."""
        if self.reply is None:
            return self.text if self.value is None or isinstance(self.value, Msg) else self.value
        return self.reply.output if self.reply.typed else self.text

    @property
    def tool_uses(self) -> tuple[ToolUseBlock, ...]:
        """The tool calls, in order: the model's, or if the task is a function, those of all agents that it called."""
        if self.messages:
            return tuple(use for msg in self.messages for use in msg.tool_uses)
        return tuple(event.tool_use for event in self.events if isinstance(event, PreActing))

    @property
    def rounds(self) -> int:
        """The number of model replies, without those of sub-agents."""
        return sum(isinstance(event, PostReasoning) and not event.source for event in self.events)

    @property
    def usage(self) -> Usage:
        """The usage of the call, sub-agents included."""
        ended = [event.usage for event in self.events if isinstance(event, CallEnded) and not event.source]
        return Usage.total(ended) if ended else Usage() if self.reply is None else self.reply.usage


Check: TypeAlias = "Callable[[Trial], Grade | bool | float | str | Awaitable[Grade | bool | float | str | None] | None]"
"""Checks a trial. False, a text that describes the problem, or an `AssertionError` fails it; a number is a score; a `Grade`
has all of these, and a label. It may be async."""


@dataclass(frozen=True, slots=True)
class Case:
    """An input and the expectations of the answer.

    Attributes:
        input: The input: a text or messages for an agent, any value for a function.
        expected: The expected `trial.output`; if omitted, only checks are used.
        name: The name in tables; by default, the position in the list.
        checks: Checks of only this case.
    """

    input: str | Msg | Sequence[Msg] | Any
    expected: object = NOTHING
    name: str = ""
    checks: tuple[Check, ...] = ()


def name_of(check: Check) -> str:
    """Return the name of a check in reports."""
    named: Any = check
    return str(getattr(named, "name", None) or getattr(named, "__name__", None) or type(named).__name__)


async def graded(trial: Trial, checks: Iterable[Check], retries: RetryPolicy = _ONCE) -> Trial:
    """Evaluate a trial.

    Args:
        trial: The trial to evaluate.
        checks: The checks, besides those of the case.
        retries: Which errors of a check are retried.

    Returns:
        The trial with its results. If the call failed, the checks are not called.
    """
    if trial.error is not None:
        return replace(trial, failures=(f"{type(trial.error).__name__}: {trial.error}",))
    failures: list[str] = []
    errors: list[str] = []
    grades: dict[str, Grade] = {}
    names: set[str] = set()
    expected = trial.case.expected
    if expected is not NOTHING and trial.output != expected:
        failures.append(f"expected {expected!r}, got {trial.output!r}")
    for check in (*checks, *trial.case.checks):
        name = base = name_of(check)
        numbers = count(len(names))
        while name in names:  # a check can be named like a numbered one
            name = f"{base} {next(numbers)}"
        names.add(name)
        try:
            grade = await _grade(check, trial, retries)
        except AssertionError as error:
            grade = Grade(passed=False, reason=str(error))
        except Exception as error:
            errors.append(f"{name}: {described(error)}")
            continue
        grades[name] = grade
        if grade.passed is False:
            colon = "" if name[-1:] in ".!?" else ":"  # the name of a `Judge` is a sentence
            failures.append(f"{name}{colon} {grade.reason}" if grade.reason else f"{name}{colon and ' failed'}")
    judging = Usage.total(grade.usage for grade in grades.values())
    return replace(trial, failures=tuple(failures), errors=tuple(errors), grades=grades, judging=judging)


async def _grade(check: Check, trial: Trial, retries: RetryPolicy) -> Grade:
    attempts = retries.start()
    while True:
        try:
            returned: object = check(trial)
            if inspect.isawaitable(returned):
                returned = await cast("Awaitable[object]", returned)
            return _grade_of(returned)
        except Exception as error:
            # A failed check is a result, not an error, so it is not retried.
            if isinstance(error, AssertionError) or not await attempts.another(error):
                raise


def _grade_of(returned: object) -> Grade:
    if isinstance(returned, Grade):
        return returned
    if returned is None or isinstance(returned, bool):  # before numbers: a bool is an int too
        return Grade(passed=returned is not False)
    if isinstance(returned, str):
        return Grade(passed=not returned, reason=returned)
    if isinstance(returned, int | float):
        return Grade(score=returned)
    raise UsageError(
        f"it returned {returned!r:.80}; it must return True, False, None, a text that describes the problem, a number "
        "(a score) or a Grade."
    )
