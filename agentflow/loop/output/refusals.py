"""The number of refused answers of a run, and its limits.

An output of a list with its own `retries` is counted separately; all others are counted together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final, cast

from agentflow.loop.output.choices import Choices
from agentflow.loop.output.form import InvalidOutputError
from agentflow.vocabulary.messages import DataBlock

if TYPE_CHECKING:
    from agentflow.loop.output.output import FullOutput
    from agentflow.vocabulary.messages import Msg

__all__ = ["Refusals"]

_OTHERS: Final = ""
"""The key of the outputs that are counted together."""


class Refusals:
    """The refused answers of a run.

    Args:
        output: The output.

    Attributes:
        sent_back: How many refused replies were counted.
    """

    def __init__(self, output: FullOutput[Any]) -> None:
        self._output = output
        own = [choice for choice in output.choices if output.several and choice.own_retries is not None]
        self._own = {choice.tool.name if choice.has_tool else choice.form.__name__: choice for choice in own}
        self._counts: Counter[str] = Counter()
        self.sent_back = 0

    def add(self, names: Iterable[str]) -> None:
        """Count a refused reply.

        Args:
            names: The names of the outputs with which it answers; empty if it names none.
        """
        self.sent_back += 1
        # A set: a reply with two refused answers of one output is one refusal.
        self._counts.update({name if name in self._own else _OTHERS for name in names} or {_OTHERS})

    def named_in(self, reply: Msg) -> tuple[str, ...]:
        """Return the names of the outputs with which a reply answers."""
        called = tuple([use.name for use in reply.tool_uses if use.name in self._output.tools])
        if called or not self._own:
            return called
        answer = self._output.answer_of(reply)
        if isinstance(answer, DataBlock):
            return (DataBlock.__name__,)
        try:
            named = cast("Choices", self._output.shape).named(answer)
        except InvalidOutputError:
            return ()
        return (str.__name__ if named is None else named[0],)

    @property
    def of_own(self) -> Counter[str]:
        """The counts of the outputs with their own `retries`."""
        return Counter({name: count for name, count in self._counts.items() if name in self._own})

    @property
    def exceeded(self) -> tuple[FullOutput[Any], int] | None:
        """The output with more refused answers than its `retries`, and their number; None if there is none."""
        for name, count in self._counts.items():
            output = self._own.get(name, self._output)
            if count > output.retries:
                return output, count
        return None
