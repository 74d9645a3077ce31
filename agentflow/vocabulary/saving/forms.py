"""Check the format and version of stored data when it is loaded.

Rules:

1. Data of an older version is read; data of a newer version is refused, and not modified.
2. Damaged or unrelated data is refused; the error names the first problem.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar, cast

from pydantic_core import ValidationError

from agentflow._support.validation import adapter_of, first_problem
from agentflow.errors import StoreError

CODEC_VERSION = 2
"""The version of all formats: facts, sessions, turns, queues, agents, requests to workers. Written into each."""

D = TypeVar("D")


def refuse_newer(label: str, version: object) -> None:
    """Refuse data that a newer agentflow wrote.

    Raises:
        StoreError: The version is newer.
    """
    if type(version) is int and version > CODEC_VERSION:
        raise StoreError(
            f"{label} has version {version}; this agentflow reads versions up to {CODEC_VERSION}. A newer version wrote it: "
            "upgrade agentflow here."
        )


def check_version(label: str, version: object) -> None:
    """Refuse data without a version, or with a newer one.

    Raises:
        StoreError: The version is missing, invalid or newer.
    """
    if type(version) is not int or version < 1:
        raise StoreError(
            f"{label} has the version {version!r} instead of an integer from 1 to {CODEC_VERSION}. It was not "
            "written by agentflow, or is damaged: restore it from a backup."
        )
    refuse_newer(label, version)


def check_form(form: type[D], data: object, label: str, wrong: Callable[[str], StoreError]) -> D:
    """Validate loaded data.

    Args:
        form: A type that pydantic supports, such as a `TypedDict`.
        data: The loaded data. Its `version` (`form` in requests and results) is checked first.
        label: The name of the data in errors, such as "The saved turn".
        wrong: Builds the error from the first problem.

    Raises:
        StoreError: The data is invalid, damaged, or newer than this code.
    """
    if isinstance(data, Mapping):
        fields = cast("Mapping[str, object]", data)
        # First: newer data may have another form, and should not be called damaged.
        refuse_newer(label, fields.get("version", fields.get("form")))
    try:
        return adapter_of(form).validate_python(data)
    except ValidationError as error:
        raise wrong(first_problem(error)) from error


def not_saved(label: str) -> Callable[[str], StoreError]:
    """Return a function that builds the error for data that is not a saved object, from its first problem."""
    return lambda problem: StoreError(
        f"This is not a saved {label}: {problem}. Load the data that {label}.to_dict() returned."
    )
