"""`Output`: the typed output of a call, and how the model is asked for it."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from types import FunctionType, MethodType
from typing import Any, Final, Generic, Literal, TypeAlias, cast, overload

from pydantic_core import to_json
from typing_extensions import TypeVar

from agentflow.errors import UsageError
from agentflow.loop.output.form import Form, MisfitError
from agentflow.loop.output.tools import AnswerTool, StepTool, content_text, step_of
from agentflow.tools.results import read_back, render
from agentflow.tools.signature import MISSING, return_hint
from agentflow.tools.tool import Tool

__all__ = ["FINAL", "NO_OUTPUT", "Output", "OutputLike", "Way", "output_of"]

T = TypeVar("T")
T_co = TypeVar("T_co", default=Any, covariant=True)

Way: TypeAlias = Literal["native", "tool", "prompt"]
"""How a model is asked: by its provider's JSON-schema mode, by a tool that takes the answer, or in the prompt."""

FINAL: Final = "final_answer"
"""The default name of the tool that takes an answer; `Output(name=...)` overrides it."""


class Output(Generic[T_co]):
    """The typed output of a call, and how the model is asked for it. `output=Invoice` is short for
    `output=Output(Invoice)`.

    Args:
        form: The type: a pydantic model, a dataclass, a `TypedDict`, a primitive, an enum, a list, a union. Or a
            function, or a tool: the model's answer is its arguments, it runs as the last step, and its return value is
            the output.
        via: `"native"` is the provider's JSON-schema mode, `"tool"` a tool that takes the answer, `"prompt"` a text in
            the prompt. None selects the first of them that the model supports, by its profile.
        retries: How many unfit answers go back to the model with the problem, before the call fails. An exception of
            the function counts as one.
        validate: Checks a value that fits. It can be async. It should raise `ValueError` with the problem, which goes
            back to the model like a misfit, or return the value to use (None keeps it). For a function it checks the
            return value. It runs wherever an answer is read: in the call, at its iteration limit, and in another
            process that reads the result. Any other exception ends the call.
        name: The name of the tool that takes the answer; a function's own name by default.
        description: The description of the answer for the model; the type's own docstring by default.

    Raises:
        UsageError: The form is not supported, or an option is invalid.

    Example:
        >>> agent = Agent("clerk", ScriptedModel(['{"answer": 3}']), output=Output(int, via="prompt"))
        >>> (await agent.call("How many?")).output
        3
    """

    @overload
    def __init__(
        self,
        form: type[T_co] | Callable[..., Awaitable[T_co] | T_co],
        *,
        via: Way | None = None,
        retries: int = 2,
        validate: Callable[[T_co], Any] | None = None,
        name: str | None = None,
        description: str | None = None,
    ) -> None: ...
    @overload  # a form without a type for checkers: Output[Literal["a", "b"]](Literal["a", "b"])
    def __init__(
        self,
        form: object,
        *,
        via: Way | None = None,
        retries: int = 2,
        validate: Callable[[Any], Any] | None = None,
        name: str | None = None,
        description: str | None = None,
    ) -> None: ...
    def __init__(
        self,
        form: Any,
        *,
        via: Way | None = None,
        retries: int = 2,
        validate: Callable[[Any], Any] | None = None,
        name: str | None = None,
        description: str | None = None,
    ) -> None:
        if via not in (None, "native", "tool", "prompt"):
            raise UsageError(
                f"Output(via={via!r}): it is 'native', 'tool' or 'prompt', or None for the best that the model supports."
            )
        if type(retries) is not int or retries < 0:
            raise UsageError(f"Output(retries={retries!r}): it is how often the model is asked again, 0 or more.")
        if validate is not None and not callable(validate):
            raise UsageError(f"Output(validate={validate!r:.60}): it is a function of the value.")
        if isinstance(form, Output):
            raise UsageError("Output(Output(...)): it is an Output already; pass it as output=.")
        self.form = form
        self.via: Way | None = via
        self.retries = retries
        self.validate = validate
        self.name = name
        self.description = description
        self._read: Form[T_co] | None = None
        self._tool: AnswerTool | StepTool | None = None

    @property
    def runs(self) -> bool:
        """Whether the form is a function, which runs as the last step."""
        return isinstance(self.form, (FunctionType, MethodType, Tool)) or inspect.isbuiltin(self.form)

    @property
    def is_text(self) -> bool:
        """Whether any text is accepted: `output=str`."""
        return self.form is str

    @property
    def tool(self) -> AnswerTool | StepTool:
        """The tool that takes the answer; created on first use."""
        if self._tool is None:
            if self.runs:
                self._tool = step_of(self.form, self.name, self.description, self.validated)
            else:
                about = (
                    self.description
                    or f"Give the final answer to the user: {_about(self.form)}. The work ends with it."
                )
                self._tool = AnswerTool(
                    self.name or FINAL, about, self.shape, None if self.validate is None else self.accept
                )
        return self._tool

    @property
    def shape(self) -> Form[T_co]:
        """The form of the model's answer: for a function, that of its arguments."""
        if self._read is None:
            self._read = cast("Form[T_co]", self.tool.form) if self.runs else Form(self.form)
        return self._read

    async def accept(self, text: str) -> T_co:
        """Return the value of an answer, if it fits and `validate` accepts it. Every output of a call comes from here.

        Args:
            text: The model's answer; for a function, the text of its result.

        Raises:
            MisfitError: The text does not fit the form, or `validate` refuses the value (a `ValueError`).
        """
        return await self.validated(self.read_result(text))

    async def validated(self, value: Any) -> T_co:
        """Return a value, if `validate` accepts it.

        Raises:
            MisfitError: It does not.
        """
        if self.validate is None:
            return value
        try:
            made = self.validate(value)
            if inspect.isawaitable(made):
                made = await made
        except ValueError as error:
            what = f"The return value of {self.tool.name}" if self.runs else "Your answer"
            raise MisfitError(f"{what} does not pass: {error}") from error
        except Exception as error:
            error.add_note(
                f"The validate= of {self!r} raised {type(error).__name__}, so no value was accepted. It should refuse "
                "a value with ValueError; any other exception is treated as a bug."
            )
            raise
        return value if made is None else made

    def read_result(self, text: str) -> T_co:
        """Return the value of a reply's text, without `validate`; for a function its return value, parsed by its
        annotation.

        Raises:
            MisfitError: The text is not such a value.
        """
        if not self.runs:
            return self.read(text)
        hint = return_hint(self.tool.function, {})
        if hint is MISSING or isinstance(hint, str):
            return cast("T_co", text)
        try:
            return cast("T_co", read_back(text, hint, strict=True))
        except ValueError as error:
            raise MisfitError(f"The return value of {self.tool.name} is not in its result: {error}") from error

    def write(self, value: Any) -> str:
        """Return the text of a value; `read_result` parses it.

        Raises:
            UsageError: It is not a value of the form.
        """
        if self.is_text:
            return str(value)
        if self.runs:
            return content_text(render(value))
        return self.shape.write(value)

    def read(self, text: str) -> T_co:
        """Parse a model's text into a value, without `validate`.

        Raises:
            MisfitError: It is not JSON, or of another form (a `ValueError`).

        Example:
            >>> Output(list[int]).read('{"answer": [1, 2]}')
            [1, 2]
        """
        return cast("T_co", text) if self.is_text else self.shape.read(text)

    @property
    def schema_text(self) -> str:
        """The JSON schema as text, for a model that is asked in the prompt."""
        return to_json(self.shape.schema).decode()

    @property
    def name_of_form(self) -> str:
        """The name of the form in errors."""
        return str(getattr(self.form, "__name__", self.form)) if not hasattr(self.form, "__args__") else str(self.form)

    def __repr__(self) -> str:
        return f"Output({self.name_of_form}{'' if self.via is None else f', via={self.via!r}'})"


OutputLike: TypeAlias = type[T] | Output[T] | Callable[..., Awaitable[T] | T]
"""A value for `output=`: a type, a function whose arguments are the answer, or an `Output` with options."""

NO_OUTPUT: Final[Output[None]] = Output(type(None))
"""No typed output: the default of an agent."""


def output_of(given: OutputLike[T] | Output[T] | Any) -> Output[T] | None:
    """Return the `Output` for the argument `output=`; None if there is none.

    Raises:
        UsageError: It is not a valid output.
    """
    if given is None or given is NO_OUTPUT:
        return None
    if isinstance(given, Output):
        return cast("Output[T]", given)
    made: Output[T] = Output(given)
    if not made.is_text:
        made.tool  # noqa: B018 - raises errors about the form early
    return made


def _about(form: Any) -> str:
    name = getattr(form, "__name__", str(form))
    doc = vars(form).get("__doc__") if isinstance(form, type) and form.__module__ != "builtins" else None
    if not isinstance(doc, str) or not doc.strip() or doc.startswith(f"{name}("):  # a dataclass's own signature
        return name
    return f"{name} ({inspect.cleandoc(doc).splitlines()[0]})"
