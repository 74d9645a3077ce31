"""`Output`: what a call is to give, and how the model is asked for it."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from types import FunctionType, MethodType
from typing import Any, Final, Generic, Literal, TypeAlias, cast, overload

from pydantic_core import to_json
from typing_extensions import TypeVar

from agentflow.errors import UsageError
from agentflow.output.form import Form, MisfitError
from agentflow.output.tools import AnswerTool, StepTool, content_text, step_of
from agentflow.tools.results import read_strictly, render
from agentflow.tools.signature import MISSING, return_hint
from agentflow.tools.tool import Tool

__all__ = ["FINAL", "NO_OUTPUT", "Output", "OutputLike", "Way", "output_of"]

T = TypeVar("T")
T_co = TypeVar("T_co", default=Any, covariant=True)

Way: TypeAlias = Literal["native", "tool", "prompt"]
"""How a model is asked for a form: by its provider's JSON-schema mode, by a tool that takes the answer, in words."""

FINAL: Final = "final_answer"
"""What the tool is called that takes an answer, unless `Output(name=...)` says otherwise."""


class Output(Generic[T_co]):
    """What a call is to give, with how the model is asked for it. `output=Invoice` is short for `output=Output(Invoice)`.

    Args:
        form: The type: a pydantic model, a dataclass, a `TypedDict`, a primitive, an enum, a list, a union. Or a function,
            or a tool: its arguments are what the model answers, it runs as the last step, and what it returns is the output.
        via: `"native"` is the provider's JSON-schema mode, `"tool"` a tool that takes the answer, `"prompt"` words. None: the
            first of them that the model has, by its profile.
        retries: How many answers that do not fit go back to the model, with what is wrong; then the call fails. A function
            that raises counts as one.
        validate: Checks a value that fits: it raises `ValueError` with what is wrong, which goes back to the model like a
            misfit, or returns the value to give (None: unchanged). It may be async. Of a function it checks what that
            returns. It is a part of reading an answer, so it runs wherever one is read: in the call, at its iteration limit,
            and in another process that reads the result. Anything else that it raises ends the call.
        name: What the tool is called that takes the answer; a function's own name by default.
        description: What the answer is, for the model; the type's own docstring by default.

    Raises:
        UsageError: Nothing can be made of the form, or an option is none.

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
    @overload  # a form that a checker knows no type for: Output[Literal["a", "b"]](Literal["a", "b"])
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
                f"Output(via={via!r}): it is 'native', 'tool' or 'prompt', or None for what the model has."
            )
        if type(retries) is not int or retries < 0:
            raise UsageError(f"Output(retries={retries!r}): it is how often the model is asked again, 0 or more.")
        if validate is not None and not callable(validate):
            raise UsageError(f"Output(validate={validate!r:.60}): it is a function of the value.")
        if isinstance(form, Output):
            raise UsageError("Output(Output(...)): it is one already; pass it as output=.")
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
        """Whether any words will do: `output=str`."""
        return self.form is str

    @property
    def tool(self) -> AnswerTool | StepTool:
        """The tool that takes the answer; made when it is first asked for."""
        if self._tool is None:
            if self.runs:
                self._tool = step_of(self.form, self.name, self.description, self.validated)
            else:
                said = (
                    self.description
                    or f"Give the final answer to the user: {_about(self.form)}. The work ends with it."
                )
                self._tool = AnswerTool(
                    self.name or FINAL, said, self.shape, None if self.validate is None else self.accept
                )
        return self._tool

    @property
    def shape(self) -> Form[T_co]:
        """The form that the model's answer has: of a function, that of its arguments."""
        if self._read is None:
            self._read = cast("Form[T_co]", self.tool.form) if self.runs else Form(self.form)
        return self._read

    async def accept(self, text: str) -> T_co:
        """The value of an answer: what the text says, if `validate` accepts it. Every output of a call comes from here.

        Args:
            text: The model's answer; of a function, the text of its result.

        Raises:
            MisfitError: The text does not fit the form, or `validate` refuses the value (a `ValueError`).
        """
        return await self.validated(self.read_result(text))

    async def validated(self, value: Any) -> T_co:
        """A value, if `validate` accepts it.

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
            what = f"What {self.tool.name} returned" if self.runs else "Your answer"
            raise MisfitError(f"{what} does not pass: {error}") from error
        except Exception as error:
            error.add_note(
                f"The validate= of {self!r} raised {type(error).__name__}, so no value was accepted. It refuses a value with "
                "ValueError; anything else is taken for a bug."
            )
            raise
        return value if made is None else made

    def read_result(self, text: str) -> T_co:
        """The value that a reply's text says, not validated; of a function, what it has returned, read by its annotation.

        Raises:
            MisfitError: It says none.
        """
        if not self.runs:
            return self.read(text)
        hint = return_hint(self.tool.function, {})
        if hint is MISSING or isinstance(hint, str):
            return cast("T_co", text)
        try:
            return cast("T_co", read_strictly(text, hint))
        except ValueError as error:
            raise MisfitError(f"What {self.tool.name} returned is not in its result: {error}") from error

    def write(self, value: Any) -> str:
        """The text that says a value, for who is given text: `read_result` makes the value of it again.

        Raises:
            UsageError: It is no value of the form.
        """
        if self.is_text:
            return str(value)
        if self.runs:
            return content_text(render(value))
        return self.shape.write(value)

    def read(self, text: str) -> T_co:
        """The value that a model's text says, not validated.

        Raises:
            MisfitError: It says none, or one of another form (a `ValueError`).

        Example:
            >>> Output(list[int]).read('{"answer": [1, 2]}')
            [1, 2]
        """
        return cast("T_co", text) if self.is_text else self.shape.read(text)

    @property
    def schema_text(self) -> str:
        """The JSON schema as text, for a model that is asked in words."""
        return to_json(self.shape.schema).decode()

    @property
    def name_of_form(self) -> str:
        """What errors call the form."""
        return str(getattr(self.form, "__name__", self.form)) if not hasattr(self.form, "__args__") else str(self.form)

    def __repr__(self) -> str:
        return f"Output({self.name_of_form}{'' if self.via is None else f', via={self.via!r}'})"


OutputLike: TypeAlias = type[T] | Output[T] | Callable[..., Awaitable[T] | T]
"""What `output=` takes: a type, a function whose arguments are the answer, or an `Output` with options."""

NO_OUTPUT: Final[Output[None]] = Output(type(None))
"""No form is asked for: the output of an agent unless it says otherwise."""


def output_of(given: OutputLike[T] | Output[T] | Any) -> Output[T] | None:
    """What somebody passed as `output=`, with options; None: nothing is asked for.

    Raises:
        UsageError: It cannot be one.
    """
    if given is None or given is NO_OUTPUT:
        return None
    if isinstance(given, Output):
        return cast("Output[T]", given)
    made: Output[T] = Output(given)
    if not made.is_text:
        made.tool  # noqa: B018 - what is wrong with a form is said where it is given
    return made


def _about(form: Any) -> str:
    name = getattr(form, "__name__", str(form))
    doc = vars(form).get("__doc__") if isinstance(form, type) and form.__module__ != "builtins" else None
    if not isinstance(doc, str) or not doc.strip() or doc.startswith(f"{name}("):  # a dataclass's own signature
        return name
    return f"{name} ({inspect.cleandoc(doc).splitlines()[0]})"
