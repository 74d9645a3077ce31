"""The tools that take an answer: one that returns it unchanged, and one that runs a function as the last step.

To the loop both are tools like any other: evaluated, journalled, timed and shown. The return value of a step is cached
for the reply.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from agentflow.errors import ToolArgumentError, UsageError
from agentflow.loop.output.answer import AcceptedAnswers
from agentflow.loop.output.form import Form, InvalidOutputError, json_in
from agentflow.tools.results import read_back, render
from agentflow.tools.signature import MISSING, return_hint
from agentflow.tools.tool import FullTool, Tool, arguments_text, full_tool
from agentflow.vocabulary.context import RunContext
from agentflow.vocabulary.messages import DataBlock, TextBlock, ToolUseBlock
from agentflow.vocabulary.specs import ToolSpec

if TYPE_CHECKING:
    from agentflow.tools.tool_context import ToolContext

__all__ = ["AnswerTool", "StepTool", "content_text", "step_of"]


AcceptValue: TypeAlias = Callable[[Any, RunContext | None], Coroutine[Any, Any, Any]]
"""Returns the output for a value, or for the text of an answer, in a run; raises `InvalidOutputError` to refuse it."""

ContextOf: TypeAlias = Callable[[RunContext | None], Any]
"""Returns pydantic's validation context; raises `InvalidOutputError` if it needs a run, and there is none."""


class AnswerTool(FullTool[..., Any]):
    """Takes an answer and returns it: its result is the answer's own text.

    It succeeds only for an answer that fits and that `validate` accepts, whether the model, a hook, or a person
    wrote its arguments. So a successful result in the history is an accepted answer.

    Args:
        name: The name for the model.
        description: The description for the model.
        form: The form of the answer.
        accept: Validates an answer's text, or refuses it with `InvalidOutputError`; None accepts every answer that fits.
        context: Returns pydantic's validation context.
        named: Adds the output's name to the JSON if there are several outputs; None uses the JSON itself.
    """

    expected_errors = (ValueError,)
    form: Form[Any]
    _accept: AcceptValue | None
    _context: ContextOf
    _named: Callable[[str], str] | None

    def __init__(
        self,
        name: str,
        description: str,
        form: Form[Any],
        accept: AcceptValue | None,
        context: ContextOf,
        named: Callable[[str], str] | None,
    ) -> None:
        # `read` and idempotent: it has no effect, so it may run in parallel and again after a crash.
        super().__init__(_unchanged, name=name, description=description, type="read", timeout=None, idempotent=True)
        spec = ToolSpec(name, description, form.schema, type="read")
        # Tools are immutable, so attributes are set through `__dict__`.
        self.__dict__.update(spec=spec, form=form, _accept=accept, _context=context, _named=named)
        self.__dict__.update(wants_context=True, dep_types={})

    def prepare(self) -> AnswerTool:
        """Return this tool, whose parts are all set already."""
        return self

    def start(self, tool_use: ToolUseBlock, context: ToolContext | None) -> Coroutine[Any, Any, object]:
        """See `FullTool.start`."""
        run = None if context is None else context.run
        self._fit(tool_use, run)
        text = arguments_text(tool_use).strip()
        text = text if self._named is None else self._named(text)
        return _unchanged(text) if self._accept is None else self._accepted(text, run, self._accept)

    async def _accepted(self, text: str, run: RunContext | None, accept: AcceptValue) -> str:
        accepted = AcceptedAnswers() if run is None else run.state[AcceptedAnswers]
        try:
            await accepted.accept(lambda answer: accept(answer, run), text)
        except InvalidOutputError as error:
            raise ToolArgumentError(str(error)) from error
        return text

    def validate(self, tool_use: ToolUseBlock) -> None:
        """See `Tool.validate`. If the validation context needs a run, this does nothing: `start` validates."""
        if _has_context(self._context):
            self._fit(tool_use, None)

    def _fit(self, tool_use: ToolUseBlock, run: RunContext | None) -> None:
        try:
            self.form.read(arguments_text(tool_use), self._context(run))
        except InvalidOutputError as error:
            raise ToolArgumentError(str(error)) from error


class StepTool(FullTool[..., Any]):
    """A tool that runs a function as the last step: its return value, if valid, is the call's output.

    Args:
        inner: The tool of that function.
        validated: Turns the return value into the output, or refuses it with `InvalidOutputError`.
        context: Returns pydantic's validation context for the arguments.
        description: The description for the model; that of the tool by default.

    Raises:
        UsageError: The tool does not return a single value.
    """

    expected_errors = (ValueError,)
    form: Form[Any]
    _inner: Tool[..., Any]
    _validated: AcceptValue
    _context: ContextOf

    def __init__(
        self, inner: FullTool[..., Any], validated: AcceptValue, context: ContextOf, description: str | None
    ) -> None:
        if inner.streaming or inner.external:
            problem = "yields several values" if inner.streaming else "is answered from outside"
            raise UsageError(
                f"output={inner.name}: the tool {problem}. The last step must be a function that runs and returns one value."
            )
        inner.prepare()
        self.__dict__.update(
            inner.__dict__, wants_context=True, _inner=inner, _validated=validated, form=Arguments(inner)
        )
        self.__dict__.update(_context=context)
        description = (
            description or inner.spec.description or f"Give the final answer with {inner.name}. The work ends with it."
        )
        if description != inner.spec.description:
            spec = inner.spec
            self.__dict__["spec"] = ToolSpec(
                spec.name, description, spec.parameters, type=spec.type, tags=spec.tags,
                requires_approval=spec.requires_approval, native=spec.native, native_only=spec.native_only,
            )  # fmt: skip

    def start(self, tool_use: ToolUseBlock, context: ToolContext | None) -> Any:
        """See `FullTool.start`; the return value is cached for the reply."""
        accepted = AcceptedAnswers() if context is None else context.run.state[AcceptedAnswers]
        run = None if context is None else context.run
        inner = full_tool(self._inner).in_context(self._context(run))
        # `in_context` returns a copy, so this changes one call only.
        inner.__dict__.update(_call=partial(self._step, self._inner.__dict__["_call"], accepted, run))
        return inner.start(tool_use, context)

    def validate(self, tool_use: ToolUseBlock) -> None:
        """See `Tool.validate`. If the validation context needs a run, this does nothing: `start` validates."""
        if _has_context(self._context):
            full_tool(self._inner).in_context(self._context(None)).validate(tool_use)

    def returned(self, text: str) -> Any:
        """Parse a result's text by the function's return annotation; without one, return the text.

        Raises:
            InvalidOutputError: The text is not such a value.
        """
        hint = return_hint(self.function, {})
        if hint is MISSING or isinstance(hint, str):
            return text
        try:
            return read_back(text, hint, strict=True)
        except ValueError as error:
            raise InvalidOutputError(f"The result of {self.name} is not its return value: {error}") from error

    async def _step(
        self,
        call: Callable[..., Awaitable[Any]],
        accepted: AcceptedAnswers,
        run: RunContext | None,
        /,
        *args: object,
        **arguments: object,
    ) -> object:
        """Call the function, then check its return value."""
        value = await call(*args, **arguments)
        try:
            output = await self._validated(value, run)
        except InvalidOutputError as error:  # not retried by the tool's own retries: the function has run
            raise ToolArgumentError(str(error)) from error
        accepted.note(content_text(render(value)), output)
        return value


def _has_context(context: ContextOf) -> bool:
    """Whether pydantic's validation context is available without a run."""
    try:
        context(None)
    except InvalidOutputError:
        return False
    return True


def content_text(content: str | tuple[TextBlock | DataBlock, ...]) -> str:
    """Return the text of a tool's result."""
    return content if isinstance(content, str) else "".join(getattr(block, "text", "") for block in content)


class Arguments(Form[Any]):
    """The form of a tool's arguments; the value of a text is the text itself, which the tool parses.

    Args:
        tool: The tool.
    """

    def __init__(self, tool: FullTool[..., Any]) -> None:
        self.kind = tool.function
        self.wrapped = False
        self.schema = dict(tool.spec.parameters)
        self._tool = tool

    @property
    def title(self) -> str:
        """The tool's name."""
        return self._tool.name

    def read(self, text: str, context: Any = None) -> str:
        """See `Form.read`."""
        raw = json_in(text)
        try:
            self._tool.in_context(context).validate(ToolUseBlock.from_json("", self._tool.name, raw))
        except ToolArgumentError as error:
            raise InvalidOutputError(str(error)) from error
        return raw


def step_of(
    function: Callable[..., Any] | Tool[..., Any],
    name: str | None,
    description: str | None,
    validated: AcceptValue,
    context: ContextOf,
) -> StepTool:
    """Return the tool of a function that runs as the last step; a plain function runs in a thread.

    Raises:
        UsageError: The function cannot be a tool.
    """
    if isinstance(function, Tool):
        tool = full_tool(cast("Tool[..., Any]", function))
        return StepTool(tool if name is None else tool.renamed(name), validated, context, description)
    plain = not (inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function))
    tool = FullTool(function, name=name, description=description, in_thread=plain)
    return StepTool(tool, validated, context, description)


async def _unchanged(text: str) -> str:
    return text
