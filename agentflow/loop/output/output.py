"""`FullOutput`: how the model is asked for a typed output, and how its answer is read and written."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from functools import partial
from types import FunctionType, MethodType
from typing import Any, Final, cast

from pydantic_core import to_json
from typing_extensions import TypeVar

from agentflow._support.facade import objects_of
from agentflow.errors import UsageError
from agentflow.loop.output.choices import Choices, named_text
from agentflow.loop.output.form import Form, InvalidOutputError, SchemaForm, type_name
from agentflow.loop.output.public import End, Output, OutputLike, Way
from agentflow.loop.output.tools import AnswerTool, StepTool, content_text, step_of
from agentflow.loop.output.validating import Validator
from agentflow.loop.output.validating import validate as run_validators
from agentflow.loop.output.value_schema import value_schema
from agentflow.tools.results import render
from agentflow.tools.signature import return_hint
from agentflow.tools.tool import Tool, arguments_text
from agentflow.vocabulary.context import RunContext
from agentflow.vocabulary.messages import DataBlock, Msg, ToolUseBlock

__all__ = ["FINAL", "NO_OUTPUT", "End", "FullOutput", "Output", "OutputLike", "Way", "full_output", "output_of"]

T = TypeVar("T")
T_co = TypeVar("T_co", default=Any, covariant=True)

FINAL: Final = "final_answer"
"""The default name of the tool that takes an answer; `Output(name=...)` overrides it."""


@objects_of(Output)
class FullOutput(Output[T_co]):
    """An `Output`, with what the package needs of it."""

    own_retries: int | None
    validators: tuple[Validator, ...]
    choices: tuple[FullOutput[Any], ...]

    def _set_up(self, retries: int | None, validators: tuple[Validator, ...], context: object) -> None:
        self.own_retries = retries
        self.validators = validators
        self._context = context
        self._read: Form[T_co] | None = None
        self._tool: AnswerTool | StepTool | None = None
        self._tools: Mapping[str, AnswerTool | StepTool] | None = None
        self.choices = (cast("FullOutput[Any]", self),)
        if isinstance(cast("object", self.form), list | tuple):
            self.choices = tuple(map(_choice, cast("Sequence[Any]", self.form)))
        self._check_choices()

    def _check_choices(self) -> None:
        if not self.choices:
            raise UsageError("Output([]): the list of outputs is empty; an agent without output= answers with text.")
        for form in (str, DataBlock):
            if sum(choice.form is form for choice in self.choices) > 1:
                raise UsageError(
                    f"{self!r}: {form.__name__} is in the list twice; the model cannot tell them apart. Remove one."
                )
        if self.several and (self.name is not None or self.description is not None):
            raise UsageError(
                f"{self!r}: name= and description= are for the items, not for the list: [Output(Invoice, name='bill'), ...]."
            )
        if self.via == "native" and (self.takes_text or self.takes_data):
            raise UsageError(
                f"{self!r}: with via='native' every answer is JSON, so text and data are impossible. Leave out via=."
            )

    @property
    def several(self) -> bool:
        """Whether the form is a list, of which the model selects one."""
        return self.choices[0] is not self

    @property
    def takes_text(self) -> bool:
        """Whether plain text is accepted."""
        return any(choice.form is str for choice in self.choices)

    @property
    def takes_data(self) -> bool:
        """Whether an image or another file of the model is accepted."""
        return any(choice.form is DataBlock for choice in self.choices)

    @property
    def runs(self) -> bool:
        """Whether the form is a function, which runs as the last step; for a list, whether every item is a function."""
        if self.several:
            return all(choice.runs for choice in self.choices)
        return isinstance(self.form, (FunctionType, MethodType, partial, Tool)) or inspect.isbuiltin(self.form)

    @property
    def is_text(self) -> bool:
        """Whether any text is accepted: `output=str`."""
        return self.form is str

    @property
    def tools(self) -> Mapping[str, AnswerTool | StepTool]:
        """The tools that take an answer, by name; created on first use. Text and data have none."""
        if self._tools is None:
            tools: dict[str, AnswerTool | StepTool] = {}
            for choice in self.choices:
                if choice.has_tool:
                    tool = choice.made_tool(tools, self) if self.several else self.tool
                    tools[tool.name] = tool
            self._tools = tools  # assigned last, so that an error is raised again on the next access
        return self._tools

    @property
    def tool(self) -> AnswerTool | StepTool:
        """The tool that takes the answer, if there is one output; created on first use."""
        return self.made_tool({}, None) if self._tool is None else self._tool

    def made_tool(self, others: Mapping[str, object], above: FullOutput[Any] | None) -> AnswerTool | StepTool:
        """Create the tool that takes the answer.

        Args:
            others: The tools of earlier items of the list, by name.
            above: The output that has this one as an item of its list; None if this is the only output.

        Raises:
            UsageError: An earlier item's tool has the same name.
        """
        context = (self if above is None else above).context_of
        if self.runs:
            validated = self.validated if above is None else partial(above.passed, self)
            tool: AnswerTool | StepTool = step_of(self.form, self.name, self.description, validated, context)
        else:
            title, count = self.shape.title, 2
            name = self.name or (FINAL if above is None else f"{FINAL}_{title}")
            while self.name is None and name in others:
                name, count = f"{FINAL}_{title}_{count}", count + 1
            about = self.description or f"Give the final answer to the user: {self.shape.about}. The work ends with it."
            checked = self.validators or (above is not None and above.validators)
            accept = (self if above is None else above).accept if checked else None
            tool = AnswerTool(
                name, about, self.shape, accept, context, None if above is None else partial(named_text, name)
            )
        if tool.name in others:
            raise UsageError(
                f"{above!r}: two of the outputs have the name {tool.name!r}. Rename one of them: Output(..., name='other')."
            )
        self._tool = tool
        return tool

    @property
    def shape(self) -> Form[T_co]:
        """The form of the model's answer: for a function, that of its arguments."""
        if self._read is None:
            if self.several:
                form: Form[Any] = Choices(self.tools)
            elif self.runs:
                form = self.tool.form
            else:
                form = SchemaForm(self.form) if self.is_schema else Form(self.form)
            self._read = cast("Form[T_co]", form)
        return self._read

    @property
    def is_schema(self) -> bool:
        """Whether the form is a JSON schema."""
        return isinstance(self.form, Mapping)

    @property
    def has_tool(self) -> bool:
        """Whether a tool takes the answer."""
        return self.form not in (str, DataBlock)

    def given_by(self, use: ToolUseBlock) -> str:
        """Return the text of the answer in a call of a final tool."""
        text = arguments_text(use).strip()
        return named_text(use.name, text) if self.several else text

    def answer_of(self, reply: Msg) -> str | DataBlock:
        """Return the answer in a reply without calls: its text, or its first image or file if one is accepted."""
        return reply.data[0] if self.takes_data and reply.data else reply.text

    def context_of(self, run: RunContext | None) -> Any:
        """Return pydantic's validation context.

        Raises:
            InvalidOutputError: The context is created from the run's context, and there is no run.
        """
        if not callable(self._context):
            return self._context
        if run is None:
            raise InvalidOutputError(f"{self!r} is validated with the context of its run, which is not available here.")
        return self._context(run)

    async def accept(self, answer: str | DataBlock, run: RunContext | None = None, *, own: bool = False) -> T_co:
        """Return the value of an answer, if it fits and `validate` accepts it. Every output of a call comes from here.

        Args:
            answer: The model's answer; for a function, the text of its result.
            run: The context of the run.
            own: Whether the model wrote the text; False if it can be a function's result.

        Raises:
            InvalidOutputError: The text does not fit the form, or `validate` refuses the value (a `ValueError`).
        """
        choice, value = self._chosen(answer, run, own=own)
        return await (self.validated(value, run) if choice is self else self.passed(choice, value, run))

    async def passed(self, choice: FullOutput[Any], value: Any, run: RunContext | None = None) -> T_co:
        """Return the value of one of several outputs, if its own validators and those of the whole list accept it.

        Raises:
            InvalidOutputError: A validator refuses the value.
        """
        return await self.validated(await choice.validated(value, run), run)

    async def validated(self, value: Any, run: RunContext | None = None) -> T_co:
        """Return the value, if `validate` accepts it.

        Raises:
            InvalidOutputError: `validate` refuses the value, or needs the context of a run, and there is none.
        """
        what = f"The return value of {self.tool.name}" if self.runs and not self.several else "Your answer"
        return await run_validators(self.validators, value, run, what, repr(self))

    def _chosen(self, answer: str | DataBlock, run: RunContext | None, *, own: bool) -> tuple[FullOutput[Any], Any]:
        """Return the output that an answer is for, and its value before `validate`."""
        if isinstance(answer, DataBlock):
            return next(choice for choice in self.choices if choice.form is DataBlock), answer
        if not self.several and self.runs:
            return self, cast("StepTool", self.tool).returned(answer)
        if not self.several:
            return self, self.read(answer, self.context_of(run))
        shape = cast("Choices", self.shape)
        # `self.tools` creates the items' tools, whose names it keeps distinct; `choice.tool` alone would not.
        by_name = {choice.tool.name: choice for choice in self.choices if self.tools and choice.has_tool}
        named = shape.named(answer)
        if named is not None:
            choice = by_name[named[0]]
            value = choice.shape.read(named[1], self.context_of(run))
            if choice.runs:
                raise InvalidOutputError(f"{named[0]} was not called. Call it as a tool.")
            return choice, value
        for choice in self.choices:
            if choice.runs and not own:
                try:
                    return choice, choice.read_result(answer)
                except InvalidOutputError:
                    continue
        if self.takes_text:
            return next(choice for choice in self.choices if choice.is_text), answer
        name, value = shape.fitting(answer, self.context_of(run))
        return by_name[name], value

    def named_call(self, text: str, run: RunContext) -> tuple[str, str] | None:
        """Return the function that a text names, with its arguments as JSON; None if the text names no function.

        Raises:
            InvalidOutputError: The arguments do not fit.
        """
        if not self.several:
            return (self.tool.name, str(self.shape.read(text, self.context_of(run)))) if self.runs else None
        named = cast("Choices", self.shape).named(text)
        if named is None or not isinstance(self.tools[named[0]], StepTool):
            return None
        return named[0], str(self.tools[named[0]].form.read(named[1], self.context_of(run)))

    def read_result(self, text: str) -> T_co:
        """See `Output.read_result`."""
        return self._chosen(text, None, own=False)[1]

    def write(self, value: Any) -> str:
        """See `Output.write`."""
        if self.is_text:
            return str(value)
        if self.runs:
            return content_text(render(value))
        if not self.several:
            return self.shape.write(value)
        own = [c.tool for c in self.choices if isinstance(c.form, type) and c.has_tool and type(value) is c.form]
        for tool in (*own, *self.tools.values()):  # the exact type first, since the value can fit others too
            if isinstance(tool, StepTool):
                continue
            try:
                return named_text(tool.name, tool.form.write(value))
            except UsageError:
                continue
        return content_text(render(value))

    def read(self, text: str, context: Any = None) -> T_co:
        """See `Output.read`."""
        if self.form is DataBlock:
            raise InvalidOutputError("Answer with an image or a file.")
        if self.several:
            return self._chosen(text, None, own=True)[1]
        return cast("T_co", text) if self.is_text else self.shape.read(text, context)

    @property
    def schema_text(self) -> str:
        """The JSON schema as text, for the prompt."""
        return to_json(self._described({})).decode()

    @property
    def asked_schema(self) -> dict[str, Any]:
        """The JSON schema for a model's JSON-schema mode."""
        return self._described({"title": self.shape.title})

    @property
    def value_schema(self) -> dict[str, Any]:
        """See `Output.value_schema`."""
        kinds = [return_hint(choice.tool.function, {}) if choice.runs else choice.form for choice in self.choices]
        return value_schema(kinds, repr(self))

    def _described(self, first: dict[str, Any]) -> dict[str, Any]:
        """Return the JSON schema with the name and the description of this output; for a function, with its docstring."""
        schema = {**first, **self.shape.schema, **({} if self.name is None else {"title": self.name})}
        description = self.tool.spec.description if self.runs and not self.several else self.description
        return {**schema, "description": description} if description else schema

    @property
    def name_of_form(self) -> str:
        """The name of the form in errors."""
        if self.several:
            return " | ".join(choice.name_of_form for choice in self.choices)
        return str(self.form.get("title", "a JSON schema")) if self.is_schema else type_name(self.form)

    def __repr__(self) -> str:
        return f"Output({self.name_of_form}{'' if self.via is None else f', via={self.via!r}'})"


def full_output(output: Output[T]) -> FullOutput[T]:
    """Return the output with the interface for the package."""
    return cast("FullOutput[T]", output)  # every `Output` is a `FullOutput`


def output_of(form: OutputLike[T] | Output[T] | Any) -> FullOutput[T] | None:
    """Return the `Output` for the argument `output=`; None if there is none.

    Raises:
        UsageError: The argument is not a valid output.
    """
    if form is None or form is NO_OUTPUT:
        return None
    if isinstance(form, Output):
        return full_output(cast("Output[T]", form))
    output = full_output(cast("Output[T]", Output(form)))
    output.tools  # noqa: B018 - raises errors about the form early
    return output


def _choice(form: Any) -> FullOutput[Any]:
    if isinstance(form, list | tuple):
        raise UsageError(
            f"output=[{form!r:.60}]: a list in a list of outputs. Write one list; for a list of values: list[int]."
        )
    if not isinstance(form, Output):
        return full_output(Output(type(None) if form is None else form))
    output = full_output(cast("Output[Any]", form))
    if output.several or output.via or output.prompt is not None or output.end != "all":
        raise UsageError(
            f"{output!r} is one of several outputs, so it can have name=, description=, validate= and retries=; the other "
            "options belong to the Output of the list: Output([...], via='tool')."
        )
    return output


NO_OUTPUT: Final = full_output(Output(type(None)))
"""No typed output: the default of an agent."""
