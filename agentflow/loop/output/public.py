"""`Output`: the typed output of a call, as users see it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Generic, Literal, TypeAlias, overload

from typing_extensions import TypeVar

from agentflow.errors import UsageError
from agentflow.loop.output.validating import Validator, Validators, validators_of
from agentflow.vocabulary.context import RunContext

__all__ = ["End", "Output", "OutputLike", "Way"]

T = TypeVar("T")
T_co = TypeVar("T_co", default=Any, covariant=True)

Way: TypeAlias = Literal["native", "tool", "prompt"]
"""How a model is asked: by its provider's JSON-schema mode, by a tool that takes the answer, or in the prompt."""

One: TypeAlias = type[T] | Callable[..., Awaitable[T] | T]

End: TypeAlias = Literal["all", "one", "first"]
"""Which other calls of a reply run if it contains an accepted answer: all, those that are not answers, or none."""


class Output(Generic[T_co]):
    """The typed output of a call, and how the model is asked for it. `output=Invoice` is short for
    `output=Output(Invoice)`.

    Args:
        form: The type: a pydantic model, a dataclass, a `TypedDict`, a primitive, an enum, a list, a union. Or a
            function, or a tool: the model's answer is its arguments, it runs as the last step, and its return value is
            the output. A mapping is a JSON schema of an object, and the output is a dict. `str` is plain text,
            `DataBlock` an image or another file that the model makes. A list of these: the model selects one, and an
            item can be an `Output` with its own `name`, `description`, `validate` and `retries`.
        via: `"native"` is the provider's JSON-schema mode, `"tool"` a tool that takes the answer, `"prompt"` a text in
            the prompt. None selects the first of them that the model and the form support.
        retries: How many refused answers go back to the model with the problem, before the call fails (2 by default). An
            exception of the function counts as one. In a list, an item with `retries` has its own count.
        validate: A function that checks a value of the right form, or a list of functions, called in order. It can be
            async. It should raise `ValueError` with the problem, which then goes back to the model, or return the value
            to use (None keeps the value). If the form is a function, its return value is checked. The check runs wherever
            an answer is read: in the call, at its iteration limit, and in another process that reads the result. Any
            other exception ends the call. A second parameter annotated `RunContext` receives the context of the run; with
            such a parameter no value is accepted outside of a run.
        name: The name of the tool that takes the answer; a function's own name by default.
        description: The description of the answer for the model; the type's own docstring by default.
        prompt: Your own text that asks for the answer (`via="prompt"` or `"native"`); `{schema}` becomes the JSON schema.
        validation_context: Pydantic's validation context (`info.context` in validators), or a function that returns it
            for the `RunContext`.
        end: What else runs in a reply with an accepted answer. `"all"`: the other tools and answers, and the last accepted
            answer counts. `"one"`: the other tools, and the first accepted answer. `"first"`: that answer only.

    Raises:
        UsageError: The form is not supported, or an option is invalid.

    Example:
        >>> agent = Agent("clerk", ScriptedModel(['{"answer": 3}']), output=Output(int, via="prompt"))
        >>> (await agent.call("How many?")).output
        3
    """

    form: Any
    via: Way | None
    retries: int
    name: str | None
    description: str | None
    prompt: str | None
    end: End

    @overload
    def __init__(
        self,
        form: One[T_co] | Sequence[One[T_co]],
        *,
        via: Way | None = None,
        retries: int | None = None,
        validate: Validators[T_co] | None = None,
        name: str | None = None,
        description: str | None = None,
        prompt: str | None = None,
        validation_context: Callable[[RunContext], Any] | object = None,
        end: End = "all",
    ) -> None: ...
    @overload
    def __init__(
        self: Output[dict[str, Any]],
        form: Mapping[str, Any],
        *,
        via: Way | None = None,
        retries: int | None = None,
        validate: Validators[dict[str, Any]] | None = None,
        name: str | None = None,
        description: str | None = None,
        prompt: str | None = None,
        validation_context: Callable[[RunContext], Any] | object = None,
        end: End = "all",
    ) -> None: ...
    @overload  # a form from which checkers cannot infer a type: Output[Literal["a", "b"]](Literal["a", "b"])
    def __init__(
        self,
        form: object,
        *,
        via: Way | None = None,
        retries: int | None = None,
        validate: Validators[Any] | None = None,
        name: str | None = None,
        description: str | None = None,
        prompt: str | None = None,
        validation_context: Callable[[RunContext], Any] | object = None,
        end: End = "all",
    ) -> None: ...
    def __init__(
        self,
        form: Any,
        *,
        via: Way | None = None,
        retries: int | None = None,
        validate: Validators[Any] | None = None,
        name: str | None = None,
        description: str | None = None,
        prompt: str | None = None,
        validation_context: Callable[[RunContext], Any] | object = None,
        end: End = "all",
    ) -> None:
        if via not in (None, "native", "tool", "prompt"):
            raise UsageError(f"Output(via={via!r}) is invalid; use 'native', 'tool', 'prompt' or None (the best one).")
        if retries is not None and (type(retries) is not int or retries < 0):
            raise UsageError(f"Output(retries={retries!r}) is invalid; use a number of further attempts, 0 or more.")
        if end not in ("all", "one", "first"):
            raise UsageError(f"Output(end={end!r}) is invalid; use 'all', 'one' or 'first'.")
        if isinstance(form, Output):
            raise UsageError("Output(Output(...)): the argument is an Output already. Pass it as output=.")
        self.form = form
        self.via = via
        self.retries = 2 if retries is None else retries
        self.name = name
        self.description = description
        self.prompt = prompt
        self.end = end
        self._set_up(retries, validators_of(validate), validation_context)

    # Every object is a `FullOutput`, which implements the following methods (`_support/facade.py`).

    def _set_up(self, retries: int | None, validators: tuple[Validator, ...], context: object) -> None:
        raise NotImplementedError

    def read_result(self, text: str) -> T_co:
        """Return the value of a reply's text, without `validate`; for a function its return value, parsed by its
        annotation.

        Raises:
            InvalidOutputError: The text is not such a value.
        """
        raise NotImplementedError

    def write(self, value: Any) -> str:
        """Return the text of a value; `read_result` parses it.

        Raises:
            UsageError: The value does not have the form's type.
        """
        raise NotImplementedError

    def read(self, text: str, context: Any = None) -> T_co:
        """Parse a model's text into a value, without `validate`.

        Args:
            text: The model's text.
            context: Pydantic's validation context.

        Raises:
            InvalidOutputError: It is not JSON, or of another form (a `ValueError`).

        Example:
            >>> Output(list[int]).read('{"answer": [1, 2]}')
            [1, 2]
        """
        raise NotImplementedError

    @property
    def value_schema(self) -> dict[str, Any]:
        """The JSON schema of the value, `reply.output`: for a function, of its return type. `validate` can change the type.

        Raises:
            UsageError: A function's return type has no JSON form.

        Example:
            >>> Output(list[int]).value_schema
            {'items': {'type': 'integer'}, 'type': 'array'}
        """
        raise NotImplementedError


OutputLike: TypeAlias = One[T] | Output[T] | Sequence[One[T] | Output[T]]
"""A value for `output=`: a type, a function whose arguments are the answer, an `Output` with options, or a list of these."""
