"""The validators of an output: the user's functions, which accept a value, replace it, or refuse it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Concatenate, TypeAlias, cast

from typing_extensions import TypeVar

from agentflow._support.annotations import annotations_of, signature_of
from agentflow.errors import UsageError
from agentflow.loop.output.form import InvalidOutputError
from agentflow.tools.signature import plain_function
from agentflow.vocabulary.context import RunContext

__all__ = ["Validator", "Validators", "validate", "validators_of"]

T = TypeVar("T")

Validators: TypeAlias = Callable[Concatenate[T, ...], Any] | Sequence[Callable[Concatenate[T, ...], Any]]
Validator: TypeAlias = tuple[Callable[..., Any], int | None]
"""A function, and the position of its parameter for the context of the run: 0, 1, or None if it has none."""


def validators_of(validators: Any) -> tuple[Validator, ...]:
    """Return the validators of `validate=`: a function, or a list of functions.

    Raises:
        UsageError: The argument is something else.
    """
    listed = cast(
        "Sequence[Any]",
        validators if isinstance(validators, list | tuple) else () if validators is None else (validators,),
    )
    return tuple(map(_validator, listed))


def _validator(function: Any) -> Validator:
    if not callable(function):
        raise UsageError(
            f"Output(validate={function!r:.60}) is invalid; pass a function of the value, or a list of functions."
        )
    plain = plain_function(function)
    kinds: Mapping[str, Any] = {} if plain is None else annotations_of(plain)
    name = next((name for name, kind in kinds.items() if kind is RunContext or kind == "RunContext"), None)
    if name is None:
        return function, None
    return function, int(name != next(iter(signature_of(function).parameters)))


async def validate(validators: Sequence[Validator], value: Any, run: RunContext | None, what: str, where: str) -> Any:
    """Return the value, as accepted or replaced by the validators in turn.

    Args:
        validators: The validators, in order.
        value: The value to validate.
        run: The context of the run.
        what: The start of the message to the model.
        where: The output, for errors.

    Raises:
        InvalidOutputError: A validator refuses the value, or needs the context of a run, and there is none.
    """
    for function, context_index in validators:
        if context_index is not None and run is None:
            raise InvalidOutputError(
                f"{where} can be validated only during a run, because a validator needs the RunContext."
            )
        try:
            result = function(
                *((value,) if context_index is None else (run, value) if context_index == 0 else (value, run))
            )
            if inspect.isawaitable(result):
                result = await result
        except ValueError as error:
            raise InvalidOutputError(f"{what} does not pass: {error}") from error
        # Raised as it is, so that a bug in a validator is not sent to the model as a problem with its answer.
        except Exception as error:
            error.add_note(
                f"The validate= of {where} raised {type(error).__name__}, so no value was accepted. It should refuse "
                "a value with ValueError; any other exception is treated as a bug."
            )
            raise
        value = value if result is None else result
    return value
