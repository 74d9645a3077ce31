"""The tools that take an answer: one that hands it on as it is, and one whose function is the last step.

Both are tools like any other to the loop: vetted, journalled, timed and shown. What a step returns is noted for the reply.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Generator
from typing import TYPE_CHECKING, Any, cast

from agentflow.errors import ToolArgumentError, UsageError
from agentflow.messages import ToolUseBlock
from agentflow.output.answer import Given
from agentflow.output.form import Form, MisfitError, json_in
from agentflow.specs import ToolSpec
from agentflow.tools.results import render
from agentflow.tools.tool import FullTool, Tool, full_tool

if TYPE_CHECKING:
    from agentflow.tools.tool_context import ToolContext

__all__ = ["AnswerTool", "StepTool", "step_of"]


class AnswerTool(FullTool[..., Any]):
    """Takes an answer and gives it back: its result is the answer's own text.

    Args:
        name: What the model calls it.
        description: What the model is told.
        form: What the answer is to be.
    """

    form: Form[Any]

    def __init__(self, name: str, description: str, form: Form[Any]) -> None:
        super().__init__(_same, name=name, description=description, type="read", timeout=None, idempotent=True)
        spec = ToolSpec(name, description, form.schema, type="read")
        self.__dict__.update(spec=spec, form=form, wants_context=False, dep_types={})

    def prepare(self) -> AnswerTool:
        """There is nothing to build."""
        return self

    def start(self, tool_use: ToolUseBlock, context: ToolContext | None) -> Coroutine[Any, Any, object]:
        """See `FullTool.start`."""
        self.validate(tool_use)
        return _same(tool_use.raw.strip())

    def validate(self, tool_use: ToolUseBlock) -> None:
        """See `Tool.validate`."""
        try:
            self.form.read(tool_use.raw)
        except MisfitError as error:
            raise ToolArgumentError(str(error)) from error


class StepTool(FullTool[..., Any]):
    """A tool whose function is the last step: what it returns is the call's output.

    Args:
        made: The tool of that function.

    Raises:
        UsageError: It returns no single value.
    """

    form: Form[Any]
    _inner: Tool[..., Any]

    def __init__(self, made: FullTool[..., Any]) -> None:
        if made.streaming or made.external:
            what = "hands out several values" if made.streaming else "is answered from outside"
            raise UsageError(
                f"output={made.name}: it {what}; the last step is a function that runs and returns one value."
            )
        made.prepare()
        self.__dict__.update(made.__dict__, wants_context=True, _inner=made, form=Arguments(made))

    def start(self, tool_use: ToolUseBlock, context: ToolContext | None) -> Coroutine[Any, Any, object]:
        """See `FullTool.start`; what the function returns is noted for the reply."""
        work: Any = full_tool(self._inner).start(tool_use, context)
        return work if context is None else _Noted(work, context.run.state[Given])


class _Noted(Coroutine[Any, Any, object]):
    """A step's work; what it returns is noted. (A coroutine around it would leave it unawaited where it never begins.)"""

    def __init__(self, work: Coroutine[Any, Any, object], given: Given) -> None:
        self._work = work
        self._given = given

    def send(self, value: Any, /) -> Any:
        """See `Coroutine.send`."""
        try:
            return self._work.send(value)
        except StopIteration as end:
            self._note(end.value)
            raise

    def throw(self, typ: Any, val: Any = None, tb: Any = None, /) -> Any:
        """See `Coroutine.throw`."""
        try:
            return self._work.throw(typ if val is None else val)
        except StopIteration as end:
            self._note(end.value)
            raise

    def close(self) -> None:
        """See `Coroutine.close`."""
        self._work.close()

    def __await__(self) -> Generator[Any, Any, object]:
        value = yield from self._work.__await__()
        self._note(value)
        return value

    def _note(self, value: object) -> None:
        content = render(value)
        self._given.note(
            content if isinstance(content, str) else "".join(getattr(b, "text", "") for b in content), value
        )


class Arguments(Form[Any]):
    """The form of a tool's arguments; the value that a text says is that text, which the tool reads itself.

    Args:
        made: The tool.
    """

    def __init__(self, made: Tool[..., Any]) -> None:
        self.kind = made.function
        self.wrapped = False
        self.schema = dict(made.spec.parameters)
        self._tool = made

    @property
    def title(self) -> str:
        """The tool's name."""
        return self._tool.name

    def read(self, text: str) -> str:
        """See `Form.read`."""
        raw = json_in(text)
        try:
            self._tool.validate(ToolUseBlock.from_json("", self._tool.name, raw))
        except ToolArgumentError as error:
            raise MisfitError(str(error)) from error
        return raw


def step_of(function: Callable[..., Any] | Tool[..., Any], name: str | None, description: str | None) -> StepTool:
    """The tool of a function that is to run as the last step; a plain one runs in a thread.

    Raises:
        UsageError: It cannot be a tool.
    """
    if isinstance(function, Tool):
        made = full_tool(cast("Tool[..., Any]", function))
        return StepTool(made if name is None else made.renamed(name))
    plain = not (inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function))
    return StepTool(FullTool(function, name=name, description=description, in_thread=plain))


async def _same(text: str) -> str:
    return text
