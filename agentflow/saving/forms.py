"""What is stored says which form it has and of which version; it is checked here, whatever it is.

Rules:

1. A newer version is refused, untouched; an older one is read.
2. What is damaged, or something else, is refused with the first thing that is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar, cast

from pydantic_core import ValidationError

from agentflow.errors import StoreError
from agentflow.ground.validation import adapter_of, first_problem

__all__ = ["CODEC_VERSION", "check_form", "check_version", "not_saved", "refuse_newer"]

CODEC_VERSION = 2
"""The version of all forms: facts, sessions, turns, queues, agents, requests to workers. Written into each."""

D = TypeVar("D")


def refuse_newer(what: str, version: object) -> None:
    """Refuse what a newer agentflow wrote.

    Raises:
        StoreError: It did.
    """
    if type(version) is int and version > CODEC_VERSION:
        raise StoreError(
            f"{what} has version {version}; this agentflow reads versions up to {CODEC_VERSION}. A newer one wrote it: "
            "upgrade agentflow here."
        )


def check_version(what: str, version: object) -> None:
    """Refuse what has no version, or a newer one.

    Raises:
        StoreError: It is so.
    """
    if type(version) is not int or version < 1:
        raise StoreError(
            f"{what} has the version {version!r}, and must have a whole number from 1 to {CODEC_VERSION}. It was not "
            "written by agentflow, or is damaged: restore it from a backup."
        )
    refuse_newer(what, version)


def check_form(form: type[D], data: object, what: str, wrong: Callable[[str], StoreError]) -> D:
    """Check what was loaded.

    Args:
        form: A type that pydantic knows, such as a `TypedDict`.
        data: What was loaded; its `version` (of requests and results: `form`) is looked at first.
        what: What it should be, for errors: "The saved turn".
        wrong: Makes the error of the first problem.

    Raises:
        StoreError: It is something else, damaged, or newer than this code.
    """
    if isinstance(data, Mapping):
        said = cast("Mapping[str, object]", data)
        refuse_newer(what, said.get("version", said.get("form")))
    try:
        return adapter_of(form).validate_python(data)
    except ValidationError as error:
        raise wrong(first_problem(error)) from error


def not_saved(what: str) -> Callable[[str], StoreError]:
    """The error of something that is none of what was saved, by the first problem."""
    return lambda problem: StoreError(f"This is no saved {what}: {problem}. Load what {what}.to_dict() has written.")
