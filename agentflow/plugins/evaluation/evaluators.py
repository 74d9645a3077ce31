"""Checks by code: the answer's text, the tools in their order, and the cost.

A limit that cannot be evaluated is an error, and the trial fails; for example a limit on the cost if the price is unknown.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, ClassVar, Literal

from agentflow.errors import UsageError
from agentflow.plugins.evaluation.trial import Trial


@dataclass(frozen=True)
class Contains:
    """The answer contains a text, ignoring case.

    Attributes:
        text: The text that the answer must contain.

    Example:
        >>> Contains("Paris").name
        "contains 'Paris'"
    """

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}  # in a file, a misspelt field is an error
    text: str

    @property
    def name(self) -> str:
        """The name in reports."""
        return f"contains {self.text!r:.40}"

    def __call__(self, trial: Trial) -> bool:
        """Check a trial."""
        return self.text.casefold() in trial.text.casefold()


@dataclass(frozen=True)
class Matches:
    """A part of the answer matches a regular expression.

    Attributes:
        pattern: The regular expression.

    Raises:
        UsageError: The pattern is invalid.
    """

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}
    pattern: str

    def __post_init__(self) -> None:
        try:
            re.compile(self.pattern)
        except re.error as error:
            raise UsageError(f"Matches({self.pattern!r:.80}): it is not a regular expression: {error}.") from None

    @property
    def name(self) -> str:
        """The name in reports."""
        return f"matches {self.pattern!r:.40}"

    def __call__(self, trial: Trial) -> bool:
        """Check a trial."""
        return re.search(self.pattern, trial.text) is not None


@dataclass(frozen=True)
class UsesTools:
    """The model calls certain tools. Calls that failed or were denied count too.

    Attributes:
        tools: Patterns of names, such as `"read_*"`.
        order: `"exact"`: these and no others, in this order; `"in_order"`: in this order, with others between them;
            `"any_order"`: at least these.
        without: Patterns of tools that must not be called.

    Raises:
        UsageError: There is neither `tools` nor `without`, or `order` is unknown.

    Example:
        >>> UsesTools(["search", "refund"], order="in_order").name
        'tools search, refund'
    """

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}
    tools: Sequence[str] | None = None
    order: Literal["exact", "in_order", "any_order"] = "exact"
    without: Sequence[str] = ()

    def __post_init__(self) -> None:
        if self.tools is None and not self.without:
            raise UsageError("UsesTools() has no names. Set tools= or without=.")
        if self.order not in ("exact", "in_order", "any_order"):
            raise UsageError(f"UsesTools(order={self.order!r}): use 'exact', 'in_order' or 'any_order'.")

    @property
    def name(self) -> str:
        """The name in reports."""
        return f"tools {', '.join((*(self.tools or ()), *[f'not {name}' for name in self.without])) or 'none'}"

    def __call__(self, trial: Trial) -> str:
        """Check a trial."""
        called = [use.name for use in trial.tool_uses]
        actual = f"called {', '.join(called) or 'no tools'}"
        forbidden = [name for name in called if any(fnmatchcase(name, pattern) for pattern in self.without)]
        if self.tools is None:
            return actual if forbidden else ""
        rest, missing = list(called), False
        for pattern in self.tools:
            index = next((n for n, name in enumerate(rest) if fnmatchcase(name, pattern)), None)
            missing = missing or index is None or (self.order == "exact" and index > 0)
            if index is not None:
                # In order, later patterns must match later calls, so the skipped calls are removed too.
                del rest[index if self.order == "any_order" else 0 : index + 1]
        wrong = forbidden or missing or (self.order == "exact" and rest)
        return actual if wrong else ""


@dataclass(frozen=True)
class StaysWithin:
    """The call stays within limits.

    Attributes:
        cost: The maximum cost in US dollars, sub-agents included.
        tokens: The maximum number of tokens, sub-agents included.
        seconds: The maximum duration in seconds.
        rounds: The maximum number of model replies, without those of sub-agents.
        tool_calls: The maximum number of tool calls in `trial.tool_uses`.

    Raises:
        UsageError: No limit was passed.

    Example:
        >>> StaysWithin(cost=0.02, rounds=3).name
        'within cost 0.02, rounds 3'
    """

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}
    cost: float | None = None
    tokens: int | None = None
    seconds: float | None = None
    rounds: int | None = None
    tool_calls: int | None = None

    def __post_init__(self) -> None:
        if not self._limits:
            raise UsageError("StaysWithin() has no limits. Set cost, tokens, seconds, rounds or tool_calls.")

    @property
    def _limits(self) -> dict[str, float]:
        return {name: value for name, value in vars(self).items() if value is not None}

    @property
    def name(self) -> str:
        """The name in reports."""
        return f"within {', '.join(f'{name} {value:g}' for name, value in self._limits.items())}"

    def __call__(self, trial: Trial) -> str:
        """Check a trial."""
        usage = trial.usage
        if self.cost is not None and usage.cost is None and usage.model_calls:
            raise UsageError("the price of the model is unknown, so the limit on the cost cannot be evaluated.")
        values = {
            "cost": usage.cost or 0.0,
            "tokens": usage.total_tokens,
            "seconds": trial.seconds,
            "rounds": trial.rounds,
            "tool_calls": len(trial.tool_uses),
        }
        # `not <=` instead of `>`, so that NaN exceeds the limit.
        exceeded = [name for name, limit in self._limits.items() if not values[name] <= limit]
        return ", ".join(f"{name.replace('_', ' ')}: {values[name]:g}" for name in exceeded)
