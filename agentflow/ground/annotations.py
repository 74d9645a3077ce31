"""Annotations of functions, also of those that name what the running program does not know.

Python 3.14 evaluates annotations when they are read, and then fails; here they are the texts that they are up to 3.13 with
`from __future__ import annotations`.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from typing import Any

if sys.version_info >= (3, 14):
    import annotationlib

__all__ = ["annotations_of", "signature_of"]


def annotations_of(function: Callable[..., Any]) -> Mapping[str, Any]:
    """What a function is annotated with; texts, if there is a name in it that is not known."""
    try:
        return getattr(function, "__annotations__", {})
    except NameError:
        if sys.version_info >= (3, 14):
            return annotationlib.get_annotations(function, format=annotationlib.Format.STRING)
        raise


def signature_of(function: Callable[..., Any]) -> inspect.Signature:
    """The signature of a function, its annotations as above.

    Raises:
        TypeError: It is not called.
        ValueError: It has none that Python could tell.

    Example:
        >>> str(signature_of(lambda a, *, b=1: a))
        '(a, *, b=1)'
    """
    try:
        return inspect.signature(function)
    except NameError:
        if sys.version_info >= (3, 14):
            return inspect.signature(function, annotation_format=annotationlib.Format.STRING)
        raise
